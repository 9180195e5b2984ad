//! `gpuflame states`: shows what each stream did at each moment, and what the stream waited for.

use std::collections::HashSet;

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::explain::{Explained, explain_opened, max_memory};
use super::found_path::remark_on_missing_work;
use super::heading::heading;
use super::input::Source;
use super::state_culprits::{CULPRIT_COLUMNS, CulpritRow, culprit_rows};
use super::states_hta::write_hta_tables;
use super::stream_flags::StreamFlags;
use super::table_output::{Cell, ReportFlags, ReportFormat, Table, group_digits};
use super::times::parse_micros;
use super::top::own_frame;
use gpuflame_explain::communication::is_communication_kernel;
use gpuflame_export::{NameFolding, folded_names, work_name};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::{Profile, format_nanos};
use gpuflame_model::record::Work;
use gpuflame_offline::analysis::{
    Interval, MAX_PARTS, State, StateCause, StateOptions, StateReport, StreamKey, StreamRows,
    reconstruct_states,
};
use gpuflame_offline::run::ReadOptions;

/// Show what each stream did at each moment: run, wait, or have no work, and why.
///
/// The times of a stream's states add up exactly to the duration of the window. docs/states.md states the rules.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame states trace.json.gz\n  \
    gpuflame states trace.json.gz --culprits\n  \
    gpuflame states run.gfr --stream 7 --intervals --from 10ms --to 11ms")]
pub(super) struct States {
    /// Recording or trace (`-`: standard input).
    input: Source,
    /// Maximum number of streams, causes and intervals to show; 0: all.
    #[arg(short, long, default_value_t = 20)]
    number: usize,
    #[command(flatten)]
    shown: StreamFlags,
    /// Length of the parts of the table over time (default: a tenth of the time).
    #[arg(long, value_name = "TIME", value_parser = parse_micros)]
    step: Option<i64>,
    /// List the single intervals of each stream.
    #[arg(long)]
    intervals: bool,
    /// Name the code to which idle time of each stream is charged.
    #[arg(long)]
    culprits: bool,
    /// Show queue lengths and idle times by the rules of Holistic Trace Analysis instead.
    #[arg(long, conflicts_with_all = ["intervals", "culprits", "step", "from", "to"])]
    as_hta: bool,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

impl States {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if self.as_hta {
            return write_hta_tables(&self.input, &self.shown, &self.report, console);
        }
        self.shown.check()?;
        if self.step == Some(0) {
            return Err(usage_error("--step is 0; name a time such as 1ms"));
        }
        let mut rows = if self.culprits { StreamRows::with_culprits() } else { StreamRows::default() };
        let options = ReadOptions {
            max_memory: max_memory(),
            without_host_states: !self.culprits,
            ..ReadOptions::default()
        };
        let explained = explain_opened(&self.input, self.input.open()?, &options, console, &mut rows)?;
        explained.facts.require_work(&self.input)?;
        explained.facts.require_rows(&self.input)?;
        let profile = &explained.profile;
        let (mut intervals, mut all_intervals) = (interval_table(), 0);
        let states = StateOptions {
            from: self.shown.from(),
            to: self.shown.to(),
            step: self.step.map(i64::unsigned_abs),
        };
        let mut zero = None;
        let report =
            reconstruct_states(rows, profile, states, &collective_test(profile), &mut |key, interval| {
                // The first interval starts at the beginning of the time range that is shown.
                let zero = *zero.get_or_insert(interval.start - self.shown_from());
                if self.intervals && self.wants(key) {
                    all_intervals += 1;
                    if all_intervals <= self.most() {
                        intervals.add_row(interval_cells(profile, key, interval, zero));
                    }
                }
            });
        let report = report.filter(|report| report.window.0 < report.window.1);
        let Some(report) = report else { return Err(no_states(&self.input, Some(&self.shown))) };
        if !report.streams.iter().any(|stream| self.wants(stream.key)) {
            return Err(no_stream(&self.input, &report));
        }
        print_remarks(&self.input, &report, states.step, console);
        remark_on_missing_work(&self.input, profile, console);
        let mut tables = vec![
            self.state_table(&report),
            self.cause_table(&report),
            self.device_table(&report),
            self.concurrency_table(&report),
            self.delay_table(&report),
            self.series_table(&report),
        ];
        if self.culprits {
            tables.insert(2, self.culprit_table(&report, profile));
        }
        if self.intervals {
            intervals.set_all_rows(all_intervals);
            tables.push(intervals);
        }
        self.write(&explained, &report, &tables, console)?;
        Ok(Outcome::Clean)
    }

    fn write(
        &self,
        explained: &Explained,
        report: &StateReport,
        tables: &[Table],
        console: Console,
    ) -> Result<()> {
        let answer = answer(report, &|key| self.wants(key));
        if self.report.format != ReportFormat::Text {
            return self.report.write(console, &[heading(&self.input, &explained.profile), answer], tables);
        }
        let page = super::page::Page::of(&self.report.output, console);
        let head = [heading(&self.input, &explained.profile)];
        self.report.output.write(console, |out| {
            writeln!(out, "{answer}\n")?;
            super::table_output::write_tables(&head, tables, ReportFormat::Text, page, out)
        })
    }

    fn wants(&self, key: StreamKey) -> bool {
        self.shown.wants_stream(key.0.0, key.2.0)
    }

    /// Returns the beginning of the time range that is shown, in ns since the start of the window.
    fn shown_from(&self) -> u64 {
        self.shown.from().unwrap_or(0)
    }

    fn most(&self) -> usize {
        if self.number == 0 { usize::MAX } else { self.number }
    }

    fn state_table(&self, report: &StateReport) -> Table {
        let mut table = Table::new(
            "states",
            &[
                "device",
                "context",
                "stream",
                "running_ns",
                "waiting_ns",
                "pending_ns",
                "idle_ns",
                "finished_ns",
                "not_recorded_ns",
            ],
        );
        let wanted: Vec<_> = report.streams.iter().filter(|stream| self.wants(stream.key)).collect();
        table.set_all_rows(wanted.len());
        for stream in wanted.into_iter().take(self.most()) {
            let nanos = State::ALL.map(|state| Cell::Nanos(stream.nanos(state)));
            table.add_row(key_cells(stream.key).into_iter().chain(nanos));
        }
        table
    }

    fn cause_table(&self, report: &StateReport) -> Table {
        let mut table = Table::new(
            "causes",
            &["device", "context", "stream", "state", "cause", "time_ns", "share_percent"],
        );
        let length = report.window.1 - report.window.0;
        let mut rows: Vec<_> = report
            .streams
            .iter()
            .filter(|stream| self.wants(stream.key))
            .flat_map(|stream| stream.sums.iter().map(|(what, nanos)| (stream.key, *what, *nanos)))
            .filter(|(_, (_, cause), _)| *cause != StateCause::None)
            .collect();
        rows.sort_by_key(|(key, what, nanos)| (std::cmp::Reverse(*nanos), *key, *what));
        table.set_all_rows(rows.len());
        for (key, (state, cause), nanos) in rows.into_iter().take(self.most()) {
            let what =
                [state.word().into(), cause.word().into(), Cell::Nanos(nanos), Cell::share(nanos, length)];
            table.add_row(key_cells(key).into_iter().chain(what));
        }
        table
    }

    fn culprit_table(&self, report: &StateReport, profile: &Profile) -> Table {
        let wanted = report.streams.iter().filter(|stream| self.wants(stream.key));
        let rows = culprit_rows(wanted, profile);
        let mut table = Table::new("idle_culprits", &CULPRIT_COLUMNS);
        let length = report.window.1 - report.window.0;
        table.set_all_rows(rows.len());
        for CulpritRow { key, nanos, gaps, stack, site } in rows.into_iter().take(self.most()) {
            let stack = Cell::Stack(stack.to_string(), own_frame(profile, site, NameFolding::default()));
            let what = [Cell::Nanos(nanos), Cell::share(nanos, length), Cell::Count(gaps), stack];
            table.add_row(key_cells(key).into_iter().chain(what));
        }
        table
    }

    fn device_table(&self, report: &StateReport) -> Table {
        let mut table = Table::new(
            "devices",
            &["device", "window_ns", "busy_ns", "busy_percent", "streams", "streams_at_once", "max_queue"],
        );
        let length = report.window.1 - report.window.0;
        for (device, concurrency) in
            report.devices.iter().filter(|(device, _)| self.shown.wants_device(device.0))
        {
            let busy = length - concurrency.get(&0).copied().unwrap_or(0);
            let streams = report.streams.iter().filter(|stream| stream.key.0 == *device);
            table.add_row([
                Cell::Gpu(device.0),
                Cell::Nanos(length),
                Cell::Nanos(busy),
                Cell::share(busy, length),
                Cell::Count(streams.clone().count() as u64),
                Cell::Count(concurrency.keys().max().copied().unwrap_or(0)),
                Cell::Count(streams.map(|stream| stream.max_queue).max().unwrap_or(0)),
            ]);
        }
        table
    }

    fn concurrency_table(&self, report: &StateReport) -> Table {
        let mut table = Table::new("concurrency", &["device", "running_streams", "time_ns", "share_percent"]);
        let length = report.window.1 - report.window.0;
        for (device, concurrency) in
            report.devices.iter().filter(|(device, _)| self.shown.wants_device(device.0))
        {
            for (count, nanos) in concurrency {
                table.add_row([
                    Cell::Gpu(device.0),
                    Cell::Count(*count),
                    Cell::Nanos(*nanos),
                    Cell::share(*nanos, length),
                ]);
            }
        }
        table
    }

    fn delay_table(&self, report: &StateReport) -> Table {
        const CAUSES: [StateCause; 7] = [
            StateCause::InOrder,
            StateCause::Event,
            StateCause::Collective,
            StateCause::LaunchLatency,
            StateCause::DefaultStream,
            StateCause::OtherStreams,
            StateCause::Unknown,
        ];
        let mut table = Table::new(
            "launch_delays",
            &[
                "device",
                "context",
                "stream",
                "launched",
                "p50_ns",
                "p95_ns",
                "max_ns",
                "in_order_ns",
                "event_ns",
                "collective_ns",
                "launch_latency_ns",
                "default_stream_ns",
                "other_streams_ns",
                "unknown_ns",
            ],
        );
        let wanted: Vec<_> = report.streams.iter().filter(|stream| self.wants(stream.key)).collect();
        table.set_all_rows(wanted.len());
        for stream in wanted.into_iter().take(self.most()) {
            let delays = &stream.delays;
            let percentile = |percent| delays.percentile(percent).map_or(Cell::Nothing, Cell::Nanos);
            let causes = CAUSES.map(|cause| Cell::Nanos(delays.by_cause.get(&cause).copied().unwrap_or(0)));
            let counts =
                [Cell::Count(delays.nanos.len() as u64), percentile(50), percentile(95), percentile(100)];
            table.add_row(key_cells(stream.key).into_iter().chain(counts).chain(causes));
        }
        table
    }

    fn series_table(&self, report: &StateReport) -> Table {
        let mut table = Table::new(
            "over_time",
            &["start_ns", "device", "busy_percent", "streams_ns", "queued_ns", "bytes", "bandwidth_gb_per_s"],
        );
        for (device, rows) in report.series.iter().filter(|(device, _)| self.shown.wants_device(device.0)) {
            for row in rows {
                let length = row.end - row.start;
                table.add_row([
                    Cell::Nanos(row.start - report.window.0 + self.shown_from()),
                    Cell::Gpu(device.0),
                    Cell::share(row.busy_ns, length),
                    Cell::Nanos(row.stream_ns),
                    Cell::Nanos(row.queue_ns),
                    Cell::Bytes(row.bytes),
                    Cell::Bandwidth(row.bytes as f64 / length.max(1) as f64),
                ]);
            }
        }
        table
    }
}

/// Returns the error for a file without states in the time range that is shown.
pub(super) fn no_states(input: &Source, shown: Option<&StreamFlags>) -> Error {
    let what = match shown.map_or((None, None), |shown| (shown.from(), shown.to())) {
        (None, None) => "no GPU work has usable times; `gpuflame info` shows its contents",
        _ => "the window has no time between --from and --to; leave them out to see its length",
    };
    Error::new(ErrorKind::Format, format!("{input}: {what}"))
}

/// Returns the error for a stream that the file does not contain.
pub(super) fn no_stream(input: &Source, report: &StateReport) -> Error {
    let known: Vec<String> = report
        .streams
        .iter()
        .take(16)
        .map(|stream| format!("GPU {} stream {}", stream.key.0.0, stream.key.2.0))
        .collect();
    let what = format!("no work ran there; there are: {}", known.join(", "));
    Error::new(ErrorKind::Format, format!("{input}: {what}"))
}

/// Prints a remark on operations without a state, and a remark if `step` was too short and was therefore made longer.
pub(super) fn print_remarks(input: &Source, report: &StateReport, step: Option<u64>, console: Console) {
    if report.untimed > 0 {
        let count = group_digits(report.untimed);
        console.remark(format!("{input}: {count} operations without usable times have no state"));
    }
    let length = report.window.1 - report.window.0;
    if step.is_some_and(|step| length.div_ceil(step.max(1)) > MAX_PARTS) {
        console
            .remark(format!("--step: there are at most {MAX_PARTS} parts for each GPU, so they are longer"));
    }
}

/// Returns the sentence above the tables. The sentence contains the share of time in each state, largest share first.
pub(super) fn answer(report: &StateReport, wants: &dyn Fn(StreamKey) -> bool) -> String {
    let streams = report.streams.iter().filter(|stream| wants(stream.key));
    let nanos = |state| streams.clone().map(|stream| u128::from(stream.nanos(state))).sum::<u128>();
    let mut states: Vec<_> = State::ALL.map(|state| (nanos(state), state.word().replace('_', " "))).into();
    let all: u128 = states.iter().map(|(nanos, _)| nanos).sum();
    states.sort_by_key(|(nanos, _)| std::cmp::Reverse(*nanos));
    let share =
        |(nanos, word): &(u128, String)| format!("{word} {:.1} %", 100.0 * *nanos as f64 / all.max(1) as f64);
    let shares: Vec<String> = states.iter().filter(|(nanos, _)| *nanos > 0).map(share).collect();
    let count = streams.count();
    let noun = if count == 1 { "stream" } else { "streams" };
    let length = format_nanos(report.window.1 - report.window.0);
    format!("{count} {noun} in {length}: {}.", shares.join(", "))
}

/// Returns a function that tests whether a kind of GPU work moves data between GPUs.
pub(super) fn collective_test(profile: &Profile) -> impl Fn(Work) -> bool + use<> {
    let named = profile.kernels().into_iter().map(|(name, _)| Work::Kernel(name));
    let collectives: HashSet<Work> =
        named.filter(|work| is_communication_kernel(&work_name(profile, *work))).collect();
    move |work| collectives.contains(&work)
}

fn interval_table() -> Table {
    Table::new(
        "intervals",
        &[
            "start_ns",
            "duration_ns",
            "device",
            "context",
            "stream",
            "state",
            "cause",
            "event",
            "work",
            "culprit",
        ],
    )
}

fn interval_cells(profile: &Profile, key: StreamKey, interval: &Interval, zero: u64) -> Vec<Cell> {
    let [device, context, stream] = key_cells(key);
    vec![
        Cell::Nanos(interval.start - zero),
        Cell::Nanos(interval.end - interval.start),
        device,
        context,
        stream,
        interval.state.word().into(),
        match interval.cause {
            StateCause::None => Cell::Nothing,
            cause => cause.word().into(),
        },
        interval.event.map_or(Cell::Nothing, |event| Cell::Id(event.0.into())),
        interval
            .work
            .map_or(Cell::Nothing, |work| Cell::Kernels(vec![work_name(profile, work).into_owned()])),
        interval.culprit.map_or(Cell::Nothing, |site| {
            let names = NameFolding::default();
            Cell::Stack(folded_names(profile, site, names).join(";"), own_frame(profile, site, names))
        }),
    ]
}

fn key_cells((device, context, stream): StreamKey) -> [Cell; 3] {
    [Cell::Gpu(device.0), Cell::Id(context.0.into()), Cell::Id(stream.0.into())]
}

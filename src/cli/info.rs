//! `gpuflame info`: shows the contents of a recording, the share of its GPU work that is matched to launches, and the
//! counts of lost data.

use std::collections::HashSet;

use clap::Args;

use super::console::{Console, Outcome};
use super::explain::{Explained, explain_opened, max_memory};
use super::heading::heading;
use super::info_execution::execution_tables;
use super::input::Source;
use super::shorten::{MAX_NAME_CHARS, shortened};
use super::stream_times::{MAX_SPANS, check_durations};
use super::table_output::{Cell, ReportFlags, Table};
use gpuflame_explain::join::Activities;
use gpuflame_model::error::Result;
use gpuflame_model::record::{Loss, Missing, WindowEdge};
use gpuflame_offline::analysis::WorkSpans;
use gpuflame_offline::run::ReadOptions;

/// Show the contents of a recording or trace, its share of linked work, and its losses.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  gpuflame info trace.json.gz")]
pub(super) struct Info {
    /// Recording or trace (`-`: standard input).
    input: Source,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

impl Info {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let opened = self.input.open()?;
        if !opened.kind().has_events() {
            let tables = execution_tables(&self.input, opened, console)?;
            self.report.write(console, &[self.input.to_string()], &tables)?;
            return Ok(Outcome::Clean);
        }
        let mut spans = WorkSpans::bounded(MAX_SPANS);
        let options = ReadOptions { max_memory: max_memory(), ..ReadOptions::default() };
        let explained = explain_opened(&self.input, opened, &options, console, &mut spans)?;
        let whole_micros = spans.whole_micros(explained.facts.linked.as_ref());
        let mut tables = vec![fact_table(&explained, whole_micros), device_table(&explained)];
        tables.extend(part_table(&explained));
        tables.extend(step_table(&explained, usize::MAX));
        tables.push(loss_table(&explained));
        tables.extend(check_durations(&self.input, &explained, spans, console));
        self.report.write(console, &[heading(&self.input, &explained.profile)], &tables)?;
        Ok(Outcome::Clean)
    }
}

/// Returns the table of facts about the recording. `whole_micros` states whether all times of GPU work are whole
/// microseconds; `None` if that is unknown.
fn fact_table(explained: &Explained, whole_micros: Option<bool>) -> Table {
    let Explained { profile, ledger, .. } = explained;
    let tally = &ledger.tally;
    let mut table = Table::new("facts", &["what", "value"]);
    let mut fact = |what: &str, value: Cell| table.add_row([what.into(), value]);
    fact("kind", Cell::from(explained.facts.kind.description()));
    if explained.facts.has_only_sums {
        fact(
            "contents",
            Cell::from(match explained.facts.is_finished {
                true => "the sums of the run, no single activities",
                false => "the sums up to the last checkpoint, no single activities",
            }),
        );
    }
    if let Some(schema) = explained.facts.linked.as_ref().and_then(|linked| linked.counts.schema.as_deref()) {
        fact("schema version", Cell::from(schema));
    }
    if let Some((process, program)) = profile.process() {
        fact("program", Cell::from(program));
        fact("process", Cell::Id(process.into()));
    }
    for (what, text) in profile.provenance() {
        fact(what.word(), Cell::from(text));
    }
    fact("launches", Cell::Count(tally.launches.seen));
    for (word, count) in tally.launches.parts() {
        fact(&format!("launches {}", word.replace('_', " ")), Cell::Count(count));
    }
    fact("launches captured into graphs", Cell::Count(ledger.lost(Loss::LaunchesCaptured)));
    fact("activities", Cell::Count(tally.activities.seen));
    for (word, count) in tally.activities.parts() {
        fact(&format!("activities {}", word.replace('_', " ")), Cell::Count(count));
    }
    fact("activities linked", Cell::share(tally.activities.matched, tally.activities.seen));
    let steps = profile.steps();
    if steps.count > 0 {
        fact("steps", Cell::Count(steps.count));
        if steps.has_several_threads {
            fact("steps begin on", Cell::from("several threads, and those of each thread are counted"));
        }
    }
    let part = match profile.steady() {
        Some(steady) => steady.rule.words(),
        None => "unknown: it takes two steps with work, or a loop with most of the kernels",
    };
    fact("steady part", Cell::from(part));
    if let Some(doubt) = profile.idle_doubt() {
        fact("idle time", Cell::Text(format!("unknown: {doubt}")));
    }
    if !profile.coverage().empty_steps.is_empty() {
        fact("steps without GPU work", Cell::Text(profile.coverage().list_empty_steps()));
    }
    if explained.facts.has_only_sums && steps.count > 1 {
        let why = "unknown: needs single activities, which `gpuflame run --rows` records";
        fact("steps without GPU work", Cell::from(why));
    }
    if let Some(linked) = &explained.facts.linked {
        fact("GPU time linked", Cell::share(linked.linked_gpu_ns, linked.gpu_ns));
        fact("launches with several activities", Cell::Count(linked.multi_op_launches));
        fact("most activities of a launch", Cell::Count(linked.max_ops_per_launch));
        if linked.counts.events > 0 {
            fact("events in the file", Cell::Count(linked.counts.events));
            let of_text = linked.counts.fractional_times == 0 && linked.counts.whole_times > 0;
            let whole = whole_micros.unwrap_or(of_text);
            fact("times", Cell::from(if whole { "whole microseconds" } else { "nanoseconds" }));
        }
    }
    let known = &ledger.dependencies;
    if !known.is_empty() {
        fact("calls that record an event", Cell::Count(known.record_calls));
        fact("calls that have a stream wait", Cell::Count(known.wait_calls));
        fact("event records", Cell::Count(known.event_records));
        for (word, count) in known.waits().1 {
            fact(&format!("wait records {}", word.replace('_', " ")), Cell::Count(count));
        }
    }
    for sample in &ledger.unified {
        let gpu = sample.device.map(|device| format!(" GPU {}", device.0)).unwrap_or_default();
        let what = if sample.kind.is_move() { " bytes" } else { "" };
        fact(&format!("unified memory{gpu} {}{what}", sample.kind.label()), Cell::Count(sample.value));
    }
    // The same stack on two threads is counted once, because a recorded process also merges the stacks of its threads.
    let stacks: HashSet<_> = profile.all_contexts().map(|(_, one)| (one.stack, one.flags)).collect();
    fact("stacks", Cell::Count(stacks.len() as u64));
    fact("frames without a name", Cell::Count(explained.unnamed.values().sum()));
    for (why, count) in &explained.unnamed {
        fact(&format!("frames without a name: {}", why.words()), Cell::Count(*count));
    }
    fact("kernels", Cell::Count(profile.kernels().len() as u64));
    fact("modules", Cell::Count(profile.modules().len() as u64));
    for &(edge, time) in profile.windows() {
        let what = if edge == WindowEdge::Open { "window opened" } else { "window closed" };
        fact(what, Cell::Time(time.0));
    }
    table
}

fn device_table(explained: &Explained) -> Table {
    const COLUMNS: [&str; 7] =
        ["device", "activities", "gpu_time_ns", "busy_ns", "idle_ns", "window_ns", "busy_percent"];
    let mut table = Table::new("devices", &COLUMNS);
    let is_unknown = explained.profile.idle_doubt().is_some();
    for device in &explained.ledger.devices {
        // If the activities on a device have no times, the device's busy and idle time are unknown.
        let nanos = |value: Option<u64>| value.map_or(Cell::Nothing, Cell::Nanos);
        let known = device.time.filter(|_| !is_unknown);
        table.add_row([
            Cell::Gpu(device.id().0),
            Cell::Count(device.work.count),
            Cell::Nanos(device.work.nanos),
            nanos(device.time.map(|time| time.busy)),
            nanos(known.map(|time| time.idle)),
            nanos(device.time.map(|time| time.window)),
            known.map_or(Cell::Nothing, |time| Cell::share(time.busy, time.window)),
        ]);
    }
    table
}

/// Returns the table with the times of start-up, steady part and shutdown. The three times add up to the whole window.
/// Returns `None` if the run has no steady part. If idle time is unknown, the cells for idle time are empty.
fn part_table(explained: &Explained) -> Option<Table> {
    let profile = &explained.profile;
    let steady = profile.steady()?;
    let known = |cell| if profile.idle_doubt().is_some() { Cell::Nothing } else { cell };
    let mut table =
        Table::new("parts", &["device", "part", "busy_ns", "idle_ns", "window_ns", "busy_percent"]);
    for time in profile.times() {
        let parts =
            [("start-up", time.start_up), (steady.rule.words(), time.steady()), ("shutdown", time.shutdown)];
        for (part, sum) in parts {
            table.add_row([
                Cell::Gpu(time.device.0),
                Cell::from(part),
                Cell::Nanos(sum.busy),
                known(Cell::Nanos(sum.idle)),
                Cell::Nanos(sum.window()),
                known(Cell::share(sum.busy, sum.window())),
            ]);
        }
    }
    Some(table)
}

/// Returns the table with one row per kind of step. Returns `None` if the run has no steps.
pub(super) fn step_table(explained: &Explained, most: usize) -> Option<Table> {
    const COLUMNS: [&str; 7] = ["step", "count", "total_ns", "p50_ns", "p95_ns", "max_ns", "longest_step"];
    let series = explained.profile.step_series();
    let mut table = Table::new("steps", &COLUMNS);
    for (at, kind) in series.kinds.iter().enumerate().filter(|(_, kind)| kind.count > 0).take(most) {
        table.add_row([
            Cell::Text(if kind.name.is_empty() {
                "step".to_owned()
            } else {
                shortened(&kind.name, MAX_NAME_CHARS)
            }),
            Cell::Count(kind.count),
            Cell::Nanos(kind.nanos),
            Cell::Nanos(series.percentile(at, 50)),
            Cell::Nanos(series.percentile(at, 95)),
            Cell::Nanos(kind.max),
            Cell::Id(kind.longest),
        ]);
    }
    (!table.rows().is_empty()).then_some(table)
}

/// Returns the table with the counts of lost records, and of activities that no total contains.
fn loss_table(explained: &Explained) -> Table {
    let mut table = Table::new("losses", &["lost", "count"]);
    let Activities { untimed, repeated, of_no_call, .. } = explained.ledger.tally.activities;
    let mut loss = |what: &str, count| {
        if count > 0 {
            table.add_row([what.into(), Cell::Count(count)]);
        }
    };
    loss(Missing::Untimed.word(), untimed);
    loss("activities_repeated", repeated);
    loss("activities_of_no_call", of_no_call);
    loss("records_damaged", explained.facts.damaged);
    // Launches that were captured into a graph are not losses. The number of captured launches is in the table of
    // facts.
    let losses = explained.ledger.losses.iter().filter(|(kind, _)| **kind != Loss::LaunchesCaptured);
    for (kind, count) in losses {
        loss(kind.label(), *count);
    }
    table
}

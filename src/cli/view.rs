//! `gpuflame view`: lists single activities in chronological order.

use std::collections::{BTreeSet, HashSet};

use clap::Args;

use super::console::{Console, Outcome};
use super::explain::explain;
use super::heading::heading;
use super::input::Source;
use super::near_misses::{near_misses, quoted};
use super::page::Page;
use super::stream_flags::StreamFlags;
use super::table_output::{self, Cell, ReportFlags, Table, group_digits};
use super::timeline::TimelineView;
use super::top;
use gpuflame_explain::events::{JoinedActivity, JoinedRows};
use gpuflame_export::{NameFolding, event_site, stack_names, work_name};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::views::UNIFIED;
use gpuflame_model::profile::{Profile, Sample, format_nanos, saturating_sum};
use gpuflame_model::record::{Detail, MemoryKind, Work};
use gpuflame_offline::run::ReadOptions;

/// Show single activities.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame view run.gfr --kind kernel --from 1ms --to 2ms\n  \
    gpuflame view trace.json.gz --stats --name gemm")]
pub(super) struct View {
    /// Recording or trace (`-`: standard input).
    input: Source,
    /// Maximum number of activities or sums to show; 0: all.
    #[arg(short, long, default_value_t = 20)]
    number: usize,
    /// Show sums per kernel instead of single activities.
    #[arg(long, conflicts_with = "timeline")]
    stats: bool,
    /// Draw streams as letters, as `gpuflame timeline` does.
    #[arg(long, conflicts_with_all = ["kind", "name"])]
    timeline: bool,
    /// Show only activities of these kinds: kernel, copy, set, graph.
    #[arg(short, long, value_delimiter = ',', value_name = "KIND")]
    kind: Vec<WorkKind>,
    /// Show only activities whose name contains TEXT.
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    #[command(flatten)]
    shown: StreamFlags,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WorkKind {
    Kernel,
    Copy,
    Set,
    Graph,
}

impl WorkKind {
    const ALL: [Self; 4] = [Self::Kernel, Self::Copy, Self::Set, Self::Graph];

    fn of_work(work: Work) -> Self {
        match work {
            Work::Kernel(_) => Self::Kernel,
            Work::Copy(_) => Self::Copy,
            Work::Set => Self::Set,
            Work::Graph => Self::Graph,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Copy => "copy",
            Self::Set => "set",
            Self::Graph => "graph",
        }
    }
}

/// Maximum number of GPUs or streams that an error message lists.
const MAX_LISTED: usize = 16;
/// Maximum number of names that an error message lists if no name is similar to the wanted name.
const MAX_NAMES: usize = 3;
impl View {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if self.timeline {
            let Self { input, number, shown, report, .. } = self;
            return TimelineView { input, number: *number, shown, step: None, report }.run(console);
        }
        self.shown.check()?;
        let mut events = JoinedRows::default();
        let mut explained = explain(&self.input, &ReadOptions::default(), console, &mut events)?;
        explained.facts.give_source_ids(&mut events);
        explained.facts.require_work(&self.input)?;
        explained.facts.require_rows(&self.input)?;
        events.sort();
        let profile = &explained.profile;
        let timed = events.activities().find(|event| event.activity.duration().is_some());
        let zero = timed.map_or(0, |event| event.activity.start.0);
        let wanted: Vec<JoinedActivity> =
            events.activities().filter(|event| self.wants(profile, event, zero)).collect();
        if wanted.is_empty() {
            return Err(self.nothing_shown(profile, &events, zero));
        }
        let page = Page::of(&self.report.output, console);
        self.report.output.write(console, |out| {
            let table = if self.stats {
                top::work_table(profile, &wanted, self.most())
            } else {
                self.activity_table(&explained.profile, &events, &wanted, zero, page)
            };
            table_output::write_tables(
                &[heading(&self.input, profile)],
                &[table],
                self.report.format,
                page,
                out,
            )
        })?;
        if !self.stats && self.number > 0 && wanted.len() > self.number {
            console.remark(format!("{} of {} activities; -n 0 shows all", self.number, wanted.len()));
        }
        if let Some(beside) = describe_unshown(profile) {
            console.remark(beside);
        }
        Ok(Outcome::Clean)
    }

    fn wants(&self, profile: &Profile, event: &JoinedActivity, zero: u64) -> bool {
        let activity = &event.activity;
        let since = activity.start.0.saturating_sub(zero);
        (self.kind.is_empty() || self.kind.contains(&WorkKind::of_work(activity.work())))
            && self.shown.wants_stream(activity.device.0, activity.stream.0)
            && self.shown.from().is_none_or(|from| since >= from)
            && self.shown.to().is_none_or(|to| since < to)
            && self
                .name
                .as_ref()
                .is_none_or(|name| work_name(profile, activity.work()).contains(name.as_str()))
    }

    /// Returns the error for filters that no activity matches. The error's message lists values that would match
    /// activities.
    fn nothing_shown(&self, profile: &Profile, events: &JoinedRows, zero: u64) -> Error {
        let activities: Vec<JoinedActivity> = events.activities().collect();
        let devices: BTreeSet<u32> = activities.iter().map(|event| event.activity.device.0).collect();
        let on_device = |event: &&JoinedActivity| self.shown.wants_device(event.activity.device.0);
        let streams: BTreeSet<u32> =
            activities.iter().filter(on_device).map(|event| event.activity.stream.0).collect();
        let what = match (self.shown.device, self.shown.stream) {
            _ if activities.is_empty() => {
                "it has no activities; `gpuflame info` shows its contents".to_owned()
            }
            (Some(device), _) if !devices.contains(&device) => {
                format!("no activity ran on GPU {device}; those with activities: {}", list(&devices))
            }
            (_, Some(stream)) if !streams.contains(&stream) => {
                format!("no activity ran on stream {stream}; those with activities: {}", list(&streams))
            }
            _ => self.unmatched(profile, &activities, zero).unwrap_or_else(|| {
                format!(
                    "none of its {} activities fulfils all conditions; drop a condition",
                    activities.len()
                )
            }),
        };
        Error::new(ErrorKind::Format, format!("{}: {what}", self.input))
    }

    /// Describes the first filter that no activity matches, and the values for which it would match activities. Returns
    /// `None` if each filter alone matches an activity.
    fn unmatched(&self, profile: &Profile, activities: &[JoinedActivity], zero: u64) -> Option<String> {
        let all = || format!("none of its {} activities", group_digits(activities.len() as u64));
        let kinds = || activities.iter().map(|event| WorkKind::of_work(event.activity.work()));
        if !self.kind.is_empty() && !kinds().any(|kind| self.kind.contains(&kind)) {
            let known = WorkKind::ALL.into_iter().filter(|kind| kinds().any(|one| one == *kind));
            let known: Vec<_> = known.map(WorkKind::word).collect();
            return Some(format!("--kind: {} has that kind; there are: {}", all(), known.join(", ")));
        }
        let works: HashSet<Work> = activities.iter().map(|event| event.activity.work()).collect();
        let names: BTreeSet<_> = works.into_iter().map(|work| work_name(profile, work)).collect();
        if let Some(wanted) = &self.name
            && !names.iter().any(|name| name.contains(wanted.as_str()))
        {
            let near = near_misses(wanted, names.iter().map(AsRef::as_ref));
            let known = match near.is_empty() {
                true => {
                    let some: Vec<&str> = names.iter().take(MAX_NAMES).map(AsRef::as_ref).collect();
                    format!("names include {}", quoted(&some))
                }
                false => format!("did you mean {}?", quoted(&near)),
            };
            return Some(format!("--name {wanted}: {} has that in its name; {known}", all()));
        }
        let last = activities.iter().map(|event| event.activity.start.0.saturating_sub(zero)).max()?;
        let is_past = self.shown.from().is_some_and(|from| from > last);
        (is_past || self.shown.to() == Some(0))
            .then(|| format!("{} begins in that time; they begin from 0 to {}", all(), format_nanos(last)))
    }

    fn most(&self) -> usize {
        if self.number == 0 { usize::MAX } else { self.number }
    }

    fn activity_table(
        &self,
        profile: &Profile,
        events: &JoinedRows,
        wanted: &[JoinedActivity],
        zero: u64,
        page: Page,
    ) -> Table {
        let columns = &[
            "start_ns",
            "duration_ns",
            "device",
            "stream",
            "correlation",
            "bytes",
            "from",
            "to",
            "name",
            "launched_by",
        ];
        let mut table = Table::new("activities", columns);
        for event in wanted.iter().take(self.most()) {
            let activity = &event.activity;
            let nanos = activity.duration();
            let [from, to] = memory(&activity.detail);
            table.add_row([
                nanos.map_or(Cell::Nothing, |_| Cell::Nanos(activity.start.0.saturating_sub(zero))),
                nanos.map_or(Cell::Nothing, Cell::Nanos),
                Cell::Id(activity.device.0.into()),
                Cell::Id(activity.stream.0.into()),
                events.source_id(activity.correlation).map_or(Cell::Nothing, Cell::Id),
                Cell::Bytes(activity.bytes()),
                from,
                to,
                page.kernel_cell(work_name(profile, activity.work()).into_owned()),
                Cell::Stack(
                    stack_names(profile, event_site(event)).join(";"),
                    top::own_frame(profile, event_site(event), NameFolding::default()),
                ),
            ]);
        }
        table
    }
}

/// Returns the first few numbers as text, with `...` if there are more.
fn list(numbers: &BTreeSet<u32>) -> String {
    let mut text: Vec<String> = numbers.iter().take(MAX_LISTED).map(u32::to_string).collect();
    text.extend((numbers.len() > MAX_LISTED).then(|| "...".to_owned()));
    text.join(", ")
}

/// Returns the cells with the kinds of memory that a copy or a fill read and wrote. The cell for an unknown kind of
/// memory is empty.
fn memory(detail: &Detail) -> [Cell; 2] {
    let (from, to) = match detail {
        Detail::Copy(copy) => (copy.from, copy.to),
        Detail::Set(set) => (MemoryKind::UNKNOWN, set.memory),
        Detail::Kernel(_) | Detail::Graph => (MemoryKind::UNKNOWN, MemoryKind::UNKNOWN),
    };
    [from, to].map(|kind| if kind == MemoryKind::UNKNOWN { Cell::Nothing } else { kind.label().into() })
}

/// Describes the contents of a recording except its activities. This verb shows only activities. Returns `None` if the
/// recording contains only activities.
fn describe_unshown(profile: &Profile) -> Option<String> {
    let known = profile.dependencies();
    let moves = saturating_sum(profile.samples(&UNIFIED).iter().map(Sample::count));
    let counts = [(known.event_records, "event"), (known.waits().0, "wait"), (moves, "unified memory")];
    let parts = counts.into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts.map(|(count, what)| format!("{count} {what} records")).collect();
    (!parts.is_empty()).then(|| format!("not shown: {}; `gpuflame info` lists their kinds", parts.join(", ")))
}

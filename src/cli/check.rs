//! `gpuflame check`: the doctor of traces. What of a trace is to be doubted, how much of it, and why that
//! matters.

use std::collections::HashMap;

use clap::Args;

use super::explain::{Explained, explain};
use super::input::Source;
use super::output::Target;
use super::report::{self, Cell, Format, Table};
use super::{Console, Ended, Outcome};
use crate::events::{Event, Events};
use crate::join::Origin;
use crate::record::{CorrelationId, DeviceId, GpuContextId, Loss, Nanos, StreamId};
use crate::symbolize::SymbolizeOptions;

/// Say what of a recording or trace is to be doubted.
///
/// `BAD` is what makes sums, links or orders wrong, `note` what one should know; `none` was looked for and not
/// found. With --strict it ends with 1 if anything is bad.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame check trace.json.gz\n  \
    gpuflame check run.gfr --strict --format json")]
pub(super) struct Check {
    /// The recording or trace (`-`: standard input).
    input: Source,
    /// End with 1 if anything is bad.
    #[arg(long)]
    strict: bool,
    /// How to write it.
    #[arg(short, long, default_value = "text")]
    format: Format,
    /// Where to write.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: Target,
}

/// How bad a finding is, if there is anything to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    Bad,
    Note,
}

struct Finding {
    what: &'static str,
    weight: Weight,
    count: u64,
    of: u64,
    why: &'static str,
}

impl Check {
    pub(super) fn run(&self, console: Console) -> Outcome {
        let mut events = Events::default();
        let explained = explain(&self.input, SymbolizeOptions::default(), console, &mut events)?;
        events.sort();
        let mut findings = findings(&explained, &events);
        let mut table = Table::new("findings", &["result", "what", "count", "share_percent", "why"]);
        // What is worst stands first.
        findings.sort_by_key(|finding| match (finding.count, finding.weight) {
            (0, _) => 2,
            (_, Weight::Bad) => 0,
            (_, Weight::Note) => 1,
        });
        for finding in &findings {
            let (result, why) = match (finding.count, finding.weight) {
                (0, _) => ("none", ""),
                (_, Weight::Bad) => ("BAD", finding.why),
                (_, Weight::Note) => ("note", finding.why),
            };
            table.row([
                result.into(),
                finding.what.into(),
                Cell::Count(finding.count),
                Cell::share(finding.count, finding.of),
                why.into(),
            ]);
        }
        let precision = precision(&events);
        let result = if precision == Precision::Micros { "note" } else { "ok" };
        table.row([
            result.into(),
            precision.words().into(),
            Cell::Nothing,
            Cell::Nothing,
            precision.why().into(),
        ]);
        self.output.write(console, |out| report::write(&[table], self.format, out))?;
        let bad = findings.iter().any(|finding| finding.count > 0 && finding.weight == Weight::Bad);
        Ok(if bad && self.strict { Ended::Found } else { Ended::Well })
    }
}

fn findings(explained: &Explained, events: &Events) -> Vec<Finding> {
    let (launches, activities) = (&explained.tally.launches, &explained.tally.activities);
    let all = activities.seen;
    let finding = |what, weight, count, of, why| Finding { what, weight, count, of, why };
    let of = |count: &dyn Fn(&Event) -> bool| {
        events.activities().iter().filter(|event| count(event)).count() as u64
    };
    let backwards = of(&|event| {
        let (start, end) = (event.activity.start.0, event.activity.end.0);
        start != 0 && end != 0 && end < start
    });
    let unset = unset(explained, events);
    let uncollected = of(&|event| {
        event.activity.start.0 <= unset || event.activity.end.0 == 0 || event.activity.end.0 <= unset
    });
    let empty = of(&|event| event.activity.duration() == Some(0));
    let endless = of(&|event| event.activity.duration().is_some_and(|nanos| nanos > ENDLESS));
    let lost = |kinds: &[Loss]| {
        let lost = explained.profile.losses().filter(|(loss, _)| kinds.contains(loss));
        lost.map(|(_, count)| count).sum::<u64>()
    };
    use Loss::*;
    let dropped = [
        LaunchesDropped,
        ActivitiesDropped,
        ActivitiesUnreadable,
        StacksNested,
        StacksDropped,
        GraphNodesDropped,
    ];
    let (tail, shared) = (tail(events), shared(events));
    use Weight::{Bad, Note};
    vec![
        finding(
            "nothing ran on a GPU",
            Bad,
            u64::from(all == 0),
            0,
            "no GPU activity is in it: CPU only, or a category that is not known",
        ),
        finding(
            "activities launched before recording",
            Note,
            activities.launched_before,
            all,
            "their stacks are not there: begin to record before the work does",
        ),
        finding(
            "activities without a launch",
            Bad,
            activities.no_stack,
            all,
            "their GPU time is under no stack",
        ),
        finding(
            "launches with several activities",
            Note,
            shared.values().filter(|count| **count > 1).count() as u64,
            launches.seen,
            "graphs: tools that keep one kernel an id lose the others",
        ),
        finding(
            "launches without an activity",
            Note,
            launches.pending - tail,
            launches.seen,
            "they failed, copied nothing, or their record was lost",
        ),
        finding(
            "launches at the end without an activity",
            Note,
            tail,
            launches.seen,
            "recording ended before the GPU did: synchronise before the end",
        ),
        finding(
            "activities that begin before their launch",
            Bad,
            activities.early,
            all,
            "two clocks disagree: delays and idle causes are off",
        ),
        finding("times not collected", Bad, uncollected, all, "they are counted but have no GPU time"),
        finding("times that run backwards", Bad, backwards, all, "they are counted but have no GPU time"),
        finding(
            "activities of no length",
            Note,
            empty,
            all,
            "times were cut to microseconds: short kernels weigh nothing",
        ),
        finding(
            "activities of more than a minute",
            Note,
            endless,
            all,
            "a clock may have jumped: a few such durations can be most of the GPU time",
        ),
        finding(
            "overlaps on a stream",
            Bad,
            overlaps(events, &shared),
            all,
            "work on a stream is in order: times or streams are wrong",
        ),
        finding(
            "no record of what waited for what",
            Note,
            u64::from(!has_waits(explained)),
            0,
            "synchronisations are not in it: no critical path can be told (GPUFLAME_DEPS=1 has ours record them)",
        ),
        finding(
            "lost while recording",
            Bad,
            lost(&dropped),
            0,
            "records were dropped: `gpuflame info` says of what kind",
        ),
        finding(
            "stacks cut short or guessed",
            Note,
            lost(&[StacksTruncated, StacksGuessed, StacksCut]),
            launches.seen,
            "their GPU time may be under the wrong root",
        ),
        finding("launches that failed", Note, lost(&[LaunchesFailed]), 0, "the driver refused them"),
        finding("damaged records", Bad, explained.facts.damaged, 0, "the file was cut or changed"),
    ]
}

/// No piece of work is expected to take longer, in nanoseconds.
const ENDLESS: u64 = 60_000_000_000;
/// Clocks that count from 1970 or from a machine's start are beyond it soon: a minute.
const LONG_AGO: u64 = 60_000_000_000;

/// The last time that means that there is none. Traces of other tools have it at what was 0 on their own
/// clock, if that is a long time before everything else.
fn unset(explained: &Explained, events: &Events) -> u64 {
    let Some(linked) = &explained.facts.linked else { return 0 };
    let zero = u64::try_from(linked.offset).unwrap_or(0);
    let begin = events.activities().iter().map(|event| event.activity.start.0).find(|start| *start > zero);
    if begin.is_some_and(|begin| begin - zero > LONG_AGO) { zero } else { 0 }
}

/// Whether waits are recorded, if there were calls to wait. Of our own recordings those have them that were
/// asked for it.
fn has_waits(explained: &Explained) -> bool {
    !explained.profile.dependencies().is_empty()
        || explained.facts.linked.is_some_and(|linked| linked.syncs > 0 || linked.waits == 0)
}

/// How many activities each launch has.
type Shared = HashMap<(CorrelationId, Nanos), u64>;

fn shared(events: &Events) -> Shared {
    let mut counts = Shared::new();
    for event in events.activities() {
        if let Some(launch) = launch(event) {
            *counts.entry(launch).or_default() += 1;
        }
    }
    counts
}

fn launch(event: &Event) -> Option<(CorrelationId, Nanos)> {
    match event.origin {
        Origin::Launch(launched) => Some((event.activity.correlation, launched.time)),
        Origin::Missing(_) => None,
    }
}

/// Pending launches behind the last one that had an activity.
fn tail(events: &Events) -> u64 {
    events.calls().iter().rev().take_while(|call| call.pending).count() as u64
}

/// Activities that begin before the one before them on their stream has ended, but for nodes of graphs,
/// which may run side by side. Where a trace does not say what is one, the activities of a launch with several.
fn overlaps(events: &Events, shared: &Shared) -> u64 {
    let is_node = |event: &Event| {
        event.activity.graph.0 != 0 || launch(event).is_some_and(|launch| shared[&launch] > 1)
    };
    let mut ends: HashMap<(DeviceId, GpuContextId, StreamId), Nanos> = HashMap::new();
    let mut overlaps = 0;
    for event in events.activities().iter().filter(|event| event.activity.duration().is_some()) {
        let activity = &event.activity;
        let end = ends.entry((activity.device, activity.context, activity.stream)).or_default();
        overlaps += u64::from(activity.start < *end && !is_node(event));
        *end = activity.end.max(*end);
    }
    overlaps
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Precision {
    Nanos,
    Micros,
    Unknown,
}

/// What the times of all activities are multiples of.
fn precision(events: &Events) -> Precision {
    let first = events.activities().iter().find(|event| event.activity.duration().is_some());
    let Some(first) = first.map(|event| event.activity.start.0) else { return Precision::Unknown };
    let whole = events.activities().iter().filter(|event| event.activity.duration().is_some()).all(|event| {
        let (start, end) = (event.activity.start.0, event.activity.end.0);
        start.abs_diff(first) % 1000 == 0 && (end - start) % 1000 == 0
    });
    if whole { Precision::Micros } else { Precision::Nanos }
}

impl Precision {
    fn words(self) -> &'static str {
        match self {
            Self::Nanos => "times are in nanoseconds",
            Self::Micros => "times are in whole microseconds",
            Self::Unknown => "there are no times",
        }
    }

    fn why(self) -> &'static str {
        match self {
            Self::Micros => "each duration may be off by a microsecond",
            Self::Nanos | Self::Unknown => "",
        }
    }
}

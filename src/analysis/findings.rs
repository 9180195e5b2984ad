//! The doctor of traces: what of one is to be doubted, how much of it, and why that matters.

use std::collections::HashMap;

use crate::events::{Events, JoinedActivity};
use crate::import::{LinkReport, WriterState};
use crate::join::{Origin, Tally};
use crate::profile::{Profile, add_to};
use crate::record::{CorrelationId, DeviceId, GpuContextId, Loss, Missing, Nanos, StreamId};

/// What was looked for, and what of it was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finding {
    /// Names it, for programs; never changes.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// How much of it there is, where it is a matter of amounts.
    pub figures: Option<Figures>,
    /// What was looked for, in a few words.
    pub what: &'static str,
    /// Why it matters, where it does.
    pub why: &'static str,
}

/// How bad a finding is; what is worst comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It makes sums, links or orders wrong, for more than a thousandth of the operations or of the busy time.
    Bad,
    /// One should know it.
    Note,
    /// It was looked for and is not there.
    Absent,
    /// A fact, and nothing to doubt.
    Fine,
}

impl Severity {
    /// The word of a report.
    pub fn word(self) -> &'static str {
        match self {
            Self::Bad => "BAD",
            Self::Note => "note",
            Self::Absent => "none",
            Self::Fine => "ok",
        }
    }
}

/// How much of something there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// How many there are.
    pub count: u64,
    /// Of so many; 0: of no known number.
    pub of: u64,
}

/// What a trace is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// Its sums and losses.
    pub profile: &'a Profile,
    /// What the join made of its rows.
    pub tally: &'a Tally,
    /// Its joined rows, sorted.
    pub events: &'a Events,
    /// How another tool's trace is linked.
    pub linked: Option<&'a LinkReport>,
    /// Records that could not be read.
    pub damaged: u64,
    /// What became of its process, if the recording does not come to its end.
    pub writer_state: Option<WriterState>,
}

/// All that is looked for, what is worst first, and last how precise the times are.
pub fn findings(evidence: &Evidence<'_>) -> Vec<Finding> {
    let Evidence { events, linked, .. } = *evidence;
    let (launches, activities) = (&evidence.tally.launches, &evidence.tally.activities);
    let all = activities.seen;
    let of = |count: &dyn Fn(&JoinedActivity) -> bool| {
        events.activities().iter().filter(|event| count(event)).count() as u64
    };
    let backwards = of(&|event| {
        let (start, end) = (event.activity.start.0, event.activity.end.0);
        start != 0 && end != 0 && end < start
    });
    let busy = evidence.profile.times().iter().fold(0_u64, |sum, time| sum.saturating_add(time.busy));
    // What is less than a thousandth, by number and by time, changes no picture.
    let matters = |count: u64, of: u64, nanos: u64| match count.saturating_mul(1000) > of
        || nanos.saturating_mul(1000) > busy
    {
        true => Severity::Bad,
        false => Severity::Note,
    };
    let time_of = |is_it: &dyn Fn(&JoinedActivity) -> bool| {
        let nanos = events.activities().iter().filter(|event| is_it(event));
        nanos.filter_map(|event| event.activity.duration()).fold(0, u64::saturating_add)
    };
    let homeless = time_of(&|event| matches!(event.origin, Origin::Missing(Missing::NoStack)));
    let early = time_of(&is_early);
    let overlapping = overlaps(events, &shared(events));
    let unset = unset(linked, events);
    let uncollected = of(&|event| {
        event.activity.start.0 <= unset || event.activity.end.0 == 0 || event.activity.end.0 <= unset
    });
    let empty = of(&|event| event.activity.duration() == Some(0));
    let endless = of(&|event| event.activity.duration().is_some_and(|nanos| nanos > ENDLESS));
    let lost = |kinds: &[Loss]| {
        let lost = evidence.profile.losses().filter(|(loss, _)| kinds.contains(loss));
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
    let dropped = lost(&dropped);
    use Severity::{Bad, Note};
    let mut findings = vec![
        finding(
            "no_gpu_work",
            "nothing ran on a GPU",
            Bad,
            u64::from(all == 0),
            0,
            "no GPU activity is in it: CPU only, or a category that is not known",
        ),
        finding(
            "launched_before_recording",
            "activities launched before recording",
            Note,
            activities.launched_before,
            all,
            "their stacks are not there: begin to record before the work does",
        ),
        finding(
            "no_launch",
            "activities without a launch",
            matters(activities.no_stack, all, homeless),
            activities.no_stack,
            all,
            "their GPU time is under no stack",
        ),
        finding(
            "shared_launch",
            "launches with several activities",
            Note,
            shared.values().filter(|count| **count > 1).count() as u64,
            launches.seen,
            "graphs: tools that keep one kernel an id lose the others",
        ),
        finding(
            "launch_pending",
            "launches without an activity",
            Note,
            // Of a damaged file one may be of its sums and the other of its rows.
            launches.pending.saturating_sub(tail),
            launches.seen,
            "they failed, copied nothing, or their record was lost",
        ),
        finding(
            "launch_pending_at_end",
            "launches at the end without an activity",
            Note,
            tail,
            launches.seen,
            "recording ended before the GPU did: synchronise before the end",
        ),
        finding(
            "starts_before_launch",
            "activities that begin before their launch",
            matters(activities.early, all, early),
            activities.early,
            all,
            "two clocks disagree: delays and idle causes are off",
        ),
        finding(
            "times_missing",
            "times not collected",
            matters(uncollected, all, 0),
            uncollected,
            all,
            "they are counted but have no GPU time",
        ),
        finding(
            "times_backwards",
            "times that run backwards",
            matters(backwards, all, 0),
            backwards,
            all,
            "they are counted but have no GPU time",
        ),
        finding(
            "no_length",
            "activities of no length",
            Note,
            empty,
            all,
            "times were cut to microseconds: short kernels weigh nothing",
        ),
        finding(
            "endless",
            "activities of more than a minute",
            Note,
            endless,
            all,
            "a clock may have jumped: a few such durations can be most of the GPU time",
        ),
        finding(
            "stream_overlap",
            "overlaps on a stream",
            matters(overlapping.count, all, overlapping.nanos),
            overlapping.count,
            all,
            "work on a stream is in order: times or streams are wrong",
        ),
        finding(
            "no_waits",
            "no record of what waited for what",
            Note,
            u64::from(!has_waits(evidence.profile, linked)),
            0,
            match linked.is_some() {
                true => {
                    "synchronisations are not in it: no critical path can be told (torch.profiler has \
                         enable_cuda_sync_events)"
                }
                false => {
                    "synchronisations are not in it: no critical path can be told (GPUFLAME_DEPS=1 records them)"
                }
            },
        ),
        finding(
            "lost",
            "lost while recording",
            matters(dropped, launches.seen + all, 0),
            dropped,
            launches.seen + all,
            "records were dropped: `gpuflame info` says of what kind",
        ),
        finding(
            "stacks_incomplete",
            "stacks cut short or guessed",
            Note,
            lost(&[StacksTruncated, StacksGuessed, StacksCut, StacksModuleUnknown]),
            launches.seen,
            "their GPU time may be under the wrong root",
        ),
        finding(
            "launches_failed",
            "launches that failed",
            Note,
            lost(&[LaunchesFailed]),
            0,
            "the driver refused them",
        ),
        finding(
            "cut_off",
            match evidence.writer_state {
                Some(WriterState::OutOfMemory) => "recording ended for want of memory",
                Some(WriterState::OutputsFailed) => "its files could not be written",
                _ => "ended without its exit hooks",
            },
            Note,
            u64::from(evidence.writer_state.is_some()),
            0,
            "what its process did last is missing: `gpuflame info` says how much at most",
        ),
        finding("damaged", "damaged records", Bad, evidence.damaged, 0, "the file was cut or changed"),
    ];
    // What is worst stands first.
    findings.sort_by_key(|finding| finding.severity);
    findings.push(precision(events));
    findings
}

/// A finding that is as bad as `severity` if there is any of it.
fn finding(
    id: &'static str,
    what: &'static str,
    severity: Severity,
    count: u64,
    of: u64,
    why: &'static str,
) -> Finding {
    let (severity, why) = if count == 0 { (Severity::Absent, "") } else { (severity, why) };
    Finding { id, severity, figures: Some(Figures { count, of }), what, why }
}

/// No piece of work is expected to take longer, in nanoseconds.
const ENDLESS: u64 = 60_000_000_000;
/// Clocks that count from 1970 or from a machine's start are beyond it soon: a minute.
const LONG_AGO: u64 = 60_000_000_000;

/// The last time that means that there is none. Traces of other tools have it at what was 0 on their own
/// clock, if that is a long time before everything else.
fn unset(linked: Option<&LinkReport>, events: &Events) -> u64 {
    let Some(linked) = linked else { return 0 };
    let zero = u64::try_from(linked.offset).unwrap_or(0);
    let begin = events.activities().iter().map(|event| event.activity.start.0).find(|start| *start > zero);
    if begin.is_some_and(|begin| begin - zero > LONG_AGO) { zero } else { 0 }
}

/// Whether waits are recorded, if there were calls to wait. Of our own recordings those have them that were
/// asked for it.
fn has_waits(profile: &Profile, linked: Option<&LinkReport>) -> bool {
    !profile.dependencies().is_empty()
        || linked.is_some_and(|linked| linked.sync_records > 0 || linked.wait_calls == 0)
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

fn launch(event: &JoinedActivity) -> Option<(CorrelationId, Nanos)> {
    match event.origin {
        Origin::Launch(launched) => Some((event.activity.correlation, launched.time)),
        Origin::Missing(_) => None,
    }
}

/// Pending launches behind the last one that had an activity.
fn tail(events: &Events) -> u64 {
    events.calls().iter().rev().take_while(|call| call.pending).count() as u64
}

/// Whether it begins before its launch does.
fn is_early(event: &JoinedActivity) -> bool {
    let activity = &event.activity;
    activity.duration().is_some()
        && matches!(event.origin, Origin::Launch(launched) if activity.start < launched.time)
}

/// How often something is there, and for how long.
#[derive(Clone, Copy, Debug, Default)]
struct Overlaps {
    count: u64,
    nanos: u64,
}

/// Activities that begin before the one before them on their stream has ended, but for nodes of graphs,
/// which may run side by side. Where a trace does not say what is one, the activities of a launch with several.
fn overlaps(events: &Events, shared: &Shared) -> Overlaps {
    let is_node = |event: &JoinedActivity| {
        event.activity.graph.0 != 0 || launch(event).is_some_and(|launch| shared[&launch] > 1)
    };
    let mut ends: HashMap<(DeviceId, GpuContextId, StreamId), Nanos> = HashMap::new();
    let mut overlaps = Overlaps::default();
    for event in events.activities().iter().filter(|event| event.activity.duration().is_some()) {
        let activity = &event.activity;
        let end = ends.entry((activity.device, activity.context, activity.stream)).or_default();
        if activity.start < *end && !is_node(event) {
            overlaps.count += 1;
            add_to(&mut overlaps.nanos, activity.end.min(*end).since(activity.start));
        }
        *end = activity.end.max(*end);
    }
    overlaps
}

/// What the times of all activities are multiples of.
fn precision(events: &Events) -> Finding {
    let fact = |severity, what, why| Finding { id: "precision", severity, figures: None, what, why };
    let timed = || events.activities().iter().filter(|event| event.activity.duration().is_some());
    let Some(first) = timed().next().map(|event| event.activity.start.0) else {
        return fact(Severity::Fine, "there are no times", "");
    };
    let whole = timed().all(|event| {
        let (start, end) = (event.activity.start.0, event.activity.end.0);
        start.abs_diff(first) % 1000 == 0 && (end - start) % 1000 == 0
    });
    match whole {
        true => fact(
            Severity::Note,
            "times are in whole microseconds",
            "each duration may be off by a microsecond",
        ),
        false => fact(Severity::Fine, "times are in nanoseconds", ""),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_empty_trace_has_nothing_that_ran_and_names_all_that_was_looked_for() {
        let (profile, tally, events) = (Profile::default(), Tally::default(), Events::default());
        let evidence = Evidence {
            profile: &profile,
            tally: &tally,
            events: &events,
            linked: None,
            damaged: 3,
            writer_state: None,
        };
        let findings = findings(&evidence);
        let bad: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Bad).collect();
        let figures = bad.iter().map(|finding| (finding.id, finding.figures.unwrap().count));
        assert_eq!(figures.collect::<Vec<_>>(), [("no_gpu_work", 1), ("damaged", 3)]);
        assert_eq!(findings[2].id, "no_waits");
        assert!(findings[3..18].iter().all(|finding| finding.severity == Severity::Absent));
        assert_eq!((findings[18].id, findings[18].what), ("precision", "there are no times"));
        let ids: BTreeSet<_> = findings.iter().map(|finding| finding.id).collect();
        assert_eq!((ids.len(), findings.len()), (19, 19));
    }
}

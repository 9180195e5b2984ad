//! Checks a trace for doubtful figures. Each finding states which figures are doubtful, their number, and why they
//! matter.

use std::borrow::Cow;
use std::collections::HashMap;

use super::stream_order::StreamOrder;
use gpuflame_explain::events::{JoinedActivity, JoinedRows};
use gpuflame_explain::join::{Origin, Tally};
use gpuflame_export::work_name;
use gpuflame_model::profile::{Profile, format_nanos};
use gpuflame_model::record::{CorrelationId, Loss, Missing, Nanos};
use gpuflame_traces::import::{LinkReport, WriterState};

/// A check and the result of the check.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Stable name of the check, for programs.
    pub id: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// Number of occurrences, if the check counts occurrences.
    pub figures: Option<Figures>,
    /// Short description of the check.
    pub what: &'static str,
    /// Reason why the finding matters; empty if nothing was found.
    pub why: Cow<'static, str>,
}

/// Severity of a finding, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The finding makes sums, links or orders wrong, for more than a thousandth of the operations or of the busy
    /// time.
    Bad,
    /// The finding is worth knowing.
    Note,
    /// The check looked for occurrences and found none.
    Absent,
    /// The finding is a fact, not a problem.
    Fine,
}

impl Severity {
    /// Word for the severity in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Bad => "BAD",
            Self::Note => "note",
            Self::Absent => "none",
            Self::Fine => "ok",
        }
    }
}

/// A count of occurrences and the total that contains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Number of occurrences.
    pub count: u64,
    /// Total that the occurrences are part of; 0 if unknown.
    pub of: u64,
}

/// Input of the checks.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// Sums and losses of the trace.
    pub profile: &'a Profile,
    /// Counts of the join.
    pub tally: &'a Tally,
    /// Joined rows, sorted.
    pub events: &'a JoinedRows,
    /// Order of the activities on their streams.
    pub stream_order: &'a StreamOrder,
    /// Link report, if the trace comes from another tool.
    pub linked: Option<&'a LinkReport>,
    /// Number of records that could not be read.
    pub damaged: u64,
    /// State of the recorded process, if the recording has no end row.
    pub writer_state: Option<WriterState>,
}

/// Runs all checks. The worst findings come first; the finding on the precision of times comes last.
pub fn findings(evidence: &Evidence<'_>) -> Vec<Finding> {
    let Evidence { events, linked, .. } = *evidence;
    let (launches, activities) = (&evidence.tally.launches, &evidence.tally.activities);
    let all = activities.seen;
    let count_of = |matches: &dyn Fn(&JoinedActivity) -> bool| {
        events.activities().iter().filter(|event| matches(event)).count() as u64
    };
    let backwards = count_of(&|event| {
        let (start, end) = (event.activity.start.0, event.activity.end.0);
        start != 0 && end != 0 && end < start
    });
    let busy = evidence.profile.times().iter().fold(0_u64, |sum, time| sum.saturating_add(time.busy));
    // Less than a thousandth, by number and by time, does not visibly change a picture.
    let matters = |count: u64, of: u64, nanos: u64| match count.saturating_mul(1000) > of
        || nanos.saturating_mul(1000) > busy
    {
        true => Severity::Bad,
        false => Severity::Note,
    };
    let gpu_time_of = |matches: &dyn Fn(&JoinedActivity) -> bool| {
        let nanos = events.activities().iter().filter(|event| matches(event));
        nanos.filter_map(|event| event.activity.duration()).fold(0, u64::saturating_add)
    };
    let without_stack_ns = gpu_time_of(&|event| matches!(event.origin, Origin::Missing(Missing::NoStack)));
    let early_ns = gpu_time_of(&starts_before_launch);
    let order = evidence.stream_order;
    let (overlapping, programmatic) = (order.doubtful, order.programmatic);
    let unset = unset_bound(linked, events);
    let uncollected = count_of(&|event| {
        event.activity.start.0 <= unset || event.activity.end.0 == 0 || event.activity.end.0 <= unset
    });
    let zero_length = count_of(&|event| event.activity.duration() == Some(0));
    let too_long = count_of(&|event| event.activity.duration().is_some_and(|nanos| nanos > MAX_PLAUSIBLE_NS));
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
    let without_id = linked.map_or(0, |linked| linked.ops_without_id);
    let no_launch = activities.no_stack.saturating_sub(without_id);
    let without_stack_ns = if no_launch == 0 { 0 } else { without_stack_ns };
    let skipped = linked.map_or(0, |linked| linked.counts.untimed);
    let (pending_at_end, per_launch) = (count_pending_at_end(events), count_per_launch(events));
    let dropped = lost(&dropped);
    let coverage = evidence.profile.coverage();
    let uncovered = !coverage.all.is_sufficient() || !coverage.uncovered_steps.is_empty();
    use Severity::{Bad, Note};
    let mut findings = vec![
        counted_finding(
            "no_gpu_work",
            "nothing ran on a GPU",
            // A trace of the CPU alone is not faulty if it has no launches either.
            match linked.is_some_and(|linked| launches.seen == 0 && linked.unknown_categories.len() <= 1) {
                true => Note,
                false => Bad,
            },
            u64::from(all == 0),
            0,
            "the trace has no GPU activity: it is CPU only, or its categories are unknown",
        ),
        counted_finding(
            "launched_before_recording",
            "activities launched before recording",
            Note,
            activities.launched_before,
            all,
            "their stacks are missing: start recording before the work",
        ),
        counted_finding(
            "no_launch",
            "activities without a launch",
            match launches.seen {
                0 => Note,
                _ => matters(no_launch, all, without_stack_ns),
            },
            no_launch,
            all,
            match launches.seen {
                0 => "the trace has no calls that launch: their GPU time has no stack",
                _ => "their GPU time has no stack",
            },
        ),
        counted_finding(
            "no_id",
            "activities without an id",
            Note,
            without_id,
            all,
            "the trace does not give the id of the call that launched them",
        ),
        counted_finding(
            "launches_captured",
            "launches captured into graphs",
            Severity::Fine,
            lost(&[LaunchesCaptured]),
            0,
            "they started no GPU work: launches of the graphs do",
        ),
        counted_finding(
            "rows_skipped",
            "rows that could not be used",
            matters(skipped, all + skipped, 0),
            skipped,
            all + skipped,
            "their times are missing or not numbers: their GPU time is missing",
        ),
        counted_finding(
            "rows_repeated",
            "rows repeated",
            matters(activities.repeated, all, 0),
            activities.repeated,
            all,
            "the same work is in the trace more than once, and counted once",
        ),
        counted_finding(
            "rows_of_no_call",
            "activities with impossible ids",
            matters(activities.of_no_call, all, 0),
            activities.of_no_call,
            all,
            "no call can have such an id: they are not counted",
        ),
        counted_finding(
            "truncated",
            "the file is truncated",
            Bad,
            u64::from(linked.is_some_and(|linked| linked.counts.truncated_at.is_some())),
            0,
            "the events after the truncation are missing",
        ),
        counted_finding(
            "shared_launch",
            "launches with several activities",
            Note,
            per_launch.values().filter(|count| **count > 1).count() as u64,
            launches.seen,
            "graphs: tools that keep one kernel per id lose all but one",
        ),
        counted_finding(
            "launch_pending",
            "launches without an activity",
            Note,
            // In a damaged file, one of the two counts may come from sums and the other from rows, so the subtraction
            // saturates.
            launches.pending.saturating_sub(pending_at_end),
            launches.seen,
            "they failed, copied nothing, or their record was lost",
        ),
        counted_finding(
            "launch_pending_at_end",
            "launches at the end without an activity",
            Note,
            pending_at_end,
            launches.seen,
            match ends_before_gpu(evidence, pending_at_end) {
                true => "recording ended before their GPU work: synchronise before the end",
                false => "they failed, or the records of their GPU work are missing or unusable",
            },
        ),
        counted_finding(
            "launch_coverage",
            "launches without an activity make idle time unknown",
            Bad,
            if uncovered { coverage.all.uncovered } else { 0 },
            coverage.all.launches,
            "GPU work is missing: work without a record looks idle; `gpuflame info` names the steps",
        ),
        counted_finding(
            "steps_without_work",
            "steps without GPU work",
            Note,
            coverage.empty_steps.len() as u64,
            coverage.steps,
            "their GPU work was not recorded, or they have none; `gpuflame info` names the steps",
        ),
        counted_finding(
            "starts_before_launch",
            "activities that begin before their launch",
            matters(activities.early, all, early_ns),
            activities.early,
            all,
            "the CPU and GPU clocks disagree: delays and idle causes are wrong",
        ),
        counted_finding(
            "times_missing",
            "times not collected",
            matters(uncollected, all, 0),
            uncollected,
            all,
            "they are counted but have no GPU time",
        ),
        counted_finding(
            "times_backwards",
            "times that run backwards",
            matters(backwards, all, 0),
            backwards,
            all,
            "they are counted but have no GPU time",
        ),
        counted_finding(
            "no_length",
            "activities of no length",
            Note,
            zero_length,
            all,
            "times were truncated to microseconds: short kernels have no duration",
        ),
        counted_finding(
            "endless",
            "activities of more than a minute",
            Note,
            too_long,
            all,
            "a clock may have jumped: a few such durations can be most of the GPU time",
        ),
        counted_finding(
            "stream_overlap",
            "overlaps on a stream",
            matters(overlapping.count, all, overlapping.nanos),
            overlapping.count,
            all,
            "work on a stream runs in order: times or streams are wrong",
        ),
        counted_finding(
            "impossible_duration",
            "impossible durations",
            matters(order.impossible.len() as u64, all, order.excess_ns()),
            order.impossible.len() as u64,
            all,
            describe_impossible(evidence),
        ),
        counted_finding(
            "programmatic_overlap",
            "overlaps by programmatic launch",
            Severity::Fine,
            programmatic.count,
            all,
            "legal: cudaLaunchKernelEx was probably told to start kernels before the previous kernel ends",
        ),
        counted_finding(
            "no_waits",
            "waits not recorded",
            Note,
            u64::from(!has_waits(evidence.profile, linked)),
            0,
            match linked.is_some() {
                true => {
                    "synchronisations were not recorded: the critical path is unknown (torch.profiler has \
                         enable_cuda_sync_events)"
                }
                false => {
                    "synchronisations were not recorded: the critical path is unknown (GPUFLAME_DEPS=1 records them)"
                }
            },
        ),
        counted_finding(
            "lost",
            "lost while recording",
            matters(dropped, launches.seen + all, 0),
            dropped,
            launches.seen + all,
            "records were dropped: `gpuflame info` lists their kinds",
        ),
        counted_finding(
            "stacks_incomplete",
            "stacks truncated or guessed",
            Note,
            lost(&[StacksTruncated, StacksGuessed, StacksCut, StacksModuleUnknown]),
            launches.seen,
            "their GPU time may be under the wrong root",
        ),
        counted_finding(
            "launches_failed",
            "launches that failed",
            Note,
            lost(&[LaunchesFailed]),
            0,
            "the driver rejected them",
        ),
        counted_finding(
            "cut_off",
            match evidence.writer_state {
                Some(WriterState::OutOfMemory) => "recording stopped for lack of memory",
                Some(WriterState::OutputsFailed) => "the process could not write its files",
                _ => "process ended without its exit hooks",
            },
            Note,
            u64::from(evidence.writer_state.is_some()),
            0,
            "the last activity of its process is missing: `gpuflame info` prints an upper bound",
        ),
        counted_finding(
            "damaged",
            "damaged records",
            Bad,
            evidence.damaged,
            0,
            "the file was truncated or changed",
        ),
    ];
    // The worst findings come first.
    findings.sort_by_key(|finding| finding.severity);
    findings.push(precision_finding(order));
    findings
}

/// Returns a finding with `severity` if `count` is not 0, else with [`Severity::Absent`].
fn counted_finding(
    id: &'static str,
    what: &'static str,
    severity: Severity,
    count: u64,
    of: u64,
    why: impl Into<Cow<'static, str>>,
) -> Finding {
    let (severity, why) = if count == 0 { (Severity::Absent, "".into()) } else { (severity, why.into()) };
    Finding { id, severity, figures: Some(Figures { count, of }), what, why }
}

/// Longest plausible duration of a piece of work, in ns.
const MAX_PLAUSIBLE_NS: u64 = 60_000_000_000;
/// Smallest plausible distance of the first activity from the clock's zero, in ns. Clocks count from 1970 or from the
/// boot of the machine, so they soon exceed a minute.
const MIN_GAP_AFTER_ZERO_NS: u64 = 60_000_000_000;

/// Largest time value that means "not set". In traces of other tools that value corresponds to 0 on the trace's own
/// clock, provided that this 0 is long before all other times.
fn unset_bound(linked: Option<&LinkReport>, events: &JoinedRows) -> u64 {
    let Some(linked) = linked else { return 0 };
    let zero = u64::try_from(linked.offset).unwrap_or(0);
    let begin = events.activities().iter().map(|event| event.activity.start.0).find(|start| *start > zero);
    if begin.is_some_and(|begin| begin - zero > MIN_GAP_AFTER_ZERO_NS) { zero } else { 0 }
}

/// Whether all waits are known: they were recorded, or no call waited. Our own recordings contain waits only on
/// request.
fn has_waits(profile: &Profile, linked: Option<&LinkReport>) -> bool {
    !profile.dependencies().is_empty()
        || linked.is_some_and(|linked| linked.sync_records > 0 || linked.wait_calls == 0)
}

/// Number of activities per launch.
type ActivitiesPerLaunch = HashMap<(CorrelationId, Nanos), u64>;

fn count_per_launch(events: &JoinedRows) -> ActivitiesPerLaunch {
    let mut counts = ActivitiesPerLaunch::new();
    for event in events.activities() {
        if let Some(launch) = launch_key(event) {
            *counts.entry(launch).or_default() += 1;
        }
    }
    counts
}

fn launch_key(event: &JoinedActivity) -> Option<(CorrelationId, Nanos)> {
    match event.origin {
        Origin::Launch(launched) => Some((event.activity.correlation, launched.time)),
        Origin::Missing(_) => None,
    }
}

/// Number of pending launches after the last launch with an activity.
fn count_pending_at_end(events: &JoinedRows) -> u64 {
    events.calls().iter().rev().take_while(|call| call.pending).count() as u64
}

/// Whether times show that recording ended before the GPU work of the last `pending` launches. They do if the longest
/// time from any launch to the end of its work, added to the time of the first of these launches, reaches beyond the
/// last event. If at least `pending` activities have no launch or could not be used, they may be the missing work, and
/// the result is false.
fn ends_before_gpu(evidence: &Evidence<'_>, pending: u64) -> bool {
    let Evidence { events, tally, linked, .. } = *evidence;
    let unusable = linked.map_or(0, |linked| linked.counts.untimed);
    if tally.activities.no_stack.saturating_add(unusable) >= pending {
        return false;
    }
    let activities = events.activities().iter();
    let delays = activities.clone().filter_map(|event| match event.origin {
        Origin::Launch(launched) => event.activity.end.0.checked_sub(launched.time.0),
        Origin::Missing(_) => None,
    });
    let calls =
        events.calls().iter().map(|call| call.launched.time.0.saturating_add(call.launched.duration.into()));
    let hosts = events.host_calls().iter().map(|call| call.time.0.saturating_add(call.duration));
    let ends = activities.map(|event| event.activity.end.0).chain(calls).chain(hosts);
    let (longest, last) = (delays.max().unwrap_or(0), ends.max().unwrap_or(0));
    let first = events.calls().len().checked_sub(usize::try_from(pending).unwrap_or(usize::MAX));
    first
        .and_then(|first| events.calls().get(first))
        .is_some_and(|call| pending > 0 && call.launched.time.0.saturating_add(longest) >= last)
}

/// Whether the activity begins before its launch.
fn starts_before_launch(event: &JoinedActivity) -> bool {
    let activity = &event.activity;
    activity.duration().is_some()
        && matches!(event.origin, Origin::Launch(launched) if activity.start < launched.time)
}

/// Names the activity with the most impossible duration.
fn describe_impossible(evidence: &Evidence<'_>) -> String {
    let Some(worst) = evidence.stream_order.impossible.first() else { return String::new() };
    let (raw, clamped) = (format_nanos(worst.raw_ns), format_nanos(worst.clamped_ns));
    let name = work_name(evidence.profile, worst.work);
    format!("later work of the stream began {clamped} into the {raw} of {name}")
}

/// Reports whether all times in the trace are multiples of a microsecond. The times of binary formats are nanoseconds,
/// whatever their values.
fn precision_finding(order: &StreamOrder) -> Finding {
    let (severity, what, why) = match order.whole_micros {
        None => (Severity::Fine, "there are no times", ""),
        Some(true) => {
            (Severity::Note, "times are in whole microseconds", "each duration may be off by a microsecond")
        }
        Some(false) => (Severity::Fine, "times are in nanoseconds", ""),
    };
    Finding { id: "precision", severity, figures: None, what, why: why.into() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_empty_trace_reports_no_gpu_work_and_lists_every_check() {
        let (profile, tally, events) = (Profile::default(), Tally::default(), JoinedRows::default());
        let evidence = Evidence {
            profile: &profile,
            tally: &tally,
            events: &events,
            stream_order: &StreamOrder::default(),
            linked: None,
            damaged: 3,
            writer_state: None,
        };
        let findings = findings(&evidence);
        let bad: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Bad).collect();
        let figures = bad.iter().map(|finding| (finding.id, finding.figures.unwrap().count));
        assert_eq!(figures.collect::<Vec<_>>(), [("no_gpu_work", 1), ("damaged", 3)]);
        assert_eq!(findings[2].id, "no_waits");
        assert!(findings[3..28].iter().all(|finding| finding.severity == Severity::Absent));
        assert_eq!((findings[28].id, findings[28].what), ("precision", "there are no times"));
        let ids: BTreeSet<_> = findings.iter().map(|finding| finding.id).collect();
        assert_eq!((ids.len(), findings.len()), (29, 29));
    }
}

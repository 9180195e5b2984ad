//! Findings about the recorded rows. The findings state which figures of a run are doubtful, how many rows are
//! affected, and why this matters.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::super::stream_order::{DurationContradiction, StreamOrder};
use super::super::work_spans::{MICROSECOND_NS, WorkSpans};
use super::{Figures, Finding, Severity};
use gpuflame_explain::Stacks;
use gpuflame_explain::join::Tally;
use gpuflame_export::{counted, grouped, percent, work_name};
use gpuflame_model::profile::views::GPU;
use gpuflame_model::profile::{
    BesideLost, Context, Coverage, LateWaits, LaunchCoverage, Profile, Sample, SampleSite, format_nanos,
    saturating_sum,
};
use gpuflame_model::record::{ContextFlags, Created, Loss, Missing};
use gpuflame_traces::import::{LinkReport, WriterState};

/// Input of the checks of recorded rows.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// Sums and dropped records of the trace.
    pub profile: &'a Profile,
    /// Counts of matched and unmatched rows, collected when the rows were joined.
    pub tally: &'a Tally,
    /// Number and quality of the stacks.
    pub stacks: Stacks,
    /// Whether the recording has only sums, so that `stream_order` is empty.
    pub has_only_sums: bool,
    /// Number of activities with times that mean "not set". The function [`count_unset_times`] computes the number of
    /// such activities.
    pub unset_times: Option<u64>,
    /// Result of checking the order of the activities on their streams.
    pub stream_order: &'a StreamOrder,
    /// Link report, if the trace comes from another tool.
    pub linked: Option<&'a LinkReport>,
    /// Number of rows that could not be read.
    pub damaged: u64,
    /// State of the recorded process, if the recording lacks its end row.
    pub writer_state: Option<WriterState>,
}

/// Runs all checks of the recorded rows. The findings are sorted by severity, the most severe first. The finding about
/// the precision of times always comes last.
pub fn record_findings(evidence: &Evidence<'_>) -> Vec<Finding> {
    let Evidence { linked, profile, .. } = *evidence;
    let facts = profile.row_facts();
    let known = facts.unwrap_or_default();
    let (launches, activities) = (&evidence.tally.launches, &evidence.tally.activities);
    let all = activities.seen;
    let busy = profile.times().iter().fold(0_u64, |sum, time| sum.saturating_add(time.busy));
    // If a problem affects less than a thousandth of the operations and of the busy time, it does not change pictures
    // visibly.
    let matters = |count: u64, of: u64, nanos: u64| match count.saturating_mul(1000) > of
        || nanos.saturating_mul(1000) > busy
    {
        true => Severity::Bad,
        false => Severity::Note,
    };
    let without_stack = profile.samples(&GPU).iter().filter(|one| one.site.launch() == Err(Missing::NoStack));
    let without_stack_ns = saturating_sum(without_stack.map(Sample::amount));
    let order = evidence.stream_order;
    // Number of activities whose start or end contradicts the host's clock.
    let wrong_clock = activities.early.max(order.after_wait.count);
    let (overlapping, programmatic) = (order.doubtful, order.programmatic);
    let uncollected =
        evidence.unset_times.unwrap_or_else(|| activities.untimed.saturating_sub(known.backwards));
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
    let pending_at_end = known.pending_at_end;
    let dropped = lost(&dropped);
    let earliest = profile.times().iter().map(|time| time.early).max().unwrap_or(0);
    let is_slightly_early = (1..=MICROSECOND_NS).contains(&earliest) && order.after_wait.count == 0;
    let incomplete = IncompleteStacks::find(profile, evidence.stacks);
    let coverage = evidence.profile.coverage();
    let missing = MissingWork::find(coverage, without_id);
    let has_no_duration = known.zero_length > 0 && known.zero_length == all;
    use Severity::{Bad, Note};
    let mut findings = vec![
        counted_finding(
            "no_gpu_work",
            "nothing ran on a GPU",
            // A CPU-only trace has neither GPU work nor launches, and is not an error.
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
            "their times are missing or not numbers: GPU work among them is missing",
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
            known.shared_launches,
            launches.seen,
            "graphs: tools that keep one kernel per id lose all but one",
        ),
        counted_finding(
            "launch_pending",
            "launches without an activity",
            Note,
            // In a damaged file, one of the two counts may come from sums and the other count from rows. The
            // subtraction saturates because the counts may then contradict each other.
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
            match known.ends_before_gpu
                && coverage.waited_without_work == 0
                && !has_unused_work(evidence, pending_at_end)
            {
                true => "recording ended before their GPU work: synchronise before the end",
                false => "they failed, or the records of their GPU work are missing or unusable",
            },
        ),
        counted_finding("launch_coverage", missing.what, Bad, missing.count, missing.of, missing.why),
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
            match activities.early {
                0 if order.after_wait.count > 0 => "activities that end after a wait for them",
                _ => "activities that begin before their launch",
            },
            match is_slightly_early {
                true => Note,
                false => matters(wrong_clock, all, known.early_ns),
            },
            wrong_clock,
            all,
            match is_slightly_early {
                true => "by at most a microsecond: delays and idle causes are off by as much",
                false => "the CPU and GPU clocks disagree: delays and idle causes are wrong",
            },
        ),
        counted_finding(
            "times_missing",
            "times not collected",
            matters(uncollected, all, 0),
            uncollected,
            all,
            describe_missing_times(linked),
        ),
        counted_finding(
            "times_backwards",
            "times that run backwards",
            matters(known.backwards, all, 0),
            known.backwards,
            all,
            "such activities are counted, but have no GPU time",
        ),
        counted_finding(
            "no_length",
            "activities of no length",
            if has_no_duration { Bad } else { Note },
            known.zero_length,
            all,
            match has_no_duration {
                true => "no activity has a duration: times may be in another unit, such as seconds",
                false => "times were truncated to microseconds: short kernels have no duration",
            },
        ),
        counted_finding(
            "endless",
            "activities of more than a minute",
            Note,
            known.too_long,
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
                    "synchronisations were not recorded: the critical path takes waits from names and times \
                     (torch.profiler has enable_cuda_sync_events)"
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
            incomplete.stacks,
            incomplete.all_stacks,
            incomplete.describe(),
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
    for finding in &mut findings {
        let is_unknown = match finding.id {
            "steps_without_work" => evidence.has_only_sums && coverage.steps > 1,
            "stream_overlap" | "impossible_duration" | "programmatic_overlap" => {
                evidence.has_only_sums && all > 1
            }
            // Files from earlier versions contain sums without the counts that these checks need.
            "shared_launch"
            | "launch_pending"
            | "launch_pending_at_end"
            | "times_missing"
            | "times_backwards"
            | "no_length"
            | "endless" => facts.is_none(),
            _ => false,
        };
        if is_unknown {
            (finding.severity, finding.figures) = (Severity::Unknown, None);
            finding.why = "needs single activities: record them with `gpuflame run --rows PROGRAM`".into();
        }
    }
    // The most severe findings come first.
    findings.sort_by_key(|finding| finding.severity);
    findings.push(precision_finding(evidence));
    findings
}

/// GPU work for which no rows exist. If rows about GPU work are missing, idle time is unknown.
struct MissingWork {
    what: &'static str,
    count: u64,
    of: u64,
    why: Cow<'static, str>,
}

impl MissingWork {
    /// Finds the strongest evidence that rows about GPU work are missing. `without_id` is the number of activities
    /// without a correlation id.
    fn find(coverage: &Coverage, without_id: u64) -> Self {
        const LAUNCHES: &str = "launches without an activity make idle time unknown";
        let LaunchCoverage { launches, uncovered } = coverage.all;
        if !coverage.all.is_sufficient() || !coverage.uncovered_steps.is_empty() {
            let why = match without_id >= uncovered {
                true => "launches and GPU work are not linked, because ids are missing",
                false => {
                    "GPU work is missing: work without a record looks idle; `gpuflame info` names the steps"
                }
            };
            return Self { what: LAUNCHES, count: uncovered, of: launches, why: why.into() };
        }
        if let Some(LateWaits { count, waits, nanos }) = coverage.late_waits {
            let why = format!(
                "these waits lasted {} longer than all recorded work: GPU work is missing, or the thread had no processor",
                format_nanos(nanos)
            );
            return Self { what: "waits that outlast all recorded work", count, of: waits, why: why.into() };
        }
        if let Some(BesideLost { launches: count, nanos, idle }) = coverage.beside_lost {
            let (nanos, idle) = (format_nanos(nanos), format_nanos(idle));
            let why = format!("their work may have run in {nanos} of {idle} of idle time");
            return Self { what: LAUNCHES, count, of: launches, why: why.into() };
        }
        Self { what: LAUNCHES, count: 0, of: launches, why: "".into() }
    }
}

/// Returns a finding with `severity`, or with [`Severity::Absent`] if `count` is 0.
fn counted_finding(
    id: &'static str,
    what: &'static str,
    severity: Severity,
    count: u64,
    of: u64,
    why: impl Into<Cow<'static, str>>,
) -> Finding {
    let (severity, why) = if count == 0 { (Severity::Absent, "".into()) } else { (severity, why.into()) };
    let figures = Some(Figures { count, of });
    Finding {
        id,
        severity,
        figures,
        cost: None,
        what,
        culprit: String::new(),
        function: String::new(),
        rank: None,
        why,
    }
}

/// Minimum plausible time in ns from the zero point of a clock to the first activity. Clocks count from 1970 or from
/// the boot of the machine, so the first activity normally comes more than a minute after the zero point.
const MIN_GAP_AFTER_ZERO_NS: u64 = 60_000_000_000;

/// Returns the number of activities with times that mean "not set". In traces of other tools, a time of 0 on the
/// trace's own clock means "not set" if all other times come long after this 0. Returns `None` if 0 on the trace's
/// clock is also 0 on the clock of the rows. If both clocks have the same zero, activities with unset times are counted
/// while rows are joined. Call `count_unset_times` before the activities in `work` are compared.
pub fn count_unset_times(work: &WorkSpans, linked: Option<&LinkReport>) -> Option<u64> {
    let zero = linked.and_then(|linked| u64::try_from(linked.offset).ok()).filter(|zero| *zero > 0)?;
    let begin = work.times().map(|(start, _)| start).filter(|start| *start > zero).min()?;
    let is_unset = |(start, end): &(u64, u64)| *start <= zero || *end <= zero;
    (begin - zero > MIN_GAP_AFTER_ZERO_NS).then(|| work.times().filter(is_unset).count() as u64)
}

/// Whether all waits for GPU work are known, because they were recorded or because no call waited. Recordings made by
/// gpuflame contain waits only if the user requested this.
fn has_waits(profile: &Profile, linked: Option<&LinkReport>) -> bool {
    !profile.dependencies().is_empty()
        || linked.is_some_and(|linked| linked.sync_records > 0 || linked.wait_calls == 0)
}

/// Whether at least `pending` activities have no stack or are unusable. Unusable activities may be the work of the last
/// launches.
fn has_unused_work(evidence: &Evidence<'_>, pending: u64) -> bool {
    let unusable = evidence.linked.map_or(0, |linked| linked.counts.untimed);
    evidence.tally.activities.no_stack.saturating_add(unusable) >= pending
}

/// Number of truncated or guessed stacks, and number of the activities launched from these stacks. Stacks and
/// activities are counted separately, because a single stack may have launched most of the work.
struct IncompleteStacks {
    stacks: u64,
    /// Number of distinct stacks: complete, truncated and guessed.
    all_stacks: u64,
    /// Whether some stacks were merged because memory was short. The number of activities launched from merged stacks
    /// is unknown.
    has_merged: bool,
    activities: u64,
    /// Number of all activities, including activities launched from complete stacks.
    all_activities: u64,
}

impl IncompleteStacks {
    fn find(profile: &Profile, counts: Stacks) -> Self {
        let Stacks { distinct, truncated, guessed, cut, module_unknown } = counts;
        let flags = [ContextFlags::TRUNCATED, ContextFlags::GUESSED, ContextFlags::CUT];
        let has_unknown_module = |context: &Context| {
            module_unknown > 0
                && profile.stack(context.stack).any(|id| profile.frames()[id.index()].is_of_unknown_module())
        };
        let contexts = profile.all_contexts().filter(|(id, _)| !id.is_others());
        let (mut known, mut incomplete) = (0, BTreeSet::new());
        for (id, context) in contexts {
            known += 1;
            if flags.iter().any(|flag| context.flags.has(*flag)) || has_unknown_module(context) {
                incomplete.insert(id);
            }
        }
        let is_incomplete = |site: SampleSite| {
            let created = match site {
                SampleSite::Node { created: Created::Context(created), .. } => Some(created),
                _ => None,
            };
            site.launch().ok().into_iter().chain(created).any(|id| incomplete.contains(&id))
        };
        let (mut activities, mut all_activities) = (0_u64, 0_u64);
        // A sample without a device belongs to a launch without an activity.
        for sample in profile.samples(&GPU).iter().filter(|sample| sample.device.is_some()) {
            all_activities = all_activities.saturating_add(sample.count());
            if is_incomplete(sample.site) {
                activities = activities.saturating_add(sample.count());
            }
        }
        // The four counts of defective stacks are not added, because one stack may have several defects. Instead, the
        // largest count is used. Stacks that were merged because memory was short are not in the profile, and appear
        // only in the counts.
        let counted = [truncated, guessed, cut, module_unknown].into_iter().max().unwrap_or(0);
        let (stacks, has_merged) = (counted.max(incomplete.len() as u64), counted > incomplete.len() as u64);
        let all_stacks = distinct.max(known).max(stacks);
        Self { stacks, all_stacks, has_merged, activities, all_activities }
    }

    fn describe(&self) -> String {
        let Self { all_stacks, has_merged, activities, all_activities, .. } = self;
        let stacks = counted(*all_stacks, "distinct stacks");
        match activities {
            0 if *has_merged => format!("of {stacks}; their GPU time may be under the wrong root"),
            0 => format!("of {stacks}; no GPU work was launched from them"),
            _ => format!(
                "of {stacks}; {}{} of {} ({:.1} %) came from them: their GPU time may be under the wrong root",
                if *has_merged { "at least " } else { "" },
                grouped(*activities),
                counted(*all_activities, "activities"),
                percent(*activities, *all_activities)
            ),
        }
    }
}

/// Describes the activities without times, and states how many of these activities have times on another clock.
fn describe_missing_times(linked: Option<&LinkReport>) -> Cow<'static, str> {
    const COUNTED: &str = "such activities are counted, but have no GPU time";
    match linked.map_or(0, |linked| linked.displaced_ops) {
        0 => COUNTED.into(),
        displaced => format!(
            "the times of {} are on another clock, over a minute from the launches; {COUNTED}",
            counted(displaced, "activities")
        )
        .into(),
    }
}

/// Describes the activity whose recorded duration exceeds its maximum possible duration by the most.
fn describe_impossible(evidence: &Evidence<'_>) -> String {
    let Some(worst) = evidence.stream_order.impossible.first() else { return String::new() };
    let (raw, clamped) = (format_nanos(worst.raw_ns), format_nanos(worst.clamped_ns));
    let name = work_name(evidence.profile, worst.work);
    match worst.contradiction {
        DurationContradiction::LaterWork => {
            format!("later work of the stream began {clamped} into the {raw} of {name}")
        }
        DurationContradiction::Wait => {
            format!("a wait of the host for the GPU returned {clamped} into the {raw} of {name}")
        }
        DurationContradiction::TooLong => format!("{name} lasts {raw}: no work takes more than a day"),
    }
}

/// Returns the finding that states the precision of times: whole microseconds, quarters of a microsecond, or
/// nanoseconds. A recording of sums is in a binary format, whose times always have a precision of 1 ns.
fn precision_finding(evidence: &Evidence<'_>) -> Finding {
    let whole_micros = match evidence.has_only_sums {
        true => evidence.profile.devices().iter().any(|device| device.count > 0).then_some(false),
        false => evidence.stream_order.whole_micros,
    };
    let (severity, what, why) = match whole_micros {
        None => (Severity::Fine, "there are no times", ""),
        Some(true) => {
            (Severity::Note, "times are in whole microseconds", "each duration may be off by a microsecond")
        }
        Some(false) if evidence.stream_order.quarter_micros => (
            Severity::Note,
            "times were rounded to a quarter of a microsecond",
            "a program rewrote the file with floating-point numbers: each time may be off by 0.2 us",
        ),
        Some(false) => (Severity::Fine, "times are in nanoseconds", ""),
    };
    Finding {
        id: "precision",
        severity,
        figures: None,
        cost: None,
        what,
        culprit: String::new(),
        function: String::new(),
        rank: None,
        why: why.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::profile::{Leaf, RowFacts, StepTotals};
    use gpuflame_model::record::{ContextId, DeviceId, Frame, LabelId, NameId, Row, ThreadId, Work};

    #[test]
    fn an_empty_trace_reports_no_gpu_work_and_lists_every_check() {
        let (mut profile, tally) = (Profile::default(), Tally::default());
        profile.set_row_facts(Some(RowFacts::default()));
        let evidence = Evidence {
            profile: &profile,
            tally: &tally,
            stacks: Stacks::default(),
            has_only_sums: false,
            unset_times: None,
            stream_order: &StreamOrder::default(),
            linked: None,
            damaged: 3,
            writer_state: None,
        };
        let findings = record_findings(&evidence);
        let bad: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Bad).collect();
        let figures = bad.iter().map(|finding| (finding.id, finding.figures.unwrap().count));
        assert_eq!(figures.collect::<Vec<_>>(), [("no_gpu_work", 1), ("damaged", 3)]);
        assert_eq!(findings[2].id, "no_waits");
        assert!(findings[3..28].iter().all(|finding| finding.severity == Severity::Absent));
        assert_eq!((findings[28].id, findings[28].what), ("precision", "there are no times"));
        let ids: BTreeSet<_> = findings.iter().map(|finding| finding.id).collect();
        assert_eq!((ids.len(), findings.len()), (29, 29));
    }
    #[test]
    fn truncated_stacks_and_their_activities_have_separate_totals() {
        let mut profile = Profile::default();
        let both = ContextFlags::TRUNCATED | ContextFlags::GUESSED;
        // Stack 10 is complete, but stacks 11 and 12 are not. Stack 12 has two defects but counts once.
        for (number, flags) in [(10, 0), (11, ContextFlags::TRUNCATED), (12, both)] {
            let frames = [Frame::label(LabelId(number))];
            let (thread, flags) = (ThreadId(1), ContextFlags(flags));
            profile.push(&Row::Context { id: ContextId(number), thread, flags, frames: &frames });
        }
        let sample = |site, device, count| Sample {
            device,
            values: [0, count, 0, 0],
            ..Sample::new(site, Leaf::work(Work::Kernel(NameId(1))))
        };
        let gpu = Some(DeviceId(0));
        let node = SampleSite::Node { launch: Ok(ContextId(10)), created: Created::Context(ContextId(12)) };
        // Of 1 + 7 + 2 activities, 7 + 2 were launched from an incomplete stack. Five further launches have no
        // activity.
        let samples = vec![
            sample(SampleSite::Context(ContextId(10)), gpu, 1),
            sample(SampleSite::Context(ContextId(11)), gpu, 7),
            sample(node, gpu, 2),
            sample(SampleSite::Context(ContextId(11)), None, 5),
        ];
        profile.set_samples(&GPU, samples);
        let counts = Stacks { distinct: 3, truncated: 2, guessed: 1, ..Stacks::default() };
        let found = |profile: &Profile, counts| {
            let found = IncompleteStacks::find(profile, counts);
            (found.stacks, found.all_stacks, found.describe())
        };
        let expected = "of 3 distinct stacks; 9 of 10 activities (90.0 %) came from them: their GPU time may be under the \
                        wrong root";
        assert_eq!(found(&profile, counts), (2, 3, expected.to_owned()));
        // Of 20 stacks, 4 are truncated. The profile contains only 2 of the truncated stacks, because memory was short.
        let merged = Stacks { distinct: 20, truncated: 4, ..Stacks::default() };
        let expected = "of 20 distinct stacks; at least 9 of 10 activities (90.0 %) came from them: their GPU time may be \
                        under the wrong root";
        assert_eq!(found(&profile, merged), (4, 20, expected.to_owned()));
        profile.set_samples(&GPU, Vec::new());
        let expected = "of 3 distinct stacks; no GPU work was launched from them";
        assert_eq!(found(&profile, counts), (2, 3, expected.to_owned()));
        assert_eq!(found(&Profile::default(), Stacks::default()).0, 0);
    }

    #[test]
    fn checks_of_single_activities_are_unknown_for_sums() {
        let (mut profile, mut tally) = (Profile::default(), Tally::default());
        tally.activities.seen = 2;
        profile.set_steps(StepTotals { count: 2, ..StepTotals::default() });
        profile.count_coverage(2);
        let unknown = |profile: &Profile, has_only_sums| {
            let evidence = Evidence {
                profile,
                tally: &tally,
                stacks: Stacks::default(),
                has_only_sums,
                unset_times: None,
                stream_order: &StreamOrder::default(),
                linked: None,
                damaged: 0,
                writer_state: None,
            };
            let all = record_findings(&evidence).into_iter();
            all.filter(|one| {
                one.severity == Severity::Unknown && one.figures.is_none() && !one.why.is_empty()
            })
            .map(|one| one.id)
            .collect::<Vec<_>>()
        };
        let compared =
            ["steps_without_work", "stream_overlap", "impossible_duration", "programmatic_overlap"];
        let of_earlier_versions = unknown(&profile, true);
        assert_eq!(of_earlier_versions.len(), 11);
        profile.set_row_facts(Some(RowFacts::default()));
        assert_eq!(unknown(&profile, true), compared);
        assert!(unknown(&profile, false).is_empty());
        assert!(compared.iter().all(|id| of_earlier_versions.contains(id)));
    }
}

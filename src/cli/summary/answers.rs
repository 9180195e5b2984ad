//! Writes the sentences of `gpuflame summary`.

use super::screen::Screen;
use crate::explain::Explained;
use crate::measured_part::MeasuredPart;
use crate::run_path::{RunPath, UnknownPath};
use crate::table_output::group_digits;
use gpuflame_export::{busy_and_idle_lines, complete_line, counted, percent, work_name};
use gpuflame_model::profile::views::{CPU, OFF_CPU, idle_word};
use gpuflame_model::profile::{Cause, Sample, SampleSite, add_to, format_nanos, saturating_sum};
use gpuflame_model::record::Work;
use gpuflame_offline::analysis::{CommunicationFilter, Finding, PlausibleSpans, Severity};
use gpuflame_traces::import::Kind;

use super::findings::{has_impossible_durations, unchecked, why_times_are_withheld};

/// Sentences about a run, and the data that its file lacks.
pub(crate) struct Answers {
    /// Sentences about busy time, about idle time with its culprit, about the time in which kernels ran, and about what
    /// bounds the run.
    pub(crate) sentences: Vec<String>,
    /// Sentence about the completeness of the run's data.
    pub(crate) complete: String,
    /// Sentence about the parts of the run that the tables cover, if the other sentences cover different parts.
    pub(crate) scope: Option<String>,
    /// Kinds of missing data, each with a clause about the command that records the data.
    pub(crate) not_recorded: Vec<(String, String)>,
}

/// A run is called launch-bound if the mean length of its gaps, in ns, is at most this value. If the mean gap is
/// longer, the run is called host-bound, because the host spent time on things other than launching work.
const LAUNCH_GAP_NANOS: u64 = 50_000;
/// A run is called bound by GPU work if its busy share, in percent, is at least this value.
const BUSY_PERCENT: f64 = 90.0;
/// If late kernels cost at least this share of the measured part, in percent, the sentence `bound by GPU work` is left
/// out.
const LOST_PERCENT: f64 = 5.0;
/// Minimum difference between the time in which any work ran and the time in which kernels ran, in percent. If the
/// difference is at least this large, the summary has a sentence about the time in which kernels ran.
const COPYING_PERCENT: f64 = 3.0;
/// Ids of findings about kernels that start late, or about a GPU that has less work than other GPUs. A GPU without
/// kernels may count as busy because it copies data.
const LATE_KERNELS: [&str; 16] = [
    "allocation_in_loop",
    "gc_pauses",
    "recompilation",
    "lock_wait",
    "pauses",
    "starved_thread",
    "idle_gpu",
    "data_loader_late",
    "sync_read",
    "sync_wait",
    "launch_bound",
    "pageable_copies",
    "sync_copies",
    "fragmented_copies",
    "host_work",
    "profiler_cost",
];
/// Minimum share of the idle time that is between two calls, in percent of all idle time. If the share is at least this
/// large, a summary without samples reports that the host's work between the calls was not recorded.
const LATE_PERCENT: f64 = 5.0;

impl Screen<'_> {
    pub(super) fn answers(&self, spans: &PlausibleSpans) -> Answers {
        let mut sentences = Vec::new();
        if let Some(why) = why_times_are_withheld(self.findings) {
            sentences.push(why.to_owned());
        } else {
            sentences.extend(busy_and_idle_lines(&self.explained.ledger, self.profile()));
            sentences.extend(self.kernel_line(spans));
            sentences.extend(self.bound_line(spans));
        }
        Answers {
            sentences,
            complete: self.complete_line(),
            scope: self.scope_line(),
            not_recorded: self.not_recorded(),
        }
    }

    /// Returns the sentence about the time in which kernels ran. The sentence is needed if a GPU ran work other than
    /// kernels for a large part of its busy time.
    fn kernel_line(&self, spans: &PlausibleSpans) -> Option<String> {
        let time = self.profile().times().iter().max_by_key(|time| time.steady().busy)?;
        let kernels = spans.kernel_time(time.device, self.profile().steady())?;
        let window = time.steady().window();
        let share = percent(kernels, window);
        (percent(time.steady().busy, window) - share >= COPYING_PERCENT).then(|| {
            format!(
                "kernels ran for {share:.1} % of the time on GPU {}; copies count as busy, too",
                time.device.0
            )
        })
    }

    /// Returns the sentence that states what bounds the run, with the reason. Returns `None` if idle time is unknown,
    /// or if the busy and idle times of the GPU cover only a part of the steps.
    fn bound_line(&self, spans: &PlausibleSpans) -> Option<String> {
        let busy = self.busy_percent()?;
        let is_clock_wrong =
            |finding: &Finding| finding.id == "starts_before_launch" && finding.severity == Severity::Bad;
        if self.findings.iter().any(is_clock_wrong) {
            return None;
        }
        let is_late = |finding: &&Finding| LATE_KERNELS.contains(&finding.id);
        let lost = self.findings.iter().filter(is_late).filter_map(|finding| finding.cost).max().unwrap_or(0);
        let is_lost = percent(lost, MeasuredPart::of(self.profile()).nanos) >= LOST_PERCENT;
        if busy >= BUSY_PERCENT {
            return (!is_lost && !self.is_account_partial())
                .then(|| self.long_work_line().unwrap_or_else(|| self.busy_line(busy)));
        }
        let idle = self.idle_samples();
        let all = saturating_sum(idle.iter().map(|sample| sample.amount()));
        let of_causes = |causes: &[Cause]| {
            let is_of = |sample: &&&Sample| causes.iter().any(|cause| cause.word() == idle_word(sample));
            percent(saturating_sum(idle.iter().filter(is_of).map(|sample| sample.amount())), all)
        };
        let host = of_causes(&[Cause::HostLate, Cause::LaunchLatency]);
        let waits = of_causes(&[Cause::Dependency]);
        if host >= 50.0 {
            if let Some(working) = self.any_gpu_percent(spans).filter(|working| *working >= BUSY_PERCENT) {
                return Some(format!(
                    "not host-bound: for {working:.1} % of the time at least one of the GPUs works"
                ));
            }
            // The idle time of one gap is divided into one piece for each cause. Nearly every gap has a piece whose
            // cause is launch latency, so the number of these pieces is used as the number of gaps.
            let pieces = |cause: Cause| {
                let of_cause = idle.iter().filter(|sample| idle_word(sample) == cause.word());
                saturating_sum(of_cause.map(|sample| sample.count()))
            };
            let gaps = match pieces(Cause::LaunchLatency) {
                0 => pieces(Cause::HostLate),
                gaps => gaps,
            };
            let mean = all / gaps.max(1);
            let bound = if mean <= LAUNCH_GAP_NANOS { "launch-bound" } else { "host-bound" };
            let mean = format_nanos(mean);
            return Some(format!(
                "{bound}: in {host:.1} % of the idle time no work was queued; a gap lasts {mean} on average"
            ));
        }
        let why = "launched work waited for an event, the host or other work";
        (waits >= 50.0).then(|| format!("not launch-bound: in {waits:.1} % of the idle time, {why}"))
    }

    /// Returns the share of the time in which at least one of several GPUs is busy, in percent. This share is at least
    /// as large as the busy share of the busiest GPU. Returns `None` for a single GPU.
    fn any_gpu_percent(&self, spans: &PlausibleSpans) -> Option<f64> {
        let times = self.profile().times();
        let busiest = times.iter().map(|time| time.steady().busy).max().unwrap_or(0);
        let any = spans.work_time(self.profile().steady()).unwrap_or(0).max(busiest);
        // The time in which at least one GPU is busy can be longer than the window of any single GPU, because the
        // windows of the GPUs differ.
        let steady = self.profile().steady().map_or(0, |steady| steady.end.0.saturating_sub(steady.begin.0));
        let whole = MeasuredPart::of(self.profile()).nanos.max(steady).max(any);
        (times.len() > 1).then(|| percent(any, whole))
    }

    /// Returns the sentence that replaces [`busy_line`](Self::busy_line) if an activity lasts for more than a minute. A
    /// duration of more than a minute may be wrong. Returns `None` if no activity lasts for more than a minute.
    fn long_work_line(&self) -> Option<String> {
        let work = match self.profile().row_facts()?.too_long {
            0 => return None,
            1 => "1 activity lasts for more than a minute".to_owned(),
            count => format!("{} activities last for more than a minute", group_digits(count)),
        };
        Some(format!("{work}: a clock may have jumped, or a kernel waits for another rank"))
    }

    /// Returns the sentence for a run that is bound by GPU work, with the shares of communication and copies.
    /// Communication includes the time in which a rank waits for other ranks.
    fn busy_line(&self, busy: f64) -> String {
        let filter = CommunicationFilter::default();
        let (mut all, mut communication, mut copies) = (0, 0, 0);
        for work in self.profile().works() {
            let nanos = work.weight.nanos;
            add_to(&mut all, nanos);
            if filter.is_communication(work.work, &work_name(self.profile(), work.work)) {
                add_to(&mut communication, nanos);
            } else if matches!(work.work, Work::Copy(_)) {
                add_to(&mut copies, nanos);
            }
        }
        let (communication, copies) = (percent(communication, all), percent(copies, all));
        match () {
            () if communication >= 50.0 => format!(
                "bound by communication: {communication:.1} % of the GPU work, which includes waiting for a late rank"
            ),
            () if copies >= 50.0 => format!("bound by copies: {copies:.1} % of the GPU work"),
            () => format!("bound by GPU work: the GPUs are busy {busy:.1} % of the time"),
        }
    }

    /// Whether the steps last clearly longer than the time range in which busy and idle time are known. In a trace, the
    /// time range with known busy and idle time begins with the first GPU work.
    fn is_account_partial(&self) -> bool {
        let groups = &self.profile().step_series().groups;
        let (Some(first), Some(last)) = (groups.first(), groups.last()) else { return false };
        let window = self.profile().times().iter().map(|time| time.steady().window()).max().unwrap_or(0);
        last.end.0.saturating_sub(first.begin.0) > window.saturating_add(window / 4)
    }

    /// Returns the sentence about the parts of the run that the tables cover. Returns `None` if GPUs were busy only in
    /// the steady part, or if the times of GPU work cannot be correct.
    fn scope_line(&self) -> Option<String> {
        let times = self.profile().times().iter();
        let apart = saturating_sum(times.flat_map(|time| [time.start_up.busy, time.shutdown.busy]));
        (apart > 0 && !has_impossible_durations(self.findings)).then(|| {
            format!(
                "GPU work, lines and copies below are those of the whole run, with {} outside of the steady part",
                format_nanos(apart)
            )
        })
    }

    /// Returns the sentence about lost data. Traces of other tools do not record losses.
    fn complete_line(&self) -> String {
        let Explained { profile, ledger, facts, .. } = self.explained;
        if facts.writer_state.is_some() || facts.damaged > 0 {
            let damaged = group_digits(facts.damaged);
            let line = complete_line(ledger, profile);
            let line = line.split_once(": ").map_or(&*line, |(_, rest)| rest);
            return format!(
                "not complete: the recording breaks off or is damaged ({damaged} damaged records); {line}"
            );
        }
        let Some(linked) = &facts.linked else { return complete_line(ledger, profile) };
        let (launches, activities) = (ledger.tally.launches.seen, ledger.tally.activities.seen);
        let without = |count: u64, what: &str| match count {
            0 => String::new(),
            1 => format!("1 launch {what}has no activity; "),
            count => format!("{} launches {what}have no activity; ", group_digits(count)),
        };
        let uncovered = self.profile().coverage().all.uncovered;
        let others = ledger.tally.launches.pending.saturating_sub(uncovered);
        without(uncovered, "")
            // Calls for empty copies and empty graphs have no activity. All other calls without an activity may have
            // launched work that kept the GPU busy.
            + &without(others, "of copies or graphs ")
            + &format!(
                "{}, {}: {:.1} % of the GPU time is linked to launches; the trace does not record losses",
                counted(launches, "launches"),
                counted(activities, "activities"),
                percent(linked.linked_gpu_ns, linked.gpu_ns)
            )
    }

    /// Returns the kinds of data that the file lacks, each with a clause about the command, API call or option that
    /// records the data.
    pub(super) fn not_recorded(&self) -> Vec<(String, String)> {
        let (profile, facts) = (self.profile(), &self.explained.facts);
        let idle = self.idle_samples();
        let is_between = |sample: &&&Sample| matches!(sample.site, SampleSite::Between { .. });
        let all = saturating_sum(idle.iter().map(|sample| sample.amount()));
        let late = saturating_sum(idle.iter().filter(is_between).map(|sample| sample.amount()));
        let has_samples = profile.has(&CPU) || profile.has(&OFF_CPU);
        let mut notes = Vec::new();
        let mut note = |what: String, how: &str| notes.push((what, how.to_owned()));
        if !has_samples && percent(late, all) >= LATE_PERCENT {
            let what = format!("what the host did in {} between two calls", format_nanos(late));
            note(
                what,
                match facts.kind {
                    Kind::Recording => "`gpuflame run --cpu-samples 99 --off-cpu COMMAND` records it",
                    Kind::Chrome => "torch.profiler records it with `with_stack=True`",
                    _ => "a profiler that samples the host records it",
                },
            );
        }
        let filter = CommunicationFilter::default();
        let communicates = |work: Work| filter.is_communication(work, &work_name(profile, work));
        if facts.has_only_sums && profile.works().iter().any(|work| communicates(work.work)) {
            let what = "how much communication overlaps with work".to_owned();
            note(what, "`gpuflame run --rows COMMAND` records it");
        }
        if matches!(self.path, Some(RunPath::Unknown(UnknownPath::OnlySums))) {
            note("the critical path".to_owned(), "`gpuflame run --rows COMMAND` records it");
        }
        let marks = match facts.kind {
            Kind::Recording => Some("`gpuflame.step()` or `--window step-range=NAME` marks them"),
            Kind::Chrome => Some("`profiler.step()` marks them"),
            _ => None,
        };
        if let Some(marks) = marks.filter(|_| profile.step_series().groups.is_empty()) {
            note("steps, so slow ones are unknown".to_owned(), marks);
        }
        notes.extend(unchecked(self.findings));
        notes
    }
}

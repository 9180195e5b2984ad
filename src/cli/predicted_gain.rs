//! Predicts how much time a run would save without the cause of its most expensive finding. The prediction is the
//! result of a replay.

use regex::Regex;

use super::edit_flags::{waiting_calls, waiting_calls_under};
use super::measured_part::MeasuredPart;
use super::next_command::quoted_for_shell;
use gpuflame_export::percent;
use gpuflame_model::profile::{Profile, format_nanos};
use gpuflame_offline::analysis::{
    CriticalPath, Edit, Finding, InstructionList, Reliance, Replay, Severity, UserFunctions,
};

/// A gain below this share of the measured part, in percent, is called small.
const SMALL_PERCENT: f64 = 1.0;

/// The data of a run that a replay of the run needs.
#[derive(Clone, Copy)]
pub(super) struct ReplayedRun<'a> {
    pub(super) path: &'a CriticalPath,
    pub(super) list: &'a InstructionList,
    pub(super) profile: &'a Profile,
    /// Start and end of each step in ns since 1970.
    pub(super) steps: &'a [(u64, u64)],
}

/// A change to the program, and the time that the change would save.
pub(super) struct PredictedGain {
    change: String,
    condition: &'static str,
    /// The option of `gpuflame what-if` that replays the change, quoted for a shell; `None` if no option replays it.
    option: Option<String>,
    saved: u64,
    /// Whether `saved` is only an upper bound, because the replay assumes that the GPU needs no time between two
    /// kernels of a graph.
    is_bound: bool,
}

impl PredictedGain {
    /// Replays the run without launches if launches are the most expensive finding. If launches are not the most
    /// expensive finding, replays the run without the most expensive waits. Returns `None` if neither launches nor
    /// waits are a finding. Removing the waits may save more time than the waits cost, so waits need not be the most
    /// expensive finding.
    pub(super) fn find(run: ReplayedRun<'_>, findings: &[Finding]) -> Option<Self> {
        let costs = findings.iter().filter(|finding| finding.severity == Severity::Cost);
        let may_save = |(at, finding): &(usize, &Finding)| *at == 0 || finding.id != "launch_bound";
        costs.enumerate().filter(may_save).find_map(|(_, finding)| Self::of_finding(run, finding))
    }

    fn of_finding(run: ReplayedRun<'_>, finding: &Finding) -> Option<Self> {
        let (option, edit, change, condition) = match finding.id {
            "sync_read" | "sync_wait" if !finding.function.is_empty() => {
                let functions = UserFunctions::new(run.profile);
                let is_there = |context| *functions.of(context) == *finding.function;
                let calls = waiting_calls(run.path, is_there);
                if calls.count() == 0 {
                    return None;
                }
                // The regular expression may match too many calls, because the name may be a part of longer names, and
                // because the function may call other functions that wait.
                let name = regex::escape(&finding.function);
                let is_same = |regex: &String| {
                    let regex = Regex::new(regex);
                    regex.is_ok_and(|regex| {
                        waiting_calls_under(run.path, run.profile, &regex).count() == calls.count()
                    })
                };
                let regex = [name.clone(), format!("(^|;){name}(;|$)")].into_iter().find(is_same);
                (
                    regex.map(|regex| format!("--no-sync={}", quoted_for_shell(&regex))),
                    Edit::NoWaits { calls },
                    format!("without the waits in {}", finding.function),
                    "no result is read too early",
                )
            }
            "launch_bound" => {
                let mut bounds: Vec<u64> = run.steps.iter().flat_map(|(from, to)| [*from, *to]).collect();
                bounds.sort_unstable();
                (
                    Some("--graphs".to_owned()),
                    Edit::Graphs { bounds },
                    "with graphs in place of launches".to_owned(),
                    "the launches can be captured",
                )
            }
            _ => return None,
        };
        let length = |(from, to): (u64, u64)| to - from;
        let (replay, edits) = (Replay::new(run.path, run.list, run.profile), [edit]);
        let edited = replay.edit(&edits);
        let saved = length(run.path.window()).saturating_sub(length(edited.schedule.window()));
        // If the gap between the nodes of a graph is unknown, the replay assumes a gap of 0.
        let is_bound = replay.reliances(run.profile, &edits, &edited).contains_key(&Reliance::UnknownGap);
        Some(Self { change, condition, option, saved, is_bound })
    }

    /// Returns the sentence about the gain, with the command that replays the change. `file` is quoted for a shell.
    /// `part` is the part of the run to which shares refer.
    pub(super) fn sentence(&self, file: &str, part: MeasuredPart) -> String {
        let share = percent(self.saved, part.nanos);
        let words = match () {
            () if self.is_bound => "at most ",
            () if share < SMALL_PERCENT => "only ",
            () => "",
        };
        // No share is shown if the saved time is longer than the measured part. For example, waits during start-up may
        // take longer than the steady part.
        let share = match self.saved <= part.nanos {
            true => format!(" ({share:.1} % of {})", part.name()),
            false => String::new(),
        };
        let saving = match self.saved {
            0 => "the run is not shorter".to_owned(),
            saved => {
                format!("the run takes {words}{} less{share} if {}", format_nanos(saved), self.condition)
            }
        };
        let option = self.option.as_ref();
        let more = option.map(|option| format!("; `gpuflame what-if {file} {option}` shows more"));
        format!("predicted: {}, {saving}{}", self.change, more.unwrap_or_default())
    }
}

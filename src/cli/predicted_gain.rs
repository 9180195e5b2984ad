//! The time that a run would save without the reason of its most expensive finding, as a replay predicts it.

use regex::Regex;

use super::edit_flags::waiting_calls_under;
use super::next_command::quoted_for_shell;
use gpuflame_export::percent;
use gpuflame_model::profile::{Profile, format_nanos};
use gpuflame_offline::analysis::{CriticalPath, Edit, Finding, InstructionList, Replay, Severity};

/// Share of the run, in percent, below which a gain is called small.
const SMALL_PERCENT: f64 = 1.0;

/// A run that can be replayed.
#[derive(Clone, Copy)]
pub(super) struct ReplayedRun<'a> {
    pub(super) path: &'a CriticalPath,
    pub(super) list: &'a InstructionList,
    pub(super) profile: &'a Profile,
    /// Begins and ends of the steps.
    pub(super) steps: &'a [(u64, u64)],
}

/// A change of the program, and the time that it would save.
pub(super) struct PredictedGain {
    change: String,
    condition: &'static str,
    /// The option of `gpuflame what-if` that replays the change, quoted for a shell.
    option: String,
    saved: u64,
    /// Duration of the run as recorded.
    whole: u64,
}

impl PredictedGain {
    /// Replays the run without the reason of the most expensive finding for which there is a change. Returns `None` if there is
    /// no such finding.
    pub(super) fn find(run: ReplayedRun<'_>, findings: &[Finding]) -> Option<Self> {
        let costs = findings.iter().filter(|finding| finding.severity == Severity::Cost);
        costs.filter_map(|finding| Self::of_finding(run, finding)).next()
    }

    fn of_finding(run: ReplayedRun<'_>, finding: &Finding) -> Option<Self> {
        let (edit, change, condition, option) = match finding.id {
            "sync_read" | "sync_wait" if !finding.function.is_empty() => {
                let function = &finding.function;
                let regex = regex::escape(function);
                let calls = waiting_calls_under(run.path, run.profile, &Regex::new(&regex).ok()?);
                if calls.count() == 0 {
                    return None;
                }
                let option = format!("--no-sync={}", quoted_for_shell(&regex));
                (
                    Edit::NoWaits { calls },
                    format!("without the waits in {function}"),
                    "no result is read too early",
                    option,
                )
            }
            "launch_bound" => {
                let mut bounds: Vec<u64> = run.steps.iter().flat_map(|(from, to)| [*from, *to]).collect();
                bounds.sort_unstable();
                (
                    Edit::Graphs { bounds },
                    "with graphs in place of launches".to_owned(),
                    "the launches can be captured",
                    "--graphs".to_owned(),
                )
            }
            _ => return None,
        };
        let length = |(from, to): (u64, u64)| to - from;
        let whole = length(run.path.window());
        let after = Replay::new(run.path, run.list, run.profile).edited(&[edit]).window();
        Some(Self { change, condition, option, saved: whole.saturating_sub(length(after)), whole })
    }

    /// Returns the sentence for a screen. `file` is quoted for a shell.
    pub(super) fn sentence(&self, file: &str) -> String {
        let share = percent(self.saved, self.whole);
        let only = if share < SMALL_PERCENT { "only " } else { "" };
        format!(
            "predicted: {}, the run takes {only}{} less ({share:.1} %) if {}; `gpuflame what-if {file} {}` shows more",
            self.change,
            format_nanos(self.saved),
            self.condition,
            self.option
        )
    }
}

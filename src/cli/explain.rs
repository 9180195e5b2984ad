//! Reads a source, and computes a profile with names from the source's rows. Activities are matched to launches, and
//! sums and names are computed, by the same code as in a recorded process.

use std::collections::BTreeMap;

use super::console::Console;
use super::input::{Facts, Source, describe_backward_pass};
use gpuflame_config::settings;
use gpuflame_explain::Ledger;
use gpuflame_explain::join::Sink;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::views::GPU;
use gpuflame_model::profile::{Profile, Unnamed, View, saturating_sum};
use gpuflame_offline::analysis::StepCoverage;
use gpuflame_offline::run::{ReadOptions, Run};
use gpuflame_os::memory;
use gpuflame_traces::import::{Kind, Opened};

/// Result of reading a source to its end: its profile, its ledger, and other facts.
pub(super) struct Explained {
    pub(super) profile: Profile,
    pub(super) ledger: Ledger,
    /// Facts about the source that were found while reading its rows.
    pub(super) facts: Facts,
    /// Number of code frames without a name, keyed by the reason.
    pub(super) unnamed: BTreeMap<Unnamed, u64>,
}

impl Explained {
    /// Returns an error if the recording is truncated or damaged and contains no GPU activity.
    ///
    /// # Errors
    /// The error is `Format`, and the error's message contains the next step for the user.
    pub(super) fn require_activities(&self, source: &Source) -> Result<()> {
        let is_whole = self.facts.writer_state.is_none() && self.facts.damaged == 0;
        if is_whole || self.ledger.tally.activities.seen > 0 {
            return Ok(());
        }
        let what = format!(
            "{source}: no GPU activity had been recorded when the recording broke off; copy the complete file, or record \
             again"
        );
        Err(Error::new(ErrorKind::Format, what))
    }

    /// Returns an error if the recording is incomplete and contains no GPU work, because a picture of it would be
    /// empty.
    ///
    /// # Errors
    /// The error is `Format`, and the error's message contains the next step for the user.
    pub(super) fn need_samples(&self, source: &Source, view: &View) -> Result<()> {
        let is_incomplete = self.facts.writer_state.is_some() || self.facts.damaged > 0;
        if !is_incomplete || self.profile.has(view) || self.profile.has(&GPU) {
            return Ok(());
        }
        let what = "the recording breaks off before any GPU work, so there is nothing to show; copy the complete file, \
                    or record again";
        Err(Error::new(ErrorKind::Format, format!("{source}: {what}")))
    }
}

/// Reads `source` to its end, and keeps only sums in memory.
pub(super) fn explain_sums(source: &Source, reading: ReadOptions, console: Console) -> Result<Explained> {
    explain_sums_with(source, reading, console, ())
}

/// Does the same as `explain_sums`. In addition, every activity and launch is passed to `sink` after activities were
/// matched to launches.
pub(super) fn explain_sums_with(
    source: &Source,
    reading: ReadOptions,
    console: Console,
    sink: impl Sink,
) -> Result<Explained> {
    let options = ReadOptions { max_memory: max_memory(), ..reading };
    explain_opened(source, source.open()?, &options, console, sink)
}

/// Returns the memory limit for sums, in bytes. The sums have the same memory limit as in a recorded process. Verbs
/// that store single activities do not have a memory limit, because they need the stack of every activity.
pub(super) fn max_memory() -> Option<usize> {
    Some(memory::limit_bytes(settings::from_environment().0.max_mem))
}

/// Reads all rows of `source`. Passes every activity and launch to `sink` after activities were matched to launches,
/// but before names are available.
pub(super) fn explain(
    source: &Source,
    reading: &ReadOptions,
    console: Console,
    sink: impl Sink,
) -> Result<Explained> {
    explain_opened(source, source.open()?, reading, console, sink)
}

/// Does the same as `explain` for a source that is already open. `options` determines which samples are distinguished
/// and what data is displayed.
pub(super) fn explain_opened(
    source: &Source,
    opened: Opened,
    options: &ReadOptions,
    console: Console,
    sink: impl Sink,
) -> Result<Explained> {
    let mut coverage = StepCoverage::default();
    let sink = (sink, &mut coverage);
    let (run, facts) = Run::explained(options, sink, |each| source.rows(opened, options, console, each))?;
    memory::return_freed_memory();
    let (mut profile, ledger, unnamed, tied) = run.into_parts();
    // The share of launches whose GPU work was recorded is computed from the times of launches, which a recording with
    // only sums does not contain.
    if !facts.has_only_sums {
        let is_trace = facts.kind != Kind::Recording;
        if facts.linked.as_ref().is_some_and(|linked| linked.host_function_calls > 0) {
            coverage.note_host_functions();
        }
        profile.set_coverage(coverage.coverage(&profile, &facts.steps, is_trace));
    }
    if facts.kind == Kind::Recording && options.backward_under_forward {
        let all = profile.devices().iter().map(|device| device.nanos);
        let what = describe_backward_pass(tied.all, tied.moved, saturating_sum(all));
        console.remark(format!("{source}: {what}"));
    }
    Ok(Explained { profile, ledger, facts, unnamed })
}

//! Reads a run and collects all data that its summary needs.

use super::screen::{Screen, ScreenSums};
use crate::console::Console;
use crate::explain::{Explained, explain_sums_with};
use crate::input::Source;
use crate::jobs::RanksWithoutWork;
use crate::stream_times::{MAX_SPANS, check_order};
use gpuflame_explain::join::Sink;
use gpuflame_export::NameFolding;
use gpuflame_model::error::Result;
use gpuflame_offline::analysis::{
    CopySums, Evidence, Finding, PlausibleSpans, RunEvidence, Severity, StreamOrder, WorkSpans,
    cost_findings, note_idle_beside_lost, record_findings,
};
use gpuflame_offline::run::ReadOptions;

use super::answers::Answers;
use super::findings::IMPOSSIBLE_DURATION;

/// A run that was read, but whose findings are not computed yet.
pub(super) struct ReadRun {
    explained: Explained,
    copies: CopySums,
    spans: WorkSpans,
}

/// A run, with all data that its summary needs.
pub(crate) struct SummarizedRun {
    pub(crate) explained: Explained,
    copies: CopySums,
    pub(super) spans: PlausibleSpans,
}

/// Reads a run, and returns the run with its findings in descending order of severity. Passes every activity and launch
/// to `more` after activities were matched to launches.
pub(crate) fn summarize(
    input: &Source,
    options: ReadOptions,
    console: Console,
    more: impl Sink,
) -> Result<(SummarizedRun, Vec<Finding>)> {
    read_run(input, options, console, more).map(|run| run.with_findings(input, console))
}

/// Reads the run of a rank as [`summarize`] does. If the rank's file has no GPU work, adds the rank to `without_work`
/// and returns `None`, because the other ranks of the job can still be compared.
pub(crate) fn summarize_rank(
    (rank, input): (u32, &Source),
    options: ReadOptions,
    console: Console,
    more: impl Sink,
    without_work: &mut RanksWithoutWork,
) -> Result<Option<(SummarizedRun, Vec<Finding>)>> {
    let run = read_any_run(input, options, console, more)?;
    if let Err(error) = run.explained.facts.require_work(input) {
        without_work.add(rank, error);
        return Ok(None);
    }
    run.explained.require_activities(input)?;
    Ok(Some(run.with_findings(input, console)))
}

/// Reads a run, which must have GPU work.
///
/// # Errors
/// Fails for the same reasons as every read, and with `Format` if the run has no GPU work.
pub(super) fn read_run(
    input: &Source,
    options: ReadOptions,
    console: Console,
    more: impl Sink,
) -> Result<ReadRun> {
    let run = read_any_run(input, options, console, more)?;
    run.explained.facts.require_work(input)?;
    run.explained.require_activities(input)?;
    Ok(run)
}

fn read_any_run(input: &Source, options: ReadOptions, console: Console, more: impl Sink) -> Result<ReadRun> {
    let (mut copies, mut spans) = (CopySums::default(), WorkSpans::bounded(MAX_SPANS));
    let options = ReadOptions { kernel_gaps: true, ..options };
    let explained = explain_sums_with(input, options, console, ((&mut copies, &mut spans), more))?;
    if explained.facts.has_only_sums {
        copies = CopySums::from_sums(&explained.profile).unwrap_or_default();
    }
    Ok(ReadRun { explained, copies, spans })
}

impl ReadRun {
    /// Returns the run with its findings in descending order of severity.
    fn with_findings(mut self, input: &Source, console: Console) -> (SummarizedRun, Vec<Finding>) {
        let order = check_order(input, &self.explained, &mut self.spans, console);
        note_idle_beside_lost(&mut self.explained.profile, &self.spans);
        let run = self.into_evidence();
        let findings = findings_of_run(&run.evidence(), &run.explained, order);
        (run, findings)
    }

    pub(super) fn into_evidence(self) -> SummarizedRun {
        let Self { explained, copies, spans } = self;
        SummarizedRun { explained, copies, spans: PlausibleSpans::new(spans) }
    }
}

impl SummarizedRun {
    /// Returns the sentences about the run. `findings` are the findings about this run.
    pub(crate) fn answers(&self, findings: &[Finding], names: NameFolding) -> Answers {
        self.screen(findings, names).answers(&self.spans)
    }

    pub(super) fn screen<'a>(&'a self, findings: &'a [Finding], names: NameFolding) -> Screen<'a> {
        Screen {
            explained: &self.explained,
            copies: &self.copies,
            names,
            findings,
            path: None,
            sums: ScreenSums::default(),
        }
    }

    pub(crate) fn evidence(&self) -> RunEvidence<'_> {
        RunEvidence {
            profile: &self.explained.profile,
            spans: &self.spans,
            states: &self.explained.facts.host_states,
            copies: &self.copies,
            has_only_sums: self.explained.facts.has_only_sums,
            linked: self.explained.facts.linked.as_ref(),
        }
    }
}

/// Returns the findings about wrong data and about lost time, in descending order of severity.
fn findings_of_run(run: &RunEvidence<'_>, explained: &Explained, order: StreamOrder) -> Vec<Finding> {
    let mut findings = record_findings(&Evidence {
        profile: &explained.profile,
        tally: &explained.ledger.tally,
        stacks: explained.ledger.stacks,
        has_only_sums: explained.facts.has_only_sums,
        unset_times: None,
        stream_order: &order,
        linked: run.linked,
        damaged: explained.facts.damaged,
        writer_state: explained.facts.writer_state,
    });
    findings.retain(|finding| finding.severity == Severity::Bad);
    findings.extend(cost_findings(run));
    // Impossible durations come first, because they may be the reason for other findings about wrong data.
    let is_other = |finding: &Finding| finding.id != IMPOSSIBLE_DURATION;
    findings.sort_by_key(|finding| (finding.severity, is_other(finding), std::cmp::Reverse(finding.cost)));
    findings
}

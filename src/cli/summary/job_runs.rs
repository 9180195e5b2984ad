//! Collects the runs of a job, except runs whose times cannot be correct.

use super::findings::withholding_finding;
use crate::measured_part::MeasuredPart;
use gpuflame_model::profile::Profile;
use gpuflame_offline::analysis::{Finding, RankRun, RankTime, job_findings};

/// The runs of a job. Call `add` for every run, then `into_findings`.
#[derive(Default)]
pub(crate) struct JobRuns {
    runs: Vec<RankRun>,
    /// Findings about runs with impossible durations. The runs with impossible durations are not in `runs`.
    impossible: Vec<Finding>,
    part: MeasuredPart,
}

impl JobRuns {
    /// Adds the run of a rank. `findings` are the findings about this run. If durations in the run are impossible, adds
    /// only a finding about these durations.
    pub(crate) fn add(&mut self, run: RankRun, profile: &Profile, findings: &[Finding]) {
        let Some(finding) = withholding_finding(findings) else {
            self.part = self.part.and(MeasuredPart::of(profile));
            return self.runs.push(run);
        };
        let culprit = format!("rank {}", run.rank);
        self.impossible.push(Finding { culprit, rank: Some(run.rank), ..finding.clone() });
    }

    /// Returns the times of the ranks that can be compared.
    pub(crate) fn times(&self) -> Vec<RankTime> {
        self.runs.iter().map(|run| run.time.clone()).collect()
    }

    /// Returns the part of the runs to which the shares of findings refer.
    pub(crate) fn part(&self) -> MeasuredPart {
        self.part
    }

    /// Returns the findings about the job, in descending order of severity. Ranks are compared if there are at least
    /// two ranks. Set `are_ranks_missing` if other ranks of the job have no file.
    pub(crate) fn into_findings(self, are_ranks_missing: bool) -> Vec<Finding> {
        let compared = match self.runs.len() {
            0 | 1 => Vec::new(),
            _ => job_findings(self.runs, are_ranks_missing),
        };
        self.impossible.into_iter().chain(compared).collect()
    }
}

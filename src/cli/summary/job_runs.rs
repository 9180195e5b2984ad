//! The runs of a job, without runs whose times cannot be true.

use super::findings::withholding_finding;
use crate::measured_part::MeasuredPart;
use gpuflame_model::profile::Profile;
use gpuflame_offline::analysis::{Finding, RankRun, RankTime, job_findings};

/// The runs of a job. Add every run, then ask for the findings.
#[derive(Default)]
pub(crate) struct JobRuns {
    runs: Vec<RankRun>,
    /// Findings about runs with impossible durations.
    impossible: Vec<Finding>,
    part: MeasuredPart,
}

impl JobRuns {
    /// Adds the run of a rank, which has these findings. If durations in the run are impossible, the job has a finding
    /// about that instead.
    pub(crate) fn add(&mut self, run: RankRun, profile: &Profile, findings: &[Finding]) {
        let Some(finding) = withholding_finding(findings) else {
            self.part = self.part.and(MeasuredPart::of(profile));
            return self.runs.push(run);
        };
        let culprit = format!("rank {}", run.rank);
        self.impossible.push(Finding { culprit, rank: Some(run.rank), ..finding.clone() });
    }

    /// Times of the ranks that can be compared.
    pub(crate) fn times(&self) -> Vec<RankTime> {
        self.runs.iter().map(|run| run.time.clone()).collect()
    }

    /// The part of the runs to which shares of findings refer.
    pub(crate) fn part(&self) -> MeasuredPart {
        self.part
    }

    /// Returns the findings about the job, the worst first. Ranks are compared if there are at least two.
    pub(crate) fn into_findings(self) -> Vec<Finding> {
        let compared = if self.runs.len() > 1 { job_findings(self.runs) } else { Vec::new() };
        self.impossible.into_iter().chain(compared).collect()
    }
}

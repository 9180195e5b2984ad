//! Creates the panel of ranks, which shows the work and communication of each rank and the rank that delays the job.

use gpuflame_offline::analysis::StragglerVerdict;
use serde_json::{Value, json};

use super::job::Job;

/// Returns the rows of the table of ranks, one row per rank.
pub(super) fn rows(job: &Job) -> Vec<Value> {
    let row = |(rank, (time, compared)): (&super::job::RankFacts, &(_, _))| {
        let time: &gpuflame_offline::analysis::RankTime = time;
        let compared: &gpuflame_offline::analysis::RankComparison = compared;
        let busy: u64 = rank.bars.iter().map(|bar| bar.busy).fold(0, u64::saturating_add);
        let window: u64 = rank.bars.iter().map(|bar| bar.window).fold(0, u64::saturating_add);
        let verdict = match compared.verdict {
            StragglerVerdict::OthersWait => "the other ranks wait for it",
            StragglerVerdict::MostWork => "has the most work",
            StragglerVerdict::Unsure | StragglerVerdict::NotStraggler => "",
        };
        json!([rank.rank, busy, window, time.work, time.communication, compared.to_median_percent, verdict])
    };
    job.ranks.iter().zip(&job.times).map(row).collect()
}

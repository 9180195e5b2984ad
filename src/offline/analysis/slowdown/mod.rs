//! The slowdown of a training step by stragglers, from a simulation of the job: the step is simulated with the
//! durations as measured, then with even durations, and the ratio of the two step times is the slowdown.
//!
//! Formulas and ideal values are those of "Understanding Stragglers in Large Model Training Using What-if Analysis"
//! (OSDI 2025). `docs/stragglers.md` states each rule. A [`JobModel`] is a job as the simulation sees it;
//! [`pipeline`] builds one from the operations of a pipeline, [`ranks`] from the collectives of several ranks.

mod even;
mod model;
mod pipeline;
mod ranks;
mod report;
mod simulate;

#[cfg(test)]
mod tests;

pub use model::{JobModel, ModelError};
pub use pipeline::{PipelineKind, PipelineOp, pipeline_model};
pub use ranks::{
    ProcessGroup, RankFacts, RankTimeline, TimedCollective, align_process_groups, align_timelines,
    ranks_model,
};
pub use report::{EvenedPart, MIN_DECOMPOSED, PartKind, Share, SlowdownReport, StepTime, slowdown_report};

//! Computes by how much stragglers slow down a training step. The job is simulated twice, once with the measured
//! durations and once with even durations. The slowdown is the step time with measured durations divided by the step
//! time with even durations.
//!
//! The formulas and the rules for ideal durations are taken from "Understanding Stragglers in Large Model Training
//! Using What-if Analysis" (OSDI 2025). `docs/stragglers.md` states each rule of the computation. A [`JobModel`]
//! describes a job for the simulation. [`pipeline`] builds a model from the operations of a pipeline, and [`ranks`]
//! builds a model from the collectives of several ranks.

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

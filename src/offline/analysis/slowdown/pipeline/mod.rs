//! Builds models of jobs with a pipeline, from the workers' operations that a training framework records.

mod build;
mod dependencies;
mod messages;
mod ops;
mod workers;

pub use build::pipeline_model;
pub use ops::{PipelineKind, PipelineOp};

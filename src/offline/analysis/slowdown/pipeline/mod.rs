//! Jobs with a pipeline: the operations that workers run, as a training framework records them.

mod build;
mod dependencies;
mod messages;
mod ops;
mod workers;

pub use build::pipeline_model;
pub use ops::{PipelineKind, PipelineOp};

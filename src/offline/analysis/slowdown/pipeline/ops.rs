//! Operations of a pipeline, in the form in which they are recorded.

use crate::analysis::slowdown::model::Average;

/// Kind of a pipeline operation. The variants of this enum are in alphabetical order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PipelineKind {
    /// Backward pass of a microbatch.
    BackwardCompute,
    /// Receive of a gradient from the next stage.
    BackwardRecv,
    /// Send of a gradient to the previous stage.
    BackwardSend,
    /// All-reduce of the embedding's gradients between the first and the last stage.
    EmbeddingGradsAllReduce,
    /// Forward pass of a microbatch.
    ForwardCompute,
    /// Receive of activations from the previous stage.
    ForwardRecv,
    /// Send of activations to the next stage.
    ForwardSend,
    /// Mark that follows the last computation of a step.
    Gc,
    /// Reduce-scatter of the gradients across the replicas.
    GradsReduceScatter,
    /// All-reduce of the layer norm's gradients.
    LayernormGradsAllReduce,
    /// Update of the weights.
    Optimizer,
    /// Clipping of the gradients, at which all workers meet.
    OptimizerClipMainGrad,
    /// All-gather of the weights across the replicas.
    ParamsAllGather,
    /// All-reduce of gradients that are not part of the reduce-scatter.
    SeparateGradsAllReduce,
}

impl PipelineKind {
    /// All kinds of pipeline operations.
    pub const ALL: [Self; 14] = [
        Self::BackwardCompute,
        Self::BackwardRecv,
        Self::BackwardSend,
        Self::EmbeddingGradsAllReduce,
        Self::ForwardCompute,
        Self::ForwardRecv,
        Self::ForwardSend,
        Self::Gc,
        Self::GradsReduceScatter,
        Self::LayernormGradsAllReduce,
        Self::Optimizer,
        Self::OptimizerClipMainGrad,
        Self::ParamsAllGather,
        Self::SeparateGradsAllReduce,
    ];

    /// Returns the name that this kind has in recorded files.
    pub fn word(self) -> &'static str {
        match self {
            Self::BackwardCompute => "backward-compute",
            Self::BackwardRecv => "backward-recv",
            Self::BackwardSend => "backward-send",
            Self::EmbeddingGradsAllReduce => "embedding-grads-all-reduce",
            Self::ForwardCompute => "forward-compute",
            Self::ForwardRecv => "forward-recv",
            Self::ForwardSend => "forward-send",
            Self::Gc => "gc",
            Self::GradsReduceScatter => "grads-reduce-scatter",
            Self::LayernormGradsAllReduce => "layernorm-grads-all-reduce",
            Self::Optimizer => "optimizer",
            Self::OptimizerClipMainGrad => "optimizer-clip-main-grad",
            Self::ParamsAllGather => "params-all-gather",
            Self::SeparateGradsAllReduce => "separate-grads-all-reduce",
        }
    }

    /// Returns the kind that has this name in recorded files.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// Returns the name under which savings for this kind are reported. The sends and the receives of one direction
    /// (forward or backward) have the same name.
    pub(super) fn reported_as(self) -> &'static str {
        match self {
            Self::ForwardSend | Self::ForwardRecv => "forward messages",
            Self::BackwardSend | Self::BackwardRecv => "backward messages",
            other => other.word(),
        }
    }

    pub(super) fn is_compute(self) -> bool {
        matches!(self, Self::ForwardCompute | Self::BackwardCompute)
    }

    pub(super) fn is_message(self) -> bool {
        matches!(self, Self::ForwardSend | Self::ForwardRecv | Self::BackwardSend | Self::BackwardRecv)
    }

    pub(super) fn average(self) -> Average {
        match self {
            Self::ForwardCompute | Self::BackwardCompute | Self::Gc | Self::Optimizer => Average::Mean,
            _ => Average::Median,
        }
    }
}

/// A recorded pipeline operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PipelineOp {
    /// Data-parallel rank of the worker that ran the operation.
    pub replica: u32,
    /// Pipeline stage of the worker.
    pub stage: u32,
    /// Global rank of the worker.
    pub rank: u32,
    /// Id of the step.
    pub step: i64,
    /// Kind of the operation.
    pub kind: PipelineKind,
    /// Sequence number of the operation. The operations of one kind on a worker in a step are numbered in the order of
    /// their starts.
    pub sequence: u32,
    /// Index of the model part within the stage, if a stage has several parts (virtual stages). The index is -1 if the
    /// operation belongs to no part.
    pub chunk: i32,
    /// Index of the model part over all stages, or -1 if the operation belongs to no part.
    pub global_chunk: i32,
    /// Start of the operation, in seconds.
    pub start: f64,
    /// Duration of the operation, in seconds.
    pub duration: f64,
}

/// Key of an operation: kind, sequence number and stage.
pub(super) type OpKey = (PipelineKind, u32, u32);

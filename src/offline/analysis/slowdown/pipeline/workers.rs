//! Groups the operations of a pipeline by stage, and sorts them by start.

use super::ops::{PipelineKind as Kind, PipelineOp};

/// Operations of one stage, sorted by start.
pub(super) struct Worker {
    pub(super) stage: u32,
    pub(super) computes: Vec<PipelineOp>,
    pub(super) messages: Vec<PipelineOp>,
    pub(super) others: Vec<PipelineOp>,
}

impl Worker {
    pub(super) fn new(sample: &[PipelineOp], stage: u32) -> Self {
        let mut ops: Vec<PipelineOp> = sample.iter().filter(|op| op.stage == stage).copied().collect();
        ops.sort_by(|a, b| {
            a.start.total_cmp(&b.start).then_with(|| (a.sequence, a.kind).cmp(&(b.sequence, b.kind)))
        });
        let (computes, ops): (Vec<_>, Vec<_>) = ops.into_iter().partition(|op| op.kind.is_compute());
        let (messages, others) = ops.into_iter().partition(|op| op.kind.is_message());
        Self { stage, computes, messages, others }
    }

    /// Returns the operations of a kind that is not a computation or a message, sorted by sequence number.
    pub(super) fn of_kind(&self, kind: Kind) -> Vec<&PipelineOp> {
        let mut ops: Vec<_> = self.others.iter().filter(|op| op.kind == kind).collect();
        ops.sort_by_key(|op| op.sequence);
        ops
    }
}

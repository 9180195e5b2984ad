//! Finds the dependencies between the operations of a pipeline. The dependencies are the same in every step and
//! replica, so they are derived from replica 0 in the first step.

use std::collections::{BTreeSet, HashMap};

use super::messages::add_messages;
use super::ops::{OpKey, PipelineKind as Kind, PipelineOp};
use super::workers::Worker;
use crate::analysis::slowdown::model::{JobModel, ModelError};

/// Operations of one replica, and the facts from which the dependencies between these operations are derived.
pub(super) struct Dependencies<'a> {
    workers: Vec<Worker>,
    index: &'a HashMap<OpKey, usize>,
    /// Whether replicas exchange gradients and weights.
    shares_weights: bool,
    /// Whether gradients are exchanged while the backward pass is still running.
    overlaps: bool,
    global_chunks: i64,
}

impl<'a> Dependencies<'a> {
    pub(super) fn new(
        sample: &[PipelineOp],
        index: &'a HashMap<OpKey, usize>,
        stages: u32,
        shares_weights: bool,
    ) -> Self {
        let chunks = sample.iter().map(|op| op.chunk).max().unwrap_or(0);
        Self {
            workers: (0..stages).map(|stage| Worker::new(sample, stage)).collect(),
            index,
            shares_weights,
            overlaps: sample.iter().any(|op| op.kind == Kind::SeparateGradsAllReduce),
            global_chunks: (i64::from(chunks) + 1) * i64::from(stages),
        }
    }

    /// Adds all dependencies and groups to the model.
    ///
    /// # Errors
    /// Fails if the messages do not match the computations of the pipeline.
    pub(super) fn add_to(&self, model: &mut JobModel) -> Result<(), ModelError> {
        add_messages(model, &self.workers, self.index, self.global_chunks)?;
        for worker in &self.workers {
            self.add_streams(model, worker);
            self.add_first_backward(model, worker);
            if self.shares_weights {
                self.add_weights(model, worker);
            }
            self.add_end_of_step(model, worker);
        }
        self.add_collectives(model);
        Ok(())
    }

    fn at(&self, op: &PipelineOp) -> usize {
        self.index[&(op.kind, op.sequence, op.stage)]
    }

    fn find(&self, kind: Kind, sequence: u32, stage: u32) -> Option<usize> {
        self.index.get(&(kind, sequence, stage)).copied()
    }

    /// Makes three groups of operations on a worker run one after another: the computations, the messages of each kind,
    /// and the exchanges of weights and gradients.
    fn add_streams(&self, model: &mut JobModel, worker: &Worker) {
        chain(model, worker.computes.iter().map(|op| self.at(op)));
        for kind in [Kind::ForwardSend, Kind::ForwardRecv, Kind::BackwardSend, Kind::BackwardRecv] {
            chain(model, worker.messages.iter().filter(|op| op.kind == kind).map(|op| self.at(op)));
        }
        if self.shares_weights {
            let kinds = [Kind::ParamsAllGather, Kind::GradsReduceScatter];
            chain(model, worker.others.iter().filter(|op| kinds.contains(&op.kind)).map(|op| self.at(op)));
        }
    }

    /// Makes the first backward messages of a stage depend on the computation that comes two places before the stage's
    /// first backward pass.
    fn add_first_backward(&self, model: &mut JobModel, worker: &Worker) {
        let first = worker.computes.iter().position(|op| op.kind == Kind::BackwardCompute);
        let Some(before) = first.and_then(|at| at.checked_sub(2)) else { return };
        let before = self.at(&worker.computes[before]);
        for kind in [Kind::BackwardRecv, Kind::BackwardSend] {
            if let Some(at) = self.find(kind, 0, worker.stage) {
                model.ops[at].after.push(before);
            }
        }
    }

    /// Makes the first forward pass of a model part depend on the last exchange of this part's weights. If gradients
    /// are exchanged while the backward pass runs, also makes the first exchange of a part's gradients depend on the
    /// last backward pass of this part.
    fn add_weights(&self, model: &mut JobModel, worker: &Worker) {
        let mut seen = BTreeSet::new();
        for gather in worker.of_kind(Kind::ParamsAllGather).iter().rev() {
            let forward = |op: &&PipelineOp| op.kind == Kind::ForwardCompute && op.chunk == gather.chunk;
            if let Some(first) = worker.computes.iter().find(forward).filter(|_| seen.insert(gather.chunk)) {
                model.ops[self.at(first)].after.push(self.at(gather));
            }
        }
        if !self.overlaps {
            return;
        }
        seen.clear();
        for scatter in worker.of_kind(Kind::GradsReduceScatter) {
            let backward = |op: &&PipelineOp| op.kind == Kind::BackwardCompute && op.chunk == scatter.chunk;
            let last = last_to_end(worker.computes.iter().filter(backward));
            if let Some(last) = last.filter(|_| seen.insert(scatter.chunk)) {
                model.ops[self.at(scatter)].after.push(self.at(last));
            }
        }
    }

    /// Orders the operations after the last computation of a step: the exchanges of gradients, the clipping and the
    /// optimizer run one after another.
    fn add_end_of_step(&self, model: &mut JobModel, worker: &Worker) {
        let stage = worker.stage;
        let find = |kind| self.find(kind, 0, stage);
        let mut before: Vec<usize> =
            last_to_end(worker.computes.iter()).map(|op| self.at(op)).into_iter().collect();
        if let Some(gc) = find(Kind::Gc) {
            model.ops[gc].after.append(&mut before);
            before.push(gc);
        }
        let scatters = worker.of_kind(Kind::GradsReduceScatter);
        let is_outer = stage == 0 || stage as usize + 1 == self.workers.len();
        let mut ops = vec![find(Kind::LayernormGradsAllReduce)];
        ops.extend(is_outer.then(|| find(Kind::EmbeddingGradsAllReduce)));
        match (self.shares_weights, self.overlaps) {
            (true, true) => {
                before.extend(scatters.last().map(|op| self.at(op)));
                ops.push(find(Kind::SeparateGradsAllReduce));
            }
            (true, false) => ops.extend(scatters.iter().map(|op| Some(self.at(op)))),
            (false, _) => {}
        }
        ops.extend([find(Kind::OptimizerClipMainGrad), find(Kind::Optimizer)]);
        for at in ops.into_iter().flatten() {
            model.ops[at].after.append(&mut before);
            before.push(at);
        }
    }

    /// Adds the collectives. Three kinds of collectives exist: all replicas exchange weights and gradients, the first
    /// and the last stage exchange the embedding's gradients, and all workers meet to clip the gradients.
    fn add_collectives(&self, model: &mut JobModel) {
        let shared = [Kind::ParamsAllGather, Kind::GradsReduceScatter, Kind::SeparateGradsAllReduce];
        for op in self.workers.iter().flat_map(|worker| &worker.others) {
            if self.shares_weights && shared.contains(&op.kind) {
                model.add_group(vec![self.at(op)], true);
            }
        }
        let stages = self.workers.len() as u32;
        let outer = BTreeSet::from([0, stages - 1]);
        let members = |kind, stages: &mut dyn Iterator<Item = u32>| -> Vec<usize> {
            stages.filter_map(|stage| self.find(kind, 0, stage)).collect()
        };
        let embedding = members(Kind::EmbeddingGradsAllReduce, &mut outer.into_iter());
        let clip = members(Kind::OptimizerClipMainGrad, &mut (0..stages));
        for (members, spans_replicas) in [(embedding, false), (clip, true)] {
            if !members.is_empty() {
                model.add_group(members, spans_replicas);
            }
        }
    }
}

fn chain(model: &mut JobModel, ops: impl Iterator<Item = usize>) {
    let mut before = None;
    for at in ops {
        model.ops[at].after.extend(before.replace(at));
    }
}

/// Returns the operation that ends last. If several operations end last, returns the first of these operations.
fn last_to_end<'a>(ops: impl Iterator<Item = &'a PipelineOp>) -> Option<&'a PipelineOp> {
    ops.fold(None, |last: Option<&PipelineOp>, op| match last {
        Some(last) if op.start + op.duration <= last.start + last.duration => Some(last),
        _ => Some(op),
    })
}

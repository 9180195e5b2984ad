//! A job as the simulation sees it: operations, the operations that each one follows, and groups of operations that
//! end together.

use std::collections::VecDeque;

/// A job whose steps and replicas all run the same operations. Replicas are data-parallel ranks.
///
/// Times are stored per operation and lane, at `op * lanes + lane`. A lane is one replica in one step, at
/// `step * replicas + replica`.
#[derive(Clone, Debug, Default)]
pub struct JobModel {
    /// Operations of one replica.
    pub(super) ops: Vec<Op>,
    /// Sets of operations that end only after every member has started.
    pub(super) groups: Vec<Group>,
    /// Kinds of operations, by which savings are reported.
    pub(super) kinds: Vec<String>,
    /// Number of replicas.
    pub(super) replicas: usize,
    /// Number of stages of the pipeline; 1 without a pipeline.
    pub(super) stages: usize,
    /// Numbers of the steps.
    pub(super) steps: Vec<i64>,
    /// Global ranks of the workers, at `replica * stages + stage`.
    pub(super) workers: Vec<u32>,
    /// Durations in ns, of an operation alone: without the time that it waits for its group.
    pub(super) durations: Vec<f64>,
    /// Measured step times in ns.
    pub(super) measured: Vec<f64>,
    /// Order in which each operation follows those that it needs.
    pub(super) order: Vec<usize>,
}

/// An operation of every replica in every step.
#[derive(Clone, Debug, Default)]
pub(super) struct Op {
    /// Index of its kind.
    pub(super) kind: usize,
    /// Operations with the same number get the same ideal duration.
    pub(super) even_with: usize,
    /// Average that gives the ideal duration.
    pub(super) average: Average,
    /// Stage of the pipeline.
    pub(super) stage: usize,
    /// Operations that end before this one starts.
    pub(super) after: Vec<usize>,
    /// Index of its group, if it has one.
    pub(super) group: Option<usize>,
}

/// Average of durations that replaces them in the ideal job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Average {
    /// For computation, whose total stays the same.
    #[default]
    Mean,
    /// For communication, in which a few outliers are far longer than the rest.
    Median,
}

/// Operations that end together: a collective, or both sides of a message.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub(super) members: Vec<usize>,
    /// Whether the group waits for its counterparts on the other replicas.
    pub(super) spans_replicas: bool,
}

/// Reason why no model can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError(pub String);

impl ModelError {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl JobModel {
    /// Adds a group of operations.
    pub(super) fn add_group(&mut self, members: Vec<usize>, spans_replicas: bool) {
        members.iter().for_each(|&member| self.ops[member].group = Some(self.groups.len()));
        self.groups.push(Group { members, spans_replicas });
    }

    pub(super) fn lanes(&self) -> usize {
        self.steps.len() * self.replicas
    }

    /// Returns the number of replicas, of stages and of steps.
    pub fn size(&self) -> (usize, usize, usize) {
        (self.replicas, self.stages, self.steps.len())
    }

    /// Returns the workers' global ranks: all stages of the first replica, then of the next one.
    pub fn worker_ranks(&self) -> &[u32] {
        &self.workers
    }

    /// Finds an order of the operations in which each one follows those that it needs, by Kahn's algorithm.
    ///
    /// # Errors
    /// If operations wait for each other.
    pub(super) fn find_order(&mut self) -> Result<(), ModelError> {
        let mut next = vec![Vec::new(); self.ops.len()];
        let mut missing: Vec<usize> = self.ops.iter().map(|op| op.after.len()).collect();
        for (at, op) in self.ops.iter().enumerate() {
            op.after.iter().for_each(|&before| next[before].push(at));
        }
        let mut ready: VecDeque<usize> = (0..self.ops.len()).filter(|&at| missing[at] == 0).collect();
        let mut started = vec![0; self.groups.len()];
        self.order.clear();
        while let Some(at) = ready.pop_front() {
            self.order.push(at);
            let ended: &[usize] = match self.ops[at].group {
                None => &[at],
                Some(group) => {
                    started[group] += 1;
                    let members = &self.groups[group].members;
                    if started[group] == members.len() { members } else { &[] }
                }
            };
            for &following in ended.iter().flat_map(|&at| &next[at]) {
                missing[following] -= 1;
                if missing[following] == 0 {
                    ready.push_back(following);
                }
            }
        }
        match self.order.len() == self.ops.len() {
            true => Ok(()),
            false => Err(ModelError::new("operations wait for each other in a circle")),
        }
    }
}

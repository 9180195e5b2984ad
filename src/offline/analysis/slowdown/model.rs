//! Model of a job for the simulation. The model contains operations, the dependencies between them, and groups of
//! operations that end together.

use std::collections::VecDeque;

/// A job in which all steps and all replicas run the same operations. A replica is one data-parallel rank of a job.
///
/// Times are stored for each operation and lane, at index `op * lanes + lane`. A lane is one replica in one step, with
/// index `step * replicas + replica`.
#[derive(Clone, Debug, Default)]
pub struct JobModel {
    /// List of the operations that every replica runs in every step.
    pub(super) ops: Vec<Op>,
    /// Groups of operations. The members of a group end only after every member has started.
    pub(super) groups: Vec<Group>,
    /// Names of the kinds of operations. Reports show the saving for each of these kinds.
    pub(super) kinds: Vec<String>,
    /// Number of replicas.
    pub(super) replicas: usize,
    /// Number of pipeline stages, or 1 if there is no pipeline.
    pub(super) stages: usize,
    /// Ids of the steps.
    pub(super) steps: Vec<i64>,
    /// Global rank of each worker, at index `replica * stages + stage`.
    pub(super) workers: Vec<u32>,
    /// Durations of operations in ns. The time for which an operation waits for its group is excluded.
    pub(super) durations: Vec<f64>,
    /// Measured step times in ns.
    pub(super) measured: Vec<f64>,
    /// Topological order of the operations: each operation comes after all operations on which it depends.
    pub(super) order: Vec<usize>,
}

/// An operation that every replica runs in every step.
#[derive(Clone, Debug, Default)]
pub(super) struct Op {
    /// Index of the operation's kind in [`JobModel::kinds`].
    pub(super) kind: usize,
    /// Index of the set to which the operation belongs. All operations of a set get the same ideal duration.
    pub(super) even_with: usize,
    /// Kind of average (mean or median) that gives the ideal duration of the operation.
    pub(super) average: Average,
    /// Index of the pipeline stage.
    pub(super) stage: usize,
    /// Operations that must end before this operation starts.
    pub(super) after: Vec<usize>,
    /// Index of the operation's group, if it belongs to a group.
    pub(super) group: Option<usize>,
}

/// Kind of average that replaces the measured durations in the ideal job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Average {
    /// The mean, which is used for computation because the total duration of computation must stay the same.
    #[default]
    Mean,
    /// The median, which is used for communication because a few communication operations take much longer than the
    /// rest.
    Median,
}

/// Operations that end together: the members of a collective, or the send operation and receive operation of one
/// message.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub(super) members: Vec<usize>,
    /// Whether the group's operations also wait for the same group on all other replicas.
    pub(super) spans_replicas: bool,
}

/// Reason why no model of a job can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError(pub String);

impl ModelError {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl JobModel {
    /// Adds a group that consists of the operations `members`.
    pub(super) fn add_group(&mut self, members: Vec<usize>, spans_replicas: bool) {
        members.iter().for_each(|&member| self.ops[member].group = Some(self.groups.len()));
        self.groups.push(Group { members, spans_replicas });
    }

    pub(super) fn lanes(&self) -> usize {
        self.steps.len() * self.replicas
    }

    /// Returns the numbers of replicas, stages and steps.
    pub fn size(&self) -> (usize, usize, usize) {
        (self.replicas, self.stages, self.steps.len())
    }

    /// Returns the global rank of each worker. The ranks are listed replica by replica: first all stages of the first
    /// replica, then all stages of the second replica, and so on.
    pub fn worker_ranks(&self) -> &[u32] {
        &self.workers
    }

    /// Finds an order of the operations in which each operation comes after all operations on which it depends. Uses
    /// Kahn's algorithm.
    ///
    /// # Errors
    /// Fails if operations wait for each other in a cycle.
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

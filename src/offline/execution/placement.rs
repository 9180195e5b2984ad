//! Finds the node of the execution trace that launched each GPU operation.

use std::collections::{BTreeSet, HashMap};

use super::nesting::Nesting;
use super::pairing::Pairs;
use gpuflame_traces::execution::{ExecutionTrace, Kineto};

/// Kind of a GPU node's parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The parent is the operator or range that launched the work.
    Operator,
    /// No operator launched the work. The parent is the root of the thread that launched the work, or the root of the
    /// process.
    Root,
}

/// Reason why GPU work is not linked to an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlinked {
    /// An operator that is not in the execution trace launched the work, or the work was launched before the first or
    /// after the last operator of the execution trace. Work that was launched outside of the execution trace is not in
    /// the output.
    Outside,
    /// The call that launched the work is not inside an operator. Work that no operator launched is placed below the
    /// root of the launching thread.
    InNoOperator,
    /// The timeline has no call with the work's correlation id. Work without a known call is placed below the root of
    /// the process.
    NoCall,
}

impl Unlinked {
    /// All reasons, in the order of the rows in tables.
    pub const ALL: [Self; 3] = [Self::Outside, Self::InNoOperator, Self::NoCall];

    /// Returns the reason as a phrase for tables.
    pub fn words(self) -> &'static str {
        match self {
            Self::Outside => "launched outside of the execution trace",
            Self::InNoOperator => "launched in no operator",
            Self::NoCall => "without a launching call",
        }
    }
}

/// Parents of all GPU operations.
#[derive(Debug, Default)]
pub(super) struct Placements {
    /// GPU operations in order of time, as (operation, its parent, kind of the parent).
    pub(super) placed: Vec<(usize, usize, Place)>,
    /// For each GPU operation, the call that launched it.
    pub(super) calls: Vec<Option<usize>>,
    /// Number of GPU operations that calls of several processes may have launched.
    pub(super) ambiguous: u64,
    /// Number of unlinked GPU operations for each reason.
    pub(super) unlinked: [u64; Unlinked::ALL.len()],
}

impl Placements {
    pub(super) fn find(
        trace: &ExecutionTrace<'_>,
        kineto: &Kineto,
        pairs: &Pairs,
        nesting: &Nesting,
    ) -> Self {
        let finder = Finder::new(trace, kineto, pairs, nesting);
        let mut placements = Self::default();
        for work in 0..kineto.work.len() {
            let (call, is_ambiguous) = finder.call(work);
            placements.calls.push(call);
            placements.ambiguous += u64::from(is_ambiguous);
            match finder.place(work, call) {
                (Some((parent, place)), reason) => {
                    placements.placed.push((work, parent, place));
                    if let Some(reason) = reason {
                        placements.unlinked[reason as usize] += 1;
                    }
                }
                (None, _) => placements.unlinked[Unlinked::Outside as usize] += 1,
            }
        }
        placements.placed.sort_by_key(|(work, ..)| {
            let one = &kineto.work[*work];
            (one.start, one.end, *work)
        });
        placements
    }
}

struct Finder<'a> {
    kineto: &'a Kineto,
    pairs: &'a Pairs,
    nesting: &'a Nesting,
    /// Pairs of a correlation id and its call, sorted. An id may occur several times if the file contains several
    /// processes.
    calls: Vec<(u64, usize)>,
    /// Operators in the process of the execution trace, keyed by External id. The map of operators is empty if the
    /// External ids of GPU work do not refer to operators.
    ops: HashMap<u64, usize>,
    /// For each thread in the timeline, its root node.
    thread_roots: Vec<Option<usize>>,
    root: usize,
    /// Start of the first operator and end of the last operator in the execution trace.
    window: (i64, i64),
    /// Whether the execution trace contains every outermost operator of the process.
    is_whole: bool,
}

impl<'a> Finder<'a> {
    fn new(trace: &ExecutionTrace<'_>, kineto: &'a Kineto, pairs: &'a Pairs, nesting: &'a Nesting) -> Self {
        let calls = kineto.calls.iter().enumerate();
        let mut calls: Vec<(u64, usize)> =
            calls.filter_map(|(at, call)| Some((call.correlation?, at))).collect();
        calls.sort_unstable();
        let is_own = |op: usize| pairs.own_threads[kineto.ops[op].thread as usize];
        // Kineto before 2024 writes the correlation id instead of the External id.
        let has_real_ids =
            kineto.work.iter().any(|work| work.external.is_some() && work.external != work.correlation);
        let ops = kineto.ops.iter().enumerate().filter(|(at, _)| has_real_ids && is_own(*at));
        let paired = pairs.op_of_node.iter().flatten().map(|op| &kineto.ops[*op]);
        let window =
            paired.fold((i64::MAX, i64::MIN), |(first, last), op| (first.min(op.start), last.max(op.end)));
        let mut outermost =
            (0..kineto.ops.len()).filter(|op| is_own(*op) && nesting.op_parents[*op].is_none());
        Self {
            kineto,
            pairs,
            nesting,
            calls,
            ops: ops.filter_map(|(at, op)| Some((op.external?, at))).collect(),
            thread_roots: thread_roots(trace, kineto, pairs),
            root: process_root(trace),
            window,
            is_whole: outermost.all(|op| pairs.node_of_op[op].is_some()),
        }
    }

    /// Returns the call that launched the GPU operation, and whether calls of several processes may have launched it.
    fn call(&self, work: usize) -> (Option<usize>, bool) {
        let work = &self.kineto.work[work];
        let Some(id) = work.correlation else { return (None, false) };
        let from = self.calls.partition_point(|(other, _)| *other < id);
        let same = || self.calls[from..].iter().take_while(|(other, _)| *other == id).map(|(_, call)| *call);
        let Some(first) = same().next() else { return (None, false) };
        let process = |call: &usize| self.kineto.threads[self.kineto.calls[*call].thread as usize].0.as_str();
        if same().all(|call| process(&call) == process(&first)) {
            return (Some(first), false);
        }
        // Work begins after its launch call, so the latest call before the work is most likely the launch.
        let before: Vec<usize> = same().filter(|call| self.kineto.calls[*call].start <= work.start).collect();
        let processes: BTreeSet<&str> = before.iter().map(process).collect();
        let last = before.iter().rev().max_by_key(|call| self.kineto.calls[**call].start);
        (Some(last.copied().unwrap_or(first)), processes.len() != 1)
    }

    /// Returns the parent node of a GPU operation. If the parent is not an operator, also returns the reason.
    fn place(&self, work: usize, call: Option<usize>) -> (Option<(usize, Place)>, Option<Unlinked>) {
        let Some(call) = call else {
            let named = self.kineto.work[work].external.and_then(|id| self.ops.get(&id));
            if let Some(node) = named.and_then(|op| self.node_around(*op)) {
                return (Some((node, Place::Operator)), None);
            }
            // If the call that launched the work is missing, the work was launched before the recording began, or the
            // profiler lost the call.
            let is_inside = self.is_whole || self.kineto.work[work].start >= self.window.0;
            return (is_inside.then_some((self.root, Place::Root)), Some(Unlinked::NoCall));
        };
        if !self.pairs.own_threads[self.kineto.calls[call].thread as usize] {
            return (None, None);
        }
        let op = self.nesting.call_ops[call];
        if let Some(node) = op.and_then(|op| self.node_around(op)) {
            return (Some((node, Place::Operator)), None);
        }
        let time = self.kineto.calls[call].start;
        let is_inside = self.is_whole || (self.window.0..=self.window.1).contains(&time);
        if op.is_some() || !is_inside {
            return (None, None);
        }
        let root = self.thread_roots[self.kineto.calls[call].thread as usize].unwrap_or(self.root);
        (Some((root, Place::Root)), Some(Unlinked::InNoOperator))
    }

    /// Returns the node paired with `op`. If `op` is not in the execution trace, returns the node of the innermost
    /// enclosing operator that is in the execution trace.
    fn node_around(&self, op: usize) -> Option<usize> {
        let mut around = Some(op);
        while let Some(op) = around {
            if let Some(node) = self.pairs.node_of_op[op] {
                return Some(node);
            }
            around = self.nesting.op_parents[op];
        }
        None
    }
}

/// Returns the root of the process. The root has neither a parent nor an `rf_id`. A node whose caller was lost has no
/// parent either, but it has an `rf_id`, because it was executed.
fn process_root(trace: &ExecutionTrace<'_>) -> usize {
    let nodes = || trace.nodes.iter();
    let root = nodes().position(|node| node.parent.is_none() && node.rf_id.is_none());
    root.or_else(|| nodes().position(|node| node.parent.is_none())).unwrap_or(0)
}

/// Returns the root node for each thread in the timeline.
fn thread_roots(trace: &ExecutionTrace<'_>, kineto: &Kineto, pairs: &Pairs) -> Vec<Option<usize>> {
    let mut roots = vec![None; kineto.threads.len()];
    for (node, op) in pairs.op_of_node.iter().enumerate() {
        let Some(op) = op else { continue };
        let root = &mut roots[kineto.ops[*op].thread as usize];
        if root.is_none() {
            let (mut below, mut at) = (node, node);
            while let Some(parent) = trace.nodes[at].parent {
                (below, at) = (at, parent);
            }
            // A root node has no `rf_id`, because it was not executed.
            *root = Some(below).filter(|one| trace.nodes[*one].rf_id.is_none());
        }
    }
    roots
}

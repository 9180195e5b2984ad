//! Links operators to the Python functions that called them. Also links backward operators to the forward operators
//! whose gradients they compute.
//!
//! Older profilers do not write slices for Python functions. They list the functions in the operator's argument `Call
//! stack`. The innermost open operator lists the functions that are running. An enclosing operator may list functions
//! that have already returned. Therefore, in the stack, an enclosing operator is placed after those functions that both
//! operators list. The functions that opened a range (`__enter__`, `step`) have also returned, so the functions listed
//! by a range are ignored.
//!
//! Backward operators run on a separate thread, whose stack has no Python functions. On request, their launches are
//! attributed to the stack of the forward operator. The stack is then: forward stack, `[backward]`, backward operator.
//! A backward operator is linked to its forward operator by the trace's flows (`fwdbwd`). Without a flow, it is linked
//! by the sequence number and the id of the forward thread, which the backward operator contains. If several forward
//! operators have the same sequence number, the last one before the backward operator is used, because it created the
//! autograd node. Profilers number threads in different ways. Therefore a thread id is interpreted as the thread whose
//! sequence numbers match best. If two threads match equally well, the id is ignored.

use std::collections::HashMap;

use super::call_records::CallRecords;
use super::op_records::OpRecords;
use super::slices::{FrameClass, NONE, ROOT, Slice, StackTree};
use gpuflame_model::record::IdMap;

/// All operators and their links. See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct OperatorLinks {
    operators: Vec<Operator>,
    /// Python call stacks as lists of labels, outermost first.
    pub(super) python_stacks: Vec<Vec<u32>>,
    /// Whether the innermost function of each Python call stack opens a range.
    pub(super) opens_range: Vec<bool>,
    /// Flows from forward to backward operators, keyed by id. The value contains thread and time of the start and of
    /// the end.
    flows: IdMap<u64, [Option<(u32, i64)>; 2]>,
    /// Index of the forward operator of each operator, or [`NONE`].
    forward_of: Vec<u32>,
    /// Stacks of operators, indexed by operator.
    stacks: Vec<u32>,
    /// Calls inside linked backward operators: index of the call, index of the operator, and the stack that encloses
    /// the operator.
    linked_calls: Vec<(u32, u32, u32)>,
    /// Indexes of calls inside backward operators that could not be linked.
    unlinked_calls: Vec<u32>,
}

/// Maximum number of open slices in a stack that is rebuilt. Without the limit, each operator in deeply nested slices
/// would take time proportional to the number of enclosing slices.
const MAX_REBUILT_SLICES: usize = 1024;

/// Returns the number of functions that two call stacks share, counted from the outermost function.
fn shared_length(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Forward operators as (start, index), keyed by sequence number and then by thread.
type Forward = HashMap<u64, HashMap<u32, Vec<(i64, u32)>>>;

/// An operator and those of its arguments that links need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operator {
    /// Index of the operator's slice. Operators are sorted by this index.
    pub(super) slice: u32,
    pub(super) thread: u32,
    pub(super) start: i64,
    /// Index of the operator's Python call stack, or [`NONE`].
    pub(super) python_stack: u32,
    /// Sequence number that a forward operator and its backward operator share.
    pub(super) sequence: Option<u64>,
    /// Id that the profiler gave to the forward operator's thread; 0 if this operator is not a backward operator.
    pub(super) forward_thread: u64,
    /// Whether the operator belongs to the backward pass, even if it has no forward operator.
    pub(super) is_backward: bool,
}

/// State derived from the operators that enclose an open slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperatorScope {
    /// Index of the Python call stack of the innermost operator that has a call stack.
    python_stack: u32,
    /// Index of the outermost linked backward operator, and the stack that encloses that operator.
    backward: (u32, u32),
    is_backward: bool,
    /// Whether an enclosing operator lists functions that have already returned.
    has_returned: bool,
}

/// An open slice, as needed by [`OperatorLinks::enter_slice`].
pub(super) trait Enclosing {
    fn slice(&self) -> &Slice;
}

impl OperatorScope {
    pub(super) const OUTSIDE: Self =
        Self { python_stack: NONE, backward: (NONE, ROOT), is_backward: false, has_returned: false };
}

impl OperatorLinks {
    /// Adds an operator.
    pub(super) fn add_operator(&mut self, operator: Operator) {
        self.operators.push(operator);
    }

    /// Returns the index of the operator if the slice is an operator with links.
    pub(super) fn find_operator(&self, slice: &Slice) -> Option<u32> {
        if self.operators.is_empty() || slice.class() == FrameClass::Call {
            return None;
        }
        let found = self.operators.binary_search_by_key(&slice.number, |operator| operator.slice);
        found.ok().map(|at| at as u32)
    }

    /// Adds the start or end of a flow from a forward operator to a backward operator.
    pub(super) fn add_flow(&mut self, id: u64, begins: bool, thread: u32, time: i64) {
        self.flows.entry(id).or_default()[usize::from(!begins)] = Some((thread, time));
    }

    /// Computes the scope inside `slice` while the slices `open` are open. `outer` is the scope around the slice, and
    /// `parent` is the stack around the slice. Returns the new scope, and the stack with the Python functions that the
    /// slice's operator lists.
    pub(super) fn enter_slice(
        &self,
        slice: &Slice,
        open: &[impl Enclosing],
        outer: OperatorScope,
        parent: u32,
        tree: &mut StackTree,
    ) -> (OperatorScope, u32) {
        let number = self.find_operator(slice);
        let Some((number, operator)) = number.map(|number| (number, &self.operators[number as usize])) else {
            return (outer, parent);
        };
        let mut scope = outer;
        scope.is_backward |= operator.is_backward;
        if outer.backward.0 == NONE
            && self.forward_of.get(number as usize).is_some_and(|forward_operator| *forward_operator != NONE)
        {
            scope.backward = (number, parent);
        }
        let mut node = parent;
        if let Some(python_stack) = self.python_stacks.get(operator.python_stack as usize) {
            if self.is_range(slice, operator) {
                scope.has_returned = true;
                return (scope, node);
            }
            let around = self.python_stacks.get(outer.python_stack as usize).map_or(&[][..], Vec::as_slice);
            scope.python_stack = operator.python_stack;
            scope.has_returned |= !python_stack.starts_with(around);
            let can_rebuild = scope.backward.0 == NONE && open.len() <= MAX_REBUILT_SLICES;
            if scope.has_returned && can_rebuild {
                return (scope, self.rebuild_path(open, python_stack, tree));
            }
            for &label in &python_stack[shared_length(around, python_stack)..] {
                node = tree.child((node, label, FrameClass::Python));
            }
        }
        (scope, node)
    }

    /// Whether the slice is a range. Python functions opened the range and have then returned.
    fn is_range(&self, slice: &Slice, operator: &Operator) -> bool {
        slice.class() == FrameClass::Range || self.opens_range[operator.python_stack as usize]
    }

    /// Rebuilds the stack from the slices `open` and the Python functions `running`. Each slice is placed after the
    /// functions that were already running when the slice began.
    fn rebuild_path(&self, open: &[impl Enclosing], running: &[u32], tree: &mut StackTree) -> u32 {
        let (mut node, mut drawn) = (ROOT, 0);
        for outer in open.iter().map(Enclosing::slice) {
            let own = self.find_operator(outer).map(|number| self.operators[number as usize].python_stack);
            let own = own.and_then(|stack| self.python_stacks.get(stack as usize));
            let shared = own.map_or(0, |own| shared_length(own, running));
            for &label in running.get(drawn..shared).unwrap_or_default() {
                node = tree.child((node, label, FrameClass::Python));
            }
            drawn = drawn.max(shared);
            node = tree.child((node, outer.label(), outer.class()));
        }
        running[drawn..].iter().fold(node, |node, label| tree.child((node, *label, FrameClass::Python)))
    }

    /// Stores the stack of an operator.
    pub(super) fn note_stack(&mut self, number: u32, stack: u32) {
        if let Some(known) = self.stacks.get_mut(number as usize) {
            *known = stack;
        }
    }

    /// Stores a call made inside `scope`, if the scope contains a backward operator.
    pub(super) fn note_call(&mut self, call: u32, scope: &OperatorScope) {
        match scope.backward {
            (NONE, _) if scope.is_backward => self.unlinked_calls.push(call),
            (NONE, _) => {}
            (operator, below) => self.linked_calls.push((call, operator, below)),
        }
    }

    /// Links all backward operators to their forward operators.
    pub(super) fn link_forward(&mut self) {
        let forward = self.forward_operators();
        let threads = self.forward_threads(&forward);
        let mut forward_of = vec![NONE; self.operators.len()];
        for (operator, forward_operator) in
            self.operators.iter().zip(&mut forward_of).filter(|(one, _)| one.forward_thread > 0)
        {
            let Some(sequence) = operator.sequence else { continue };
            let Some(by_thread) = forward.get(&sequence) else { continue };
            let forward_thread = threads.get(&operator.forward_thread);
            let candidates = match (forward_thread.and_then(|thread| by_thread.get(thread)), by_thread.len())
            {
                (Some(candidates), _) => candidates,
                (None, 1) => by_thread.values().next().expect("there is one"),
                _ => continue,
            };
            let before = candidates.iter().rev().find(|(start, _)| *start < operator.start);
            *forward_operator = before.map_or(NONE, |(_, number)| *number);
        }
        self.link_by_flows(&mut forward_of);
        self.stacks = vec![ROOT; forward_of.len()];
        self.forward_of = forward_of;
    }

    /// Returns the forward operators, keyed by sequence number and thread. Each list is sorted by start.
    fn forward_operators(&self) -> Forward {
        let mut forward = Forward::new();
        for (number, operator) in (0..).zip(&self.operators) {
            if let (Some(sequence), 0) = (operator.sequence, operator.forward_thread) {
                let candidates = forward.entry(sequence).or_default().entry(operator.thread).or_default();
                candidates.push((operator.start, number));
            }
        }
        forward.values_mut().flat_map(HashMap::values_mut).for_each(|candidates| candidates.sort_unstable());
        forward
    }

    /// Returns the thread for each thread id that the profiler used in backward operators. It is the thread with the
    /// most forward operators that match the sequence numbers of backward operators with this id.
    fn forward_threads(&self, forward: &Forward) -> HashMap<u64, u32> {
        let mut votes: HashMap<u64, HashMap<u32, u64>> = HashMap::new();
        for operator in self.operators.iter().filter(|operator| operator.forward_thread > 0) {
            let by_thread = operator.sequence.and_then(|sequence| forward.get(&sequence));
            for &thread in by_thread.into_iter().flat_map(HashMap::keys) {
                *votes.entry(operator.forward_thread).or_default().entry(thread).or_default() += 1;
            }
        }
        let best = |votes: HashMap<u32, u64>| {
            let max_votes = votes.values().copied().max()?;
            let mut best = votes.into_iter().filter(|(_, count)| *count == max_votes);
            let (thread, _) = best.next()?;
            best.next().is_none().then_some(thread)
        };
        votes.into_iter().filter_map(|(number, votes)| Some((number, best(votes)?))).collect()
    }

    fn link_by_flows(&self, forward_of: &mut [u32]) {
        if self.flows.is_empty() {
            return;
        }
        let mut at: HashMap<(u32, i64), Vec<u32>> = HashMap::new();
        for (number, operator) in (0..).zip(&self.operators) {
            at.entry((operator.thread, operator.start)).or_default().push(number);
        }
        for [begin, end] in self.flows.values() {
            let both = begin.and_then(|begin| at.get(&begin)).zip(end.and_then(|end| at.get(&end)));
            let Some((forward, backward)) = both else { continue };
            // If several operators start where the flow starts, the last one created the autograd node. If several
            // operators start where the flow ends, the outermost backward operator computes the gradient.
            let is_backward = |number: &&u32| self.operators[**number as usize].forward_thread > 0;
            let backward = backward.iter().find(is_backward).or(backward.first());
            if let (Some(&forward), Some(&backward)) = (forward.last(), backward) {
                forward_of[backward as usize] = forward;
            }
        }
    }

    /// Changes the stacks of launches in linked backward operators: the stack of the forward operator comes first.
    /// `mark` is the label between the forward and the backward part of the stack.
    pub(super) fn attach_to_forward(&self, mark: u32, calls: &mut CallRecords, tree: &mut StackTree) {
        let mut known: IdMap<(u32, u32, u32), u32> = IdMap::default();
        let mut path = Vec::new();
        for &(call, operator, below) in &self.linked_calls {
            let forward = self.stacks[self.forward_of[operator as usize] as usize];
            let stack = calls.get(call).stack;
            if forward == ROOT {
                continue;
            }
            let moved = *known.entry((stack, forward, below)).or_insert_with(|| {
                tree.path_above(stack, below, &mut path);
                let marked = tree.child((forward, mark, FrameClass::Call));
                path.iter().rev().fold(marked, |node, (label, class)| tree.child((node, *label, *class)))
            });
            calls.set_stack(call, moved);
        }
    }

    /// Returns the GPU time in ns of operations launched by all backward operators, and by linked backward operators.
    pub(super) fn backward_nanos(&self, ops: &OpRecords) -> (u64, u64) {
        let linked_calls: IdMap<u32, ()> = self.linked_calls.iter().map(|(call, ..)| (*call, ())).collect();
        let unlinked_calls: IdMap<u32, ()> = self.unlinked_calls.iter().map(|call| (*call, ())).collect();
        let mut sums = (0, 0);
        for op in ops.iter() {
            let Some(call) = op.call() else { continue };
            let nanos = op.nanos();
            let is_linked = linked_calls.contains_key(&call);
            if is_linked || unlinked_calls.contains_key(&call) {
                sums.0 += nanos;
                sums.1 += if is_linked { nanos } else { 0 };
            }
        }
        sums
    }
}

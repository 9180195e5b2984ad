//! Links each operator to the Python functions that called the operator. Also links each backward operator to the
//! forward operator whose gradient it computes.
//!
//! Older profilers do not write slices for the calls of Python functions. Instead, the argument `Call stack` of each
//! operator contains the list of the functions that called the operator. The list in the innermost open operator
//! contains the functions that are running. The list in an enclosing operator may contain functions that have already
//! returned. So in a stack, an enclosing operator is placed after those functions that are in the lists of both
//! operators. The list in a range is ignored, because it contains the functions that opened the range (`__enter__`,
//! `step`), which have already returned.
//!
//! Backward operators run on a separate thread, and the stack of this thread has no Python functions. On request, the
//! launches of a backward operator are attributed to the stack of the forward operator. The stack then consists of the
//! forward stack, `[backward]`, and the backward operator. A backward operator is linked to its forward operator by the
//! flows in the trace (`fwdbwd`). Without a flow, it is linked by its sequence number and by the id of the forward
//! thread, which are arguments of the backward operator. If several forward operators have this sequence number, the
//! latest one before the backward operator is used, because this operator created the autograd node. The thread ids in
//! backward operators are assigned by the profiler, and profilers assign them in different ways. So a thread id is
//! assumed to be the id of the thread whose sequence numbers match best. If two threads match equally well, the thread
//! id is ignored.

use std::collections::HashMap;

use super::call_records::CallRecords;
use super::op_records::OpRecords;
use super::slices::{FrameClass, NONE, ROOT, Slice, StackTree};
use gpuflame_model::record::IdMap;

/// All operators of a trace and their links. See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct OperatorLinks {
    operators: Vec<Operator>,
    /// Python call stacks. Distinct Python call stacks: lists of labels, with the outermost function first.
    pub(super) python_stacks: Vec<Vec<u32>>,
    /// Whether the innermost function opens a range, for each Python call stack.
    pub(super) opens_range: Vec<bool>,
    /// Flows from forward operators to backward operators, keyed by the flow's id. Each value contains the thread and
    /// time of the flow's start, and the thread and time of the flow's end.
    flows: IdMap<u64, [Option<(u32, i64)>; 2]>,
    /// Index of the forward operator for each operator, or [`NONE`].
    forward_of: Vec<u32>,
    /// Stack of each operator. The index of an entry is the operator's index.
    stacks: Vec<u32>,
    /// Calls inside backward operators that are linked to a forward operator. Each entry contains the index of the
    /// call, the index of the backward operator, and the stack that encloses the backward operator.
    linked_calls: Vec<(u32, u32, u32)>,
    /// Indexes of calls inside backward operators that could not be linked.
    unlinked_calls: Vec<u32>,
}

/// Maximum number of open slices for which a stack is rebuilt. The limit bounds the time per operator, which would
/// otherwise be proportional to the nesting depth.
const MAX_REBUILT_SLICES: usize = 1024;

/// Returns the number of functions that two call stacks share, counted from the outermost function.
fn shared_length(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Start and index of forward operators, keyed first by sequence number and then by thread.
type Forward = HashMap<u64, HashMap<u32, Vec<(i64, u32)>>>;

/// An operator, with the arguments that are needed to link the operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operator {
    /// Index of the slice that represents the operator. Operators are sorted by the index of their slice.
    pub(super) slice: u32,
    pub(super) thread: u32,
    pub(super) start: i64,
    /// Index of the operator's Python call stack, or [`NONE`].
    pub(super) python_stack: u32,
    /// Sequence number that a forward operator and its backward operator share.
    pub(super) sequence: Option<u64>,
    /// Id that the profiler assigned to the thread of the forward operator; 0 if this operator is not a backward
    /// operator.
    pub(super) forward_thread: u64,
    /// Whether the operator belongs to the backward pass. An operator may belong to the backward pass even if it has no
    /// forward operator.
    pub(super) is_backward: bool,
}

/// Links that the operators around an open slice determine.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperatorScope {
    /// Index of the Python call stack of the innermost operator that has a call stack.
    python_stack: u32,
    /// Index of the outermost backward operator that is linked, and the stack that encloses this operator.
    backward: (u32, u32),
    is_backward: bool,
    /// Whether the list of an enclosing operator contains functions that have already returned.
    has_returned: bool,
}

/// An open slice, with the properties that [`OperatorLinks::enter_slice`] needs.
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

    /// If the slice is an operator that was added, returns the operator's index.
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

    /// Computes the links that apply inside `slice`, at a time when the slices `open` are open. `outer` contains the
    /// links that apply around the slice, and `parent` is the stack around the slice. Returns the new links, and the
    /// stack with the Python functions in the list of the slice's operator.
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

    /// Whether the slice is a range, which may have a list of Python functions. The functions in such a list opened the
    /// range, and have returned since then.
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

    /// Stores the stack of the operator with this index.
    pub(super) fn note_stack(&mut self, number: u32, stack: u32) {
        if let Some(known) = self.stacks.get_mut(number as usize) {
            *known = stack;
        }
    }

    /// Stores a call that was made inside a backward operator, if `scope` contains a backward operator.
    pub(super) fn note_call(&mut self, call: u32, scope: &OperatorScope) {
        match scope.backward {
            (NONE, _) if scope.is_backward => self.unlinked_calls.push(call),
            (NONE, _) => {}
            (operator, below) => self.linked_calls.push((call, operator, below)),
        }
    }

    /// Links each backward operator to its forward operator, if possible.
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

    /// Returns the forward operators, keyed by sequence number and by thread. Each list in the result is sorted by
    /// start time.
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

    /// Returns the thread that belongs to each thread id in backward operators. This is the thread whose forward
    /// operators share the most sequence numbers with the backward operators that contain the id.
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
            // If several operators start at the time at which the flow starts, the last of these operators created the
            // autograd node. If several operators start at the time at which the flow ends, the outermost backward
            // operator computes the gradient.
            let is_backward = |number: &&u32| self.operators[**number as usize].forward_thread > 0;
            let backward = backward.iter().find(is_backward).or(backward.first());
            if let (Some(&forward), Some(&backward)) = (forward.last(), backward) {
                forward_of[backward as usize] = forward;
            }
        }
    }

    /// Changes the stacks of launches in linked backward operators, so that each begins with the stack of the forward
    /// operator. `mark` is the label between the forward and the backward part of the stack.
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

    /// Returns the GPU time in ns of operations that backward operators launched. The first value is for all backward
    /// operators, and the second value only for linked backward operators.
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

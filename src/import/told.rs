//! What a trace tells of an operator beside its times: the Python functions that called it, and which operator of the
//! forward pass it is the backward of.
//!
//! Older profilers write the Python functions into the operator's arguments (`Call stack`) instead of slices of their
//! own. They are shown below the operator, as far as they are not those of the operator around it.
//!
//! Backward operators run on a thread of their own, without any Python. On request what they launch hangs under the stack
//! of the operator whose gradient they compute: forward stack, `[backward]`, backward operator. The two are tied by flows
//! of the trace (`fwdbwd`), else by sequence number on the thread that the backward operator names: of several operators
//! with a number the last one made the node. Profilers number threads in their own way, so that which thread is meant is
//! the one whose numbers fit best; if two fit alike, nothing is tied.

use std::collections::HashMap;

use super::slices::{Interval, NOBODY, ROOT, Rank, StackTree};
use super::work::{CallRecord, OpRecord};
use crate::record::IdMap;

/// What is known of all operators. See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Told {
    operators: Vec<Operator>,
    /// Lists of labels of Python functions, outermost first.
    pub(super) lists: Vec<Vec<u32>>,
    /// Of each flow where it begins and where it ends: thread and time.
    flows: IdMap<u64, [Option<(u32, i64)>; 2]>,
    /// Of each operator the one of the forward pass, or [`NOBODY`].
    ties: Vec<u32>,
    /// Of each operator its stack.
    stacks: Vec<u32>,
    /// Calls in tied backward operators: the call, the operator, and the stack below that.
    tied: Vec<(u32, u32, u32)>,
    /// Calls in backward operators that could not be tied.
    untied: Vec<u32>,
}

/// Operators of the forward pass, by sequence number and thread: when each began, and its number.
type Forward = HashMap<u64, HashMap<u32, Vec<(i64, u32)>>>;

/// What is known of an operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operator {
    /// The number of its slice; operators stand in this order.
    pub(super) slice: u32,
    pub(super) thread: u32,
    pub(super) start: i64,
    /// The list of its Python functions, or [`NOBODY`].
    pub(super) list: u32,
    /// The number that it shares with its partner in the other pass.
    pub(super) sequence: Option<u64>,
    /// The thread of the forward pass, as the profiler numbers it; 0: it is no backward operator.
    pub(super) forward_thread: u64,
    /// Whether it belongs to the backward pass, with a partner or without.
    pub(super) is_backward: bool,
}

/// What of this a slice that is open stands in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Within {
    /// The Python functions shown last.
    list: u32,
    /// The outermost backward operator that is tied, and the stack below it.
    backward: (u32, u32),
    is_backward: bool,
}

impl Within {
    pub(super) const NOTHING: Self = Self { list: NOBODY, backward: (NOBODY, ROOT), is_backward: false };
}

impl Told {
    /// Adds an operator.
    pub(super) fn add(&mut self, operator: Operator) {
        self.operators.push(operator);
    }

    /// What is told of a slice, by its number.
    pub(super) fn of(&self, slice: &Interval) -> Option<u32> {
        if self.operators.is_empty() || slice.rank() == Rank::Call {
            return None;
        }
        let found = self.operators.binary_search_by_key(&slice.number, |operator| operator.slice);
        found.ok().map(|at| at as u32)
    }

    /// A flow from the forward pass to the backward one begins or ends.
    pub(super) fn flow(&mut self, id: u64, begins: bool, thread: u32, time: i64) {
        self.flows.entry(id).or_default()[usize::from(!begins)] = Some((thread, time));
    }

    /// What a slice of operator `number` upon `parent` stands in, and the stack of the Python functions to show below.
    pub(super) fn enter(
        &self,
        number: Option<u32>,
        outer: Within,
        parent: u32,
        tree: &mut StackTree,
    ) -> (Within, u32) {
        let Some((number, operator)) = number.map(|number| (number, &self.operators[number as usize])) else {
            return (outer, parent);
        };
        let mut within = outer;
        within.is_backward |= operator.is_backward;
        if outer.backward.0 == NOBODY && self.ties.get(number as usize).is_some_and(|tie| *tie != NOBODY) {
            within.backward = (number, parent);
        }
        let mut node = parent;
        if let Some(list) = self.lists.get(operator.list as usize) {
            let around = self.lists.get(outer.list as usize).map_or(&[][..], Vec::as_slice);
            let shared = around.iter().zip(list).take_while(|(a, b)| a == b).count();
            for &label in &list[shared..] {
                node = tree.child((node, label, Rank::Python));
            }
            within.list = operator.list;
        }
        (within, node)
    }

    /// The stack of an operator.
    pub(super) fn opened(&mut self, number: u32, stack: u32) {
        if let Some(known) = self.stacks.get_mut(number as usize) {
            *known = stack;
        }
    }

    /// A call was made.
    pub(super) fn called(&mut self, call: u32, within: &Within) {
        match within.backward {
            (NOBODY, _) if within.is_backward => self.untied.push(call),
            (NOBODY, _) => {}
            (operator, below) => self.tied.push((call, operator, below)),
        }
    }

    /// Finds the forward operators of all backward ones.
    pub(super) fn tie(&mut self) {
        let forward = self.forward();
        let threads = self.forward_threads(&forward);
        let mut ties = vec![NOBODY; self.operators.len()];
        for (operator, tie) in self.operators.iter().zip(&mut ties).filter(|(one, _)| one.forward_thread > 0)
        {
            let Some(sequence) = operator.sequence else { continue };
            let Some(by_thread) = forward.get(&sequence) else { continue };
            let meant = threads.get(&operator.forward_thread);
            let candidates = match (meant.and_then(|thread| by_thread.get(thread)), by_thread.len()) {
                (Some(candidates), _) => candidates,
                (None, 1) => by_thread.values().next().expect("there is one"),
                _ => continue,
            };
            let before = candidates.iter().rev().find(|(start, _)| *start < operator.start);
            *tie = before.map_or(NOBODY, |(_, number)| *number);
        }
        self.tie_by_flows(&mut ties);
        self.stacks = vec![ROOT; ties.len()];
        self.ties = ties;
    }

    /// Operators of the forward pass by sequence number and thread, in the order of their starts.
    fn forward(&self) -> Forward {
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

    /// Which thread is meant by each number of the profiler's: that which has most of the sequence numbers.
    fn forward_threads(&self, forward: &Forward) -> HashMap<u64, u32> {
        let mut votes: HashMap<u64, HashMap<u32, u64>> = HashMap::new();
        for operator in self.operators.iter().filter(|operator| operator.forward_thread > 0) {
            let by_thread = operator.sequence.and_then(|sequence| forward.get(&sequence));
            for &thread in by_thread.into_iter().flat_map(HashMap::keys) {
                *votes.entry(operator.forward_thread).or_default().entry(thread).or_default() += 1;
            }
        }
        let best = |votes: HashMap<u32, u64>| {
            let most = votes.values().copied().max()?;
            let mut best = votes.into_iter().filter(|(_, count)| *count == most);
            let (thread, _) = best.next()?;
            best.next().is_none().then_some(thread)
        };
        votes.into_iter().filter_map(|(number, votes)| Some((number, best(votes)?))).collect()
    }

    fn tie_by_flows(&self, ties: &mut [u32]) {
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
            // The last that begins there made the node; of backward operators the outer one computes its gradient.
            let is_backward = |number: &&u32| self.operators[**number as usize].forward_thread > 0;
            let backward = backward.iter().find(is_backward).or(backward.first());
            if let (Some(&forward), Some(&backward)) = (forward.last(), backward) {
                ties[backward as usize] = forward;
            }
        }
    }

    /// Hangs what tied backward operators launched under the forward ones; `mark` is the label between the two.
    pub(super) fn hang(&self, mark: u32, calls: &mut [CallRecord], tree: &mut StackTree) {
        let mut known: IdMap<(u32, u32, u32), u32> = IdMap::default();
        let mut path = Vec::new();
        for &(call, operator, below) in &self.tied {
            let forward = self.stacks[self.ties[operator as usize] as usize];
            let stack = calls[call as usize].stack;
            if forward == ROOT {
                continue;
            }
            calls[call as usize].stack = *known.entry((stack, forward, below)).or_insert_with(|| {
                tree.path_above(stack, below, &mut path);
                let marked = tree.child((forward, mark, Rank::Call));
                path.iter().rev().fold(marked, |node, (label, rank)| tree.child((node, *label, *rank)))
            });
        }
    }

    /// The GPU time that backward operators launched, and that of the tied ones, ns.
    pub(super) fn nanos(&self, ops: &[OpRecord]) -> (u64, u64) {
        let tied: IdMap<u32, ()> = self.tied.iter().map(|(call, ..)| (*call, ())).collect();
        let untied: IdMap<u32, ()> = self.untied.iter().map(|call| (*call, ())).collect();
        let mut sums = (0, 0);
        for op in ops {
            let Some(call) = op.call else { continue };
            let nanos = op.end.saturating_sub(op.start).max(0) as u64;
            let is_tied = tied.contains_key(&call);
            if is_tied || untied.contains_key(&call) {
                sums.0 += nanos;
                sums.1 += if is_tied { nanos } else { 0 };
            }
        }
        sums
    }
}

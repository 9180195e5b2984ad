//! For each operator or call, finds the operator that encloses it on the same thread. Also computes the time that each
//! operator spent outside of the operators that it called.

use std::cmp::Reverse;
use std::collections::HashMap;

use gpuflame_traces::execution::Kineto;

/// Tolerance in ns for comparisons of times that are truncated to whole microseconds.
const ROUNDING_NS: i64 = 1000;

/// Nesting of operators and calls, derived from their start and end times.
#[derive(Debug, Default)]
pub(super) struct Nesting {
    /// For each operator, the innermost operator that encloses it, or `None`.
    pub(super) op_parents: Vec<Option<usize>>,
    /// For each call, the innermost operator that encloses it, or `None`.
    pub(super) call_ops: Vec<Option<usize>>,
    /// For each operator, the time in ns that it spent outside of the operators that it called.
    pub(super) exclusive: Vec<u64>,
    /// Operators of each thread, sorted by start. If an operator encloses other operators, it comes before them.
    pub(super) threads: Vec<Vec<usize>>,
}

/// An operator or a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Slice {
    Op(usize),
    Call(usize),
}

impl Nesting {
    pub(super) fn of(kineto: &Kineto) -> Self {
        let mut nesting = Self {
            op_parents: vec![None; kineto.ops.len()],
            call_ops: vec![None; kineto.calls.len()],
            exclusive: kineto.ops.iter().map(|op| op.end.abs_diff(op.start)).collect(),
            threads: vec![Vec::new(); kineto.threads.len()],
        };
        let slack = if kineto.has_whole_micros() { ROUNDING_NS } else { 0 };
        for slices in slices_by_thread(kineto) {
            nesting.add_thread(kineto, &slices, slack);
        }
        nesting.trust_external_ids(kineto, slack);
        nesting
    }

    fn add_thread(&mut self, kineto: &Kineto, slices: &[Slice], slack: i64) {
        let mut open: Vec<usize> = Vec::new();
        for slice in slices {
            let (start, end) = times(kineto, *slice);
            // A slice of zero duration at the end of an operator counts as inside the operator.
            let is_over = |op: usize| {
                let last = kineto.ops[op].end;
                last < start || (last == start && end > start)
            };
            while open.last().is_some_and(|op| is_over(*op)) {
                open.pop();
            }
            match *slice {
                Slice::Op(op) => {
                    self.op_parents[op] = open.last().copied();
                    if let Some(&parent) = open.last() {
                        let shared = kineto.ops[parent].end.min(end).abs_diff(start);
                        self.exclusive[parent] = self.exclusive[parent].saturating_sub(shared);
                    }
                    self.threads[kineto.ops[op].thread as usize].push(op);
                    open.push(op);
                }
                Slice::Call(call) => {
                    let encloses = |op: &&usize| kineto.ops[**op].end.saturating_add(slack) >= end;
                    self.call_ops[call] = open.iter().rev().find(encloses).or(open.last()).copied();
                }
            }
        }
    }

    /// For each call, replaces the enclosing operator by the operator with the call's External id, if this operator was
    /// open at the time of the call. If one operator ends and another operator starts in the same microsecond, the
    /// times alone could give the wrong operator for a call.
    fn trust_external_ids(&mut self, kineto: &Kineto, slack: i64) {
        // Kineto before 2024 writes the correlation id in the External id field of a call.
        if kineto.calls.iter().all(|call| call.external.is_none() || call.external == call.correlation) {
            return;
        }
        // Each process assigns its own External ids, so the ids are unique only among the threads of a process.
        let ops = kineto.ops.iter().enumerate();
        let ops: HashMap<(u32, u64), usize> =
            ops.filter_map(|(at, op)| Some(((op.thread, op.external?), at))).collect();
        for (at, call) in kineto.calls.iter().enumerate() {
            let Some(&named) = call.external.and_then(|id| ops.get(&(call.thread, id))) else { continue };
            let op = &kineto.ops[named];
            let is_open =
                op.start.saturating_sub(slack) <= call.start && call.start <= op.end.saturating_add(slack);
            if is_open {
                self.call_ops[at] = Some(named);
            }
        }
    }
}

fn times(kineto: &Kineto, slice: Slice) -> (i64, i64) {
    match slice {
        Slice::Op(at) => (kineto.ops[at].start, kineto.ops[at].end),
        Slice::Call(at) => (kineto.calls[at].start, kineto.calls[at].end),
    }
}

/// Returns the slices of each thread, sorted by start. If several slices start at the same time, the longest slice
/// comes first, because it encloses the other slices. If an operator and a call start at the same time, the operator
/// comes first.
fn slices_by_thread(kineto: &Kineto) -> Vec<Vec<Slice>> {
    let mut threads = vec![Vec::new(); kineto.threads.len()];
    kineto.ops.iter().enumerate().for_each(|(at, op)| threads[op.thread as usize].push(Slice::Op(at)));
    kineto
        .calls
        .iter()
        .enumerate()
        .for_each(|(at, call)| threads[call.thread as usize].push(Slice::Call(at)));
    // External ids and Record function ids are assigned in the order in which operators begin. So a caller has a
    // smaller id than the operators that it called.
    let begun = |slice: Slice| match slice {
        Slice::Op(at) => (kineto.ops[at].external.unwrap_or(0), kineto.ops[at].record_function.unwrap_or(0)),
        Slice::Call(_) => (u64::MAX, u64::MAX),
    };
    for slices in &mut threads {
        slices.sort_by_key(|slice| {
            let (start, end) = times(kineto, *slice);
            let is_call = matches!(slice, Slice::Call(_));
            (start, is_call, Reverse(end), begun(*slice), *slice)
        });
    }
    threads
}

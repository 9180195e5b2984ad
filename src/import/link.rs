//! Which call launched which operation: by correlation id, within a process where the trace says which.
//! [`Linked`] tells how far that went, for the user as well.

use std::collections::BTreeSet;

use super::Seen;
use super::capture::Tied;
use super::work::{CallRecord, OpRecord};
use crate::record::IdMap;

/// What could be linked, and what could not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Linked {
    /// What was seen while reading.
    pub seen: Seen,
    /// GPU operations.
    pub ops: u64,
    /// Of those, with a launch.
    pub linked: u64,
    /// Of those without one, launched before the trace began.
    pub before: u64,
    /// Nanoseconds of all operations.
    pub nanos: u64,
    /// Nanoseconds of those with a launch.
    pub linked_nanos: u64,
    /// Launches with more than one operation (graphs).
    pub shared: u64,
    /// The most operations of one launch.
    pub most: u64,
    /// Operations that begin before their launch does.
    pub early: u64,
    /// Launches without an operation.
    pub pending: u64,
    /// Records of waits for an event, a stream or a device.
    pub syncs: u64,
    /// Steps of the profiler, or of the program as the trace has them.
    pub steps: u64,
    /// Calls that wait, or make a stream wait.
    pub waits: u64,
    /// Kernels that the trace calls parts of collectives, by name.
    pub collectives: BTreeSet<String>,
    /// When steps began and ended, on the clock of the rows; one that several threads have, once.
    pub step_times: Vec<(u64, u64)>,
    /// When the last of several steps began, on the clock of the rows.
    pub last_step: Option<i64>,
    /// Nanoseconds of what backward operators launched, and of them those that hang under a forward operator; only where
    /// that was asked for.
    pub backward: Option<(u64, u64)>,
    /// How much of what graphs launched hangs under the stacks of other files that captured them; only where such are given.
    pub captured: Option<Tied>,
    /// Categories that nobody knows here, with the number of their events, the most frequent first.
    pub unknown: Vec<(String, u64)>,
    /// What was added to all times, so that none is below 1.
    pub offset: i64,
    /// The first id of a call, and the start of the first operation with a launch.
    pub(super) first: (u64, i64),
}

impl Linked {
    /// Whether `op` was launched before the trace began, if it has no call: its id is smaller than that of
    /// any call, or it began before anything that was launched in the trace.
    pub(super) fn launched_before(&self, op: &OpRecord) -> bool {
        let (first_id, first_start) = self.first;
        (op.correlation != 0 && op.correlation < first_id) || op.start < first_start
    }
}

/// Links all operations, and counts; `processes` are those of the threads.
pub(super) fn all(ops: &mut [OpRecord], calls: &mut [CallRecord], processes: &[u32]) -> Linked {
    let index = Index::new(calls, processes);
    for op in ops.iter_mut() {
        op.call = if op.correlation == 0 { None } else { index.find(calls, op) };
    }
    for op in ops.iter() {
        if let Some(call) = op.call {
            calls[call as usize].ops += 1;
        }
    }
    count(ops, calls)
}

fn count(ops: &[OpRecord], calls: &[CallRecord]) -> Linked {
    let first_id = calls.iter().map(|call| call.correlation).filter(|&id| id != 0).min();
    let first_start = ops.iter().filter(|op| op.call.is_some()).map(|op| op.start).min();
    let mut linked = Linked {
        ops: ops.len() as u64,
        first: (first_id.unwrap_or(0), first_start.unwrap_or(i64::MIN)),
        shared: calls.iter().filter(|call| call.ops > 1).count() as u64,
        most: calls.iter().map(|call| u64::from(call.ops)).max().unwrap_or(0),
        ..Linked::default()
    };
    for op in ops {
        let nanos = op.end.saturating_sub(op.start).max(0) as u64;
        linked.nanos = linked.nanos.saturating_add(nanos);
        match op.call {
            Some(call) => {
                linked.linked += 1;
                linked.linked_nanos = linked.linked_nanos.saturating_add(nanos);
                linked.early += u64::from(op.start < calls[call as usize].start);
            }
            None => linked.before += u64::from(linked.launched_before(op)),
        }
    }
    linked
}

/// Calls by correlation id: their positions, in the order of ids and then of the file. A map would take eight times the
/// memory, at the moment when most is held.
struct Index<'a> {
    sorted: Vec<u32>,
    /// The process of each thread.
    of_thread: &'a [u32],
    /// The processes that made calls.
    processes: IdMap<u32, ()>,
}

impl<'a> Index<'a> {
    fn new(calls: &[CallRecord], of_thread: &'a [u32]) -> Self {
        let processes = calls.iter().map(|call| (of_thread[call.thread as usize], ())).collect();
        let with_id = (0..).zip(calls).filter(|(_, call)| call.correlation != 0);
        let mut sorted: Vec<u32> = with_id.map(|(at, _)| at).collect();
        sorted.sort_unstable_by_key(|&at| (calls[at as usize].correlation, at));
        Self { sorted, of_thread, processes }
    }

    /// The call with the operation's id: in its own process, if the trace has calls of that. Of several, the
    /// last that began before the operation did.
    fn find(&self, calls: &[CallRecord], op: &OpRecord) -> Option<u32> {
        let in_process = op.process != 0 && self.processes.contains_key(&op.process);
        let id = |at: &u32| calls[*at as usize].correlation;
        let first = self.sorted.partition_point(|at| id(at) < op.correlation);
        let same = self.sorted[first..].iter().take_while(|at| id(at) == op.correlation);
        let mut best: Option<u32> = None;
        for &at in same {
            let call = &calls[at as usize];
            let fits = !in_process || self.of_thread[call.thread as usize] == op.process;
            if fits && best.is_none_or(|best| rank(call, op) >= rank(&calls[best as usize], op)) {
                best = Some(at);
            }
        }
        best
    }
}

/// How well a call fits.
fn rank(call: &CallRecord, op: &OpRecord) -> (bool, i64) {
    let began_before = call.start <= op.start;
    (began_before, if began_before { call.start } else { call.start.saturating_neg() })
}

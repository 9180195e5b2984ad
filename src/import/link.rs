//! Which call launched which operation: by correlation id, within a process where the trace says which.

use super::rows::Linked;
use crate::record::{Detail, IdMap};

/// A GPU operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpRecord {
    pub(super) start: i64,
    pub(super) end: i64,
    /// 0 where it has none.
    pub(super) correlation: u64,
    /// 0 where the trace does not say.
    pub(super) process: u32,
    /// The call that launched it.
    pub(super) call: Option<u32>,
    pub(super) device: u32,
    pub(super) context: u32,
    pub(super) stream: u32,
    pub(super) graph: u32,
    pub(super) graph_node: u64,
    pub(super) detail: Detail,
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallRecord {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) correlation: u64,
    pub(super) process: u32,
    pub(super) thread: u32,
    /// The stack it ends, known later.
    pub(super) stack: u32,
    /// Operations it launched.
    pub(super) ops: u32,
    /// Whether it launches whenever it is made.
    pub(super) launches: bool,
}

impl CallRecord {
    /// Whether it becomes a row: calls that launch nothing are only frames of others.
    pub(super) fn is_shown(&self) -> bool {
        self.ops > 0 || self.launches
    }
}

impl OpRecord {
    /// Whether it was launched before the trace began, if it has no call: its id is smaller than that of
    /// any call, or it began before anything that was launched in the trace.
    pub(super) fn before(&self, linked: &Linked) -> bool {
        let (first_id, first_start) = linked.first;
        (self.correlation != 0 && self.correlation < first_id) || self.start < first_start
    }
}

/// Links all operations, and counts.
pub(super) fn all(ops: &mut [OpRecord], calls: &mut [CallRecord]) -> Linked {
    let index = Index::new(calls);
    for op in ops.iter_mut() {
        op.call = index.find(calls, op);
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
            None => linked.before += u64::from(op.before(&linked)),
        }
    }
    linked
}

/// Calls by correlation id; those with the same id in a chain.
struct Index {
    first: IdMap<u64, u32>,
    next: Vec<u32>,
    /// The processes that made calls.
    processes: IdMap<u32, ()>,
}

const NONE: u32 = u32::MAX;

impl Index {
    fn new(calls: &[CallRecord]) -> Self {
        let processes = calls.iter().map(|call| (call.process, ())).collect();
        let mut index = Self { first: IdMap::default(), next: vec![NONE; calls.len()], processes };
        for (at, call) in (0..).zip(calls) {
            if call.correlation != 0
                && let Some(before) = index.first.insert(call.correlation, at)
            {
                index.next[at as usize] = before;
            }
        }
        index
    }

    /// The call with the operation's id: in its own process, if the trace has calls of that. Of several, the
    /// last that began before the operation did.
    fn find(&self, calls: &[CallRecord], op: &OpRecord) -> Option<u32> {
        let in_process = op.process != 0 && self.processes.contains_key(&op.process);
        let mut at = *self.first.get(&op.correlation).filter(|_| op.correlation != 0)?;
        let mut best: Option<u32> = None;
        while at != NONE {
            let call = &calls[at as usize];
            let fits = !in_process || call.process == op.process;
            if fits && best.is_none_or(|best| rank(call, op) > rank(&calls[best as usize], op)) {
                best = Some(at);
            }
            at = self.next[at as usize];
        }
        best
    }
}

/// How well a call fits.
fn rank(call: &CallRecord, op: &OpRecord) -> (bool, i64) {
    let began_before = call.start <= op.start;
    (began_before, if began_before { call.start } else { call.start.saturating_neg() })
}

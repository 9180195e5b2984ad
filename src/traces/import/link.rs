//! Links each operation to the call that launched it, by correlation id, and within a process if the trace gives
//! processes. [`LinkReport`] counts the results; users see these numbers as well.

use std::collections::{BTreeMap, BTreeSet};

use super::ReadCounts;
use super::graph_captures::CaptureCoverage;
use super::work::{CallRecord, OpRecord};
use gpuflame_model::record::IdMap;

/// Counts of linked and unlinked operations, and facts about the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkReport {
    /// Counts gathered while reading.
    pub counts: ReadCounts,
    /// Number of GPU operations.
    pub ops: u64,
    /// Number of events of CPU threads: calls, operators, ranges and Python functions.
    pub cpu_events: u64,
    /// Operations with a launch.
    pub linked_ops: u64,
    /// Operations without a launch that were launched before the trace began.
    pub launched_before_trace: u64,
    /// GPU time of all operations, in ns.
    pub gpu_ns: u64,
    /// GPU time of operations with a launch, in ns.
    pub linked_gpu_ns: u64,
    /// Launches with more than one operation (graphs).
    pub multi_op_launches: u64,
    /// Maximum number of operations of one launch.
    pub max_ops_per_launch: u64,
    /// Operations that start before their launch.
    pub started_before_launch: u64,
    /// Launches without an operation.
    pub launches_without_op: u64,
    /// Operations without a launch whose trace does not give their correlation id.
    pub ops_without_id: u64,
    /// Operations whose trace does not give their stream.
    pub ops_without_stream: u64,
    /// Records of waits for an event, a stream or a device.
    pub sync_records: u64,
    /// Calls that wait, or that make a stream wait.
    pub wait_calls: u64,
    /// Kernels that the trace marks as parts of collectives, by name.
    pub collectives: BTreeSet<String>,
    /// Start of the last step on the clock of the rows, if there are several steps.
    pub last_step: Option<i64>,
    /// GPU time launched by backward operators, and the part of that time that is attributed to forward operators, in
    /// ns. Present only if this attribution was requested.
    pub backward_ns: Option<(u64, u64)>,
    /// Share of the graphs' GPU time that is attributed to stacks of capture traces. Present only if capture traces
    /// were given.
    pub capture_coverage: Option<CaptureCoverage>,
    /// Unknown categories with their number of events, the most frequent category first.
    pub unknown_categories: Vec<(String, u64)>,
    /// Offset added to all times, so that no time is below 1.
    pub offset: i64,
    /// Smallest correlation id of a call, and the earliest start of an operation with a launch, by process, and under 0
    /// for all processes.
    pub(super) first_linked: BTreeMap<u32, (u64, i64)>,
}

impl LinkReport {
    /// Whether `op`, which has no call, was launched before the trace began. That is so if its id is smaller than the
    /// ids of all calls, or if it starts before every operation that was launched within the trace. Nothing is known
    /// about an operation without an id.
    pub(super) fn launched_before(&self, op: &OpRecord) -> bool {
        let first = self.first_linked.get(&op.process).or_else(|| self.first_linked.get(&0));
        let Some(&(first_id, first_start)) = first else { return false };
        op.correlation != 0 && (op.correlation < first_id || op.start < first_start)
    }
}

/// Links all operations to calls, and counts the links. `processes` is indexed by thread.
pub(super) fn link_operations(
    ops: &mut [OpRecord],
    calls: &mut [CallRecord],
    processes: &[u32],
) -> LinkReport {
    let index = CallIndex::new(calls, processes);
    for op in ops.iter_mut() {
        op.call = if op.correlation == 0 { None } else { index.find_call(calls, op) };
    }
    for op in ops.iter() {
        if let Some(call) = op.call {
            calls[call as usize].ops += 1;
        }
    }
    count_links(ops, calls, processes)
}

fn count_links(ops: &[OpRecord], calls: &[CallRecord], processes: &[u32]) -> LinkReport {
    let mut first_linked: BTreeMap<u32, (u64, i64)> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.correlation != 0) {
        for process in [0, processes[call.thread as usize]] {
            let first = first_linked.entry(process).or_insert((u64::MAX, i64::MIN));
            first.0 = first.0.min(call.correlation);
        }
    }
    for (op, call) in ops.iter().filter_map(|op| Some((op, op.call?))) {
        for process in [0, processes[calls[call as usize].thread as usize]] {
            if let Some(first) = first_linked.get_mut(&process) {
                first.1 = if first.1 == i64::MIN { op.start } else { first.1.min(op.start) };
            }
        }
    }
    let mut linked = LinkReport {
        ops: ops.len() as u64,
        first_linked,
        multi_op_launches: calls.iter().filter(|call| call.ops > 1).count() as u64,
        max_ops_per_launch: calls.iter().map(|call| u64::from(call.ops)).max().unwrap_or(0),
        ..LinkReport::default()
    };
    for op in ops {
        let nanos = op.end.saturating_sub(op.start).max(0) as u64;
        linked.gpu_ns = linked.gpu_ns.saturating_add(nanos);
        match op.call {
            Some(call) => {
                linked.linked_ops += 1;
                linked.linked_gpu_ns = linked.linked_gpu_ns.saturating_add(nanos);
                linked.started_before_launch += u64::from(op.start < calls[call as usize].start);
            }
            None => {
                linked.launched_before_trace += u64::from(linked.launched_before(op));
                linked.ops_without_id += u64::from(op.correlation == 0);
            }
        }
    }
    linked
}

/// Indices of calls, sorted by correlation id and then file order. A hash map would take eight times the memory, at
/// the time when memory use is at its peak.
struct CallIndex<'a> {
    sorted: Vec<u32>,
    /// Processes, indexed by thread.
    of_thread: &'a [u32],
    /// Processes that made calls.
    processes: IdMap<u32, ()>,
}

impl<'a> CallIndex<'a> {
    fn new(calls: &[CallRecord], of_thread: &'a [u32]) -> Self {
        let processes = calls.iter().map(|call| (of_thread[call.thread as usize], ())).collect();
        let with_id = (0..).zip(calls).filter(|(_, call)| call.correlation != 0);
        let mut sorted: Vec<u32> = with_id.map(|(at, _)| at).collect();
        sorted.sort_unstable_by_key(|&at| (calls[at as usize].correlation, at));
        Self { sorted, of_thread, processes }
    }

    /// Finds the call with the operation's id, in the operation's own process if that process has calls in the trace.
    /// If several calls have the id, returns the last call that began before the operation.
    fn find_call(&self, calls: &[CallRecord], op: &OpRecord) -> Option<u32> {
        let in_process = op.process != 0 && self.processes.contains_key(&op.process);
        let id = |at: &u32| calls[*at as usize].correlation;
        let first = self.sorted.partition_point(|at| id(at) < op.correlation);
        let candidates = self.sorted[first..].iter().take_while(|at| id(at) == op.correlation);
        let mut best: Option<u32> = None;
        for &at in candidates {
            let call = &calls[at as usize];
            let fits = !in_process || self.of_thread[call.thread as usize] == op.process;
            if fits && best.is_none_or(|best| match_key(call, op) >= match_key(&calls[best as usize], op)) {
                best = Some(at);
            }
        }
        best
    }
}

/// Returns the sort key of candidate calls. The call with the greatest key matches best.
fn match_key(call: &CallRecord, op: &OpRecord) -> (bool, i64) {
    let began_before = call.start <= op.start;
    (began_before, if began_before { call.start } else { call.start.saturating_neg() })
}

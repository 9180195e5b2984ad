//! Links each GPU operation to the call that launched the operation. A [`LinkReport`] contains the numbers of linked
//! and unlinked operations. The numbers of linked and unlinked operations are also shown to the user.
//!
//! A link is based on one of the following kinds of evidence. The strongest kind is listed first:
//!
//! 1. a flow from the call to the operation (`ac2g`, `bind_id`);
//! 2. the correlation id, within the process of the operation if the trace contains this process;
//! 3. a flow whose category is unknown;
//! 4. the external id, if the operation has no correlation id.
//!
//! If several calls have the id of an operation, calls that can start an operation of this kind are preferred. For
//! example, for a kernel, a kernel launch is preferred to a call that records a CUDA event. Among nested calls that can
//! start the operation, the innermost call is preferred. Several calls may still remain. The remaining calls are linked
//! to the operations in order of time if four conditions hold: there are as many calls as operations, the calls are on
//! one thread, the operations are on one stream, and each call began before its operation. If a condition does not
//! hold, an operation is linked to a call only if exactly one of the remaining calls began before the operation. An
//! operation before which no call or several calls began is *ambiguous*, and is not linked to any call.

use std::collections::{BTreeMap, BTreeSet};

use super::ReadCounts;
use super::call_records::CallRecords;
use super::file_ids::FileIds;
use super::graph_captures::CaptureCoverage;
use super::launch_flows::ResolvedFlows;
use super::link_ids::{IdFilter, LinkIds, count_while};
use super::model::{FlowKind, OpKind};
use super::named_ranges::NamedRange;
use super::op_records::{OpLaunch, OpRecord, OpRecords};
use super::work::{CallRecord, CallUse, LinkedStream};
use gpuflame_model::record::{Detail, IdMap};

/// Maximum number of calls that are compared for each flow.
const MAX_CALLS_PER_FLOW: usize = 64;
/// Index that stands for all processes. The index is used for an operation whose process is unknown.
pub(super) const ANY_PROCESS: u32 = u32::MAX;

/// Counts of linked and unlinked operations, and further properties of the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkReport {
    /// Counts that the reader collected while it read the trace.
    pub counts: ReadCounts,
    /// Number of GPU operations in the trace.
    pub ops: u64,
    /// Number of trace events on CPU threads: API calls, operators, annotated ranges and Python functions.
    pub cpu_events: u64,
    /// Number of operations that were linked to a launch.
    pub linked_ops: u64,
    /// Number of operations without a launch that were launched before the trace began.
    pub launched_before_trace: u64,
    /// GPU time of all operations, in ns.
    pub gpu_ns: u64,
    /// GPU time of operations that were linked to a launch, in ns.
    pub linked_gpu_ns: u64,
    /// Number of launches with more than one operation (graphs).
    pub multi_op_launches: u64,
    /// Maximum number of operations per launch.
    pub max_ops_per_launch: u64,
    /// Number of displaced operations, whose times are on a different clock from the times of most operations. The rows
    /// of these operations have no times.
    pub displaced_ops: u64,
    /// Number of operations that start before their launch.
    pub started_before_launch: u64,
    /// Number of launches without an operation.
    pub launches_without_op: u64,
    /// Number of operations whose stream is not in the trace.
    pub ops_without_stream: u64,
    /// Number of records about waits for a CUDA event, a stream or a device.
    pub sync_records: u64,
    /// Number of calls in which the host waits, or that make a stream wait.
    pub wait_calls: u64,
    /// Number of calls that make a stream wait for a CUDA event.
    pub event_wait_calls: u64,
    /// Number of calls that submitted a host function to a stream, if the trace does not contain the function itself.
    pub host_function_calls: u64,
    /// Number of launches whose launch attributes are not in the trace. Each of these launches may be a programmatic
    /// dependent launch.
    pub attribute_launches: u64,
    /// Number of programmatic dependent launches that were captured into a CUDA graph.
    pub captured_programmatic_launches: u64,
    /// Streams for which the trace contains the kind of stream.
    pub streams: Vec<LinkedStream>,
    /// Start and end of each period in which a profiler worked on the program's threads, if the trace contains such
    /// periods. The times are on the clock of the rows.
    pub profiler_work: Vec<(u64, u64)>,
    /// Names of the kernels that are parts of collectives according to the trace.
    pub collectives: BTreeSet<String>,
    /// Named ranges and steps, sorted by start. The times of the ranges are on the clock of the rows. The list is empty
    /// unless [`Options::ranges`](super::Options::ranges) requests the ranges.
    pub ranges: Vec<NamedRange>,
    /// Start time of the run's last step, on the clock of the rows. The field is `None` unless the trace has several
    /// steps.
    pub last_step: Option<i64>,
    /// GPU time in ns of the operations that backward operators launched, and the part of this time that is attributed
    /// to forward operators. The field is `None` unless this attribution was requested.
    pub backward_ns: Option<(u64, u64)>,
    /// GPU time of graph launches, and the part of this time that is attributed to stacks from capture traces. The
    /// field is `None` if no capture traces were given.
    pub capture_coverage: Option<CaptureCoverage>,
    /// Number of ambiguous operations, which several calls may have launched. Ambiguous operations are not linked to
    /// any of these calls.
    pub ambiguous_ops: u64,
    /// Number of calls that may have launched ambiguous operations. Calls that may have launched ambiguous operations
    /// do not count as launches.
    pub ambiguous_calls: u64,
    /// Number of operations that were linked in order of time, because several launches have the id of the operation.
    pub ordered_ops: u64,
    /// Number of operations that were linked by a flow, because they have no correlation id, or because several calls
    /// have it.
    pub flow_ops: u64,
    /// Number of operations that were linked by an external id.
    pub external_ops: u64,
    /// Number of operations that have no correlation id and were not linked to a launch.
    pub ops_without_id: u64,
    /// Number of begin events without an end, and number of end events without a begin.
    pub unpaired_edges: (u64, u64),
    /// Number of slices that were left out of all stacks, because each overlaps with too many other slices on its
    /// thread without being nested.
    pub crossing_slices: u64,
    /// Number of Python functions that seem to outlive their callers, because the profiler missed the end of the
    /// function.
    pub unclosed_functions: u64,
    /// Time in ns since 1970 to which the times in the file are relative. 0 if the times are not relative, `None` if
    /// this is unknown.
    pub clock_base: Option<i64>,
    /// Whether several processes launched GPU operations.
    pub has_several_processes: bool,
    /// Whether the steps in the trace come from several processes. If several processes have steps, a step and the next
    /// step may belong to different processes.
    pub has_steps_of_several_processes: bool,
    /// GPUs that got a new index, because another part of a merged trace uses the same index for a different GPU. Each
    /// entry contains the new index, the index in the file, and the name of the part.
    pub renumbered_devices: Vec<(u32, u32, String)>,
    /// Correlation ids in the file. The index of an entry is the correlation id in the rows.
    pub file_ids: FileIds,
    /// Unknown categories of trace events, each with the number of events. The most frequent category comes first.
    pub unknown_categories: Vec<(String, u64)>,
    /// Offset that is added to all times so that no time is below 1.
    pub offset: i64,
    /// Smallest correlation id of all calls, and earliest start of all operations with a launch. There is one entry per
    /// process id; the entry with the id 0 is for all processes together.
    pub(super) first_linked: BTreeMap<u32, (u64, i64)>,
}

impl LinkReport {
    /// Whether `op` was launched before the trace began. `op` must not be linked to a call. An operation counts as
    /// launched before the trace if its correlation id is smaller than the ids of all calls. An operation also counts
    /// as launched before the trace if it starts before all operations that are linked to a launch. Returns false if
    /// `op` has no id, or if several calls have the id of `op`.
    pub(super) fn launched_before(&self, op: OpRecord<'_>) -> bool {
        let first = self.first_linked.get(&op.shape.process).or_else(|| self.first_linked.get(&0));
        let Some(&(first_id, first_start)) = first else { return false };
        op.launch != OpLaunch::Ambiguous
            && op.correlation != 0
            && (op.correlation < first_id || op.start < first_start)
    }
}

/// Operations and calls, with all data that is needed to link operations to calls.
pub(super) struct Linking<'a> {
    pub(super) ops: &'a mut OpRecords,
    pub(super) calls: &'a mut CallRecords,
    /// Process id of each thread, indexed by thread.
    pub(super) process_of_thread: &'a [u32],
    /// All distinct *homes*. A home is a set of processes that may have launched an operation.
    pub(super) homes: &'a [IdMap<u32, ()>],
    /// For each shape, the index of its home in `homes`, or [`ANY_PROCESS`]. (A shape is a set of properties that many
    /// operations share.)
    pub(super) home_of_shape: &'a [u32],
    pub(super) flows: ResolvedFlows,
    /// External ids of those calls that have no correlation id, each with the index of the call.
    pub(super) external_calls: Vec<(u64, u32)>,
    /// External ids of those operations that have no correlation id, each with the index of the operation.
    pub(super) external_ops: Vec<(u64, u32)>,
}

/// Calls at which flows to operations start. An operation without a flow is linked to one of these calls only if no
/// other call can have launched the operation.
type FlowCalls = IdMap<u32, ()>;

/// Counts of operations that could not be linked simply by a unique correlation id.
#[derive(Default)]
struct LinkCounts {
    by_flow: u64,
    by_external: u64,
    in_order: u64,
}

impl Linking<'_> {
    /// Links all operations to calls, and counts the links.
    pub(super) fn link(mut self) -> LinkReport {
        let mut counts = LinkCounts::default();
        counts.by_flow += self.link_by_flows(FlowKind::Launch);
        let by_flow: FlowCalls = match counts.by_flow {
            0 => FlowCalls::default(),
            _ => self.ops.iter().filter_map(|op| op.call()).map(|call| (call, ())).collect(),
        };
        let ops = (0..).zip(self.ops.iter()).filter(|(_, op)| op.correlation != 0 && op.call().is_none());
        let ops: Vec<u32> = ops.map(|(at, _)| at).collect();
        // Most calls in a trace start no GPU work. In a large trace, a list of all calls that start no GPU work would
        // take megabytes.
        let wanted = IdFilter::new(ops.iter().map(|at| self.ops.get(*at).correlation));
        let calls = self.calls.numbers().filter(|at| wanted.may_have(self.calls.correlation_of(*at)));
        let calls: Vec<u32> = calls.collect();
        drop(wanted);
        counts.in_order += self.link_by_ids(calls, ops, &LinkIds::Correlation, CallUse::Other, &by_flow);
        counts.by_flow += self.link_by_flows(FlowKind::Unknown) + self.link_by_flow_ids();
        let (calls, mut ops) =
            (std::mem::take(&mut self.external_calls), std::mem::take(&mut self.external_ops));
        ops.retain(|(_, op)| self.ops.get(*op).call().is_none());
        let numbers: Vec<u32> = ops.iter().map(|(_, op)| *op).collect();
        let call_numbers = calls.iter().map(|(_, call)| *call).collect();
        let by_number = |ids: Vec<(u64, u32)>| ids.into_iter().map(|(id, number)| (number, id)).collect();
        let ids = LinkIds::External { calls: by_number(calls), ops: by_number(ops) };
        counts.in_order += self.link_by_ids(call_numbers, numbers.clone(), &ids, CallUse::Unknown, &by_flow);
        counts.by_external = numbers.iter().filter(|op| self.ops.get(**op).call().is_some()).count() as u64;
        if !self.ops.iter().any(|op| op.launch == OpLaunch::Ambiguous) {
            self.calls.numbers().for_each(|call| self.calls.set_ambiguous(call, false));
        }
        for op in self.ops.iter() {
            if let Some(call) = op.call() {
                self.calls.add_op(call);
            }
        }
        self.note_processes();
        LinkReport {
            ordered_ops: counts.in_order,
            flow_ops: counts.by_flow,
            external_ops: counts.by_external,
            ..count_links(self.ops, self.calls, self.process_of_thread)
        }
    }

    /// Returns the index in `homes` of the set of processes that may have launched an operation, or [`ANY_PROCESS`].
    fn home_of(&self, op: u32) -> u32 {
        self.home_of_shape[self.ops.shape_of(op) as usize]
    }

    /// If only one process may have launched an operation, sets the process of the operation.
    fn note_processes(&mut self) {
        for (op, home) in self.ops.shapes_mut().iter_mut().zip(self.home_of_shape) {
            if let Some(home) = self.homes.get(*home as usize)
                && let (1, Some(process)) = (home.len(), home.keys().next())
            {
                op.process = *process;
            }
        }
    }

    /// Links the operations to which flows of this kind lead. Returns the number of operations that were linked.
    fn link_by_flows(&mut self, kind: FlowKind) -> u64 {
        let mut linked = 0;
        let flows = std::mem::take(&mut self.flows);
        for (at, ids) in flows.ops() {
            let op = self.ops.get(at);
            // A flow of an unknown category may show a dependency instead of a launch, so a correlation id takes
            // precedence over such a flow.
            let is_ambiguous = op.launch == OpLaunch::Ambiguous;
            if op.call().is_some() || (kind == FlowKind::Unknown && op.correlation != 0 && !is_ambiguous) {
                continue;
            }
            let ids = ids.iter().filter(|flow| flow.kind == kind);
            let mut calls = ids.flat_map(|flow| flows.calls_of(flow.id, kind).take(MAX_CALLS_PER_FLOW + 1));
            let (first, second) = (calls.next(), calls.next());
            if let (Some(call), None) = (first, second) {
                if self.is_at_home(call, self.home_of(at)) && self.calls.get(call).starts >= CallUse::Unknown
                {
                    self.link_to(at, call);
                    linked += 1;
                }
                continue;
            }
            let calls = first.into_iter().chain(second).chain(calls);
            let calls: Vec<u32> = calls.take(MAX_CALLS_PER_FLOW + 1).collect();
            if calls.len() > MAX_CALLS_PER_FLOW {
                continue;
            }
            if let [call] = self.fitting_calls(&calls, at, CallUse::Unknown)[..] {
                self.link_to(at, call);
                linked += 1;
            }
        }
        self.flows = flows;
        linked
    }

    /// Links each operation whose correlation id is the id of a flow, but not the id of any call. Returns the number of
    /// operations that were linked.
    fn link_by_flow_ids(&mut self) -> u64 {
        if !self.flows.ends_are_ids {
            return 0;
        }
        let mut linked = 0;
        for at in 0..self.ops.len() as u32 {
            let op = self.ops.get(at);
            if op.launch != OpLaunch::Unknown || op.correlation == 0 {
                continue;
            }
            let calls: Vec<u32> =
                self.flows.calls_of(op.correlation, FlowKind::Launch).take(MAX_CALLS_PER_FLOW + 1).collect();
            if let [call] = self.fitting_calls(&calls, at, CallUse::Unknown)[..] {
                self.link_to(at, call);
                linked += 1;
            }
        }
        linked
    }

    fn link_to(&mut self, op: u32, call: u32) {
        self.ops.link(op, call, self.calls.correlation_of(call));
    }

    /// Whether the set of processes with the index `home` contains the process that made the call.
    fn is_at_home(&self, call: u32, home: u32) -> bool {
        self.homes.get(home as usize).is_none_or(|home| home.contains_key(&self.process_of(call)))
    }

    fn process_of(&self, call: u32) -> u32 {
        self.process_of_thread[self.calls.thread_of(call) as usize]
    }

    /// Links `ops` to the calls in `calls` that have the same id. Calls with a [`CallUse`] below `least` are ignored.
    /// Calls in `by_flow` are used only if all other calls are excluded. Returns the number of operations that were
    /// linked in order of time.
    fn link_by_ids(
        &mut self,
        mut calls: Vec<u32>,
        mut ops: Vec<u32>,
        ids: &LinkIds,
        least: CallUse,
        by_flow: &FlowCalls,
    ) -> u64 {
        calls.sort_unstable_by_key(|&call| (ids.of_call(call, self.calls), self.process_of(call), call));
        ops.sort_unstable_by_key(|&at| {
            let op = self.ops.get(at);
            (ids.of_op(at, op), self.home_of(at), op_kind(op), op.start, at)
        });
        let mut in_order = 0;
        let mut rest = &calls[..];
        let mut ops = &ops[..];
        while let Some(&first) = ops.first() {
            let key = |at: u32| {
                let op = self.ops.get(at);
                (ids.of_op(at, op), self.home_of(at), op_kind(op))
            };
            let (id, home, kind) = key(first);
            let count = ops.iter().take_while(|op| key(**op) == (id, home, kind)).count();
            let (group, others) = ops.split_at(count);
            ops = others;
            let id_of = |call: &u32| ids.of_call(*call, self.calls);
            rest = &rest[count_while(rest, |call| id_of(call) < id)..];
            let same_id = &rest[..count_while(rest, |call| id_of(call) == id)];
            if let &[call] = same_id
                && ids.is_correlation()
                && self.is_at_home(call, home)
            {
                // Most ids belong to only one call, so this case comes first.
                group.iter().for_each(|op| self.link_to(*op, call));
                continue;
            }
            let candidates: Vec<u32> = match self.homes.get(home as usize) {
                None => same_id.to_vec(),
                Some(home) => {
                    let of_process = |process: &u32| {
                        let from = same_id.partition_point(|call| self.process_of(*call) < *process);
                        let to = same_id.partition_point(|call| self.process_of(*call) <= *process);
                        same_id[from..to].iter().copied()
                    };
                    home.keys().flat_map(of_process).collect()
                }
            };
            let same_id = candidates;
            let mut candidates = self.fitting_calls(&same_id, first, least);
            if candidates.iter().any(|call| !by_flow.contains_key(call)) {
                candidates.retain(|call| !by_flow.contains_key(call));
            }
            if let [innermost] = candidates[..] {
                self.mark_enclosing(&same_id, innermost);
            }
            in_order += self.link_alike(&candidates, group);
        }
        in_order
    }

    /// Returns those calls in `calls` that may have launched the operation `op`, in order of time. The result contains
    /// the innermost calls of the operation's process whose [`CallUse`] fits the operation best.
    fn fitting_calls(&self, calls: &[u32], op: u32, least: CallUse) -> Vec<u32> {
        let call = |at: u32| self.calls.get(at);
        let home = self.homes.get(self.home_of(op) as usize);
        let is_home = |at: &u32| {
            home.is_none_or(|home| home.contains_key(&self.process_of_thread[call(*at).thread as usize]))
        };
        let kind = op_kind(self.ops.get(op));
        let mut fitting: Vec<u32> = calls.iter().copied().filter(is_home).collect();
        fitting.retain(|at| call(*at).starts >= least);
        if fitting.len() < 2 {
            return fitting;
        }
        let best = fitting.iter().map(|at| call(*at).starts.fit(kind)).max();
        fitting.retain(|at| Some(call(*at).starts.fit(kind)) == best);
        fitting.sort_unstable_by_key(|at| (call(*at).start, std::cmp::Reverse(call(*at).end), *at));
        fitting.dedup();
        let mut last_of_thread: IdMap<u32, usize> = IdMap::default();
        let mut innermost: Vec<u32> = Vec::new();
        for at in fitting {
            let last = last_of_thread.get(&call(at).thread).copied();
            match last.filter(|last| call(innermost[*last]).end >= call(at).end) {
                Some(last) => innermost[last] = at,
                None => {
                    last_of_thread.insert(call(at).thread, innermost.len());
                    innermost.push(at);
                }
            }
        }
        innermost.sort_by_key(|at| call(*at).start);
        innermost
    }

    /// Marks the calls on the same thread that enclose the call `innermost` and have the same id. Enclosing calls with
    /// the same id are part of the same launch.
    fn mark_enclosing(&mut self, same_id: &[u32], innermost: u32) {
        let CallRecord { start, end, thread, .. } = self.calls.get(innermost);
        for &at in same_id.iter().filter(|at| **at != innermost) {
            let call = self.calls.get(at);
            if call.thread == thread && call.start <= start && call.end >= end {
                self.calls.set_encloses(at);
            }
        }
    }

    /// Links operations that have the same kind and id to the calls in `candidates`. `candidates` and `ops` must be
    /// sorted by start time. Returns the number of operations that were linked in order of time.
    fn link_alike(&mut self, candidates: &[u32], ops: &[u32]) -> u64 {
        if let [call] = candidates {
            ops.iter().for_each(|op| self.link_to(*op, *call));
            return 0;
        }
        if candidates.is_empty() {
            return 0;
        }
        let stream = |op: &u32| {
            let op = self.ops.get(*op).shape;
            (op.lane, op.device, op.context, op.stream)
        };
        let thread = |call: &u32| self.calls.thread_of(*call);
        let start = |call: &u32| self.calls.start_of(*call);
        let is_sequence = ops.len() == candidates.len()
            && ops.iter().all(|op| stream(op) == stream(&ops[0]))
            && candidates.iter().all(|call| thread(call) == thread(&candidates[0]))
            && candidates.iter().zip(ops).all(|(call, op)| start(call) <= self.ops.get(*op).start);
        if is_sequence {
            for (call, op) in candidates.iter().zip(ops) {
                self.link_to(*op, *call);
            }
            return ops.len() as u64;
        }
        let mut is_ambiguous = false;
        for &op in ops {
            let began = self.ops.get(op).start;
            let before = candidates.partition_point(|call| self.calls.start_of(*call) <= began);
            match before {
                1 => self.link_to(op, candidates[0]),
                _ => self.ops.set_ambiguous(op),
            }
            is_ambiguous |= before != 1;
        }
        if is_ambiguous {
            candidates.iter().for_each(|call| self.calls.set_ambiguous(*call, true));
        }
        0
    }
}

fn op_kind(op: OpRecord<'_>) -> OpKind {
    match op.shape.detail {
        Detail::Copy(_) => OpKind::Copy,
        Detail::Set(_) => OpKind::Set,
        Detail::Graph => OpKind::Graph,
        Detail::Kernel(_) => OpKind::Kernel,
    }
}

fn count_links(ops: &OpRecords, calls: &CallRecords, processes: &[u32]) -> LinkReport {
    let first_linked = find_first_linked(ops, calls, processes);
    let launched = ops.iter().filter_map(|op| Some(processes[calls.thread_of(op.call()?) as usize]));
    let mut linked = LinkReport {
        ops: ops.len() as u64,
        first_linked,
        has_several_processes: are_different(launched),
        ambiguous_calls: calls.iter().filter(|call| call.ambiguous && call.ops == 0).count() as u64,
        multi_op_launches: calls.iter().filter(|call| call.ops > 1).count() as u64,
        max_ops_per_launch: calls.iter().map(|call| u64::from(call.ops)).max().unwrap_or(0),
        ..LinkReport::default()
    };
    for op in ops.iter() {
        let nanos = op.nanos();
        linked.gpu_ns = linked.gpu_ns.saturating_add(nanos);
        match op.call() {
            Some(call) => {
                linked.linked_ops += 1;
                linked.linked_gpu_ns = linked.linked_gpu_ns.saturating_add(nanos);
                linked.started_before_launch += u64::from(op.start < calls.start_of(call));
            }
            None => {
                linked.launched_before_trace += u64::from(linked.launched_before(op));
                let is_ambiguous = op.launch == OpLaunch::Ambiguous;
                linked.ambiguous_ops += u64::from(is_ambiguous);
                linked.ops_without_id += u64::from(op.correlation == 0 && !is_ambiguous);
            }
        }
    }
    linked
}

/// Whether at least two of the values are different.
pub(super) fn are_different<T: PartialEq>(mut values: impl Iterator<Item = T>) -> bool {
    let first = values.next();
    values.any(|value| first.as_ref() != Some(&value))
}

/// Returns, for each process, the smallest correlation id of its calls, and the earliest start of its operations that
/// have a launch.
fn find_first_linked(ops: &OpRecords, calls: &CallRecords, processes: &[u32]) -> BTreeMap<u32, (u64, i64)> {
    // The values are first computed per thread. This is faster, because a list that is indexed by thread needs no map
    // look-up.
    let mut by_thread: Vec<(Option<u64>, Option<i64>)> = vec![(None, None); processes.len()];
    for call in calls.iter().filter(|call| call.correlation != 0) {
        let id = &mut by_thread[call.thread as usize].0;
        *id = Some(id.map_or(call.correlation, |id| id.min(call.correlation)));
    }
    for (op, call) in ops.iter().filter_map(|op| Some((op, op.call()?))) {
        let start = &mut by_thread[calls.thread_of(call) as usize].1;
        *start = Some(start.map_or(op.start, |start| start.min(op.start)));
    }
    let of_threads = || processes.iter().copied().zip(by_thread.iter().copied());
    let mut first_linked = BTreeMap::new();
    for (process, id) in of_threads().filter_map(|(process, (id, _))| Some((process, id?))) {
        for process in [0, process] {
            let first = first_linked.entry(process).or_insert((u64::MAX, i64::MIN));
            first.0 = first.0.min(id);
        }
    }
    for (process, start) in of_threads().filter_map(|(process, (_, start))| Some((process, start?))) {
        for process in [0, process] {
            if let Some(first) = first_linked.get_mut(&process) {
                first.1 = if first.1 == i64::MIN { start } else { first.1.min(start) };
            }
        }
    }
    first_linked
}

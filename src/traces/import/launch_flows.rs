//! Resolves launch flows, which are arrows from calls to the GPU operations that the calls launched. A flow consists of
//! two separate trace events (`ac2g`), or of a `bind_id` in the events of the call and the operation. With a flow, the
//! launch of an operation can be found even if its correlation id is missing or is used by several processes.
//!
//! At nearly all starts and ends of flows, the flow's id is equal to the correlation id of the previous event. A start
//! or end whose id is equal to that correlation id adds no information and is not stored. So if only one end of a flow
//! is stored, the other end is at the call or operation whose correlation id is the flow's id.

use std::collections::HashSet;

use super::call_records::CallRecords;
use super::link_ids::LastFound;
use super::model::FlowKind;
use super::op_records::OpRecords;
use super::slices::NONE;

/// All launch flows of a trace. See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct LaunchFlows {
    starts: Vec<FlowEnd>,
    ends: Vec<FlowEnd>,
    /// Whether flow ids are equal to correlation ids. The first value is for the calls at which flows start, and the
    /// second value is for the operations at which flows end.
    repeats: [Repeats; 2],
}

/// Whether flow ids were equal to, or different from, the correlation ids of the events at one kind of end (start or
/// end).
#[derive(Clone, Copy, Debug, Default)]
struct Repeats {
    same: bool,
    different: bool,
}

impl Repeats {
    fn are_ids(self) -> bool {
        self.same && !self.different
    }
}

/// Start or end of a flow that leads from a call to an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowEnd {
    pub(super) id: u64,
    pub(super) time: i64,
    /// Lane of the trace to which this end is attached. The lane belongs to the calling thread, or to the stream.
    pub(super) lane: u32,
    /// Index of the call or operation, or [`NONE`] if only the lane and the time are known.
    pub(super) number: u32,
    pub(super) kind: FlowKind,
    /// Whether the flow ends at the operation that runs at `time`. If the field is false, the flow ends at the next
    /// operation that begins.
    pub(super) enclosed: bool,
}

impl LaunchFlows {
    pub(super) fn add(&mut self, end: FlowEnd, begins: bool) {
        if begins { self.starts.push(end) } else { self.ends.push(end) }
    }

    /// Processes one end of the flow `id`. The event at this end has the correlation id `correlation` (0 if the event
    /// has none). Returns true if the flow id and the correlation id are equal, so that this end need not be stored.
    pub(super) fn is_repeated(&mut self, id: u64, correlation: u64, begins: bool) -> bool {
        let repeats = &mut self.repeats[usize::from(!begins)];
        repeats.same |= correlation == id;
        repeats.different |= correlation != 0 && correlation != id;
        correlation == id
    }

    /// Returns the starts and ends of flows that were stored.
    pub(super) fn ends(&self) -> &[FlowEnd] {
        &self.ends
    }

    /// Removes the ends of flows that lead to graph nodes without GPU work. `places` contains the lane, start time and
    /// correlation id of each graph node without GPU work.
    pub(super) fn remove_ends(&mut self, places: &HashSet<(u32, i64, u64)>) {
        if !places.is_empty() {
            self.ends.retain(|end| end.number != NONE || !places.contains(&(end.lane, end.time, end.id)));
        }
    }

    fn is_empty(&self) -> bool {
        self.starts.is_empty() && self.ends.is_empty()
    }

    /// Finds the calls at which flows start, and the operations at which they end. Returns the flows to each operation,
    /// and the calls at the start of each flow. `lane_of_thread` contains the lane (process and thread field) of each
    /// thread.
    pub(super) fn resolve(
        self,
        ops: &OpRecords,
        calls: &CallRecords,
        lane_of_thread: &[u32],
    ) -> ResolvedFlows {
        let mut resolved = ResolvedFlows::default();
        if self.is_empty() {
            return resolved;
        }
        // The returned map is empty if the index of the call or operation is known for each end of a flow.
        let by_place = |ends: &[FlowEnd], count: usize, place: &dyn Fn(u32) -> (u32, i64)| {
            let count = if ends.iter().any(|end| end.number == NONE) { count } else { 0 };
            let mut order: Vec<u32> = (0..count as u32).collect();
            order.sort_by_key(|&at| place(at));
            order
        };
        let call_place = |at: u32| (lane_of_thread[calls.thread_of(at) as usize], calls.start_of(at));
        let op_place = |at: u32| {
            let op = ops.get(at);
            (op.shape.lane, op.start)
        };
        let calls_by_place = by_place(&self.starts, calls.len(), &call_place);
        let last = LastFound::default();
        for start in &self.starts {
            let place = (start.lane, start.time);
            let call = match start.number {
                NONE => innermost_at(&calls_by_place, &last, call_place, place, |call| {
                    calls.get(call).end >= start.time
                }),
                call => Some(call),
            };
            if let Some(call) = call {
                resolved.calls.push((start.id, start.kind, call));
            }
        }
        resolved.calls.sort_unstable();
        resolved.calls.dedup();
        resolved.ends_are_ids = self.repeats[1].are_ids();
        if self.repeats[0].are_ids() {
            let mut with_end: Vec<u64> = self.ends.iter().map(|end| end.id).collect();
            with_end.sort_unstable();
            let last = LastFound::default();
            let has_end =
                |id: u64| with_end.get(last.partition_point(&with_end, |end| *end < id)) == Some(&id);
            let ids = calls.numbers().map(|at| (calls.correlation_of(at), at));
            let repeated = ids.filter(|(id, _)| has_end(*id));
            resolved.calls.extend(repeated.map(|(id, at)| (id, FlowKind::Launch, at)));
            resolved.calls.sort_unstable();
            resolved.calls.dedup();
        }
        let ops_by_place = by_place(&self.ends, ops.len(), &op_place);
        let last = LastFound::default();
        for end in &self.ends {
            let place = (end.lane, end.time);
            let op = match end.number {
                NONE if end.enclosed => {
                    innermost_at(&ops_by_place, &last, op_place, place, |op| ops.get(op).end >= end.time)
                }
                NONE => {
                    let next = last.partition_point(&ops_by_place, |&op| op_place(op) < place);
                    ops_by_place.get(next).copied().filter(|&op| op_place(op).0 == end.lane)
                }
                op => Some(op),
            };
            if let Some(op) = op {
                resolved.ends.push(FlowOfOp { id: end.id, op, kind: end.kind });
            }
        }
        // The flows that lead to the same operation stay in the order of the file.
        resolved.ends.sort_by_key(|flow| flow.op);
        resolved
    }
}

/// Returns the latest item on the lane that begins at or before `time` and for which `is_open` returns true. The search
/// goes back over up to `MAX_STEPS` items, because an item comes before the items that it encloses.
fn innermost_at(
    order: &[u32],
    last: &LastFound,
    place: impl Fn(u32) -> (u32, i64),
    (lane, time): (u32, i64),
    is_open: impl Fn(u32) -> bool,
) -> Option<u32> {
    const MAX_STEPS: usize = 16;
    let after = last.partition_point(order, |&at| place(at) <= (lane, time));
    let before = order[..after].iter().rev().take(MAX_STEPS).take_while(|&&at| place(at).0 == lane);
    before.copied().find(|&at| is_open(at))
}

/// Flows for which the calls and operations at both ends were found.
#[derive(Debug, Default)]
pub(super) struct ResolvedFlows {
    /// Id, kind and call of each flow, sorted by these values.
    calls: Vec<(u64, FlowKind, u32)>,
    /// Position in `calls` of the flow that was looked up last.
    last_call: LastFound,
    /// Flows that end at operations, sorted by the index of the operation.
    ends: Vec<FlowOfOp>,
    /// Whether the id of every flow is equal to the correlation id of the operation at which the flow ends.
    pub(super) ends_are_ids: bool,
}

/// A flow that leads to an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowOfOp {
    pub(super) id: u64,
    op: u32,
    pub(super) kind: FlowKind,
}

impl ResolvedFlows {
    /// Returns the operations to which flows lead. Each operation is returned with its flows.
    pub(super) fn ops(&self) -> impl Iterator<Item = (u32, &[FlowOfOp])> {
        self.ends.chunk_by(|a, b| a.op == b.op).map(|flows| (flows[0].op, flows))
    }

    /// Returns the indexes of the calls at which flows with this id and kind start. Flows of different kinds may have
    /// equal ids.
    pub(super) fn calls_of(&self, id: u64, kind: FlowKind) -> impl Iterator<Item = u32> + use<'_> {
        let first = self.last_call.partition_point(&self.calls, |(flow, of, _)| (*flow, *of) < (id, kind));
        let same = self.calls[first..].iter().take_while(move |(flow, of, _)| (*flow, *of) == (id, kind));
        same.map(|(.., call)| *call)
    }
}

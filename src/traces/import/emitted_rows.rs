//! Emits the rows of a trace, after the trace's operations were linked to calls. The rows contain names, steps, launch
//! contexts (stack and API call), launches with their operations, and waits.
//!
//! Correlation ids are renumbered. The reasons are that ids in a trace may be too large for rows, may repeat between
//! processes, or may belong to calls that the trace does not contain. Each launch is emitted directly before its
//! operations. Operations that were launched before the trace began get ids below the ids of all launches. All other
//! operations without a launch get ids above the ids of all launches.

use super::file_ids::FileIds;
use super::graph_edges::GraphEdges;
use super::link::LinkReport;
use super::op_order::OpOrder;
use super::op_records::OpRecord;
use super::slices::{FrameClass, ROOT, StackTree};
use super::sync_rows::SyncCalls;
use super::thread_states::ThreadStates;
use super::trace_collector::TraceCollector;
use gpuflame_model::record::{
    Activity, ContextFlags, ContextId, CorrelationId, Created, DeviceId, Frame, GpuContextId, GraphId,
    GraphNodeId, HostState, IdMap, LabelId, LabelKind, Launch, LaunchAttributes, Missing, NameId, Nanos, Row,
    Step, StreamId, ThreadId, Wait,
};

/// Maximum number of frames per stack. If a stack is deeper, the frames at its root are dropped, and the stack is
/// marked as truncated. Without this limit, thousands of nested slices could create stacks with millions of frames in
/// total.
const MAX_FRAMES: usize = 2048;

/// Maximum total number of frames beyond the first [`SHORT_FRAMES`] frames of each stack. When this total is reached,
/// all further stacks have at most `SHORT_FRAMES` frames. Without this limit, a trace could create stacks with millions
/// of frames in total. Such a trace could consist of thousands of slices that never end, each with a launch.
const MAX_DEEP_FRAMES: usize = 1 << 19;
/// Maximum number of frames of each further stack after [`MAX_DEEP_FRAMES`] was reached.
const SHORT_FRAMES: usize = 256;
/// After [`MAX_DEEP_FRAMES`] was reached, the number of frames that are dropped at the root is a multiple of this
/// number. So similar shortened stacks begin at the same frame, and their common frames are stored only once.
const ROOT_STEP: usize = 128;

impl TraceCollector {
    pub(super) fn emit_names(&self, each: &mut dyn FnMut(&Row<'_>)) {
        for (id, text) in (0..).zip(self.kernels.texts()) {
            each(&Row::Name { id: NameId(id), text });
        }
        for (id, text) in (0..).zip(self.labels.texts()) {
            each(&Row::Label { id: LabelId(id), text });
        }
    }

    /// Emits the rows of the profiler's steps. A step that several threads report is emitted only once.
    pub(super) fn emit_steps(&mut self, offset: i64, each: &mut dyn FnMut(&Row<'_>)) {
        let threads = self.thread_numbers();
        self.steps.sort_unstable();
        self.steps.dedup_by_key(|&mut (start, end, ..)| (start, end));
        for (number, &(start, end, label, thread)) in (1..).zip(&self.steps) {
            let (time, end) = (to_row_time(start, offset), Some(to_row_time(end, offset)));
            let (thread, name) = (threads[thread as usize], self.labels.text(label));
            each(&Row::Step(Step { time, end, thread, number, name }));
        }
    }

    /// Emits a launch context for each pair (stack, thread) that launched work or delayed a GPU. The time spans in
    /// which threads delayed a GPU are emitted as well. For a call that becomes a row, the context is stored in the
    /// call; all other contexts are returned.
    pub(super) fn emit_contexts(
        &mut self,
        stacks: &StackTree,
        delay_states: Vec<ThreadStates>,
        created: IdMap<u32, Option<u32>>,
        offset: i64,
        each: &mut dyn FnMut(&Row<'_>),
    ) -> RowContexts {
        let threads = self.thread_numbers();
        for (&id, (_, _, name)) in threads.iter().zip(&self.thread_facts) {
            if !name.is_empty() {
                each(&Row::Thread { id, name });
            }
        }
        let mut known: IdMap<(u32, u32), ContextId> = IdMap::default();
        let (mut frames, mut deep_frames) = (Vec::new(), 0);
        let mut context = |stack: u32, thread: u32, each: &mut dyn FnMut(&Row<'_>)| {
            let next = ContextId(known.len() as u32 + ContextId::FIRST.0);
            let id = *known.entry((stack, thread)).or_insert(next);
            if id == next {
                frames.clear();
                let depth = stacks.depth(stack);
                let count = shown_frames(depth, deep_frames);
                deep_frames += count.saturating_sub(SHORT_FRAMES);
                frames.extend(stacks.leaf_first(stack).take(count).map(to_frame));
                let is_truncated = count < depth;
                let flags = ContextFlags(if is_truncated { ContextFlags::TRUNCATED } else { 0 });
                each(&Row::Context { id, thread: threads[thread as usize], flags, frames: &frames });
            }
            id
        };
        for (number, states) in (0..).zip(delay_states) {
            for (since, stack) in states.iter() {
                let context = match stack {
                    ROOT => ContextId::NONE,
                    stack => context(stack, number, each),
                };
                let (thread, since) = (threads[number as usize], to_row_time(since, offset));
                each(&Row::HostState(HostState { thread, since, context }));
            }
        }
        let mut sync_calls = SyncCalls::find(self);
        let stacks_of = |numbers: &[u32]| -> Vec<(u32, u32, u32)> {
            let calls = numbers.iter().map(|number| (*number, self.calls.get(*number)));
            calls.map(|(number, call)| (number, call.stack, call.thread)).collect()
        };
        let (waiting, unrecorded) =
            (stacks_of(&sync_calls.numbers()), stacks_of(&self.waits_without_records()));
        for number in self.calls.numbers() {
            let call = self.calls.get(number);
            if call.is_shown() {
                self.calls.set_stack(number, context(call.stack, call.thread, each).0);
            }
        }
        for (number, stack, thread) in waiting.into_iter().filter(|(_, stack, _)| *stack != u32::MAX) {
            sync_calls.contexts.insert(number, context(stack, thread, each));
        }
        let mut made: Vec<(u32, Option<u32>)> = created.into_iter().collect();
        made.sort_unstable();
        let mut created = IdMap::default();
        for (op, stack) in made {
            let thread = self.ops.get(op).call().map_or(0, |call| self.calls.thread_of(call));
            let context = stack.map(|stack| context(stack, thread, each));
            created.insert(op, context.map_or(Created::Unknown, Created::Context));
        }
        let unrecorded = unrecorded.into_iter().filter(|(_, stack, _)| *stack != u32::MAX);
        let unrecorded_waits =
            unrecorded.map(|(at, stack, thread)| (at, context(stack, thread, each))).collect();
        RowContexts { sync_calls, unrecorded_waits, created, displaced: IdMap::default() }
    }

    /// Returns the ids of all threads. A thread keeps its id from the trace if it has an id that no thread of another
    /// process has. A thread without a unique id gets a new id.
    pub(super) fn thread_numbers(&self) -> Vec<ThreadId> {
        let mut used: IdMap<ThreadId, ()> = IdMap::default();
        let mut spare = 1 << 31;
        let number = |(_, number, _): &(u32, Option<u32>, Box<str>)| {
            let mut id = ThreadId(number.unwrap_or(spare));
            while used.insert(id, ()).is_some() {
                spare += 1;
                id = ThreadId(spare);
            }
            id
        };
        self.thread_facts.iter().map(number).collect()
    }

    pub(super) fn emit_work(
        &mut self,
        contexts: RowContexts,
        edges: &GraphEdges,
        linked: &mut LinkReport,
        each: &mut dyn FnMut(&Row<'_>),
    ) {
        let offset = linked.offset;
        let nanos = |time: i64| to_row_time(time, offset);
        let order = OpOrder::of(&self.ops);
        let mut next = 0;
        let is_before = |at: u32| match self.reasons.get(&at) {
            Some(reason) => *reason == Missing::LaunchedBefore,
            None => linked.launched_before(self.ops.get(at)),
        };
        let (before, other): (Vec<u32>, Vec<u32>) = order.orphans().iter().partition(|at| is_before(**at));
        let mut file_ids = FileIds::default();
        file_ids.push(0);
        file_ids.extend(before.iter().map(|at| self.ops.get(*at).correlation));
        let mut correlation = before.len() as u32;
        let mut sync_ids = IdMap::default();
        let mut host_launches = edges.host_launches();
        let host_functions = edges.host_function_calls();
        for (at, call) in (0..).zip(self.calls.iter()).filter(|(_, call)| call.is_shown()) {
            correlation += 1;
            let (id, context) = (CorrelationId(correlation), ContextId(call.stack));
            let own = next..next + call.ops as usize;
            next = own.end;
            // A call without a correlation id may have been linked to operations by a flow or an external id. A call
            // that was linked without a correlation id gets the correlation id of its first operation.
            let of_ops = || own.clone().next().map_or(0, |at| self.ops.get(order.linked(at)).correlation);
            file_ids.push(if call.correlation == 0 { of_ops() } else { call.correlation });
            if contexts.sync_calls.contexts.contains_key(&at) {
                sync_ids.insert(at, id);
            }
            if let Some(known) = host_launches.get_mut(&call.correlation) {
                *known = Some(id);
            }
            let duration = u32::try_from(call.end.saturating_sub(call.start).max(0)).unwrap_or(u32::MAX);
            each(&Row::Launch(Launch {
                time: nanos(call.start),
                duration,
                correlation: id,
                within: id,
                context,
            }));
            if let Some(&is_programmatic) = self.programmatic.get(&at) {
                each(&Row::LaunchAttributes(LaunchAttributes { correlation: id, is_programmatic }));
            }
            linked.launches_without_op +=
                u64::from(call.ops == 0 && !host_functions.contains(&call.correlation));
            for at in own.map(|at| order.linked(at)) {
                if order.is_as_stored() {
                    self.ops.free_before(at);
                }
                let created = contexts.created.get(&at).copied();
                let activity = Activity { created, ..to_activity(self.ops.get(at), id, &nanos) };
                each(&Row::Activity(match contexts.displaced.contains_key(&at) {
                    true => Activity { start: Nanos(0), end: Nanos(0), ..activity },
                    false => activity,
                }));
            }
        }
        let numbered = (1..).zip(before).chain((correlation + 1..).zip(other.iter().copied()));
        for (id, at) in numbered {
            let op = self.ops.get(at);
            each(&Row::Activity(Activity {
                created: contexts.created.get(&at).copied(),
                device_launched: self.reasons.get(&at) == Some(&Missing::DeviceGraph),
                ..to_activity(op, CorrelationId(id), &nanos)
            }));
        }
        file_ids.extend(other.iter().map(|at| self.ops.get(*at).correlation));
        let mut sync_calls = contexts.sync_calls;
        sync_calls.ids = sync_ids;
        self.emit_syncs(sync_calls, &mut file_ids, &nanos, each);
        edges.emit(&host_launches, &nanos, each);
        self.emit_waits(contexts.unrecorded_waits, &mut file_ids, &nanos, each);
        linked.file_ids = file_ids;
    }
}

impl TraceCollector {
    /// Returns the calls that wait for other threads. If the trace has no records about waits, also returns the calls
    /// whose names imply that they wait for a GPU. Of nested waiting calls, only the outermost call is returned.
    fn waits_without_records(&self) -> Vec<u32> {
        let mut found = self.thread_waits.clone();
        if !self.syncs.is_empty() {
            return found;
        }
        let mut waits: Vec<(u32, i64, i64, u32)> = self
            .host_waits
            .iter()
            .map(|number| (*number, self.calls.get(*number)))
            .map(|(number, call)| (call.thread, call.start, -call.end, number))
            .collect();
        waits.sort_unstable();
        let mut last: Option<(u32, i64)> = None;
        for (thread, start, end, number) in waits {
            if last.is_none_or(|(of, until)| of != thread || start >= until) {
                last = Some((thread, -end));
                found.push(number);
            }
        }
        found
    }

    /// Emits a row for each call that waits. Calls that wait for other threads have no correlation ids in the trace.
    fn emit_waits(
        &self,
        waits: Vec<(u32, ContextId)>,
        file_ids: &mut FileIds,
        nanos: &dyn Fn(i64) -> Nanos,
        each: &mut dyn FnMut(&Row<'_>),
    ) {
        for (at, context) in waits {
            let call = self.calls.get(at);
            let (time, duration) = (nanos(call.start), call.end.saturating_sub(call.start).max(0) as u64);
            let correlation = CorrelationId(file_ids.len() as u32);
            file_ids.push(call.correlation);
            each(&Row::Wait(Wait { time, duration, correlation, context }));
        }
    }
}

/// Returns the number of frames to show of a stack that has `depth` frames. `deep_frames` is the total number of frames
/// beyond the first [`SHORT_FRAMES`] frames of each earlier stack.
fn shown_frames(depth: usize, deep_frames: usize) -> usize {
    match deep_frames < MAX_DEEP_FRAMES {
        true => depth.min(MAX_FRAMES),
        false => depth - depth.saturating_sub(SHORT_FRAMES).next_multiple_of(ROOT_STEP),
    }
}

/// Launch contexts to which rows refer that are not launches.
pub(super) struct RowContexts {
    /// Calls that waited or recorded a CUDA event.
    sync_calls: SyncCalls,
    /// Calls that waited although the trace contains no record of the wait, with their launch contexts.
    unrecorded_waits: Vec<(u32, ContextId)>,
    /// Stack that created the graph node of each operation, keyed by the operation's index.
    created: IdMap<u32, Created>,
    /// Indexes of displaced operations (see `displaced_ops`). The times of displaced operations are not used.
    pub(super) displaced: IdMap<u32, ()>,
}

/// Converts a time on the trace's clock to the clock of the rows.
pub(super) fn to_row_time(time: i64, offset: i64) -> Nanos {
    Nanos(time.saturating_add(offset).max(0) as u64)
}

fn to_frame((label, class): (u32, FrameClass)) -> Frame {
    let kind = match class {
        FrameClass::Python => LabelKind::Python,
        FrameClass::Range => LabelKind::Range,
        FrameClass::Operator | FrameClass::Call => LabelKind::Call,
    };
    Frame::label_of(kind, LabelId(label))
}

fn to_activity(op: OpRecord<'_>, correlation: CorrelationId, nanos: &impl Fn(i64) -> Nanos) -> Activity {
    let shape = op.shape;
    Activity {
        correlation,
        device: DeviceId(shape.device),
        context: GpuContextId(shape.context),
        stream: StreamId(shape.stream),
        channel: None,
        start: nanos(op.start),
        end: nanos(op.end),
        graph: GraphId(shape.graph),
        graph_node: GraphNodeId(shape.graph_node),
        source_node: GraphNodeId(0),
        device_launched: false,
        created: None,
        detail: shape.detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_after_many_deep_ones_are_short_and_share_their_roots() {
        let shown = |depth| (shown_frames(depth, MAX_DEEP_FRAMES - 1), shown_frames(depth, MAX_DEEP_FRAMES));
        assert_eq!(shown(0), (0, 0));
        assert_eq!(shown(256), (256, 256));
        assert_eq!(shown(2048), (2048, 256));
        assert_eq!(shown(2049), (2048, 129));
        // From each stack of this test, the 128 frames at the root are dropped.
        assert!((257..=384).all(|depth| shown(depth) == (depth, depth - 128)));
        assert_eq!(shown(16_000), (2048, 16_000 - 15_744));
    }
}

//! Finds host calls on different threads whose order decides which call or GPU work waits for which.
//!
//! ```text
//! thread 1   |-- wait for gemm --|record event|
//! thread 2                                       |wait for event|launch|
//! ```
//!
//! A wait for a CUDA event waits for the last record of the event that was submitted before the wait. In the picture
//! above, thread 1 records the event after `gemm`. If `gemm` ended later than in the picture, the call `wait for event`
//! would come before the call `record event`, and would wait for an older record. The dependency graph cannot show when
//! the run would end if a wait were for an older record. So the slack of a call ends where the next call of another
//! thread that uses the same object begins. The order of calls limits slack only if the run records how threads wait
//! for each other. If waits between threads are not recorded, the calls of two threads may be in order because of such
//! a wait.

use std::collections::HashMap;

use super::super::instructions::{
    Instruction, InstructionDetail, InstructionKind, InstructionList, ThreadWait,
};
use super::super::states::StreamKey;
use super::build::is_node;
use super::graph::{Graph, MomentId, NO_CALL};
use super::streams::{DEFAULT_STREAM, key_of};
use super::thread_waits::ThreadCalls;
use gpuflame_model::record::{EventId, GpuContextId, GraphId, SyncKind, ThreadId};

/// Object on whose state a call depends, or whose state it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Object {
    Stream(StreamKey),
    /// All streams of a CUDA context.
    Context(GpuContextId),
    /// The rule of default streams in a CUDA context.
    DefaultStream(GpuContextId),
    Event(EventId),
    Graph(GraphId),
    /// All locks together, because it is not recorded which lock a call uses.
    Locks,
}

/// How a call uses an object. The order of two uses of an object matters, except if both uses are `One` or both are
/// `Other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Use {
    Alone,
    One,
    Other,
}

impl Use {
    const ALL: [Self; 3] = [Self::Alone, Self::One, Self::Other];

    fn keeps_order_with(self, other: Self) -> bool {
        self != other || self == Self::Alone
    }
}

/// Finds the calls whose order relative to calls of other threads matters. For each of these calls, returns the moment
/// at which the call begins, and the latest time at which it could begin without changing the order.
pub(super) fn order_limits(
    graph: &Graph,
    list: &InstructionList,
    thread_calls: &ThreadCalls,
) -> Vec<(MomentId, u64)> {
    if !graph.knows_threads {
        return Vec::new();
    }
    let mut uses: Vec<(u32, Object, Use)> = Vec::new();
    for number in 0..list.len() as u32 {
        let call = graph.call_of[number as usize];
        let instruction = list.get(number);
        if call != NO_CALL && !is_node(&instruction) {
            add_uses(graph, list, &instruction, &mut |object, kind| uses.push((call, object, kind)));
        }
    }
    let locks = thread_calls.iter().filter(|(kind, _)| matches!(kind, ThreadWait::Lock | ThreadWait::Unlock));
    uses.extend(locks.map(|(_, call)| (*call, Object::Locks, Use::Alone)));
    uses.sort_by_key(|(call, _, _)| {
        let call = &graph.calls[*call as usize];
        (call.begin, call.thread)
    });
    let mut limits = Vec::new();
    // Time at which the next call begins, for each object, use and thread.
    let mut next: HashMap<(Object, Use), HashMap<ThreadId, u64>> = HashMap::new();
    for (call, object, kind) in uses.into_iter().rev() {
        let call = &graph.calls[call as usize];
        let others = Use::ALL.into_iter().filter(|other| kind.keeps_order_with(*other));
        let others = others.filter_map(|other| next.get(&(object, other))).flatten();
        let others = others.filter(|(thread, _)| **thread != call.thread);
        if let Some(limit) = others.map(|(_, begin)| *begin).min() {
            limits.push((call.moments.0, limit.saturating_sub(1).max(call.begin)));
        }
        next.entry((object, kind)).or_default().insert(call.thread, call.begin);
    }
    limits
}

/// Calls `each` with every object that an instruction uses, and with the kind of use.
fn add_uses(
    graph: &Graph,
    list: &InstructionList,
    instruction: &Instruction<'_>,
    each: &mut dyn FnMut(Object, Use),
) {
    let key = key_of(instruction);
    match (instruction.kind, instruction.detail) {
        (InstructionKind::Launch, _) => {}
        (InstructionKind::Record, detail) => {
            if let InstructionDetail::Event { event: Some(event) } = detail {
                each(Object::Event(event), Use::Alone);
            }
            if let Some(key) = key {
                each(Object::Stream(key), Use::One);
                use_default_stream(list, key, each);
            }
        }
        (InstructionKind::Synchronize, InstructionDetail::Synchronize { waits_for, event, .. }) => {
            if !graph.waiting.contains(&graph.call_of[instruction.number as usize]) {
                return;
            }
            match (waits_for, key, event, instruction.context) {
                (Some(SyncKind::STREAM), Some(key), ..) => {
                    each(Object::Stream(key), Use::One);
                    use_default_stream(list, key, each);
                }
                (Some(SyncKind::CONTEXT), .., Some(context)) => each(Object::Context(context), Use::Other),
                (_, _, Some(event), _) => each(Object::Event(event), Use::One),
                _ => {}
            }
        }
        (_, detail) => {
            if let InstructionDetail::Event { event: Some(event) } = detail {
                each(Object::Event(event), Use::One);
            }
            let mut submit = |key: StreamKey| {
                each(Object::Stream(key), Use::Alone);
                each(Object::Context(key.1), Use::One);
                use_default_stream(list, key, each);
            };
            match detail {
                InstructionDetail::Graph { streams: Some(streams), .. } => {
                    streams.iter().copied().for_each(submit);
                }
                _ => {
                    if let Some(key) = key {
                        submit(key);
                    }
                }
            }
            match detail {
                InstructionDetail::Graph { graph: Some(id), .. } => each(Object::Graph(id), Use::Alone),
                InstructionDetail::Work { activity, .. } if instruction.kind == InstructionKind::Graph => {
                    each(Object::Graph(activity.graph), Use::Alone);
                }
                _ => {}
            }
        }
    }
}

/// Calls `each` with the object and use that result from the rule of default streams. If two calls use the default
/// stream itself, their use of the stream already keeps their order.
fn use_default_stream(list: &InstructionList, key: StreamKey, each: &mut dyn FnMut(Object, Use)) {
    let (_, context, stream) = key;
    if stream == DEFAULT_STREAM {
        each(Object::DefaultStream(context), Use::Other);
    } else if list.is_blocking(context, stream) != Some(false) {
        each(Object::DefaultStream(context), Use::One);
    }
}

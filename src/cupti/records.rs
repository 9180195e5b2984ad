//! Having CUPTI hand its records to us, and leaving them to another client as that would have found them.

use super::Options;
use super::callback::buffer_functions;
use super::shared::Shared;
use crate::tracer::Tracer;
use cupti_sys::{ActivityAttribute, ActivityKind, Status};
use std::sync::atomic::{AtomicU8, Ordering};

/// A step of the set-up that CUPTI refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The step that failed.
    pub(super) step: &'static str,
    /// CUPTI's answer to it.
    pub(super) status: Status,
}

/// What is recorded. Kernels by the kind that leaves them concurrent.
const KINDS: [(ActivityKind, &str); 4] = [
    (ActivityKind::CONCURRENT_KERNEL, "kernels"),
    (ActivityKind::MEMCPY, "copies"),
    (ActivityKind::MEMCPY2, "copies between GPUs"),
    (ActivityKind::MEMSET, "fills"),
];

/// What is recorded besides, where it is asked for.
const DEPENDENCIES: [(ActivityKind, &str); 2] =
    [(ActivityKind::CUDA_EVENT, "events"), (ActivityKind::SYNCHRONIZATION, "waits")];

/// Kinds asked for where `Options::unified` is set, and what they are called when CUPTI refuses them.
const UNIFIED: [(ActivityKind, &str); 1] = [(ActivityKind::UNIFIED_MEMORY_COUNTER, "unified memory")];

/// Whether buffers are zero when CUPTI is handed them.
const ZEROED: ActivityAttribute = ActivityAttribute::ZEROED_OUT_ACTIVITY_BUFFER;

/// What that was before we set it; [`NOT_SET`]: we have not, or it was put back.
static ZEROED_BEFORE: AtomicU8 = AtomicU8::new(NOT_SET);
const NOT_SET: u8 = u8::MAX;

/// Asks for the records, at first or again. Gives what could not be set up, one sentence each.
pub(super) fn take<T: Tracer>(shared: &'static Shared, options: &Options) -> Result<Vec<String>, Refusal> {
    let mut notes = Vec::new();
    let (functions, subscriber) = (&shared.functions, shared.subscriber());
    // Spares CUPTI a memset of every buffer on the application's thread: ours are zero. Old releases do
    // not know it, and then only take longer.
    if ZEROED_BEFORE.load(Ordering::Acquire) == NOT_SET {
        let before = functions.attribute(subscriber, ZEROED).map_or(0, |before| before.min(1));
        ZEROED_BEFORE.store(before, Ordering::Release);
    }
    let _ = functions.set_attribute(subscriber, ZEROED, 1);

    shared.make_current();
    // SAFETY: all find their `Shared` in what was just made current, and that is never freed.
    unsafe { functions.register_buffers(subscriber, &buffer_functions::<T>()) }
        .map_err(|status| Refusal { step: "cuptiActivityRegisterCallbacks", status })?;

    let enable = |kinds: &[(ActivityKind, &'static str)]| -> Vec<_> {
        let refusal = |(kind, what): &(_, _)| {
            functions.enable_kind(subscriber, *kind).err().map(|status| (*what, status))
        };
        kinds.iter().filter_map(refusal).collect()
    };
    // First of all: who shares is refused nodes where another has graphs as a whole, and the other way round.
    if options.whole_graphs
        && let Err(status) = functions.enable_kind(subscriber, ActivityKind::GRAPH_TRACE)
    {
        notes.push(format!("CUPTI does not record graphs as a whole ({status}); it records their nodes"));
    }
    let mut refused = enable(&KINDS);
    if refused.len() == KINDS.len() {
        return Err(Refusal { step: "cuptiActivityEnable", status: refused[0].1 });
    }
    if options.events {
        // From 12.8 on there would be a record of each query of an event that has not happened yet, and programs
        // ask in loops.
        let _ = functions.record_unfinished_queries(false);
        refused.extend(enable(&DEPENDENCIES));
    }
    if options.unified {
        match functions.count_unified_memory() {
            Ok(()) => refused.extend(enable(&UNIFIED)),
            Err(status) => refused.push((UNIFIED[0].1, status)),
        }
    }
    notes.extend(refused.iter().map(|(what, status)| format!("CUPTI does not record {what}: {status}")));
    Ok(notes)
}

/// What was set for ourselves alone is as it was before. Leaves no error for who asks CUPTI what went wrong last.
pub(super) fn leave(shared: &Shared) {
    let functions = &shared.functions;
    let before = ZEROED_BEFORE.swap(NOT_SET, Ordering::AcqRel);
    let mut all = Ok(());
    if before != NOT_SET {
        all = functions.set_attribute(shared.subscriber(), ZEROED, before);
    }
    if shared.events {
        all = all.and(functions.record_unfinished_queries(true));
    }
    if all.is_err() {
        functions.forget_error();
    }
}

/// Nothing of ours is set: so it is at first, and after CUPTI was ended.
pub(super) fn begin() {
    ZEROED_BEFORE.store(NOT_SET, Ordering::Release);
}

//! Having CUPTI hand its records to us, and leaving them to another client as that would have found them.

use super::Options;
use super::callback::buffer_functions;
use super::shared::Shared;
use crate::tracer::Tracer;
use cupti_sys::{ActivityAttribute, ActivityKind, FlushFlag, Status};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

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

/// Kinds that are enabled for us, one bit each. CUPTI has one switch per kind for all clients.
static ENABLED: AtomicU64 = AtomicU64::new(0);

/// A kind as one bit of a set.
pub(super) fn bit(kind: ActivityKind) -> u64 {
    1_u64.checked_shl(kind.0).unwrap_or(0)
}

fn enable_kind(shared: &Shared, kind: ActivityKind) -> Result<(), Status> {
    shared.functions.enable_kind(shared.subscriber(), kind)?;
    ENABLED.fetch_or(bit(kind), Ordering::AcqRel);
    Ok(())
}

/// Asks for the records, at first or again. Gives what could not be set up, one sentence each. `is_flushed`: CUPTI holds no record
/// of another client.
pub(super) fn take<T: Tracer>(
    shared: &'static Shared,
    options: &Options,
    is_flushed: bool,
) -> Result<Vec<String>, Refusal> {
    let mut notes = Vec::new();
    let (functions, subscriber) = (&shared.functions, shared.subscriber());
    declare_buffers_zeroed(shared);
    shared.make_current();
    // SAFETY: all find their `Shared` in what was just made current, and that is never freed.
    unsafe { functions.register_buffers(subscriber, &buffer_functions::<T>()) }
        .map_err(|status| Refusal { step: "cuptiActivityRegisterCallbacks", status })?;
    if !is_flushed && shared.seen_work.load(Ordering::Relaxed) {
        // The client's last buffers, or our records would be written to them. It may have freed their memory.
        let _ = functions.flush(FlushFlag::NONE);
    }

    let enable = |kinds: &[(ActivityKind, &'static str)]| -> Vec<_> {
        let refusal = |(kind, what): &(_, _)| enable_kind(shared, *kind).err().map(|status| (*what, status));
        kinds.iter().filter_map(refusal).collect()
    };
    // First of all: who shares is refused nodes where another has graphs as a whole, and the other way round.
    if options.whole_graphs
        && let Err(status) = enable_kind(shared, ActivityKind::GRAPH_TRACE)
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

/// Spares CUPTI a memset of every buffer on the application's thread: ours are zero. Old releases do not know it, and then only take
/// longer.
fn declare_buffers_zeroed(shared: &Shared) {
    let (functions, subscriber) = (&shared.functions, shared.subscriber());
    if ZEROED_BEFORE.load(Ordering::Acquire) == NOT_SET {
        let before = functions.attribute(subscriber, ZEROED).map_or(0, |before| before.min(1));
        ZEROED_BEFORE.store(before, Ordering::Release);
    }
    let _ = functions.set_attribute(subscriber, ZEROED, 1);
}

/// Restores all settings that were made for us alone, and disables all kinds but `theirs`, which other clients have enabled. Returns
/// the kinds that it disabled, one bit each. Leaves no error for a client that asks CUPTI for its last error.
///
/// CUPTI calls the functions that were registered last for each record of an enabled kind. With our kinds off it calls a client
/// for that client's records alone, and never after the client has disabled its kinds.
pub(super) fn leave(shared: &Shared, theirs: u64) -> u64 {
    let functions = &shared.functions;
    let ours = ENABLED.fetch_and(theirs, Ordering::AcqRel) & !theirs;
    let mut all = Ok(());
    for kind in kinds(ours) {
        all = all.and(functions.disable_kind(shared.subscriber(), kind));
    }
    let before = ZEROED_BEFORE.swap(NOT_SET, Ordering::AcqRel);
    if before != NOT_SET {
        all = functions.set_attribute(shared.subscriber(), ZEROED, before);
    }
    if shared.events {
        all = all.and(functions.record_unfinished_queries(true));
    }
    if all.is_err() {
        functions.forget_error();
    }
    ours
}

/// Undoes [`leave`], for a client that was then refused.
pub(super) fn resume(shared: &Shared, kinds_of_ours: u64) {
    declare_buffers_zeroed(shared);
    if shared.events {
        let _ = shared.functions.record_unfinished_queries(false);
    }
    for kind in kinds(kinds_of_ours) {
        let _ = enable_kind(shared, kind);
    }
}

fn kinds(set: u64) -> impl Iterator<Item = ActivityKind> {
    (0..u64::BITS).map(ActivityKind).filter(move |kind| set & bit(*kind) != 0)
}

/// Nothing of ours is set: so it is at first, and after CUPTI was ended.
pub(super) fn begin() {
    ZEROED_BEFORE.store(NOT_SET, Ordering::Release);
    ENABLED.store(0, Ordering::Release);
}

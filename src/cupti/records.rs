//! Takes CUPTI's records for us, and leaves them to another client in the state that it would have found without us.

use super::Options;
use super::callback::buffer_functions;
use super::shared::Shared;
use crate::tracer::Tracer;
use cupti_sys::{ActivityAttribute, ActivityKind, FlushFlag, Status};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A set-up step that CUPTI refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Name of the step.
    pub(super) step: &'static str,
    /// CUPTI's status.
    pub(super) status: Status,
}

/// Kinds that are always recorded. Kernels by the kind that keeps them concurrent.
const KINDS: [(ActivityKind, &str); 4] = [
    (ActivityKind::CONCURRENT_KERNEL, "kernels"),
    (ActivityKind::MEMCPY, "copies"),
    (ActivityKind::MEMCPY2, "copies between GPUs"),
    (ActivityKind::MEMSET, "fills"),
];

/// Kinds that are recorded in addition if `Options::events` is set.
const DEPENDENCIES: [(ActivityKind, &str); 2] =
    [(ActivityKind::CUDA_EVENT, "events"), (ActivityKind::SYNCHRONIZATION, "waits")];

/// Kinds that are recorded if `Options::unified` is set, and their names in messages when CUPTI refuses them.
const UNIFIED: [(ActivityKind, &str); 1] = [(ActivityKind::UNIFIED_MEMORY_COUNTER, "unified memory")];

/// Attribute that tells CUPTI that buffers are zeroed when it gets them.
const ZEROED: ActivityAttribute = ActivityAttribute::ZEROED_OUT_ACTIVITY_BUFFER;

/// Value of that attribute before we set it; [`NOT_SET`] if we have not set it or have restored it.
static ZEROED_BEFORE: AtomicU8 = AtomicU8::new(NOT_SET);
const NOT_SET: u8 = u8::MAX;

/// Kinds that are enabled for us, one bit each. CUPTI has one switch per kind for all clients.
static ENABLED: AtomicU64 = AtomicU64::new(0);

/// Returns a kind as one bit of a set.
pub(super) fn bit(kind: ActivityKind) -> u64 {
    1_u64.checked_shl(kind.0).unwrap_or(0)
}

fn enable_kind(shared: &Shared, kind: ActivityKind) -> Result<(), Status> {
    shared.functions.enable_kind(shared.subscriber(), kind)?;
    ENABLED.fetch_or(bit(kind), Ordering::AcqRel);
    Ok(())
}

/// Asks for the records, for the first time or again. Returns one sentence for each thing that could not be set up.
/// `is_flushed`: CUPTI holds no record of another client.
pub(super) fn take<T: Tracer>(
    shared: &'static Shared,
    options: &Options,
    is_flushed: bool,
) -> Result<Vec<String>, Refusal> {
    let mut notes = Vec::new();
    let (functions, subscriber) = (&shared.functions, shared.subscriber());
    declare_buffers_zeroed(shared);
    shared.make_current();
    // SAFETY: the functions find their `Shared` through `make_current`, called above, and it is never freed.
    unsafe { functions.register_buffers(subscriber, &buffer_functions::<T>()) }
        .map_err(|status| Refusal { step: "cuptiActivityRegisterCallbacks", status })?;
    if !is_flushed && shared.seen_work.load(Ordering::Relaxed) {
        // Flushes the client's last buffers. Otherwise our records would be written to them, and the client may have
        // freed their memory.
        let _ = functions.flush(FlushFlag::NONE);
    }

    let enable = |kinds: &[(ActivityKind, &'static str)]| -> Vec<_> {
        let refusal = |(kind, what): &(_, _)| enable_kind(shared, *kind).err().map(|status| (*what, status));
        kinds.iter().filter_map(refusal).collect()
    };
    // Must be first: a client that shares is refused nodes while another records whole graphs, and the other way
    // round.
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
        // From 12.8 on, every query of an event that has not happened yet would produce a record, and programs query
        // in loops.
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

/// Spares CUPTI a memset of every buffer on the application's thread, as ours are already zero. Releases that do not
/// know the attribute are merely slower.
fn declare_buffers_zeroed(shared: &Shared) {
    let (functions, subscriber) = (&shared.functions, shared.subscriber());
    if ZEROED_BEFORE.load(Ordering::Acquire) == NOT_SET {
        let before = functions.attribute(subscriber, ZEROED).map_or(0, |before| before.min(1));
        ZEROED_BEFORE.store(before, Ordering::Release);
    }
    let _ = functions.set_attribute(subscriber, ZEROED, 1);
}

/// Restores all settings that were made only for us, and disables all kinds except `theirs`, which other clients have
/// enabled. Returns the kinds that it disabled, one bit each. Leaves no error for a client that asks CUPTI for its
/// last error.
///
/// CUPTI calls the functions that were registered last for each record of an enabled kind. With our kinds off it
/// calls a client only for that client's own records, and never after the client has disabled its kinds.
pub(super) fn leave(shared: &Shared, theirs: u64) -> u64 {
    let functions = &shared.functions;
    let ours = ENABLED.fetch_and(theirs, Ordering::AcqRel) & !theirs;
    let mut all = Ok(());
    for kind in kinds(ours) {
        all = all.and(functions.disable_kind(shared.subscriber(), kind));
    }
    let before = ZEROED_BEFORE.swap(NOT_SET, Ordering::AcqRel);
    if before != NOT_SET {
        all = all.and(functions.set_attribute(shared.subscriber(), ZEROED, before));
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

/// Resets our state to "nothing is set": initially, and after a client has ended CUPTI.
pub(super) fn begin() {
    ZEROED_BEFORE.store(NOT_SET, Ordering::Release);
    ENABLED.store(0, Ordering::Release);
}

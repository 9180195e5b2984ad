//! Makes CUPTI deliver activity records to us, and releases them to another client. Before a release, we restore all
//! settings of CUPTI. The other client then finds the settings as they would be without gpuflame.

use super::Options;
use super::callback::buffer_functions;
use super::callback_state::CallbackState;
use crate::tracer::Tracer;
use cupti_sys::{ActivityAttribute, ActivityKind, FlushFlag, Status};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A set-up step that CUPTI has refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SetupRefusal {
    /// Name of the refused set-up step.
    pub(super) step: &'static str,
    /// The status with which CUPTI has refused the step.
    pub(super) status: Status,
}

/// Activity kinds that are always recorded. The kind for kernels is `CONCURRENT_KERNEL`, because while this kind is
/// enabled, kernels may run concurrently.
const BASE_KINDS: [(ActivityKind, &str); 4] = [
    (ActivityKind::CONCURRENT_KERNEL, "kernels"),
    (ActivityKind::MEMCPY, "copies"),
    (ActivityKind::MEMCPY2, "copies between GPUs"),
    (ActivityKind::MEMSET, "fills"),
];

/// Activity kinds that are recorded only if `Options::events` is set, and their names in messages.
const EVENT_KINDS: [(ActivityKind, &str); 2] =
    [(ActivityKind::CUDA_EVENT, "events"), (ActivityKind::SYNCHRONIZATION, "waits")];

/// Activity kinds that are recorded only if `Options::unified` is set, and their names in messages.
const UNIFIED_MEMORY_KINDS: [(ActivityKind, &str); 1] =
    [(ActivityKind::UNIFIED_MEMORY_COUNTER, "unified memory")];

/// Attribute with which we tell CUPTI that all buffers are already zeroed.
const ZEROED_BUFFERS: ActivityAttribute = ActivityAttribute::ZEROED_OUT_ACTIVITY_BUFFER;

/// Value that [`ZEROED_BUFFERS`] had before we set it, or [`NOT_SET`] if we have not set it or have already restored
/// it.
static ZEROED_BEFORE: AtomicU8 = AtomicU8::new(NOT_SET);
const NOT_SET: u8 = u8::MAX;

/// Activity kinds that we have enabled, with one bit per kind. (All clients share CUPTI's switch for a kind.)
static ENABLED_KINDS: AtomicU64 = AtomicU64::new(0);

/// Returns the bit that stands for an activity kind in a set of kinds.
pub(super) fn kind_bit(kind: ActivityKind) -> u64 {
    1_u64.checked_shl(kind.0).unwrap_or(0)
}

fn enable_kind(shared: &CallbackState, kind: ActivityKind) -> Result<(), Status> {
    shared.functions.enable_kind(shared.subscriber(), kind)?;
    ENABLED_KINDS.fetch_or(kind_bit(kind), Ordering::AcqRel);
    Ok(())
}

/// Registers our buffer functions with CUPTI to get the activity records, either for the first time or after another
/// client has released the records. `is_flushed` is true if CUPTI holds no records of another client. Returns a
/// sentence for each feature that could not be set up.
pub(super) fn register<T: Tracer>(
    shared: &'static CallbackState,
    options: &Options,
    is_flushed: bool,
) -> Result<Vec<String>, SetupRefusal> {
    let mut notes = Vec::new();
    let (functions, subscriber) = (&shared.functions, shared.subscriber());
    declare_buffers_zeroed(shared);
    shared.make_current();
    // SAFETY: the functions find their `CallbackState` through `make_current`, which was called above. A
    // `CallbackState` is never freed.
    unsafe { functions.register_buffers(subscriber, &buffer_functions::<T>()) }
        .map_err(|status| SetupRefusal { step: "cuptiActivityRegisterCallbacks", status })?;
    if !is_flushed && shared.has_seen_work.load(Ordering::Relaxed) {
        // Flushes the last buffers of the other client. Without this flush, CUPTI would write our records to those
        // buffers, which the client may already have freed.
        let _ = functions.flush(FlushFlag::NONE);
    }

    let enable = |kinds: &[(ActivityKind, &'static str)]| -> Vec<_> {
        let refusal = |(kind, what): &(_, _)| enable_kind(shared, *kind).err().map(|status| (*what, status));
        kinds.iter().filter_map(refusal).collect()
    };
    // The kind for whole graphs is enabled first, because CUPTI may refuse it. If our subscription is shared, CUPTI
    // records no graph nodes for us while another client records whole graphs. If our subscription is shared, CUPTI
    // also records no whole graphs for us while another client records graph nodes.
    if options.whole_graphs
        && let Err(status) = enable_kind(shared, ActivityKind::GRAPH_TRACE)
    {
        notes
            .push(format!("CUPTI does not record whole graphs ({status}); their nodes are recorded instead"));
    }
    let mut refused = enable(&BASE_KINDS);
    if refused.len() == BASE_KINDS.len() {
        return Err(SetupRefusal { step: "cuptiActivityEnable", status: refused[0].1 });
    }
    if options.events {
        // By default, CUPTI 12.8 and later write a record for every query of a CUDA event that is not complete yet.
        // Programs make such queries in loops.
        let _ = functions.record_unfinished_queries(false);
        refused.extend(enable(&EVENT_KINDS));
    }
    if options.unified {
        match functions.count_unified_memory() {
            Ok(()) => refused.extend(enable(&UNIFIED_MEMORY_KINDS)),
            Err(status) => refused.push((UNIFIED_MEMORY_KINDS[0].1, status)),
        }
    }
    notes.extend(refused.iter().map(|(what, status)| format!("CUPTI does not record {what}: {status}")));
    Ok(notes)
}

/// Tells CUPTI that our buffers are already zeroed, so that CUPTI does not zero each buffer on an application thread. A
/// CUPTI release that lacks this attribute still zeroes the buffers, which is slower, but works.
fn declare_buffers_zeroed(shared: &CallbackState) {
    let (functions, subscriber) = (&shared.functions, shared.subscriber());
    if ZEROED_BEFORE.load(Ordering::Acquire) == NOT_SET {
        let before = functions.attribute(subscriber, ZEROED_BUFFERS).map_or(0, |before| before.min(1));
        ZEROED_BEFORE.store(before, Ordering::Release);
    }
    let _ = functions.set_attribute(subscriber, ZEROED_BUFFERS, 1);
}

/// Restores all settings of CUPTI that we have changed. Disables all of our activity kinds, except those that other
/// clients have enabled (`theirs`). Returns the kinds that were disabled, with one bit per kind. Clears CUPTI's last
/// error, so that no client sees an error that these calls have caused.
///
/// CUPTI passes each record of an enabled kind to the buffer functions that were registered last. After our kinds are
/// disabled, CUPTI calls a client's functions only for the client's own records. After a client has disabled its own
/// kinds, CUPTI does not call the client's functions at all.
pub(super) fn release(shared: &CallbackState, theirs: u64) -> u64 {
    let functions = &shared.functions;
    let ours = ENABLED_KINDS.fetch_and(theirs, Ordering::AcqRel) & !theirs;
    let mut all = Ok(());
    for kind in iterate_kinds(ours) {
        all = all.and(functions.disable_kind(shared.subscriber(), kind));
    }
    let before = ZEROED_BEFORE.swap(NOT_SET, Ordering::AcqRel);
    if before != NOT_SET {
        all = all.and(functions.set_attribute(shared.subscriber(), ZEROED_BUFFERS, before));
    }
    if shared.events {
        all = all.and(functions.record_unfinished_queries(true));
    }
    if all.is_err() {
        functions.forget_error();
    }
    ours
}

/// Undoes [`release`], which released the activity records for a client. Called if CUPTI has refused that client's call
/// after the release.
pub(super) fn resume(shared: &CallbackState, kinds_of_ours: u64) {
    declare_buffers_zeroed(shared);
    if shared.events {
        let _ = shared.functions.record_unfinished_queries(false);
    }
    for kind in iterate_kinds(kinds_of_ours) {
        let _ = enable_kind(shared, kind);
    }
}

fn iterate_kinds(set: u64) -> impl Iterator<Item = ActivityKind> {
    (0..u64::BITS).map(ActivityKind).filter(move |kind| set & kind_bit(*kind) != 0)
}

/// Notes that CUPTI currently has none of our settings, and that we have enabled no activity kind. Called at the start,
/// and after a client has shut CUPTI down.
pub(super) fn reset() {
    ZEROED_BEFORE.store(NOT_SET, Ordering::Release);
    ENABLED_KINDS.store(0, Ordering::Release);
}

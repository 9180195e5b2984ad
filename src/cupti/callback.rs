//! Functions of gpuflame that CUPTI calls. CUPTI calls these functions on any thread and around any API call. During
//! such a call, CUPTI may hold locks.
//!
//! [`on_event`] runs for every launch. For an API call, [`on_event`] looks up the call in a flat table, builds a
//! [`Call`] on the stack and passes the [`Call`] to the [`Tracer`]. The type of the tracer is known at compile time.
//! Because of this, a launch needs no allocation, no lock and no virtual call. All functions in this module catch
//! panics, because a panic must not unwind into CUPTI's stack frames.

use super::activity;
use super::api_version::BufferFunctions;
use super::callback_state::{CallbackState, LENT_BUFFERS, current, return_value};
use super::delivery_counts;
use super::host_calls::{graph_call, graph_event, host_call, launch_with_attributes};
use crate::tracer::{Call, CallKind, Layer, LentBuffers, ReturnedBuffer, Tracer};
use cupti_sys::callback::{BufferCompleteInfo, CallbackData, GraphData, ResourceData, StateData};
use cupti_sys::{CallbackId, Domain, Site, Status};
use gpuflame_model::record::CorrelationId;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ptr;

/// The function that CUPTI calls for each callback of a subscription, in all domains.
///
/// # Safety
/// `shared` must point to a `CallbackState` that is never freed. The arguments other than `shared` must be as CUPTI
/// documents them.
pub(super) unsafe extern "C" fn on_event<T: Tracer>(
    shared: *mut c_void,
    domain: Domain,
    id: CallbackId,
    data: *const c_void,
) {
    // SAFETY: the caller guarantees that `shared` points to a `CallbackState`. We passed this pointer to CUPTI together
    // with this function.
    let shared = unsafe { &*shared.cast::<CallbackState>() };
    shared.guard::<T>(|| match domain {
        Domain::RUNTIME_API | Domain::DRIVER_API => {
            // SAFETY: in these two domains, CUPTI passes a pointer to a `CallbackData` or null.
            let Some(data) = (unsafe { data.cast::<CallbackData>().as_ref() }) else {
                return delivery_counts::CALLBACKS_WITHOUT_DATA.add_one();
            };
            on_api_call::<T>(shared, domain, id, data);
        }
        Domain::RESOURCE => {
            // SAFETY: in this domain, CUPTI passes a pointer to a `ResourceData` or null.
            let Some(data) = (unsafe { data.cast::<ResourceData>().as_ref() }) else {
                return delivery_counts::CALLBACKS_WITHOUT_DATA.add_one();
            };
            on_resource::<T>(shared, &id, data);
        }
        Domain::STATE if id == CallbackId::FATAL_ERROR => {
            // SAFETY: in this domain, CUPTI passes a pointer to a `StateData` or null.
            let state = unsafe { data.cast::<StateData>().as_ref() };
            on_fatal_error::<T>(shared, state);
        }
        _ => {}
    });
}

/// Handles the entry or the exit of an API call, which is the most frequent callback.
#[inline(always)]
fn on_api_call<T: Tracer>(shared: &CallbackState, domain: Domain, id: CallbackId, data: &CallbackData) {
    let Some((api, kind)) = shared.calls.look_up(domain, id.0) else { return };
    shared.note_work();
    let spare_slot = Cell::new(0);
    // SAFETY: the pointer is null or points to the word that CUPTI keeps for this API call. No other code accesses this
    // word while the callback runs.
    let slot = unsafe { data.correlation_data.cast::<Cell<u64>>().as_ref() }.unwrap_or(&spare_slot);
    let layer = if domain == Domain::DRIVER_API { Layer::Driver } else { Layer::Runtime };
    let mut call = Call {
        kind,
        api,
        layer,
        correlation: CorrelationId(data.correlation_id),
        slot,
        return_value: 0,
        symbol_name: data.symbol_name,
    };
    if kind.has_arguments() {
        if kind.edits_graph() {
            return graph_call::<T>(shared, &call, data);
        }
        if kind.is_host_call() {
            host_call::<T>(&mut call, data);
            if kind == CallKind::Wait && data.site == Site::EXIT && shared.calls.waits_for_all(api) {
                delivery_counts::DEVICE_WAITS.add_one();
            }
            return;
        }
        launch_with_attributes::<T>(&call, data);
    }
    match data.site {
        Site::ENTER => T::enter(&call),
        Site::EXIT => {
            call.return_value = return_value(data);
            T::exit(&call);
        }
        _ => {}
    }
}

/// Handles a callback about a resource (a CUDA context or a graph). `id` must be in the stack frame of the caller.
fn on_resource<T: Tracer>(shared: &CallbackState, id: &CallbackId, data: &ResourceData) {
    if shared.is_off() {
        return;
    }
    match *id {
        CallbackId::CONTEXT_CREATED => {
            shared.note_work();
            T::context_created();
        }
        CallbackId::CONTEXT_DESTROY_STARTING => T::context_ending(),
        _ => {
            // SAFETY: for callbacks about graphs, the descriptor points to a `GraphData` or is null.
            let graph = unsafe { data.descriptor.cast::<GraphData>().as_ref() };
            if let Some(event) = graph.and_then(|graph| graph_event(shared, id, graph)) {
                T::graph(event);
            }
        }
    }
}
#[cold]
fn on_fatal_error<T: Tracer>(shared: &CallbackState, state: Option<&StateData>) {
    shared.retire();
    let status = state.map_or(Status::UNKNOWN, |state| state.result);
    let message = state.map(|state| state.message).filter(|message| !message.is_null());
    match message {
        // SAFETY: CUPTI passes a C string that is valid as long as the callback runs.
        Some(text) => T::fatal(&format!("{status}: {}", unsafe { CStr::from_ptr(text) }.to_string_lossy())),
        None => T::fatal(&status.to_string()),
    }
}

/// Returns the buffer functions of both API versions.
pub(super) fn buffer_functions<T: Tracer>() -> BufferFunctions {
    BufferFunctions {
        v1: (on_buffer_requested::<T>, on_buffer_completed::<T>),
        v2: (on_buffer_requested_v2::<T>, on_buffer_completed_v2::<T>),
    }
}

/// Lends CUPTI a buffer for activity records.
///
/// # Safety
/// Only CUPTI may call this function. The three pointers must be writable.
unsafe extern "C" fn on_buffer_requested<T: Tracer>(
    buffer: *mut *mut u8,
    size: *mut usize,
    max_records: *mut usize,
) {
    // SAFETY: this function is registered with CUPTI only after `make_current` was called.
    let shared = unsafe { current() };
    let mut lent = None;
    shared.guard::<T>(|| {
        if T::has_ended() {
            return lent = Some(LentBuffers::lend_untracked());
        }
        delivery_counts::BUFFERS_EXCHANGED.add_one();
        let own = if shared.is_off() { None } else { T::request_buffer() };
        lent = Some(LENT_BUFFERS.lend(own, shared.max_spares));
    });
    let (start, bytes) = lent.unwrap_or_else(LentBuffers::lend_untracked);
    // SAFETY: `buffer` is one of CUPTI's output pointers, to which this callback must write.
    unsafe { buffer.write(start) };
    // SAFETY: `size` is another of CUPTI's output pointers.
    unsafe { size.write(bytes) };
    // SAFETY: `max_records` is CUPTI's third output pointer, to which this callback must write. If this value is 0,
    // CUPTI writes as many records to the buffer as fit.
    unsafe { max_records.write(0) };
}

/// Takes a buffer of activity records back from CUPTI.
///
/// # Safety
/// Only CUPTI may call this function, and CUPTI must not access the buffer afterwards.
unsafe extern "C" fn on_buffer_completed<T: Tracer>(
    _context: *mut c_void,
    _stream: u32,
    buffer: *mut u8,
    _size: usize,
    valid: usize,
) {
    // SAFETY: this function is registered with CUPTI only after `make_current` was called.
    let shared = unsafe { current() };
    if T::has_ended() {
        return;
    }
    delivery_counts::BUFFERS_EXCHANGED.add_one();
    shared.guard::<T>(|| match LENT_BUFFERS.reclaim(buffer, valid) {
        ReturnedBuffer::Foreign => delivery_counts::FOREIGN_BUFFERS.add_one(),
        ReturnedBuffer::Filled(filled) if !shared.is_off() => T::buffer_completed(filled),
        ReturnedBuffer::Spare(filled) if !shared.is_off() => {
            let lost = activity::count_records(filled.bytes(), &shared.stepper());
            if lost > 0 {
                T::records_discarded(lost);
            }
        }
        _ => {}
    });
}

/// Lends CUPTI a buffer for the activity records of our subscriber (API version v2). Ignores the additional struct that
/// describes the request.
///
/// # Safety
/// The requirements are those of [`on_buffer_requested`].
unsafe extern "C" fn on_buffer_requested_v2<T: Tracer>(
    buffer: *mut *mut u8,
    size: *mut usize,
    max_records: *mut usize,
    _about: *mut c_void,
) {
    // SAFETY: the pointers come from our caller, and the same requirements apply to them.
    unsafe { on_buffer_requested::<T>(buffer, size, max_records) }
}

/// Takes a buffer with the activity records of our subscriber back from CUPTI (API version v2). Ignores the additional
/// struct that describes the buffer.
///
/// # Safety
/// The requirements are those of [`on_buffer_completed`].
unsafe extern "C" fn on_buffer_completed_v2<T: Tracer>(
    buffer: *mut u8,
    size: usize,
    valid: usize,
    _about: *mut BufferCompleteInfo,
) {
    // SAFETY: the buffer comes from our caller, and the same requirements apply to it.
    unsafe { on_buffer_completed::<T>(ptr::null_mut(), 0, buffer, size, valid) }
}

//! The edge where CUPTI calls us: on any thread, around any call, from inside its own locks.
//!
//! [`on_event`] is on the path of every launch. It looks the call up in a flat table, lays a [`Call`] on
//! the stack and hands it to the [`Tracer`], which is known at compile time: no allocation, no lock, no
//! virtual call. A panic stops here: it must not run into CUPTI's frames.

use super::activity;
use super::beside::{beside, graph_call, graph_event};
use super::buffer::{Lent, Returned};
use super::calls::CallTable;
use super::family::Functions;
use super::tracer::{Call, Layer, Tracer};
use crate::record::{CorrelationId, GraphId, GraphNodeId};
use cupti_sys::callback::{CallbackData, GraphData, ResourceData, StateData};
use cupti_sys::{CallbackId, Domain, Site, Status};
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
/// What callbacks reach. Made before the subscription and never freed, since a callback may be under
/// way at any time.
pub(super) struct Shared {
    pub(super) calls: CallTable,
    pub(super) functions: Functions,
    /// The subscription; null until there is one.
    pub(super) subscriber: AtomicPtr<c_void>,
    /// An API call or a context was seen. A flush before that can hang.
    pub(super) seen_work: AtomicBool,
    /// No CUPTI call may be made any more.
    pub(super) retired: AtomicBool,
    panicked: AtomicBool,
}

/// The buffers that CUPTI has. Outlives a subscription, as they may come back after it.
pub(super) static LENT: Lent = Lent::new();

/// The one subscription, for the buffer callbacks: CUPTI hands them no pointer of ours.
static CURRENT: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

impl Shared {
    pub(super) fn new(functions: Functions) -> Self {
        Self {
            calls: CallTable::new(),
            functions,
            subscriber: AtomicPtr::new(ptr::null_mut()),
            seen_work: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        }
    }

    /// Makes these what the buffer callbacks use.
    pub(super) fn make_current(&'static self) {
        CURRENT.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// From now on no CUPTI call is made, and callbacks do nothing.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.calls.clear();
    }

    /// The library's way from record to record; once retired, a way that ends at once.
    pub(super) fn stepper(&self) -> impl Fn(*mut u8, usize, &mut *mut u8) -> Status {
        move |buffer, valid, record| {
            if self.retired.load(Ordering::Acquire) {
                return Status::DISABLED;
            }
            // SAFETY: only `activity` calls this, on buffers that this library filled.
            unsafe { self.functions.next_record(buffer, valid, record) }
        }
    }

    pub(super) fn graph_id(&self, graph: *mut c_void) -> Option<GraphId> {
        if graph.is_null() { None } else { self.functions.graph_id(graph).map(GraphId) }
    }

    pub(super) fn node_id(&self, node: *mut c_void) -> Option<GraphNodeId> {
        if node.is_null() { None } else { self.functions.graph_node_id(node).map(GraphNodeId) }
    }

    fn note_work(&self) {
        // Loaded first: a store in every callback would make all threads fight for one cache line.
        if !self.seen_work.load(Ordering::Relaxed) {
            self.seen_work.store(true, Ordering::Relaxed);
        }
    }

    /// Runs what belongs to the tracer. The catch is a table entry: nothing on the way through.
    #[inline(always)]
    fn guard<T: Tracer>(&self, body: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
            // Its destructor might panic in turn.
            std::mem::forget(panic);
            self.panicked::<T>();
        }
    }

    #[cold]
    fn panicked<T: Tracer>(&self) {
        if !self.panicked.swap(true, Ordering::AcqRel) {
            self.calls.clear();
            let _ = catch_unwind(T::panicked).map_err(std::mem::forget);
        }
    }

    fn is_off(&self) -> bool {
        self.panicked.load(Ordering::Acquire) || self.retired.load(Ordering::Acquire)
    }
}

/// The one callback of a subscription.
///
/// # Safety
/// `shared` is a `Shared` that is never freed; the rest is as CUPTI calls it.
pub(super) unsafe extern "C" fn on_event<T: Tracer>(
    shared: *mut c_void,
    domain: Domain,
    id: CallbackId,
    data: *const c_void,
) {
    // SAFETY: the pointer that was handed to CUPTI with this function; see `# Safety`.
    let shared = unsafe { &*shared.cast::<Shared>() };
    shared.guard::<T>(|| match domain {
        Domain::RUNTIME_API | Domain::DRIVER_API => {
            // SAFETY: in these two domains CUPTI passes a `CallbackData`.
            let data = unsafe { &*data.cast::<CallbackData>() };
            api_call::<T>(shared, domain, id, data);
        }
        // SAFETY: in this domain CUPTI passes a `ResourceData`, or null at worst.
        Domain::RESOURCE => resource::<T>(shared, &id, unsafe { data.cast::<ResourceData>().as_ref() }),
        Domain::STATE if id == CallbackId::FATAL_ERROR => {
            // SAFETY: in this domain CUPTI passes a `StateData`, or null at worst.
            let state = unsafe { data.cast::<StateData>().as_ref() };
            fatal::<T>(shared, state);
        }
        _ => {}
    });
}

/// The hot path.
#[inline(always)]
fn api_call<T: Tracer>(shared: &Shared, domain: Domain, id: CallbackId, data: &CallbackData) {
    let Some((api, kind)) = shared.calls.look_up(domain, id.0) else { return };
    shared.note_work();
    let spare_slot = Cell::new(0);
    // SAFETY: null, or CUPTI's word for this call, which nothing else touches while the callback runs.
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
    if kind.is_beside_work() {
        if kind.edits_graph() {
            return graph_call::<T>(shared, &call, data);
        }
        return beside::<T>(&mut call, data);
    }
    match data.site {
        Site::ENTER => T::enter(&call),
        Site::EXIT => {
            call.return_value = result_of(data);
            T::exit(&call);
        }
        _ => {}
    }
}

/// What the call returned; 0 before.
pub(super) fn result_of(data: &CallbackData) -> u32 {
    // SAFETY: null, or after the call its 32-bit result.
    unsafe { data.function_return_value.cast::<u32>().as_ref() }.copied().unwrap_or(0)
}
/// `id` lies in the caller's frame.
fn resource<T: Tracer>(shared: &Shared, id: &CallbackId, data: Option<&ResourceData>) {
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
            // SAFETY: at events about graphs this is a `GraphData`, or null at worst.
            let graph = data.and_then(|data| unsafe { data.descriptor.cast::<GraphData>().as_ref() });
            if let Some(event) = graph.and_then(|graph| graph_event(shared, id, graph)) {
                T::graph(event);
            }
        }
    }
}
#[cold]
fn fatal<T: Tracer>(shared: &Shared, state: Option<&StateData>) {
    shared.retire();
    let status = state.map_or(Status::UNKNOWN, |state| state.result);
    let message = state.map(|state| state.message).filter(|message| !message.is_null());
    match message {
        // SAFETY: CUPTI passes a C string that lives as long as the callback.
        Some(text) => T::fatal(&format!("{status}: {}", unsafe { CStr::from_ptr(text) }.to_string_lossy())),
        None => T::fatal(&status.to_string()),
    }
}

/// CUPTI wants a buffer.
///
/// # Safety
/// As CUPTI calls it: the three pointers can be written to.
pub(super) unsafe extern "C" fn on_buffer_requested<T: Tracer>(
    buffer: *mut *mut u8,
    size: *mut usize,
    max_records: *mut usize,
) {
    // SAFETY: registered only after `make_current` with a `Shared` that is never freed.
    let shared = unsafe { &*CURRENT.load(Ordering::Acquire) };
    let mut lent = None;
    shared.guard::<T>(|| {
        let own = if shared.is_off() { None } else { T::request_buffer() };
        lent = Some(LENT.lend(own));
    });
    let (start, bytes) = lent.unwrap_or_else(|| LENT.lend(None));
    // SAFETY: the pointers are CUPTI's, to be written here.
    unsafe { buffer.write(start) };
    // SAFETY: likewise.
    unsafe { size.write(bytes) };
    // SAFETY: likewise; 0 = as many as fit.
    unsafe { max_records.write(0) };
}

/// CUPTI gives a buffer back.
///
/// # Safety
/// As CUPTI calls it: it will not touch the buffer again.
pub(super) unsafe extern "C" fn on_buffer_completed<T: Tracer>(
    _context: *mut c_void,
    _stream: u32,
    buffer: *mut u8,
    _size: usize,
    valid: usize,
) {
    // SAFETY: registered only after `make_current` with a `Shared` that is never freed.
    let shared = unsafe { &*CURRENT.load(Ordering::Acquire) };
    shared.guard::<T>(|| match LENT.take_back(buffer, valid) {
        Returned::Filled(filled) if !shared.is_off() => T::buffer_completed(filled),
        Returned::Spare(filled) if !shared.is_off() => {
            let lost = activity::count(filled.bytes(), &shared.stepper());
            if lost > 0 {
                T::records_discarded(lost);
            }
        }
        _ => {}
    });
}

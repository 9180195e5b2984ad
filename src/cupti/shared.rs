//! What callbacks reach, whatever they are about: the library, the calls that are enabled, and whether to go on.

use super::calls::CallTable;
use super::family::Functions;
use crate::record::{GraphId, GraphNodeId};
use crate::tracer::{Lent, Tracer, errno};
use cupti_sys::callback::CallbackData;
use cupti_sys::{Status, Subscriber};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// What callbacks reach. Made before the subscription and never freed, since a callback may be under
/// way at any time.
pub(super) struct Shared {
    pub(super) calls: CallTable,
    pub(super) functions: Functions,
    /// Whether events and waits are recorded.
    pub(super) events: bool,
    /// The subscription; null until there is one.
    pub(super) subscriber: AtomicPtr<c_void>,
    /// An API call or a context was seen. A flush before that can hang.
    pub(super) seen_work: AtomicBool,
    /// No CUPTI call may be made any more.
    pub(super) retired: AtomicBool,
    /// Another client has ended CUPTI: no call is made until it is subscribed to again.
    pub(super) is_ended: AtomicBool,
    panicked: AtomicBool,
}

/// The buffers that CUPTI has. Outlives a subscription, as they may come back after it.
pub(super) static LENT: Lent = Lent::new();

/// The one subscription, for the buffer callbacks: CUPTI hands them no pointer of ours.
static CURRENT: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

/// The one that was made current.
///
/// # Safety
/// [`Shared::make_current`] was called.
pub(super) unsafe fn current() -> &'static Shared {
    // SAFETY: the caller says that it is one, and `make_current` that it is never freed.
    unsafe { &*CURRENT.load(Ordering::Acquire) }
}

impl Shared {
    pub(super) fn new(functions: Functions, events: bool) -> Self {
        Self {
            calls: CallTable::new(),
            functions,
            events,
            subscriber: AtomicPtr::new(ptr::null_mut()),
            seen_work: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        }
    }

    /// Makes these what the buffer callbacks use.
    pub(super) fn make_current(&'static self) {
        CURRENT.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// The subscription; null if there is none.
    pub(super) fn subscriber(&self) -> Subscriber {
        Subscriber(self.subscriber.load(Ordering::Acquire))
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
            unsafe { self.functions.next_record(self.subscriber(), buffer, valid, record) }
        }
    }

    pub(super) fn graph_id(&self, graph: *mut c_void) -> Option<GraphId> {
        if graph.is_null() { None } else { self.functions.graph_id(graph).map(GraphId) }
    }

    pub(super) fn node_id(&self, node: *mut c_void) -> Option<GraphNodeId> {
        if node.is_null() { None } else { self.functions.graph_node_id(node).map(GraphNodeId) }
    }

    pub(super) fn note_work(&self) {
        // Loaded first: a store in every callback would make all threads fight for one cache line.
        if !self.seen_work.load(Ordering::Relaxed) {
            self.seen_work.store(true, Ordering::Relaxed);
        }
    }

    /// Runs what belongs to the tracer, and leaves errno as it was. The catch is a table entry: nothing on the way through.
    #[inline(always)]
    pub(super) fn guard<T: Tracer>(&self, body: impl FnOnce()) {
        if let Err(panic) = errno::kept(|| catch_unwind(AssertUnwindSafe(body))) {
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

    pub(super) fn is_off(&self) -> bool {
        [&self.panicked, &self.retired].into_iter().any(|flag| flag.load(Ordering::Acquire))
    }
}

/// What the call returned; 0 before.
pub(super) fn result_of(data: &CallbackData) -> u32 {
    // SAFETY: null, or after the call its 32-bit result.
    unsafe { data.function_return_value.cast::<u32>().as_ref() }.copied().unwrap_or(0)
}

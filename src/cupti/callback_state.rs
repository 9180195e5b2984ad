//! State that all of CUPTI's callbacks share: the library, the table of enabled calls, and whether tracing has ended.

use super::api_version::CuptiFunctions;
use super::calls::CallTable;
use super::version::Version;
use crate::tracer::{LentBuffers, Tracer, errno};
use cupti_sys::callback::CallbackData;
use cupti_sys::{Status, Subscriber};
use gpuflame_model::record::{GraphId, GraphNodeId};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of spare buffers that CUPTI holds at the same time. A spare buffer takes 64 KiB and saves 300 buffer
/// requests that would each get no buffer. The number is limited because CUPTI's own thread may return buffers late,
/// and spare buffers would then take most of the memory.
const MAX_SPARES: usize = 16;

/// State shared with CUPTI's callbacks. The state is created before subscribing and never freed, because a callback
/// may be running at any time.
pub(super) struct CallbackState {
    pub(super) calls: CallTable,
    pub(super) functions: CuptiFunctions,
    /// Whether CUDA events and waits are recorded.
    pub(super) events: bool,
    /// Maximum number of spare buffers that CUPTI holds at the same time. Unlimited if this CUPTI version would crash
    /// without a buffer.
    pub(super) max_spares: usize,
    /// Our subscription; null if we have no subscription.
    pub(super) subscriber: AtomicPtr<c_void>,
    /// Whether an API call or the creation of a CUDA context was seen. Until an API call or a CUDA context was seen, a
    /// flush can hang.
    pub(super) has_seen_work: AtomicBool,
    /// Whether CUPTI calls are permanently forbidden.
    pub(super) retired: AtomicBool,
    /// Whether another client has shut CUPTI down. After a client has shut CUPTI down, we make no CUPTI call until we
    /// subscribe again.
    pub(super) is_finalized: AtomicBool,
    /// Number of our threads that are in a CUPTI call. `finalizing` is the number of threads of clients that are in
    /// cuptiFinalize, or about to call it. None of our threads may be in a CUPTI call while another client shuts CUPTI
    /// down.
    in_flight: AtomicU32,
    finalizing: AtomicU32,
    /// Id of the process that created this state.
    process: u32,
    panicked: AtomicBool,
}

/// Guard that increments a counter when it is created, and decrements the counter when it is dropped.
pub(super) struct CountGuard<'a>(&'a AtomicU32);

impl<'a> CountGuard<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Buffers that CUPTI holds. The list of lent buffers does not belong to one subscription, because CUPTI may return
/// buffers after the subscription has ended.
pub(super) static LENT_BUFFERS: LentBuffers = LentBuffers::new();

/// State of the current subscription. The buffer callbacks need this static variable, because CUPTI passes them no
/// pointer of ours.
static CURRENT: AtomicPtr<CallbackState> = AtomicPtr::new(ptr::null_mut());

/// Returns the state for which `make_current` was called last.
///
/// # Safety
/// [`CallbackState::make_current`] was called before.
pub(super) unsafe fn current() -> &'static CallbackState {
    // SAFETY: the caller guarantees that `make_current` stored a pointer, whose target is never freed.
    unsafe { &*CURRENT.load(Ordering::Acquire) }
}

impl CallbackState {
    pub(super) fn new(functions: CuptiFunctions, version: Version, events: bool) -> Self {
        Self {
            calls: CallTable::new(),
            functions,
            events,
            max_spares: if version.survives_without_buffer() { MAX_SPARES } else { usize::MAX },
            subscriber: AtomicPtr::new(ptr::null_mut()),
            has_seen_work: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            is_finalized: AtomicBool::new(false),
            in_flight: AtomicU32::new(0),
            finalizing: AtomicU32::new(0),
            process: std::process::id(),
            panicked: AtomicBool::new(false),
        }
    }

    /// Makes the buffer callbacks use this state.
    pub(super) fn make_current(&'static self) {
        CURRENT.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// Returns our subscription, or null if we have no subscription.
    pub(super) fn subscriber(&self) -> Subscriber {
        Subscriber(self.subscriber.load(Ordering::Acquire))
    }

    /// Runs `calls`, a function that calls CUPTI. Returns `None` without running `calls` if no CUPTI call is allowed
    /// now.
    pub(super) fn call<R>(&self, calls: impl FnOnce() -> R) -> Option<R> {
        self.call_even_if_finalized(|| (!self.is_finalized.load(Ordering::SeqCst)).then(calls)).flatten()
    }

    /// Runs `calls`, even if another client has shut CUPTI down. Needed for subscribing, which makes CUPTI work again.
    pub(super) fn call_even_if_finalized<R>(&self, calls: impl FnOnce() -> R) -> Option<R> {
        let _in_flight = CountGuard::new(&self.in_flight);
        // This thread first counts its CUPTI call, and then checks whether a client is in cuptiFinalize. The client's
        // thread first announces cuptiFinalize, and then reads the number of our calls. So at least one of the two
        // threads notices the other thread.
        let may_call = !self.is_retired() && self.finalizing.load(Ordering::SeqCst) == 0;
        may_call.then(calls)
    }

    /// Forbids new CUPTI calls until the returned guard is dropped, and waits at most `limit` for the CUPTI calls of
    /// our threads to end. Called when a client is about to call cuptiFinalize.
    pub(super) fn block_calls(&self, limit: Duration) -> CountGuard<'_> {
        let finalizing = CountGuard::new(&self.finalizing);
        let begin = Instant::now();
        while self.in_flight.load(Ordering::SeqCst) > 0 && begin.elapsed() < limit {
            thread::sleep(Duration::from_micros(200));
        }
        finalizing
    }

    /// Whether this process is a forked child, which has inherited its parent's driver state.
    pub(super) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Permanently stops making CUPTI calls, and makes all callbacks do nothing.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.calls.clear();
    }

    /// Returns a function that steps from activity record to activity record by calling the library. Once this state
    /// is retired, the returned function ends every walk immediately.
    pub(super) fn stepper(&self) -> impl Fn(*mut u8, usize, &mut *mut u8) -> Status {
        move |buffer, valid, record| {
            if self.retired.load(Ordering::Acquire) {
                return Status::DISABLED;
            }
            // SAFETY: only `activity` calls the stepper, on buffers that this library has filled.
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
        // Store only if the flag is not set yet. If every callback stored the flag, all threads would compete for one
        // cache line.
        if !self.has_seen_work.load(Ordering::Relaxed) {
            self.has_seen_work.store(true, Ordering::Relaxed);
        }
    }

    /// Runs code of the tracer, preserves errno and catches panics. If the code does not panic, catching panics
    /// executes no instruction and costs only an entry in the unwind table.
    #[inline(always)]
    pub(super) fn guard<T: Tracer>(&self, body: impl FnOnce()) {
        if let Err(panic) = errno::preserve(|| catch_unwind(AssertUnwindSafe(body))) {
            // Do not drop the payload of the panic, because its destructor might panic too.
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

/// Returns the result of the API call, or 0 if the call has not returned yet.
pub(super) fn return_value(data: &CallbackData) -> u32 {
    // SAFETY: the pointer is null or, after the call, points to its 32-bit result.
    unsafe { data.function_return_value.cast::<u32>().as_ref() }.copied().unwrap_or(0)
}

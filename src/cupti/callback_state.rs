//! State that all CUPTI callbacks share: the library, the table of enabled calls, and whether tracing has ended.

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

/// Maximum number of spare buffers that CUPTI may hold at the same time. A spare buffer takes 64 KiB and has room for
/// 300 records. Without a spare buffer, CUPTI would request a buffer for each of these records in vain. This number is
/// limited because CUPTI's own thread may return buffers late. Without this limit, spare buffers could then take most
/// of the memory.
const MAX_SPARES: usize = 16;

/// State that we share with CUPTI's callbacks. The state is created before the subscription and never freed, because a
/// callback may run at any time.
pub(super) struct CallbackState {
    pub(super) calls: CallTable,
    pub(super) functions: CuptiFunctions,
    /// Whether CUDA events and waits are recorded.
    pub(super) events: bool,
    /// Maximum number of spare buffers that CUPTI may hold at the same time. There is no limit if this version of CUPTI
    /// would crash without a buffer.
    pub(super) max_spares: usize,
    /// Our CUPTI subscription; null if we have none.
    pub(super) subscriber: AtomicPtr<c_void>,
    /// Whether CUPTI has already reported an API call or the creation of a CUDA context. Before the first API call or
    /// CUDA context, a flush of CUPTI can hang.
    pub(super) has_seen_work: AtomicBool,
    /// Whether CUPTI must never be called again.
    pub(super) retired: AtomicBool,
    /// Whether another client has shut CUPTI down. After another client has shut CUPTI down, we make no CUPTI call
    /// until we subscribe again.
    pub(super) is_finalized: AtomicBool,
    /// Number of our threads that are inside a CUPTI call. `finalizing` is the number of threads of other clients that
    /// are about to call cuptiFinalize or are inside this call. No thread of ours may be inside a CUPTI call while
    /// another client shuts CUPTI down.
    in_flight: AtomicU32,
    finalizing: AtomicU32,
    /// Id of the process that has created this state.
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

/// Buffers for activity records that CUPTI holds. This list is independent of any subscription, because CUPTI may
/// return buffers after a subscription has ended.
pub(super) static LENT_BUFFERS: LentBuffers = LentBuffers::new();

/// State of the current CUPTI subscription. The buffer callbacks need this static variable, because CUPTI passes no
/// pointer of ours to them.
static CURRENT: AtomicPtr<CallbackState> = AtomicPtr::new(ptr::null_mut());

/// Returns the state for which `make_current` was last called.
///
/// # Safety
/// [`CallbackState::make_current`] must have been called before.
pub(super) unsafe fn current() -> &'static CallbackState {
    // SAFETY: the caller guarantees that `make_current` has stored a pointer to a state. The state to which the pointer
    // points is never freed.
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

    /// Makes this state the one that the buffer callbacks use.
    pub(super) fn make_current(&'static self) {
        CURRENT.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// Returns our CUPTI subscription, or null if we have none.
    pub(super) fn subscriber(&self) -> Subscriber {
        Subscriber(self.subscriber.load(Ordering::Acquire))
    }

    /// Runs `calls`, which makes CUPTI calls. Returns `None` and does not run `calls` if no CUPTI call is currently
    /// allowed.
    pub(super) fn call<R>(&self, calls: impl FnOnce() -> R) -> Option<R> {
        self.call_even_if_finalized(|| (!self.is_finalized.load(Ordering::SeqCst)).then(calls)).flatten()
    }

    /// Runs `calls`, even if another client has shut CUPTI down. Subscribing needs this function, because a
    /// subscription makes CUPTI work again.
    pub(super) fn call_even_if_finalized<R>(&self, calls: impl FnOnce() -> R) -> Option<R> {
        let _in_flight = CountGuard::new(&self.in_flight);
        // This thread first counts its own CUPTI call, and then checks whether another client is in cuptiFinalize. The
        // thread of that client first announces cuptiFinalize, and then reads the number of our calls. Therefore at
        // least one of the two threads notices the other thread.
        let may_call = !self.is_retired() && self.finalizing.load(Ordering::SeqCst) == 0;
        may_call.then(calls)
    }

    /// Forbids new CUPTI calls until the returned guard is dropped. Waits up to `limit` for the CUPTI calls of our
    /// threads to end. Called when another client is about to call cuptiFinalize.
    pub(super) fn block_calls(&self, limit: Duration) -> CountGuard<'_> {
        let finalizing = CountGuard::new(&self.finalizing);
        let begin = Instant::now();
        while self.in_flight.load(Ordering::SeqCst) > 0 && begin.elapsed() < limit {
            thread::sleep(Duration::from_micros(200));
        }
        finalizing
    }

    /// Whether this process is a forked child that has inherited its parent's driver state.
    pub(super) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Stops all CUPTI calls permanently, and makes all callbacks do nothing.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.calls.clear();
    }

    /// Returns a function that calls the library to step from one activity record to the next. Once this state is
    /// retired, the function ends every walk over a buffer immediately.
    pub(super) fn stepper(&self) -> impl Fn(*mut u8, usize, &mut *mut u8) -> Status {
        move |buffer, valid, record| {
            if self.retired.load(Ordering::Acquire) {
                return Status::DISABLED;
            }
            // SAFETY: only `activity` calls this function, for buffers that this library has filled.
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
        // This flag is stored only if it is not set yet. If every callback stored the flag, all threads would compete
        // for one cache line.
        if !self.has_seen_work.load(Ordering::Relaxed) {
            self.has_seen_work.store(true, Ordering::Relaxed);
        }
    }

    /// Runs code of the tracer. Preserves errno, and catches panics of this code. The catch only adds an entry to the
    /// unwind table, so as long as the code does not panic, the catch executes no instruction.
    #[inline(always)]
    pub(super) fn guard<T: Tracer>(&self, body: impl FnOnce()) {
        if let Err(panic) = errno::preserve(|| catch_unwind(AssertUnwindSafe(body))) {
            // The payload of the panic is not dropped, because its destructor might panic too.
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

/// Returns the result of the API call, or 0 if the call has not returned.
pub(super) fn return_value(data: &CallbackData) -> u32 {
    // SAFETY: the pointer is null or, after the call has returned, points to the call's 32-bit result.
    unsafe { data.function_return_value.cast::<u32>().as_ref() }.copied().unwrap_or(0)
}

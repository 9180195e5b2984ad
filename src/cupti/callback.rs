//! The edge where CUPTI calls us: on any thread, around any call, from inside its own locks.
//!
//! [`on_event`] is on the path of every launch. It looks the call up in a flat table, lays a [`Call`] on
//! the stack and hands it to the [`Tracer`], which is known at compile time: no allocation, no lock, no
//! virtual call. A panic stops here: it must not run into CUPTI's frames.

use super::activity;
use super::buffer::{Buffer, Filled, Lent, Returned};
use super::calls::{AllocationKind, ApiCall, CallKind, CallTable};
use super::family::Functions;
use crate::record::{CorrelationId, GraphId, GraphNodeId};
use cupti_sys::callback::{CallbackData, GraphData, ResourceData, StateData};
use cupti_sys::{CallbackId, Domain, Site, Status};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Who is told what CUPTI tells us. Associated functions only: there is one tracer a process.
///
/// All may be called on any thread of the application, at any time from the middle of
/// [`subscribe`](super::subscribe) on, and several at once. None may make a CUDA call. A panic in one of
/// them ends tracing (see [`Tracer::panicked`]) and never reaches the application.
pub trait Tracer: 'static {
    /// Whether [`Tracer::graph`] is wanted. Default: `false`.
    const GRAPHS: bool = false;

    /// An enabled API call begins.
    fn enter(call: &Call<'_>);

    /// An enabled API call is over. [`Call::return_value`] says whether it worked.
    ///
    /// Its activity records may have been delivered already. A call that is under way when tracing
    /// begins or ends (also by [`Tracer::fatal`]) has one of its two ends told only.
    fn exit(call: &Call<'_>);

    /// CUPTI needs memory for records. `None`: there is none left; the records are then counted to
    /// [`Tracer::records_discarded`].
    ///
    /// CUPTI holds a lock of its own: no CUPTI call here, and no lock that is held around one elsewhere.
    fn request_buffer() -> Option<Buffer>;

    /// CUPTI gives records back, on the application's thread or one of its own: keep and return. The
    /// same about locks as for [`Tracer::request_buffer`].
    fn buffer_completed(filled: Filled);

    /// That many records came back in memory that was not the tracer's, and are lost.
    fn records_discarded(count: u64);

    /// A context was made.
    fn context_created() {}

    /// A context is about to go. Too late for a flush, which was due when the call that ends it began
    /// ([`CallKind::ends_context`]).
    fn context_ending() {}

    /// Something happened to a graph, on this thread.
    fn graph(event: GraphEvent<'_>) {
        let _ = event;
    }

    /// A call that makes no GPU work, but waits for it, has to do with events or memory: only where asked for
    /// (see [`Options`](super::Options)).
    fn beside(event: BesideEvent<'_>) {
        let _ = event;
    }

    /// CUPTI met an error it cannot go on after, and has finalised itself. No call is made to it any
    /// more; what was not delivered is lost.
    fn fatal(reason: &str) {
        let _ = reason;
    }

    /// A function of this trait panicked: a bug of ours. Said once, and the last thing that is said:
    /// API callbacks and buffers are ignored from now on.
    fn panicked() {}
}

/// An API call that begins or is over.
///
/// The one that a [`Tracer`] is handed lies in the frame of the function that CUPTI called: frames further in
/// are ours.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// What it does.
    pub kind: CallKind,
    /// Which call, as an index of its label: see [`Api::labels`](super::Api::labels).
    pub api: ApiCall,
    /// Whether it is of the driver API or the runtime API.
    pub layer: Layer,
    /// The id that its activities will carry.
    pub correlation: CorrelationId,
    /// A word that CUPTI keeps from `enter` to `exit` of one call; 0 at `enter` unless set there.
    pub slot: &'a Cell<u64>,
    /// At `exit`: what it returned (`CUresult`, `cudaError_t`); 0 = it worked. At `enter`: 0.
    pub return_value: u32,
    /// For launches: the kernel's mangled name, valid during the callback; else null.
    pub symbol_name: *const c_char,
}

/// A call that makes no GPU work.
pub enum BesideEvent<'a> {
    /// It begins.
    Begins {
        /// Which.
        call: &'a Call<'a>,
        /// What it frees, if it frees.
        address: u64,
    },
    /// It is over.
    Ends {
        /// Which.
        call: &'a Call<'a>,
        /// What it did.
        done: Beside,
    },
}

/// What a call did that makes no GPU work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// It waited or freed, or it failed.
    Nothing,
    /// It allocated.
    Allocated {
        /// Where.
        address: u64,
        /// How much.
        bytes: u64,
    },
    /// It had to do with an event and a stream, which these are the handles of.
    Event {
        /// The event.
        event: u64,
        /// The stream.
        stream: u64,
    },
}

/// What happens to a graph. Graphs and nodes are named by the ids that records carry.
pub enum GraphEvent<'a> {
    /// A call begins that adds a node or copies a graph.
    CallBegins {
        /// Which.
        call: &'a Call<'a>,
        /// The graph that it adds to; none where it makes a graph by itself.
        into: Option<GraphId>,
    },
    /// It is over.
    CallEnds(&'a Call<'a>),
    /// A node was made: by the call that has begun or, between `enter` and `exit` of a launch, by its
    /// capture, so that the launch has no activity of its own.
    NodeCreated {
        /// Which. None: CUPTI does not say.
        ids: Option<(GraphId, GraphNodeId)>,
        /// Lies in the frame of the function that CUPTI called: frames further in are ours.
        frame: &'a CallbackId,
    },
    /// A node was copied. None: CUPTI does not say which.
    NodeCloned(Option<ClonedNode>),
    /// A graph is about to go.
    GraphEnds(GraphId),
    /// The graph that was last copied on this thread is now an instantiation, and known by this address.
    ExecCreated(u64),
    /// An instantiation is about to go.
    ExecEnds(u64),
    /// An instantiation took over what a graph does.
    ExecUpdated {
        /// Its address.
        exec: u64,
        /// The graph.
        source: GraphId,
        /// The id of the call.
        correlation: CorrelationId,
    },
}

/// A copy of a graph node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClonedNode {
    /// The graph of the copy.
    pub graph: GraphId,
    /// The copy.
    pub node: GraphNodeId,
    /// What it was copied from.
    pub original: GraphNodeId,
}

/// The two levels of CUDA's interface. A call of the upper one makes calls of the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// `cu…`
    Driver,
    /// `cuda…`
    Runtime,
}

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

    fn graph_id(&self, graph: *mut c_void) -> Option<GraphId> {
        if graph.is_null() { None } else { self.functions.graph_id(graph).map(GraphId) }
    }

    fn node_id(&self, node: *mut c_void) -> Option<GraphNodeId> {
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
fn result_of(data: &CallbackData) -> u32 {
    // SAFETY: null, or after the call its 32-bit result.
    unsafe { data.function_return_value.cast::<u32>().as_ref() }.copied().unwrap_or(0)
}

/// A call that waits, has to do with an event, allocates or frees.
#[cold]
fn beside<T: Tracer>(call: &mut Call<'_>, data: &CallbackData) {
    let is_free = call.kind == CallKind::Free;
    match data.site {
        Site::ENTER => {
            // SAFETY: the first argument of calls that free is the address or a handle, of 64 bits; CUPTI passes
            // the arguments as a struct, or null at worst.
            let first = unsafe { data.function_params.cast::<u64>().as_ref() };
            let address = first.copied().filter(|_| is_free).unwrap_or(0);
            T::beside(BesideEvent::Begins { call, address });
        }
        Site::EXIT => {
            call.return_value = result_of(data);
            let done = match call.kind {
                _ if call.return_value != 0 => None,
                // SAFETY: the call allocates and has worked.
                CallKind::Allocate(kind) => unsafe { allocated(kind, data.function_params) },
                CallKind::EventRecord | CallKind::EventWait => event_of(call.kind, data),
                _ => None,
            };
            T::beside(BesideEvent::Ends { call, done: done.unwrap_or(Beside::Nothing) });
        }
        _ => {}
    }
}

/// Where a call put memory, and how many bytes.
///
/// # Safety
/// `arguments` are those of a call that has allocated memory of this kind, or null.
unsafe fn allocated(kind: AllocationKind, arguments: *const c_void) -> Option<Beside> {
    // SAFETY: all calls that allocate begin with a pointer to the address and the size; those that allocate rows
    // with pointers to the address and to the length of a row, and then the width and the count of them.
    unsafe {
        let at = arguments.cast::<*const u64>().as_ref()?.as_ref()?;
        let bytes = match kind {
            AllocationKind::Pitched => {
                let arguments = &*arguments.cast::<[*const u64; 4]>();
                arguments[1].as_ref()?.checked_mul(arguments[3].addr() as u64)?
            }
            _ => (*arguments.cast::<[u64; 2]>())[1],
        };
        Some(Beside::Allocated { address: *at, bytes })
    }
}

/// The event and the stream of a call about them.
fn event_of(kind: CallKind, data: &CallbackData) -> Option<Beside> {
    // SAFETY: the calls of these kinds, of either API and any version, begin with two handles; CUPTI passes the
    // arguments as a struct, or null at worst.
    let &[first, second] = unsafe { data.function_params.cast::<[u64; 2]>().as_ref() }?;
    Some(match kind {
        CallKind::EventRecord => Beside::Event { event: first, stream: second },
        _ => Beside::Event { event: second, stream: first },
    })
}

/// A call that makes or changes graphs. Some arguments are needed that no event tells.
#[cold]
fn graph_call<T: Tracer>(shared: &Shared, call: &Call<'_>, data: &CallbackData) {
    // SAFETY: the calls of these kinds, of either API and any version, have at least two arguments, each of
    // the size of a pointer; CUPTI passes them as a struct, or null at worst.
    let arguments = unsafe { data.function_params.cast::<[*mut c_void; 2]>().as_ref() };
    let second = arguments.and_then(|[_, second]| shared.graph_id(*second));
    match (call.kind, data.site) {
        (CallKind::GraphUpdate, Site::EXIT) => {
            let exec = arguments.map_or(0, |[exec, _]| exec.addr() as u64);
            if let (0, Some(source)) = (result_of(data), second) {
                T::graph(GraphEvent::ExecUpdated { exec, source, correlation: call.correlation });
            }
        }
        (CallKind::GraphUpdate, _) => {}
        (_, Site::ENTER) => {
            let becomes_part = shared.calls.adds_to_graph(call.api);
            T::graph(GraphEvent::CallBegins { call, into: second.filter(|_| becomes_part) });
        }
        _ => T::graph(GraphEvent::CallEnds(call)),
    }
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

fn graph_event<'a>(shared: &Shared, id: &'a CallbackId, data: &GraphData) -> Option<GraphEvent<'a>> {
    let exec = data.graph_exec.addr() as u64;
    Some(match *id {
        CallbackId::GRAPH_NODE_CREATED => {
            let ids = shared.graph_id(data.graph).zip(shared.node_id(data.node));
            GraphEvent::NodeCreated { ids, frame: id }
        }
        CallbackId::GRAPH_NODE_CLONED => {
            let ids = shared.node_id(data.node).zip(shared.node_id(data.original_node));
            let ids = shared.graph_id(data.graph).zip(ids);
            GraphEvent::NodeCloned(ids.map(|(graph, (node, original))| ClonedNode { graph, node, original }))
        }
        CallbackId::GRAPH_DESTROY_STARTING => GraphEvent::GraphEnds(shared.graph_id(data.graph)?),
        CallbackId::GRAPH_EXEC_CREATED => GraphEvent::ExecCreated(exec),
        CallbackId::GRAPH_EXEC_DESTROY_STARTING => GraphEvent::ExecEnds(exec),
        _ => return None,
    })
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

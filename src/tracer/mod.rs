//! The interface between a vendor's tracing library and its users: the [`Tracer`] that is notified, and the types
//! that it receives.
//!
//! `cupti` calls a tracer and `capture` implements one; neither knows the other. No type of a vendor appears here.

mod buffer;
mod calls;
#[doc(hidden)]
pub mod errno;

pub use buffer::{Buffer, Filled, bytes_held, keep_warm, spare_bytes};
pub(crate) use buffer::{Lent, Returned};
pub use calls::{AllocationKind, ApiCall, CallKind};

use crate::record::{CorrelationId, GraphId, GraphNodeId};
use std::cell::Cell;
use std::ffi::c_char;

/// Receiver of all notifications of the vendor's library. Associated functions only: there is one tracer per process.
///
/// Each function may be called on any thread of the application, concurrently, as soon as subscribing has begun. None
/// may call the vendor's interface. A panic in one ends tracing (see [`Tracer::panicked`]) and never reaches the
/// application.
pub trait Tracer: 'static {
    /// Whether [`Tracer::graph`] is wanted. Default: `false`.
    const GRAPHS: bool = false;

    /// An enabled API call begins.
    fn enter(call: &Call<'_>);

    /// An enabled API call has returned. [`Call::return_value`] says whether it succeeded.
    ///
    /// Its activity records may have been delivered already. For a call that is in flight when tracing begins or ends
    /// (including by [`Tracer::fatal`]) only its entry or only its exit is reported.
    fn exit(call: &Call<'_>);

    /// Whether the tracer has ended for this process, as in a forked child. No lock may be waited for there.
    fn is_over() -> bool {
        false
    }

    /// The library needs memory for records. `None`: no memory is left; the records are then counted by
    /// [`Tracer::records_discarded`].
    ///
    /// The library holds a lock of its own: make no call to it here, and take no lock that is held elsewhere around
    /// such a call.
    fn request_buffer() -> Option<Buffer>;

    /// The library returns records, on a thread of the application or its own: store them and return. The same rules
    /// about locks apply as for [`Tracer::request_buffer`].
    fn buffer_completed(filled: Filled);

    /// `count` records were returned in memory that was not the tracer's, and are lost.
    fn records_discarded(count: u64);

    /// A context was created.
    fn context_created() {}

    /// A context is about to be destroyed. Too late for a flush, which was due at the start of the call that destroys
    /// it ([`CallKind::ends_context`]).
    fn context_ending() {}

    /// A graph was created, changed or destroyed on this thread.
    fn graph(event: GraphEvent<'_>) {
        let _ = event;
    }

    /// A call that creates no GPU work: it waits, or is about events or memory. Reported only if asked for.
    fn host_call(event: HostCallEvent<'_>) {
        let _ = event;
    }

    /// Another client of the library is about to take this over. The tracer must get all it still wants now, from
    /// another thread of its own. Not called inside a callback.
    fn approached(approach: Approach) {
        let _ = approach;
    }

    /// The library met a fatal error and has finalised itself. No more calls are made to it; undelivered records are
    /// lost.
    fn fatal(reason: &str) {
        let _ = reason;
    }

    /// A function of this trait panicked, which is a bug in gpuflame. The last notification: API callbacks and
    /// buffers are ignored from then on.
    fn panicked() {}
}

/// What another client of the library is about to take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approach {
    /// All records from now on.
    Records,
    /// The subscription, which the client gets if we release it.
    Subscription,
    /// The library itself, which then reports and records nothing for any client.
    End,
}

/// An API call at its entry or its exit.
///
/// The `Call` that a [`Tracer`] receives is stored in the frame of the function that the library called: all frames
/// further in are ours.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Kind of call, by its effect.
    pub kind: CallKind,
    /// Index of the call's label.
    pub api: ApiCall,
    /// Whether the call belongs to the driver API or the runtime API.
    pub layer: Layer,
    /// Correlation id that its activities will carry.
    pub correlation: CorrelationId,
    /// A word that the library keeps from `enter` to `exit` of one call; 0 at `enter` unless set there.
    pub slot: &'a Cell<u64>,
    /// At `exit`: the result (`CUresult`, `cudaError_t`), 0 for success. At `enter`: 0.
    pub return_value: u32,
    /// For launches: the kernel's mangled name, valid during the callback; null for other calls.
    pub symbol_name: *const c_char,
}

/// Entry or exit of a call that creates no GPU work.
pub enum HostCallEvent<'a> {
    /// The call begins.
    Begins {
        /// The call.
        call: &'a Call<'a>,
        /// The address that it frees; 0 for a call that does not free.
        address: u64,
    },
    /// The call has returned.
    Ends {
        /// The call.
        call: &'a Call<'a>,
        /// Effect of the call.
        done: HostCallDone,
    },
}

/// Effect of a call that creates no GPU work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCallDone {
    /// The call waited or freed, or it failed.
    Nothing,
    /// The call allocated memory.
    Allocated {
        /// The first address of the memory.
        address: u64,
        /// The size of the memory in bytes.
        bytes: u64,
    },
    /// The call was about an event and a stream; these are their handles.
    Event {
        /// The event.
        event: u64,
        /// The stream.
        stream: u64,
    },
}

/// A change to a graph. Graphs and nodes are identified by the ids that records carry.
pub enum GraphEvent<'a> {
    /// A call begins that adds a node or copies a graph.
    CallBegins {
        /// The call.
        call: &'a Call<'a>,
        /// The graph that the call adds to; `None` if it creates a new graph.
        into: Option<GraphId>,
    },
    /// The call has returned.
    CallEnds(&'a Call<'a>),
    /// A node was created: by the graph call that has begun or, between `enter` and `exit` of a launch, because the
    /// launch was captured and so has no activity of its own.
    NodeCreated {
        /// Ids of the graph and the node. `None`: the library does not provide them.
        ids: Option<(GraphId, GraphNodeId)>,
        /// A value in the frame of the function that the library called: frames further in are ours.
        frame: &'a u32,
    },
    /// A node was copied. `None`: the library does not say which.
    NodeCloned(Option<ClonedNode>),
    /// A graph is about to be destroyed.
    GraphEnds(GraphId),
    /// The graph that was last copied on this thread is now an executable graph, identified by this address.
    ExecCreated(u64),
    /// An executable graph is about to be destroyed.
    ExecEnds(u64),
    /// An executable graph was updated from a graph.
    ExecUpdated {
        /// Address of the executable graph.
        exec: u64,
        /// The graph that it was updated from.
        source: GraphId,
        /// Correlation id of the call.
        correlation: CorrelationId,
    },
}

/// A copy of a graph node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClonedNode {
    /// The graph that contains the copy.
    pub graph: GraphId,
    /// The copy.
    pub node: GraphNodeId,
    /// The node that was copied.
    pub original: GraphNodeId,
}

/// The two layers of CUDA's interface. Calls of the runtime layer make calls of the driver layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// `cu…`
    Driver,
    /// `cuda…`
    Runtime,
}

//! The interface between a vendor's tracing library and gpuflame's recorder: the [`Tracer`], which is notified of the
//! library's callbacks, and the types that a tracer receives.
//!
//! `cupti` calls a tracer and `capture` implements one; neither module knows the other module. This interface contains
//! no vendor-specific type.

mod buffer;
mod calls;
#[doc(hidden)]
pub mod errno;

pub use buffer::{Buffer, FilledBuffer, bytes_held, bytes_lent};
pub use buffer::{LentBuffers, ReturnedBuffer};
pub use calls::{AllocationKind, ApiCallId, CallKind};

use gpuflame_model::record::{CorrelationId, GraphId, GraphNodeId};
use std::cell::Cell;
use std::ffi::c_char;

/// Receiver of all notifications of the vendor's library. All functions are associated functions, because a process
/// has only one tracer.
///
/// Each function may be called as soon as subscribing has begun, on any thread of the application, and on several
/// threads at the same time. No function may call the vendor's library. A panic in any of the functions ends tracing
/// (see [`Tracer::panicked`]) and never reaches the application.
pub trait Tracer: 'static {
    /// Whether the library should call [`Tracer::graph`]. Default: `false`.
    const GRAPHS: bool = false;

    /// An enabled API call begins.
    fn enter(call: &Call<'_>);

    /// An enabled API call has returned. [`Call::return_value`] shows whether the call succeeded.
    ///
    /// The activity records of the call may already have been delivered. If a call is in flight when tracing begins or
    /// ends (including by [`Tracer::fatal`]), only its entry or only its exit is reported.
    fn exit(call: &Call<'_>);

    /// Whether the tracer has ended in this process. Returns true in a forked child, where no code may wait for a lock.
    fn has_ended() -> bool {
        false
    }

    /// The library needs memory for activity records. The tracer returns `None` if no memory is left. Records that are
    /// lost as a result are reported by [`Tracer::records_discarded`].
    ///
    /// While this function runs, the library holds a lock of its own. So this function must not call the library. The
    /// tracer must also not take a lock that another thread may hold while that thread calls the library.
    fn request_buffer() -> Option<Buffer>;

    /// The library returns activity records, on a thread of the application or on a thread of its own. The tracer
    /// should only store the records and return. The same rules about locks apply as for [`Tracer::request_buffer`].
    fn buffer_completed(filled: FilledBuffer);

    /// `count` activity records are lost, because they were in a buffer that the tracer had not provided.
    fn records_discarded(count: u64);

    /// A CUDA context was created.
    fn context_created() {}

    /// A CUDA context is about to be destroyed. At this time a flush is not possible any more: flush at the start of
    /// the API call that destroys the context ([`CallKind::ends_context`]).
    fn context_ending() {}

    /// A CUDA graph was created, changed or destroyed on this thread.
    fn graph(event: GraphEvent<'_>) {
        let _ = event;
    }

    /// A launch with attributes has returned. `is_programmatic` states whether the launch may begin before the
    /// previous kernel ends. Reported only if the user asks for CUDA events.
    fn launch_attributes(correlation: CorrelationId, is_programmatic: bool) {
        let _ = (correlation, is_programmatic);
    }

    /// An API call that creates no GPU work begins or ends: a wait, or a call about CUDA events or memory. Calls about
    /// CUDA events are reported only if the user asks for CUDA events.
    fn host_call(event: HostCallEvent<'_>) {
        let _ = event;
    }

    /// Another client of the library is about to take over `takeover`. Before this function returns, one of the
    /// tracer's own threads must fetch the activity records that the tracer still wants. This function is not called
    /// inside a callback.
    fn on_client_takeover(takeover: ClientTakeover) {
        let _ = takeover;
    }

    /// The library has had a fatal error and has shut itself down. After a fatal error, the library is not called any
    /// more. Records that the library has not delivered are lost.
    fn fatal(reason: &str) {
        let _ = reason;
    }

    /// A function of this trait panicked, which is a bug in gpuflame. No further notification follows, because all
    /// later API callbacks and buffers are ignored.
    fn panicked() {}
}

/// What another client of the library is about to take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTakeover {
    /// All activity records that are delivered after the takeover.
    Records,
    /// The subscription. The client gets the subscription if we release it.
    Subscription,
    /// The library itself. The client shuts the library down, after which no client gets callbacks or records.
    Shutdown,
}

/// An API call at its entry or its exit.
///
/// The library (CUPTI) calls a function of ours, and the `Call` that a [`Tracer`] receives is in the stack frame of
/// our function. All frames called from the frame of our function are gpuflame's.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Kind of the API call, according to its effect.
    pub kind: CallKind,
    /// Index of the API call's label.
    pub api: ApiCallId,
    /// Whether the API call belongs to the driver API or the runtime API.
    pub layer: Layer,
    /// Correlation id that the activity records of the call will contain.
    pub correlation: CorrelationId,
    /// A word that belongs to this API call. At `enter`, the library sets `slot` to 0. The value that the tracer
    /// stores is kept until `exit`.
    pub slot: &'a Cell<u64>,
    /// Result of the API call (`CUresult`, `cudaError_t`) at `exit`, 0 for success. Always 0 at `enter`.
    pub return_value: u32,
    /// Mangled name of the kernel if the call is a launch, otherwise null. The pointer is valid only during the
    /// callback.
    pub symbol_name: *const c_char,
}

/// Entry or exit of an API call that creates no GPU work.
pub enum HostCallEvent<'a> {
    /// The call begins.
    Begins {
        /// The call.
        call: &'a Call<'a>,
        /// The address that the API call frees, or 0 if the call does not free memory.
        address: u64,
    },
    /// The call has returned.
    Ends {
        /// The call.
        call: &'a Call<'a>,
        /// Effect of the call.
        done: HostCallEffect,
    },
}

/// Effect of an API call that creates no GPU work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCallEffect {
    /// The call waited or freed memory, or the call has failed.
    Nothing,
    /// The call allocated memory.
    Allocated {
        /// First address of the memory.
        address: u64,
        /// Size of the memory in bytes.
        bytes: u64,
    },
    /// The call used a CUDA event and a stream.
    Event {
        /// Handle of the CUDA event.
        event: u64,
        /// Handle of the stream.
        stream: u64,
    },
}

/// A change to a CUDA graph. Graphs and nodes are given by the ids that activity records contain.
pub enum GraphEvent<'a> {
    /// An API call that adds a node or copies a graph begins.
    CallBegins {
        /// The call.
        call: &'a Call<'a>,
        /// The graph to which the call adds nodes, or `None` if the call creates a new graph.
        into: Option<GraphId>,
    },
    /// An API call that adds a node or copies a graph has returned.
    CallEnds(&'a Call<'a>),
    /// A node was created. If a launch is in flight on this thread, the launch was captured into the node and has no
    /// activity of its own. If no launch is in flight, the graph call in flight has created the node.
    NodeCreated {
        /// Ids of the graph and the node, or `None` if the library does not provide these ids.
        ids: Option<(GraphId, GraphNodeId)>,
        /// Whether dependencies are recorded and the node takes time that no activity record shows, such as the time
        /// of a host function.
        waits_unseen: bool,
        /// A value in the stack frame of our function that the library has called. All frames called from the frame of
        /// our function are gpuflame's.
        frame: &'a u32,
    },
    /// A node was copied. `None` if the library does not provide the ids of the nodes.
    NodeCloned(Option<ClonedNode>),
    /// A dependency between two nodes of a graph was created. `None` if the library does not provide the ids.
    EdgeCreated(Option<(GraphId, (GraphNodeId, GraphNodeId))>),
    /// A graph is about to be destroyed.
    GraphEnds(GraphId),
    /// The graph that was copied last on this thread is now an executable graph, which has this address.
    ExecCreated(u64),
    /// The executable graph with this address is about to be destroyed.
    ExecEnds(u64),
    /// An executable graph was updated from a graph.
    ExecUpdated {
        /// Address of the executable graph.
        exec: u64,
        /// The graph from which the executable graph was updated.
        source: GraphId,
        /// Correlation id of the API call that updated the executable graph.
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

/// The two layers of CUDA's interface. An API call of the runtime layer makes API calls of the driver layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// `cu…`
    Driver,
    /// `cuda…`
    Runtime,
}

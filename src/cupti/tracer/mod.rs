//! The interface between a vendor's tracing library and gpuflame's recorder. The interface consists of the [`Tracer`],
//! which is notified of the library's callbacks, and the types that a tracer receives.
//!
//! The module `cupti` calls a tracer, and the module `capture` implements one. Neither of the modules `cupti` and
//! `capture` refers to the other module. This interface contains no vendor-specific type.

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

/// Receiver of all notifications from the vendor's library. All functions of a tracer are associated functions without
/// `self`, because a process has only one tracer.
///
/// From the start of the subscription, each function may be called on any thread of the application, and on several
/// threads at the same time. None of these functions may call the vendor's library. A panic in one of these functions
/// ends tracing (see [`Tracer::panicked`]), but never reaches the application.
pub trait Tracer: 'static {
    /// Whether the library should call [`Tracer::graph`] for changes to CUDA graphs. Default: `false`.
    const GRAPHS: bool = false;

    /// An API call that is enabled begins.
    fn enter(call: &Call<'_>);

    /// An API call that is enabled has returned. [`Call::return_value`] shows whether the call succeeded.
    ///
    /// The activity records that result from this call may already have been delivered. If an API call is in flight
    /// when tracing begins or ends (for example, by [`Tracer::fatal`]), only the entry or only the exit of the call is
    /// reported.
    fn exit(call: &Call<'_>);

    /// Whether the tracer has permanently ended its work in this process. This function must return true in a forked
    /// child, because no code may wait for a lock there.
    fn has_ended() -> bool {
        false
    }

    /// The library requests memory for activity records. The tracer returns `None` if no memory is available. Records
    /// that are lost because no memory was available are reported by [`Tracer::records_discarded`].
    ///
    /// While this function runs, the library holds one of its own locks. Therefore this function must not call the
    /// library. Another rule is that this function must not take a lock that another thread may hold while that thread
    /// calls the library.
    fn request_buffer() -> Option<Buffer>;

    /// The library returns activity records, on a thread of the application or on one of its own threads. The tracer
    /// should only store the activity records, and then return. The rules about locks are those of
    /// [`Tracer::request_buffer`].
    fn buffer_completed(filled: FilledBuffer);

    /// `count` activity records are lost, because they were in a buffer that the tracer has not provided.
    fn records_discarded(count: u64);

    /// A CUDA context was created.
    fn context_created() {}

    /// A CUDA context is about to be destroyed. At this point, it is too late to flush the records of the CUDA context.
    /// Therefore, flush at the start of the API call that destroys the context ([`CallKind::ends_context`]).
    fn context_ending() {}

    /// A CUDA graph was created, changed or destroyed by this thread.
    fn graph(event: GraphEvent<'_>) {
        let _ = event;
    }

    /// A launch with attributes has returned. `is_programmatic` states whether the launch may begin before the previous
    /// kernel ends. The attributes of launches are reported only if the user asks for CUDA events.
    fn launch_attributes(correlation: CorrelationId, is_programmatic: bool) {
        let _ = (correlation, is_programmatic);
    }

    /// Called when a host call begins or ends. A host call creates no GPU work: it waits, or handles CUDA events or
    /// memory. Calls that handle CUDA events are reported only if the user asks for CUDA events.
    fn host_call(event: HostCallEvent<'_>) {
        let _ = event;
    }

    /// Another client of the library is about to take over the resource `takeover`. Before this function returns, one
    /// of the tracer's own threads must fetch all activity records that the tracer still wants. This function is not
    /// called inside a callback.
    fn on_client_takeover(takeover: ClientTakeover) {
        let _ = takeover;
    }

    /// The library has had a fatal error, and has shut itself down. After a fatal error, the library is not called any
    /// more. Records that the library has not delivered are lost.
    fn fatal(reason: &str) {
        let _ = reason;
    }

    /// One of the functions of this trait has panicked, which is a bug in gpuflame. After a panic, the tracer gets no
    /// further notification, because all later API callbacks and buffers are ignored.
    fn panicked() {}
}

/// Resource that another client of the library is about to take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTakeover {
    /// All activity records that the library delivers after the takeover.
    Records,
    /// The subscription to the library. The client gets the subscription if we release it.
    Subscription,
    /// The library itself. The client is about to shut the library down. After the shutdown, no client gets callbacks
    /// or records.
    Shutdown,
}

/// An API call, at its beginning or at its end.
///
/// The library (CUPTI) calls a function of gpuflame. The `Call` that a [`Tracer`] receives is in that function's stack
/// frame. The stack frames of all functions that our function has called belong to gpuflame.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Kind of the API call, which depends on the call's effect.
    pub kind: CallKind,
    /// Index of the label (the name) of the API call.
    pub api: ApiCallId,
    /// Whether the API call belongs to the driver API or the runtime API.
    pub layer: Layer,
    /// Correlation id, which the activity records that result from the call will contain.
    pub correlation: CorrelationId,
    /// A word of memory that belongs to this API call. At `enter`, the word is 0, which the library has set. A value
    /// that the tracer stores in the word is kept until `exit`.
    pub slot: &'a Cell<u64>,
    /// Result of the API call (`CUresult`, `cudaError_t`) at `exit`; 0 means success. At `enter`, this field is always
    /// 0.
    pub return_value: u32,
    /// Mangled name of the kernel if the call is a launch; otherwise null. The pointer is valid only during the
    /// callback.
    pub symbol_name: *const c_char,
}

/// Beginning or end of a host call, which is an API call that creates no GPU work.
pub enum HostCallEvent<'a> {
    /// The call begins.
    Begins {
        /// The API call that begins.
        call: &'a Call<'a>,
        /// The address that the API call frees; 0 if the call does not free memory.
        address: u64,
    },
    /// The API call has returned.
    Ends {
        /// The API call that has returned.
        call: &'a Call<'a>,
        /// Effect of the API call.
        done: HostCallEffect,
    },
}

/// Effect of a host call, which is an API call that creates no GPU work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCallEffect {
    /// The host call waited or freed memory, or the host call has failed.
    Nothing,
    /// The call allocated memory.
    Allocated {
        /// Address at which the memory that the call has allocated begins.
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

/// A change to a CUDA graph. Graphs and nodes are identified by the ids that activity records contain.
pub enum GraphEvent<'a> {
    /// An API call that adds a node to a graph or copies a graph begins.
    CallBegins {
        /// The API call that begins.
        call: &'a Call<'a>,
        /// The graph to which the call adds nodes; `None` if the call creates a new graph.
        into: Option<GraphId>,
    },
    /// An API call that adds a node to a graph or copies a graph has returned.
    CallEnds(&'a Call<'a>),
    /// A graph node was created. If a launch is in flight on this thread, the launch was captured into this node, and
    /// has no activity of its own. If no launch is in flight, the node was created by the graph call that is in flight
    /// on this thread.
    NodeCreated {
        /// Ids of the graph and of the node; `None` if the library does not provide these ids.
        ids: Option<(GraphId, GraphNodeId)>,
        /// Whether dependencies are recorded and the node takes time for which there is no activity record. For
        /// example, such a node is a host function.
        waits_unseen: bool,
        /// A value in the stack frame of the gpuflame function that the library has called. The stack frames of all
        /// functions that our function has called belong to gpuflame.
        frame: &'a u32,
    },
    /// A graph node was copied. The value is `None` if the library does not provide the ids of the nodes.
    NodeCloned(Option<ClonedNode>),
    /// A dependency between two nodes of a graph was created. `None` if the library does not provide the ids.
    EdgeCreated(Option<(GraphId, (GraphNodeId, GraphNodeId))>),
    /// A graph is about to be destroyed.
    GraphEnds(GraphId),
    /// The graph that this thread copied most recently is now an executable graph with this address.
    ExecCreated(u64),
    /// The executable graph with this address is about to be destroyed.
    ExecEnds(u64),
    /// An executable graph was updated from a graph.
    ExecUpdated {
        /// Address of the executable graph.
        exec: u64,
        /// The graph from which the executable graph was updated.
        source: GraphId,
        /// Correlation id of the API call that has updated the executable graph.
        correlation: CorrelationId,
    },
}

/// Describes a copy of a graph node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClonedNode {
    /// Id of the graph that contains the copy.
    pub graph: GraphId,
    /// Id of the node that was created by copying.
    pub node: GraphNodeId,
    /// Id of the original node, from which the copy was made.
    pub original: GraphNodeId,
}

/// The two layers of CUDA's interface. An API call in the runtime layer makes API calls in the driver layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// `cu…`
    Driver,
    /// `cuda…`
    Runtime,
}

//! What a vendor's tracing library tells, in our words, and who is told: the [`Tracer`] and all that it is handed.
//!
//! `cupti` calls a tracer, `capture` is one; neither knows the other. What is here names no vendor's type.

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

/// Who is told what the vendor's library tells us. Associated functions only: there is one tracer a process.
///
/// All may be called on any thread of the application, at any time from the middle of the subscription on, and
/// several at once. None may call the vendor's interface. A panic in one of them ends tracing (see
/// [`Tracer::panicked`]) and never reaches the application.
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

    /// Whether nothing will be asked for or taken any more, as in a forked child: no lock may be waited for there.
    fn is_over() -> bool {
        false
    }

    /// The library needs memory for records. `None`: there is none left; the records are then counted to
    /// [`Tracer::records_discarded`].
    ///
    /// It holds a lock of its own: no call to it here, and no lock that is held around one elsewhere.
    fn request_buffer() -> Option<Buffer>;

    /// It gives records back, on the application's thread or one of its own: keep and return. The
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

    /// A call that makes no GPU work, but waits for it, has to do with events or memory: only where asked for.
    fn host_call(event: HostCallEvent<'_>) {
        let _ = event;
    }

    /// Another client of the library is about to have this; what the tracer wants before, it is to have now, from another
    /// thread of its own. In no callback.
    fn approached(approach: Approach) {
        let _ = approach;
    }

    /// The library met an error it cannot go on after, and has finalised itself. No call is made to it any
    /// more; what was not delivered is lost.
    fn fatal(reason: &str) {
        let _ = reason;
    }

    /// A function of this trait panicked: a bug of ours. Said once, and the last thing that is said:
    /// API callbacks and buffers are ignored from now on.
    fn panicked() {}
}

/// What another client of the library asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approach {
    /// All records from now on.
    Records,
    /// The subscription, which it has if we let go of it.
    Subscription,
    /// That the library tells and records nothing more, for anybody.
    End,
}

/// An API call that begins or is over.
///
/// The one that a [`Tracer`] is handed lies in the frame of the function that the library called: frames further in
/// are ours.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// What the call does.
    pub kind: CallKind,
    /// Which call, as an index of its label.
    pub api: ApiCall,
    /// Whether it is of the driver API or the runtime API.
    pub layer: Layer,
    /// The id that its activities will carry.
    pub correlation: CorrelationId,
    /// A word that the library keeps from `enter` to `exit` of one call; 0 at `enter` unless set there.
    pub slot: &'a Cell<u64>,
    /// At `exit`: what it returned (`CUresult`, `cudaError_t`); 0 = it worked. At `enter`: 0.
    pub return_value: u32,
    /// For launches: the kernel's mangled name, valid during the callback; else null.
    pub symbol_name: *const c_char,
}

/// A call that makes no GPU work.
pub enum HostCallEvent<'a> {
    /// The call begins.
    Begins {
        /// The call.
        call: &'a Call<'a>,
        /// What it frees, if it frees.
        address: u64,
    },
    /// The call is over.
    Ends {
        /// The call.
        call: &'a Call<'a>,
        /// What the call did.
        done: HostCallDone,
    },
}

/// What a call did that makes no GPU work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCallDone {
    /// It waited or freed, or it failed.
    Nothing,
    /// The call allocated memory.
    Allocated {
        /// The first address of the memory.
        address: u64,
        /// The size of the memory in bytes.
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
        /// The call.
        call: &'a Call<'a>,
        /// The graph that it adds to; none where it makes a graph by itself.
        into: Option<GraphId>,
    },
    /// The call is over.
    CallEnds(&'a Call<'a>),
    /// A node was made: by the call that has begun or, between `enter` and `exit` of a launch, by its
    /// capture, so that the launch has no activity of its own.
    NodeCreated {
        /// Which. None: the library does not say.
        ids: Option<(GraphId, GraphNodeId)>,
        /// Lies in the frame of the function that the library called: frames further in are ours.
        frame: &'a u32,
    },
    /// A node was copied. None: the library does not say which.
    NodeCloned(Option<ClonedNode>),
    /// A graph is about to go.
    GraphEnds(GraphId),
    /// The graph that was last copied on this thread is now an instantiation, and known by this address.
    ExecCreated(u64),
    /// An instantiation is about to go.
    ExecEnds(u64),
    /// An instantiation took over what a graph does.
    ExecUpdated {
        /// The executable graph's address.
        exec: u64,
        /// The graph that it was made of.
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
    /// The node that is the copy.
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

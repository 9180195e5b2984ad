//! Defines the API call of a trace, and the kind of a stream. Calls are stored until the whole trace has been read.
//! Then `link` finds the operations that the calls launched, and `call_stacks` finds the stacks of the calls.
//!
//! Names, processes and threads are represented by indexes that `trace_collector` has assigned.

use super::model::OpKind;

/// A stream, with the kind of stream that the trace contains for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkedStream {
    /// Id of the stream's CUDA context in the rows.
    pub context: u32,
    /// Id of the stream whose kind is in the trace.
    pub stream: u32,
    /// Kind of the stream, which is a value of CUPTI's enum CUpti_ActivityStreamFlag.
    pub flag: u32,
}

/// An API call, as [`CallRecords`](super::call_records::CallRecords) returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallRecord {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) correlation: u64,
    pub(super) thread: u32,
    /// Stack of the call. The innermost frame of this stack is the call itself. The stack is set when all slices are
    /// known. When the row of the call gets a launch context, the id of this context replaces the stack.
    pub(super) stack: u32,
    /// Number of operations that the call launched.
    pub(super) ops: u32,
    /// Whether every call of this function launches GPU work.
    pub(super) launches: bool,
    /// Kind of GPU work that a call of the function may start.
    pub(super) starts: CallUse,
    /// Whether the call may have launched ambiguous operations, which are not linked to any call.
    pub(super) ambiguous: bool,
    /// Whether a call nested in this call has the same correlation id and counts as the launch instead.
    pub(super) encloses: bool,
}

impl CallRecord {
    /// Whether a launch row is made for the call. A call that launches nothing can only be a frame in the stacks of
    /// other calls. No launch row is made for a call that may have launched ambiguous operations, because it is unknown
    /// whether it launched any of these operations.
    pub(super) fn is_shown(&self) -> bool {
        self.ops > 0 || (self.launches && !self.ambiguous && !self.encloses)
    }
}

/// Kind of GPU work that a call may start, which follows from the name of the called function. The variants are
/// ordered: functions that start no work come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallUse {
    /// The function starts no GPU work. For example, the function records a CUDA event, waits, allocates memory or
    /// returns an attribute.
    #[default]
    Other,
    /// gpuflame does not know the function, so the function may start GPU work.
    Unknown,
    Copy,
    Set,
    Kernel,
    /// The function launches a graph, which may contain any kind of work.
    Graph,
}

impl CallUse {
    /// All variants, in ascending order.
    pub(super) const ALL: [Self; 6] =
        [Self::Other, Self::Unknown, Self::Copy, Self::Set, Self::Kernel, Self::Graph];

    pub(super) fn from_name(name: &str) -> Self {
        const NO_WORK: [&str; 16] = [
            "event",
            "synchronize",
            "query",
            "get",
            "malloc",
            "free",
            "create",
            "destroy",
            "wait",
            "peek",
            "set",
            "occupancy",
            "hostfunc",
            "capture",
            "init",
            "register",
        ];
        let name = name.to_ascii_lowercase();
        match () {
            () if name.starts_with("pthread_") => Self::Other,
            () if name.contains("graphlaunch") => Self::Graph,
            () if name.contains("memset") => Self::Set,
            () if name.contains("copy") || name.contains("memcpy") => Self::Copy,
            () if name.contains("launch") && !name.contains("hostfunc") => Self::Kernel,
            () if NO_WORK.iter().any(|word| name.contains(word)) => Self::Other,
            () => Self::Unknown,
        }
    }

    /// Returns a score that states how well an operation of `kind` fits a call of this kind. A copy or a fill may also
    /// run as a kernel.
    pub(super) fn fit(self, kind: OpKind) -> u8 {
        match (self, kind) {
            (Self::Graph, _)
            | (Self::Kernel, OpKind::Kernel)
            | (Self::Copy, OpKind::Copy)
            | (Self::Set, OpKind::Set) => 3,
            (Self::Kernel | Self::Copy | Self::Set, _) => 2,
            (Self::Unknown, _) => 1,
            (Self::Other, _) => 0,
        }
    }
}

//! A call of a trace. Calls are stored until the whole trace is read. Only then can `link` find the operations that they
//! launched, and `call_stacks` their stacks.
//!
//! Names, processes and threads are given as the numbers that `trace_collector` assigned.

use super::model::OpKind;

/// Kind of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkedStream {
    /// GPU context of the stream, as in the rows.
    pub context: u32,
    /// Stream.
    pub stream: u32,
    /// Kind, in the numbers of CUPTI's CUpti_ActivityStreamFlag.
    pub flag: u32,
}

/// A call, as [`CallRecords`](super::call_records::CallRecords) returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallRecord {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) correlation: u64,
    pub(super) thread: u32,
    /// Stack whose innermost frame is this call. It is set once all slices are known. Once the call's row has a context, this
    /// is the number of the context.
    pub(super) stack: u32,
    /// Number of operations that the call launched.
    pub(super) ops: u32,
    /// Whether every call of this function launches work.
    pub(super) launches: bool,
    /// Work that the function may start.
    pub(super) starts: CallUse,
    /// Whether the call may have launched work that was not linked to a call.
    pub(super) ambiguous: bool,
    /// Whether a call inside this call has the same id and launched the work.
    pub(super) encloses: bool,
}

impl CallRecord {
    /// Whether the call becomes a row. A call that launches nothing appears only as a frame in the stacks of other
    /// calls. A launch whose work is ambiguous does not become a row, because it is unknown whether it has an
    /// operation.
    pub(super) fn is_shown(&self) -> bool {
        self.ops > 0 || (self.launches && !self.ambiguous && !self.encloses)
    }
}

/// Work that a call may start, derived from the name of the called function. Functions that start no work are listed
/// first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallUse {
    /// The function starts no GPU work: it records an event, waits, allocates or returns an attribute.
    #[default]
    Other,
    /// The function is unknown.
    Unknown,
    Copy,
    Set,
    Kernel,
    /// A graph, which may contain any kind of work.
    Graph,
}

impl CallUse {
    /// All uses, in their order.
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

    /// Returns a score for how well work of `kind` fits a call of this use. Copies and fills may run as kernels.
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

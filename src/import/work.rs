//! Records of the calls and GPU operations of a trace, kept until the whole trace is read: only then can `link` find
//! the operations' launches, and `call_stacks` the calls' stacks.
//!
//! Names, processes and threads are the numbers that `trace_collector` assigned.

use crate::record::Detail;

/// A GPU operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpRecord {
    pub(super) start: i64,
    pub(super) end: i64,
    /// 0 if it has none.
    pub(super) correlation: u64,
    /// 0 if the trace does not give it.
    pub(super) process: u32,
    /// Call that launched it.
    pub(super) call: Option<u32>,
    pub(super) device: u32,
    pub(super) context: u32,
    pub(super) stream: u32,
    pub(super) graph: u32,
    pub(super) graph_node: u64,
    pub(super) detail: Detail,
}

/// A call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallRecord {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) correlation: u64,
    pub(super) thread: u32,
    /// Stack whose innermost frame is this call; set once all slices are known.
    pub(super) stack: u32,
    /// Number of operations that it launched.
    pub(super) ops: u32,
    /// Whether every call of this function launches work.
    pub(super) launches: bool,
}

const _: () = assert!(size_of::<CallRecord>() == 40, "a call grew: a large trace has hundreds of thousands");

impl CallRecord {
    /// Whether it becomes a row: calls that launch nothing only appear as frames in other calls' stacks.
    pub(super) fn is_shown(&self) -> bool {
        self.ops > 0 || self.launches
    }
}

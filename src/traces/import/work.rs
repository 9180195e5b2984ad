//! Records of the calls and GPU operations of a trace, stored until the whole trace is read. Only then can `link`
//! find the operations' launches, and `call_stacks` the calls' stacks.
//!
//! Names, processes and threads are given as the numbers that `trace_collector` assigned.

use gpuflame_model::record::Detail;

/// A GPU operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpRecord {
    pub(super) start: i64,
    pub(super) end: i64,
    /// Correlation id; 0 if the operation has none.
    pub(super) correlation: u64,
    /// Process of the operation; 0 if the trace does not give the process.
    pub(super) process: u32,
    /// Call that launched the operation.
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
    /// Stack whose innermost frame is this call. It is set once all slices are known.
    pub(super) stack: u32,
    /// Number of operations that the call launched.
    pub(super) ops: u32,
    /// Whether every call of this function launches work.
    pub(super) launches: bool,
}

const _: () = assert!(size_of::<CallRecord>() == 40, "a call grew: a large trace has hundreds of thousands");

impl CallRecord {
    /// Whether the call becomes a row. Calls that launch nothing only appear as frames in other calls' stacks.
    pub(super) fn is_shown(&self) -> bool {
        self.ops > 0 || self.launches
    }
}

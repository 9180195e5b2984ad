//! The calls and GPU operations of a trace as `rows` keeps them until all of it is read: not before then is it
//! known which call launched which operation (`link`), and in what stack (`stack`).
//!
//! Names, processes and threads are numbers here, given by `rows`.

use crate::record::Detail;

/// A GPU operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpRecord {
    pub(super) start: i64,
    pub(super) end: i64,
    /// 0 where it has none.
    pub(super) correlation: u64,
    /// 0 where the trace does not say.
    pub(super) process: u32,
    /// The call that launched it.
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
    /// The stack it ends, known later.
    pub(super) stack: u32,
    /// Operations it launched.
    pub(super) ops: u32,
    /// Whether it launches whenever it is made.
    pub(super) launches: bool,
}

const _: () = assert!(size_of::<CallRecord>() == 40, "a call grew: a large trace has hundreds of thousands");

impl CallRecord {
    /// Whether it becomes a row: calls that launch nothing are only frames of others.
    pub(super) fn is_shown(&self) -> bool {
        self.ops > 0 || self.launches
    }
}

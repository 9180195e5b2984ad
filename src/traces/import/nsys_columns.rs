//! Reads the columns that all tables with GPU work, waits and event recordings share in exports of Nsight Systems.

use rusqlite::Row;

use super::Id;
use super::model::Op;
use super::sqlite::{self, integer, integer_u32};

/// Names of the shared columns, in the order in which rows contain them. In a row, the shared columns come after column
/// 0, which contains the name.
pub(super) const SHARED: [&str; 7] =
    ["start", "end", "globalPid", "correlationId", "deviceId", "contextId", "streamId"];
/// Index in a row of the first column that is not shared by all of these tables.
pub(super) const FIRST_OWN: usize = 1 + SHARED.len();

/// Values of the shared columns in one row.
pub(super) struct SharedColumns {
    /// Start and end time in ns; `None` if the row lacks the start or the end.
    pub(super) span: Option<(i64, i64)>,
    /// Global id. The upper bits of the global id are the process id, which includes the id of the machine.
    pub(super) global: Option<i64>,
    pub(super) correlation: Option<u64>,
    pub(super) device: Option<u32>,
    pub(super) context: Option<u32>,
    pub(super) stream: Option<u32>,
}

impl SharedColumns {
    pub(super) fn read(row: &Row<'_>) -> Self {
        Self {
            span: integer(row, 1).zip(integer(row, 2)),
            global: integer(row, 3),
            correlation: sqlite::id(row, 4),
            device: integer_u32(row, 5),
            context: integer_u32(row, 6),
            stream: integer_u32(row, 7),
        }
    }

    pub(super) fn process(&self) -> Id<'static> {
        process_of(self.global)
    }

    /// Returns the process and the correlation id of the call to which this row about GPU work belongs.
    pub(super) fn call_key(&self) -> (Option<i64>, u64) {
        call_key(self.global, self.correlation.unwrap_or(0))
    }

    /// Returns an operation with the device, the stream and the times in this row. Returns `None` if the row has no
    /// times.
    pub(super) fn work(&self) -> Option<Op<'static>> {
        let (start, end) = self.span?;
        let &Self { correlation, device, context, stream, .. } = self;
        Some(Op {
            start,
            end,
            process: self.process(),
            correlation,
            device,
            context,
            stream,
            ..Op::default()
        })
    }
}

/// Returns the process and the correlation id of a call. `global` is the global id of the call's thread.
pub(super) fn call_key(global: Option<i64>, correlation: u64) -> (Option<i64>, u64) {
    (global.map(|global| global >> 24), correlation)
}

/// Returns the process id in a global id. The process id consists of the upper bits, which include the id of the
/// machine. The lowest 24 bits of a global id are the thread id.
pub(super) fn process_of(global: Option<i64>) -> Id<'static> {
    global.map_or(Id::None, |id| Id::Number(id >> 24))
}

/// Returns the thread id in a global id.
pub(super) fn thread_of(global: Option<i64>) -> Id<'static> {
    global.map_or(Id::None, |id| Id::Number(id & 0xff_ffff))
}

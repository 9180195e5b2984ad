//! The columns that all tables of GPU work, waits and records share in exports of Nsight Systems.

use rusqlite::Row;

use super::Id;
use super::model::Op;
use super::sqlite::{self, integer, integer_u32};

/// Names of the shared columns. They follow the name of a row, which is column 0.
pub(super) const SHARED: [&str; 7] =
    ["start", "end", "globalPid", "correlationId", "deviceId", "contextId", "streamId"];
/// Position of the first column of a table that is not shared.
pub(super) const FIRST_OWN: usize = 1 + SHARED.len();

/// Values of the shared columns.
pub(super) struct SharedColumns {
    /// Start and end in ns; `None` if the row lacks one of them.
    pub(super) span: Option<(i64, i64)>,
    /// Process, with the number of the machine.
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

    /// Process and correlation id, by which rows of the GPU belong to calls.
    pub(super) fn call_key(&self) -> (Option<i64>, u64) {
        call_key(self.global, self.correlation.unwrap_or(0))
    }

    /// Work at this place and time; `None` without times.
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

/// Process and correlation id of a call.
pub(super) fn call_key(global: Option<i64>, correlation: u64) -> (Option<i64>, u64) {
    (global.map(|global| global >> 24), correlation)
}

/// Returns the process of a global id: the id's upper bits, which include the machine's number. The lowest 24 bits are
/// the thread.
pub(super) fn process_of(global: Option<i64>) -> Id<'static> {
    global.map_or(Id::None, |id| Id::Number(id >> 24))
}

/// Returns the thread of a global id.
pub(super) fn thread_of(global: Option<i64>) -> Id<'static> {
    global.map_or(Id::None, |id| Id::Number(id & 0xff_ffff))
}

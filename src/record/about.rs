//! What a recording says of itself: who writes it, and up to which moment it has come.

use super::Nanos;

/// A moment from which on all counts that was written before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// When recording began.
    pub began: Nanos,
    /// When this was.
    pub time: Nanos,
    /// After how many milliseconds the next one was to come.
    pub interval_ms: u32,
    /// Launches that had no activity yet.
    pub open: u64,
}

/// How a recording stands that lacks its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// A mark was due after the last one, and could not be written.
    pub is_late: bool,
    /// Its process came to its end, and could not write its files.
    pub is_over: bool,
}

impl Standing {
    pub(super) fn bits(self) -> u32 {
        u32::from(self.is_late) | u32::from(self.is_over) << 1
    }

    pub(super) fn of_bits(bits: u32) -> Self {
        Self { is_late: bits & 1 != 0, is_over: bits & 2 != 0 }
    }
}

/// Which thread of which process writes a recording, of all that ever ran on a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriterId {
    /// The process.
    pub process: u32,
    /// The thread: after an `exec` the process is there still, and this one is not.
    pub thread: u32,
    /// When the thread was started, in ticks since the machine was.
    pub started: u64,
    /// In which namespace of processes these numbers are.
    pub namespace: u64,
    /// Which start of which machine that was.
    pub boot: String,
}

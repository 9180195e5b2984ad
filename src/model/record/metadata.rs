//! Defines the metadata of a recording. The metadata consists of the identity of the thread that wrote the recording,
//! the checkpoint marks, and the state of a recording without an end row.

use super::Nanos;

/// A checkpoint mark, which the writer of a recording appends repeatedly. All data that was written before the mark is
/// complete up to `time`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointMark {
    /// Time at which recording began.
    pub began: Nanos,
    /// Time at which the mark was written.
    pub time: Nanos,
    /// Time in milliseconds until the next mark is due.
    pub interval_ms: u32,
    /// Number of launches that had no activity at the time of the mark.
    pub open: u64,
}

/// State of a recording, as stored in the file header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingState {
    /// Whether a mark was due after the last written mark, but could not be written.
    pub missed_mark: bool,
    /// Whether the process exited but could not write its outputs.
    pub exited: bool,
    /// Whether the recording contains the final sums of a process that exited and wrote its outputs. A recording with
    /// final sums has an end row.
    pub finished: bool,
}

impl RecordingState {
    pub(super) fn bits(self) -> u32 {
        u32::from(self.missed_mark) | u32::from(self.exited) << 1 | u32::from(self.finished) << 2
    }

    pub(super) fn from_bits(bits: u32) -> Self {
        Self { missed_mark: bits & 1 != 0, exited: bits & 2 != 0, finished: bits & 4 != 0 }
    }
}

/// Identity of the thread that writes a recording. The identity is unique among all threads of all machines at all
/// times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriterId {
    /// Id of the process that writes the recording.
    pub process: u32,
    /// Id of the thread that writes the recording. After an `exec`, the process still exists, but the thread with this
    /// id does not.
    pub thread: u32,
    /// Start time of the thread, in clock ticks since boot.
    pub started: u64,
    /// Inode number of the PID namespace in which `process` and `thread` are valid.
    pub namespace: u64,
    /// Boot id, which identifies the machine and the current boot.
    pub boot: String,
}

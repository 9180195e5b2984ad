//! What passes between CUPTI and us, counted: it tells when another client has the records.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Buffers that were asked for or came back.
pub(super) static MOVES: Count = Count(AtomicU64::new(0));
/// Buffers that came back and are not ours, or came back twice.
pub(super) static STRANGERS: Count = Count(AtomicU64::new(0));
/// Calls that have waited for all that a GPU had to do.
pub(super) static WHOLE_WAITS: Count = Count(AtomicU64::new(0));
/// Callbacks about a call or a resource that did not say which.
pub(super) static WITHOUT_DATA: Count = Count(AtomicU64::new(0));
/// Records of kinds that CUPTI has, and that we do not ask for.
pub(super) static UNASKED: Count = Count(AtomicU64::new(0));

/// What has passed between CUPTI and us so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Buffers that CUPTI asked for or gave back.
    pub moves: u64,
    /// How many it has now.
    pub lent: u64,
    /// Buffers that it gave back and did not have from us, or gave back twice.
    pub strangers: u64,
    /// Calls of the program that have waited for all that a GPU had to do.
    pub whole_waits: u64,
    /// Callbacks about a call or a resource that did not say which.
    pub without_data: u64,
    /// Records of kinds that it has, and that we do not ask for: another client does, and does not get them.
    pub unasked: u64,
}

impl Traffic {
    pub(super) fn with_lent(lent: usize) -> Self {
        Self {
            moves: MOVES.get(),
            lent: lent as u64,
            strangers: STRANGERS.get(),
            whole_waits: WHOLE_WAITS.get(),
            without_data: WITHOUT_DATA.get(),
            unasked: UNASKED.get(),
        }
    }
}

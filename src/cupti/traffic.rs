//! Counts the buffers and callbacks that CUPTI and gpuflame exchange. The counts reveal when another client owns the
//! records.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that only grows.
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Number of buffers that CUPTI requested or returned so far.
pub(super) static MOVES: Count = Count(AtomicU64::new(0));
/// Number of returned buffers that are not ours, or that CUPTI has returned twice.
pub(super) static STRANGERS: Count = Count(AtomicU64::new(0));
/// Number of calls that have waited for all work of a GPU.
pub(super) static WHOLE_WAITS: Count = Count(AtomicU64::new(0));
/// Number of callbacks about a call or a resource that CUPTI made without data.
pub(super) static WITHOUT_DATA: Count = Count(AtomicU64::new(0));
/// Number of records of kinds that CUPTI has but that we do not enable.
pub(super) static UNASKED: Count = Count(AtomicU64::new(0));

/// Counts of buffers and callbacks exchanged with CUPTI so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of buffers that CUPTI requested or returned.
    pub moves: u64,
    /// Number of buffers that CUPTI holds now.
    pub lent: u64,
    /// Number of buffers that CUPTI returned although we had not lent them, or that CUPTI returned twice.
    pub strangers: u64,
    /// Number of calls of the program that have waited for all work of a GPU.
    pub whole_waits: u64,
    /// Number of callbacks about a call or a resource that CUPTI made without data.
    pub without_data: u64,
    /// Number of records of kinds that we do not enable. Another client has enabled these kinds, and does not get the
    /// records.
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

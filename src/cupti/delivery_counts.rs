//! Counts the buffers and callbacks that CUPTI and gpuflame exchange. If these counts stop growing, another client may
//! own CUPTI's activity records.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter whose value only increases.
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Number of buffers that CUPTI has requested or returned so far.
pub(super) static BUFFERS_EXCHANGED: Counter = Counter(AtomicU64::new(0));
/// Number of buffers that CUPTI has returned although they are not ours, or that CUPTI has returned twice.
pub(super) static FOREIGN_BUFFERS: Counter = Counter(AtomicU64::new(0));
/// Number of API calls that have waited for all work on a GPU.
pub(super) static DEVICE_WAITS: Counter = Counter(AtomicU64::new(0));
/// Number of CUPTI callbacks that were about API calls or resources but had no data.
pub(super) static CALLBACKS_WITHOUT_DATA: Counter = Counter(AtomicU64::new(0));
/// Number of received activity records whose kind we do not enable.
pub(super) static FOREIGN_RECORDS: Counter = Counter(AtomicU64::new(0));

/// Number of buffers, callbacks and records that were exchanged with CUPTI so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryCounts {
    /// Number of buffers that CUPTI has requested or returned.
    pub buffers_exchanged: u64,
    /// Number of buffers that CUPTI currently holds.
    pub buffers_lent: u64,
    /// Number of buffers that CUPTI has returned twice, or has returned although we had not lent them.
    pub foreign_buffers: u64,
    /// Number of the program's API calls that have waited for all work on a GPU.
    pub device_waits: u64,
    /// Number of CUPTI callbacks that were about API calls or resources but had no data.
    pub callbacks_without_data: u64,
    /// Number of received activity records whose kind we do not enable. We get such records if another client has
    /// enabled their kinds.
    pub foreign_records: u64,
}

impl DeliveryCounts {
    pub(super) fn read(buffers_lent: usize) -> Self {
        Self {
            buffers_exchanged: BUFFERS_EXCHANGED.get(),
            buffers_lent: buffers_lent as u64,
            foreign_buffers: FOREIGN_BUFFERS.get(),
            device_waits: DEVICE_WAITS.get(),
            callbacks_without_data: CALLBACKS_WITHOUT_DATA.get(),
            foreign_records: FOREIGN_RECORDS.get(),
        }
    }
}

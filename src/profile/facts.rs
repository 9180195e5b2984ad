//! What is known of a run beside its stacks: durations of each kind of work, what devices and streams did,
//! and what waited for what.

use std::collections::BTreeMap;

use crate::record::{DeviceId, GpuContextId, Nanos, StreamId, SyncKind, Work};

/// A number of activities, their time and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Activities (or launches).
    pub count: u64,
    /// GPU time in nanoseconds.
    pub nanos: u64,
    /// Bytes moved or set.
    pub bytes: u64,
}

/// How much is known of what waited for what; all 0 where nobody asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// Calls that put an event on a stream.
    pub record_calls: u64,
    /// Calls that had a stream wait for an event.
    pub wait_calls: u64,
    /// What the tracer recorded of events put on streams.
    pub event_records: u64,
    /// What it recorded of waits.
    pub syncs: BTreeMap<SyncKind, u64>,
}

impl Dependencies {
    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Waits that the tracer recorded: all, and by word.
    pub fn waits(&self) -> (u64, Vec<(&'static str, u64)>) {
        let named = [SyncKind::EVENT, SyncKind::STREAM_WAIT, SyncKind::STREAM, SyncKind::CONTEXT];
        let of = |kind: SyncKind| (kind.word(), self.syncs.get(&kind).copied().unwrap_or(0));
        let mut parts: Vec<_> = named.map(of).to_vec();
        let all: u64 = self.syncs.values().sum();
        parts.push(("other", all - parts.iter().map(|(_, count)| count).sum::<u64>()));
        (all, parts)
    }
}

/// One kind of work on one device. Work without usable times is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkStats {
    /// The kind of work.
    pub work: Work,
    /// The device that it ran on.
    pub device: DeviceId,
    /// How much of it ran there.
    pub weight: Weight,
    /// The shortest, in nanoseconds.
    pub min: u64,
    /// The longest, in nanoseconds.
    pub max: u64,
    /// The 50th, 95th and 99th percentile by nearest rank, in nanoseconds: exact up to 1,024, within 1 %
    /// beyond.
    pub percentiles: [u64; 3],
}

/// What a device did in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceUse {
    /// The device.
    pub device: DeviceId,
    /// Activities with usable times.
    pub count: u64,
    /// The sum of their durations, in nanoseconds: more than the device was busy where they overlap.
    pub nanos: u64,
}

/// What a stream did in all. Work on a stream comes one after another, so that this is how long it was
/// busy; only nodes of one graph may overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamUse {
    /// The device.
    pub device: DeviceId,
    /// Which; `None`: all those beyond the first few thousand.
    pub stream: Option<(GpuContextId, StreamId)>,
    /// Activities with usable times.
    pub count: u64,
    /// The sum of their durations, in nanoseconds.
    pub nanos: u64,
}

/// How a device spent its time. `window = busy + idle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTime {
    /// The device.
    pub device: DeviceId,
    /// Nanoseconds in which a window was open, and those in which recorded work ran beyond. Where there is
    /// no window (in rows of other tools), from the first activity to the last.
    pub window: u64,
    /// The union of the times of its activities within.
    pub busy: u64,
    /// Nanoseconds of the window in which nothing ran.
    pub idle: u64,
    /// Nanoseconds of activities that were reported too late to be put into the union: so much of `idle`
    /// at most may have been busy.
    pub late: u64,
    /// How many such activities there were.
    pub late_count: u64,
    /// By how much an activity began before the call that launched it, at most: so far at least is the
    /// device's clock behind the host's.
    pub early: u64,
    /// How many such activities there were.
    pub early_count: u64,
    /// When the first recorded activity began.
    pub first: Nanos,
    /// When the last one ended.
    pub last: Nanos,
}

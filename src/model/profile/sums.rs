//! Defines the sums over a run that a profile contains in addition to samples: durations per kind of work, totals of
//! devices and streams, and counts of dependencies.

use std::collections::BTreeMap;

use super::sample::SampleSite;
use crate::record::{
    CopyKind, DeviceId, GpuContextId, MemoryKind, Nanos, Step, StreamId, SyncKind, ThreadId, Work,
};
use crate::stats::Histogram;

/// Durations of one kind of work under one stack, on one GPU (and stream).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationSpread {
    /// Stack of the work.
    pub site: SampleSite,
    /// Kind of work.
    pub work: Work,
    /// GPU that ran the work, if it is known.
    pub device: Option<DeviceId>,
    /// Stream of the work, if streams are summed separately.
    pub stream: Option<(GpuContextId, StreamId)>,
    /// Number of durations.
    pub count: u64,
    /// Sum of the durations, in nanoseconds.
    pub nanos: u64,
    /// Sum of the squared durations.
    pub squares: u128,
}

/// Number of activities, with their total time and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Number of activities (or launches).
    pub count: u64,
    /// GPU time in nanoseconds.
    pub nanos: u64,
    /// Bytes moved or set.
    pub bytes: u64,
}

/// Counts of recorded dependencies; all are 0 if dependencies were not requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// Calls that recorded an event on a stream.
    pub record_calls: u64,
    /// Calls that made a stream wait for an event.
    pub wait_calls: u64,
    /// Event records reported by the tracer.
    pub event_records: u64,
    /// Waits reported by the tracer, by kind.
    pub syncs: BTreeMap<SyncKind, u64>,
}

impl Dependencies {
    /// Whether all counts are 0.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the number of waits that the tracer reported, and the number for each word of [`SyncKind`].
    pub fn waits(&self) -> (u64, Vec<(&'static str, u64)>) {
        let named = [SyncKind::EVENT, SyncKind::STREAM_WAIT, SyncKind::STREAM, SyncKind::CONTEXT];
        let of = |kind: SyncKind| (kind.word(), self.syncs.get(&kind).copied().unwrap_or(0));
        let mut parts: Vec<_> = named.map(of).to_vec();
        let all: u64 = self.syncs.values().sum();
        parts.push(("other", all - parts.iter().map(|(_, count)| count).sum::<u64>()));
        (all, parts)
    }
}

/// Longest plausible duration of an activity, in ns.
pub const MAX_PLAUSIBLE_NS: u64 = 60_000_000_000;

/// Counts of properties of single launches and activities, which checks of a run report. The properties are counted
/// while rows are joined, because sums do not contain the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowFacts {
    /// Number of windows that were opened and closed.
    pub closed_windows: u64,
    /// Number of launches whose first activity is a kernel or belongs to a graph.
    pub covered_launches: u64,
    /// Number of activities that end before they start, although both times are set.
    pub backwards: u64,
    /// Number of activities with a duration of 0.
    pub zero_length: u64,
    /// Number of activities that took longer than [`MAX_PLAUSIBLE_NS`].
    pub too_long: u64,
    /// GPU time of activities that began before their launch, in nanoseconds.
    pub early_ns: u64,
    /// Number of launches with several activities.
    pub shared_launches: u64,
    /// Number of launches that have no activity, and were made after the last launch with an activity.
    pub pending_at_end: u64,
    /// Number of `pending_at_end` launches that should have an activity, and were made while a GPU still ran earlier
    /// work. The work of these launches was probably in a queue when recording ended.
    pub queued: u64,
    /// Number of `pending_at_end` launches of graphs whose work was probably in a queue when recording ended.
    pub queued_graphs: u64,
    /// Whether recording probably ended before the work of the `pending_at_end` launches. Recording is assumed to
    /// have ended too early if the time of the first of these launches, plus the longest time from any launch to the
    /// end of its work, is not before the end of the last event.
    pub ends_before_gpu: bool,
}

/// Statistics of one kind of work on one device. Work without usable times is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkStats {
    /// Kind of work.
    pub work: Work,
    /// Device that ran the work.
    pub device: DeviceId,
    /// Number, time and bytes of the work on that device.
    pub weight: Weight,
    /// Shortest duration, in nanoseconds.
    pub min: u64,
    /// Longest duration, in nanoseconds.
    pub max: u64,
    /// 50th, 95th and 99th percentile of the durations by nearest rank, in nanoseconds. Percentiles are exact up to
    /// 1,024 ns, and within 1 % beyond.
    pub percentiles: [u64; 3],
}

/// Total work of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceUse {
    /// Device that ran the work.
    pub device: DeviceId,
    /// Number of activities with usable times.
    pub count: u64,
    /// Sum of the durations of the activities, in nanoseconds. If activities overlap, this sum exceeds the time in
    /// which the device was busy.
    pub nanos: u64,
}

/// Busy time of a stream. Activities of a stream may overlap: nodes of a graph, and kernels launched with programmatic
/// dependent launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamUse {
    /// Device of the stream.
    pub device: DeviceId,
    /// Stream; `None` if the entry is the sum of all streams beyond the first few thousand.
    pub stream: Option<(GpuContextId, StreamId)>,
    /// Number of activities with usable times.
    pub count: u64,
    /// Time in which at least one activity of the stream ran, in nanoseconds. For the entry of all streams beyond the
    /// first few thousand, the sum of the durations of all activities.
    pub nanos: u64,
}

/// Times between the calls that launched work and the starts of the work.
#[derive(Clone, Debug, Default)]
pub struct LaunchDelays {
    /// Distribution of the delays, in nanoseconds.
    pub histogram: Histogram,
    /// Sum of the delays, in nanoseconds.
    pub sum: u64,
    /// Maximum delay, in nanoseconds.
    pub max: u64,
    /// Number of activities that began before their call. Any such activity shows that one of the two clocks is wrong.
    pub started_before_call: u64,
}

impl LaunchDelays {
    /// Adds work that started at `start` and was launched by a call at `launched`.
    pub fn record(&mut self, launched: Nanos, start: Nanos) {
        let delay = start.since(launched);
        self.started_before_call += u64::from(start < launched);
        self.histogram.record(delay);
        self.sum = self.sum.saturating_add(delay);
        self.max = self.max.max(delay);
    }

    /// Adds the delays of `other`.
    pub fn add(&mut self, other: Self) {
        self.histogram.add(other.histogram);
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
        self.started_before_call += other.started_before_call;
    }
}

/// Launch delays of a kind of work on a device.
#[derive(Clone, Debug)]
pub struct WorkDelays {
    /// Kind of work.
    pub work: Work,
    /// Device that ran the work.
    pub device: DeviceId,
    /// Delays.
    pub delays: LaunchDelays,
}

/// Copies with usable times on one device that have the same direction and the same kinds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyPath {
    /// Device of the copies.
    pub device: DeviceId,
    /// Direction.
    pub kind: CopyKind,
    /// Kind of memory that is read, such as pageable or pinned.
    pub from: MemoryKind,
    /// Kind of memory that is written.
    pub to: MemoryKind,
}

/// Steps of a run (see [`StepSpans`](crate::record::StepSpans)). All fields are 0 if the run has no steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTotals {
    /// Number of steps.
    pub count: u64,
    /// Smallest number of a step. A value of 1 means that the run includes the first step of its process.
    pub first_number: u64,
    /// Beginning of the first step.
    pub first: Nanos,
    /// Beginning of the last step.
    pub last: Nanos,
    /// One of the threads that began steps.
    pub thread: ThreadId,
    /// Whether several threads began steps, so that one iteration of the program may consist of several steps.
    pub has_several_threads: bool,
}

impl StepTotals {
    /// Adds a step.
    pub fn add(&mut self, step: &Step<'_>) {
        let is_first = self.count == 0;
        self.count += 1;
        self.first_number = if is_first { step.number } else { self.first_number.min(step.number) };
        self.first = if is_first { step.time } else { self.first.min(step.time) };
        self.last = self.last.max(step.time);
        self.thread = if is_first { step.thread } else { self.thread };
        self.has_several_threads |= self.thread != step.thread;
    }
}

/// The steady part of a run: the program's repeated work, without start-up and shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteadyPart {
    /// Evidence from which the steady part was derived.
    pub rule: SteadyRule,
    /// Beginning of the part; [`Nanos(0)`](Nanos) if the run has no start-up.
    pub begin: Nanos,
    /// End of the part: the end of the last work that was launched in the part.
    pub end: Nanos,
}

/// Evidence for the steady part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteadyRule {
    /// The part begins with the first step and ends when the work of the last launch in a step has ended.
    Steps,
    /// The part is the longest run of a repeated sequence of stacks.
    Repeated,
}

impl SteadyRule {
    /// Returns the words that denote the part in sentences such as `busy 12 % of the 3.7 s of steps`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Repeated => "repeated launches",
        }
    }
}

/// Busy and idle time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyIdle {
    /// Time in which work ran.
    pub busy: u64,
    /// Time in which no work ran.
    pub idle: u64,
}

impl BusyIdle {
    /// Returns the sum of busy and idle time.
    pub fn window(self) -> u64 {
        self.busy.saturating_add(self.idle)
    }
}

/// Breakdown of a device's time, in which `window = busy + idle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTime {
    /// Device whose time is broken down.
    pub device: DeviceId,
    /// Nanoseconds in which a window was open, plus nanoseconds in which recorded work ran after the window closed. If
    /// the rows come from another tool and have no windows, the time from the first activity to the last activity.
    pub window: u64,
    /// Nanoseconds in which at least one of the device's activities ran.
    pub busy: u64,
    /// Nanoseconds of `window` in which no activity ran.
    pub idle: u64,
    /// Nanoseconds of activities that were reported too late to be added to `busy`. Up to this much of `idle` may in
    /// reality have been busy time.
    pub late: u64,
    /// Number of activities that were reported too late to be added to `busy`.
    pub late_count: u64,
    /// Largest time in nanoseconds by which an activity seems to have started before the call that launched it. The
    /// device's clock is behind the host's clock by at least this much.
    pub early: u64,
    /// Number of activities that started before the call that launched them.
    pub early_count: u64,
    /// Start time of the first recorded activity.
    pub first: Nanos,
    /// End time of the last recorded activity.
    pub last: Nanos,
    /// Parts of `busy` and `idle` that were before the steady part of the run.
    pub start_up: BusyIdle,
    /// Parts of `busy` and `idle` that were after the steady part of the run.
    pub shutdown: BusyIdle,
}

impl DeviceTime {
    /// Returns the busy and idle time of the device in the steady part of the run. If the run has no steady part,
    /// returns its times of the whole run.
    pub fn steady(&self) -> BusyIdle {
        let Self { busy, idle, start_up, shutdown, .. } = self;
        BusyIdle {
            busy: busy.saturating_sub(start_up.busy).saturating_sub(shutdown.busy),
            idle: idle.saturating_sub(start_up.idle).saturating_sub(shutdown.idle),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_several_threads_begin_are_marked() {
        let mut totals = StepTotals::default();
        let mut add = |time, thread| {
            let (time, thread) = (Nanos(time), ThreadId(thread));
            totals.add(&Step { time, end: None, thread, number: time.0, name: "" });
            totals
        };
        assert!(!add(7, 3).has_several_threads && !add(8, 3).has_several_threads);
        assert!(add(9, 4).has_several_threads && add(10, 3).has_several_threads);
    }
}

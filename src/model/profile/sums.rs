//! Defines the sums over a run that a profile contains in addition to samples: durations per kind of work, totals of
//! devices and streams, and counts of event calls and waits.

use std::collections::BTreeMap;

use super::sample::SampleSite;
use crate::record::{
    CopyKind, DeviceId, GpuContextId, MemoryKind, Nanos, Step, StreamId, SyncKind, ThreadId, Work,
};
use crate::stats::Histogram;

/// Sums of the durations of one kind of work, launched from one stack, on one GPU (and stream).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationSpread {
    /// Stack that launched the work.
    pub site: SampleSite,
    /// Kind of work.
    pub work: Work,
    /// GPU that ran the work, if it is known.
    pub device: Option<DeviceId>,
    /// Stream that ran the work, if streams are summed separately.
    pub stream: Option<(GpuContextId, StreamId)>,
    /// Number of activities.
    pub count: u64,
    /// Total duration in nanoseconds.
    pub nanos: u64,
    /// Sum of the squared durations in ns.
    pub squares: u128,
}

/// Number of activities, with their total duration and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Number of activities (or launches).
    pub count: u64,
    /// Total GPU time in nanoseconds.
    pub nanos: u64,
    /// Total number of bytes moved or set.
    pub bytes: u64,
}

/// Counts of calls and records that show dependencies. All are 0 if dependencies were not requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// Number of calls that recorded a CUDA event on a stream.
    pub record_calls: u64,
    /// Number of calls that made a stream wait for a CUDA event.
    pub wait_calls: u64,
    /// Number of event records that the tracer reported.
    pub event_records: u64,
    /// Number of waits that the tracer reported, for each kind of wait.
    pub syncs: BTreeMap<SyncKind, u64>,
}

impl Dependencies {
    /// Whether all counts are 0.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the total number of waits that the tracer reported, and the number for each word of [`SyncKind`].
    pub fn waits(&self) -> (u64, Vec<(&'static str, u64)>) {
        let named = [SyncKind::EVENT, SyncKind::STREAM_WAIT, SyncKind::STREAM, SyncKind::CONTEXT];
        let of = |kind: SyncKind| (kind.word(), self.syncs.get(&kind).copied().unwrap_or(0));
        let mut parts: Vec<_> = named.map(of).to_vec();
        let all: u64 = self.syncs.values().sum();
        parts.push(("other", all - parts.iter().map(|(_, count)| count).sum::<u64>()));
        (all, parts)
    }
}

/// Longest duration of an activity, in ns, that counts as plausible.
pub const MAX_PLAUSIBLE_NS: u64 = 60_000_000_000;

/// Numbers of launches and activities with certain properties, for checks of a run. They are counted while rows are
/// joined, because sums do not contain single rows.
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
    /// Total GPU time in nanoseconds of activities that began before their launch.
    pub early_ns: u64,
    /// Number of launches that have several activities.
    pub shared_launches: u64,
    /// Number of launches that have no activity, and were made after the last launch with an activity.
    pub pending_at_end: u64,
    /// Number of those `pending_at_end` launches that should have an activity and were made while a GPU still ran
    /// earlier work. Their work was probably in a queue when recording ended.
    pub queued: u64,
    /// Number of those `pending_at_end` launches that launched a graph whose work was probably in a queue when
    /// recording ended.
    pub queued_graphs: u64,
    /// Whether recording probably ended before the work of the `pending_at_end` launches. To decide this, the longest
    /// time from any launch to the end of its work is added to the time of the first of these launches. If the sum is
    /// not before the end of the last call or activity, recording ended too early.
    pub ends_before_gpu: bool,
}

/// Statistics of one kind of work on one device. Work without usable times is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkStats {
    /// Kind of work.
    pub work: Work,
    /// Device that ran the work.
    pub device: DeviceId,
    /// Number, total duration and bytes of the work on that device.
    pub weight: Weight,
    /// Shortest duration, in nanoseconds.
    pub min: u64,
    /// Longest duration, in nanoseconds.
    pub max: u64,
    /// 50th, 95th and 99th percentile of the durations by nearest rank, in nanoseconds. Percentiles up to 1,024 ns are
    /// exact. Higher ones have an error of at most 1 %.
    pub percentiles: [u64; 3],
}

/// Total GPU work of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceUse {
    /// Device that ran the work.
    pub device: DeviceId,
    /// Number of activities with usable times.
    pub count: u64,
    /// Total duration of the activities in nanoseconds. If activities overlap, this is more than the time during which
    /// the device was busy.
    pub nanos: u64,
}

/// Busy time of a stream. Activities on a stream may overlap if they are nodes of a graph, or kernels with programmatic
/// dependent launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamUse {
    /// Device of the stream.
    pub device: DeviceId,
    /// GPU context and stream id. `None` if the entry is the sum over all streams beyond the first few thousand.
    pub stream: Option<(GpuContextId, StreamId)>,
    /// Number of activities with usable times.
    pub count: u64,
    /// Time in nanoseconds during which at least one activity of the stream ran. For the sum over all streams beyond
    /// the first few thousand, the total duration of their activities.
    pub nanos: u64,
}

/// Delays from the start of a launch call to the start of the work that it launched.
#[derive(Clone, Debug, Default)]
pub struct LaunchDelays {
    /// Distribution of the delays, in nanoseconds.
    pub histogram: Histogram,
    /// Total delay in nanoseconds.
    pub sum: u64,
    /// Maximum delay, in nanoseconds.
    pub max: u64,
    /// Number of activities that began before the call that launched them. Any such activity shows that the CPU's or
    /// the GPU's clock is wrong.
    pub started_before_call: u64,
}

impl LaunchDelays {
    /// Adds an activity that began at `start` and was launched by a call at `launched`.
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
    /// Delays of all activities of this kind on the device.
    pub delays: LaunchDelays,
}

/// Key for sums of memory copies: the device, the direction, and both kinds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyPath {
    /// Device of the copies.
    pub device: DeviceId,
    /// Direction of the copies.
    pub kind: CopyKind,
    /// Kind of memory that was read, such as pageable or pinned.
    pub from: MemoryKind,
    /// Kind of memory that was written.
    pub to: MemoryKind,
}

/// Totals over the steps of a run (see [`StepSpans`](crate::record::StepSpans)). All fields are 0 if the run has no
/// steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTotals {
    /// Number of steps.
    pub count: u64,
    /// Smallest sequence number of a step. 1 means that the run includes the first step of the process.
    pub first_number: u64,
    /// Time at which the first step began.
    pub first: Nanos,
    /// Time at which the last step began.
    pub last: Nanos,
    /// One of the threads that began steps.
    pub thread: ThreadId,
    /// Whether several threads began steps. If so, one iteration of the program may consist of several steps.
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

/// The steady part of a run: the time in which the program repeats its work, without start-up and shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteadyPart {
    /// Rule by which the steady part was found.
    pub rule: SteadyRule,
    /// Time at which the steady part begins. [`Nanos(0)`](Nanos) if the run has no start-up.
    pub begin: Nanos,
    /// Time at which the steady part ends, which is when the last work launched in it ended.
    pub end: Nanos,
}

/// Rule by which the steady part of a run is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteadyRule {
    /// The steady part begins with the first step, and ends when the work of the last launch in a step has ended.
    Steps,
    /// The steady part is the longest loop that launches the same stacks in each iteration.
    Repeated,
}

impl SteadyRule {
    /// Returns the words for the steady part in sentences such as `busy 12 % of the 3.7 s of steps`.
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
    /// Time during which GPU work ran.
    pub busy: u64,
    /// Time during which no GPU work ran.
    pub idle: u64,
}

impl BusyIdle {
    /// Returns the sum of busy and idle time.
    pub fn window(self) -> u64 {
        self.busy.saturating_add(self.idle)
    }
}

/// Busy and idle time of a device. `window = busy + idle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTime {
    /// Device to which the times belong.
    pub device: DeviceId,
    /// Nanoseconds during which a window was open, plus nanoseconds during which recorded work ran after the window
    /// closed. If the rows come from another tool and have no windows, this is the time from the start of the first
    /// activity to the end of the last.
    pub window: u64,
    /// Nanoseconds during which at least one activity ran on the device.
    pub busy: u64,
    /// Nanoseconds of `window` during which no activity ran.
    pub idle: u64,
    /// Total nanoseconds of activities that arrived too late to be added to `busy`. Up to this much of `idle` may in
    /// fact be busy time.
    pub late: u64,
    /// Number of activities that arrived too late to be added to `busy`.
    pub late_count: u64,
    /// Maximum time in nanoseconds by which an activity seems to have started before the call that launched it. The
    /// device's clock is behind the host's clock by at least this time.
    pub early: u64,
    /// Number of activities that started before the call that launched them.
    pub early_count: u64,
    /// Start time of the first recorded activity.
    pub first: Nanos,
    /// End time of the last recorded activity.
    pub last: Nanos,
    /// The parts of `busy` and `idle` before the steady part of the run.
    pub start_up: BusyIdle,
    /// The parts of `busy` and `idle` after the steady part of the run.
    pub shutdown: BusyIdle,
}

impl DeviceTime {
    /// Returns the device's busy and idle time in the steady part of the run. If the run has no steady part, returns
    /// those of the whole run.
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

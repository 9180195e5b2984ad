//! Defines the sums over a run that a profile contains in addition to samples. The sums are durations per kind of work,
//! totals of devices and streams, and counts of calls that use CUDA events or wait.

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
    /// Sum of the squared durations, in ns squared.
    pub squares: u128,
}

/// Number, total duration and total number of bytes of activities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Number of activities (or launches).
    pub count: u64,
    /// Total GPU time in nanoseconds.
    pub nanos: u64,
    /// Total number of bytes moved or set.
    pub bytes: u64,
}

/// Counts of API calls and tracer records that show dependencies between the host and streams. All counts are 0 if the
/// user did not request dependencies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// Number of calls that recorded a CUDA event on a stream.
    pub record_calls: u64,
    /// Number of calls that made a stream wait for a CUDA event.
    pub wait_calls: u64,
    /// Number of records about CUDA events that the tracer reported.
    pub event_records: u64,
    /// Number of records about waits that the tracer reported, for each kind of wait.
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

/// Longest duration of an activity in ns that is still plausible.
pub const MAX_PLAUSIBLE_NS: u64 = 60_000_000_000;

/// Numbers of launches and activities with certain properties, for the list of checks that is printed for a run. The
/// launches and activities are counted while activities are matched to launches, because later only sums are stored,
/// and no single rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowFacts {
    /// Number of windows that were opened and closed.
    pub closed_windows: u64,
    /// Number of launches whose first activity is a kernel or belongs to a graph.
    pub covered_launches: u64,
    /// Number of activities with an end time before the start time, although both times are set.
    pub backwards: u64,
    /// Number of activities with a duration of 0.
    pub zero_length: u64,
    /// Number of activities that took longer than [`MAX_PLAUSIBLE_NS`].
    pub too_long: u64,
    /// Total GPU time in nanoseconds of activities that began before their launch.
    pub early_ns: u64,
    /// Number of launches that have several activities.
    pub shared_launches: u64,
    /// Number of launches that have no activity and were made after the last launch with an activity.
    pub pending_at_end: u64,
    /// Number of `pending_at_end` launches that should have an activity and were made while a GPU still ran earlier
    /// work. The work of these launches was probably still in a queue when recording ended.
    pub queued: u64,
    /// Number of `pending_at_end` launches that launched a graph whose work was probably still in a queue when
    /// recording ended.
    pub queued_graphs: u64,
    /// Whether recording probably ended before the GPU ran the work of the `pending_at_end` launches. The function adds
    /// the longest time from any launch to the end of its work to the time of the first `pending_at_end` launch. If the
    /// resulting time is not before the end of the last call or activity, recording probably ended too early.
    pub ends_before_gpu: bool,
}

/// Statistics of one kind of work on one device. Work without usable start and end times is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkStats {
    /// Kind of work.
    pub work: Work,
    /// Device that ran the work.
    pub device: DeviceId,
    /// Number, total duration and total number of bytes of the work on that device.
    pub weight: Weight,
    /// Shortest duration, in nanoseconds.
    pub min: u64,
    /// Longest duration, in nanoseconds.
    pub max: u64,
    /// 50th, 95th and 99th percentile of the durations by nearest rank, in nanoseconds. Percentiles up to 1,024 ns are
    /// exact. Higher percentiles have an error of at most 1 %.
    pub percentiles: [u64; 3],
}

/// Total GPU work that a device ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceUse {
    /// Device that ran the work.
    pub device: DeviceId,
    /// Number of activities with usable start and end times.
    pub count: u64,
    /// Total duration of the activities in nanoseconds. If activities overlap, their total duration is longer than the
    /// time during which the device was busy.
    pub nanos: u64,
}

/// Busy time of a stream. Activities on a stream may overlap if they are nodes of a graph, or kernels with programmatic
/// dependent launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamUse {
    /// Device to which the stream belongs.
    pub device: DeviceId,
    /// GPU context and id of the stream. Only the first few thousand streams have separate entries. `None` marks the
    /// entry for all other streams together.
    pub stream: Option<(GpuContextId, StreamId)>,
    /// Number of activities with usable start and end times.
    pub count: u64,
    /// Time in nanoseconds during which at least one activity ran on the stream. The entry for all other streams
    /// together contains the total duration of the activities on these streams instead.
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
    /// Number of activities that began before the call that launched them. If any activity began before its call, the
    /// clock of the CPU or of the GPU is wrong.
    pub started_before_call: u64,
}

impl LaunchDelays {
    /// Counts an activity that began at `start` and was launched by a call that began at `launched`.
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

/// Launch delays of one kind of work on one device.
#[derive(Clone, Debug)]
pub struct WorkDelays {
    /// Kind of work.
    pub work: Work,
    /// Device that ran the work.
    pub device: DeviceId,
    /// Delays of all activities of this kind on the device.
    pub delays: LaunchDelays,
}

/// Key by which memory copies are summed: the device, the direction, and the kinds of memory that were read and
/// written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyPath {
    /// Device that ran the copies.
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
    /// Smallest sequence number of a step. The number 1 means that the run includes the first step of the process.
    pub first_number: u64,
    /// Time at which the first step of the run began.
    pub first: Nanos,
    /// Time at which the last step of the run began.
    pub last: Nanos,
    /// One of the threads that began steps.
    pub thread: ThreadId,
    /// Whether several threads began steps. If several threads began steps, one iteration of the program may consist of
    /// several steps.
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
    /// Time at which the steady part ends. The steady part ends when the last work that was launched in the steady part
    /// ended.
    pub end: Nanos,
}

/// Rule by which the steady part of a run is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteadyRule {
    /// The steady part begins with the first step of the program. The steady part ends when the work of the last launch
    /// in a step has ended.
    Steps,
    /// The steady part is the longest loop that launches GPU work from the same stacks in each iteration.
    Repeated,
}

impl SteadyRule {
    /// Returns the words that name the steady part in sentences such as `busy 12 % of the 3.7 s of steps`.
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

/// Busy and idle time of a device. `window` is the sum of `busy` and `idle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTime {
    /// Device to which the times belong.
    pub device: DeviceId,
    /// Nanoseconds during which a window was open, plus nanoseconds during which recorded work ran after the window
    /// closed. For a trace of another tool without windows, `window` is the time from the start of the first activity
    /// to the end of the last activity.
    pub window: u64,
    /// Nanoseconds during which at least one activity ran on the device.
    pub busy: u64,
    /// Nanoseconds of `window` during which no activity ran.
    pub idle: u64,
    /// Total duration in nanoseconds of activities that arrived too late to be added to `busy`. The device was in fact
    /// busy during at most this part of `idle`.
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
    /// The parts of `busy` and `idle` before the steady part of the run began.
    pub start_up: BusyIdle,
    /// The parts of `busy` and `idle` after the steady part of the run ended.
    pub shutdown: BusyIdle,
}

impl DeviceTime {
    /// Returns the device's busy and idle time in the steady part of the run. If the run has no steady part, returns
    /// the busy and idle time in the whole run.
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

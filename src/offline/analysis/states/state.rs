//! States of a stream, their causes, and the time intervals of the states.

use super::collect::StreamKey;
use gpuflame_explain::join::Launched;
use gpuflame_model::profile::{Cause, SampleSite};
use gpuflame_model::record::{EventId, Work};

/// State of a stream. If several states apply at the same time, the variant that is listed first is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// An operation runs.
    Running,
    /// The next operation was launched and is waiting for a CUDA event.
    Waiting,
    /// The next operation was launched but has not begun, and no CUDA event is known for which it waits.
    Pending,
    /// The next operation has not been launched yet, or its launch is unknown.
    Idle,
    /// The last operation of the stream has ended.
    Finished,
    /// No operation runs, and the time is outside all recording windows.
    NotRecorded,
}

impl State {
    /// All states, in the order in which they take precedence.
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Waiting, Self::Pending, Self::Idle, Self::Finished, Self::NotRecorded];

    /// Returns the state as a word for tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Pending => "pending",
            Self::Idle => "idle",
            Self::Finished => "finished",
            Self::NotRecorded => "not_recorded",
        }
    }
}

/// Cause of a state, or of a part of a launch delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateCause {
    /// No cause, because the state is running, finished or not recorded.
    None,
    /// Earlier work on the stream is running. Only launch delays have the cause `InOrder`, because the state of the
    /// stream is `Running` while earlier work runs.
    InOrder,
    /// The operation waits for a CUDA event.
    Event,
    /// The operation waits for a CUDA event that was recorded after a kernel that moves data between GPUs.
    Collective,
    /// The launch call is in flight, or it returned at most 10 us ago.
    LaunchLatency,
    /// The legacy default stream waits for other streams, or another stream waits for the legacy default stream.
    DefaultStream,
    /// Other streams of the GPU were busy for the whole time, and no further cause is known. Perhaps no multiprocessor
    /// of the GPU was free, or the stream waited for the other streams in a way that the data does not show.
    OtherStreams,
    /// The host has not begun the launch call.
    HostLate,
    /// The data does not show the cause.
    Unknown,
}

impl StateCause {
    /// Returns the cause as a word for tables. The word for [`StateCause::None`] is empty.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "",
            Self::InOrder => "in_order",
            Self::Event => "event",
            Self::Collective => "collective",
            Self::LaunchLatency => Cause::LaunchLatency.word(),
            Self::DefaultStream => "default_stream",
            Self::OtherStreams => "other_streams",
            Self::HostLate => Cause::HostLate.word(),
            Self::Unknown => Cause::Unknown.word(),
        }
    }
}

/// Time interval in which a stream had one state for one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Start of the interval, in ns since 1970.
    pub start: u64,
    /// End of the interval, in ns since 1970.
    pub end: u64,
    /// State of the stream.
    pub state: State,
    /// Cause of the state.
    pub cause: StateCause,
    /// CUDA event for which the stream waits, if it is known.
    pub event: Option<EventId>,
    /// If the stream waits for a CUDA event, the stream whose work has to end before the event happens, if it is known.
    /// The CUDA event happens at the end of the interval.
    pub source: Option<StreamKey>,
    /// Operation that runs first in the interval, or the operation that begins next if none runs. If the cause is
    /// [`StateCause::Collective`], the operation for which the stream waits.
    pub work: Option<Work>,
    /// Launch that was late, if the cause is [`StateCause::HostLate`].
    pub late: Option<Launched>,
    /// Place in the code that accounts for the largest part of the interval, or `None` if the caller does not request
    /// culprits.
    pub culprit: Option<SampleSite>,
}

impl Interval {
    /// Creates an interval with times, a state and a cause. All fields except times, state and cause are `None`.
    pub fn new((start, end): (u64, u64), state: State, cause: StateCause) -> Self {
        Self { start, end, state, cause, event: None, source: None, work: None, late: None, culprit: None }
    }

    /// Whether `next` continues this interval with the same state and cause. In the state `Running`, the two intervals
    /// may have different operations.
    pub(super) fn continues_as(&self, next: &Self) -> bool {
        let facts = |one: &Self| (one.event, one.source, one.work, one.late);
        (self.end, self.state, self.cause) == (next.start, next.state, next.cause)
            && (self.state == State::Running || facts(self) == facts(next))
    }
}

//! States of a stream, their causes, and the time intervals of the states.

use super::collect::StreamKey;
use gpuflame_explain::join::Launched;
use gpuflame_model::profile::{Cause, SampleSite};
use gpuflame_model::record::{EventId, Work};

/// State of a stream. If several states apply, the first of them in this list counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// An operation runs.
    Running,
    /// The next operation was launched and is waiting for an event.
    Waiting,
    /// The next operation was launched but has not begun, and is not waiting for a known event.
    Pending,
    /// The next operation has not been launched yet, or its launch is unknown.
    Idle,
    /// The last operation has ended.
    Finished,
    /// No operation runs, and no recording window is open.
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
    /// Earlier work of the stream runs. Only delays have this cause, because the stream itself is running at that time.
    InOrder,
    /// The operation waits for a CUDA event.
    Event,
    /// The operation waits for a CUDA event that was recorded after a kernel that moves data between GPUs.
    Collective,
    /// The launch call is in flight, or it returned at most 10 us ago.
    LaunchLatency,
    /// The legacy default stream waits for other streams, or another stream waits for it.
    DefaultStream,
    /// Other streams were busy for the whole time, and no other cause is known. Either no multiprocessor of the GPU was
    /// free, or the stream waited for the other streams in a way that the data does not show.
    OtherStreams,
    /// The host has not begun the launch call.
    HostLate,
    /// The data does not show the cause.
    Unknown,
}

impl StateCause {
    /// Returns the cause as a word for tables; empty for [`StateCause::None`].
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
    /// Start, in ns since 1970.
    pub start: u64,
    /// End, in ns since 1970.
    pub end: u64,
    /// State of the stream.
    pub state: State,
    /// Cause of the state.
    pub cause: StateCause,
    /// Event that the stream waits for, if it is known.
    pub event: Option<EventId>,
    /// Stream whose work has to end before the event happens, if it is known. The event happens at the end of the
    /// interval.
    pub source: Option<StreamKey>,
    /// Operation that runs first in the interval, or that begins next. For [`StateCause::Collective`], this is the
    /// operation waited for.
    pub work: Option<Work>,
    /// Launch that was late, for [`StateCause::HostLate`].
    pub late: Option<Launched>,
    /// Place in the code that accounts for most of the time, if culprits are searched for.
    pub culprit: Option<SampleSite>,
}

impl Interval {
    /// Creates an interval with a state and a cause, but without other facts.
    pub fn new((start, end): (u64, u64), state: State, cause: StateCause) -> Self {
        Self { start, end, state, cause, event: None, source: None, work: None, late: None, culprit: None }
    }

    /// Whether `next` continues this interval. For running streams, the operation does not matter.
    pub(super) fn continues_as(&self, next: &Self) -> bool {
        let facts = |one: &Self| (one.event, one.source, one.work, one.late);
        (self.end, self.state, self.cause) == (next.start, next.state, next.cause)
            && (self.state == State::Running || facts(self) == facts(next))
    }
}

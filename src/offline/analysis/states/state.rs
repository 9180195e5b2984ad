//! States of a stream, their causes, and the intervals in which the stream has them.

use super::collect::StreamKey;
use gpuflame_explain::join::Launched;
use gpuflame_model::profile::{Cause, SampleSite};
use gpuflame_model::record::{EventId, Work};

/// State of a stream. If several apply, the first one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// An operation runs.
    Running,
    /// The next operation is launched and waits for an event.
    Waiting,
    /// The next operation is launched and has not begun, and waits for no known event.
    Pending,
    /// The next operation is not launched yet, or its launch is unknown.
    Idle,
    /// The last operation has ended.
    Finished,
    /// No operation runs, and no window was open.
    NotRecorded,
}

impl State {
    /// All states, in the order in which they count.
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Waiting, Self::Pending, Self::Idle, Self::Finished, Self::NotRecorded];

    /// Returns the word for tables.
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
    /// The state has no cause: running, finished or not recorded.
    None,
    /// Earlier work of the stream runs. Only delays have this cause, because the stream itself is then running.
    InOrder,
    /// The operation waits for an event.
    Event,
    /// The operation waits for an event that follows a kernel which moves data between GPUs.
    Collective,
    /// The launch call is in flight, or returned at most 10 us ago.
    LaunchLatency,
    /// The legacy default stream waits for other streams, or another stream waits for it.
    DefaultStream,
    /// Other streams ran for the whole time, and no other cause is known: no processor of the GPU was free, or the stream
    /// waited for them in a way that the data does not tell.
    OtherStreams,
    /// The launch call has not begun.
    HostLate,
    /// The data does not tell.
    Unknown,
}

impl StateCause {
    /// Returns the word for tables; empty for [`StateCause::None`].
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

/// Time in which a stream had one state for one cause.
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
    /// Stream whose work the event waits for, if it is known. The event happens at the end of the interval.
    pub source: Option<StreamKey>,
    /// Work that runs first, or that begins next; for [`StateCause::Collective`], the work waited for.
    pub work: Option<Work>,
    /// For [`StateCause::HostLate`], the launch that was late.
    pub late: Option<Launched>,
    /// Code to which most of the time is charged, if culprits are searched for.
    pub culprit: Option<SampleSite>,
}

impl Interval {
    /// Creates an interval about which nothing else is known.
    pub fn new((start, end): (u64, u64), state: State, cause: StateCause) -> Self {
        Self { start, end, state, cause, event: None, source: None, work: None, late: None, culprit: None }
    }

    /// Whether `next` continues this interval. What runs does not matter.
    pub(super) fn continues_as(&self, next: &Self) -> bool {
        let facts = |one: &Self| (one.event, one.source, one.work, one.late);
        (self.end, self.state, self.cause) == (next.start, next.state, next.cause)
            && (self.state == State::Running || facts(self) == facts(next))
    }
}

//! What ran, how often and how long: the rows of a profile.

use std::collections::BTreeMap;

use crate::record::{
    ContextId, Created, DeviceId, GpuContextId, MemoryKind, Missing, Nanos, StreamId, SyncKind, UnifiedKind,
    Work,
};

/// What a sample hangs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The stack of a context.
    Context(ContextId),
    /// A label at the root, since there is no stack.
    Missing(Missing),
    /// A node of a graph, which has two.
    Node {
        /// Where the graph was launched.
        launch: Result<ContextId, Missing>,
        /// Where the node was made.
        created: Created,
    },
}

impl Place {
    /// Who launched.
    pub fn launch(self) -> Result<ContextId, Missing> {
        match self {
            Self::Context(context) => Ok(context),
            Self::Missing(missing) => Err(missing),
            Self::Node { launch, .. } => launch,
        }
    }
}

/// The last frame of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Leaf {
    /// Work that a GPU did.
    Work(Work),
    /// Work that a GPU did, we do not know for how long.
    Untimed(Work),
    /// A launch without an activity.
    Pending,
}

/// How much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Activities (or launches).
    pub count: u64,
    /// GPU time in nanoseconds.
    pub nanos: u64,
    /// Bytes moved or set.
    pub bytes: u64,
}

/// One (place, leaf, device) and how much of it there was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// What it hangs under.
    pub place: Place,
    /// What it is.
    pub leaf: Leaf,
    /// Where it ran; `None` for launches without an activity.
    pub device: Option<DeviceId>,
    /// On which stream; `None` also where nobody asked for streams.
    pub stream: Option<(GpuContextId, StreamId)>,
    /// How much of it there was.
    pub weight: Weight,
}

/// What the host did about a GPU, beside launching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostCall {
    /// It waited: nanoseconds.
    Wait,
    /// It allocated memory of this kind: bytes.
    Allocate(MemoryKind),
    /// It freed memory of this kind, or of one that was allocated before anybody looked: bytes.
    Free(Option<MemoryKind>),
}

/// One (stack, host call) and how much of it there was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostSample {
    /// Who called; [`ContextId::NONE`] where the stack was lost.
    pub context: ContextId,
    /// What.
    pub call: HostCall,
    /// How often.
    pub count: u64,
    /// Nanoseconds or bytes.
    pub amount: u64,
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

/// One thing that happened to unified memory on one GPU, and how much of it there was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnifiedSample {
    /// What.
    pub kind: UnifiedKind,
    /// The GPU that took part, if one did.
    pub device: Option<DeviceId>,
    /// How often it was recorded.
    pub count: u64,
    /// Bytes that moved, or faults.
    pub value: u64,
    /// Nanoseconds.
    pub nanos: u64,
}

/// One kind of work on one device. Work without usable times is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkStats {
    /// What.
    pub work: Work,
    /// Where.
    pub device: DeviceId,
    /// How much.
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
    /// Which.
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
    /// Which.
    pub device: DeviceId,
    /// Nanoseconds in which a window was open, and those in which recorded work ran beyond. Where there is
    /// no window (in rows of other tools), from the first activity to the last.
    pub window: u64,
    /// The union of the times of its activities within.
    pub busy: u64,
    /// The rest.
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

/// Why a device had nothing to do for a part of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The launch call had not begun.
    HostLate,
    /// The call was under way, or had returned so short a time before that the work was on its way.
    LaunchLatency,
    /// The work was launched long before and waited: for an event, for another device or the host, or for
    /// its turn after the work before it.
    Dependency,
    /// The launch is not known, or the clocks contradict each other.
    Unknown,
}

impl Cause {
    /// All causes, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::HostLate, Self::LaunchLatency, Self::Dependency, Self::Unknown];

    /// What flame graphs show.
    pub fn label(self) -> &'static str {
        match self {
            Self::HostLate => "host late",
            Self::LaunchLatency => "launch latency",
            Self::Dependency => "dependency or sync",
            Self::Unknown => "unknown",
        }
    }

    /// The word in ledgers; lower case, no blanks.
    pub fn word(self) -> &'static str {
        match self {
            Self::HostLate => "host_late",
            Self::LaunchLatency => "launch_latency",
            Self::Dependency => "dependency",
            Self::Unknown => "unknown",
        }
    }
}

/// Idle time, by where it lay and who is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Idle {
    /// Between two pieces of work; charged to the launch of the second.
    Between(Place, Cause),
    /// From the opening of a window to the first work in it; charged to the launch of that.
    Opening(Place, Cause),
    /// From the last work in a window, if any, until the window closed.
    Closing,
}

/// One (device, idle time) and how much of it there was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdleSample {
    /// Which device had nothing to do.
    pub device: DeviceId,
    /// Whose fault that was.
    pub idle: Idle,
    /// How many gaps have a part in this. A gap with several causes counts for each.
    pub gaps: u64,
    /// Nanoseconds.
    pub nanos: u64,
}

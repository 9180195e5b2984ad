//! What ran, how often and how long: the rows of a profile.

use crate::record::{ContextId, Created, DeviceId, Missing, Nanos, Work};

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
    /// How much of it there was.
    pub weight: Weight,
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
    /// The sum of their durations, in nanoseconds: more than `busy` where they overlap.
    pub nanos: u64,
    /// The union of their times, in nanoseconds. It may be too small by at most `late`.
    pub busy: u64,
    /// Nanoseconds of activities that were reported too late to be put into the union.
    pub late: u64,
    /// When the first began.
    pub first: Nanos,
    /// When the last ended.
    pub last: Nanos,
}

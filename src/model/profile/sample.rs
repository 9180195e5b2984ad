//! A sample: a stack, the frames at its leaf, its place (GPU and stream), and amounts. All views consist of samples.

use super::cause::Cause;
use super::frame::Kind;
use super::strings::StringId;
use crate::record::{
    ContextId, Created, DeviceId, GpuContextId, Loss, MemoryKind, Missing, StreamId, ThreadId, UnifiedKind,
    Work,
};

/// Maximum number of values per sample.
pub const MOST_VALUES: usize = 4;

/// Amounts of a sample, one per entry of its view's [`values`](super::View::values). The first amount determines
/// widths. The second amount is the number of occurrences, if the view counts occurrences.
pub type Values = [u64; MOST_VALUES];

/// A stack of a view, and the amounts attributed to the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    /// Mark at the root, below the stack.
    pub base: Option<Base>,
    /// Stack to which the sample is attributed.
    pub place: Place,
    /// Frames on top of the stack.
    pub leaf: Leaf,
    /// GPU; `None` if no GPU was involved.
    pub device: Option<DeviceId>,
    /// Stream; `None` if no GPU was involved or streams were not requested.
    pub stream: Option<(GpuContextId, StreamId)>,
    /// Amounts, in the order of the view's values.
    pub values: Values,
}

impl Sample {
    /// Creates a sample with zero amounts.
    pub fn new(place: Place, leaf: Leaf) -> Self {
        Self { base: None, place, leaf, device: None, stream: None, values: [0; MOST_VALUES] }
    }

    /// Returns the amount in the unit of the view's first value.
    pub fn amount(&self) -> u64 {
        self.values[0]
    }

    /// Returns the number of occurrences: the second value, if the view has one.
    pub fn count(&self) -> u64 {
        self.values[1]
    }
}

/// Adds `more` to `sum`, saturating instead of wrapping.
pub fn add_values(sum: &mut Values, more: Values) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
}

/// A mark at the root of a stack, for idle time at the edge of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Base {
    /// Idle time from a window's opening to the first work in the window, attributed to the sample's stack.
    Opening,
    /// Idle time from the last work in a window to the window's end.
    Closing,
}

impl Base {
    /// Returns the label that flame graphs show.
    pub fn label(self) -> &'static str {
        match self {
            Self::Opening => "[since the window opened]",
            Self::Closing => "[until the window closed]",
        }
    }
}

/// Stack to which a sample is attributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The stack of a context.
    Context(ContextId),
    /// A label at the root of the flame graph, because there is no stack.
    Missing(Missing),
    /// A graph node, which has two stacks.
    Node {
        /// Context that launched the graph.
        launch: Result<ContextId, Missing>,
        /// Origin of the node.
        created: Created,
    },
    /// Time of a thread between two calls, attributed to neither call.
    Between {
        /// Call before the time.
        after: ContextId,
        /// Thread of the call before, if it differs from the second call's thread. [`ThreadId::OTHERS`] stands for
        /// threads that were merged.
        thread: Option<ThreadId>,
        /// Call after the time.
        before: ContextId,
    },
    /// No stack: idle time that no launch ended, or traffic caused by the driver.
    Nobody,
}

impl Place {
    /// Returns the launching context, or for [`Place::Between`] the call after.
    pub fn launch(self) -> Result<ContextId, Missing> {
        match self {
            Self::Context(context) | Self::Between { before: context, .. } => Ok(context),
            Self::Missing(missing) => Err(missing),
            Self::Nobody => Err(Missing::NoStack),
            Self::Node { launch, .. } => launch,
        }
    }
}

/// Frames on top of a stack, outermost first: no frame, the work that was launched, or a path of several frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Leaf([Option<Tip>; Self::DEEPEST]);

impl Leaf {
    /// Maximum number of tips: a kernel, a location in the kernel, and the reason for a stall at that location.
    pub const DEEPEST: usize = 3;
    /// Empty leaf: the sample ends with its stack.
    pub const NONE: Self = Self([None; Self::DEEPEST]);
    /// A launch without an activity.
    pub const PENDING: Self = Self([Some(Tip::Missing(Missing::Pending)), None, None]);

    /// Creates a leaf from `tips`; drops tips beyond [`Leaf::DEEPEST`].
    pub fn new(tips: &[Tip]) -> Self {
        debug_assert!(tips.len() <= Self::DEEPEST, "{tips:?} do not fit into a leaf");
        Self(std::array::from_fn(|at| tips.get(at).copied()))
    }

    /// Creates a leaf for GPU work.
    pub fn work(work: Work) -> Self {
        Self::new(&[Tip::Work(work)])
    }

    /// Creates a leaf for GPU work of unknown duration.
    pub fn untimed(work: Work) -> Self {
        Self::new(&[Tip::Missing(Missing::Untimed), Tip::Work(work)])
    }

    /// Returns the tips, outermost first.
    pub fn tips(self) -> impl Iterator<Item = Tip> {
        self.0.into_iter().flatten()
    }

    /// Whether `missing` is one of the tips.
    pub fn is_missing(self, missing: Missing) -> bool {
        self.tips().any(|tip| tip == Tip::Missing(missing))
    }
}

/// A frame on top of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tip {
    /// GPU work.
    Work(Work),
    /// Reason why something is unknown.
    Missing(Missing),
    /// Lost work, which no other frame shows.
    Lost(Loss),
    /// A GPU was idle because of this cause.
    Idle(Cause),
    /// A GPU was idle, and no work followed.
    IdleToTheEnd,
    /// Memory of this kind was allocated.
    Allocate(MemoryKind),
    /// Memory of this kind was freed. The kind is unknown if the memory was allocated before recording began.
    Free(Option<MemoryKind>),
    /// Traffic or faults of unified memory.
    Unified(UnifiedKind),
    /// The thread was on a CPU.
    OnCpu,
    /// The thread was off-CPU, waiting.
    OffCpu,
    /// Any other frame that has a name.
    Named(Kind, StringId),
}

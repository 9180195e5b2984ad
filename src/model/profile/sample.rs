//! Defines samples. A sample consists of a stack, the frames that are added below it, a GPU and stream, and amounts. A
//! view, such as GPU time or idle time, consists of samples.

use super::cause::Cause;
use super::frame::ShownFrameKind;
use super::strings::StringId;
use crate::record::{
    ContextId, Created, DeviceId, GpuContextId, Loss, MemoryKind, Missing, StreamId, ThreadId, UnifiedKind,
    Work,
};

/// Maximum number of values per sample.
pub const MAX_SAMPLE_VALUES: usize = 4;

/// Amounts of a sample, one for each entry in the [`values`](super::View::values) of the sample's view. The first
/// amount determines the width at which the sample is drawn. In views that count occurrences, the second amount is the
/// number of occurrences.
pub type Values = [u64; MAX_SAMPLE_VALUES];

/// Amounts that a view attributes to one stack, GPU and stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    /// Label that is shown at the root, before the frames of the stack, if there is one.
    pub root_mark: Option<RootMark>,
    /// Stack to which the sample is attributed.
    pub site: SampleSite,
    /// Frames that are added at the leaf of the stack.
    pub leaf: Leaf,
    /// GPU for which the amounts were measured, or `None` if no GPU was involved.
    pub device: Option<DeviceId>,
    /// Stream for which the amounts were measured. `None` if no GPU was involved, or if streams were not requested.
    pub stream: Option<(GpuContextId, StreamId)>,
    /// Amounts of the sample, in the order of the view's values.
    pub values: Values,
}

impl Sample {
    /// Creates a sample with zero amounts.
    pub fn new(site: SampleSite, leaf: Leaf) -> Self {
        Self { root_mark: None, site, leaf, device: None, stream: None, values: [0; MAX_SAMPLE_VALUES] }
    }

    /// Returns the first amount of the sample, in the unit of the view's first value.
    pub fn amount(&self) -> u64 {
        self.values[0]
    }

    /// Returns the number of occurrences, which is the second amount of the sample if the view has a second value.
    pub fn count(&self) -> u64 {
        self.values[1]
    }
}

/// Adds the amounts `more` to `sum`. Each amount saturates instead of wrapping.
pub fn add_values(sum: &mut Values, more: Values) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
}

/// A label at the root of a stack, for idle time at the beginning or end of a window, or outside the steady part of the
/// run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RootMark {
    /// Idle time from the opening of a window to the first GPU work in the window. The sample has the stack that
    /// launched this work.
    Opening,
    /// Idle time from the last GPU work in a window to the closing of the window.
    Closing,
    /// Idle time before the steady part of the run.
    StartUp,
    /// Idle time after the steady part of the run.
    Shutdown,
}

impl RootMark {
    /// Returns the label that flame graphs show.
    pub fn label(self) -> &'static str {
        match self {
            Self::Opening => "[since the window opened]",
            Self::Closing => "[until the window closed]",
            Self::StartUp => "[start-up]",
            Self::Shutdown => "[shutdown]",
        }
    }
}

/// Stack to which a sample is attributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SampleSite {
    /// The stack of a context.
    Context(ContextId),
    /// The sample's stack is unknown. A label at the root of the flame graph shows the reason.
    Missing(Missing),
    /// A graph node. A graph node has two stacks: one that launched the graph, and one that created the node.
    Node {
        /// Launch context (stack and API call) that launched the graph, or the reason why this context is unknown.
        launch: Result<ContextId, Missing>,
        /// Launch context (stack and API call) that created the node, or the reason why this context is unknown.
        created: Created,
    },
    /// Time that is attributed to the pause of a thread between two API calls.
    Between {
        /// Context (stack and API call) of the call before the pause.
        after: ContextId,
        /// Thread that made the call `after`, if it is not the thread that made the call `before`. [`ThreadId::OTHERS`]
        /// represents all threads that were merged.
        thread: Option<ThreadId>,
        /// Context (stack and API call) of the call after the pause.
        before: ContextId,
    },
    /// The sample has no stack. Samples without a stack are idle time that no launch ended, and memory traffic that the
    /// driver caused.
    NoStack,
}

impl SampleSite {
    /// Returns the launching context. For [`SampleSite::Between`], returns the context of the call after the pause.
    pub fn launch(self) -> Result<ContextId, Missing> {
        match self {
            Self::Context(context) | Self::Between { before: context, .. } => Ok(context),
            Self::Missing(missing) => Err(missing),
            Self::NoStack => Err(Missing::NoStack),
            Self::Node { launch, .. } => launch,
        }
    }
}

/// Frames that are added below the leaf of a sample's stack (*leaf frames*), outermost first. A sample has no leaf
/// frame, one leaf frame for the GPU work that was launched, or several leaf frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Leaf([Option<LeafFrame>; Self::MAX_FRAMES]);

impl Leaf {
    /// Maximum number of leaf frames. The longest list of leaf frames is a kernel, a location in the kernel, and the
    /// reason for a stall at that location.
    pub const MAX_FRAMES: usize = 3;
    /// No leaf frames.
    pub const NONE: Self = Self([None; Self::MAX_FRAMES]);
    /// The leaf frame for a launch without an activity.
    pub const PENDING: Self = Self([Some(LeafFrame::Missing(Missing::Pending)), None, None]);

    /// Creates a [`Leaf`] that consists of `leaf_frames`. Frames beyond [`Leaf::MAX_FRAMES`] are dropped.
    pub fn new(leaf_frames: &[LeafFrame]) -> Self {
        debug_assert!(leaf_frames.len() <= Self::MAX_FRAMES, "{leaf_frames:?} do not fit into a leaf");
        Self(std::array::from_fn(|at| leaf_frames.get(at).copied()))
    }

    /// Creates the leaf frame for GPU work.
    pub fn work(work: Work) -> Self {
        Self::new(&[LeafFrame::Work(work)])
    }

    /// Creates the leaf frames for GPU work of unknown duration.
    pub fn untimed(work: Work) -> Self {
        Self::new(&[LeafFrame::Missing(Missing::Untimed), LeafFrame::Work(work)])
    }

    /// Returns the leaf frames, outermost first.
    pub fn frames(self) -> impl Iterator<Item = LeafFrame> {
        self.0.into_iter().flatten()
    }

    /// Whether `missing` is one of the leaf frames.
    pub fn is_missing(self, missing: Missing) -> bool {
        self.frames().any(|leaf_frame| leaf_frame == LeafFrame::Missing(missing))
    }
}

/// A frame that is added below the leaf of a sample's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeafFrame {
    /// A kernel, copy, fill or graph.
    Work(Work),
    /// The launch, the stack or the time is unknown for this reason.
    Missing(Missing),
    /// GPU work that was counted but not recorded.
    Lost(Loss),
    /// Time in which the GPU was idle because of this cause.
    Idle(Cause),
    /// Time in which the GPU was idle until the window closed, because no work followed.
    IdleUntilClose,
    /// Memory of this kind was allocated.
    Allocate(MemoryKind),
    /// Memory of this kind was freed. The kind is unknown if the memory was allocated before recording began.
    Free(Option<MemoryKind>),
    /// Migrations or page faults of unified memory.
    Unified(UnifiedKind),
    /// Time in which the thread was on a CPU.
    OnCpu,
    /// Time in which the thread waited off-CPU.
    OffCpu,
    /// A frame of any other kind, with its kind and name.
    Named(ShownFrameKind, StringId),
}

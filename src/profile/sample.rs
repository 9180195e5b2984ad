//! A sample: a stack, what stands at its tip, where that was, and how much of it there was. All views are made
//! of these.

use super::cause::Cause;
use super::frame::Kind;
use super::strings::StringId;
use crate::record::{
    ContextId, Created, DeviceId, GpuContextId, Loss, MemoryKind, Missing, StreamId, ThreadId, UnifiedKind,
    Work,
};

/// So many things a sample can count.
pub const MOST_VALUES: usize = 4;

/// How much there was of each of a view's [`values`](super::View::values), in their order. The first is what
/// widths mean, the second how often, where a view counts that.
pub type Values = [u64; MOST_VALUES];

/// One stack of a view, and how much of it there was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    /// A mark of ours below the stack.
    pub base: Option<Base>,
    /// The stack that the sample hangs under.
    pub place: Place,
    /// What stands upon it.
    pub leaf: Leaf,
    /// On which GPU; `None` where it was on none.
    pub device: Option<DeviceId>,
    /// On which stream; `None` also where nobody asked for streams.
    pub stream: Option<(GpuContextId, StreamId)>,
    /// How much of it there was.
    pub values: Values,
}

impl Sample {
    /// A sample of nothing yet.
    pub fn new(place: Place, leaf: Leaf) -> Self {
        Self { base: None, place, leaf, device: None, stream: None, values: [0; MOST_VALUES] }
    }

    /// How much, in the unit of the view's first value.
    pub fn amount(&self) -> u64 {
        self.values[0]
    }

    /// How often it happened: the second value, where the view has one.
    pub fn count(&self) -> u64 {
        self.values[1]
    }
}

/// Adds `more` up; what does not fit stops at the top instead of wrapping.
pub fn add_values(sum: &mut Values, more: Values) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
}

/// A mark below a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Base {
    /// The stacks charged with the time from a window's opening to its first work.
    Opening,
    /// The time from the last work to the window's end.
    Closing,
}

impl Base {
    /// What flame graphs show.
    pub fn label(self) -> &'static str {
        match self {
            Self::Opening => "[since the window opened]",
            Self::Closing => "[until the window closed]",
        }
    }
}

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
    /// What a thread was at between two calls: of neither.
    Between {
        /// The call before.
        after: ContextId,
        /// That made it, where it was another one than the second call's; [`ThreadId::OTHERS`]: one that is not told apart.
        thread: Option<ThreadId>,
        /// The call behind.
        before: ContextId,
    },
    /// Nobody's: idle time that no launch ended, traffic that the driver caused.
    Nobody,
}

impl Place {
    /// Who launched, or made the call that came late.
    pub fn launch(self) -> Result<ContextId, Missing> {
        match self {
            Self::Context(context) | Self::Between { before: context, .. } => Ok(context),
            Self::Missing(missing) => Err(missing),
            Self::Nobody => Err(Missing::NoStack),
            Self::Node { launch, .. } => launch,
        }
    }
}

/// What stands upon a stack, outermost first: nothing, the work that was launched, or a path of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Leaf([Option<Tip>; Self::DEEPEST]);

impl Leaf {
    /// So many tips fit: a kernel, a place in it, and why it stalled there.
    pub const DEEPEST: usize = 3;
    /// The stack is all there is.
    pub const NONE: Self = Self([None; Self::DEEPEST]);
    /// A launch without an activity.
    pub const PENDING: Self = Self([Some(Tip::Missing(Missing::Pending)), None, None]);

    /// These tips; those beyond [`Leaf::DEEPEST`] are left out.
    pub fn new(tips: &[Tip]) -> Self {
        debug_assert!(tips.len() <= Self::DEEPEST, "{tips:?} do not fit into a leaf");
        Self(std::array::from_fn(|at| tips.get(at).copied()))
    }

    /// Work that a GPU did.
    pub fn work(work: Work) -> Self {
        Self::new(&[Tip::Work(work)])
    }

    /// Work that a GPU did, we do not know for how long.
    pub fn untimed(work: Work) -> Self {
        Self::new(&[Tip::Missing(Missing::Untimed), Tip::Work(work)])
    }

    /// The tips, outermost first.
    pub fn tips(self) -> impl Iterator<Item = Tip> {
        self.0.into_iter().flatten()
    }

    /// Whether it is shown for this reason.
    pub fn is_missing(self, missing: Missing) -> bool {
        self.tips().any(|tip| tip == Tip::Missing(missing))
    }
}

/// A frame upon a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tip {
    /// Work that a GPU did.
    Work(Work),
    /// Why something about it is not known.
    Missing(Missing),
    /// Work that is shown nowhere else.
    Lost(Loss),
    /// A GPU had nothing to do, for this cause.
    Idle(Cause),
    /// A GPU had nothing to do, and no work ended that.
    IdleToTheEnd,
    /// Memory of this kind was allocated.
    Allocate(MemoryKind),
    /// Memory of this kind was freed, or of one that was allocated before anybody looked.
    Free(Option<MemoryKind>),
    /// Traffic or faults of unified memory.
    Unified(UnifiedKind),
    /// The thread was on a processor.
    OnCpu,
    /// It waited without one.
    OffCpu,
    /// Anything else that has a name.
    Named(Kind, StringId),
}

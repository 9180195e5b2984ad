//! Ids and times as types of their own, so that a stream cannot be passed for a device.

use std::fmt;

/// Ties an API call to the GPU work it caused. Handed out by the vendor's tracer, per process, ascending,
/// and wraps after 2^32 calls: compare with [`CorrelationId::is_before`], never with `<`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct CorrelationId(pub u32);

impl CorrelationId {
    /// Whether `self` was handed out before `other`; right while they lie within 2^31 calls.
    pub fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

/// What a launch record points to: one number for (native stack, Python stack, ranges, thread).
/// Unique within the process; interned once, by the thread that launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ContextId(pub u32);

impl ContextId {
    /// In a launch: it was seen, but no stack could be kept (nested inside gpuflame, or no memory). Other reasons
    /// to have no context are [`Caller`](super::Caller)'s.
    pub const NONE: Self = Self(0);
    /// The launch was made while no window was open: it is counted and kept out of every output. Our capture makes
    /// no row of such a launch (see [`Outside`](super::Outside)).
    pub const OUTSIDE: Self = Self(1);
    /// The first id that names a row of its own.
    pub const FIRST: Self = Self(2);
    /// Stacks that there was no memory to keep apart, whatever they called; those that called one API function are
    /// one of the ids that follow. No row has these.
    pub const OTHERS: Self = Self(0x7f00_0000);

    /// Whether it stands for stacks that were not kept apart.
    pub fn is_others(self) -> bool {
        (Self::OTHERS.0..Self::OTHERS.0 + (1 << 20)).contains(&self.0)
    }
}

/// A string that many rows share, most of all a kernel's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(pub u32);

impl NameId {
    /// Kernels that there was no memory to keep apart.
    pub const OTHERS: Self = Self(u32::MAX);
}

/// A frame that is text and not code: an API call, `[graph]`, a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelId(pub u32);

impl LabelId {
    /// An API call that we know of only by what it did.
    pub const OTHER_CALL: Self = Self(u32::MAX);
    /// What stands in the place of stacks that there was no memory to keep apart.
    pub const OTHER_STACKS: Self = Self(u32::MAX - 1);
}

/// A range that the application named: its name and domain together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RangeId(pub u32);

impl RangeId {
    /// All ranges whose names came after there were too many to keep.
    pub const OTHER: Self = Self(0);
}

/// A function of a Python program: its file, name, first line and line table together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeId(pub u32);

impl CodeId {
    /// All functions that came after there were too many to keep.
    pub const OTHER: Self = Self(0);
}

/// Sets the modules apart that lay across each other one after the other: of two that cover an address, however long
/// ago, no two have the same. So a frame with an address and an epoch belongs to one module for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ModuleEpoch(pub u16);

impl ModuleEpoch {
    /// The last epoch of a module: frames have 12 bits for it.
    pub const LAST: Self = Self(0xffd);
    /// Of code outside all that the loader knew: generated, or mapped by hand.
    pub const OUTSIDE: Self = Self(0xffe);
    /// Of a frame whose module is not known: there were too many.
    pub const UNKNOWN: Self = Self(0xfff);
}

/// A kernel thread id (`gettid`), not a pthread handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ThreadId(pub u32);

impl ThreadId {
    /// All threads whose stacks there was no memory to keep apart.
    pub const OTHERS: Self = Self(u32::MAX);
}

/// The ordinal of a GPU, as the vendor's runtime counts them in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DeviceId(pub u32);

/// A context on a GPU (CUDA's word), not to be taken for the [`ContextId`] of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GpuContextId(pub u32);

/// A stream of a GPU context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StreamId(pub u32);

/// The graph that an activity was launched by; 0 = none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GraphId(pub u32);

/// The node of a graph that an activity is an execution of; 0 = none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GraphNodeId(pub u64);

/// A CUDA event, as the tracer numbers them; not its handle, which another event may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct EventId(pub u32);

/// One record of an event, of which a program may make many, and what waits for that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SyncId(pub u64);

/// A point in time, nanoseconds since 1970 on the clock of the GPU trace (`CLOCK_REALTIME`), or a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The span from `earlier` to `self`; 0 where the clock ran backwards.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

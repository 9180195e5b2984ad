//! Newtypes for ids and times, so that a stream cannot be passed as a device.

use std::fmt;

/// Number that connects an API call to the GPU work that the call caused. The vendor's tracer assigns the numbers per
/// process in ascending order. They wrap after 2^32 calls, so compare with [`CorrelationId::is_before`], never with
/// `<`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct CorrelationId(pub u32);

impl CorrelationId {
    /// Whether `self` was assigned before `other`. The result is correct if the two ids are less than 2^31 calls
    /// apart.
    pub fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

/// Interned id of a launch's (native stack, Python stack, ranges, thread). The id is unique within the process. The
/// launching thread interns each combination once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ContextId(pub u32);

impl ContextId {
    /// The launch was seen, but its stack could not be recorded (nested inside gpuflame, or out of memory). For the
    /// other reasons why a launch has no context see [`Caller`](super::Caller).
    pub const NONE: Self = Self(0);
    /// The launch was made while no window was open. Such a launch is counted but excluded from every output. Our own
    /// capture writes no launch row for it (see [`OutsideLaunches`](super::OutsideLaunches)).
    pub const OUTSIDE: Self = Self(1);
    /// First id that has a context row.
    pub const FIRST: Self = Self(2);
    /// Stacks merged for lack of memory, regardless of the API function that they called. Each of the ids after this
    /// id represents the merged stacks of one API function. None of these ids has a row.
    pub const OTHERS: Self = Self(0x7f00_0000);

    /// Whether the id represents merged stacks.
    pub fn is_others(self) -> bool {
        (Self::OTHERS.0..Self::OTHERS.0 + (1 << 20)).contains(&self.0)
    }
}

/// Interned string shared by many rows, usually a kernel's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(pub u32);

impl NameId {
    /// Kernels merged for lack of memory.
    pub const OTHERS: Self = Self(u32::MAX);
}

/// Frame with text instead of code: an API call, `[graph]`, a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelId(pub u32);

impl LabelId {
    /// API call of unknown name, of which only the effect is known.
    pub const OTHER_CALL: Self = Self(u32::MAX);
    /// Label shown for stacks that were merged for lack of memory.
    pub const OTHER_STACKS: Self = Self(u32::MAX - 1);
    /// Label in stacks of samples whose Python frames are not certain, instead of the interpreter's frames.
    pub const PYTHON_NOT_READ: Self = Self(u32::MAX - 2);
}

/// Range named by the application. The id stands for name and domain together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RangeId(pub u32);

impl RangeId {
    /// All ranges whose names exceeded the limit.
    pub const OTHER: Self = Self(0);
}

/// Python function. The id stands for file, name, first line and line table together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeId(pub u32);

impl CodeId {
    /// All Python functions beyond the limit.
    pub const OTHER: Self = Self(0);
}

/// Number that distinguishes modules which occupied overlapping addresses at different times. No two modules that
/// cover the same address, however far apart in time, have the same epoch. A frame with an address and an epoch
/// therefore always belongs to one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ModuleEpoch(pub u16);

impl ModuleEpoch {
    /// Highest epoch of a module, because frames have 12 bits for the epoch.
    pub const LAST: Self = Self(0xffd);
    /// Code outside all modules known to the loader: generated, or mapped manually.
    pub const OUTSIDE: Self = Self(0xffe);
    /// Frame of unknown module, because too many modules occupied the address.
    pub const UNKNOWN: Self = Self(0xfff);
}

/// A kernel thread id (`gettid`), not a pthread handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ThreadId(pub u32);

impl ThreadId {
    /// All threads whose stacks were merged for lack of memory.
    pub const OTHERS: Self = Self(u32::MAX);
}

/// Ordinal of a GPU, as the vendor's runtime numbers them in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DeviceId(pub u32);

/// CUDA context on a GPU, not to be confused with the [`ContextId`] of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GpuContextId(pub u32);

/// A stream of a GPU context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StreamId(pub u32);

/// Graph that launched an activity; 0 if none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GraphId(pub u32);

/// Graph node that an activity executes; 0 if none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GraphNodeId(pub u64);

/// CUDA event, by CUPTI's number. The event's handle is not used, because it may be reused for another event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct EventId(pub u32);

/// A single record of an event. A program may record an event many times, and each wait refers to a single record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SyncId(pub u64);

/// Point in time in nanoseconds since 1970 on the clock of the GPU trace (`CLOCK_REALTIME`), or a time span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Returns the span from `earlier` to `self`; 0 if the clock ran backwards.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

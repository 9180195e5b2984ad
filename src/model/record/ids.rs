//! Defines types for ids and times, so that for example a stream cannot be passed in place of a device.

use std::fmt;

/// Number that connects an API call to the GPU work that the call caused. The vendor's tracer assigns the numbers of
/// a process in ascending order. The numbers wrap after 2^32 calls, so compare them with
/// [`CorrelationId::is_before`], never with `<`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct CorrelationId(pub u32);

impl CorrelationId {
    /// Whether `self` was assigned before `other`. The result is correct if the two ids are less than 2^31 calls
    /// apart.
    pub fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

/// Id of a launching context, which is unique within the process. A context is a combination of the native stack, the
/// Python stack, the open ranges and the thread. A thread interns each combination once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ContextId(pub u32);

impl ContextId {
    /// The launch was seen, but its stack could not be recorded (the launch was made inside gpuflame, or memory was
    /// exhausted). [`Caller`](super::Caller) lists the other reasons why a launch has no context.
    pub const NONE: Self = Self(0);
    /// The launch was made while no window was open. Launches outside windows are counted, but excluded from every
    /// output. gpuflame's own capture writes no launch rows for them (see [`OutsideLaunches`](super::OutsideLaunches)).
    pub const OUTSIDE: Self = Self(1);
    /// First id that has a context row.
    pub const FIRST: Self = Self(2);
    /// Stacks of all API functions that were merged for lack of memory. Each higher id represents the merged stacks of
    /// one API function. This id and the higher ids have no context row.
    pub const OTHERS: Self = Self(0x7f00_0000);

    /// Whether the id represents merged stacks.
    pub fn is_others(self) -> bool {
        (Self::OTHERS.0..Self::OTHERS.0 + (1 << 20)).contains(&self.0)
    }
}

/// Id of a string that many rows share, usually a kernel's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(pub u32);

impl NameId {
    /// All kernels that were merged for lack of memory.
    pub const OTHERS: Self = Self(u32::MAX);
}

/// Id of a text that a frame shows instead of code: an API call, `[graph]`, a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelId(pub u32);

impl LabelId {
    /// API call that was noticed only by its effect, and whose name is therefore unknown.
    pub const OTHER_CALL: Self = Self(u32::MAX);
    /// Label shown for stacks that were merged for lack of memory.
    pub const OTHER_STACKS: Self = Self(u32::MAX - 1);
    /// Label shown in place of a sample's Python frames, if those frames are uncertain.
    pub const PYTHON_NOT_READ: Self = Self(u32::MAX - 2);
}

/// Id of a range named by the application. Each combination of name and domain has its own id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RangeId(pub u32);

impl RangeId {
    /// All ranges whose names were not stored because there were too many.
    pub const OTHER: Self = Self(0);
}

/// Id of a Python function. Each combination of file, name, first line and line table has its own id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeId(pub u32);

impl CodeId {
    /// All Python functions that were not stored because there were too many.
    pub const OTHER: Self = Self(0);
}

/// Number that distinguishes modules that were at overlapping addresses at different times. Two modules that cover the
/// same address never have the same epoch, however far apart in time they were loaded. So an address and an epoch
/// together always identify one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ModuleEpoch(pub u16);

impl ModuleEpoch {
    /// Highest epoch that a module can have. Frames store the epoch in 12 bits, and the higher values are special.
    pub const LAST: Self = Self(0xffd);
    /// Code outside all modules that the loader knows: code that was generated, or that the program itself mapped.
    pub const OUTSIDE: Self = Self(0xffe);
    /// Code whose module is unknown, because too many modules were at its address.
    pub const UNKNOWN: Self = Self(0xfff);
}

/// Thread id of the kernel (`gettid`), not a pthread handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ThreadId(pub u32);

impl ThreadId {
    /// All threads whose stacks were merged for lack of memory.
    pub const OTHERS: Self = Self(u32::MAX);
}

/// Number of a GPU, as the vendor's runtime numbers the GPUs in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DeviceId(pub u32);

/// CUDA context on a GPU, not to be confused with the [`ContextId`] of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GpuContextId(pub u32);

/// A stream of a GPU context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StreamId(pub u32);

/// Id of the graph that launched an activity; 0 if none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GraphId(pub u32);

/// Id of the graph node that an activity executes; 0 if none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GraphNodeId(pub u64);

/// CUPTI's number of a CUDA event. The event's handle does not identify the event, because handles are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct EventId(pub u32);

/// Number that identifies one record of an event on a stream. A program may record an event many times, and each wait
/// refers to one of these records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SyncId(pub u64);

/// Point in time in nanoseconds since 1970, on the clock of the GPU trace (`CLOCK_REALTIME`). In some places, a time
/// span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Returns the time from `earlier` to `self`; 0 if `self` is before `earlier`.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

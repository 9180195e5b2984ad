//! Defines separate types for ids and times, so that, for example, the id of a stream cannot be passed as the id of a
//! device.

use std::fmt;

/// Id that an API call and the GPU work that it caused have in common. The tracer assigns these ids in ascending order
/// within a process. Ids wrap after 2^32 calls, so compare them with [`CorrelationId::is_before`], never with `<`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct CorrelationId(pub u32);

impl CorrelationId {
    /// Whether `self` was assigned before `other`. The result is correct only if fewer than 2^31 ids lie between the
    /// two ids.
    pub fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

/// Id of a launch context, unique within the process. A context is a combination of native stack, API call, Python
/// stack, open ranges and thread. Each thread interns its contexts, so that each combination has one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ContextId(pub u32);

impl ContextId {
    /// Represents launches that were observed, but whose stack was not recorded, because the launch was made inside
    /// gpuflame or because memory was exhausted. [`Caller`](super::Caller) lists the other reasons why the context of a
    /// launch is unknown.
    pub const NONE: Self = Self(0);
    /// Represents all launches that were made while no window was open. Launches outside of windows are counted, but no
    /// output contains them. gpuflame's own capture writes no launch rows for them (see
    /// [`OutsideLaunches`](super::OutsideLaunches)).
    pub const OUTSIDE: Self = Self(1);
    /// Lowest id that a context row can have.
    pub const FIRST: Self = Self(2);
    /// Represents all stacks that were merged because memory was short and whose API function is unknown. Each higher
    /// id represents the merged stacks that called one API function. No context row defines this id or a higher id.
    pub const OTHERS: Self = Self(0x7f00_0000);

    /// Whether the id represents merged stacks.
    pub fn is_others(self) -> bool {
        (Self::OTHERS.0..Self::OTHERS.0 + (1 << 20)).contains(&self.0)
    }
}

/// Id of a string that many rows use, usually a kernel's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(pub u32);

impl NameId {
    /// Represents all kernels that were merged because memory was short.
    pub const OTHERS: Self = Self(u32::MAX);
}

/// Id of a text that a frame shows instead of code, such as the name of an API call or of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelId(pub u32);

impl LabelId {
    /// Label for an API call whose name is unknown, because only the effect of the call was observed.
    pub const OTHER_CALL: Self = Self(u32::MAX);
    /// Label for stacks that were merged because memory was short.
    pub const OTHER_STACKS: Self = Self(u32::MAX - 1);
    /// Label that replaces the Python frames of a CPU sample, if these frames are uncertain.
    pub const PYTHON_NOT_READ: Self = Self(u32::MAX - 2);
}

/// Id of a range named by the application. Each combination of name and domain has its own id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RangeId(pub u32);

impl RangeId {
    /// Represents all ranges whose names were not stored because there were too many ranges.
    pub const OTHER: Self = Self(0);
}

/// Id of a Python function. Each combination of file, name, first line and line table has its own id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeId(pub u32);

impl CodeId {
    /// Represents all Python functions that were not stored because there were too many functions.
    pub const OTHER: Self = Self(0);
}

/// Number that distinguishes modules that were mapped at overlapping addresses at different times. Two modules that
/// cover the same address never have the same epoch, even if they were loaded at different times. So an address and an
/// epoch together identify one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ModuleEpoch(pub u16);

impl ModuleEpoch {
    /// Highest epoch that a mapped module can have. Frames store the epoch in 12 bits, and the two higher values have a
    /// special meaning.
    pub const LAST: Self = Self(0xffd);
    /// Represents code outside all modules that the dynamic loader has loaded: generated code, or code that the program
    /// itself mapped.
    pub const OUTSIDE: Self = Self(0xffe);
    /// Represents code whose module is unknown, because too many modules were mapped at its address.
    pub const UNKNOWN: Self = Self(0xfff);
}

/// Thread id that the Linux kernel assigns (`gettid`), not a pthread handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ThreadId(pub u32);

impl ThreadId {
    /// Represents all threads whose stacks were merged because memory was short.
    pub const OTHERS: Self = Self(u32::MAX);
}

/// Index of a GPU among the GPUs that the vendor's runtime lists in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DeviceId(pub u32);

/// Id of a CUDA context on a GPU. The id of a CUDA context is unrelated to the [`ContextId`] of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GpuContextId(pub u32);

/// Id of a stream within a GPU context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StreamId(pub u32);

/// Id of the graph to which an activity belongs, or 0 if the activity belongs to no graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GraphId(pub u32);

/// Id of the graph node that an activity runs, or 0 if the activity belongs to no graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GraphNodeId(pub u64);

/// CUPTI's id of a CUDA event. The handle of a CUDA event does not identify the event, because handles are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct EventId(pub u32);

/// Id of one recording of a CUDA event on a stream. A program may record an event many times, and each wait refers to
/// one of these recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SyncId(pub u64);

/// Point in time in nanoseconds since 1970, on the clock of the GPU trace (`CLOCK_REALTIME`). Some fields contain a
/// duration in nanoseconds as this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Returns the time in ns from `earlier` to `self`. Returns 0 if `self` is before `earlier`.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

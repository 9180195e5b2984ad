//! Defines the kinds of loss, and their names in ledgers and tables.

/// Kind of lost or incomplete data. The ledger has a line for each kind of loss, and every export has a row for each
/// kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Loss {
    /// Launches that were not recorded because no buffer for launches was free.
    LaunchesDropped = 1,
    /// Activity records that were dropped by the tracer, or dropped by gpuflame because memory was exhausted.
    ActivitiesDropped = 2,
    /// Activity records that could not be read, because their layout is unknown or their kind was never requested.
    ActivitiesUnreadable = 3,
    /// Launches that were made in a signal handler while the signal had interrupted gpuflame's callback. Launches made
    /// in such a signal handler are counted but not recorded.
    StacksNested = 4,
    /// Stacks dropped because memory was exhausted.
    StacksDropped = 5,
    /// Stacks with more frames than the capture buffer can hold.
    StacksTruncated = 6,
    /// Stacks with a frame that was found only through a frame pointer.
    StacksGuessed = 7,
    /// Stacks that are incomplete because unwinding ended before the root.
    StacksCut = 8,
    /// Asynchronous launches that the driver rejected. Rejected launches are not included in any other count. (A
    /// rejected synchronous copy is recorded before it fails, so it counts as a launch without an activity instead.)
    LaunchesFailed = 9,
    /// Launches that only added a node to a graph during stream capture, and therefore have no activity.
    LaunchesCaptured = 10,
    /// Graph nodes and copies of graph nodes that gpuflame did not store, because they had no id or because memory was
    /// exhausted.
    GraphNodesDropped = 11,
    /// Ranges that are missing in stacks, have no name, or stay in stacks after their end, because the program used
    /// more ranges than gpuflame can store.
    RangesDropped = 12,
    /// API calls that were not recorded because the buffers were full. These API calls waited, used CUDA events, or
    /// allocated or freed memory.
    HostCallsDropped = 13,
    /// Stacks with a code frame whose module is unknown, because too many modules were mapped at its address.
    StacksModuleUnknown = 14,
    /// Stacks merged into `[other stacks]` because memory was short. The losses `StacksNotKeptApart`,
    /// `KernelsNotKeptApart` and `ThreadsNotNamed` occur only in profiles. Recordings do not contain these three
    /// losses, because the process that reads a recording may have enough memory.
    StacksNotKeptApart = 15,
    /// Kernels merged into `[other kernels]` because memory was short.
    KernelsNotKeptApart = 16,
    /// Threads whose names were dropped because memory was short.
    ThreadsNotNamed = 17,
    /// Instants marked by the program that were dropped because the program marked them faster than the collector
    /// drained them.
    MarksDropped = 18,
    /// Stacks whose Python frames could not be read or stored.
    PythonDropped = 19,
    /// Stacks in which Python frames may be at the wrong positions. The Python frames of these stacks cannot be
    /// assigned to the interpreter's frames among the native frames.
    PythonUnsure = 20,
    /// CPU samples dropped because they arrived faster than the sampler drained them.
    SamplesDropped = 21,
    /// Off-CPU waits dropped because they arrived faster than the sampler drained them.
    BlocksDropped = 22,
    /// Steps dropped because they began faster than the collector drained them.
    StepsDropped = 23,
    /// Rows that were not written to the recording because the file had reached the size `GPUFLAME_MAX_FILE`. This loss
    /// occurs only in recordings, because the process's other outputs include these rows.
    RowsOverLimit = 24,
}

impl Loss {
    /// All kinds of loss, in the order in which the ledger prints them.
    pub const ALL: [Self; 24] = [
        Self::LaunchesDropped,
        Self::ActivitiesDropped,
        Self::ActivitiesUnreadable,
        Self::StacksNested,
        Self::StacksDropped,
        Self::StacksTruncated,
        Self::StacksGuessed,
        Self::StacksCut,
        Self::LaunchesFailed,
        Self::LaunchesCaptured,
        Self::GraphNodesDropped,
        Self::RangesDropped,
        Self::HostCallsDropped,
        Self::StacksModuleUnknown,
        Self::StacksNotKeptApart,
        Self::KernelsNotKeptApart,
        Self::ThreadsNotNamed,
        Self::MarksDropped,
        Self::PythonDropped,
        Self::PythonUnsure,
        Self::SamplesDropped,
        Self::BlocksDropped,
        Self::StepsDropped,
        Self::RowsOverLimit,
    ];

    /// Whether GPU time is missing because of this loss. Missing GPU time looks like idle time.
    pub fn hides_gpu_time(self) -> bool {
        matches!(self, Self::ActivitiesDropped | Self::ActivitiesUnreadable | Self::RowsOverLimit)
    }

    /// Returns the word that ledgers and tables show. The word is lower case and has no blanks.
    pub fn label(self) -> &'static str {
        match self {
            Self::LaunchesDropped => "launches_dropped",
            Self::ActivitiesDropped => "activities_dropped",
            Self::ActivitiesUnreadable => "activities_unreadable",
            Self::StacksNested => "stacks_nested",
            Self::StacksDropped => "stacks_dropped",
            Self::StacksTruncated => "stacks_truncated",
            Self::StacksGuessed => "stacks_guessed",
            Self::StacksCut => "stacks_cut",
            Self::LaunchesFailed => "launches_failed",
            Self::LaunchesCaptured => "launches_captured",
            Self::GraphNodesDropped => "graph_nodes_dropped",
            Self::RangesDropped => "ranges_dropped",
            Self::HostCallsDropped => "host_calls_dropped",
            Self::StacksModuleUnknown => "stacks_module_unknown",
            Self::StacksNotKeptApart => "stacks_not_kept_apart",
            Self::KernelsNotKeptApart => "kernels_not_kept_apart",
            Self::ThreadsNotNamed => "threads_not_named",
            Self::MarksDropped => "marks_dropped",
            Self::PythonDropped => "python_dropped",
            Self::PythonUnsure => "python_unsure",
            Self::SamplesDropped => "samples_dropped",
            Self::BlocksDropped => "blocks_dropped",
            Self::StepsDropped => "steps_dropped",
            Self::RowsOverLimit => "rows_over_limit",
        }
    }
}

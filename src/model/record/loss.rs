//! Defines the kinds of loss, and their names in ledgers and tables.

/// Kind of loss. Each kind has a line in the ledger and a row in every export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Loss {
    /// Launch records dropped because no buffer for them was free.
    LaunchesDropped = 1,
    /// Activity records dropped by the tracer itself, or for lack of memory.
    ActivitiesDropped = 2,
    /// Activity records that could not be read (unknown layout, or a kind that was never requested).
    ActivitiesUnreadable = 3,
    /// Launches that a signal handler made inside gpuflame's own callback, and that are counted but not recorded.
    StacksNested = 4,
    /// Stacks dropped for lack of memory.
    StacksDropped = 5,
    /// Stacks deeper than the capture buffer.
    StacksTruncated = 6,
    /// Stacks with a frame that was found only through its frame pointer.
    StacksGuessed = 7,
    /// Stacks whose walk ended before the root.
    StacksCut = 8,
    /// Asynchronous launches that the driver rejected. No other count includes these launches. (A synchronous copy
    /// counts as a launch without an activity, because it has already been recorded when it fails.)
    LaunchesFailed = 9,
    /// Launches that only added a node to a graph during capture, and therefore have no activity.
    LaunchesCaptured = 10,
    /// Graph nodes, and copies of graph nodes, that gpuflame could not store, because they had no id or memory was
    /// exhausted.
    GraphNodesDropped = 11,
    /// Ranges that are missing from stacks, have no name, or stay in stacks after their end, because there were too
    /// many ranges.
    RangesDropped = 12,
    /// Calls that waited, used events, or allocated or freed memory, and were dropped because the buffers were full.
    HostCallsDropped = 13,
    /// Stacks with a code frame whose module is unknown, because too many modules were at the address.
    StacksModuleUnknown = 14,
    /// Stacks merged into `[other stacks]` for lack of memory. This loss, `KernelsNotKeptApart` and `ThreadsNotNamed`
    /// occur only in profiles, never in recordings, because the process that explains a recording may have enough
    /// memory.
    StacksNotKeptApart = 15,
    /// Kernels merged into `[other kernels]` for lack of memory.
    KernelsNotKeptApart = 16,
    /// Threads whose names were dropped for lack of memory.
    ThreadsNotNamed = 17,
    /// Instants dropped because the program marked them faster than the collector drained them.
    MarksDropped = 18,
    /// Stacks whose Python frames could not be read or stored.
    PythonDropped = 19,
    /// Stacks in which the Python frames may be in the wrong places, because they do not match the interpreter calls
    /// among the native frames.
    PythonUnsure = 20,
    /// CPU samples dropped because they arrived faster than the sampler drained them.
    SamplesDropped = 21,
    /// Off-CPU waits dropped because they arrived faster than the sampler drained them.
    BlocksDropped = 22,
    /// Steps dropped because they began faster than the collector drained them.
    StepsDropped = 23,
    /// Rows omitted from the recording because it had reached `GPUFLAME_MAX_FILE`. Occurs only in recordings, because
    /// the other files of the process contain these rows.
    RowsOverLimit = 24,
}

impl Loss {
    /// All kinds of loss, in the order in which the ledger prints the kinds.
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

    /// Whether GPU time is missing because of this loss. Missing GPU time appears as idle time.
    pub fn hides_gpu_time(self) -> bool {
        matches!(self, Self::ActivitiesDropped | Self::ActivitiesUnreadable | Self::RowsOverLimit)
    }

    /// Returns the word for ledgers and tables: lower case, no blanks.
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

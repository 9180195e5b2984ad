//! What may go wrong, by the name that it has in ledgers and tables.

/// Ways to lose something. Each has a line in the ledger and a row in every export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Loss {
    /// Launch records for which no chunk was free.
    LaunchesDropped = 1,
    /// Activity records that the tracer itself dropped, or dropped for want of memory.
    ActivitiesDropped = 2,
    /// Activity records that could not be read (unknown layout, or a kind we never asked for).
    ActivitiesUnreadable = 3,
    /// Launches made inside gpuflame's own callback (by a signal handler): counted, not recorded.
    StacksNested = 4,
    /// Stacks for which no memory was left.
    StacksDropped = 5,
    /// Stacks deeper than the capture buffer.
    StacksTruncated = 6,
    /// Stacks with a frame found by frame pointer only.
    StacksGuessed = 7,
    /// Stacks whose walk ended before the bottom.
    StacksCut = 8,
    /// Asynchronous launches that the driver refused; they are in no other count. (A synchronous copy that
    /// fails was recorded by then, and is a launch without an activity.)
    LaunchesFailed = 9,
    /// Launches that only added a node to a graph being captured; they have no activity of their own.
    LaunchesCaptured = 10,
    /// Graph nodes (and copies of them) that were made and could not be kept: no id, or no memory.
    GraphNodesDropped = 11,
    /// Ranges that were opened and are in no stack, or under no name, or open for longer than they were: there
    /// were too many.
    RangesDropped = 12,
    /// Calls that waited, were about events, allocated or freed, which there was no room to keep.
    HostCallsDropped = 13,
    /// Stacks with a frame of code of which nobody knows what module it was in: too many modules lay there.
    StacksModuleUnknown = 14,
    /// Stacks that there was no memory to keep apart: what they launched is under `[other stacks]`. This and the two
    /// below are of a profile, and in no recording: what explains it may have more memory.
    StacksNotKeptApart = 15,
    /// Kernels that there was no memory to keep apart: what ran is under `[other kernels]`.
    KernelsNotKeptApart = 16,
    /// Threads whose names there was no memory for.
    ThreadsNotNamed = 17,
    /// Instants that the program marked, faster than they could be taken away.
    MarksDropped = 18,
    /// Stacks whose Python frames could not be read or kept.
    PythonDropped = 19,
    /// Stacks whose Python frames do not tell of the same calls as the native ones: they may stand in the wrong places.
    PythonUnsure = 20,
    /// Samples of threads on processors that came faster than they could be taken away.
    SamplesDropped = 21,
    /// Times in which threads waited without a processor that came faster than they could be taken away.
    BlocksDropped = 22,
}

impl Loss {
    /// All kinds, in the order the ledger prints them.
    pub const ALL: [Self; 22] = [
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
    ];

    /// Whether this loss hides GPU time, which then appears as idle time.
    pub fn hides_gpu_time(self) -> bool {
        matches!(self, Self::ActivitiesDropped | Self::ActivitiesUnreadable)
    }

    /// The word that ledgers and tables show; lower case, no blanks.
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
        }
    }
}

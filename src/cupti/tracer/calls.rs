//! Kinds of the API calls that matter to gpuflame, by the effect of the call.

/// Effect of an API call on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// Launches a kernel.
    Launch,
    /// Launches a graph; one call causes many activities.
    GraphLaunch,
    /// Copies memory.
    Copy {
        /// Whether the call is synchronous according to its name. (A copy to or from pageable memory may wait even if
        /// its name says asynchronous.)
        sync: bool,
    },
    /// Fills memory.
    Set {
        /// Whether the call is synchronous according to its name.
        sync: bool,
    },
    /// Resets a device; unflushed records are lost.
    DeviceReset,
    /// Destroys, resets or releases a context; unflushed records are lost.
    ContextDestroy,
    /// Asks tools to start recording (`cudaProfilerStart`).
    ProfilerStart,
    /// Asks tools to stop recording (`cudaProfilerStop`).
    ProfilerStop,
    /// Adds a node to a graph.
    GraphNode,
    /// Copies a graph with all its nodes: instantiates or clones it, or adds it to another graph as a node.
    GraphCopy,
    /// Updates an executable graph from another graph.
    GraphUpdate,
    /// Waits for a GPU.
    Wait,
    /// Records an event on a stream.
    EventRecord,
    /// Makes a stream wait for an event; does not block the host.
    EventWait,
    /// Allocates memory.
    Allocate(AllocationKind),
    /// Frees memory.
    Free,
}

/// Type of memory that a call allocates. The type also determines which of the call's arguments hold the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllocationKind {
    /// Device memory.
    Device,
    /// Device memory in rows. The call returns the pitch, which is the size of each row in bytes.
    Pitched,
    /// Page-locked host memory.
    Pinned,
    /// Memory that the host and devices share.
    Managed,
}

impl CallKind {
    /// Whether the call may cause activities.
    pub fn makes_work(self) -> bool {
        !self.is_control() && !self.is_host_call()
    }

    /// Whether the call causes no activities of its own and ends no context.
    pub fn is_host_call(self) -> bool {
        self.edits_graph()
            || matches!(
                self,
                Self::Wait | Self::EventRecord | Self::EventWait | Self::Allocate(_) | Self::Free
            )
    }

    /// Whether the call creates or changes graphs, which run later.
    pub fn edits_graph(self) -> bool {
        matches!(self, Self::GraphNode | Self::GraphCopy | Self::GraphUpdate)
    }

    /// Whether the call starts, stops or limits recording. Such calls are reported when they begin.
    pub fn is_control(self) -> bool {
        self.ends_context() || matches!(self, Self::ProfilerStart | Self::ProfilerStop)
    }

    /// Whether the call destroys a context, so that its start is the last chance for a flush.
    pub fn ends_context(self) -> bool {
        matches!(self, Self::DeviceReset | Self::ContextDestroy)
    }
}

/// Index of an enabled API call's label. Calls whose names differ only in a suffix share one label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiCallId(pub u16);

//! Lists the kinds of API calls that matter to gpuflame. The effect of a call on the GPU determines the call's kind.

/// Effect of an API call on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// Launches a kernel.
    Launch,
    /// Launches a kernel with attributes that are recorded (`cudaLaunchKernelExC`). Any other launch is
    /// [`Self::Launch`].
    LaunchWithAttributes,
    /// Launches a graph, which causes many activities.
    GraphLaunch,
    /// Copies memory.
    Copy {
        /// Whether the call is synchronous according to its name. (A copy to or from pageable memory may wait even if
        /// it is asynchronous according to its name.)
        sync: bool,
    },
    /// Fills memory.
    Set {
        /// Whether the call is synchronous according to its name.
        sync: bool,
    },
    /// Resets a device. Records that were not flushed before are lost.
    DeviceReset,
    /// Destroys, resets or releases a context. Records that were not flushed before are lost.
    ContextDestroy,
    /// Asks tools to start recording (`cudaProfilerStart`).
    ProfilerStart,
    /// Asks tools to stop recording (`cudaProfilerStop`).
    ProfilerStop,
    /// Adds a node to a graph.
    GraphNode,
    /// Copies a graph with all its nodes, by instantiating it, cloning it, or adding it to another graph as a node.
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
    /// Device memory in rows. The call returns the size of a row in bytes (the pitch).
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

    /// Whether the call waits, or is about events or memory. A host call causes no activities and ends no context.
    pub fn is_host_call(self) -> bool {
        self.edits_graph()
            || matches!(
                self,
                Self::Wait | Self::EventRecord | Self::EventWait | Self::Allocate(_) | Self::Free
            )
    }

    /// Whether the arguments of the call are read, in addition to its id.
    pub(crate) fn has_arguments(self) -> bool {
        self == Self::LaunchWithAttributes || self.is_host_call()
    }

    /// Whether the call creates or changes graphs, which a later call launches.
    pub fn edits_graph(self) -> bool {
        matches!(self, Self::GraphNode | Self::GraphCopy | Self::GraphUpdate)
    }

    /// Whether the call affects the recording itself. Calls that do are reported when they begin.
    pub fn is_control(self) -> bool {
        self.ends_context() || matches!(self, Self::ProfilerStart | Self::ProfilerStop)
    }

    /// Whether the call destroys a context. The start of a call that does is the last chance for a flush.
    pub fn ends_context(self) -> bool {
        matches!(self, Self::DeviceReset | Self::ContextDestroy)
    }
}

/// Index of an enabled API call's label. Calls whose names differ only in a suffix share one label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiCallId(pub u16);

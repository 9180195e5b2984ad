//! Defines the kinds of API calls that matter to gpuflame. The kind of an API call depends on its effect on the GPU.

/// Kind of an API call, which depends on the call's effect on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// Launches a kernel.
    Launch,
    /// Launches a kernel with attributes, which gpuflame records (`cudaLaunchKernelExC`). Kernel launches without such
    /// attributes are [`Self::Launch`].
    LaunchWithAttributes,
    /// Launches a CUDA graph. One launch of a graph causes many activities.
    GraphLaunch,
    /// Copies memory.
    Copy {
        /// Whether the call is synchronous according to its name. A copy to or from pageable memory may wait even if
        /// its name says that it is asynchronous.
        sync: bool,
    },
    /// Fills memory.
    Set {
        /// Whether the call is synchronous according to its name.
        sync: bool,
    },
    /// Resets a GPU device. Activity records that were not flushed before the reset are lost.
    DeviceReset,
    /// Destroys, resets or releases a CUDA context. Activity records that were not flushed before the end of the CUDA
    /// context are lost.
    ContextDestroy,
    /// Requests tools to start recording (`cudaProfilerStart`).
    ProfilerStart,
    /// Requests tools to stop recording (`cudaProfilerStop`).
    ProfilerStop,
    /// Adds a node to a graph.
    GraphNode,
    /// Copies a graph with all of its nodes, by instantiating it, by cloning it, or by adding it to another graph as a
    /// node.
    GraphCopy,
    /// Updates an executable graph so that it matches another graph.
    GraphUpdate,
    /// Makes the host wait for a GPU.
    Wait,
    /// Records a CUDA event on a stream.
    EventRecord,
    /// Makes a stream wait for a CUDA event. An API call of this kind does not block the host.
    EventWait,
    /// Allocates memory.
    Allocate(AllocationKind),
    /// Frees memory.
    Free,
}

/// Type of memory that an API call allocates. The type of memory also determines which arguments of the API call
/// contain the size of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllocationKind {
    /// Device memory.
    Device,
    /// Device memory that consists of rows. The API call returns the number of bytes per row (the pitch).
    Pitched,
    /// Page-locked host memory.
    Pinned,
    /// Memory that the host and devices share.
    Managed,
}

impl CallKind {
    /// Whether the API call may cause activities on a GPU.
    pub fn makes_work(self) -> bool {
        !self.is_control() && !self.is_host_call()
    }

    /// Whether the API call is a host call, which waits, or handles CUDA events, memory or the editing of graphs. A
    /// host call creates no GPU activities, and does not end a CUDA context.
    pub fn is_host_call(self) -> bool {
        self.edits_graph()
            || matches!(
                self,
                Self::Wait | Self::EventRecord | Self::EventWait | Self::Allocate(_) | Self::Free
            )
    }

    /// Whether gpuflame reads the arguments of the API call, in addition to its id.
    pub(crate) fn has_arguments(self) -> bool {
        self == Self::LaunchWithAttributes || self.is_host_call()
    }

    /// Whether the API call creates or changes CUDA graphs. The created or changed graphs are launched by a later call.
    pub fn edits_graph(self) -> bool {
        matches!(self, Self::GraphNode | Self::GraphCopy | Self::GraphUpdate)
    }

    /// Whether the API call affects the recording itself. A call that affects the recording is reported when it begins.
    pub fn is_control(self) -> bool {
        self.ends_context() || matches!(self, Self::ProfilerStart | Self::ProfilerStop)
    }

    /// Whether the API call destroys a CUDA context. The beginning of a call that destroys a CUDA context is the last
    /// chance to flush the records of the context.
    pub fn ends_context(self) -> bool {
        matches!(self, Self::DeviceReset | Self::ContextDestroy)
    }
}

/// Index of the label (the name) of an enabled API call. API calls whose names differ only in a suffix share a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiCallId(pub u16);

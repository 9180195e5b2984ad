//! Which calls of the vendor's interface matter, by what they do.

/// What an API call does to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// Launches a kernel.
    Launch,
    /// Launches a graph: one call, many activities.
    GraphLaunch,
    /// Copies memory.
    Copy {
        /// Whether its name says that it waits. (One to or from pageable memory may wait all the same.)
        sync: bool,
    },
    /// Fills memory.
    Set {
        /// Whether its name says that it waits.
        sync: bool,
    },
    /// Resets a device: whatever was not flushed by then is lost.
    DeviceReset,
    /// Destroys, resets or releases a context: the same.
    ContextDestroy,
    /// Asks tools to record from now on.
    ProfilerStart,
    /// Asks tools to record no more.
    ProfilerStop,
    /// Adds a node to a graph.
    GraphNode,
    /// Copies a graph with all its nodes: instantiates or clones it, or makes it a node of another.
    GraphCopy,
    /// Has an instantiation take over what another graph does.
    GraphUpdate,
    /// Waits for a GPU.
    Wait,
    /// Puts an event on a stream.
    EventRecord,
    /// Has a stream wait for an event; the host does not.
    EventWait,
    /// Allocates memory.
    Allocate(AllocationKind),
    /// Frees memory.
    Free,
}

/// What memory a call allocates, and where its arguments say how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllocationKind {
    /// Of the GPU.
    Device,
    /// Of the GPU, in rows: so many of the length that the call answers.
    Pitched,
    /// Of the host, locked.
    Pinned,
    /// Memory that the host and devices share.
    Managed,
}

impl CallKind {
    /// Whether activities may come of it.
    pub fn makes_work(self) -> bool {
        !self.is_control() && !self.is_host_call()
    }

    /// Whether no activity comes of it by itself, and it ends no context.
    pub fn is_host_call(self) -> bool {
        self.edits_graph()
            || matches!(
                self,
                Self::Wait | Self::EventRecord | Self::EventWait | Self::Allocate(_) | Self::Free
            )
    }

    /// Whether it makes or changes graphs, which run later.
    pub fn edits_graph(self) -> bool {
        matches!(self, Self::GraphNode | Self::GraphCopy | Self::GraphUpdate)
    }

    /// Whether it is about what is recorded, or for how long it can be, and is told when it begins.
    pub fn is_control(self) -> bool {
        self.ends_context() || matches!(self, Self::ProfilerStart | Self::ProfilerStop)
    }

    /// Whether it is time for a last flush.
    pub fn ends_context(self) -> bool {
        matches!(self, Self::DeviceReset | Self::ContextDestroy)
    }
}

/// An enabled API call: the index of its label. Calls that differ in a suffix only share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiCall(pub u16);

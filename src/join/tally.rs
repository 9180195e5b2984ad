//! The counts that the ledger prints, and the two sums that always hold.

use crate::record::Missing;

/// How many launches and activities there were, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Launches. `seen = matched + pending + outside + open()`.
    pub launches: Launches,
    /// Activities. `seen = matched + launched_before + no_stack + outside + open()`.
    pub activities: Activities,
}

/// What became of the launches. A launch with two ids counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launches {
    /// All of them.
    pub seen: u64,
    /// Had at least one activity.
    pub matched: u64,
    /// Of these: launched a graph.
    pub graphs: u64,
    /// Were given up without one.
    pub pending: u64,
    /// Were made while no window was open, with or without an activity.
    pub outside: u64,
    /// Second ids, which are no launches of their own.
    pub aliases: u64,
    /// For how long the tracer did not tell of launches, in nanoseconds: those of that time are not among these.
    pub not_told_nanos: u64,
}

/// What became of the activities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activities {
    /// All of them.
    pub seen: u64,
    /// Found a launch with a stack.
    pub matched: u64,
    /// Were launched before recording began.
    pub launched_before: u64,
    /// Were launched by the GPU itself, in a graph.
    pub device_graph: u64,
    /// Found no launch, or one without a stack.
    pub no_stack: u64,
    /// Were launched while no window was open.
    pub outside: u64,
    /// Of these: by launches that the tracer did not tell of.
    pub not_told: u64,
    /// Of the first four kinds: have no usable times, and so no weight.
    pub untimed: u64,
    /// Of the matched and the stackless: began before their launch did, so that one of the two clocks is
    /// to be doubted.
    pub early: u64,
    /// Came twice, and are not among these the second time: of one launch, at the same time on the same stream.
    pub repeated: u64,
    /// Have ids that no call can have had, and are not among these either: see [`Join`](super::Join).
    pub of_no_call: u64,
}

impl Launches {
    /// What the ledger shows, in its order and words: the parts and what is open add up to
    /// `seen`.
    pub fn parts(&self) -> [(&'static str, u64); 3] {
        [
            ("matched", self.matched),
            (Missing::Pending.word(), self.pending),
            (Missing::Outside.word(), self.outside),
        ]
    }

    /// Those that may still get an activity; 0 where no more rows come.
    pub fn open(&self) -> u64 {
        self.seen - self.matched - self.pending - self.outside
    }
}

impl Activities {
    /// What the ledger shows, in its order and words: the parts and what is open add up to
    /// `seen`.
    pub fn parts(&self) -> [(&'static str, u64); 5] {
        [
            ("matched", self.matched),
            (Missing::LaunchedBefore.word(), self.launched_before),
            (Missing::DeviceGraph.word(), self.device_graph),
            (Missing::NoStack.word(), self.no_stack),
            (Missing::Outside.word(), self.outside),
        ]
    }

    /// Those that may still get a launch; 0 where no more rows come.
    pub fn open(&self) -> u64 {
        self.seen - self.matched - self.launched_before - self.device_graph - self.no_stack - self.outside
    }
}

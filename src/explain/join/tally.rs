//! Numbers of launches and activities by outcome, for the ledger. At all times, the numbers by outcome add up to the
//! number of all launches, and to the number of all activities.

use gpuflame_model::record::Missing;

/// Numbers of launches and activities, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Numbers of launches by outcome. `seen = matched + pending + outside + open()`.
    pub launches: Launches,
    /// Numbers of activities by outcome. `seen = matched + launched_before + device_graph + no_stack + outside +
    /// open()`.
    pub activities: Activities,
}

/// Numbers of launches by outcome. A launch with two ids counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launches {
    /// Number of all launches.
    pub seen: u64,
    /// Number of launches with at least one activity.
    pub matched: u64,
    /// Number of graph launches with at least one activity.
    pub graphs: u64,
    /// Number of launches without an activity for which the join stopped waiting.
    pub pending: u64,
    /// Number of launches that were made while no window was open, with or without an activity.
    pub outside: u64,
    /// Number of rows that gave a launch a second id. A row that gives a launch a second id does not count as a launch.
    pub aliases: u64,
    /// Total time in nanoseconds during which the tracer's callbacks were off. Launches made during this time are not
    /// counted.
    pub not_told_nanos: u64,
}

/// Numbers of activities by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activities {
    /// Number of all activities.
    pub seen: u64,
    /// Number of activities whose launch has a stack.
    pub matched: u64,
    /// Number of activities that were launched before recording began.
    pub launched_before: u64,
    /// Number of activities that belong to graphs launched by the GPU itself.
    pub device_graph: u64,
    /// Number of activities whose launch is unknown or has no stack.
    pub no_stack: u64,
    /// Number of activities that were launched while no window was open.
    pub outside: u64,
    /// Number of activities in `outside` whose launches the tracer did not report.
    pub not_told: u64,
    /// Number of activities without usable times. Activities without usable times do not count in sums of GPU time.
    /// Each activity without usable times is also counted as `matched`, `launched_before`, `device_graph` or
    /// `no_stack`.
    pub untimed: u64,
    /// Number of `matched` and `no_stack` activities that began before their launch. If an activity began before its
    /// launch, the clock of the CPU or of the GPU is probably wrong.
    pub early: u64,
    /// Number of duplicates: activities that have the same launch, stream and times as an earlier activity. Duplicates
    /// are not in any other count.
    pub repeated: u64,
    /// Number of activities whose id cannot belong to any call (see [`Join`](super::Join)). Activities with impossible
    /// ids are not included in any other count.
    pub of_no_call: u64,
}

impl Launches {
    /// Returns each count with its word, in the order in which the ledger prints the counts. The returned counts and
    /// [`Launches::open`] add up to `seen`.
    pub fn parts(&self) -> [(&'static str, u64); 3] {
        [
            ("matched", self.matched),
            (Missing::Pending.word(), self.pending),
            (Missing::Outside.word(), self.outside),
        ]
    }

    /// Returns the number of launches that may still get an activity. This number is 0 after the last row.
    pub fn open(&self) -> u64 {
        self.seen - self.matched - self.pending - self.outside
    }
}

impl Activities {
    /// Counts the activity that was counted last as a duplicate, and no longer as `seen`.
    pub(super) fn count_duplicate(&mut self) {
        self.seen -= 1;
        self.repeated += 1;
    }

    /// Returns each count with its word, in the order in which the ledger prints the counts. The returned counts and
    /// [`Activities::open`] add up to `seen`.
    pub fn parts(&self) -> [(&'static str, u64); 5] {
        [
            ("matched", self.matched),
            (Missing::LaunchedBefore.word(), self.launched_before),
            (Missing::DeviceGraph.word(), self.device_graph),
            (Missing::NoStack.word(), self.no_stack),
            (Missing::Outside.word(), self.outside),
        ]
    }

    /// Returns the number of activities that may still get a launch. This number is 0 after the last row.
    pub fn open(&self) -> u64 {
        self.seen - self.matched - self.launched_before - self.device_graph - self.no_stack - self.outside
    }
}

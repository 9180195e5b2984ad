//! The reasons for which a launch or an activity has no partner, or no time: facts about the data, which
//! are kept and shown, never errors.

/// Why something is shown under a label and not under a stack, or with no weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Missing {
    /// An activity whose launch was made before recording began.
    LaunchedBefore,
    /// An activity of a graph that the GPU launched by itself.
    DeviceGraph,
    /// An activity whose launch was not recorded (dropped, or made where no API call is seen), or was
    /// recorded without a stack.
    NoStack,
    /// An activity whose start or end was not collected, or whose end lies before its start.
    Untimed,
    /// A launch that had no activity (yet).
    Pending,
    /// An activity launched while no window was open. It is in no output; only idle time that it ended is
    /// shown under its label.
    Outside,
}

impl Missing {
    /// The frame that flame graphs show.
    pub fn label(self) -> &'static str {
        match self {
            Self::LaunchedBefore => "[launched before recording]",
            Self::DeviceGraph => "[device graph]",
            Self::NoStack => "[no launch stack]",
            Self::Untimed => "[timestamp not collected]",
            Self::Pending => "[GPU_Launch_Pending]",
            Self::Outside => "[launched outside the window]",
        }
    }

    /// The word that ledgers and tables show; lower case, no blanks.
    pub fn word(self) -> &'static str {
        match self {
            Self::LaunchedBefore => "launched_before_recording",
            Self::DeviceGraph => "device_graph",
            Self::NoStack => "no_launch_stack",
            Self::Untimed => "timestamp_not_collected",
            Self::Pending => "launch_pending",
            Self::Outside => "outside",
        }
    }
}

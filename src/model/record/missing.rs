//! Lists the reasons why a launch has no activity, and the reasons why an activity has no launch or no time. gpuflame
//! stores and shows these reasons as data. The reasons are never reported as errors.

/// Reason why GPU work is shown under a label instead of its stack, or without a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Missing {
    /// Activity whose launch was made before recording began.
    LaunchedBefore,
    /// Activity that belongs to a graph that the GPU itself launched.
    DeviceGraph,
    /// Activity whose launch was recorded without a stack, or was not recorded. A launch is not recorded if its record
    /// was dropped, or if gpuflame did not observe the API call.
    NoStack,
    /// Activity whose start or end time was not collected, or whose end is before its start.
    Untimed,
    /// Launch that has no activity so far.
    Pending,
    /// Activity that was launched while no window was open. No output contains an activity that was launched outside of
    /// windows. The label of this reason appears only at idle time that ended when such an activity began.
    Outside,
}

impl Missing {
    /// Returns the text of the frame that flame graphs show.
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

    /// Returns the word that ledgers and tables show. The word is lower case and has no blanks.
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

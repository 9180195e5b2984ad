//! Lists the reasons why a launch has no activity, or an activity has no launch or no time. The reasons are data, which
//! are stored and shown, and never errors.

/// Reason why work is shown under a label instead of its stack, or without a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Missing {
    /// Activity whose launch was made before recording began.
    LaunchedBefore,
    /// Activity of a graph that was launched by the GPU itself.
    DeviceGraph,
    /// Activity whose launch was recorded without a stack, or was not recorded (it was dropped, or no API call is
    /// visible where it was made).
    NoStack,
    /// Activity whose start or end was not collected, or whose end precedes its start.
    Untimed,
    /// Launch without an activity so far.
    Pending,
    /// Activity launched while no window was open. The activity itself is not exported. Only idle time that ended when
    /// the activity began shows this label.
    Outside,
}

impl Missing {
    /// Returns the frame that flame graphs show.
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

    /// Returns the word for ledgers and tables: lower case, no blanks.
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

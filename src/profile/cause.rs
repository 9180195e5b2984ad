//! Why a GPU had nothing to do.

/// Why a device had nothing to do for a part of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The launch call had not begun.
    HostLate,
    /// The call was under way, or had returned so short a time before that the work was on its way.
    LaunchLatency,
    /// The work was launched long before and waited: for an event, for another device or the host, or for
    /// its turn after the work before it.
    Dependency,
    /// The launch is not known, or the clocks contradict each other.
    Unknown,
}

impl Cause {
    /// All causes, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::HostLate, Self::LaunchLatency, Self::Dependency, Self::Unknown];

    /// What flame graphs show.
    pub fn label(self) -> &'static str {
        match self {
            Self::HostLate => "host late",
            Self::LaunchLatency => "launch latency",
            Self::Dependency => "dependency or sync",
            Self::Unknown => "unknown",
        }
    }

    /// The word in ledgers; lower case, no blanks.
    pub fn word(self) -> &'static str {
        match self {
            Self::HostLate => "host_late",
            Self::LaunchLatency => "launch_latency",
            Self::Dependency => "dependency",
            Self::Unknown => "unknown",
        }
    }
}

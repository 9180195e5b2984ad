//! Lists the causes for which a GPU may be idle.

/// Reason why a device was idle for a part of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The host was late: the call that launched the next work had not started yet.
    HostLate,
    /// The call that launched the next work was still running, or had returned so recently that the work had not yet
    /// reached the GPU.
    LaunchLatency,
    /// The next work was launched long before, and waited for a CUDA event, for another device, for the host, or for
    /// preceding work.
    Dependency,
    /// The call that launched the next work is unknown, or the clocks of host and GPU contradict each other.
    Unknown,
}

impl Cause {
    /// All causes, in display order.
    pub const ALL: [Self; 4] = [Self::HostLate, Self::LaunchLatency, Self::Dependency, Self::Unknown];

    /// Returns the label that flame graphs show.
    pub fn label(self) -> &'static str {
        match self {
            Self::HostLate => "host late",
            Self::LaunchLatency => "launch latency",
            Self::Dependency => "dependency or sync",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the word by which ledgers name the cause. The word is lower case and has no blanks.
    pub fn word(self) -> &'static str {
        match self {
            Self::HostLate => "host_late",
            Self::LaunchLatency => "launch_latency",
            Self::Dependency => "dependency",
            Self::Unknown => "unknown",
        }
    }
}

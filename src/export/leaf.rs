//! The names of what a GPU did, as they stand at the tip of a flame.

use crate::profile::{Cause, HostCall, Leaf, Profile};
use crate::record::{DeviceId, Missing, Work};

/// What a frame stands for; pictures colour by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Code on the CPU.
    Cpu,
    /// The process, thread, GPU or stream below all.
    Root,
    /// A range that the application named.
    Range,
    /// A kernel.
    Kernel,
    /// A copy.
    Copy,
    /// A fill.
    Set,
    /// A whole graph, or the mark between its launch and its nodes.
    Graph,
    /// Something missing or lost.
    Loss,
    /// Memory that was allocated.
    Allocation,
    /// Memory that was freed.
    Free,
    /// Time in which a GPU had nothing to do.
    Idle(Cause),
}

impl Kind {
    pub(super) fn of(work: Work) -> Self {
        match work {
            Work::Kernel(_) => Self::Kernel,
            Work::Copy(_) => Self::Copy,
            Work::Set => Self::Set,
            Work::Graph => Self::Graph,
        }
    }

    /// The word in a table's `kind` column.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Root => "root",
            Self::Range => "range",
            Self::Kernel => "kernel",
            Self::Copy => "copy",
            Self::Set => "set",
            Self::Graph => "graph",
            Self::Loss => "missing",
            Self::Allocation => "allocation",
            Self::Free => "free",
            Self::Idle(_) => "idle",
        }
    }
}

/// The frames above the launching stack, root first: one, or two where the time is missing.
pub(super) fn frames(profile: &Profile, leaf: Leaf, device: Option<DeviceId>) -> Vec<(String, Kind)> {
    let missing = |missing: Missing| (missing.label().to_owned(), Kind::Loss);
    match leaf {
        Leaf::Work(work) => vec![(frame(profile, work, device), Kind::of(work))],
        Leaf::Untimed(work) => {
            vec![missing(Missing::Untimed), (frame(profile, work, device), Kind::of(work))]
        }
        Leaf::Pending => vec![missing(Missing::Pending)],
    }
}

/// `[GPU_Idle host late]`, with the GPU's number where there are several.
pub(super) fn idle(profile: &Profile, cause: Cause, device: DeviceId) -> (String, Kind) {
    (format!("[{}_Idle {}]", gpu(profile, Some(device)), cause.label()), Kind::Idle(cause))
}

/// The tip of idle time that no work ended.
pub(super) fn closing(profile: &Profile, device: DeviceId) -> (String, Kind) {
    (format!("[{}_Idle]", gpu(profile, Some(device))), Kind::Loss)
}

/// `[Alloc device]` or `[Free pinned]`; a wait ends in the call that waits.
pub(super) fn host(call: HostCall) -> Option<(String, Kind)> {
    match call {
        HostCall::Wait => None,
        HostCall::Allocate(memory) => Some((format!("[Alloc {}]", memory.label()), Kind::Allocation)),
        HostCall::Free(Some(memory)) => Some((format!("[Free {}]", memory.label()), Kind::Free)),
        HostCall::Free(None) => Some(("[Free of unknown size]".to_owned(), Kind::Loss)),
    }
}

/// `GPU`, or `GPU1` where more than one did anything.
fn gpu(profile: &Profile, device: Option<DeviceId>) -> String {
    match device {
        Some(device) if profile.devices().len() > 1 => format!("GPU{}", device.0),
        _ => "GPU".to_owned(),
    }
}

/// `[GPU_Kernel]gemm`, or `[GPU1_Kernel]gemm`.
fn frame(profile: &Profile, work: Work, device: Option<DeviceId>) -> String {
    let gpu = gpu(profile, device);
    match work {
        Work::Kernel(_) => format!("[{gpu}_Kernel]{}", name(profile, work)),
        Work::Copy(kind) => format!("[{gpu}_Memcpy {}]", kind.label()),
        Work::Set => format!("[{gpu}_Memset]"),
        Work::Graph => format!("[{gpu}_Graph]"),
    }
}

/// The name of a piece of work by itself: the kernel's, the copy's direction, `memset`, or `graph`.
pub fn name(profile: &Profile, work: Work) -> String {
    match work {
        Work::Kernel(name) => match profile.kernel(name) {
            Some(text) => text.to_owned(),
            None => format!("[kernel without a name: {}]", name.0),
        },
        Work::Copy(kind) => kind.label().to_owned(),
        Work::Set => "memset".to_owned(),
        Work::Graph => "graph".to_owned(),
    }
}

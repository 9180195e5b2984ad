//! Measured times of kernels that allow programmatic launches to begin, or that are launched programmatically.

use super::super::instructions::{Instruction, InstructionDetail};
use gpuflame_model::record::{Detail, IdMap, NameId};

/// Moment at which a kernel allows a programmatically launched kernel to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Trigger {
    /// The trigger comes this many ns after the kernel's begin.
    After(u64),
    /// The trigger is the kernel's end.
    AtEnd,
}

/// Measured times of a kernel. A time is `None` if it cannot be measured from any launch in the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct KernelTimes {
    /// Duration of a launch that does not wait for the previous kernel, in ns.
    pub(in super::super) duration: Option<u64>,
    pub(in super::super) trigger: Option<Trigger>,
    /// Tail of the kernel: the time in ns that the kernel runs after the end of the previous kernel. The tail is known
    /// only from launches that waited for the previous kernel's end.
    pub(in super::super) tail: Option<u64>,
    /// Minimum time in ns from the end of the previous kernel to this kernel's end. The minimum is taken over the
    /// launches that overlapped the previous kernel. The kernel's tail is at most this long.
    pub(in super::super) max_tail: Option<u64>,
}

/// Name of a kernel, and the grid and block sizes of its launch. The grid and block sizes are part of the key because
/// the kernel's times depend on them.
pub(super) type KernelKey = (NameId, [u32; 3], [u32; 3]);

/// Measured times of kernels, and the launches that these times do not explain.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct LearnedKernels {
    pub(super) times: IdMap<KernelKey, KernelTimes>,
    /// Indexes of the programmatic launches on streams whose times had to be estimated by a rule, because no measured
    /// times exist.
    pub(in super::super) guessed: Vec<u32>,
    /// Number of graph edges that may be programmatic.
    pub(in super::super) unclear_edges: u64,
}

impl LearnedKernels {
    /// Returns the times of the kernel that an instruction launched.
    pub(in super::super) fn times(&self, instruction: &Instruction<'_>) -> KernelTimes {
        key_of(instruction).and_then(|key| self.times.get(&key).copied()).unwrap_or_default()
    }
}

pub(super) fn key_of(instruction: &Instruction<'_>) -> Option<KernelKey> {
    match instruction.detail {
        InstructionDetail::Work { activity, .. } => match activity.detail {
            Detail::Kernel(kernel) => Some((kernel.name, kernel.grid, kernel.block)),
            _ => None,
        },
        _ => None,
    }
}

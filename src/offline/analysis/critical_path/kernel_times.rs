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

/// Measured times of a kernel. A time is `None` if no launch in the run shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct KernelTimes {
    /// Duration of the kernel in ns if it does not wait for the previous kernel while it runs.
    pub(in super::super) duration: Option<u64>,
    pub(in super::super) trigger: Option<Trigger>,
    /// Tail of the kernel: the time in ns that the kernel runs after the end of the previous kernel. The tail is
    /// measured only in launches in which this kernel waited for the previous kernel's end.
    pub(in super::super) tail: Option<u64>,
    /// Minimum time in ns from the end of the previous kernel to this kernel's end. The minimum is taken over the
    /// launches in which this kernel overlapped the previous kernel. It is an upper bound for the kernel's tail.
    pub(in super::super) max_tail: Option<u64>,
}

/// Name of a kernel, and the grid and block sizes of its launch. The grid and block sizes are part of the key because
/// the kernel's times depend on them.
pub(super) type KernelKey = (NameId, [u32; 3], [u32; 3]);

/// Measured times of kernels, and the programmatic launches of kernels without measured times.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct LearnedKernels {
    pub(super) times: IdMap<KernelKey, KernelTimes>,
    /// Indexes of the programmatic launches whose times had to be estimated by a rule, because no launch shows the
    /// times of their kernels.
    pub(in super::super) guessed: Vec<u32>,
    /// Number of graph edges for which it is unknown whether they are programmatic.
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

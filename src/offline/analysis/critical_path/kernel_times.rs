//! Times of kernels that let programmatic launches begin, or are launched so.

use super::super::instructions::{Instruction, InstructionDetail};
use gpuflame_model::record::{Detail, IdMap, NameId};

/// Moment at which a kernel lets a programmatic launch begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Trigger {
    /// This many ns after its begin.
    After(u64),
    /// At its end.
    AtEnd,
}

/// Times of a kernel, as far as the run shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct KernelTimes {
    /// Duration of a launch that does not wait for the kernel before it, in ns.
    pub(in super::super) duration: Option<u64>,
    pub(in super::super) trigger: Option<Trigger>,
    /// Time in ns that a kernel runs after the end of the kernel before it. Known if the kernel waited for that end.
    pub(in super::super) tail: Option<u64>,
    /// Shortest time in ns from the end of the kernel before it to its own end, if it overlapped that kernel. The tail is not longer.
    pub(in super::super) max_tail: Option<u64>,
}

/// A kernel with the sizes of its launch, on which its times depend.
pub(super) type KernelKey = (NameId, [u32; 3], [u32; 3]);

/// Times of kernels, and the launches that no times explain.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct LearnedKernels {
    pub(super) times: IdMap<KernelKey, KernelTimes>,
    /// Numbers of programmatic launches of streams whose times follow a rule.
    pub(in super::super) guessed: Vec<u32>,
    /// Number of edges of graphs that may be programmatic.
    pub(in super::super) unclear_edges: u64,
}

impl LearnedKernels {
    /// Times of the kernel of an instruction.
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

//! Flags for verbs that draw stacks. The flags select how to treat numbers in names, and under which stacks to draw the
//! GPU work of backward passes and CUDA graphs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use gpuflame_export::NameFolding;
use gpuflame_model::options::Backward;
use gpuflame_offline::run::ReadOptions;

/// Options for the names and the order of frames in stacks.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct NameFlags {
    /// Keep numbers in names. By default, counters (`ProfilerStep#5`, `seq = 46588`) and ids (`object at
    /// 0x7f19a0c3d2e0`, threads) become `N` in ranges, annotations, Python objects and thread labels, so that all steps
    /// share one frame. With --keep-numbers, folded stacks also contain complete kernel names.
    #[arg(long, conflicts_with = "fold")]
    keep_numbers: bool,
    /// Fold more numbers: `modules` merges the instances of a module (`nn.Module: Layer_17`).
    #[arg(long, value_name = "WHAT")]
    fold: Option<Fold>,
    /// Where the work of a backward pass is drawn: `autograd`: under autograd's own thread, which launched it;
    /// `forward`: under the operator of the forward pass whose gradient the work computes, and a frame `[backward]`.
    /// `forward` needs a trace of torch.profiler that links the two passes, or a recording of a program that ran under
    /// `torch.autograd.profiler.emit_nvtx()`.
    #[arg(long, value_name = "WHERE", default_value_t)]
    backward: Backward,
    /// Traces that were taken while the graphs of this trace were captured. vLLM and sglang write such traces. Give
    /// them after the input. The work of a graph is then drawn under the stacks that captured the graph.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    graph_capture: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fold {
    /// Also fold the instance numbers of modules.
    Modules,
}

impl NameFlags {
    /// Returns the options for reading other tools' traces.
    pub(super) fn read_options(&self) -> ReadOptions {
        let backward_under_forward = self.backward == Backward::Forward;
        ReadOptions {
            backward_under_forward,
            graph_captures: self.graph_capture.clone(),
            ..ReadOptions::default()
        }
    }

    /// Whether folded stacks contain complete kernel names.
    pub(super) fn whole_kernels(&self) -> bool {
        self.keep_numbers
    }

    pub(super) fn names(&self) -> NameFolding {
        match (self.keep_numbers, self.fold) {
            (true, _) => NameFolding::Kept,
            (false, Some(Fold::Modules)) => NameFolding::Modules,
            (false, None) => NameFolding::Folded,
        }
    }
}

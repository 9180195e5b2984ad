//! Flags of verbs that draw views: treatment of numbers in names, and attribution of backward passes and graphs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use gpuflame_export::Names;
use gpuflame_model::options::Backward;
use gpuflame_offline::run::ReadOptions;

/// How stacks are shown.
#[derive(Clone, Debug, Args)]
pub(super) struct NameFlags {
    /// Keep the numbers in names. Else those that count (`ProfilerStep#5`, `seq = 46588`) or identify (`object at
    /// 0x7f19a0c3d2e0`, threads) are `N`, in ranges, annotations, Python's prints of objects and labels of threads, so
    /// that one step is the same frame as the next. Folded stacks then have the whole names of kernels, too.
    #[arg(long, conflicts_with = "fold")]
    keep_numbers: bool,
    /// Fold more: `modules` makes the instances of a module (`nn.Module: Layer_17`) one.
    #[arg(long, value_name = "WHAT")]
    fold: Option<Fold>,
    /// Where the work of a backward pass hangs: `autograd` has it under autograd's own thread, which launched it; `forward` under
    /// the operator of the forward pass whose gradient it is, and `[backward]`, in traces of torch.profiler that tell which that
    /// is, and in recordings of programs that ran under `torch.autograd.profiler.emit_nvtx()`.
    #[arg(long, value_name = "WHERE", default_value_t)]
    backward: Backward,
    /// Traces of the capture of the graphs that this one launches, as vLLM and sglang write them (behind the input). What
    /// graphs launched hangs under the stacks that captured it.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    graph_capture: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fold {
    /// The numbers of instances of modules as well.
    Modules,
}

impl NameFlags {
    /// Returns the options for reading other tools' traces.
    pub(super) fn reading(&self) -> ReadOptions {
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

    pub(super) fn names(&self) -> Names {
        match (self.keep_numbers, self.fold) {
            (true, _) => Names::Kept,
            (false, Some(Fold::Modules)) => Names::Modules,
            (false, None) => Names::Folded,
        }
    }
}

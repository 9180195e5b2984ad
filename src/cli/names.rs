//! The flags of verbs that draw views: what becomes of the numbers in names.

use clap::{Args, ValueEnum};

use crate::export::Names;

/// What becomes of numbers in the names of ranges, annotations, Python objects and threads.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct NameFlags {
    /// Keep the numbers in names. Else those that count (`ProfilerStep#5`, `seq = 46588`) or identify (`object at
    /// 0x7f19a0c3d2e0`, threads) are `N`, in ranges, annotations, Python's prints of objects and labels of threads, so
    /// that one step is the same frame as the next.
    #[arg(long, conflicts_with = "fold")]
    keep_numbers: bool,
    /// Fold more: `modules` makes the instances of a module (`nn.Module: Layer_17`) one.
    #[arg(long, value_name = "WHAT")]
    fold: Option<Fold>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fold {
    /// The numbers of instances of modules as well.
    Modules,
}

impl NameFlags {
    pub(super) fn names(self) -> Names {
        match (self.keep_numbers, self.fold) {
            (true, _) => Names::Kept,
            (false, Some(Fold::Modules)) => Names::Modules,
            (false, None) => Names::Folded,
        }
    }
}

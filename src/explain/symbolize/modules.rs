//! `ModuleIndex` finds the module that was mapped at the address of a frame when the frame was captured.
//!
//! Several modules may have been mapped at an address one after another. Each module has an epoch, and a frame contains
//! the epoch of its module. So the module of a frame is the module that has the frame's epoch and covers the frame's
//! address. All code that the dynamic loader did not load has the same epoch. If several files with this common epoch
//! were mapped at an address, it is unknown to which file the address belonged.

use gpuflame_model::record::{Module, ModuleEpoch};
use gpuflame_model::sorting;

/// Index that finds modules by address and epoch.
pub(super) struct ModuleIndex<'a> {
    modules: &'a [Module],
    /// Indices in `modules`, sorted by the start address of the module. Modules with equal start addresses are in the
    /// order in which their rows arrived.
    by_start: Vec<usize>,
    /// For each entry of `by_start`, the highest end address of the modules up to and including this entry. A search
    /// goes from high to low addresses, and stops at the first entry whose highest end address is not above the
    /// searched address.
    reach: Vec<u64>,
}

impl<'a> ModuleIndex<'a> {
    pub(super) fn new(modules: &'a [Module]) -> Self {
        let mut by_start: Vec<usize> = (0..modules.len()).collect();
        sorting::sort_by_key(&mut by_start, |&at| modules[at].start);
        let reach = by_start.iter().scan(0, |reach, &at| {
            *reach = modules[at].end.max(*reach);
            Some(*reach)
        });
        let reach = reach.collect();
        Self { modules, by_start, reach }
    }

    /// Returns the index of the module that covers `address` in `epoch`.
    pub(super) fn find(&self, address: u64, epoch: ModuleEpoch) -> Option<usize> {
        let begin_before = self.by_start.partition_point(|&at| self.modules[at].start <= address);
        let candidates = (0..begin_before).rev().take_while(|&i| self.reach[i] > address);
        let covers = |&at: &usize| self.modules[at].end > address && self.modules[at].epoch == epoch;
        let mut found = candidates.map(|i| self.by_start[i]).filter(covers);
        let first = found.next()?;
        let is_same = |at: usize| {
            let [one, other] = [first, at].map(|at| &self.modules[at]);
            one.path == other.path && (one.path.as_os_str().is_empty() || one.bias == other.bias)
        };
        (epoch != ModuleEpoch::UNKNOWN && found.all(is_same)).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(epoch: u16, start: u64, end: u64) -> Module {
        let (path, build_id) = (format!("/lib/{start:x}-{epoch}.so").into(), Vec::new());
        Module { epoch: ModuleEpoch(epoch), start, end, bias: start, path, build_id }
    }

    fn ask(modules: &[Module], address: u64, epoch: u16) -> Option<usize> {
        ModuleIndex::new(modules).find(address, ModuleEpoch(epoch))
    }

    #[test]
    fn an_address_belongs_to_the_module_around_it() {
        let modules = [module(0, 0x2000, 0x3000), module(0, 0x1000, 0x2000)];
        assert_eq!(ask(&modules, 0x1000, 0), Some(1));
        assert_eq!(ask(&modules, 0x1fff, 0), Some(1));
        assert_eq!(ask(&modules, 0x2000, 0), Some(0));
        assert_eq!(ask(&modules, 0x3000, 0), None);
        assert_eq!(ask(&modules, 0xfff, 0), None);
        assert_eq!(ask(&[], 1, 0), None);
    }

    #[test]
    fn an_address_used_by_several_modules_is_resolved_by_epoch() {
        // In this test, a module is loaded and unloaded. Then a second module is loaded at an overlapping address and
        // unloaded. Finally, a third, larger module is loaded.
        let modules = [module(0, 0x1000, 0x2000), module(1, 0x1800, 0x2800), module(2, 0x1000, 0x4000)];
        assert_eq!([0, 1, 2].map(|epoch| ask(&modules, 0x1900, epoch)), [0, 1, 2].map(Some));
        assert_eq!(ask(&modules, 0x1100, 1), None, "module 1 starts after this address");
        assert_eq!(ask(&modules, 0x1900, 3), None, "the module of this epoch is not in the recording");
    }

    #[test]
    fn a_frame_with_an_unknown_epoch_has_no_module() {
        let unknown = ModuleEpoch::UNKNOWN.0;
        assert_eq!(ask(&[module(0, 0x1000, 0x2000), module(unknown, 0x1000, 0x2000)], 0x1500, unknown), None);
    }

    #[test]
    fn a_small_module_after_a_large_one_does_not_hide_it() {
        let modules = [module(0, 0x1000, 0x9000), module(0, 0x2000, 0x2100), module(0, 0x3000, 0x3100)];
        assert_eq!(ask(&modules, 0x8000, 0), Some(0));
    }

    #[test]
    fn the_later_of_two_equal_module_rows_counts() {
        let modules = [module(0, 0x1000, 0x2000), module(0, 0x1000, 0x2000)];
        assert_eq!(ask(&modules, 0x1500, 0), Some(1));
    }

    #[test]
    fn an_address_in_two_files_mapped_outside_the_loader_is_unresolved() {
        let outside = ModuleEpoch::OUTSIDE.0;
        let modules = [module(outside, 0x1000, 0x2000), module(outside, 0x1000, 0x3000)];
        assert_eq!(ask(&modules, 0x2800, outside), Some(1));
        let other = Module { path: "/lib/other.so".into(), ..module(outside, 0x1000, 0x2000) };
        assert_eq!(ask(&[modules[0].clone(), other], 0x1800, outside), None);
    }
}

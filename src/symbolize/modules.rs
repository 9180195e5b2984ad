//! Which module an address was in when it was taken.
//!
//! An address may have had several modules in turn. A frame knows its epoch (how often modules had been
//! unloaded before), a module the first epoch in which it was seen; it holds until a later one covers the
//! address. So the right one is the latest that covers the address and is not younger than the frame.

use crate::record::{Module, ModuleEpoch};

/// The modules, to be asked for addresses.
pub(super) struct ModuleMap<'a> {
    modules: &'a [Module],
    /// Positions in `modules`, by start; of two with the same start the one whose row came later is last.
    by_start: Vec<usize>,
    /// For each of `by_start`, the highest end of all up to it: where to stop looking.
    reach: Vec<u64>,
}

impl<'a> ModuleMap<'a> {
    pub(super) fn new(modules: &'a [Module]) -> Self {
        let mut by_start: Vec<usize> = (0..modules.len()).collect();
        by_start.sort_by_key(|&at| modules[at].start);
        let reach = by_start.iter().scan(0, |reach, &at| {
            *reach = modules[at].end.max(*reach);
            Some(*reach)
        });
        let reach = reach.collect();
        Self { modules, by_start, reach }
    }

    /// The position of the module that `address` was in at `epoch`.
    pub(super) fn find(&self, address: u64, epoch: ModuleEpoch) -> Option<usize> {
        let begin_before = self.by_start.partition_point(|&at| self.modules[at].start <= address);
        let candidates = (0..begin_before).rev().take_while(|&i| self.reach[i] > address);
        let covers = |&at: &usize| self.modules[at].end > address && self.modules[at].epoch <= epoch;
        candidates.map(|i| self.by_start[i]).filter(covers).max_by_key(|&at| (self.modules[at].epoch, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(epoch: u16, start: u64, end: u64) -> Module {
        let (path, build_id) = (format!("/lib/{start:x}-{epoch}.so"), Vec::new());
        Module { epoch: ModuleEpoch(epoch), start, end, bias: start, path, build_id }
    }

    fn ask(modules: &[Module], address: u64, epoch: u16) -> Option<usize> {
        ModuleMap::new(modules).find(address, ModuleEpoch(epoch))
    }

    #[test]
    fn an_address_belongs_to_the_module_around_it() {
        let modules = [module(0, 0x2000, 0x3000), module(0, 0x1000, 0x2000)];
        assert_eq!(ask(&modules, 0x1000, 0), Some(1));
        assert_eq!(ask(&modules, 0x1fff, 7), Some(1));
        assert_eq!(ask(&modules, 0x2000, 0), Some(0));
        assert_eq!(ask(&modules, 0x3000, 0), None);
        assert_eq!(ask(&modules, 0xfff, 0), None);
        assert_eq!(ask(&[], 1, 0), None);
    }

    #[test]
    fn an_address_that_two_modules_had_in_turn_goes_by_epoch() {
        // Loaded, unloaded (epoch 1), another in its place, unloaded (epoch 3), a third, larger one.
        let modules = [module(0, 0x1000, 0x2000), module(1, 0x1800, 0x2800), module(3, 0x1000, 0x4000)];
        assert_eq!([0, 1, 2, 3, 9].map(|epoch| ask(&modules, 0x1900, epoch)), [0, 1, 1, 2, 2].map(Some));
        assert_eq!(ask(&modules, 0x1100, 2), Some(0), "it holds until a later one covers the address");
        assert_eq!(ask(&modules, 0x3000, 2), None, "it was not there yet");
    }

    #[test]
    fn a_small_module_after_a_large_one_does_not_hide_it() {
        let modules = [module(0, 0x1000, 0x9000), module(0, 0x2000, 0x2100), module(0, 0x3000, 0x3100)];
        assert_eq!(ask(&modules, 0x8000, 0), Some(0));
    }

    #[test]
    fn of_two_rows_alike_the_later_one_counts() {
        let modules = [module(0, 0x1000, 0x2000), module(0, 0x1000, 0x2000)];
        assert_eq!(ask(&modules, 0x1500, 0), Some(1));
    }
}

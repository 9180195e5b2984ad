//! How many objects came and went, as far as anybody knows: one word to load in every capture.
//!
//! Whoever hears a later state from the loader (see `loader`) publishes it here. Rules, notes and copies of the
//! loader's list are of one state; frames are of an epoch, which ends when an object is unloaded.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::record::ModuleEpoch;

/// How many objects were ever loaded and unloaded, as `dl_iterate_phdr` reports.
///
/// Both only grow, so a later state is larger as a number, and two states are equal only if nothing
/// was loaded or unloaded between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Counts(u64);

impl Counts {
    /// Before anything was loaded.
    pub(super) const NONE: Self = Self(0);

    pub(crate) fn new(loads: u64, unloads: u64) -> Self {
        Self((loads << 32) | (unloads & 0xffff_ffff))
    }

    /// Objects loaded so far, modulo 2^32.
    pub(crate) fn loads(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Objects unloaded so far, modulo 2^32.
    pub(crate) fn unloads(self) -> u32 {
        self.0 as u32
    }

    /// Both in one word.
    pub(crate) fn as_word(self) -> u64 {
        self.0
    }
}

/// The newest state that anybody has seen; 0 until somebody asked the loader.
static LATEST: AtomicU64 = AtomicU64::new(0);
/// The unloads at which the epoch began, its number above them, and on top whether a rule was compiled, and
/// so perhaps a frame taken, in it.
static EPOCH: AtomicU64 = AtomicU64::new(0);
const IS_USED: u64 = 1 << 63;

/// The newest state that anybody has seen: one load.
#[inline(always)]
pub(crate) fn latest() -> Counts {
    Counts(LATEST.load(Ordering::Acquire))
}

/// The epoch that frames belong to. It may be one ahead of the latest state for a moment, which does no
/// harm: what is on a stack was loaded before and stays loaded.
pub(crate) fn epoch() -> ModuleEpoch {
    let epoch = (EPOCH.load(Ordering::Acquire) & !IS_USED) >> 32;
    ModuleEpoch(epoch.min(u64::from(ModuleEpoch::MAX.0)) as u16)
}

/// Says that frames are taken in this epoch: the next unload begins another. (Epochs are few, so unloads
/// that no stack lies between count as one.)
pub(crate) fn use_epoch() {
    if EPOCH.load(Ordering::Relaxed) & IS_USED == 0 {
        EPOCH.fetch_or(IS_USED, Ordering::AcqRel);
    }
}

/// Makes `seen` the latest state, unless a newer one is known.
pub(crate) fn publish(seen: Counts) {
    if seen <= latest() {
        return;
    }
    let mut epoch = EPOCH.load(Ordering::Relaxed);
    while seen.unloads().wrapping_sub(epoch as u32) as i32 > 0 {
        let number = ((epoch & !IS_USED) >> 32) + (epoch >> 63);
        let next = (number << 32) | u64::from(seen.unloads());
        match EPOCH.compare_exchange_weak(epoch, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => epoch = now,
        }
    }
    LATEST.fetch_max(seen.0, Ordering::AcqRel);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_compare_by_time() {
        let (earlier, later) = (Counts::new(7, 2), Counts::new(7, 3));
        assert!(earlier < later && later < Counts::new(8, 3));
        assert_eq!((later.loads(), later.unloads()), (7, 3));
    }
}

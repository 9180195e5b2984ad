//! The latest known loader state, in one word that every capture loads.
//!
//! A thread that gets a newer state from the loader (see `loader`) publishes it here. Rules, notes and copies of
//! the loader's list each belong to one state.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The `dlpi_adds` and `dlpi_subs` that `dl_iterate_phdr` passes. Equal pairs mean that nothing was loaded or
/// unloaded in between.
///
/// Nothing else may be concluded from them. The first counts loads. The second should count unloads, but glibc
/// computes it as the first minus the number of loaded objects, and for a namespace other than the program's
/// (`dlmopen`) it subtracts that number once per object in it: so it jumps back and forth. Still, each unload
/// increases it, and loads increase the first, so no change leaves both as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Told {
    loads: u32,
    unloads: u32,
}

impl Told {
    pub(super) fn new(loads: u64, unloads: u64) -> Self {
        Self { loads: loads as u32, unloads: unloads as u32 }
    }

    /// Number of objects loaded so far, modulo 2^32.
    pub(super) fn loads(self) -> u32 {
        self.loads
    }

    /// Number of objects loaded now, if all are in the program's namespace.
    pub(super) fn loaded(self) -> u32 {
        self.loads.wrapping_sub(self.unloads)
    }

    fn as_word(self) -> u64 {
        u64::from(self.loads) << 32 | u64::from(self.unloads)
    }
}

/// A state of the loader: the number of objects ever loaded, and our own count of possible unloads, which only
/// grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Counts(u64);

impl Counts {
    pub(crate) const fn new(loads: u32, unloads: u32) -> Self {
        Self((loads as u64) << 32 | unloads as u64)
    }

    /// Number of objects loaded so far, modulo 2^32.
    pub(crate) fn loads(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Number of times that objects may have been unloaded, modulo 2^32.
    pub(crate) fn unloads(self) -> u32 {
        self.0 as u32
    }

    /// Both counts in one word.
    pub(crate) fn as_word(self) -> u64 {
        self.0
    }
}

/// The latest state that any thread has seen; 0 until the first query of the loader.
static LATEST: AtomicU64 = AtomicU64::new(0);
/// The loader's counters for that state, and whether all objects were known to be in the program's namespace.
static TOLD: AtomicU64 = AtomicU64::new(0);
static WAS_ALONE: AtomicBool = AtomicBool::new(false);

/// Returns the latest state that any thread has seen, with one load.
#[inline(always)]
pub(crate) fn latest() -> Counts {
    Counts(LATEST.load(Ordering::Acquire))
}

/// Converts the loader's counters to a state, and publishes it. Call while the loader is held, which orders the
/// calls. `is_alone` means that all objects are in the program's namespace.
///
/// A signal handler that queries the loader during this call counts one extra unload, which is harmless.
pub(super) fn publish(told: Told, is_alone: bool) -> Counts {
    let last = TOLD.load(Ordering::Relaxed);
    if told.as_word() == last {
        return latest();
    }
    // Only with a single namespace can an unload be ruled out.
    let none_went = is_alone && WAS_ALONE.load(Ordering::Relaxed) && last as u32 == told.unloads;
    let later = |latest: u64| Counts::new(told.loads, (latest as u32).wrapping_add(u32::from(!none_went)));
    let before = LATEST.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |latest| Some(later(latest).0));
    WAS_ALONE.store(is_alone, Ordering::Relaxed);
    TOLD.store(told.as_word(), Ordering::Relaxed);
    later(before.unwrap_or_default())
}

//! Stores the latest known loader state in one word, which every capture reads.
//!
//! A thread that gets a newer state from the loader (see `loader`) publishes the state in this word. Each unwind
//! rule, each note about code outside all objects, and each copy of the loader's list is valid for only one loader
//! state.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The values `dlpi_adds` and `dlpi_subs` that `dl_iterate_phdr` passes to its visitor. If two queries give equal pairs
/// of these values, nothing was loaded or unloaded between the queries.
///
/// No other conclusion may be drawn from the pair `dlpi_adds` and `dlpi_subs`. `dlpi_adds` counts loads. `dlpi_subs`
/// should count unloads, but glibc computes it as `dlpi_adds` minus the number of loaded objects. For a namespace other
/// than the program's (`dlmopen`), glibc subtracts the number of objects in the namespace once per object, so
/// `dlpi_subs` rises and falls. Nevertheless, each load increases `dlpi_adds` and each unload increases `dlpi_subs`, so
/// every load or unload changes the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct LoaderCounters {
    loads: u32,
    unloads: u32,
}

impl LoaderCounters {
    pub(super) fn new(loads: u64, unloads: u64) -> Self {
        Self { loads: loads as u32, unloads: unloads as u32 }
    }

    /// Number of objects loaded so far, modulo 2^32.
    pub(super) fn loads(self) -> u32 {
        self.loads
    }

    /// Number of objects loaded now, provided that all objects are in the program's namespace.
    pub(super) fn loaded(self) -> u32 {
        self.loads.wrapping_sub(self.unloads)
    }

    fn as_word(self) -> u64 {
        u64::from(self.loads) << 32 | u64::from(self.unloads)
    }
}

/// A state of the loader: the number of objects ever loaded, and our own count of possible unloads, which
/// never decreases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct LoaderState(u64);

impl LoaderState {
    pub(crate) const fn new(loads: u32, unloads: u32) -> Self {
        Self((loads as u64) << 32 | unloads as u64)
    }

    /// Number of objects loaded so far, modulo 2^32.
    pub(crate) fn loads(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Number of times that objects may have been unloaded so far, modulo 2^32.
    pub(crate) fn unloads(self) -> u32 {
        self.0 as u32
    }

    /// Returns both counts, packed into one word.
    pub(crate) fn as_word(self) -> u64 {
        self.0
    }
}

/// The latest loader state that any thread has seen; 0 until the first query of the loader.
static LATEST: AtomicU64 = AtomicU64::new(0);
/// The loader's counters for the state in `LATEST`, and whether all objects were known to be in the program's
/// namespace.
static COUNTERS: AtomicU64 = AtomicU64::new(0);
static HAD_ONE_NAMESPACE: AtomicBool = AtomicBool::new(false);

/// Returns the latest loader state that any thread has seen. Reads only one word of memory.
#[inline(always)]
pub(crate) fn latest() -> LoaderState {
    LoaderState(LATEST.load(Ordering::Acquire))
}

/// Converts the loader's counters to a state, and publishes the state. Call this function while the loader's lock is
/// held, because the lock serializes the publishing threads. `has_one_namespace` means that all objects are in the
/// program's namespace.
///
/// If a signal handler queries the loader during this call, one unload too many is counted. The only effect of counting
/// too many unloads is that the caches drop some valid rules.
pub(super) fn publish(counters: LoaderCounters, has_one_namespace: bool) -> LoaderState {
    let last = COUNTERS.load(Ordering::Relaxed);
    if counters.as_word() == last {
        return latest();
    }
    // The counters prove that nothing was unloaded only if all objects are in a single namespace.
    let nothing_unloaded =
        has_one_namespace && HAD_ONE_NAMESPACE.load(Ordering::Relaxed) && last as u32 == counters.unloads;
    let later = |latest: u64| {
        LoaderState::new(counters.loads, (latest as u32).wrapping_add(u32::from(!nothing_unloaded)))
    };
    let before = LATEST.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |latest| Some(later(latest).0));
    HAD_ONE_NAMESPACE.store(has_one_namespace, Ordering::Relaxed);
    COUNTERS.store(counters.as_word(), Ordering::Relaxed);
    later(before.unwrap_or_default())
}

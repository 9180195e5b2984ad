//! How often objects came and went, as far as anybody knows: one word to load in every capture.
//!
//! Whoever hears of another state from the loader (see `loader`) publishes it here. Rules, notes and copies of the
//! loader's list are of one state.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What `dl_iterate_phdr` tells: two numbers that are both the same only if nothing was loaded or unloaded between.
///
/// More they do not say. The first counts loads. The second is to count unloads, but glibc works it out as the first
/// less what is loaded, and of a namespace other than the program's (`dlmopen`) it takes as many times what is there
/// as there are objects in it: so it jumps back and forth. Each unload makes it larger all the same, and loads are
/// counted by the other, so no change leaves both as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Told {
    loads: u32,
    unloads: u32,
}

impl Told {
    pub(super) fn new(loads: u64, unloads: u64) -> Self {
        Self { loads: loads as u32, unloads: unloads as u32 }
    }

    /// Objects loaded so far, modulo 2^32.
    pub(super) fn loads(self) -> u32 {
        self.loads
    }

    /// Objects that are loaded now, if all are in the program's namespace.
    pub(super) fn loaded(self) -> u32 {
        self.loads.wrapping_sub(self.unloads)
    }

    fn as_word(self) -> u64 {
        u64::from(self.loads) << 32 | u64::from(self.unloads)
    }
}

/// A state of the loader: how many objects were ever loaded, and how often some may have been unloaded, by our own
/// count, which only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Counts(u64);

impl Counts {
    pub(crate) const fn new(loads: u32, unloads: u32) -> Self {
        Self((loads as u64) << 32 | unloads as u64)
    }

    /// Objects loaded so far, modulo 2^32.
    pub(crate) fn loads(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// How often objects may have been unloaded, modulo 2^32.
    pub(crate) fn unloads(self) -> u32 {
        self.0 as u32
    }

    /// Both in one word.
    pub(crate) fn as_word(self) -> u64 {
        self.0
    }
}

/// The latest state that anybody has seen; 0 until somebody asked the loader.
static LATEST: AtomicU64 = AtomicU64::new(0);
/// What the loader told of it, and whether all objects were in the program's namespace, as far as is known.
static TOLD: AtomicU64 = AtomicU64::new(0);
static WAS_ALONE: AtomicBool = AtomicBool::new(false);

/// The latest state that anybody has seen: one load.
#[inline(always)]
pub(crate) fn latest() -> Counts {
    Counts(LATEST.load(Ordering::Acquire))
}

/// Takes in what the loader told, and gives the state that this is. Called while the loader is held, which says what
/// came later; `is_alone` says that all objects are in the program's namespace.
///
/// A signal handler that asks in the midst of this counts one unload more, which does no harm.
pub(super) fn publish(told: Told, is_alone: bool) -> Counts {
    let last = TOLD.load(Ordering::Relaxed);
    if told.as_word() == last {
        return latest();
    }
    // Only of one namespace can be said that nothing was unloaded.
    let none_went = is_alone && WAS_ALONE.load(Ordering::Relaxed) && last as u32 == told.unloads;
    let later = |latest: u64| Counts::new(told.loads, (latest as u32).wrapping_add(u32::from(!none_went)));
    let before = LATEST.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |latest| Some(later(latest).0));
    WAS_ALONE.store(is_alone, Ordering::Relaxed);
    TOLD.store(told.as_word(), Ordering::Relaxed);
    later(before.unwrap_or_default())
}

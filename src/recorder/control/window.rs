//! Tracks whether a window is open. The state is one word, which is read once per launch.

use std::sync::atomic::{AtomicU32, Ordering};

/// Bit 0: a window is open. Bit 1: no window is open, and launches are not even counted. Bit 2: each launch is reported
/// to an external probe. Other bits: number of times that a window was opened.
static WORD: AtomicU32 = AtomicU32::new(0);
const OPEN: u32 = 1;
const QUIET: u32 = 2;
const MARKED: u32 = 4;
const OPENING: u32 = 8;

/// The word at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u32);

impl State {
    /// State before the first window.
    pub const NONE: Self = Self(0);

    /// Returns the state as a number.
    #[inline]
    pub fn word(self) -> u32 {
        self.0
    }

    /// Converts a word from [`State::word`] back.
    pub fn of(word: u32) -> Self {
        Self(word)
    }

    /// Whether launches are recorded. If launches are not recorded, they are counted as outside.
    #[inline]
    pub fn is_open(self) -> bool {
        self.0 & OPEN != 0
    }

    /// Whether launches are skipped, until a window is opened.
    #[inline]
    pub fn is_quiet(self) -> bool {
        self.0 & QUIET != 0
    }

    /// Whether launches are reported to an external probe.
    #[inline]
    pub fn is_marked(self) -> bool {
        self.0 & MARKED != 0
    }

    /// Whether a launch must be skipped or reported to a probe. One test covers both of these rare cases.
    #[inline]
    pub fn is_special(self) -> bool {
        self.0 & (QUIET | MARKED) != 0
    }

    /// Number of times that a window was opened. If two launches outside windows have the same number, no window was
    /// open between these launches.
    pub fn openings(self) -> u32 {
        self.0 / OPENING
    }
}

/// Returns the current state.
#[inline]
pub fn state() -> State {
    State(WORD.load(Ordering::Acquire))
}

/// Opens the window. Returns false if it was open already.
pub fn open() -> bool {
    let opened = |word: u32| (word & OPEN == 0).then(|| (word & !QUIET).wrapping_add(OPENING) | OPEN);
    WORD.fetch_update(Ordering::AcqRel, Ordering::Acquire, opened).is_ok()
}

/// Closes the window. Returns false if it was not open.
pub fn close() -> bool {
    WORD.fetch_and(!OPEN, Ordering::AcqRel) & OPEN != 0
}

/// Skips launches from now on. Returns false if a window is open, or if launches are skipped already.
pub fn hush() -> bool {
    let hushed = |word: u32| (word & (OPEN | QUIET) == 0).then_some(word | QUIET);
    WORD.fetch_update(Ordering::AcqRel, Ordering::Acquire, hushed).is_ok()
}

/// Reports launches to an external probe from now on.
pub fn mark() {
    WORD.fetch_or(MARKED, Ordering::AcqRel);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is only one test, because the word belongs to the whole process.
    #[test]
    fn a_window_opens_and_closes_and_openings_count() {
        assert!(!state().is_open());
        assert!(!close());
        assert!(open());
        assert!(!open());
        assert!(state().is_open());
        assert_eq!(state().openings(), 1);
        assert!(close());
        assert_eq!(state().openings(), 1);
        assert!(hush() && !hush());
        assert!(state().is_quiet() && !state().is_open());
        assert_eq!(state().openings(), 1);
        assert!(open());
        assert_eq!((state().openings(), state().is_quiet()), (2, false));
        assert!(!hush(), "a window is open");
        assert!(close());
        assert!(!state().is_special());
        mark();
        assert!(state().is_special() && state().is_marked() && !state().is_open() && !state().is_quiet());
        assert!(open() && close() && hush());
        assert_eq!((state().openings(), state().is_marked(), state().is_quiet()), (3, true, true));
    }
}

//! Whether a window is open. One word, read once on every launch.

use std::sync::atomic::{AtomicU32, Ordering};

/// The lowest bit: a window is open. The next: none is, and launches are not even counted. The third: each launch is told to
/// whoever probes us from outside. The others: how often a window was opened.
static WORD: AtomicU32 = AtomicU32::new(0);
const OPEN: u32 = 1;
const QUIET: u32 = 2;
const MARKED: u32 = 4;
const OPENING: u32 = 8;

/// The word at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u32);

impl State {
    /// As it is before the first window.
    pub const NONE: Self = Self(0);

    /// The same as a number.
    #[inline]
    pub fn word(self) -> u32 {
        self.0
    }

    /// From a number that [`State::word`] gave.
    pub fn of(word: u32) -> Self {
        Self(word)
    }

    /// Whether launches are recorded; if not, they are counted as outside.
    #[inline]
    pub fn is_open(self) -> bool {
        self.0 & OPEN != 0
    }

    /// Whether launches are passed over, until a window is opened.
    #[inline]
    pub fn is_quiet(self) -> bool {
        self.0 & QUIET != 0
    }

    /// Whether launches are told to whoever probes us from outside.
    #[inline]
    pub fn is_marked(self) -> bool {
        self.0 & MARKED != 0
    }

    /// Whether anything but recording or counting is to be done with a launch: one test, for what is rare.
    #[inline]
    pub fn is_special(self) -> bool {
        self.0 & (QUIET | MARKED) != 0
    }

    /// How often a window was opened: launches outside under the same number have no window between them.
    pub fn openings(self) -> u32 {
        self.0 / OPENING
    }
}

/// The present state.
#[inline]
pub fn state() -> State {
    State(WORD.load(Ordering::Acquire))
}

/// Opens the window. False: it was open already.
pub fn open() -> bool {
    let opened = |word: u32| (word & OPEN == 0).then(|| (word & !QUIET).wrapping_add(OPENING) | OPEN);
    WORD.fetch_update(Ordering::AcqRel, Ordering::Acquire, opened).is_ok()
}

/// Closes the window. False: it was not open.
pub fn close() -> bool {
    WORD.fetch_and(!OPEN, Ordering::AcqRel) & OPEN != 0
}

/// Has launches passed over from now on. False: a window is open, or they are already.
pub fn hush() -> bool {
    let hushed = |word: u32| (word & (OPEN | QUIET) == 0).then_some(word | QUIET);
    WORD.fetch_update(Ordering::AcqRel, Ordering::Acquire, hushed).is_ok()
}

/// Has launches told to whoever probes us from outside, from now on.
pub fn mark() {
    WORD.fetch_or(MARKED, Ordering::AcqRel);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since the word is the process's.
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

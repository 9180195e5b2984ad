//! Tracks whether a window is open, in one word that each launch reads once. (A window is a time range in which
//! launches are recorded.)

use std::sync::atomic::{AtomicU32, Ordering};

/// Bit 0 (`OPEN`): a window is open. Bit 1 (`MUTED`): no window is open, and launches are not even counted. Bit 2
/// (`HAS_LAUNCH_MARKER`): each launch calls a marker function for an external probe. The other bits contain the number
/// of windows that have been opened.
static WORD: AtomicU32 = AtomicU32::new(0);
const OPEN: u32 = 1;
const MUTED: u32 = 2;
const HAS_LAUNCH_MARKER: u32 = 4;
const ONE_OPENING: u32 = 8;

/// State of the window at the time when the state word was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowState(u32);

impl WindowState {
    /// State of the window before the first window opens.
    pub const NONE: Self = Self(0);

    /// Returns the state as an integer.
    #[inline]
    pub fn word(self) -> u32 {
        self.0
    }

    /// Converts an integer from [`WindowState::word`] back to the state.
    pub fn from_word(word: u32) -> Self {
        Self(word)
    }

    /// Whether a window is open. While a window is open, launches are recorded. While no window is open, launches are
    /// either counted as launches outside windows, or ignored. Launches are ignored if [`WindowState::is_muted`] is
    /// true.
    #[inline]
    pub fn is_open(self) -> bool {
        self.0 & OPEN != 0
    }

    /// Whether launches are ignored until the next window opens.
    #[inline]
    pub fn is_muted(self) -> bool {
        self.0 & MUTED != 0
    }

    /// Whether each launch calls the marker function for an external probe.
    #[inline]
    pub fn has_launch_marker(self) -> bool {
        self.0 & HAS_LAUNCH_MARKER != 0
    }

    /// Whether launches are ignored, or call the marker function for an external probe. A launch tests for both of
    /// these rare cases with one check, which saves time.
    #[inline]
    pub fn is_special(self) -> bool {
        self.0 & (MUTED | HAS_LAUNCH_MARKER) != 0
    }

    /// Number of windows that have been opened. If two launches outside windows see the same number, no window was open
    /// between them.
    pub fn openings(self) -> u32 {
        self.0 / ONE_OPENING
    }
}

/// Returns the current state of the window.
#[inline]
pub fn state() -> WindowState {
    WindowState(WORD.load(Ordering::Acquire))
}

/// Opens the window. Returns false if the window was open before this call.
pub fn open() -> bool {
    let opened = |word: u32| (word & OPEN == 0).then(|| (word & !MUTED).wrapping_add(ONE_OPENING) | OPEN);
    WORD.fetch_update(Ordering::AcqRel, Ordering::Acquire, opened).is_ok()
}

/// Closes the window. Returns false if the window was already closed.
pub fn close() -> bool {
    WORD.fetch_and(!OPEN, Ordering::AcqRel) & OPEN != 0
}

/// Mutes launches, which means that they are ignored until the next window opens. Returns false if a window is open, or
/// if launches are already ignored.
pub fn mute() -> bool {
    let muted = |word: u32| (word & (OPEN | MUTED) == 0).then_some(word | MUTED);
    WORD.fetch_update(Ordering::AcqRel, Ordering::Acquire, muted).is_ok()
}

/// Makes each later launch call the marker function for an external probe.
pub fn enable_launch_marker() {
    WORD.fetch_or(HAS_LAUNCH_MARKER, Ordering::AcqRel);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This module has only one test, because all tests in a process share the state word.
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
        assert!(mute() && !mute());
        assert!(state().is_muted() && !state().is_open());
        assert_eq!(state().openings(), 1);
        assert!(open());
        assert_eq!((state().openings(), state().is_muted()), (2, false));
        assert!(!mute(), "a window is open");
        assert!(close());
        assert!(!state().is_special());
        enable_launch_marker();
        assert!(
            state().is_special() && state().has_launch_marker() && !state().is_open() && !state().is_muted()
        );
        assert!(open() && close() && mute());
        assert_eq!((state().openings(), state().has_launch_marker(), state().is_muted()), (3, true, true));
    }
}

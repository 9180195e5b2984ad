//! A window and a range as values: open while they live, closed when they go, also by a panic.

use std::marker::PhantomData;

use crate::capture::{self, RangeDomain, RangeName, forks};
use crate::error::Result;

/// A window that is open while this lives: see [`window`].
#[derive(Debug)]
#[must_use = "the window closes when this is dropped, which is at once if nobody holds it"]
pub struct Window(());

/// Opens a window, as [`start`](super::start) does, and closes it when what it returns is dropped.
///
/// Windows do not nest: of two that are open at once, on any threads, the first to go closes both.
///
/// # Errors
/// As [`start`](super::start).
pub fn window() -> Result<Window> {
    super::start().map(|()| Window(()))
}

impl Drop for Window {
    fn drop(&mut self) {
        // Where there is nothing to close any more, nothing has to be.
        let _ = super::stop();
    }
}

/// A range that is open while this lives: see [`range`].
#[derive(Debug)]
#[must_use = "the range closes when this is dropped, which is at once if nobody holds it"]
pub struct Range {
    is_open: bool,
    /// Ranges are their thread's: this is not to be sent to another.
    own_thread: PhantomData<*const ()>,
}

/// Opens a range on this thread: until what it returns is dropped, `name` is a frame `[range]NAME` of all that the
/// thread launches, between the CPU stack and the kernel.
///
/// Ranges nest, up to 128 deep. It works whether a window is open or not, and takes some 50 ns. A few thousand
/// different names are fine; one for each step of a long run is not. What cannot be kept is counted, as
/// [`Loss::RangesDropped`](crate::ledger::Loss::RangesDropped).
pub fn range(name: &str) -> Range {
    let is_open = !forks::is_over();
    if is_open {
        forks::watch();
        // What cannot be kept is counted, and closed like the others.
        let _ = capture::push_range(RangeDomain::USER, RangeName::Text(name.as_bytes()));
    }
    Range { is_open, own_thread: PhantomData }
}

impl Drop for Range {
    fn drop(&mut self) {
        if self.is_open {
            let _ = capture::pop_range(RangeDomain::USER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_open() -> bool {
        matches!(capture::pop_range(RangeDomain::USER), capture::Popped::Closed(_))
    }

    #[test]
    fn ranges_nest_and_close_when_they_are_dropped_also_by_a_panic() {
        let outer = range("outer");
        let panicked = std::panic::catch_unwind(|| {
            let _inner = range("inner");
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        drop(range("another"));
        drop(outer);
        assert!(!is_open(), "all that were opened are closed");
        let _held = range("held");
        assert!(is_open());
    }
}

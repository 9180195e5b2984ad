//! Ranges that the program opens and closes, or NVTX for it.

use std::ffi::CStr;
use std::marker::PhantomData;

use crate::capture::{self, NvtxTable, Popped, RangeDomain, RangeName, forks};
use crate::control::life;
use crate::error::{Error, ErrorKind, Result};
use crate::settings::Nvtx;

use super::environment;

/// Opens a range on this thread: a frame of whatever it launches until [`range_pop`].
pub fn range_push(name: &CStr) -> Result<()> {
    if forks::is_over() {
        return Err(life::over());
    }
    forks::watch();
    // What cannot be kept is counted.
    let _ = capture::push_range(RangeDomain::USER, RangeName::Text(name.to_bytes()));
    Ok(())
}

/// Closes the range that [`range_push`] opened last on this thread.
pub fn range_pop() -> Result<()> {
    if forks::is_over() {
        return Err(life::over());
    }
    match capture::pop_range(RangeDomain::USER) {
        Popped::Closed(_) | Popped::InHandler => Ok(()),
        Popped::NoneOpen => {
            Err(Error::new(ErrorKind::State, "no range is open on this thread; push one first"))
        }
    }
}

/// What NVTX's injection does: has its ranges told to us, unless the settings say otherwise. It may come before
/// all CUDA calls, or where there are none, and sets up no session.
pub fn inject_nvtx(table: NvtxTable) {
    if forks::is_over() || environment::keeps_us_out() {
        return;
    }
    forks::watch();
    let Nvtx::Without(ignored) = environment::settings().0.nvtx else { return };
    capture::ignore_domains(&ignored);
    table.attach();
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
        matches!(capture::pop_range(RangeDomain::USER), Popped::Closed(_))
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

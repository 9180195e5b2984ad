//! Entry points for named ranges, which are parts of the program's execution. The program opens and closes these ranges
//! directly or through NVTX.

use std::ffi::CStr;
use std::marker::PhantomData;

use crate::capture::forked_child;
use crate::capture::{self, NvtxTable, PopResult, RangeDomain, RangeName};
use crate::control::lifecycle;
use gpuflame_config::settings::Nvtx;
use gpuflame_model::error::{Error, ErrorKind, Result};

use crate::session::process::environment;

/// Opens a range on this thread. Until [`range_pop`] closes this range, it is a frame in the stack of every launch on
/// this thread.
pub fn range_push(name: &CStr) -> Result<()> {
    if forked_child::is_over() {
        return Err(lifecycle::over_error());
    }
    forked_child::install_handler();
    // A range for which there is no room is counted as a dropped range.
    let _ = capture::push_range(RangeDomain::USER, RangeName::Text(name.to_bytes()));
    Ok(())
}

/// Closes the range that [`range_push`] opened last on this thread.
pub fn range_pop() -> Result<()> {
    if forked_child::is_over() {
        return Err(lifecycle::over_error());
    }
    match capture::pop_range(RangeDomain::USER) {
        PopResult::Closed(_) | PopResult::InHandler => Ok(()),
        PopResult::NoneOpen => Err(Error::new(
            ErrorKind::State,
            "no range is open on this thread; call gpuflame_range_push() first",
        )),
    }
}

/// Attaches gpuflame to NVTX, unless the settings forbid it. NVTX calls this function when it injects gpuflame. At this
/// time, the program may not have made any CUDA call yet, and may never make one. Therefore this function does not set
/// up a session.
pub fn inject_nvtx(table: NvtxTable) {
    if forked_child::is_over() || environment::forbids_recording() {
        return;
    }
    forked_child::install_handler();
    let Nvtx::Without(ignored) = environment::settings().0.nvtx else { return };
    capture::ignore_domains(&ignored);
    table.attach();
}

/// Guard that represents an open range. When the guard is dropped, the range closes (see [`range`]).
#[derive(Debug)]
#[must_use = "the range closes when this guard is dropped, which is at once unless a variable holds it"]
pub struct Range {
    is_open: bool,
    /// This field makes the guard `!Send`, because a range belongs to the thread that opened it.
    own_thread: PhantomData<*const ()>,
}

/// Opens a range on this thread. Until the returned guard is dropped, the stack of every launch on this thread contains
/// a frame `[range]NAME`, between the CPU frames and the kernel. In this frame, NAME stands for the text in `name`.
///
/// Ranges can be nested up to 128 deep. Each range costs about 50 ns, whether a window is open or not. A program can
/// use a few thousand distinct names, but do not use a new name for each step of a long run. Ranges for which there is
/// no room are counted as [`Loss::RangesDropped`](gpuflame_model::record::Loss::RangesDropped).
pub fn range(name: &str) -> Range {
    let is_open = !forked_child::is_over();
    if is_open {
        forked_child::install_handler();
        // A range for which there is no room is counted as a dropped range. The guard handles the end of a dropped
        // range in the same way as the end of any other range.
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
        matches!(capture::pop_range(RangeDomain::USER), PopResult::Closed(_))
    }

    #[test]
    fn ranges_nest_and_close_on_drop_even_during_a_panic() {
        let outer = range("outer");
        let panicked = std::panic::catch_unwind(|| {
            let _inner = range("inner");
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        drop(range("another"));
        drop(outer);
        assert!(!is_open(), "every opened range is closed");
        let _held = range("held");
        assert!(is_open());
    }
}

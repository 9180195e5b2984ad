//! Tracks whether gpuflame may run in this process. gpuflame may run until the process ends, or until a bug makes
//! gpuflame panic. After a panic, gpuflame is off until the process ends. The state is stored in one word, which every
//! entry point of gpuflame reads.
//!
//! In a forked child, gpuflame is off until one of the child's threads sets it up again. The state word is on a page of
//! its own, which the kernel can fill with zeroes in forked children ([`page`]). Because of this page, gpuflame can
//! distinguish a child from its parent, whatever method of forking was used, at no cost per launch.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use gpuflame_model::error::{Error, ErrorKind};

/// Possible values of the state word. The value 0 means that no thread of this process has written the state word.
const ALIVE: u32 = 1;
const OVER: u32 = 2;
/// A thread is setting up gpuflame in this forked child. gpuflame is off for all other threads.
const SETTING_UP: u32 = 3;

/// A page of memory that is aligned to the largest page size that Linux supports on the architecture.
#[cfg_attr(target_arch = "x86_64", repr(C, align(4096)))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C, align(65536)))]
struct Page {
    word: AtomicU32,
}

/// Page that contains the state word. The static is initially zero and fills whole pages. Because the static is zero,
/// the linker places it in memory that is not backed by a file.
static PAGE: Page = Page { word: AtomicU32::new(0) };
/// Whether the kernel fills `PAGE` with zeroes in forked children. This flag is not on `PAGE`, so a child inherits the
/// flag's value.
static IS_PAGE_ZEROED_IN_CHILDREN: AtomicBool = AtomicBool::new(false);

/// Whether gpuflame must no longer run.
#[inline]
pub fn is_over() -> bool {
    PAGE.word.load(Ordering::Acquire) != ALIVE && is_over_or_inherited()
}

#[cold]
fn is_over_or_inherited() -> bool {
    PAGE.word.load(Ordering::Acquire) != 0 || IS_PAGE_ZEROED_IN_CHILDREN.load(Ordering::Acquire)
}

/// Switches gpuflame off permanently.
pub fn end() {
    PAGE.word.store(OVER, Ordering::Release);
}

/// Returns the error for calls that are made after gpuflame was switched off.
pub fn over_error() -> Error {
    Error::new(ErrorKind::State, "the process is ending or is a forked child, and nothing more is recorded")
}

fn transition(from: u32, to: u32) -> bool {
    PAGE.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Returns the address range of the page that contains the state word.
pub fn page() -> Range<usize> {
    let start = std::ptr::from_ref(&PAGE).addr();
    start..start + size_of::<Page>()
}

/// Notes that the kernel will fill [`page`] with zeroes in children that are forked after this call.
pub fn note_children_find_zeroes() {
    transition(0, ALIVE);
    IS_PAGE_ZEROED_IN_CHILDREN.store(true, Ordering::Release);
}

/// Claims the task of setting up gpuflame in this forked child. Returns true on only one thread, which must then call
/// [`set_alive`] or [`end`]. Returns false if this process is not a forked child, or if another thread has already
/// claimed the task.
pub fn claim_inherited() -> bool {
    IS_PAGE_ZEROED_IN_CHILDREN.load(Ordering::Acquire) && transition(0, SETTING_UP)
}

/// Switches gpuflame on in this forked child, as in a new process.
pub fn set_alive() {
    PAGE.word.store(ALIVE, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This module has only one test, because all tests in a process share the state word. At its end, the test leaves
    /// gpuflame switched on.
    #[test]
    fn a_forked_child_is_over_until_one_thread_renews_it() {
        assert!(!is_over() && !claim_inherited());
        note_children_find_zeroes();
        assert!(!is_over() && !claim_inherited());
        // Sets the state word to zero, as the kernel does in a forked child.
        PAGE.word.store(0, Ordering::Release);
        assert!(is_over());
        assert!(claim_inherited() && !claim_inherited());
        assert!(is_over(), "gpuflame is off for all other threads");
        set_alive();
        assert!(!is_over());
    }

    #[test]
    fn the_state_word_has_its_own_pages() {
        assert!(page().start.is_multiple_of(4096) && page().len().is_multiple_of(4096));
        assert!(page().contains(&std::ptr::from_ref(&PAGE.word).addr()));
    }
}

//! Tracks whether gpuflame may run in this process. It may until the process ends or until gpuflame meets a
//! bug of its own; after that it is off permanently. The state is one word, read at every entry point.
//!
//! A forked child starts switched off, until one of its threads sets it up. The word is on a page of its own,
//! which the kernel can hand to children as zeroes ([`page`]). A child is thereby distinguished from its
//! parent however it was forked, at no cost per launch.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::error::{Error, ErrorKind};

/// Values of the word. 0: never written, or written in the process from which this one was forked.
const LIVES: u32 = 1;
const OVER: u32 = 2;
/// A forked child is becoming a process of its own: off for all threads except the one that sets it up.
const RENEWED: u32 = 3;

/// Aligned to the largest page size that Linux has on the architecture.
#[cfg_attr(target_arch = "x86_64", repr(C, align(4096)))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C, align(65536)))]
struct Page {
    word: AtomicU32,
}

/// All zeroes, and whole pages: the linker therefore puts it into memory that is not backed by a file.
static PAGE: Page = Page { word: AtomicU32::new(0) };
/// Whether children find zeroes on that page. Stored elsewhere, so that children inherit its value.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Whether gpuflame must not run any more.
#[inline]
pub fn is_over() -> bool {
    PAGE.word.load(Ordering::Acquire) != LIVES && is_not_alive()
}

#[cold]
fn is_not_alive() -> bool {
    PAGE.word.load(Ordering::Acquire) != 0 || IS_WATCHED.load(Ordering::Acquire)
}

/// Switches gpuflame off permanently.
pub fn end() {
    PAGE.word.store(OVER, Ordering::Release);
}

/// Error for calls after the end.
pub fn over() -> Error {
    Error::new(ErrorKind::State, "the process is ending or is a forked child, and nothing more is recorded")
}

fn turn(from: u32, to: u32) -> bool {
    PAGE.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Memory of the page that holds the word.
pub fn page() -> Range<usize> {
    let start = std::ptr::from_ref(&PAGE).addr();
    start..start + size_of::<Page>()
}

/// Notes that forked children find zeroes on [`page`] from now on.
pub fn children_find_zeroes() {
    turn(0, LIVES);
    IS_WATCHED.store(true, Ordering::Release);
}

/// Claims the task of setting up this forked child. True for one thread, which must then call [`renew`] or
/// [`end`]. False if the process is not a forked child, or another thread has claimed the task.
pub fn claim_inherited() -> bool {
    IS_WATCHED.load(Ordering::Acquire) && turn(0, RENEWED)
}

/// Starts the child as a process in which nothing has happened yet.
pub fn renew() {
    PAGE.word.store(LIVES, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A single test, because the state belongs to the process. It is left switched on.
    #[test]
    fn a_forked_child_is_over_until_one_thread_renews_it() {
        assert!(!is_over() && !claim_inherited());
        children_find_zeroes();
        assert!(!is_over() && !claim_inherited());
        // Simulates the kernel, which does this in a child.
        PAGE.word.store(0, Ordering::Release);
        assert!(is_over());
        assert!(claim_inherited() && !claim_inherited());
        assert!(is_over(), "for all other threads");
        renew();
        assert!(!is_over());
    }

    #[test]
    fn the_state_word_has_its_own_pages() {
        assert!(page().start.is_multiple_of(4096) && page().len().is_multiple_of(4096));
        assert!(page().contains(&std::ptr::from_ref(&PAGE.word).addr()));
    }
}

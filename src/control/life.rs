//! Whether anything of ours may still run in this process. It may until the process ends, or meets a bug of ours; then
//! nothing does, for good. One word, read at every way in.
//!
//! Nor may it in a forked child, until somebody has looked after that. The word lies on a page of its own, which the
//! kernel can be asked to hand to children as zeroes ([`page`]): so a child is told from its parent however it was
//! forked, and no launch pays for the question.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::error::{Error, ErrorKind};

/// What the word says. 0: nothing was ever written, or it was written in the process that this one was forked from.
const LIVES: u32 = 1;
const OVER: u32 = 2;
/// A forked child is about to become a process of its own: over for all but the thread that sees to it.
const RENEWED: u32 = 3;

/// As large as the largest pages that Linux has on the architecture.
#[cfg_attr(target_arch = "x86_64", repr(C, align(4096)))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C, align(65536)))]
struct Page {
    word: AtomicU32,
}

/// All zero, and of whole pages: so it lies in memory that no file is behind.
static PAGE: Page = Page { word: AtomicU32::new(0) };
/// Whether children find zeroes there. Not on that page: they see what it was.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Whether nothing of ours may run any more.
#[inline]
pub fn is_over() -> bool {
    PAGE.word.load(Ordering::Acquire) != LIVES && is_not_alive()
}

#[cold]
fn is_not_alive() -> bool {
    PAGE.word.load(Ordering::Acquire) != 0 || IS_WATCHED.load(Ordering::Acquire)
}

/// Switches everything of ours off, for good.
pub fn end() {
    PAGE.word.store(OVER, Ordering::Release);
}

/// What somebody is told who asks for more all the same.
pub fn over() -> Error {
    Error::new(ErrorKind::State, "the process is ending or is a forked child, and nothing more is recorded")
}

fn turn(from: u32, to: u32) -> bool {
    PAGE.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// The memory that the word has for itself.
pub fn page() -> Range<usize> {
    let start = std::ptr::from_ref(&PAGE).addr();
    start..start + size_of::<Page>()
}

/// Notes that forked children find zeroes on [`page`] from now on.
pub fn children_find_zeroes() {
    turn(0, LIVES);
    IS_WATCHED.store(true, Ordering::Release);
}

/// Takes it upon the caller to make a process of its own of this forked child: true for one thread, which then either
/// calls [`renew`] or [`end`]. False where it is no child, or where it was looked after.
pub fn claim_inherited() -> bool {
    IS_WATCHED.load(Ordering::Acquire) && turn(0, RENEWED)
}

/// The child begins like a process in which nothing happened yet.
pub fn renew() {
    PAGE.word.store(LIVES, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since the state is the process's. It is left alive.
    #[test]
    fn a_child_is_over_until_one_thread_has_renewed_it() {
        assert!(!is_over() && !claim_inherited());
        children_find_zeroes();
        assert!(!is_over() && !claim_inherited());
        // As the kernel does it in a child.
        PAGE.word.store(0, Ordering::Release);
        assert!(is_over());
        assert!(claim_inherited() && !claim_inherited());
        assert!(is_over(), "for all other threads");
        renew();
        assert!(!is_over());
    }

    #[test]
    fn the_word_has_whole_pages_for_itself() {
        assert!(page().start.is_multiple_of(4096) && page().len().is_multiple_of(4096));
        assert!(page().contains(&std::ptr::from_ref(&PAGE.word).addr()));
    }
}

//! Forked children, into which neither the driver's state nor our collector follows.

use std::ops::Range;

/// Has `action` called in each child that the C library's `fork` makes, on its only thread. It may do nothing but what
/// is allowed there: no lock, no allocation.
pub fn in_each_child(action: extern "C" fn()) {
    // SAFETY: `action` is a function for ever (see `loaded::stay`), and its caller keeps it to what a child may do.
    unsafe { libc::pthread_atfork(None, None, Some(action)) };
}

/// Has children find zeroes in `pages`, however they are forked. False: the kernel cannot (before 4.14).
///
/// # Safety
/// Whole pages of the caller's, which no file is behind and whose content may be zero.
pub unsafe fn leave_zeroes(pages: Range<usize>) -> bool {
    // SAFETY: the caller says so; nothing changes in this process.
    unsafe { libc::madvise(pages.start as *mut _, pages.len(), libc::MADV_WIPEONFORK) == 0 }
}

//! Functions with which gpuflame handles forked children. A forked child can use neither the parent's CUDA driver state
//! nor gpuflame's collector thread.

use std::ops::Range;

/// Registers `action`, which the C library's `fork` will call in each child, on the child's only thread. `action` must
/// take no lock and allocate nothing, because neither is permitted in a forked child.
pub fn on_fork_in_child(action: extern "C" fn()) {
    // SAFETY: `action` is never unloaded (see `pinning::pin_library`), and the caller guarantees that `action` does
    // nothing that is forbidden in a forked child.
    unsafe { libc::pthread_atfork(None, None, Some(action)) };
}

/// Makes the kernel fill `pages` with zeros in every forked child, even if the child is created without the C library's
/// `fork`. Returns false if the kernel is too old (before 4.14).
///
/// # Safety
/// `pages` must be whole pages that belong to the caller, are not mapped from a file, and may contain zeros in a child.
pub unsafe fn wipe_on_fork(pages: Range<usize>) -> bool {
    // SAFETY: the caller fulfils this function's contract, and the call changes nothing in this process.
    unsafe { libc::madvise(pages.start as *mut _, pages.len(), libc::MADV_WIPEONFORK) == 0 }
}

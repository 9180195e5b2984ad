//! Memory of our own, straight from the kernel.
//!
//! The callback runs inside other people's allocators as often as not (a malloc that launches a
//! kernel is a real thing), so nothing on its path may enter `malloc`. Every byte is counted, and the
//! ledger prints the sum.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

static HELD: AtomicUsize = AtomicUsize::new(0);

/// Bytes mapped now.
pub fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// Maps `bytes` zeroed bytes, page-aligned; `None` when the kernel refuses.
pub(super) fn map(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory in use.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return None;
    }
    HELD.fetch_add(bytes, Ordering::Relaxed);
    NonNull::new(at.cast())
}

/// Gives back what [`map`] gave.
///
/// # Safety
/// `at` came from `map(bytes)` and nobody uses the memory any more.
pub(super) unsafe fn unmap(at: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller says that this whole mapping is ours and unused.
    unsafe { libc::munmap(at.as_ptr().cast(), bytes) };
    HELD.fetch_sub(bytes, Ordering::Relaxed);
}

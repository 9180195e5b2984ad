//! Pages as the kernel gives them and takes them back.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) const PAGE: usize = 4096;

/// Rounded up to whole pages. No layout is so large that this overflows.
pub(super) fn in_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

/// Whether pages are asked for all at once, and not one by one as they are touched, which takes three times as long.
static IS_IN_HASTE: AtomicBool = AtomicBool::new(false);

/// From now on time counts for more than memory that may not be needed. May be called in a signal handler.
pub fn make_haste() {
    IS_IN_HASTE.store(true, Ordering::Relaxed);
}

pub(super) fn is_in_haste() -> bool {
    IS_IN_HASTE.load(Ordering::Relaxed)
}

/// New pages, which are zero. In haste they are there before they are touched.
pub(super) fn map(bytes: usize) -> Option<NonNull<u8>> {
    map_as(in_pages(bytes), if is_in_haste() { libc::MAP_POPULATE } else { 0 })
}

fn map_as(bytes: usize, how: i32) -> Option<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | how;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, wherever there is room.
    let at = unsafe { libc::mmap(null_mut(), bytes, rights, flags, -1, 0) };
    mapped(at)
}

fn mapped(at: *mut libc::c_void) -> Option<NonNull<u8>> {
    (at != libc::MAP_FAILED).then(|| NonNull::new(at.cast::<u8>())).flatten().inspect(|at| {
        at.as_ptr().expose_provenance();
    })
}

/// The same at a multiple of `align`. The kernel knows no such wish: what is too much before and behind it is given back.
pub(super) fn map_aligned(bytes: usize, align: usize) -> Option<NonNull<u8>> {
    let around = map_as(bytes + align - PAGE, 0)?;
    let before = around.addr().get().wrapping_neg() % align;
    // SAFETY: all of it lies in the mapping, or at its end.
    let (start, end) = unsafe { (around.add(before), around.add(before + bytes)) };
    for (at, bytes) in [(around, before), (end, align - PAGE - before)] {
        if bytes > 0 {
            // SAFETY: nobody knows of these pages.
            unsafe { unmap(at.as_ptr(), bytes) };
        }
    }
    Some(start)
}

/// Gives pages back for good.
///
/// # Safety
/// They are the caller's, who has no more use for them.
pub(super) unsafe fn unmap(block: *mut u8, bytes: usize) {
    // SAFETY: the caller says so.
    unsafe { libc::munmap(block.cast(), in_pages(bytes)) };
}

/// The same pages with more behind them, or fewer, perhaps elsewhere: nothing is copied.
///
/// # Safety
/// `block` is the start of a mapping of `from` bytes, which nobody uses but the caller.
pub(super) unsafe fn remap(block: *mut u8, from: usize, to: usize) -> Option<NonNull<u8>> {
    // SAFETY: the caller says so.
    mapped(unsafe { libc::mremap(block.cast(), in_pages(from), in_pages(to), libc::MREMAP_MAYMOVE) })
}

/// Says something of pages that are mapped. What the kernel does not know of, or not of these, it refuses, and nothing
/// depends on it.
///
/// # Safety
/// They are the caller's, who needs nothing of what is in them if the advice is to forget it.
pub(super) unsafe fn advise(at: NonNull<u8>, bytes: usize, advice: i32) {
    // SAFETY: the caller says so.
    unsafe { libc::madvise(at.as_ptr().cast(), bytes, advice) };
}

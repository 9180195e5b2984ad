//! Maps and unmaps memory pages for the heap.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) const PAGE_BYTES: usize = 4096;

/// Rounds a size up to whole pages. Rounding up does not overflow, because a layout's size is at most half of the
/// address space.
pub(super) fn round_up_to_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}

/// Whether pages are populated (get physical memory) as soon as they are mapped. Populating each page separately, when
/// it is first touched, takes three times as long.
static POPULATES_AT_ONCE: AtomicBool = AtomicBool::new(false);

/// Makes the heap populate new pages as soon as they are mapped. Populating pages when they are mapped is faster, but
/// also takes memory for pages that may never be used. This function may be called in a signal handler.
pub fn populate_pages_at_once() {
    POPULATES_AT_ONCE.store(true, Ordering::Relaxed);
}

pub(super) fn populates_at_once() -> bool {
    POPULATES_AT_ONCE.load(Ordering::Relaxed)
}

/// Maps new pages, which contain zeros. If [`populate_pages_at_once`] was called, the pages are populated immediately.
pub(super) fn map(bytes: usize) -> Option<NonNull<u8>> {
    map_as(round_up_to_pages(bytes), if populates_at_once() { libc::MAP_POPULATE } else { 0 })
}

fn map_as(bytes: usize, how: i32) -> Option<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | how;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the call creates a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(null_mut(), bytes, rights, flags, -1, 0) };
    mapped(at)
}

fn mapped(at: *mut libc::c_void) -> Option<NonNull<u8>> {
    (at != libc::MAP_FAILED).then(|| NonNull::new(at.cast::<u8>())).flatten().inspect(|at| {
        at.as_ptr().expose_provenance();
    })
}

/// Maps new pages at an address that is a multiple of `align`. Because `mmap` takes no alignment, more pages than
/// needed are mapped, and the surplus on both sides is unmapped.
pub(super) fn map_aligned(bytes: usize, align: usize) -> Option<NonNull<u8>> {
    let around = map_as(bytes + align - PAGE_BYTES, 0)?;
    let before = around.addr().get().wrapping_neg() % align;
    // SAFETY: both pointers are inside the mapping, or at its end.
    let (start, end) = unsafe { (around.add(before), around.add(before + bytes)) };
    for (at, bytes) in [(around, before), (end, align - PAGE_BYTES - before)] {
        if bytes > 0 {
            // SAFETY: no pointer to these pages has been handed out.
            unsafe { unmap(at.as_ptr(), bytes) };
        }
    }
    Some(start)
}

/// Unmaps pages.
///
/// # Safety
/// The pages must belong to the caller, and must no longer be used.
pub(super) unsafe fn unmap(block: *mut u8, bytes: usize) {
    // SAFETY: the caller fulfils this function's contract.
    unsafe { libc::munmap(block.cast(), round_up_to_pages(bytes)) };
}

/// Grows or shrinks a mapping. The address of the mapping may change. The kernel moves the pages themselves, without
/// copying their content.
///
/// # Safety
/// `block` must be the start of a mapping of `from` bytes, which only the caller uses.
pub(super) unsafe fn remap(block: *mut u8, from: usize, to: usize) -> Option<NonNull<u8>> {
    // SAFETY: the caller fulfils this function's contract.
    mapped(unsafe {
        libc::mremap(block.cast(), round_up_to_pages(from), round_up_to_pages(to), libc::MREMAP_MAYMOVE)
    })
}

/// Calls `madvise` for mapped pages. Errors are ignored, because no code depends on the effect of the advice. An error
/// only means that the kernel does not support the advice, or cannot apply it to these pages.
///
/// # Safety
/// The pages must belong to the caller. If the advice discards the pages' content, the caller must not need this
/// content.
pub(super) unsafe fn advise(at: NonNull<u8>, bytes: usize, advice: i32) {
    // SAFETY: the caller fulfils this function's contract.
    unsafe { libc::madvise(at.as_ptr().cast(), bytes, advice) };
}

//! The library's global allocator: takes all memory from gpuflame's own heap, never from the application's allocator.
//!
//! A failed allocation aborts the process, in the standard library as in any other, and the process is the
//! application's. So no allocation fails on a thread of ours: the thread ends there permanently. Threads of the
//! application have a reserve.

use std::alloc::{GlobalAlloc, Layout};

use gpuflame::host::{heap, threads};
use gpuflame::session;

/// Global allocator that forwards every call to [`heap`].
pub(crate) struct Own;

// SAFETY: every call is passed on unchanged, to functions that keep the contract.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        or_end(heap::alloc(layout))
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        or_end(heap::alloc_zeroed(layout))
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { heap::dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps `realloc`'s contract.
        or_end(unsafe { heap::realloc(at, layout, size) })
    }
}

/// Returns the block. If it is null and this is one of our threads, ends the thread instead.
fn or_end(block: *mut u8) -> *mut u8 {
    if block.is_null() && threads::is_ours() {
        session::end_this_thread_for_want_of_memory();
    }
    block
}

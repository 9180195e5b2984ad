//! The library's global allocator. This allocator uses only gpuflame's own heap, never the application's heap.
//!
//! If an allocation failed, the standard library would abort the process, which belongs to the application. Therefore,
//! on gpuflame's own threads, a failed allocation does not return, but ends the thread. For allocations by the
//! application's threads, the heap has a reserve of memory.

use std::alloc::{GlobalAlloc, Layout};

use gpuflame_os::{heap, threads};
use gpuflame_recorder::session;

/// Global allocator that forwards every call to [`heap`].
pub(crate) struct HeapAllocator;

// SAFETY: every call is passed on unchanged to functions of `heap` that fulfil the contract of `GlobalAlloc`.
unsafe impl GlobalAlloc for HeapAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        block_or_end_thread(heap::alloc(layout))
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        block_or_end_thread(heap::alloc_zeroed(layout))
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfils the contract of `dealloc`.
        unsafe { heap::dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller fulfils the contract of `realloc`.
        block_or_end_thread(unsafe { heap::realloc(block, layout, size) })
    }
}

/// Returns `block`. If `block` is null and the caller is one of gpuflame's own threads, ends the thread instead.
fn block_or_end_thread(block: *mut u8) -> *mut u8 {
    if block.is_null() && threads::is_ours() {
        session::end_this_thread_out_of_memory();
    }
    block
}

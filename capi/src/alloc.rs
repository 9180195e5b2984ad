//! The system's allocator, counted: the ledger says how many bytes gpuflame holds.

use std::alloc::{GlobalAlloc, Layout, System};

use gpuflame::host::heap;

/// Hands everything to [`System`] and keeps the books.
pub(crate) struct Counted;

// SAFETY: every call is passed to `System` unchanged, which keeps the contract.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        heap::grew(layout.size());
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        heap::shrank(layout.size());
        // SAFETY: the caller keeps `dealloc`'s contract, and `System` allocated the block.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        heap::grew(layout.size());
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        heap::shrank(layout.size());
        heap::grew(size);
        // SAFETY: the caller keeps `realloc`'s contract, and `System` allocated the block.
        unsafe { System.realloc(at, layout, size) }
    }
}

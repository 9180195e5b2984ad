//! The system's allocator, counted: the ledger says how many bytes gpuflame holds. Another one takes its place when
//! the application's heap is not to be asked any more.

use std::alloc::{GlobalAlloc, Layout, System};

use gpuflame::host::{aside, heap};

/// Hands everything to [`System`] or [`aside`], and keeps the books.
pub(crate) struct Counted;

// SAFETY: every call is passed on unchanged, to allocators that keep the contract; `aside` knows its own blocks.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        heap::grew(layout.size());
        if aside::has_left() {
            return aside::alloc(layout);
        }
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        heap::shrank(layout.size());
        if aside::has_left() {
            // SAFETY: the caller keeps `dealloc`'s contract.
            return unsafe { aside::dealloc(at, layout) };
        }
        // SAFETY: the caller keeps `dealloc`'s contract, and `System` allocated the block.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if aside::has_left() {
            // SAFETY: the caller keeps `alloc`'s contract.
            let block = unsafe { self.alloc(layout) };
            if !block.is_null() {
                // SAFETY: it has that many bytes.
                unsafe { block.write_bytes(0, layout.size()) };
            }
            return block;
        }
        heap::grew(layout.size());
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        heap::shrank(layout.size());
        heap::grew(size);
        if aside::has_left() {
            // SAFETY: the caller keeps `realloc`'s contract.
            return unsafe { aside::realloc(at, layout, size) };
        }
        // SAFETY: the caller keeps `realloc`'s contract, and `System` allocated the block.
        unsafe { System.realloc(at, layout, size) }
    }
}

//! The system's allocator, counted: the ledger says how many bytes gpuflame holds. Another one takes its place when
//! the application's heap is not to be asked any more, or has nothing to give.
//!
//! An allocation that fails aborts the process, in the standard library as in any other, and the process is the
//! application's. So none fails on a thread of ours: it ends there for good. On an application's there is a reserve.

use std::alloc::{GlobalAlloc, Layout, System};

use gpuflame::host::{aside, heap, threads};
use gpuflame::session;

/// Hands everything to [`System`] or [`aside`], and keeps the books.
pub(crate) struct Counted;

// SAFETY: every call is passed on unchanged, to allocators that keep the contract; `aside` knows its own blocks.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        heap::grew(layout.size());
        if aside::has_left() {
            return or_end(aside::alloc(layout));
        }
        // SAFETY: the caller keeps `alloc`'s contract.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() { last(layout) } else { block }
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
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            return block;
        }
        let block = last(layout);
        if !block.is_null() {
            // SAFETY: it has that many bytes.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        heap::shrank(layout.size());
        heap::grew(size);
        if aside::has_left() {
            // SAFETY: the caller keeps `realloc`'s contract.
            return or_end(unsafe { aside::realloc(at, layout, size) });
        }
        // SAFETY: the caller keeps `realloc`'s contract, and `System` allocated the block.
        let block = unsafe { System.realloc(at, layout, size) };
        if block.is_null() {
            aside::fall_short();
            // SAFETY: the block is as it was.
            return or_end(unsafe { aside::realloc(at, layout, size) });
        }
        block
    }
}

/// Memory that the application's heap does not give.
#[cold]
fn last(layout: Layout) -> *mut u8 {
    aside::fall_short();
    or_end(aside::alloc(layout))
}

/// The block, if it is one or this is a thread of the application's.
fn or_end(block: *mut u8) -> *mut u8 {
    if block.is_null() && threads::is_ours() {
        session::end_this_thread_for_want_of_memory();
    }
    block
}

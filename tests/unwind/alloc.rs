//! Tests that a stack capture never allocates memory. Two captures must not allocate: the first, which compiles every
//! unwind rule, and the thousandth.
#![cfg(target_arch = "x86_64")]

#[path = "support/deep.rs"]
mod deep;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use deep::deep;
use gpuflame_unwind::{self as unwind, Skip, Unwinder};

thread_local! {
    /// Number of allocations that this thread has made. The count is per thread because the test harness may allocate
    /// on another thread at any time.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// An allocator that counts allocations and calls the system's allocator.
struct Counting;

// SAFETY: `Counting` passes all calls unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_stack_capture_never_allocates() {
    unwind::prepare();
    let mut unwinder = Unwinder::new().expect("memory for an unwinder");
    let (mut before, mut after, mut frames) = (0, 0, 0);
    for calls in [0, 40, 40, 7, 300, 1500, 40] {
        deep(calls, &mut || {
            before = ALLOCATIONS.get();
            frames = unwinder.capture(Skip::None).frames.len();
            after = ALLOCATIONS.get();
        });
        assert_eq!(before, after, "at a depth of {calls}");
        assert!(frames > calls.min(1000));
    }
}

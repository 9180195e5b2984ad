//! A capture allocates nothing: not the first, which compiles every rule, and not the thousandth.
#![cfg(target_arch = "x86_64")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpuflame::unwind::{self, Skip, Unwinder};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
struct Counting;

// SAFETY: all calls are handed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's duty is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's duty is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[inline(never)]
fn deep(calls: usize, at_the_end: &mut dyn FnMut()) -> usize {
    if calls == 0 {
        at_the_end();
        return 0;
    }
    black_box(deep(black_box(calls - 1), at_the_end)) + 1
}

#[test]
fn no_capture_allocates() {
    unwind::prepare();
    let mut unwinder = Unwinder::new().expect("memory for an unwinder");
    let (mut before, mut after, mut frames) = (0, 0, 0);
    for calls in [0, 40, 40, 7, 300, 1500, 40] {
        deep(calls, &mut || {
            before = ALLOCATIONS.load(Ordering::Relaxed);
            frames = unwinder.capture(Skip::None).frames.len();
            after = ALLOCATIONS.load(Ordering::Relaxed);
        });
        assert_eq!(before, after, "at a depth of {calls}");
        assert!(frames > calls.min(1000));
    }
}

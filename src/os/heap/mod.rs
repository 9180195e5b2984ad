//! The shared library's own heap. The library never allocates from the application's heap.
//!
//! The library cannot rely on the application's heap, for three reasons. First, a thread that a signal has stopped
//! forever may hold the heap's lock, so that no other thread can allocate or free memory. Second, an allocator that
//! replaces the application's heap may itself launch kernels. Third, bugs in the application may overwrite the heap's
//! data. In gpuflame's heap, no thread waits for another thread. If a thread wants to allocate a block, and its pool is
//! in use at each attempt, the thread maps memory for the block. If a thread wants to free a block whose pool is in
//! use, the thread adds the block to a list of that pool.
//!
//! ```text
//! small: pool ─┬─ class of 16 bytes:  slabs, each with its free blocks
//!              ├─ class of 32 bytes:  …
//!              ├─ class of 64 KiB:    …
//!              ├─ a few empty slabs with their pages, for any class
//!              ╰─ empty slabs whose pages were returned to the kernel
//! large: a mapping of its own
//! no more mappings: the reserve, a part of the library's own image
//! ```
//!
//! A freed block returns to the slab from which it was cut, no matter which thread frees the block. Therefore slabs
//! become empty after a burst of allocations, and their memory is returned to the kernel.
//!
//! Only the shared library uses this heap as its allocator. In other builds, for example in the `gpuflame` command,
//! nothing is allocated from this heap, and all counts stay 0.

mod class;
mod pages;
mod pool;
mod reserve;
mod slab;

use std::alloc::Layout;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use class::SizeClass;
use pages::PAGE_BYTES;
pub use pages::populate_pages_at_once;

static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Number of bytes that are currently allocated from this heap.
pub fn held_bytes() -> usize {
    HELD_BYTES.load(Ordering::Relaxed)
}

/// Maximum of [`held_bytes`] since the last call to [`take_peak_bytes`].
pub fn peak_bytes() -> usize {
    PEAK_BYTES.load(Ordering::Relaxed)
}

/// Returns [`peak_bytes`], and resets the peak to the current value of [`held_bytes`].
pub fn take_peak_bytes() -> usize {
    PEAK_BYTES.swap(held_bytes(), Ordering::Relaxed)
}

fn add_held(bytes: usize) {
    let held = HELD_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
    if held > PEAK_BYTES.load(Ordering::Relaxed) {
        PEAK_BYTES.fetch_max(held, Ordering::Relaxed);
    }
}

fn subtract_held(bytes: usize) {
    HELD_BYTES.fetch_sub(bytes, Ordering::Relaxed);
}

/// Allocates memory for `layout`. Returns null if no memory is left.
pub fn alloc(layout: Layout) -> *mut u8 {
    let block = match SizeClass::for_layout(layout) {
        Some(class) => {
            let taken = pool::current_pool().allocate(class).or_else(|| slab::map_alone(class));
            // The block has the full size of its class, because after it is freed, it may be reused for any size of the
            // class.
            taken.or_else(|| reserve::allocate(class.bytes()))
        }
        // No caller requests a larger alignment than the size of a page.
        None if layout.align() > PAGE_BYTES => None,
        None => pages::map(layout.size()).or_else(|| reserve::allocate(layout.size())),
    };
    if block.is_some() {
        add_held(layout.size());
    }
    block.map_or(null_mut(), NonNull::as_ptr)
}

/// Allocates zeroed memory for `layout`. Returns null if no memory is left.
pub fn alloc_zeroed(layout: Layout) -> *mut u8 {
    let block = alloc(layout);
    // A block without a size class already contains zeros, because it is a new mapping or a part of the reserve that
    // was never used.
    if !block.is_null() && SizeClass::for_layout(layout).is_some() {
        // SAFETY: the block is at least as long as the written range.
        unsafe { block.write_bytes(0, layout.size()) };
    }
    block
}

/// Frees a block.
///
/// # Safety
/// `block` must have been allocated from this heap with this layout, and must no longer be used.
pub unsafe fn dealloc(block: *mut u8, layout: Layout) {
    subtract_held(layout.size());
    // SAFETY: an allocated block is never null.
    let start = unsafe { NonNull::new_unchecked(block) };
    match SizeClass::for_layout(layout) {
        Some(class) if reserve::contains(block) => pool::current_pool().free_reserve_block(start, class),
        // SAFETY: the block is part of a chunk or has its own mapping, and is no longer used.
        Some(class) => match unsafe { pool::owning_pool(start) } {
            // SAFETY: the block belongs to `pool`.
            Some(pool) => unsafe { pool.free(start) },
            // SAFETY: the block has its own mapping.
            None => unsafe { slab::unmap_alone(start, class) },
        },
        None if reserve::contains(block) => {}
        // SAFETY: the block has its own mapping, of whole pages.
        None => unsafe { pages::unmap(block, layout.size()) },
    }
}

/// Changes the size of a block, which may move its content to another address. If no memory is left, returns null, and
/// the old block is unchanged.
///
/// # Safety
/// The conditions of [`dealloc`] apply, and `size` must not be 0.
pub unsafe fn realloc(block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return null_mut() };
    let resized = match (SizeClass::for_layout(layout), SizeClass::for_layout(wanted)) {
        (Some(class), Some(needed)) if class == needed => NonNull::new(block),
        // SAFETY: the block has its own mapping, of whole pages.
        (None, None) if !reserve::contains(block) => unsafe { pages::remap(block, layout.size(), size) },
        _ => None,
    };
    if let Some(block) = resized {
        subtract_held(layout.size());
        add_held(size);
        return block.as_ptr();
    }
    let new = alloc(wanted);
    if !new.is_null() {
        // SAFETY: both blocks are at least as long as the copied range, and the new block is not shared.
        unsafe { std::ptr::copy_nonoverlapping(block, new, layout.size().min(size)) };
        // SAFETY: the caller fulfils the contract of `dealloc`.
        unsafe { dealloc(block, layout) };
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocates a block and fills it with `byte`, so that the test detects overlapping blocks.
    fn fill(size: usize, align: usize, byte: u8) -> (*mut u8, Layout, u8) {
        let layout = Layout::from_size_align(size, align).unwrap();
        let block = alloc(layout);
        assert!(!block.is_null() && block.addr().is_multiple_of(align), "{layout:?} at {block:?}");
        // SAFETY: the block is at least as long as the written range.
        unsafe { block.write_bytes(byte, size) };
        (block, layout, byte)
    }

    fn assert_filled((block, layout, byte): (*mut u8, Layout, u8)) {
        // SAFETY: the block was filled with data, and is still allocated.
        let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
        assert!(bytes.iter().all(|found| *found == byte), "{layout:?}");
    }

    #[test]
    fn blocks_are_disjoint_and_aligned_and_realloc_keeps_their_content() {
        let sizes = [1, 8, 16, 17, 100, 1000, 60_000, 65_536, 65_537, 300_000];
        let all: Vec<_> =
            (0..400).map(|turn| fill(sizes[turn % sizes.len()], 1 << (turn % 13), turn as u8)).collect();
        all.iter().for_each(|block| assert_filled(*block));
        for (turn, (mut block, mut layout, byte)) in all.into_iter().enumerate() {
            for size in [2 * layout.size(), 2 * layout.size() + 1, 40 * layout.size(), layout.size() / 2 + 1]
            {
                // SAFETY: the block was allocated with `layout`.
                block = unsafe { realloc(block, layout, size) };
                let kept = layout.size().min(size);
                layout = Layout::from_size_align(size, layout.align()).unwrap();
                assert_filled((block, Layout::from_size_align(kept, 1).unwrap(), byte));
                assert!(block.addr().is_multiple_of(layout.align()), "{turn}: {layout:?}");
                // SAFETY: the block is at least as long as the written range.
                unsafe { block.write_bytes(byte, size) };
            }
            // SAFETY: the block was allocated with `layout`.
            unsafe { dealloc(block, layout) };
        }
    }

    /// Checks that oversized allocations fail and are not counted. Other tests allocate at the same time, but much less
    /// memory than these allocations request. Alignments above the page size are refused.
    #[test]
    fn a_failed_allocation_is_not_counted() {
        const HUGE: usize = 1 << 40;
        let refused = Layout::from_size_align(HUGE, 2 * PAGE_BYTES).unwrap();
        assert!(alloc(refused).is_null() && alloc_zeroed(refused).is_null());
        assert!(held_bytes() < HUGE && peak_bytes() < HUGE, "{} {}", held_bytes(), peak_bytes());
    }

    #[test]
    fn freed_blocks_are_reused_and_zeroed_on_request() {
        let layout = Layout::from_size_align(40_000, 8).unwrap();
        // Other tests use the heap at the same time, so some freed blocks may not be allocated again by this test. But
        // at least one freed block must be allocated again.
        let first: Vec<_> = (0..50).map(|_| fill(40_000, 8, 0xab).0).collect();
        // SAFETY: the blocks were allocated just now.
        first.iter().for_each(|block| unsafe { dealloc(*block, layout) });
        let again: Vec<_> = (0..50).map(|_| alloc_zeroed(layout)).collect();
        assert!(again.iter().any(|block| first.contains(block)));
        again.iter().for_each(|block| assert_filled((*block, layout, 0)));
    }
}

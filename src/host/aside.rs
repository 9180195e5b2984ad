//! A heap of our own, for when the application's cannot be trusted to answer: a thread that a signal has stopped for
//! good may hold its lock, and no other thread gets memory from it then. Or it has no more memory to give: then what little
//! we still need comes from a reserve that is part of the library's own image.
//!
//! From [`leave`] on, all memory that gpuflame asks for comes from here, and what it had before is not given back:
//! the process is about to end. Nobody waits here for anybody.
//!
//! ```text
//! [class | length, MAGIC] bytes …        a block: of 2^class bytes, or mapped for itself
//! ```

use std::alloc::Layout;
use std::cell::{Cell, UnsafeCell};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::futex::Bits;
use super::threads;

const HEAD: usize = 16;
/// Stands where the C library has the size of its block, and is none.
const MAGIC: usize = 0xf1a3_e0a5_1de0_5ea9;
/// Blocks of 32 bytes to 64 KiB, head included, are cut from larger pieces and used again; larger ones are mapped.
const CLASSES: std::ops::RangeInclusive<u32> = 5..=16;
const PIECE: usize = 1 << 20;
/// So often it is tried to get at the free blocks before one is mapped instead.
const TRIES: u32 = 1000;

/// What there is when nobody gives any memory. No page of it takes any before it is written to.
const RESERVE: usize = 6 << 20;
/// What of that is left to the application's threads: they are not to be stopped, as ours are.
const FOR_OTHERS: usize = 1 << 20;
/// What is cut from it at once, for small blocks.
const SLICE: usize = 128 << 10;

/// That memory has run out, and that one of our threads has come to its end by that.
static STATE: Bits = Bits::new();
const SHORT: u32 = 1;
const OUT: u32 = 2;

static HAS_LEFT: AtomicBool = AtomicBool::new(false);

/// Leaves the application's heap alone from now on. May be called in a signal handler.
pub fn leave() {
    HAS_LEFT.store(true, Ordering::Release);
}

/// Whether [`leave`] was called.
#[inline]
pub fn has_left() -> bool {
    HAS_LEFT.load(Ordering::Relaxed)
}

/// The same for want of memory. What was to be asked for comes from here, as far as it goes.
pub fn fall_short() {
    leave();
    STATE.set(SHORT);
}

/// Whether memory has run out.
pub fn is_short() -> bool {
    STATE.has(SHORT)
}

/// Sleeps for so long, or until memory has run out.
pub fn sleep_unless_short(pause: Duration) {
    let known = STATE.get();
    if known & SHORT == 0 {
        STATE.wait(known, Some(pause));
    }
}

/// Says that one of our threads goes no further, for want of memory, and perhaps holds a lock.
pub fn go_out() {
    STATE.set(SHORT | OUT);
}

/// Whether one of our threads goes no further.
pub fn is_out() -> bool {
    STATE.has(OUT)
}

#[repr(C, align(4096))]
struct Reserve(UnsafeCell<[u8; RESERVE]>);

// SAFETY: each part of it is given away once.
unsafe impl Sync for Reserve {}

static LAST: Reserve = Reserve(UnsafeCell::new([0; RESERVE]));
static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// So many bytes of the reserve, which are zero, at a multiple of 4096.
fn from_reserve(bytes: usize) -> Option<NonNull<u8>> {
    let most = if threads::is_ours() { RESERVE - FOR_OTHERS } else { RESERVE };
    let take =
        |given: usize| Some(given + bytes.checked_next_multiple_of(4096)?).filter(|given| *given <= most);
    let given = GIVEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
    let block = LAST.0.get().cast::<u8>();
    block.expose_provenance();
    NonNull::new(block.wrapping_add(given))
}

fn is_of_reserve(block: *mut u8) -> bool {
    let start = LAST.0.get().addr();
    (start..start + RESERVE).contains(&block.addr())
}

/// Where the next block is cut from, and blocks that were given back.
struct Blocks {
    is_taken: AtomicBool,
    next: Cell<usize>,
    end: Cell<usize>,
    free: [Cell<*mut u8>; 17],
}

// SAFETY: the cells are reached only by who has set `is_taken`, which is one thread.
unsafe impl Sync for Blocks {}

static BLOCKS: Blocks = Blocks {
    is_taken: AtomicBool::new(false),
    next: Cell::new(0),
    end: Cell::new(0),
    free: [const { Cell::new(null_mut()) }; 17],
};

impl Blocks {
    /// Runs `body` alone; `None`: another thread is there, perhaps for ever.
    fn alone<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        let take = || {
            std::hint::spin_loop();
            self.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        (0..TRIES).any(|_| take()).then(|| {
            let result = body();
            self.is_taken.store(false, Ordering::Release);
            result
        })
    }

    fn take(&self, class: u32) -> Option<NonNull<u8>> {
        let free = &self.free[class as usize];
        if let Some(block) = NonNull::new(free.get()) {
            // SAFETY: the block is free, and its first word is the next such block.
            free.set(unsafe { block.cast::<*mut u8>().read() });
            return Some(block);
        }
        if self.end.get() - self.next.get() < 1 << class {
            let (piece, bytes) =
                map(PIECE).map(|piece| (piece, PIECE)).or_else(|| Some((from_reserve(SLICE)?, SLICE)))?;
            self.next.set(piece.addr().get());
            self.end.set(piece.addr().get() + bytes);
        }
        let block = self.next.get();
        self.next.set(block + (1 << class));
        NonNull::new(std::ptr::with_exposed_provenance_mut(block))
    }

    fn put(&self, class: u32, block: NonNull<u8>) {
        let free = &self.free[class as usize];
        // SAFETY: the block is nobody's any more, and has room for a pointer.
        unsafe { block.cast::<*mut u8>().write(free.get()) };
        free.set(block.as_ptr());
    }
}

fn map(bytes: usize) -> Option<NonNull<u8>> {
    // All pages at once: most are written to, and to ask for them one by one takes three times as long.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, wherever there is room.
    let at = unsafe { libc::mmap(null_mut(), bytes, rights, flags, -1, 0) };
    (at != libc::MAP_FAILED).then(|| NonNull::new(at.cast::<u8>())).flatten().inspect(|at| {
        at.as_ptr().expose_provenance();
    })
}

/// The class of a block with room for `layout`; `None`: it is mapped for itself.
fn class_of(layout: Layout) -> Option<u32> {
    let class = (layout.size() + HEAD).next_power_of_two().trailing_zeros().max(*CLASSES.start());
    (layout.align() <= HEAD && class <= *CLASSES.end()).then_some(class)
}

/// What lies before a block that is mapped for itself: a multiple of its alignment.
fn before(layout: Layout) -> usize {
    layout.align().max(HEAD)
}

/// Memory for `layout`; null: there is none. What was never used before is zero.
pub fn alloc(layout: Layout) -> *mut u8 {
    let class = class_of(layout);
    let cut = class.and_then(|class| BLOCKS.alone(|| BLOCKS.take(class)).flatten());
    let (start, head, word) = match (cut, class) {
        (Some(block), Some(class)) => (block, HEAD, class as usize),
        // Pages are aligned to more than anybody asks for here.
        _ if layout.align() > 1 << 12 => return null_mut(),
        _ => {
            let (head, length) = (before(layout), before(layout) + layout.size());
            let Some(block) = map(length).or_else(|| from_reserve(length)) else { return null_mut() };
            (block, head, length)
        }
    };
    // SAFETY: the block has `head` bytes before what is handed out, at least two words.
    unsafe {
        let block = start.add(head);
        block.cast::<usize>().sub(2).write(word);
        block.cast::<usize>().sub(1).write(MAGIC);
        block.as_ptr()
    }
}

/// Gives a block back; one that is not from here is left alone.
///
/// # Safety
/// `block` was allocated with this layout, here or by the C library, and nobody uses it any more.
pub unsafe fn dealloc(block: *mut u8, layout: Layout) {
    // SAFETY: there is a head before each block: ours, or the C library's, whose last word is a size.
    let (word, magic) = unsafe { (block.cast::<usize>().sub(2).read(), block.cast::<usize>().sub(1).read()) };
    if magic != MAGIC {
        return;
    }
    if CLASSES.contains(&(word as u32)) && word < 64 {
        // SAFETY: its head lies in the same piece.
        let start = unsafe { NonNull::new_unchecked(block.sub(HEAD)) };
        BLOCKS.alone(|| BLOCKS.put(word as u32, start));
    } else if !is_of_reserve(block) {
        // SAFETY: `alloc` has mapped it for itself, with this much before it.
        unsafe { libc::munmap(block.sub(before(layout)).cast(), word) };
    }
}

/// The same content in a block of another size.
///
/// # Safety
/// As for [`dealloc`]; `size` is not 0.
pub unsafe fn realloc(block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    let Ok(larger) = Layout::from_size_align(size, layout.align()) else { return null_mut() };
    let new = alloc(larger);
    if !new.is_null() {
        // SAFETY: both have that many bytes, and the new one is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(block, new, layout.size().min(size)) };
        // SAFETY: the caller says so.
        unsafe { dealloc(block, layout) };
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills a block with a byte that tells it from others.
    fn fill(size: usize, align: usize, byte: u8) -> (*mut u8, Layout, u8) {
        let layout = Layout::from_size_align(size, align).unwrap();
        let block = alloc(layout);
        assert!(!block.is_null() && block.addr().is_multiple_of(align));
        // SAFETY: it has that many bytes.
        unsafe { block.write_bytes(byte, size) };
        (block, layout, byte)
    }

    fn assert_filled((block, layout, byte): (*mut u8, Layout, u8)) {
        // SAFETY: it was filled and is still ours.
        let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
        assert!(bytes.iter().all(|found| *found == byte), "{layout:?}");
    }

    #[test]
    fn blocks_of_all_sizes_and_alignments_are_apart_and_grow_with_their_content() {
        let sizes = [1, 8, 16, 17, 100, 1000, 60_000, 65_520, 65_521, 300_000];
        let all: Vec<_> =
            (0..400).map(|turn| fill(sizes[turn % sizes.len()], 1 << (turn % 9), turn as u8)).collect();
        all.iter().for_each(|block| assert_filled(*block));
        for (block, layout, byte) in all {
            // SAFETY: it was allocated above with this layout.
            let grown = unsafe { realloc(block, layout, 2 * layout.size()) };
            assert_filled((grown, layout, byte));
            let larger = Layout::from_size_align(2 * layout.size(), layout.align()).unwrap();
            // SAFETY: it was allocated just now.
            unsafe { dealloc(grown, larger) };
        }
    }

    #[test]
    fn what_was_given_back_is_used_again_and_what_is_the_c_librarys_is_left_alone() {
        let layout = Layout::from_size_align(40_000, 8).unwrap();
        // Others test here at the same time: of many that were given back some come again.
        let first: Vec<_> = (0..50).map(|_| alloc(layout)).collect();
        // SAFETY: they were allocated just now.
        first.iter().for_each(|block| unsafe { dealloc(*block, layout) });
        let again: Vec<_> = (0..50).map(|_| alloc(layout)).collect();
        assert!(again.iter().any(|block| first.contains(block)));
        // SAFETY: the C library allocated it, with that many bytes.
        let theirs = unsafe { libc::malloc(100) }.cast::<u8>();
        let small = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: it is the C library's, and stays ours to give back.
        unsafe {
            dealloc(theirs, small);
            libc::free(theirs.cast());
        }
    }
}

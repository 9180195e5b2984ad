//! The heap of the shared library: apart from the application's, which is asked for nothing.
//!
//! The application's heap cannot be trusted to answer. A thread that a signal has stopped for good may hold its lock, and
//! then no other gets memory from it or may give any back; whoever replaced it may launch kernels from it; and what lies in it
//! may be overwritten. Here nobody waits for anybody: who finds a pool taken for long maps what it needs.
//!
//! ```text
//! small: pool ─┬─ class of 16 bytes:  free blocks, and what is left of a slab
//!              ├─ class of 32 bytes:  …
//!              ├─ class of 64 KiB:    …
//!              ╰─ what is left of a piece, which slabs are cut from
//! large: mapped for itself
//! none to be mapped: the reserve, a part of the library's own image
//! ```
//!
//! Only the shared library's own allocator comes here; in other builds nothing is held, and all counts stay 0.

use std::alloc::Layout;
use std::cell::{Cell, UnsafeCell};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{leaks, shortage, threads};

const PAGE: usize = 4096;
/// What a class is cut from.
const SLAB: usize = 128 << 10;
/// What slabs are cut from: address space, for a time when no more of it is given, whose pages take nothing before they are
/// written to. The C library takes 64 MiB of it for a thread.
const PIECE: usize = 8 << 20;
/// So often it is tried to get at a pool before a block is mapped instead.
const TRIES: u32 = 1000;

/// What there is when nobody gives any memory. No page of it takes any before it is written to.
const RESERVE: usize = 6 << 20;
/// What of that is left to the application's threads: they are not to be stopped, as ours are.
const FOR_OTHERS: usize = 1 << 20;
/// What a class is cut from there.
const SLICE: usize = 16 << 10;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Bytes that were asked for and not given back.
pub fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// The most that were held at once.
pub fn most() -> usize {
    MOST.load(Ordering::Relaxed)
}

fn grew(bytes: usize) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    if held > MOST.load(Ordering::Relaxed) {
        MOST.fetch_max(held, Ordering::Relaxed);
    }
}

fn shrank(bytes: usize) {
    HELD.fetch_sub(bytes, Ordering::Relaxed);
}

/// Whether pages are asked for all at once, and not one by one as they are touched, which takes three times as long.
static IS_IN_HASTE: AtomicBool = AtomicBool::new(false);

/// From now on time counts for more than memory that may not be needed. May be called in a signal handler.
pub fn make_haste() {
    IS_IN_HASTE.store(true, Ordering::Relaxed);
}

#[repr(C, align(4096))]
struct Reserve(UnsafeCell<[u8; RESERVE]>);

// SAFETY: each part of it is given away once.
unsafe impl Sync for Reserve {}

static LAST: Reserve = Reserve(UnsafeCell::new([0; RESERVE]));
static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// So many bytes of the reserve, which are zero, from the start of a page. Whoever should know learns that it came to this.
fn from_reserve(bytes: usize) -> Option<NonNull<u8>> {
    shortage::fall_short();
    let most = if threads::is_ours() { RESERVE - FOR_OTHERS } else { RESERVE };
    let take = |given: usize| given.checked_add(in_pages(bytes)).filter(|given| *given <= most);
    let given = GIVEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
    let block = LAST.0.get().cast::<u8>();
    block.expose_provenance();
    NonNull::new(block.wrapping_add(given))
}

fn is_of_reserve(block: *mut u8) -> bool {
    let start = LAST.0.get().addr();
    (start..start + RESERVE).contains(&block.addr())
}

/// Rounded up to whole pages. No layout is so large that this overflows.
fn in_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

fn is_in_haste() -> bool {
    IS_IN_HASTE.load(Ordering::Relaxed)
}

/// A new piece. Of none is more written to than is handed out: huge pages would be.
fn map_piece() -> Option<NonNull<u8>> {
    let piece = map(PIECE, 0)?;
    // SAFETY: a whole mapping of ours. A kernel without huge pages refuses.
    unsafe { libc::madvise(piece.as_ptr().cast(), PIECE, libc::MADV_NOHUGEPAGE) };
    leaks::keeps(piece, PIECE);
    Some(piece)
}

fn map(bytes: usize, how: i32) -> Option<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | how;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, wherever there is room.
    let at = unsafe { libc::mmap(null_mut(), bytes, rights, flags, -1, 0) };
    (at != libc::MAP_FAILED).then(|| NonNull::new(at.cast::<u8>())).flatten().inspect(|at| {
        at.as_ptr().expose_provenance();
    })
}

/// Of blocks of one size: 16 to 128 bytes by 16, and four sizes from each power of two to the next, to 64 KiB.
///
/// Every such size that is at least an alignment and a multiple of it has its own class, so a block of a class is aligned
/// to whatever divides its size: slabs begin where pages do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class(usize);

impl Class {
    const COUNT: usize = 8 + 4 * 9;
    const LARGEST: usize = 64 << 10;

    /// The one with room for `layout`; `None`: it is mapped for itself.
    fn of(layout: Layout) -> Option<Self> {
        // Rust asks for nothing that is larger than half of what can be addressed, its alignment included.
        let last = layout.size().max(1).next_multiple_of(layout.align()) - 1;
        match last {
            _ if last >= Self::LARGEST || layout.align() > PAGE => None,
            0..128 => Some(Self(last / 16)),
            _ => {
                let power = last.ilog2() as usize;
                Some(Self(8 + 4 * (power - 7) + (last >> (power - 2) & 3)))
            }
        }
    }

    fn bytes(self) -> usize {
        match self.0.checked_sub(8) {
            None => 16 * (self.0 + 1),
            Some(above) => (5 + above % 4) << (5 + above / 4),
        }
    }
}

/// Memory that is cut from one end to the other.
struct Rest {
    next: Cell<usize>,
    end: Cell<usize>,
}

impl Rest {
    const fn new() -> Self {
        Self { next: Cell::new(0), end: Cell::new(0) }
    }

    fn set(&self, start: NonNull<u8>, bytes: usize) {
        self.next.set(start.addr().get());
        self.end.set(start.addr().get() + bytes);
    }

    fn cut(&self, bytes: usize) -> Option<NonNull<u8>> {
        let at = self.next.get();
        if self.end.get() - at < bytes {
            return None;
        }
        self.next.set(at + bytes);
        NonNull::new(std::ptr::with_exposed_provenance_mut(at))
    }

    /// A new slab, from what is left of a piece or a new one.
    fn cut_slab(&self) -> Option<NonNull<u8>> {
        let slab = self.cut(SLAB).or_else(|| {
            self.set(map_piece()?, PIECE);
            self.cut(SLAB)
        })?;
        if is_in_haste() {
            // SAFETY: whole pages of ours. A kernel before 5.14 refuses.
            unsafe { libc::madvise(slab.as_ptr().cast(), SLAB, libc::MADV_POPULATE_WRITE) };
        }
        Some(slab)
    }
}

/// Blocks of one class: those that were given back, and what is not yet cut.
struct Blocks {
    free: Cell<*mut u8>,
    slab: Rest,
}

impl Blocks {
    const fn new() -> Self {
        Self { free: Cell::new(null_mut()), slab: Rest::new() }
    }

    fn put(&self, block: NonNull<u8>) {
        // SAFETY: the block is nobody's any more, and has room for a pointer.
        unsafe { block.cast::<*mut u8>().write(self.free.get()) };
        self.free.set(block.as_ptr());
    }

    fn take(&self) -> Option<NonNull<u8>> {
        let block = NonNull::new(self.free.get())?;
        // SAFETY: the block is free, and its first word is the next such block.
        self.free.set(unsafe { block.cast::<*mut u8>().read() });
        Some(block)
    }

    /// A block from a new slab, which the next are cut from as well.
    fn extend(&self, piece: &Rest, bytes: usize) -> Option<NonNull<u8>> {
        let from_reserve = || {
            let slice = in_pages(bytes.max(SLICE));
            Some((from_reserve(slice)?, slice))
        };
        let (slab, size) = piece.cut_slab().map(|slab| (slab, SLAB)).or_else(from_reserve)?;
        self.slab.set(slab, size);
        self.slab.cut(bytes)
    }
}

/// Blocks of all classes, for one thread at a time.
struct Pool {
    is_taken: AtomicBool,
    classes: [Blocks; Class::COUNT],
    piece: Rest,
}

// SAFETY: the cells are reached only by who has set `is_taken`, which is one thread.
unsafe impl Sync for Pool {}

/// That of our threads, and that of the application's, which a signal may stop anywhere.
static POOLS: [Pool; 2] = [const { Pool::new() }; 2];

impl Pool {
    const fn new() -> Self {
        let classes = [const { Blocks::new() }; Class::COUNT];
        Self { is_taken: AtomicBool::new(false), classes, piece: Rest::new() }
    }

    /// The calling thread's, and the other.
    fn both() -> (&'static Self, &'static Self) {
        let [ours, theirs] = &POOLS;
        if threads::is_ours() { (ours, theirs) } else { (theirs, ours) }
    }

    /// Runs `body` alone; `None`: another thread is there, perhaps for ever.
    fn alone<T>(&self, tries: u32, body: impl FnOnce() -> T) -> Option<T> {
        let take = |_| {
            let taken =
                self.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if !taken {
                std::hint::spin_loop();
            }
            taken
        };
        (0..tries).any(take).then(|| {
            let result = body();
            self.is_taken.store(false, Ordering::Release);
            result
        })
    }

    /// A block: one that was given back here or, before a new slab is begun, there; else a new one.
    fn take(&self, class: Class, other: &Self) -> Option<NonNull<u8>> {
        let (blocks, bytes) = (&self.classes[class.0], class.bytes());
        let from_other = || other.alone(1, || other.classes[class.0].take()).flatten();
        let from_new_slab = || blocks.extend(&self.piece, bytes);
        blocks.take().or_else(|| blocks.slab.cut(bytes)).or_else(from_other).or_else(from_new_slab)
    }
}

/// Memory for `layout`; null: there is none.
pub fn alloc(layout: Layout) -> *mut u8 {
    grew(layout.size());
    let cut = Class::of(layout).and_then(|class| {
        let (own, other) = Pool::both();
        own.alone(TRIES, || own.take(class, other)).flatten()
    });
    cut.or_else(|| alone(layout)).map_or(null_mut(), NonNull::as_ptr)
}

/// The same, zeroed.
pub fn alloc_zeroed(layout: Layout) -> *mut u8 {
    let block = alloc(layout);
    // What is mapped for itself is zero.
    if !block.is_null() && Class::of(layout).is_some() {
        // SAFETY: it has that many bytes.
        unsafe { block.write_bytes(0, layout.size()) };
    }
    block
}

/// A mapping that is no other's, or a part of the reserve.
fn alone(layout: Layout) -> Option<NonNull<u8>> {
    // Pages are aligned to more than anybody asks for here.
    if layout.align() > PAGE {
        return None;
    }
    // One of a class may be given back as such, and has to have its size.
    let bytes = in_pages(Class::of(layout).map_or(layout.size(), Class::bytes));
    let how = if is_in_haste() { libc::MAP_POPULATE } else { 0 };
    map(bytes, how).or_else(|| from_reserve(bytes))
}

/// Gives a block back.
///
/// # Safety
/// `block` was allocated here with this layout, and nobody uses it any more.
pub unsafe fn dealloc(block: *mut u8, layout: Layout) {
    shrank(layout.size());
    match Class::of(layout) {
        Some(class) => {
            // SAFETY: no block that was allocated is null.
            let start = unsafe { NonNull::new_unchecked(block) };
            let (own, other) = Pool::both();
            let put = |pool: &Pool, tries| pool.alone(tries, || pool.classes[class.0].put(start));
            // Where both are taken for long it is lost: a few, while a process ends.
            put(own, TRIES).or_else(|| put(other, TRIES));
        }
        None if is_of_reserve(block) => {}
        None => {
            // SAFETY: it was mapped for itself, whole pages.
            unsafe { libc::munmap(block.cast(), in_pages(layout.size())) };
        }
    }
}

/// The same content in a block of another size; null: there is none, and the old one stays as it is.
///
/// # Safety
/// As for [`dealloc`]; `size` is not 0.
pub unsafe fn realloc(block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return null_mut() };
    let resized = match (Class::of(layout), Class::of(wanted)) {
        (Some(class), Some(needed)) if class == needed => NonNull::new(block),
        // SAFETY: it was mapped for itself, whole pages.
        (None, None) if !is_of_reserve(block) => unsafe { remap(block, layout.size(), size) },
        _ => None,
    };
    if let Some(block) = resized {
        shrank(layout.size());
        grew(size);
        return block.as_ptr();
    }
    let new = alloc(wanted);
    if !new.is_null() {
        // SAFETY: both have that many bytes, and the new one is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(block, new, layout.size().min(size)) };
        // SAFETY: the caller says so.
        unsafe { dealloc(block, layout) };
    }
    new
}

/// The same pages with more behind them, or fewer, perhaps elsewhere: nothing is copied.
///
/// # Safety
/// `block` is the start of a mapping of `from` bytes, which nobody uses but the caller.
unsafe fn remap(block: *mut u8, from: usize, to: usize) -> Option<NonNull<u8>> {
    // SAFETY: the caller says so.
    let at = unsafe { libc::mremap(block.cast(), in_pages(from), in_pages(to), libc::MREMAP_MAYMOVE) };
    (at != libc::MAP_FAILED).then(|| NonNull::new(at.cast::<u8>())).flatten().inspect(|at| {
        at.as_ptr().expose_provenance();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills a block with a byte that tells it from others.
    fn fill(size: usize, align: usize, byte: u8) -> (*mut u8, Layout, u8) {
        let layout = Layout::from_size_align(size, align).unwrap();
        let block = alloc(layout);
        assert!(!block.is_null() && block.addr().is_multiple_of(align), "{layout:?} at {block:?}");
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
    fn each_size_has_the_least_class_that_holds_it_and_its_alignment_divides_that() {
        let mut before = 0;
        for bytes in (0..Class::COUNT).map(|class| Class(class).bytes()) {
            for (size, align) in (before + 1..=bytes).flat_map(|size| [(size, 1), (size, 16)]) {
                let class = Class::of(Layout::from_size_align(size, align).unwrap()).unwrap();
                assert_eq!(class.bytes(), bytes, "{size} bytes");
            }
            // An eighth is lost on average above 128 bytes, a quarter at most.
            assert!(before < 128 || bytes - before <= before / 4);
            before = bytes;
        }
        assert_eq!(before, Class::LARGEST);
        assert_eq!(Class::of(Layout::from_size_align(Class::LARGEST + 1, 1).unwrap()), None);
        for (align, size) in (0..13).flat_map(|power| (1..3000).map(move |size| (1 << power, 23 * size))) {
            let class = Class::of(Layout::from_size_align(size, align).unwrap());
            assert!(class.is_none_or(|class| class.bytes().is_multiple_of(align) && class.bytes() >= size));
        }
    }

    #[test]
    fn blocks_of_all_sizes_and_alignments_are_apart_and_grow_and_shrink_with_their_content() {
        let sizes = [1, 8, 16, 17, 100, 1000, 60_000, 65_536, 65_537, 300_000];
        let all: Vec<_> =
            (0..400).map(|turn| fill(sizes[turn % sizes.len()], 1 << (turn % 13), turn as u8)).collect();
        all.iter().for_each(|block| assert_filled(*block));
        for (turn, (mut block, mut layout, byte)) in all.into_iter().enumerate() {
            for size in [2 * layout.size(), 2 * layout.size() + 1, 40 * layout.size(), layout.size() / 2 + 1]
            {
                // SAFETY: it was allocated with this layout.
                block = unsafe { realloc(block, layout, size) };
                let kept = layout.size().min(size);
                layout = Layout::from_size_align(size, layout.align()).unwrap();
                assert_filled((block, Layout::from_size_align(kept, 1).unwrap(), byte));
                assert!(block.addr().is_multiple_of(layout.align()), "{turn}: {layout:?}");
                // SAFETY: it has that many bytes.
                unsafe { block.write_bytes(byte, size) };
            }
            // SAFETY: it was allocated just now.
            unsafe { dealloc(block, layout) };
        }
    }

    #[test]
    fn what_was_given_back_is_used_again_and_zero_where_that_is_asked_for() {
        let layout = Layout::from_size_align(40_000, 8).unwrap();
        // Others test here at the same time: of many that were given back some come again.
        let first: Vec<_> = (0..50).map(|_| fill(40_000, 8, 0xab).0).collect();
        // SAFETY: they were allocated just now.
        first.iter().for_each(|block| unsafe { dealloc(*block, layout) });
        let again: Vec<_> = (0..50).map(|_| alloc_zeroed(layout)).collect();
        assert!(again.iter().any(|block| first.contains(block)));
        again.iter().for_each(|block| assert_filled((*block, layout, 0)));
    }

    #[test]
    fn a_pool_whose_user_was_stopped_for_good_keeps_nobody_from_memory() {
        let stopped = Pool::new();
        let block = stopped.alone(1, || {
            assert!(stopped.alone(TRIES, || ()).is_none(), "it is taken");
            Pool::new().take(Class(3), &stopped)
        });
        assert!(block.flatten().is_some());
    }

    #[test]
    fn what_one_pool_was_given_back_the_other_takes_before_it_grows() {
        let (own, other, class) = (Pool::new(), Pool::new(), Class(Class::COUNT - 1));
        let slab: Vec<_> = (0..SLAB / class.bytes()).map(|_| own.take(class, &other).unwrap()).collect();
        other.classes[class.0].put(slab[1]);
        assert_eq!(own.take(class, &other), Some(slab[1]));
        assert!(own.take(class, &other).is_some_and(|new| !slab.contains(&new)));
    }
}

//! A pool owns all slabs from which a group of threads allocates. Only one thread at a time uses the pool.

use std::cell::Cell;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::class::SizeClass;
use super::pages::{populates_at_once, round_up_to_pages};
use super::reserve;
use super::slab::{Blocks, Slab, Slabs, chunk_owner, map_chunk};
use crate::process::threads;

/// Number of times that an allocation tries to get exclusive use of a pool. If another thread is using the pool at each
/// attempt, the block gets its own mapping.
const MAX_ATTEMPTS: u32 = 1000;
/// Maximum number of empty slabs that keep their pages (2 MiB in total). Because of these slabs, recurring allocations
/// need no system call.
const MAX_RESIDENT_SLABS: u32 = 16;
/// Minimum number of bytes that are allocated from the reserve in one step for blocks of one class.
const RESERVE_SLICE_BYTES: usize = 16 << 10;

pub(super) struct Pool {
    is_taken: AtomicBool,
    /// List of blocks that were freed while another thread was using the pool. The first word of each block points to
    /// the next block.
    returned: AtomicPtr<u8>,
    /// List of slabs with free blocks for each size class. Some slabs in the list may have become full since they were
    /// added.
    slabs: [Slabs; SizeClass::COUNT],
    /// Empty slabs whose pages still have physical memory. `kept_count` is the number of these slabs.
    kept: Slabs,
    kept_count: Cell<u32>,
    /// Empty slabs whose pages were returned to the kernel.
    bare: Slabs,
    /// For each size class, the free blocks and the uncut memory that come from the reserve.
    last: [Blocks; SizeClass::COUNT],
}

// SAFETY: the cells are only used by the thread that has set `is_taken`.
unsafe impl Sync for Pool {}

/// Two pools: one for the application's threads, and one for gpuflame's own threads. The pools are separate because a
/// signal may stop an application's thread forever while that thread uses the application's pool.
static POOLS: [Pool; 2] = [const { Pool::new() }; 2];

/// Returns the pool of the calling thread.
pub(super) fn current_pool() -> &'static Pool {
    &POOLS[usize::from(threads::is_ours())]
}

/// Returns the pool to which a block belongs; `None` if the block has its own mapping.
///
/// # Safety
/// The block must have the size of a class, must not be part of the reserve, and must not have been freed.
pub(super) unsafe fn owning_pool(block: NonNull<u8>) -> Option<&'static Pool> {
    // SAFETY: the caller fulfils the contract of `chunk_owner`, and the owners of all chunks are pools, because only
    // this module maps chunks.
    unsafe { chunk_owner(block) }
}

impl Pool {
    pub(super) const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            returned: AtomicPtr::new(null_mut()),
            slabs: [const { Slabs::new() }; SizeClass::COUNT],
            kept: Slabs::new(),
            kept_count: Cell::new(0),
            bare: Slabs::new(),
            last: [const { Blocks::new() }; SizeClass::COUNT],
        }
    }

    /// Allocates a block. Returns `None` if another thread keeps using the pool, possibly forever, or if no memory is
    /// left.
    pub(super) fn allocate(&'static self, class: SizeClass) -> Option<NonNull<u8>> {
        let take = || self.allocate_from_slabs(class).or_else(|| self.allocate_slow(class));
        self.with_lock(MAX_ATTEMPTS, take).flatten()
    }

    /// Frees a block. If another thread is using the pool, adds the block to the list `returned`. A thread that uses
    /// the pool later frees the blocks in that list.
    ///
    /// # Safety
    /// The block must be part of a chunk of this pool, and must no longer be used.
    pub(super) unsafe fn free(&self, block: NonNull<u8>) {
        let put = || {
            // SAFETY: the caller fulfils this function's contract.
            unsafe { self.return_to_slab(block) };
            self.drain_returned();
        };
        if self.with_lock(1, put).is_some() {
            return;
        }
        let link = |first| {
            // SAFETY: the block is unused, and has room for a pointer.
            unsafe { block.cast::<*mut u8>().write(first) };
            Some(block.as_ptr())
        };
        let _ = self.returned.fetch_update(Ordering::Release, Ordering::Relaxed, link);
    }

    /// Frees a block of the reserve. If another thread keeps using the pool, the block is never reused.
    pub(super) fn free_reserve_block(&self, block: NonNull<u8>, class: SizeClass) {
        self.with_lock(MAX_ATTEMPTS, || self.last[class.0].push(block));
    }

    /// Gets exclusive use of the pool and runs `body`. Returns `None` if another thread was using the pool at each of
    /// the `tries` attempts.
    fn with_lock<T>(&self, tries: u32, body: impl FnOnce() -> T) -> Option<T> {
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

    fn allocate_from_slabs(&self, class: SizeClass) -> Option<NonNull<u8>> {
        let slabs = &self.slabs[class.0];
        while let Some(slab) = slabs.first() {
            if let Some(block) = slab.allocate() {
                return Some(block);
            }
            slabs.remove(slab);
        }
        None
    }

    /// Allocates a block when no slab of its class has room.
    #[cold]
    fn allocate_slow(&'static self, class: SizeClass) -> Option<NonNull<u8>> {
        self.drain_returned();
        let (last, bytes) = (&self.last[class.0], class.bytes());
        let from_last = || last.pop(bytes);
        let from_new_slice = || {
            let slice = bytes.max(RESERVE_SLICE_BYTES);
            last.cut_from(reserve::allocate(slice)?, round_up_to_pages(slice));
            last.pop(bytes)
        };
        let found = self.allocate_from_slabs(class).or_else(from_last);
        found.or_else(|| self.allocate_from_new_slab(class)).or_else(from_new_slice)
    }

    /// Assigns an empty slab to this class, and allocates the slab's first block.
    fn allocate_from_new_slab(&'static self, class: SizeClass) -> Option<NonNull<u8>> {
        let slab = self.empty_slab()?;
        slab.assign_class(class);
        self.slabs[class.0].push(slab);
        slab.allocate()
    }

    fn empty_slab(&'static self) -> Option<&'static Slab> {
        if let Some(slab) = self.kept.pop() {
            self.kept_count.set(self.kept_count.get() - 1);
            return Some(slab);
        }
        let slab = self.bare.pop().or_else(|| {
            map_chunk(self)?.iter().rev().for_each(|slab| self.bare.push(slab));
            self.bare.pop()
        })?;
        if populates_at_once() {
            // SAFETY: the slab is empty. Kernels before 5.14 refuse this advice, but the refusal has no consequences.
            unsafe { slab.advise(libc::MADV_POPULATE_WRITE) };
        }
        Some(slab)
    }

    /// Returns a block to its slab.
    ///
    /// # Safety
    /// The block must be part of a chunk of this pool, and must no longer be used.
    unsafe fn return_to_slab(&self, block: NonNull<u8>) {
        // SAFETY: the caller fulfils this function's contract.
        let slab = unsafe { Slab::containing(block) };
        slab.free(block);
        let slabs = &self.slabs[slab.class().0];
        if !slab.is_listed() {
            slabs.push(slab);
        }
        if slab.is_empty() {
            slabs.remove(slab);
            self.retain_empty_slab(slab);
        }
    }

    /// Makes an empty slab available to any size class. If enough other empty slabs keep their pages, returns this
    /// slab's pages to the kernel.
    fn retain_empty_slab(&self, slab: &'static Slab) {
        if self.kept_count.get() < MAX_RESIDENT_SLABS || populates_at_once() {
            self.kept_count.set(self.kept_count.get() + 1);
            self.kept.push(slab);
        } else {
            // SAFETY: the slab is empty.
            unsafe { slab.advise(libc::MADV_DONTNEED) };
            self.bare.push(slab);
        }
    }

    /// Returns the blocks in the list `returned` to their slabs. These blocks were freed while another thread was using
    /// the pool.
    fn drain_returned(&self) {
        if self.returned.load(Ordering::Relaxed).is_null() {
            return;
        }
        let mut next = NonNull::new(self.returned.swap(null_mut(), Ordering::Acquire));
        while let Some(block) = next {
            // SAFETY: the thread that freed the block wrote the address of the next block into the block's first word.
            next = NonNull::new(unsafe { block.cast::<*mut u8>().read() });
            // SAFETY: the block belongs to this pool, and was freed.
            unsafe { self.return_to_slab(block) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::Layout;
    use std::collections::BTreeSet;
    use std::iter;
    use std::ptr::with_exposed_provenance_mut;
    use std::sync::mpsc::channel;

    use super::super::pages::PAGE_BYTES;
    use super::super::slab::{SLAB_BYTES, map_alone, unmap_alone};
    use super::*;

    fn new_pool() -> &'static Pool {
        Box::leak(Box::new(Pool::new()))
    }

    fn class_of(bytes: usize) -> SizeClass {
        SizeClass::for_layout(Layout::from_size_align(bytes, 1).unwrap()).unwrap()
    }

    /// Allocates `count` blocks, and writes to every page of each block.
    fn take(pool: &'static Pool, bytes: usize, count: usize) -> Vec<NonNull<u8>> {
        let block = || pool.allocate(class_of(bytes)).unwrap();
        let blocks: Vec<_> = iter::repeat_with(block).take(count).collect();
        for block in &blocks {
            // SAFETY: the block is at least as long as the written range.
            (0..bytes).step_by(PAGE_BYTES).for_each(|at| unsafe { block.add(at).write(1) });
        }
        blocks
    }

    fn give_back(blocks: impl IntoIterator<Item = NonNull<u8>>) {
        // SAFETY: the blocks come from pools, and are no longer used.
        blocks.into_iter().for_each(|block| unsafe { owning_pool(block).unwrap().free(block) });
    }

    /// Returns how many of the pages in which these blocks start have physical memory.
    fn resident(blocks: &[NonNull<u8>]) -> usize {
        let pages: BTreeSet<_> = blocks.iter().map(|block| block.addr().get() & !(PAGE_BYTES - 1)).collect();
        let is_resident = |page: &usize| {
            let mut found = 0;
            // SAFETY: the arguments are a page of a chunk, and a byte for the state of that page.
            let asked = unsafe { libc::mincore(with_exposed_provenance_mut(*page), PAGE_BYTES, &mut found) };
            assert_eq!(asked, 0);
            found & 1 == 1
        };
        pages.iter().filter(|page| is_resident(page)).count()
    }

    fn slabs_of(blocks: &[NonNull<u8>]) -> BTreeSet<usize> {
        blocks.iter().map(|block| block.addr().get() / SLAB_BYTES).collect()
    }

    /// Returns the number of empty slabs that keep their pages, and the number of empty slabs whose pages were returned
    /// to the kernel.
    fn empty(pool: &'static Pool) -> [usize; 2] {
        let mut counts = [0; 2];
        for (slabs, count) in [&pool.kept, &pool.bare].into_iter().zip(&mut counts) {
            while slabs.pop().is_some() {
                *count += 1;
            }
        }
        counts
    }

    #[test]
    fn empty_slabs_release_their_pages_except_for_a_few() {
        let pool = new_pool();
        // The first slab of a chunk is a page shorter than the other slabs. These blocks fill one chunk and the first
        // slab of the next chunk.
        let blocks = take(pool, PAGE_BYTES, 31 + 31 * 32 + 31);
        assert_eq!([slabs_of(&blocks).len(), resident(&blocks)], [33, blocks.len()]);
        // Free all blocks except the last allocated block of each slab.
        let (last, others): (Vec<_>, Vec<_>) =
            blocks.iter().partition(|block| block.addr().get() % SLAB_BYTES == SLAB_BYTES - PAGE_BYTES);
        give_back(others.into_iter().copied());
        assert_eq!(resident(&blocks), blocks.len());
        give_back(last.into_iter().copied());
        // The first slabs that became empty keep their pages. One of these slabs is the first slab of a chunk, which is
        // a page shorter.
        assert_eq!(resident(&blocks), MAX_RESIDENT_SLABS as usize * 32 - 1);
        assert_eq!(empty(pool), [MAX_RESIDENT_SLABS as usize, 64 - MAX_RESIDENT_SLABS as usize]);
    }

    #[test]
    fn freed_slabs_are_reused_for_other_sizes_before_the_heap_grows() {
        let pool = new_pool();
        let small = take(pool, 48, 100_000);
        let slabs = slabs_of(&small);
        give_back(small);
        // A slab has room for 16 blocks, and the first slab of a chunk has room for 15 blocks.
        let large = take(pool, 8192, 15 + 16 * (slabs.len() - 2));
        assert!(slabs_of(&large).is_subset(&slabs));
        // All allocated blocks have different addresses.
        assert_eq!(large.iter().collect::<BTreeSet<_>>().len(), large.len());
        give_back(large);
    }

    #[test]
    fn blocks_freed_in_any_order_are_disjoint_and_leave_only_empty_slabs() {
        let pool = new_pool();
        let (mut live, mut random) = (Vec::new(), 1_u64);
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % below
        };
        // SAFETY: the block is at least as long as the written range.
        let fill = |block: NonNull<u8>, size: usize| unsafe { block.write_bytes(size as u8, size) };
        let check = |block: NonNull<u8>, size: usize| {
            // SAFETY: the block was filled with data, and is still allocated.
            let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), size) };
            assert!(bytes.iter().all(|byte| *byte == size as u8), "{size} bytes");
        };
        for turn in 0..60_000 {
            // For 10,000 turns, allocations are more frequent than frees. For the next 10,000 turns, frees are more
            // frequent.
            if live.is_empty() || next(8) < if turn % 20_000 < 10_000 { 5 } else { 3 } {
                let size = 1 << next(16);
                let block = pool.allocate(class_of(size)).unwrap();
                fill(block, size);
                live.push((block, size));
            } else {
                let (block, size) = live.swap_remove(next(live.len()));
                check(block, size);
                give_back([block]);
            }
        }
        assert!(live.len() > 100);
        live.iter().for_each(|(block, size)| check(*block, *size));
        give_back(live.into_iter().map(|(block, _)| block));
        assert!(pool.slabs.iter().all(|slabs| slabs.first().is_none()));
        let [kept, bare] = empty(pool);
        assert!((kept as u32, (kept + bare) % 32) == (MAX_RESIDENT_SLABS, 0), "{kept}, {bare}");
    }

    #[test]
    fn a_pool_held_by_a_stopped_thread_does_not_block_other_threads() {
        let pool = new_pool();
        let blocks = take(pool, 100, 2);
        pool.with_lock(1, || {
            assert!(pool.allocate(class_of(100)).is_none(), "the pool is in use");
            give_back(blocks.iter().copied());
            assert!(!pool.slabs[class_of(100).0].first().unwrap().is_empty());
        });
        // The next thread that uses the pool returns these blocks to their slab, which is then empty and available to
        // any class.
        let other = take(pool, 64, 1);
        assert_eq!(slabs_of(&other), slabs_of(&blocks));
        give_back(other);
        assert_eq!(empty(pool), [1, 31]);
    }

    #[test]
    fn blocks_freed_concurrently_by_other_threads_all_return_to_the_pool() {
        let pool = new_pool();
        let (sends, receives): (Vec<_>, Vec<_>) = iter::repeat_with(channel::<usize>).take(4).unzip();
        std::thread::scope(|scope| {
            for receive in receives {
                let sends = sends.clone();
                scope.spawn(move || {
                    for turn in 0..20_000 {
                        // If the pool is in use at each attempt, this thread sends no block to the other thread. (The
                        // heap would map a block instead.)
                        if let Some(block) = pool.allocate(class_of(1 << (turn % 14))) {
                            sends[turn % 4].send(block.expose_provenance().get()).unwrap();
                        }
                        receive.try_iter().for_each(|at| give_back([at_address(at)]));
                    }
                    drop(sends);
                    receive.iter().for_each(|at| give_back([at_address(at)]));
                });
            }
            drop(sends);
        });
        pool.with_lock(1, || pool.drain_returned()).unwrap();
        assert!(pool.slabs.iter().all(|slabs| slabs.first().is_none()));
        let [kept, bare] = empty(pool);
        assert!(kept > 0 && (kept + bare) % 32 == 0, "{kept}, {bare}");
    }

    fn at_address(at: usize) -> NonNull<u8> {
        NonNull::new(with_exposed_provenance_mut(at)).unwrap()
    }

    #[test]
    fn a_separately_mapped_block_is_recognized_by_its_address() {
        let class = class_of(5000);
        let block = map_alone(class).unwrap();
        // SAFETY: the block is at least as long as the written range.
        unsafe { block.write_bytes(0xff, class.bytes()) };
        // SAFETY: both blocks have the size of `class`.
        assert!(unsafe { owning_pool(block) }.is_none());
        let pool = new_pool();
        let other = take(pool, 5000, 1)[0];
        // SAFETY: `other` has the size of `class`.
        assert!(unsafe { owning_pool(other) }.is_some_and(|found| std::ptr::eq(found, pool)));
        give_back([other]);
        // SAFETY: the block is no longer used.
        unsafe { unmap_alone(block, class) };
    }
}

//! A slab is a range of memory that is cut into blocks of one size class. A chunk is a mapping that contains 32 slabs.
//!
//! ```text
//! a multiple of 4 MiB
//! ├─ a page: the owner of the chunk, and the state of each slab
//! ├─ slab 0, shorter than the rest by that page
//! ├─ slab 1 …
//! ╰─ slab 31
//! ```
//!
//! Because chunks are aligned, the address of a chunk's first page can be computed from the address of any block in the
//! chunk. If a block has its own mapping, the page at the computed address contains zeros.

use std::cell::Cell;
use std::mem::offset_of;
use std::ptr::{NonNull, null_mut, with_exposed_provenance, with_exposed_provenance_mut};

use super::class::SizeClass;
use super::pages::{self, PAGE_BYTES, round_up_to_pages};
use crate::leaks;

/// Size of a slab in bytes. A size class gets memory in whole slabs, and the kernel gets memory back in whole slabs.
pub(super) const SLAB_BYTES: usize = 128 << 10;
/// Size of a chunk in bytes. Chunks are large because mapping a chunk reserves address space, and later the kernel may
/// refuse to map more. The pages of a chunk take no memory until they are written to. For comparison, the C library's
/// heap reserves 64 MiB of address space per thread.
const CHUNK_BYTES: usize = 4 << 20;
const CHUNK_SLABS: usize = CHUNK_BYTES / SLAB_BYTES;

/// Header of a chunk. An all-zero header is valid and has no owner.
#[repr(C)]
struct Chunk<Owner: 'static> {
    owner: Cell<Option<&'static Owner>>,
    slabs: [Slab; CHUNK_SLABS],
}

const _: () = assert!(size_of::<Chunk<()>>() <= PAGE_BYTES, "slab 0 begins after the first page");

/// Maps a chunk and returns its slabs. Huge pages are disabled for the chunk, because they would take memory for unused
/// blocks.
pub(super) fn map_chunk<Owner>(owner: &'static Owner) -> Option<&'static [Slab]> {
    let start = pages::map_aligned(CHUNK_BYTES, CHUNK_BYTES)?;
    // SAFETY: the pages are new and hold no data yet.
    unsafe { pages::advise(start, CHUNK_BYTES, libc::MADV_NOHUGEPAGE) };
    leaks::register_root(start, CHUNK_BYTES);
    // SAFETY: all-zero is a valid chunk, and a chunk is never unmapped.
    let piece = unsafe { start.cast::<Chunk<Owner>>().as_ref() };
    piece.owner.set(Some(owner));
    Some(&piece.slabs)
}

/// Returns the owner of the chunk that contains a block; `None` if the block has its own mapping.
///
/// # Safety
/// The block must have the size of a class, must not be part of the reserve, and must not have been freed. All chunks
/// must have owners of this type.
pub(super) unsafe fn chunk_owner<Owner>(block: NonNull<u8>) -> Option<&'static Owner> {
    let piece = with_exposed_provenance::<Chunk<Owner>>(block.addr().get() & !(CHUNK_BYTES - 1));
    // SAFETY: `chunk` is the address of a page that contains a header or zeros. The header's owner is set before the
    // first block is handed out.
    unsafe { (*piece).owner.get() }
}

/// Maps memory for a single block of a class. A page of zeros precedes the block.
pub(super) fn map_alone(class: SizeClass) -> Option<NonNull<u8>> {
    let start = pages::map_aligned(PAGE_BYTES + round_up_to_pages(class.bytes()), CHUNK_BYTES)?;
    // SAFETY: the mapping is longer than a page.
    Some(unsafe { start.add(PAGE_BYTES) })
}

/// Unmaps a block that has its own mapping.
///
/// # Safety
/// The block must have been mapped by [`map_alone`] with this class, and must no longer be used.
pub(super) unsafe fn unmap_alone(block: NonNull<u8>, class: SizeClass) {
    // SAFETY: `map_alone` mapped exactly this range.
    unsafe { pages::unmap(block.as_ptr().wrapping_sub(PAGE_BYTES), PAGE_BYTES + class.bytes()) };
}

/// Free blocks of one size, and memory that is not cut into blocks yet.
pub(super) struct Blocks {
    free: Cell<*mut u8>,
    next: Cell<usize>,
    end: Cell<usize>,
}

impl Blocks {
    pub(super) const fn new() -> Self {
        Self { free: Cell::new(null_mut()), next: Cell::new(0), end: Cell::new(0) }
    }

    /// Sets the memory from which the next blocks are cut.
    pub(super) fn cut_from(&self, start: NonNull<u8>, bytes: usize) {
        self.next.set(start.addr().get());
        self.end.set(start.addr().get() + bytes);
    }

    pub(super) fn push(&self, block: NonNull<u8>) {
        // SAFETY: the block is no longer used, and has room for a pointer.
        unsafe { block.cast::<*mut u8>().write(self.free.get()) };
        self.free.set(block.as_ptr());
    }

    pub(super) fn pop(&self, bytes: usize) -> Option<NonNull<u8>> {
        let Some(block) = NonNull::new(self.free.get()) else { return self.cut_next(bytes) };
        // SAFETY: the block is free, and its first word contains the address of the next free block.
        self.free.set(unsafe { block.cast::<*mut u8>().read() });
        Some(block)
    }

    fn cut_next(&self, bytes: usize) -> Option<NonNull<u8>> {
        let at = self.next.get();
        if self.end.get() - at < bytes {
            return None;
        }
        self.next.set(at + bytes);
        NonNull::new(with_exposed_provenance_mut(at))
    }
}

/// State of a slab. Only the thread that has exclusive use of the owning pool may access this state.
#[repr(align(64))]
pub(super) struct Slab {
    blocks: Blocks,
    class: Cell<SizeClass>,
    bytes: Cell<u32>,
    /// Number of allocated blocks.
    live: Cell<u32>,
    is_listed: Cell<bool>,
    before: Cell<Option<&'static Slab>>,
    after: Cell<Option<&'static Slab>>,
}

impl Slab {
    /// Returns the slab that contains a block.
    ///
    /// # Safety
    /// The block must be part of a chunk.
    pub(super) unsafe fn containing(block: NonNull<u8>) -> &'static Self {
        let (start, within) = (block.addr().get() & !(CHUNK_BYTES - 1), block.addr().get() % CHUNK_BYTES);
        // SAFETY: chunks are never unmapped.
        unsafe { &(*with_exposed_provenance::<Chunk<()>>(start)).slabs[within / SLAB_BYTES] }
    }

    /// Returns the start and the length in bytes of the slab's memory.
    fn memory(&self) -> (NonNull<u8>, usize) {
        let at = NonNull::from_ref(self).addr().get();
        let (piece, within) = (at & !(CHUNK_BYTES - 1), at % CHUNK_BYTES);
        let first = (within - offset_of!(Chunk<()>, slabs)) / size_of::<Self>() * SLAB_BYTES;
        let skipped = if first == 0 { PAGE_BYTES } else { 0 };
        let start = with_exposed_provenance_mut(piece + first + skipped);
        // SAFETY: the address is not null, because no chunk starts at address 0.
        (unsafe { NonNull::new_unchecked(start) }, SLAB_BYTES - skipped)
    }

    /// Assigns the slab to a size class, so that blocks of this class are cut from the slab.
    pub(super) fn assign_class(&self, class: SizeClass) {
        let (start, bytes) = self.memory();
        self.blocks.free.set(null_mut());
        self.blocks.cut_from(start, bytes);
        self.class.set(class);
        self.bytes.set(class.bytes() as u32);
    }

    /// Calls `madvise` for the slab's pages.
    ///
    /// # Safety
    /// No block of the slab may be allocated.
    pub(super) unsafe fn advise(&self, advice: i32) {
        let (start, bytes) = self.memory();
        // SAFETY: the caller fulfils this function's contract.
        unsafe { pages::advise(start, bytes, advice) };
    }

    pub(super) fn class(&self) -> SizeClass {
        self.class.get()
    }

    pub(super) fn allocate(&self) -> Option<NonNull<u8>> {
        let block = self.blocks.pop(self.bytes.get() as usize)?;
        self.live.set(self.live.get() + 1);
        Some(block)
    }

    pub(super) fn free(&self, block: NonNull<u8>) {
        self.blocks.push(block);
        self.live.set(self.live.get() - 1);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live.get() == 0
    }

    pub(super) fn is_listed(&self) -> bool {
        self.is_listed.get()
    }
}

/// Doubly linked list of slabs. A slab is in at most one list.
pub(super) struct Slabs(Cell<Option<&'static Slab>>);

impl Slabs {
    pub(super) const fn new() -> Self {
        Self(Cell::new(None))
    }

    pub(super) fn first(&self) -> Option<&'static Slab> {
        self.0.get()
    }

    pub(super) fn push(&self, slab: &'static Slab) {
        let after = self.0.replace(Some(slab));
        slab.before.set(None);
        slab.after.set(after);
        slab.is_listed.set(true);
        if let Some(after) = after {
            after.before.set(Some(slab));
        }
    }

    /// Removes a slab that is in this list.
    pub(super) fn remove(&self, slab: &'static Slab) {
        let (before, after) = (slab.before.get(), slab.after.get());
        before.map_or(&self.0, |before| &before.after).set(after);
        if let Some(after) = after {
            after.before.set(before);
        }
        slab.is_listed.set(false);
    }

    pub(super) fn pop(&self) -> Option<&'static Slab> {
        self.first().inspect(|slab| self.remove(slab))
    }
}

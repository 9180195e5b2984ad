//! A slab is a range of memory that blocks of one class are cut from; a piece is a mapping of 32 slabs.
//!
//! ```text
//! a multiple of 4 MiB
//! ├─ a page: the owner of the piece, and the state of each slab
//! ├─ slab 0, shorter than the rest by that page
//! ├─ slab 1 …
//! ╰─ slab 31
//! ```
//!
//! The address of the first page of a piece can therefore be computed from the address of a block. If that page has
//! only zeros, the block has its own mapping.

use std::cell::Cell;
use std::mem::offset_of;
use std::ptr::{NonNull, null_mut, with_exposed_provenance, with_exposed_provenance_mut};

use super::class::Class;
use super::pages::{self, PAGE, in_pages};
use crate::leaks;

/// Size of a slab, in bytes: the unit in which memory is assigned to a class and returned to the kernel.
pub(super) const SLAB: usize = 128 << 10;
/// Size of a piece, in bytes. A piece reserves address space for a time when no more can be mapped, and its pages take
/// no memory until they are written to. For comparison, the C library reserves 64 MiB per thread.
const PIECE: usize = 4 << 20;
const SLABS: usize = PIECE / SLAB;

/// Header of a piece. An all-zero header is valid and has no owner.
#[repr(C)]
struct Piece<Owner: 'static> {
    owner: Cell<Option<&'static Owner>>,
    slabs: [Slab; SLABS],
}

const _: () = assert!(size_of::<Piece<()>>() <= PAGE, "slab 0 begins after the first page");

/// Maps a piece and returns its slabs. Huge pages are disabled, because they would populate memory that no block uses
/// yet.
pub(super) fn map_piece<Owner>(owner: &'static Owner) -> Option<&'static [Slab]> {
    let start = pages::map_aligned(PIECE, PIECE)?;
    // SAFETY: the pages are new and hold no data yet.
    unsafe { pages::advise(start, PIECE, libc::MADV_NOHUGEPAGE) };
    leaks::keeps(start, PIECE);
    // SAFETY: all-zero is a valid piece, and a piece is never unmapped.
    let piece = unsafe { start.cast::<Piece<Owner>>().as_ref() };
    piece.owner.set(Some(owner));
    Some(&piece.slabs)
}

/// The owner of the piece that a block is part of. `None` if the block has its own mapping.
///
/// # Safety
/// The block has the size of a class, is not part of the reserve, and was not freed; all pieces have owners of this
/// type.
pub(super) unsafe fn owner_of<Owner>(block: NonNull<u8>) -> Option<&'static Owner> {
    let piece = with_exposed_provenance::<Piece<Owner>>(block.addr().get() & !(PIECE - 1));
    // SAFETY: `piece` is the address of a page with a header or with zeros, and the owner is set before the first block
    // is handed out.
    unsafe { (*piece).owner.get() }
}

/// Maps a block of a class on its own, after a page of zeros.
pub(super) fn map_alone(class: Class) -> Option<NonNull<u8>> {
    let start = pages::map_aligned(PAGE + in_pages(class.bytes()), PIECE)?;
    // SAFETY: the mapping is longer than a page.
    Some(unsafe { start.add(PAGE) })
}

/// Unmaps a block that has its own mapping.
///
/// # Safety
/// The block was mapped by [`map_alone`] with this class, and is no longer used.
pub(super) unsafe fn unmap_alone(block: NonNull<u8>, class: Class) {
    // SAFETY: `map_alone` mapped exactly this range.
    unsafe { pages::unmap(block.as_ptr().wrapping_sub(PAGE), PAGE + class.bytes()) };
}

/// Blocks of one size: the free blocks, and memory that is not cut into blocks yet.
pub(super) struct Blocks {
    free: Cell<*mut u8>,
    next: Cell<usize>,
    end: Cell<usize>,
}

impl Blocks {
    pub(super) const fn new() -> Self {
        Self { free: Cell::new(null_mut()), next: Cell::new(0), end: Cell::new(0) }
    }

    /// Cuts the next blocks from this memory.
    pub(super) fn cut_from(&self, start: NonNull<u8>, bytes: usize) {
        self.next.set(start.addr().get());
        self.end.set(start.addr().get() + bytes);
    }

    pub(super) fn put(&self, block: NonNull<u8>) {
        // SAFETY: the block is no longer used, and has room for a pointer.
        unsafe { block.cast::<*mut u8>().write(self.free.get()) };
        self.free.set(block.as_ptr());
    }

    pub(super) fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let Some(block) = NonNull::new(self.free.get()) else { return self.cut(bytes) };
        // SAFETY: the block is free, and its first word is the next free block.
        self.free.set(unsafe { block.cast::<*mut u8>().read() });
        Some(block)
    }

    fn cut(&self, bytes: usize) -> Option<NonNull<u8>> {
        let at = self.next.get();
        if self.end.get() - at < bytes {
            return None;
        }
        self.next.set(at + bytes);
        NonNull::new(with_exposed_provenance_mut(at))
    }
}

/// State of a slab. Only the thread that is in the owning pool uses this state.
#[repr(align(64))]
pub(super) struct Slab {
    blocks: Blocks,
    class: Cell<Class>,
    bytes: Cell<u32>,
    /// Number of allocated blocks.
    live: Cell<u32>,
    is_listed: Cell<bool>,
    before: Cell<Option<&'static Slab>>,
    after: Cell<Option<&'static Slab>>,
}

impl Slab {
    /// The slab that a block is part of.
    ///
    /// # Safety
    /// The block is part of a piece.
    pub(super) unsafe fn of(block: NonNull<u8>) -> &'static Self {
        let (start, within) = (block.addr().get() & !(PIECE - 1), block.addr().get() % PIECE);
        // SAFETY: pieces are never unmapped.
        unsafe { &(*with_exposed_provenance::<Piece<()>>(start)).slabs[within / SLAB] }
    }

    /// Start and length of the slab's memory.
    fn place(&self) -> (NonNull<u8>, usize) {
        let at = NonNull::from_ref(self).addr().get();
        let (piece, within) = (at & !(PIECE - 1), at % PIECE);
        let first = (within - offset_of!(Piece<()>, slabs)) / size_of::<Self>() * SLAB;
        let skipped = if first == 0 { PAGE } else { 0 };
        let start = with_exposed_provenance_mut(piece + first + skipped);
        // SAFETY: no piece starts at address 0.
        (unsafe { NonNull::new_unchecked(start) }, SLAB - skipped)
    }

    /// Cuts blocks of this class from the slab from now on.
    pub(super) fn begin(&self, class: Class) {
        let (start, bytes) = self.place();
        self.blocks.free.set(null_mut());
        self.blocks.cut_from(start, bytes);
        self.class.set(class);
        self.bytes.set(class.bytes() as u32);
    }

    /// Gives the kernel advice on the slab's pages.
    ///
    /// # Safety
    /// No block of the slab is allocated.
    pub(super) unsafe fn advise(&self, advice: i32) {
        let (start, bytes) = self.place();
        // SAFETY: the caller fulfils this function's contract.
        unsafe { pages::advise(start, bytes, advice) };
    }

    pub(super) fn class(&self) -> Class {
        self.class.get()
    }

    pub(super) fn take(&self) -> Option<NonNull<u8>> {
        let block = self.blocks.take(self.bytes.get() as usize)?;
        self.live.set(self.live.get() + 1);
        Some(block)
    }

    pub(super) fn put(&self, block: NonNull<u8>) {
        self.blocks.put(block);
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

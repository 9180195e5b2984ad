//! Slabs, which blocks of one class are cut from, and the pieces that they lie in.
//!
//! ```text
//! a multiple of 4 MiB
//! ├─ a page: whose piece it is, and what is known of each slab
//! ├─ slab 0, as long as the others but for that page
//! ├─ slab 1 …
//! ╰─ slab 31
//! ```
//!
//! So a block's address says where that is known. In a page of zeros it says that the block was mapped for itself.

use std::cell::Cell;
use std::mem::offset_of;
use std::ptr::{NonNull, null_mut, with_exposed_provenance, with_exposed_provenance_mut};

use super::class::Class;
use super::pages::{self, PAGE, in_pages};
use crate::host::leaks;

/// What a class is cut from, and what is given back to the kernel at once.
pub(super) const SLAB: usize = 128 << 10;
/// Address space, for a time when no more of it is given, whose pages take nothing before they are written to. The C
/// library takes 64 MiB of it for a thread.
const PIECE: usize = 4 << 20;
const SLABS: usize = PIECE / SLAB;

/// What stands at the start of a piece of somebody's. All zeros are one.
#[repr(C)]
struct Piece<Owner: 'static> {
    owner: Cell<Option<&'static Owner>>,
    slabs: [Slab; SLABS],
}

const _: () = assert!(size_of::<Piece<()>>() <= PAGE, "slab 0 begins behind the first page");

/// A new piece's slabs. Of none is more written to than is handed out: huge pages would be.
pub(super) fn map_piece<Owner>(owner: &'static Owner) -> Option<&'static [Slab]> {
    let start = pages::map_aligned(PIECE, PIECE)?;
    // SAFETY: pages of ours, which hold nothing yet.
    unsafe { pages::advise(start, PIECE, libc::MADV_NOHUGEPAGE) };
    leaks::keeps(start, PIECE);
    // SAFETY: zeros are a piece, and it stays mapped for good.
    let piece = unsafe { start.cast::<Piece<Owner>>().as_ref() };
    piece.owner.set(Some(owner));
    Some(&piece.slabs)
}

/// Whose piece a block is of; `None`: it was mapped for itself.
///
/// # Safety
/// The block is one of a class, is not of the reserve, and was not given back; pieces are owned by such.
pub(super) unsafe fn owner_of<Owner>(block: NonNull<u8>) -> Option<&'static Owner> {
    let piece = with_exposed_provenance::<Piece<Owner>>(block.addr().get() & !(PIECE - 1));
    // SAFETY: a page with a piece or zeros, of which this is set before the first block is handed out.
    unsafe { (*piece).owner.get() }
}

/// A block of a class in a mapping of its own, behind a page of zeros.
pub(super) fn map_alone(class: Class) -> Option<NonNull<u8>> {
    let start = pages::map_aligned(PAGE + in_pages(class.bytes()), PIECE)?;
    // SAFETY: the mapping is longer than a page.
    Some(unsafe { start.add(PAGE) })
}

/// Gives such a block back.
///
/// # Safety
/// It was mapped for itself with this class, and nobody uses it any more.
pub(super) unsafe fn unmap_alone(block: NonNull<u8>, class: Class) {
    // SAFETY: so it was mapped.
    unsafe { pages::unmap(block.as_ptr().wrapping_sub(PAGE), PAGE + class.bytes()) };
}

/// Blocks of one size: those that were given back, and what is not yet cut.
pub(super) struct Blocks {
    free: Cell<*mut u8>,
    next: Cell<usize>,
    end: Cell<usize>,
}

impl Blocks {
    pub(super) const fn new() -> Self {
        Self { free: Cell::new(null_mut()), next: Cell::new(0), end: Cell::new(0) }
    }

    /// The next are cut from here.
    pub(super) fn cut_from(&self, start: NonNull<u8>, bytes: usize) {
        self.next.set(start.addr().get());
        self.end.set(start.addr().get() + bytes);
    }

    pub(super) fn put(&self, block: NonNull<u8>) {
        // SAFETY: the block is nobody's any more, and has room for a pointer.
        unsafe { block.cast::<*mut u8>().write(self.free.get()) };
        self.free.set(block.as_ptr());
    }

    pub(super) fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let Some(block) = NonNull::new(self.free.get()) else { return self.cut(bytes) };
        // SAFETY: the block is free, and its first word is the next such block.
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

/// What is known of a slab. Only who is alone in its pool looks at it.
#[repr(align(64))]
pub(super) struct Slab {
    blocks: Blocks,
    class: Cell<Class>,
    bytes: Cell<u32>,
    /// Blocks that somebody has.
    live: Cell<u32>,
    is_listed: Cell<bool>,
    before: Cell<Option<&'static Slab>>,
    after: Cell<Option<&'static Slab>>,
}

impl Slab {
    /// That of a block.
    ///
    /// # Safety
    /// The block is of a piece.
    pub(super) unsafe fn of(block: NonNull<u8>) -> &'static Self {
        let (start, within) = (block.addr().get() & !(PIECE - 1), block.addr().get() % PIECE);
        // SAFETY: pieces stay mapped.
        unsafe { &(*with_exposed_provenance::<Piece<()>>(start)).slabs[within / SLAB] }
    }

    /// Where it starts, and how long it is.
    fn place(&self) -> (NonNull<u8>, usize) {
        let at = NonNull::from_ref(self).addr().get();
        let (piece, within) = (at & !(PIECE - 1), at % PIECE);
        let first = (within - offset_of!(Piece<()>, slabs)) / size_of::<Self>() * SLAB;
        let skipped = if first == 0 { PAGE } else { 0 };
        let start = with_exposed_provenance_mut(piece + first + skipped);
        // SAFETY: no piece starts at 0.
        (unsafe { NonNull::new_unchecked(start) }, SLAB - skipped)
    }

    /// From now on blocks of this class are cut from it.
    pub(super) fn begin(&self, class: Class) {
        let (start, bytes) = self.place();
        self.blocks.free.set(null_mut());
        self.blocks.cut_from(start, bytes);
        self.class.set(class);
        self.bytes.set(class.bytes() as u32);
    }

    /// Says something of its pages.
    ///
    /// # Safety
    /// None of its blocks is anybody's.
    pub(super) unsafe fn advise(&self, advice: i32) {
        let (start, bytes) = self.place();
        // SAFETY: the caller says so.
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

/// Slabs one after another, each in one such list at most.
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

    /// Takes out a slab that is in this list.
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

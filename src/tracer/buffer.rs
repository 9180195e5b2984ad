//! The memory that activity records come in, and who owns it when.
//!
//! A [`Buffer`] is zeroed memory that the tracer owns; while the vendor's library fills it, the ledger here holds it
//! as a bare address; it comes back as [`Filled`]. The library is believed about neither address nor size: a
//! buffer that was not lent is not taken back, and no more than was lent is read.

use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes of all buffers that the library has, and of the others as far as they were ever written.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Bytes that buffers take: those that the library has in full, the others as far as they were ever written.
pub fn bytes_held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// Bytes of spare buffers that the library has: their records are dropped.
static SPARE: AtomicUsize = AtomicUsize::new(0);

/// Bytes of spare buffers, which are part of [`bytes_held`].
pub fn spare_bytes() -> usize {
    SPARE.load(Ordering::Relaxed)
}

/// What of a buffer stays in memory when it lies ready and others keep all of theirs. More goes back to the
/// kernel, so that what is held does not follow the largest burst.
const KEPT_BYTES: usize = 64 << 10;

/// How much memory buffers that lie ready may keep in all: two of 1 MiB, which is what a steady stream of
/// records goes through. The application's threads fill them, and would pay 256 page faults for each that went
/// back to the kernel: 70 ns a record.
const MOST_WARM: usize = 2 << 20;
/// The same under the ceiling that the user asked for.
static WARM_ROOM: AtomicUsize = AtomicUsize::new(MOST_WARM);

/// Limits what buffers that are ready keep in memory to `bytes`, or 2 MiB if that is less.
pub fn keep_warm(bytes: usize) {
    WARM_ROOM.store(bytes.min(MOST_WARM), Ordering::Relaxed);
}

/// Bytes of buffers that lie ready with more than [`KEPT_BYTES`] in memory.
static WARM: AtomicUsize = AtomicUsize::new(0);

/// Zeroed memory for activity records, aligned to 8 bytes.
///
/// It comes from the C library's allocator: the vendor's library hands buffers to whoever asked for records last, and that
/// may be another client, which calls `free` on whatever it is handed. What lies in it costs nothing until it is written,
/// for the allocator has so large a block from the kernel; and its pages go back to the kernel as those of a mapping
/// would. It is freed as seldom as can be: the first large block that is freed raises the size up to which the
/// allocator keeps memory for itself, the application's with it.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u64>,
    words: usize,
    /// How many bytes were ever written.
    written: usize,
    /// How many of them count as [`WARM`].
    warm: usize,
}

// SAFETY: a buffer owns its memory, as a box would.
unsafe impl Send for Buffer {}

impl Buffer {
    /// A buffer of `bytes`, rounded up to a multiple of 8; `None` for 0, or where the kernel gives none.
    /// NVIDIA recommends 1 to 10 MB. It costs nothing until the library writes to it.
    pub fn new(bytes: usize) -> Option<Self> {
        let words = bytes.div_ceil(8);
        if words == 0 {
            return None;
        }
        // SAFETY: no memory in use is touched.
        let start = unsafe { libc::calloc(words, 8) };
        Some(Self { start: NonNull::new(start.cast())?, words, written: 0, warm: 0 })
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        8 * self.words
    }

    /// Whether it may keep all its pages, as it lies ready.
    fn keep_warm(&mut self) -> bool {
        let keep =
            |warm: usize| Some(warm + self.written).filter(|warm| *warm <= WARM_ROOM.load(Ordering::Relaxed));
        let kept = WARM.fetch_update(Ordering::Relaxed, Ordering::Relaxed, keep).is_ok();
        self.warm = if kept { self.written } else { 0 };
        kept
    }

    /// Lets the kernel take the pages, which are zero when they are next touched, and makes zero what lies on pages that
    /// others have a part of. False: it refused.
    pub(crate) fn give_pages_back(&mut self) -> bool {
        let first = self.start.addr().get();
        let end = first + self.bytes();
        // SAFETY: no memory is touched.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize;
        let (inner, inner_end) = (first.next_multiple_of(page), end / page * page);
        if inner >= inner_end {
            return false;
        }
        // SAFETY: whole pages within a block of ours that nobody else knows; their content may become zero.
        let answer = unsafe { libc::madvise(inner as *mut _, inner_end - inner, libc::MADV_DONTNEED) };
        let written = self.written.div_ceil(8).min(self.words);
        let (before, behind) = ((inner - first) / 8, (inner_end - first) / 8);
        // An allocator of the application's may lie in memory that comes back as it was.
        if answer != 0 || self.words()[before] != 0 {
            return false;
        }
        HELD.fetch_sub(std::mem::take(&mut self.written), Ordering::Relaxed);
        WARM.fetch_sub(std::mem::take(&mut self.warm), Ordering::Relaxed);
        let words = self.words_mut();
        words[..before.min(written)].fill(0);
        words[behind.min(written)..written].fill(0);
        true
    }

    fn words(&self) -> &[u64] {
        // SAFETY: so many words, zero at first, that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `words`, and `&mut self` means that nobody else reads them.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        HELD.fetch_sub(self.written, Ordering::Relaxed);
        WARM.fetch_sub(self.warm, Ordering::Relaxed);
        // SAFETY: it came from `calloc`, and its owner is gone.
        unsafe { libc::free(self.start.as_ptr().cast()) };
    }
}

/// Records that the library is done with, in the buffer that it filled or in a copy.
#[derive(Debug)]
pub struct Filled {
    content: Content,
    valid: usize,
}

#[derive(Debug)]
enum Content {
    Whole(Buffer),
    Copied(Box<[u64]>),
}

impl Filled {
    /// How many bytes of it hold records; may be 0.
    pub fn valid(&self) -> usize {
        self.valid
    }

    /// The bytes of the records, without the room behind them.
    pub fn bytes(&self) -> &[u8] {
        let words = match &self.content {
            Content::Whole(buffer) => buffer.words(),
            Content::Copied(words) => words,
        };
        let valid = self.valid.min(size_of_val(words));
        // SAFETY: the bytes of initialised words, and no more of them than there are.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), valid) }
    }

    /// Copies the records out of the buffer, which is free again at once. Early deliveries and flushes
    /// return buffers of a few records, by the thousand.
    pub fn copy_out(self) -> (Self, Option<Buffer>) {
        let written = self.valid.div_ceil(8);
        let copy = match &self.content {
            Content::Whole(buffer) => buffer.words()[..written.min(buffer.words)].into(),
            Content::Copied(_) => return (self, None),
        };
        (Self { content: Content::Copied(copy), valid: self.valid }, self.recycle())
    }

    /// The buffer, zeroed as far as it was written for its next use; `None` where the records were a copy.
    pub fn recycle(self) -> Option<Buffer> {
        let Content::Whole(mut buffer) = self.content else { return None };
        let words = self.valid.div_ceil(8).min(buffer.words);
        if words * 8 <= KEPT_BYTES || buffer.keep_warm() || !buffer.give_pages_back() {
            buffer.words_mut()[..words].fill(0);
        }
        Some(buffer)
    }
}

/// What is lent when the tracer has no buffer: enough for some 300 records, which are counted and lost.
/// (To lend nothing crashes CUPTI before 12.9.)
const SPARE_BYTES: usize = 64 * 1024;

/// The buffers that the library has.
///
/// Its lock is taken in the library's own buffer callbacks, where the library holds a lock of its own; so nothing is
/// called while it is held.
#[derive(Debug, Default)]
pub(crate) struct Lent(Mutex<Vec<Loan>>);

#[derive(Clone, Copy, Debug)]
struct Loan {
    start: NonNull<u64>,
    words: usize,
    written: usize,
    is_spare: bool,
}

impl Loan {
    /// The library does not have it any more.
    fn count_out(&self) {
        if self.is_spare {
            SPARE.fetch_sub(8 * self.words, Ordering::Relaxed);
        }
    }
}

// SAFETY: a loan owns the memory it points to, as a box would; nothing in it belongs to a thread.
unsafe impl Send for Loan {}

/// A buffer that the tracer has filled and handed back.
#[derive(Debug)]
pub(crate) enum Returned {
    /// One of the tracer's.
    Filled(Filled),
    /// One of ours, lent when the tracer had none; its records are lost.
    Spare(Filled),
    /// Nothing that was lent.
    Stranger,
}

impl Lent {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Lends `buffer`, or a spare one: its address and size in bytes, which are 0 where the kernel gives no
    /// memory at all.
    pub(crate) fn lend(&self, buffer: Option<Buffer>) -> (*mut u8, usize) {
        let is_spare = buffer.is_none();
        let Some(buffer) = buffer.or_else(|| Buffer::new(SPARE_BYTES)) else { return (null_mut(), 0) };
        let Buffer { start, words, written, warm } = *ManuallyDrop::new(buffer);
        WARM.fetch_sub(warm, Ordering::Relaxed);
        HELD.fetch_add(8 * words - written, Ordering::Relaxed);
        let mut loans = self.loans();
        // One that another client was handed, and has freed.
        if let Some(at) = loans.iter().position(|loan| loan.start == start) {
            let freed = loans.swap_remove(at);
            HELD.fetch_sub(8 * freed.words, Ordering::Relaxed);
            freed.count_out();
        }
        if is_spare {
            SPARE.fetch_add(8 * words, Ordering::Relaxed);
        }
        loans.push(Loan { start, words, written, is_spare });
        drop(loans);
        (start.as_ptr().cast(), words * 8)
    }

    /// A spare buffer that nobody will know when it comes back: where no lock may be waited for.
    pub(crate) fn give_away() -> (*mut u8, usize) {
        let Some(buffer) = Buffer::new(SPARE_BYTES) else { return (null_mut(), 0) };
        let Buffer { start, words, .. } = *ManuallyDrop::new(buffer);
        (start.as_ptr().cast(), words * 8)
    }

    /// Takes back what the library returns.
    pub(crate) fn take_back(&self, address: *mut u8, valid: usize) -> Returned {
        let loan = {
            let mut loans = self.loans();
            let Some(at) = loans.iter().position(|loan| loan.start.as_ptr().cast() == address) else {
                return Returned::Stranger;
            };
            loans.swap_remove(at)
        };
        loan.count_out();
        let Loan { start, words, .. } = loan;
        let valid = valid.min(8 * words);
        // `lend` took these from a buffer, and the loan was struck off, so this happens once.
        let buffer = Buffer { start, words, written: valid.max(loan.written), warm: 0 };
        HELD.fetch_sub(8 * words - buffer.written, Ordering::Relaxed);
        let filled = Filled { content: Content::Whole(buffer), valid };
        if loan.is_spare { Returned::Spare(filled) } else { Returned::Filled(filled) }
    }

    /// How many buffers the library has now.
    pub(crate) fn count(&self) -> usize {
        self.loans().len()
    }

    fn loans(&self) -> std::sync::MutexGuard<'_, Vec<Loan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_with_what_was_written_and_is_zero_again_when_recycled() {
        let lent = Lent::new();
        let (start, size) = lent.lend(Buffer::new(100));
        assert_eq!((size, start.addr() % 8), (104, 0));
        // SAFETY: the buffer has 104 bytes and is ours to write until it is taken back.
        unsafe { start.write_bytes(0xab, 16) };
        let Returned::Filled(filled) = lent.take_back(start, 16) else { panic!("not ours?") };
        assert_eq!(filled.bytes(), [0xab; 16]);
        let (copy, buffer) = filled.copy_out();
        assert!(buffer.unwrap().words().iter().all(|word| *word == 0));
        assert_eq!(copy.bytes(), [0xab; 16]);
        assert!(copy.recycle().is_none());
    }

    #[test]
    fn more_than_was_lent_is_never_read() {
        let lent = Lent::new();
        let (start, _) = lent.lend(Buffer::new(64));
        let Returned::Filled(filled) = lent.take_back(start, 1 << 40) else { panic!("not ours?") };
        assert_eq!(filled.bytes().len(), 64);
    }

    #[test]
    fn without_a_buffer_a_spare_one_is_lent() {
        let lent = Lent::new();
        for nothing in [None, Buffer::new(0)] {
            let (start, size) = lent.lend(nothing);
            assert_eq!(size, SPARE_BYTES);
            assert!(matches!(lent.take_back(start, 8), Returned::Spare(_)));
        }
    }

    #[test]
    fn what_was_not_lent_is_not_taken() {
        let lent = Lent::new();
        let (start, _) = lent.lend(Buffer::new(64));
        assert!(matches!(lent.take_back(start.wrapping_add(8), 8), Returned::Stranger));
        assert!(matches!(lent.take_back(start, 8), Returned::Filled(_)));
        assert!(matches!(lent.take_back(start, 8), Returned::Stranger));
        assert_eq!(lent.count(), 0);
    }
}

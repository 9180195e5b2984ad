//! Manages the memory for activity records, and tracks which side owns each buffer.
//!
//! A [`Buffer`] is zeroed memory that belongs to the tracer. While the vendor's library fills a buffer, this module
//! keeps only the buffer's address and size, in a list of loans. When the library returns the buffer, the buffer
//! becomes a [`FilledBuffer`]. The address and the size that the library passes are checked. A buffer that was not lent
//! is rejected. From a lent buffer, no more bytes are read than were lent.

use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Number of bytes of memory that all buffers use. A buffer that is lent to the library counts with its full size. A
/// buffer that the tracer holds is counted with the number of bytes that were ever written to the buffer.
static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of bytes of memory that all buffers use. A buffer that is lent to the library counts with its
/// full size. A buffer that the tracer holds is counted with the number of bytes that were ever written to the buffer,
/// because only these bytes take memory.
pub fn bytes_held() -> usize {
    HELD_BYTES.load(Ordering::Relaxed)
}

/// Total size in bytes of all buffers that are lent.
static LENT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Returns the total size in bytes of all buffers that are lent. (It is unknown how many bytes of a lent buffer are
/// written.)
pub fn bytes_lent() -> usize {
    LENT_BYTES.load(Ordering::Relaxed)
}

/// Number of bytes that an idle buffer may keep resident in memory after [`MAX_WARM_BYTES`] is used up. If more bytes
/// of the buffer are resident, its memory is returned to the kernel. Without this limit, the memory use would stay as
/// high as during the largest burst of records.
const MAX_IDLE_BYTES: usize = 64 << 10;

/// Maximum number of bytes that all idle buffers together may keep resident. This maximum is enough for two buffers of
/// 1 MiB, because a steady stream of records alternates between two buffers. If the memory of these buffers were
/// returned to the kernel, the application's threads would have 256 page faults each time that they fill a buffer.
/// These page faults would cost 70 ns per record.
const MAX_WARM_BYTES: usize = 2 << 20;

/// Total number of resident bytes of the idle buffers that have more than [`MAX_IDLE_BYTES`] resident bytes each.
static WARM_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Zeroed memory for activity records, which is aligned to 8 bytes.
///
/// A buffer is allocated with `calloc`, because a client other than gpuflame may call `free` on it. A client can get
/// one of our buffers, because the vendor's library passes all completed buffers to the client that registered its
/// buffer functions last. For a block of this size, the allocator maps memory from the kernel. Therefore the unwritten
/// parts of a buffer take no memory, and its pages can be returned to the kernel. Buffers are freed as rarely as
/// possible. When a large block is freed for the first time, the allocator begins to keep freed blocks up to a larger
/// size. Therefore the allocator then returns less of the application's freed memory to the kernel.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u64>,
    words: usize,
    /// Number of bytes, counted from the start of the buffer, that were ever written.
    written: usize,
    /// Number of bytes of this buffer that are counted in [`WARM_BYTES`].
    warm: usize,
}

// SAFETY: a buffer is the only owner of its memory, as a box is.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Creates a buffer of `bytes` bytes, rounded up to a multiple of 8. Returns `None` for 0 bytes or if no memory is
    /// left. NVIDIA recommends buffers of 1 to 10 MB. A new buffer takes no memory until the library writes to it.
    pub fn new(bytes: usize) -> Option<Self> {
        let words = bytes.div_ceil(8);
        if words == 0 {
            return None;
        }
        // SAFETY: `calloc` may be called with any two integers.
        let start = unsafe { libc::calloc(words, 8) };
        Some(Self { start: NonNull::new(start.cast())?, words, written: 0, warm: 0 })
    }

    /// Returns the size of the buffer in bytes.
    pub fn bytes(&self) -> usize {
        8 * self.words
    }

    /// Returns the number of bytes in the buffer that were ever written. Only the bytes that were ever written take
    /// memory.
    pub fn resident_bytes(&self) -> usize {
        self.written
    }

    /// Whether this idle buffer may keep all of its pages resident. If this buffer may keep its pages, adds its bytes
    /// to [`WARM_BYTES`].
    fn may_keep_pages(&mut self) -> bool {
        let keep = |warm: usize| Some(warm + self.written).filter(|warm| *warm <= MAX_WARM_BYTES);
        let kept = WARM_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, keep).is_ok();
        self.warm = if kept { self.written } else { 0 };
        kept
    }

    /// Returns the pages that are completely inside the buffer to the kernel. When these pages are next accessed, they
    /// are zero. Also zeroes the parts of the buffer that are on pages shared with other memory blocks. Returns `false`
    /// if the kernel has refused to take the pages back.
    pub fn release_pages(&mut self) -> bool {
        let first = self.start.addr().get();
        let end = first + self.bytes();
        // SAFETY: `sysconf` accesses no memory of ours.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize;
        let (inner, inner_end) = (first.next_multiple_of(page), end / page * page);
        if inner >= inner_end {
            return false;
        }
        // SAFETY: the range consists of whole pages inside a block to which only `self` refers, and the content of
        // these pages may become zero.
        let answer = unsafe { libc::madvise(inner as *mut _, inner_end - inner, libc::MADV_DONTNEED) };
        let written = self.written.div_ceil(8).min(self.words);
        let (before, after) = ((inner - first) / 8, (inner_end - first) / 8);
        // The content of the pages is checked, because the application may have an allocator whose memory keeps its
        // content after `madvise`.
        if answer != 0 || self.words()[before] != 0 {
            return false;
        }
        HELD_BYTES.fetch_sub(std::mem::take(&mut self.written), Ordering::Relaxed);
        WARM_BYTES.fetch_sub(std::mem::take(&mut self.warm), Ordering::Relaxed);
        let words = self.words_mut();
        words[..before.min(written)].fill(0);
        words[after.min(written)..written].fill(0);
        true
    }

    fn words(&self) -> &[u64] {
        // SAFETY: `start` points to `words` initialised words that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: the reasons in `words` apply, and `&mut self` excludes any other access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        HELD_BYTES.fetch_sub(self.written, Ordering::Relaxed);
        WARM_BYTES.fetch_sub(self.warm, Ordering::Relaxed);
        // SAFETY: the block came from `calloc`, and its owner is just being dropped.
        unsafe { libc::free(self.start.as_ptr().cast()) };
    }
}

/// Activity records that the library has completed, either in the buffer that the library filled, or in a copy.
#[derive(Debug)]
pub struct FilledBuffer {
    content: Content,
    valid: usize,
}

#[derive(Debug)]
enum Content {
    Original(Buffer),
    Copied(Box<[u64]>),
}

impl FilledBuffer {
    /// Returns the number of bytes that contain activity records, which may be 0.
    pub fn valid(&self) -> usize {
        self.valid
    }

    /// Returns the bytes that contain activity records, without the unused rest of the buffer.
    pub fn bytes(&self) -> &[u8] {
        let words = match &self.content {
            Content::Original(buffer) => buffer.words(),
            Content::Copied(words) => words,
        };
        let valid = self.valid.min(size_of_val(words));
        // SAFETY: the words are initialised, and the number of bytes does not exceed their size.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), valid) }
    }

    /// Copies the records, so that the buffer can immediately be used again. Copying the records helps because flushes
    /// and early deliveries return thousands of buffers that contain only few records each.
    pub fn copy_out(self) -> (Self, Option<Buffer>) {
        let written = self.valid.div_ceil(8);
        let copy = match &self.content {
            Content::Original(buffer) => buffer.words()[..written.min(buffer.words)].into(),
            Content::Copied(_) => return (self, None),
        };
        (Self { content: Content::Copied(copy), valid: self.valid }, self.recycle())
    }

    /// Zeroes all written bytes of the buffer, and returns the buffer so that it can be used again. Returns `None` if
    /// the records are only a copy.
    pub fn recycle(self) -> Option<Buffer> {
        let Content::Original(mut buffer) = self.content else { return None };
        let words = self.valid.div_ceil(8).min(buffer.words);
        if words * 8 <= MAX_IDLE_BYTES || buffer.may_keep_pages() || !buffer.release_pages() {
            buffer.words_mut()[..words].fill(0);
        }
        Some(buffer)
    }
}

/// Size in bytes of a spare buffer. A spare buffer is lent if the tracer provides no buffer. A spare buffer has room
/// for about 300 activity records. The records in a spare buffer are counted, but lost.
const SPARE_BYTES: usize = 64 * 1024;

/// The list of the buffers that the library holds.
///
/// The library's buffer callbacks lock this list, while the library holds a lock of its own. Therefore a thread that
/// has locked this list must not call the library.
#[derive(Debug, Default)]
pub struct LentBuffers {
    loans: Mutex<Vec<Loan>>,
    spares: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
struct Loan {
    start: NonNull<u64>,
    words: usize,
    written: usize,
    is_spare: bool,
}

// SAFETY: a loan owns the memory to which it points, as a box does, and is not bound to a thread.
unsafe impl Send for Loan {}

/// Result of taking back a buffer from the library.
#[derive(Debug)]
pub enum ReturnedBuffer {
    /// A buffer that the tracer has provided.
    Filled(FilledBuffer),
    /// A spare buffer, which was lent because the tracer provided no buffer. The records in a spare buffer are lost.
    Spare(FilledBuffer),
    /// A buffer that the tracer has never lent to the library.
    Foreign,
}

impl LentBuffers {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Self { loans: Mutex::new(Vec::new()), spares: AtomicUsize::new(0) }
    }

    /// Lends `buffer` to the library. If `buffer` is `None`, lends a spare buffer. Returns the address and the size of
    /// the lent buffer. If `max_spares` spare buffers are already lent, or if there is no memory for a spare buffer,
    /// returns 0 and 0.
    pub fn lend(&self, buffer: Option<Buffer>, max_spares: usize) -> (*mut u8, usize) {
        let is_spare = buffer.is_none();
        if is_spare && self.spares.load(Ordering::Relaxed) >= max_spares {
            return (null_mut(), 0);
        }
        let Some(buffer) = buffer.or_else(|| Buffer::new(SPARE_BYTES)) else { return (null_mut(), 0) };
        let Buffer { start, words, written, warm } = *ManuallyDrop::new(buffer);
        WARM_BYTES.fetch_sub(warm, Ordering::Relaxed);
        HELD_BYTES.fetch_add(8 * words - written, Ordering::Relaxed);
        let mut loans = self.loans();
        // If the list already contains a loan with this address, the library has returned the earlier buffer to another
        // client, which has freed it.
        if let Some(at) = loans.iter().position(|loan| loan.start == start) {
            let freed = loans.swap_remove(at);
            HELD_BYTES.fetch_sub(8 * freed.words, Ordering::Relaxed);
            LENT_BYTES.fetch_sub(8 * freed.words, Ordering::Relaxed);
            self.spares.fetch_sub(usize::from(freed.is_spare), Ordering::Relaxed);
        }
        LENT_BYTES.fetch_add(8 * words, Ordering::Relaxed);
        self.spares.fetch_add(usize::from(is_spare), Ordering::Relaxed);
        loans.push(Loan { start, words, written, is_spare });
        drop(loans);
        (start.as_ptr().cast(), words * 8)
    }

    /// Lends a spare buffer, but does not add it to the list of loans. Therefore this buffer is not recognised when the
    /// library returns it. This function is used in a process in which no thread may wait for a lock.
    pub fn lend_untracked() -> (*mut u8, usize) {
        let Some(buffer) = Buffer::new(SPARE_BYTES) else { return (null_mut(), 0) };
        let Buffer { start, words, .. } = *ManuallyDrop::new(buffer);
        (start.as_ptr().cast(), words * 8)
    }

    /// Takes back a buffer that the library returns. `valid` is the number of bytes in the buffer that the library has
    /// filled.
    pub fn reclaim(&self, address: *mut u8, valid: usize) -> ReturnedBuffer {
        let loan = {
            let mut loans = self.loans();
            let Some(at) = loans.iter().position(|loan| loan.start.as_ptr().cast() == address) else {
                return ReturnedBuffer::Foreign;
            };
            loans.swap_remove(at)
        };
        self.spares.fetch_sub(usize::from(loan.is_spare), Ordering::Relaxed);
        let Loan { start, words, .. } = loan;
        LENT_BYTES.fetch_sub(8 * words, Ordering::Relaxed);
        let valid = valid.min(8 * words);
        // The memory of the buffer has only one owner: `lend` moved these fields out of a buffer, and the loan was
        // removed above.
        let buffer = Buffer { start, words, written: valid.max(loan.written), warm: 0 };
        HELD_BYTES.fetch_sub(8 * words - buffer.written, Ordering::Relaxed);
        let filled = FilledBuffer { content: Content::Original(buffer), valid };
        if loan.is_spare { ReturnedBuffer::Spare(filled) } else { ReturnedBuffer::Filled(filled) }
    }

    /// Returns the number of buffers that the library currently holds.
    pub fn count(&self) -> usize {
        self.loans().len()
    }

    fn loans(&self) -> std::sync::MutexGuard<'_, Vec<Loan>> {
        self.loans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_buffer_has_the_written_bytes_and_is_zeroed_when_recycled() {
        let lent = LentBuffers::new();
        let (start, size) = lent.lend(Buffer::new(100), 2);
        assert_eq!((size, start.addr() % 8), (104, 0));
        // SAFETY: the buffer has 104 bytes, and the test may write to the buffer until it is taken back.
        unsafe { start.write_bytes(0xab, 16) };
        let ReturnedBuffer::Filled(filled) = lent.reclaim(start, 16) else { panic!("not ours?") };
        assert_eq!(filled.bytes(), [0xab; 16]);
        let (copy, buffer) = filled.copy_out();
        assert!(buffer.unwrap().words().iter().all(|word| *word == 0));
        assert_eq!(copy.bytes(), [0xab; 16]);
        assert!(copy.recycle().is_none());
    }

    #[test]
    fn the_valid_size_is_limited_to_the_lent_size() {
        let lent = LentBuffers::new();
        let (start, _) = lent.lend(Buffer::new(64), 2);
        let ReturnedBuffer::Filled(filled) = lent.reclaim(start, 1 << 40) else { panic!("not ours?") };
        assert_eq!(filled.bytes().len(), 64);
    }

    #[test]
    fn a_spare_buffer_is_lent_if_none_is_available() {
        let lent = LentBuffers::new();
        for nothing in [None, Buffer::new(0)] {
            let (start, size) = lent.lend(nothing, 1);
            assert_eq!(size, SPARE_BYTES);
            assert!(matches!(lent.reclaim(start, 8), ReturnedBuffer::Spare(_)));
        }
    }

    #[test]
    fn no_more_spare_buffers_are_lent_than_allowed() {
        let lent = LentBuffers::new();
        let [first, second, third] = [0; 3].map(|_| lent.lend(None, 2));
        assert_eq!((first.1, second.1, third), (SPARE_BYTES, SPARE_BYTES, (null_mut(), 0)));
        assert_eq!(lent.lend(Buffer::new(64), 2).1, 64);
        lent.reclaim(first.0, 0);
        assert_eq!(lent.lend(None, 2).1, SPARE_BYTES);
    }

    #[test]
    fn a_buffer_that_was_not_lent_is_rejected() {
        let lent = LentBuffers::new();
        let (start, _) = lent.lend(Buffer::new(64), 2);
        assert!(matches!(lent.reclaim(start.wrapping_add(8), 8), ReturnedBuffer::Foreign));
        assert!(matches!(lent.reclaim(start, 8), ReturnedBuffer::Filled(_)));
        assert!(matches!(lent.reclaim(start, 8), ReturnedBuffer::Foreign));
        assert_eq!(lent.count(), 0);
    }
}

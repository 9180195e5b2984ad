//! The memory that activity records come in, and who owns it when.
//!
//! A [`Buffer`] is zeroed memory that the tracer owns; while CUPTI fills it, the ledger here holds it as a
//! bare address; it comes back as [`Filled`]. CUPTI is believed about neither address nor size: a buffer
//! that was not lent is not taken back, and no more than was lent is read.

use std::sync::{Mutex, PoisonError};

/// Zeroed memory for activity records, aligned to 8 bytes.
#[derive(Debug)]
pub struct Buffer(Box<[u64]>);

impl Buffer {
    /// A buffer of `bytes`, rounded up to a multiple of 8. NVIDIA recommends 1 to 10 MB.
    ///
    /// Large ones are fresh pages from the kernel: they cost nothing until CUPTI writes to them.
    pub fn new(bytes: usize) -> Self {
        Self(vec![0; bytes.div_ceil(8)].into_boxed_slice())
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.0.len() * 8
    }

    /// Whether nothing fits in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A buffer that CUPTI is done with.
#[derive(Debug)]
pub struct Filled {
    buffer: Buffer,
    valid: usize,
}

impl Filled {
    /// How many bytes of it hold records; may be 0.
    pub fn valid(&self) -> usize {
        self.valid
    }

    /// The records.
    pub fn bytes(&self) -> &[u8] {
        let words = &self.buffer.0;
        let valid = self.valid.min(size_of_val::<[u64]>(words));
        // SAFETY: the bytes of initialised words, and no more of them than there are.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), valid) }
    }

    /// The buffer, zeroed for its next use: as far as it was written, since early deliveries and flushes
    /// return buffers of a few records, by the thousand.
    pub fn recycle(mut self) -> Buffer {
        let written = self.valid.div_ceil(8).min(self.buffer.0.len());
        self.buffer.0[..written].fill(0);
        self.buffer
    }
}

/// What is lent when the tracer has no buffer: enough for some 300 records, which are counted and lost.
/// (To lend nothing crashes CUPTI before 12.9.)
const SPARE_BYTES: usize = 64 * 1024;

/// The buffers that CUPTI has.
///
/// Its lock is taken in CUPTI's own buffer callbacks, where CUPTI holds a lock of its own; so nothing is
/// called while it is held.
#[derive(Debug, Default)]
pub(super) struct Lent(Mutex<Vec<Loan>>);

#[derive(Clone, Copy, Debug)]
struct Loan {
    address: usize,
    start: *mut u64,
    words: usize,
    is_spare: bool,
}

// SAFETY: a loan owns the memory it points to, as a box would; nothing in it belongs to a thread.
unsafe impl Send for Loan {}

/// What came back.
#[derive(Debug)]
pub(super) enum Returned {
    /// One of the tracer's.
    Filled(Filled),
    /// One of ours, lent when the tracer had none; its records are lost.
    Spare(Filled),
    /// Nothing that was lent.
    Stranger,
}

impl Lent {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Lends `buffer`, or a spare one: its address and size in bytes.
    pub(super) fn lend(&self, buffer: Option<Buffer>) -> (*mut u8, usize) {
        let buffer = buffer.filter(|buffer| !buffer.is_empty());
        let is_spare = buffer.is_none();
        let buffer = buffer.unwrap_or_else(|| Buffer::new(SPARE_BYTES));
        let words = buffer.0.len();
        let start = Box::into_raw(buffer.0).cast::<u64>();
        self.loans().push(Loan { address: start.addr(), start, words, is_spare });
        (start.cast(), words * 8)
    }

    /// Takes back what CUPTI returns.
    pub(super) fn take_back(&self, address: *mut u8, valid: usize) -> Returned {
        let loan = {
            let mut loans = self.loans();
            let Some(at) = loans.iter().position(|loan| loan.address == address.addr()) else {
                return Returned::Stranger;
            };
            loans.swap_remove(at)
        };
        let memory = std::ptr::slice_from_raw_parts_mut(loan.start, loan.words);
        // SAFETY: `lend` made these two of a box, and the loan was struck off, so this happens once.
        let buffer = Buffer(unsafe { Box::from_raw(memory) });
        let valid = valid.min(buffer.len());
        let filled = Filled { buffer, valid };
        if loan.is_spare { Returned::Spare(filled) } else { Returned::Filled(filled) }
    }

    /// How many buffers CUPTI has now.
    pub(super) fn count(&self) -> usize {
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
        let (start, size) = lent.lend(Some(Buffer::new(100)));
        assert_eq!((size, start.addr() % 8), (104, 0));
        // SAFETY: the buffer has 104 bytes and is ours to write until it is taken back.
        unsafe { start.write_bytes(0xab, 16) };
        let Returned::Filled(filled) = lent.take_back(start, 16) else { panic!("not ours?") };
        assert_eq!(filled.bytes(), [0xab; 16]);
        assert!(filled.recycle().0.iter().all(|word| *word == 0));
    }

    #[test]
    fn more_than_was_lent_is_never_read() {
        let lent = Lent::new();
        let (start, _) = lent.lend(Some(Buffer::new(64)));
        let Returned::Filled(filled) = lent.take_back(start, 1 << 40) else { panic!("not ours?") };
        assert_eq!(filled.bytes().len(), 64);
    }

    #[test]
    fn without_a_buffer_a_spare_one_is_lent() {
        let lent = Lent::new();
        for nothing in [None, Some(Buffer::new(0))] {
            let (start, size) = lent.lend(nothing);
            assert_eq!(size, SPARE_BYTES);
            assert!(matches!(lent.take_back(start, 8), Returned::Spare(_)));
        }
    }

    #[test]
    fn what_was_not_lent_is_not_taken() {
        let lent = Lent::new();
        let (start, _) = lent.lend(Some(Buffer::new(64)));
        assert!(matches!(lent.take_back(start.wrapping_add(8), 8), Returned::Stranger));
        assert!(matches!(lent.take_back(start, 8), Returned::Filled(_)));
        assert!(matches!(lent.take_back(start, 8), Returned::Stranger));
        assert_eq!(lent.count(), 0);
    }
}

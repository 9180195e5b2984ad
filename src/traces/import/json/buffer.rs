//! Defines the buffer in which the scanner works (a part of the file, followed by zeros), and the sources that refill
//! the buffer.
//!
//! The scanner requests more bytes from a [`Source`] while some bytes in the buffer are still unread. [`ReaderSource`]
//! moves these unread bytes to the front of the buffer, and reads more bytes after them. A different source may already
//! have the next bytes in a second buffer (see `gzip`). Such a source copies the unread bytes to the front of the
//! second buffer, and swaps the two buffers. So only the unread bytes have to be copied.

use std::io::Read;

/// Number of zero bytes after the content of the buffer. Because of these zero bytes, 64 bytes can be loaded at any
/// position of the content. The zero bytes after the content are not part of the trace.
pub(in super::super) const PADDING: usize = 64;
/// Maximum size in bytes of a trace event, and therefore also of the buffer.
pub(in super::super) const MAX_EVENT_BYTES: usize = 256 << 20;

/// A buffer with bytes of a file. The scanner consumes bytes at the front, and a source appends bytes at the end.
#[derive(Debug)]
pub(in super::super) struct Buffer {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

/// Reason why a buffer could not be refilled.
#[derive(Debug)]
pub(in super::super) enum RefillError {
    Io(std::io::Error),
    /// A single trace event is larger than the limit. The value is the limit in bytes.
    EventTooLarge(usize),
}

impl From<std::io::Error> for RefillError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// A source of bytes for the scanner.
pub(in super::super) trait Source {
    /// Appends at least as many bytes as are unread in `buffer`. Otherwise, a large trace event from a pipe would be
    /// scanned again for every few bytes that arrive. Returns true if the input has no more bytes.
    fn refill(&mut self, buffer: &mut Buffer) -> Result<bool, RefillError>;
}

impl Buffer {
    /// Creates an empty buffer with a capacity of `size` bytes.
    pub(in super::super) fn new(size: usize) -> Self {
        Self { bytes: vec![0; size + PADDING], begin: 0, end: 0 }
    }

    /// Returns the unread bytes, followed by the padding.
    pub(super) fn padded(&self) -> &[u8] {
        &self.bytes[self.begin..self.end + PADDING]
    }

    pub(in super::super) fn unread(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    pub(in super::super) fn consume(&mut self, count: usize) {
        self.begin += count;
    }

    /// Returns the capacity of the buffer in bytes.
    pub(in super::super) fn size(&self) -> usize {
        self.bytes.len() - PADDING
    }

    pub(in super::super) fn is_full(&self) -> bool {
        self.end == self.size()
    }

    /// Empties the buffer and reserves `headroom` free bytes at its front.
    pub(in super::super) fn clear(&mut self, headroom: usize) {
        (self.begin, self.end) = (headroom, headroom);
    }

    /// Replaces the content of the buffer by `bytes`. If necessary, the buffer grows.
    pub(super) fn set(&mut self, bytes: &[u8]) {
        if bytes.len() > self.size() {
            self.bytes.resize(bytes.len() + PADDING, 0);
        }
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        self.bytes[bytes.len()..bytes.len() + PADDING].fill(0);
        (self.begin, self.end) = (0, bytes.len());
    }

    /// Inserts `bytes` directly before the unread bytes. Returns false if there is not enough room for `bytes`.
    pub(in super::super) fn prepend(&mut self, bytes: &[u8]) -> bool {
        let Some(begin) = self.begin.checked_sub(bytes.len()) else { return false };
        self.bytes[begin..self.begin].copy_from_slice(bytes);
        self.begin = begin;
        true
    }

    /// Appends `bytes` after the unread bytes. If necessary, the buffer grows. Returns an error if the buffer already
    /// contains `limit` or more unread bytes.
    pub(in super::super) fn append(&mut self, bytes: &[u8], limit: usize) -> Result<(), RefillError> {
        if self.unread().len() >= limit {
            return Err(RefillError::EventTooLarge(limit));
        }
        let end = self.end + bytes.len();
        self.bytes.truncate(self.end);
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(end + PADDING, 0);
        self.end = end;
        Ok(())
    }

    /// Reads from `input` once. At most as many bytes are read as fit into the buffer. Returns the number of bytes that
    /// were read, which is 0 at the end of the input.
    pub(in super::super) fn read(&mut self, input: &mut impl Read) -> std::io::Result<usize> {
        let room = self.size();
        let count = loop {
            match input.read(&mut self.bytes[self.end..room]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.end += count;
        self.bytes[self.end..self.end + PADDING].fill(0);
        Ok(count)
    }

    /// Moves the unread bytes to the front of the buffer.
    pub(in super::super) fn move_to_front(&mut self) {
        self.bytes.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
    }

    /// Moves the unread bytes to the front of the buffer. Doubles the size of the buffer if the unread bytes fill the
    /// whole buffer.
    fn make_room(&mut self, size: usize) -> Result<(), RefillError> {
        self.move_to_front();
        let new_size = if self.is_full() { self.size() * 2 } else { self.size() }.max(size);
        if self.is_full() && self.size() >= MAX_EVENT_BYTES {
            return Err(RefillError::EventTooLarge(MAX_EVENT_BYTES));
        }
        if new_size > self.size() {
            self.bytes.resize(new_size.min(MAX_EVENT_BYTES.max(size)) + PADDING, 0);
        }
        Ok(())
    }
}

/// A [`Source`] for any type that implements [`Read`].
pub(super) struct ReaderSource<R> {
    pub(super) input: R,
    /// Initial size of the buffer in bytes.
    pub(super) size: usize,
}

impl<R: Read> Source for ReaderSource<R> {
    fn refill(&mut self, buffer: &mut Buffer) -> Result<bool, RefillError> {
        buffer.make_room(self.size.max(PADDING))?;
        let target = (buffer.unread().len() * 2).clamp(1, buffer.size());
        while buffer.unread().len() < target {
            if buffer.read(&mut self.input)? == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

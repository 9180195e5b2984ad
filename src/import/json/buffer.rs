//! What the scanner reads in: some of the file, zeros behind it, and how more of it comes.
//!
//! A [`Source`] is asked for more while some bytes are unread. One that reads ([`Reads`]) moves those to the
//! front and reads on behind them. One that has the next bytes in a buffer of its own puts the unread ones in
//! front of those and hands that buffer over, so that nothing else is copied: see `gzip`.

use std::io::Read;

/// Zeros behind the bytes, which are no part of the trace, so that 64 can be loaded anywhere.
pub(in super::super) const PADDING: usize = 64;
/// No honest event is larger, and the buffer does not grow beyond.
pub(super) const LARGEST: usize = 256 << 20;

/// Bytes of a file: taken from the front, filled from behind.
#[derive(Debug)]
pub(in super::super) struct Buffer {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

/// Why no more bytes came.
#[derive(Debug)]
pub(in super::super) enum Lack {
    Io(std::io::Error),
    /// A single event is larger than [`LARGEST`].
    Room,
}

impl From<std::io::Error> for Lack {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// Where the bytes come from.
pub(in super::super) trait Source {
    /// Puts more behind the unread bytes of `buffer`: at least as many as are unread, so that a large event is
    /// not looked at again for every few bytes of a pipe. Says whether the input has ended.
    fn refill(&mut self, buffer: &mut Buffer) -> Result<bool, Lack>;
}

impl Buffer {
    /// An empty one for `size` bytes.
    pub(in super::super) fn new(size: usize) -> Self {
        Self { bytes: vec![0; size + PADDING], begin: 0, end: 0 }
    }

    /// The unread bytes and the padding.
    pub(super) fn padded(&self) -> &[u8] {
        &self.bytes[self.begin..self.end + PADDING]
    }

    pub(in super::super) fn unread(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    pub(in super::super) fn consume(&mut self, count: usize) {
        self.begin += count;
    }

    /// How many bytes it can hold.
    pub(in super::super) fn size(&self) -> usize {
        self.bytes.len() - PADDING
    }

    pub(in super::super) fn is_full(&self) -> bool {
        self.end == self.size()
    }

    /// Empties it, and leaves `headroom` bytes free in front of what comes.
    pub(in super::super) fn clear(&mut self, headroom: usize) {
        (self.begin, self.end) = (headroom, headroom);
    }

    /// Puts `bytes` in front of the unread ones, if there is room for them.
    pub(in super::super) fn prepend(&mut self, bytes: &[u8]) -> bool {
        let Some(begin) = self.begin.checked_sub(bytes.len()) else { return false };
        self.bytes[begin..self.begin].copy_from_slice(bytes);
        self.begin = begin;
        true
    }

    /// Puts `bytes` behind the unread ones, and grows for it.
    pub(in super::super) fn append(&mut self, bytes: &[u8]) -> Result<(), Lack> {
        if self.unread().len() >= LARGEST {
            return Err(Lack::Room);
        }
        let end = self.end + bytes.len();
        self.bytes.truncate(self.end);
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(end + PADDING, 0);
        self.end = end;
        Ok(())
    }

    /// Reads once from `input`, as much as there is room for; 0 at its end.
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

    /// Moves what is unread to the front. Where that is all there is room for, makes twice the room.
    fn make_room(&mut self, size: usize) -> Result<(), Lack> {
        self.bytes.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let wanted = if self.is_full() { self.size() * 2 } else { self.size() }.max(size);
        if self.is_full() && self.size() >= LARGEST {
            return Err(Lack::Room);
        }
        if wanted > self.size() {
            self.bytes.resize(wanted.min(LARGEST.max(size)) + PADDING, 0);
        }
        Ok(())
    }
}

/// Anything that can be read.
pub(super) struct Reads<R> {
    pub(super) input: R,
    /// How much at once.
    pub(super) size: usize,
}

impl<R: Read> Source for Reads<R> {
    fn refill(&mut self, buffer: &mut Buffer) -> Result<bool, Lack> {
        buffer.make_room(self.size.max(PADDING))?;
        let enough = (buffer.unread().len() * 2).clamp(1, buffer.size());
        while buffer.unread().len() < enough {
            if buffer.read(&mut self.input)? == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

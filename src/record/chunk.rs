//! Rows that are written at once: what a process leaves that ends in their middle is told by their checksum.

use std::mem;

use super::Row;
use super::about::{Mark, Standing, WriterId};
use super::encode::{append, head, put_mark, put_row, put_writer, tag};

/// A row's tag and length, and the checksum of the rows in it.
const HEAD: usize = 5 + 4;

/// Gathers rows, to be written at once. Starts with room for its own head.
#[derive(Debug)]
pub struct Chunk(Vec<u8>);

impl Default for Chunk {
    fn default() -> Self {
        Self(vec![0; HEAD])
    }
}

impl Chunk {
    /// What a file of chunks begins with.
    pub fn file_head() -> [u8; 16] {
        head(Standing::default())
    }

    /// The same of one that stands otherwise: written over the other, as there may be no room for more.
    pub fn head_of(standing: Standing) -> [u8; 16] {
        head(standing)
    }

    /// Adds a row.
    pub fn row(&mut self, row: &Row<'_>) {
        append(&mut self.0, |out| put_row(out, row));
    }

    /// Adds who writes.
    pub fn writer(&mut self, id: &WriterId) {
        append(&mut self.0, |out| put_writer(out, id));
    }

    /// Adds a moment.
    pub fn mark(&mut self, mark: &Mark) {
        append(&mut self.0, |out| put_mark(out, mark));
    }

    /// Adds that nothing is missing.
    pub fn whole(&mut self) {
        append(&mut self.0, |_| tag::WHOLE);
    }

    /// Adds that the process runs on and is not recorded any more, for want of memory.
    pub fn starved(&mut self) {
        append(&mut self.0, |_| tag::STARVED);
    }

    /// Adds sums that were put together elsewhere.
    pub(super) fn sums(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        append(&mut self.0, |out| {
            put(out.0);
            tag::SUMS
        });
    }

    /// How many bytes its rows have by now.
    pub fn len(&self) -> usize {
        self.0.len() - HEAD
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.len() == HEAD
    }

    /// The bytes to write; it is empty again.
    pub fn take(&mut self) -> Vec<u8> {
        let mut bytes = mem::take(self).0;
        let (length, crc) = ((bytes.len() - 5) as u32, crc32fast::hash(&bytes[HEAD..]));
        bytes[0] = tag::CHUNK;
        bytes[1..5].copy_from_slice(&length.to_le_bytes());
        bytes[5..9].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

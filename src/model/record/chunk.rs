//! A chunk: rows that are written in one piece. The chunk's checksum detects that a process died while writing the
//! chunk.

use std::mem;

use super::Row;
use super::about::{Mark, Standing, WriterId};
use super::encode::{append, head, put_mark, put_row, put_writer, tag};

/// Size of the tag and length of the chunk row, plus the checksum of the rows in the chunk.
const HEAD: usize = 5 + 4;

/// Collects rows to be written in one piece. The buffer reserves space for the chunk's own header.
#[derive(Debug)]
pub struct Chunk(Vec<u8>);

impl Default for Chunk {
    fn default() -> Self {
        Self(vec![0; HEAD])
    }
}

impl Chunk {
    /// Returns the header of a file of chunks.
    pub fn file_head() -> [u8; 16] {
        head(Standing::default())
    }

    /// Returns the header for another state. The new header overwrites the existing header, because there may be no
    /// space to append.
    pub fn head_of(standing: Standing) -> [u8; 16] {
        head(standing)
    }

    /// Adds a row.
    pub fn row(&mut self, row: &Row<'_>) {
        append(&mut self.0, |out| put_row(out, row));
    }

    /// Adds the identity of the writer.
    pub fn writer(&mut self, id: &WriterId) {
        append(&mut self.0, |out| put_writer(out, id));
    }

    /// Adds a checkpoint mark.
    pub fn mark(&mut self, mark: &Mark) {
        append(&mut self.0, |out| put_mark(out, mark));
    }

    /// Adds the end row, which marks the recording as complete.
    pub fn whole(&mut self) {
        append(&mut self.0, |_| tag::WHOLE);
    }

    /// Adds a row which records that recording stopped for lack of memory while the process continues to run.
    pub fn starved(&mut self) {
        append(&mut self.0, |_| tag::STARVED);
    }

    /// Adds a sums row, whose payload `put` writes.
    pub(super) fn sums(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        append(&mut self.0, |out| {
            put(out.0);
            tag::SUMS
        });
    }

    /// Returns the size of the chunk's rows in bytes.
    pub fn len(&self) -> usize {
        self.0.len() - HEAD
    }

    /// Whether the chunk has no rows.
    pub fn is_empty(&self) -> bool {
        self.0.len() == HEAD
    }

    /// Returns the bytes to write and clears the chunk.
    pub fn take(&mut self) -> Vec<u8> {
        let mut bytes = mem::take(self).0;
        let (length, crc) = ((bytes.len() - 5) as u32, crc32fast::hash(&bytes[HEAD..]));
        bytes[0] = tag::CHUNK;
        bytes[1..5].copy_from_slice(&length.to_le_bytes());
        bytes[5..9].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

//! A chunk is a row that contains other rows and is written with a single write. A chunk has a wrong checksum if the
//! process died while it wrote the chunk.

use std::mem;

use super::encode::{append, header, put_function, put_mark, put_row, put_writer, tag};
use super::metadata::{CheckpointMark, RecordingState, WriterId};
use super::payload::Payload;
use super::{Frame, FrameFunction, Row};

/// Number of bytes before the first row in a chunk: the tag and length of the chunk row, and the checksum of the rows
/// in it.
const HEADER_BYTES: usize = 5 + 4;

/// A buffer of rows that are written with a single write. The first bytes of the buffer are reserved for the header of
/// the chunk.
#[derive(Debug)]
pub struct Chunk(Vec<u8>);

impl Default for Chunk {
    fn default() -> Self {
        Self(vec![0; HEADER_BYTES])
    }
}

impl Chunk {
    /// Returns the header for a new file that consists of chunks.
    pub fn file_header() -> [u8; 16] {
        header(RecordingState::default())
    }

    /// Returns the file header for `state`. The returned header overwrites the file's existing header, so it can be
    /// written even if the disk is full.
    pub fn header(state: RecordingState) -> [u8; 16] {
        header(state)
    }

    /// Adds a row of any kind that [`Row`] can represent.
    pub fn row(&mut self, row: &Row<'_>) {
        append(&mut self.0, |out| put_row(out, row));
    }

    /// Adds a row with the identity of the writer.
    pub fn writer(&mut self, id: &WriterId) {
        append(&mut self.0, |out| put_writer(out, id));
    }

    /// Adds a row with a checkpoint mark.
    pub fn mark(&mut self, mark: &CheckpointMark) {
        append(&mut self.0, |out| put_mark(out, mark));
    }

    /// Adds the end row, which marks the recording as complete.
    pub fn end(&mut self) {
        append(&mut self.0, |_| tag::END);
    }

    /// Adds a row which states that recording stopped because memory was exhausted, although the process continues to
    /// run.
    pub fn memory_exhausted(&mut self) {
        append(&mut self.0, |_| tag::MEMORY_EXHAUSTED);
    }

    /// Adds a row with a function of a native frame. `path` is the id of the source file's path, or 0 if the path is
    /// unknown. `function` contains the path itself only if no earlier row contains this path.
    pub fn function(&mut self, frame: Frame, function: &FrameFunction<'_>, path: u32) {
        append(&mut self.0, |out| put_function(out, frame, function, path));
    }

    /// Adds a row with the given tag. `put` writes the payload of the row.
    pub(super) fn payload(&mut self, tag: u8, put: impl FnOnce(&mut Payload<'_>)) {
        append(&mut self.0, |out| {
            put(out);
            tag
        });
    }

    /// Returns the size of the chunk's rows in bytes.
    pub fn len(&self) -> usize {
        self.0.len() - HEADER_BYTES
    }

    /// Whether the chunk has no rows.
    pub fn is_empty(&self) -> bool {
        self.0.len() == HEADER_BYTES
    }

    /// Returns the bytes to write and clears the chunk.
    pub fn take(&mut self) -> Vec<u8> {
        let mut bytes = mem::take(self).0;
        let (length, crc) = ((bytes.len() - 5) as u32, crc32fast::hash(&bytes[HEADER_BYTES..]));
        bytes[0] = tag::CHUNK;
        bytes[1..5].copy_from_slice(&length.to_le_bytes());
        bytes[5..9].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

//! Reads compressed traces (gzip, zstd) with two threads. One thread inflates the data, and the second thread reads the
//! inflated data.
//!
//! The reading thread does not copy the inflated bytes: the scanner reads these bytes in the block to which the
//! inflating thread wrote them. If a trace event is split between two blocks, its first part is copied to the front of
//! the second block.

use std::fmt;
use std::io::{BufReader, Cursor, ErrorKind, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::gzip_members::GzipMembers;
use super::json::buffer::{Buffer, MAX_EVENT_BYTES, RefillError, Source};
use super::options::Options;
use super::zstd::{self, ZstdFrames};
use gpuflame_model::error::Result;

/// Size of a block in bytes, and number of blocks. Blocks are passed back and forth between the two threads.
const BLOCK_BYTES: usize = 256 << 10;
const BLOCK_COUNT: usize = 32;
/// Number of blocks that are returned to the inflating thread together. The reading thread is slower than the inflating
/// thread, so the inflating thread usually waits for an empty block. Waking the inflating thread for each block would
/// cost more time than returning sixteen blocks together.
const RETURN_BATCH: usize = BLOCK_COUNT / 2;
/// Size in bytes of the free space at the front of a block, to which the unread bytes of the previous block are copied.
/// Most trace events are smaller than this space.
const HEADROOM_BYTES: usize = 32 << 10;
/// Number of compressed bytes that are read in one step.
const INPUT_BYTES: usize = 128 << 10;

/// A trace event of up to this size in bytes is always accepted in a compressed file. Larger events are accepted only
/// in a large compressed file (see `EVENT_BYTES_PER_COMPRESSED`).
const MIN_EVENT_LIMIT: usize = 16 << 20;
/// Maximum size of a trace event, as a multiple of the compressed bytes that were read so far. Real traces shrink to
/// about a tenth of their size by compression. A run of equal bytes shrinks to a thousandth. Without this limit, a
/// small file with a run of equal bytes would take a large amount of memory.
const EVENT_BYTES_PER_COMPRESSED: u64 = 64;

/// Whether a file that begins with `head` is compressed in a way that gpuflame can read.
pub(super) fn is_compressed(head: &[u8]) -> bool {
    head.starts_with(&[0x1f, 0x8b]) || zstd::is_zstd(head)
}

type InputReader = BufReader<CountingReader>;

/// Remarks for the user about a compressed stream. The list is complete when the whole stream has been read.
pub(super) type StreamRemarks = Arc<Mutex<Vec<String>>>;

/// A stream of bytes that is decompressed, or passed through unchanged.
pub(super) struct Inflater {
    stream: Stream,
    remarks: StreamRemarks,
    /// Number of compressed bytes that were read from the file so far.
    compressed: Arc<AtomicU64>,
}

enum Stream {
    Gzip(Box<GzipMembers<InputReader>>),
    Zstd(Box<ZstdFrames<InputReader>>),
    Plain(InputReader),
    /// The stream is truncated or damaged. The remaining read returns this error.
    Broken(Option<std::io::Error>),
}

impl fmt::Debug for Inflater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_compressed() { "Compressed" } else { "Plain" })
    }
}

/// A reader that counts the bytes that it reads from the file.
pub(super) struct CountingReader {
    input: Box<dyn Read + Send>,
    count: Arc<AtomicU64>,
}

impl Read for CountingReader {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(bytes)?;
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Parts of the error messages for compressed data that ends too early or is damaged.
pub(super) const TRUNCATED_AT: &str = "data is truncated at byte";
pub(super) const DAMAGED_AT: &str = "data is damaged at byte";

/// Whether the error means that the compressed data is truncated or damaged. In that case, the data before the damage
/// can be used.
pub(super) fn is_damage(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput)
}

impl Inflater {
    /// Decompresses `input`, which begins with `head` and may consist of several gzip members or zstd frames.
    pub(super) fn new(head: &[u8], input: Box<dyn Read + Send>) -> Self {
        let is_zstd = zstd::is_zstd(head);
        Self::with(input, |input| match is_zstd {
            true => Stream::Zstd(Box::new(ZstdFrames::new(input))),
            false => Stream::Gzip(Box::new(GzipMembers::new(input))),
        })
    }

    /// Creates a stream that passes `input` through unchanged.
    pub(super) fn plain(input: Box<dyn Read + Send>) -> Self {
        Self::with(input, Stream::Plain)
    }

    fn with(input: Box<dyn Read + Send>, stream: impl FnOnce(InputReader) -> Stream) -> Self {
        let compressed = Arc::new(AtomicU64::new(0));
        let input = CountingReader { input, count: Arc::clone(&compressed) };
        let stream = stream(BufReader::with_capacity(INPUT_BYTES, input));
        Self { stream, remarks: StreamRemarks::default(), compressed }
    }

    pub(super) fn is_compressed(&self) -> bool {
        !matches!(self.stream, Stream::Plain(_))
    }

    /// Returns the list of remarks. The list is complete when the whole stream has been read.
    pub(super) fn remarks(&self) -> StreamRemarks {
        Arc::clone(&self.remarks)
    }

    /// Replaces the stream by a stream that only returns this error. Call this function when all usable data has been
    /// read.
    pub(super) fn broken(self, error: std::io::Error) -> Self {
        Self { stream: Stream::Broken(Some(error)), ..self }
    }

    fn bytes_read(&self) -> u64 {
        self.compressed.load(Ordering::Relaxed)
    }

    fn remark(&self, text: String) {
        self.remarks.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// Adds a remark about zero bytes that were skipped, if there were any. Call this function after the end of the
    /// stream.
    fn report_zeros(&self) {
        let zeros = match &self.stream {
            Stream::Gzip(members) => members.zeros(),
            Stream::Zstd(frames) => frames.zeros(),
            Stream::Plain(_) | Stream::Broken(_) => 0,
        };
        let mut remarks = self.remarks.lock().unwrap_or_else(PoisonError::into_inner);
        if zeros > 0 && remarks.is_empty() {
            remarks.push(format!("skipped {zeros} zero bytes after the compressed data"));
        }
    }

    /// Adds the kind of damage, and its byte offset in the file, to an error.
    fn describe(&self, error: &std::io::Error) -> std::io::Error {
        let (word, buffered) = match &self.stream {
            Stream::Gzip(members) => ("gzip", members.input().map_or(0, |input| input.buffer().len())),
            Stream::Zstd(frames) => ("zstd", frames.input().buffer().len()),
            Stream::Plain(_) | Stream::Broken(_) => {
                return std::io::Error::new(error.kind(), error.to_string());
            }
        };
        let at = self.bytes_read().saturating_sub(buffered as u64);
        let what = match error.kind() {
            ErrorKind::UnexpectedEof => format!("the {word} {TRUNCATED_AT} {at} of the file"),
            _ if is_damage(error) => format!(
                "the {word} {DAMAGED_AT} {at} of the file or before it ({error}): the file was changed, or \
                 two programs wrote to it at once"
            ),
            _ => return std::io::Error::new(error.kind(), error.to_string()),
        };
        std::io::Error::new(error.kind(), what)
    }

    /// Calls `read` with a reader that returns `head` followed by the output of the stream. While `read` runs, another
    /// thread inflates the stream.
    pub(super) fn read_with_thread<T: Send>(
        self,
        head: Vec<u8>,
        options: &Options,
        read: impl FnOnce(BlockReader) -> Result<T>,
    ) -> Result<T> {
        let compressed = Arc::clone(&self.compressed);
        let (full, blocks) = sync_channel(BLOCK_COUNT);
        let (returns, empty) = sync_channel(BLOCK_COUNT);
        let size = HEADROOM_BYTES + options.buffer.clamp(1, BLOCK_BYTES);
        (0..BLOCK_COUNT).for_each(|_| drop(returns.send(Buffer::new(size))));
        thread::scope(|scope| {
            scope.spawn(move || self.fill_blocks(head, &empty, &full, options));
            let block = Buffer::new(0);
            read(BlockReader { blocks, returns, used: Vec::new(), size, block, compressed })
        })
    }

    /// Fills blocks until the stream ends, an error occurs, or the thread that reads the blocks has ended.
    fn fill_blocks(
        self,
        head: Vec<u8>,
        empty: &Receiver<Buffer>,
        full: &SyncSender<std::io::Result<Buffer>>,
        options: &Options,
    ) {
        let mut input = Cursor::new(head).chain(self);
        let mut reported = 0;
        while let Ok(mut block) = empty.recv() {
            block.clear(HEADROOM_BYTES);
            let mut ended = None;
            while !block.is_full() && ended.is_none() {
                match block.read(&mut input) {
                    Ok(0) => ended = Some(Ok(())),
                    Ok(_) => {}
                    Err(error) if options.accept_cut && is_damage(&error) => {
                        input.get_ref().1.remark(error.to_string());
                        ended = Some(Ok(()));
                    }
                    Err(error) => ended = Some(Err(error)),
                }
            }
            let bytes_read = input.get_ref().1.bytes_read();
            options.add_bytes_read(bytes_read - reported);
            reported = bytes_read;
            if full.send(Ok(block)).is_err() {
                return;
            }
            match ended {
                None => {}
                Some(Ok(())) => return,
                Some(Err(error)) => {
                    // Sending fails if the thread that reads the blocks has ended.
                    let _ = full.send(Err(error));
                    return;
                }
            }
        }
    }
}

impl Read for Inflater {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let read = match &mut self.stream {
            Stream::Gzip(members) => members.read(bytes),
            Stream::Zstd(frames) => frames.read(bytes),
            Stream::Plain(input) => input.read(bytes),
            Stream::Broken(error) => return error.take().map_or(Ok(0), Err),
        };
        if matches!(read, Ok(0)) && !bytes.is_empty() {
            self.report_zeros();
        }
        read.map_err(|error| self.describe(&error))
    }
}

/// Receives the blocks that the inflating thread filled.
pub(super) struct BlockReader {
    blocks: Receiver<std::io::Result<Buffer>>,
    returns: SyncSender<Buffer>,
    /// Blocks that were read, but that were not returned to the inflating thread yet.
    used: Vec<Buffer>,
    /// Size of a block in bytes.
    size: usize,
    /// Block from which the implementation of [`Read`] reads.
    block: Buffer,
    /// Number of compressed bytes that were read from the file so far.
    compressed: Arc<AtomicU64>,
}

impl BlockReader {
    /// Returns the next block; `None` at the end of the stream.
    fn next(&self) -> std::io::Result<Option<Buffer>> {
        self.blocks.recv().ok().transpose()
    }

    /// Returns the maximum size in bytes that a trace event may have. The maximum event size grows with the number of
    /// compressed bytes that were read so far.
    fn event_limit(&self) -> usize {
        let limit = self.compressed.load(Ordering::Relaxed).saturating_mul(EVENT_BYTES_PER_COMPRESSED);
        usize::try_from(limit).unwrap_or(usize::MAX).clamp(MIN_EVENT_LIMIT, MAX_EVENT_BYTES)
    }

    /// Returns a block to the inflating thread for reuse. Several blocks are returned in one step. A buffer that does
    /// not have the size of a block is dropped instead.
    fn return_block(&mut self, block: Buffer) {
        if block.size() == self.size {
            self.used.push(block);
        }
        if self.used.len() == RETURN_BATCH {
            // At the end of the stream, the inflating thread receives no more blocks, so sending may fail.
            self.used.drain(..).for_each(|block| drop(self.returns.send(block)));
        }
    }
}

/// A reader for a caller that loads the whole inflated content into memory. The reader limits the size of the content
/// to a multiple of the size of the compressed file, because the content must fit into memory.
pub(super) struct InProportion {
    blocks: BlockReader,
    count: u64,
}

impl BlockReader {
    /// Limits the size of the content to a multiple of the size of the compressed file.
    pub(super) fn in_proportion(self) -> InProportion {
        InProportion { blocks: self, count: 0 }
    }
}

impl Read for InProportion {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.blocks.read(bytes)?;
        self.count += count as u64;
        let compressed = self.blocks.compressed.load(Ordering::Relaxed);
        let limit = compressed.saturating_mul(EVENT_BYTES_PER_COMPRESSED).max(MIN_EVENT_LIMIT as u64);
        match self.count > limit {
            true => {
                let what = format!(
                    "the contents are more than {EVENT_BYTES_PER_COMPRESSED} times as large as the file; unpack it first \
                     if it is a trace"
                );
                Err(std::io::Error::new(ErrorKind::FileTooLarge, what))
            }
            false => Ok(count),
        }
    }
}

impl Source for BlockReader {
    fn refill(&mut self, buffer: &mut Buffer) -> std::result::Result<bool, RefillError> {
        let unread = buffer.unread().len();
        if unread > HEADROOM_BYTES {
            // An event that is larger than a block was assembled in a larger buffer, which is dropped.
            if buffer.size() == self.size {
                let mut grown = Buffer::new(0);
                grown.append(buffer.unread(), MAX_EVENT_BYTES)?;
                self.return_block(std::mem::replace(buffer, grown));
            }
            buffer.move_to_front();
            while buffer.unread().len() < 2 * unread {
                let Some(block) = self.next()? else { return Ok(true) };
                buffer.append(block.unread(), self.event_limit())?;
                self.return_block(block);
            }
            return Ok(false);
        }
        let Some(mut block) = self.next()? else { return Ok(true) };
        assert!(block.prepend(buffer.unread()), "the headroom is as large as that");
        self.return_block(std::mem::replace(buffer, block));
        Ok(false)
    }
}

impl Read for BlockReader {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        while self.block.unread().is_empty() {
            let Some(block) = self.next()? else { return Ok(0) };
            let used = std::mem::replace(&mut self.block, block);
            self.return_block(used);
        }
        let unread = self.block.unread();
        let count = bytes.len().min(unread.len());
        bytes[..count].copy_from_slice(&unread[..count]);
        self.block.consume(count);
        Ok(count)
    }
}

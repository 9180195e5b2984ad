//! Reads compressed traces with two threads: one thread inflates, and the other reads.
//!
//! Inflated bytes are not copied. The scanner reads the bytes in the block into which the first thread inflated them.
//! If an event is split between two blocks, its first bytes are prepended to the second block.

use std::fmt;
use std::io::{BufReader, Cursor, ErrorKind, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use flate2::read::MultiGzDecoder;

use super::json::buffer::{Buffer, RefillError, Source};
use super::options::Options;
use gpuflame_model::error::Result;

/// Size of a block and number of blocks. A block is the unit that is passed between the threads.
const BLOCK_BYTES: usize = 256 << 10;
const BLOCK_COUNT: usize = 32;
/// Number of blocks that are returned together. The reading thread is slower, so the inflating thread waits for every
/// block. Waking it once per block costs more than returning sixteen blocks at a time.
const RETURN_BATCH: usize = BLOCK_COUNT / 2;
/// Free space at the front of a block, for the unread bytes of the previous block. Most events are smaller than this
/// space.
const HEADROOM_BYTES: usize = 32 << 10;
/// Number of compressed bytes per read.
const INPUT_BYTES: usize = 128 << 10;

pub(super) fn is_gzip(head: &[u8]) -> bool {
    head.starts_with(&[0x1f, 0x8b])
}

type InputReader = BufReader<CountingReader>;

/// A stream that is inflated or passed through unchanged.
pub(super) enum Inflater {
    Gzip(Box<MultiGzDecoder<InputReader>>),
    Plain(InputReader),
    /// A truncated stream, of which only this error is still to be returned. The second field is the number of
    /// compressed bytes read.
    Truncated(Option<std::io::Error>, u64),
}

impl fmt::Debug for Inflater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_gzip() { "Gzip" } else { "Plain" })
    }
}

/// Counts the compressed bytes read.
pub(super) struct CountingReader {
    input: Box<dyn Read + Send>,
    count: u64,
}

impl Read for CountingReader {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(bytes)?;
        self.count += count as u64;
        Ok(count)
    }
}

impl Inflater {
    /// Inflates `input`, which may consist of several concatenated gzip files.
    pub(super) fn new(input: Box<dyn Read + Send>) -> Self {
        Self::Gzip(Box::new(MultiGzDecoder::new(Self::input(input))))
    }

    /// Passes `input` through unchanged.
    pub(super) fn plain(input: Box<dyn Read + Send>) -> Self {
        Self::Plain(Self::input(input))
    }

    fn input(input: Box<dyn Read + Send>) -> InputReader {
        BufReader::with_capacity(INPUT_BYTES, CountingReader { input, count: 0 })
    }

    pub(super) fn is_gzip(&self) -> bool {
        matches!(self, Self::Gzip(_) | Self::Truncated(..))
    }

    /// Replaces the stream, whose data has all been read, by a stream that only returns this error.
    pub(super) fn truncated(self, error: std::io::Error) -> Self {
        Self::Truncated(Some(error), self.bytes_read())
    }

    fn bytes_read(&self) -> u64 {
        match self {
            Self::Truncated(_, bytes_read) => *bytes_read,
            Self::Gzip(gzip) => gzip.get_ref().get_ref().count,
            Self::Plain(input) => input.get_ref().count,
        }
    }

    /// Calls `read` with `head` and the output of the stream, which a second thread inflates meanwhile.
    pub(super) fn read_with_thread<T: Send>(
        self,
        head: Vec<u8>,
        options: &Options,
        read: impl FnOnce(BlockReader) -> Result<T>,
    ) -> Result<T> {
        let (full, blocks) = sync_channel(BLOCK_COUNT);
        let (returns, empty) = sync_channel(BLOCK_COUNT);
        let size = HEADROOM_BYTES + options.buffer.clamp(1, BLOCK_BYTES);
        (0..BLOCK_COUNT).for_each(|_| drop(returns.send(Buffer::new(size))));
        thread::scope(|scope| {
            scope.spawn(move || self.fill_blocks(head, &empty, &full, options));
            read(BlockReader { blocks, returns, used: Vec::new(), size, block: Buffer::new(0) })
        })
    }

    /// Fills blocks until the end of the stream, until an error, or until the reader is gone.
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
                    Err(error) if options.accept_cut && error.kind() == ErrorKind::UnexpectedEof => {
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
                    // Sending fails if the reader is already gone.
                    let _ = full.send(Err(error));
                    return;
                }
            }
        }
    }
}

impl Read for Inflater {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Gzip(gzip) => gzip.read(bytes).map_err(|error| {
                let what = format!("the gzip data is truncated or damaged ({error})");
                std::io::Error::new(error.kind(), what)
            }),
            Self::Plain(input) => input.read(bytes),
            Self::Truncated(error, _) => error.take().map_or(Ok(0), Err),
        }
    }
}

/// The reading end of the exchange between the two threads.
pub(super) struct BlockReader {
    blocks: Receiver<std::io::Result<Buffer>>,
    returns: SyncSender<Buffer>,
    /// Blocks that were read and not returned yet.
    used: Vec<Buffer>,
    /// Size of a block in bytes.
    size: usize,
    /// Block that [`Read`] reads from.
    block: Buffer,
}

impl BlockReader {
    /// Returns the next block; `None` at the end of the stream.
    fn next(&self) -> std::io::Result<Option<Buffer>> {
        self.blocks.recv().ok().transpose()
    }

    /// Returns a block to the inflating thread to be filled again. Buffers of another size are dropped.
    fn return_block(&mut self, block: Buffer) {
        if block.size() == self.size {
            self.used.push(block);
        }
        if self.used.len() == RETURN_BATCH {
            // At the end of the stream, the inflating thread no longer receives blocks.
            self.used.drain(..).for_each(|block| drop(self.returns.send(block)));
        }
    }
}

impl Source for BlockReader {
    fn refill(&mut self, buffer: &mut Buffer) -> std::result::Result<bool, RefillError> {
        let unread = buffer.unread().len();
        if unread > HEADROOM_BYTES {
            // An event larger than a block is assembled in a buffer that grows.
            let mut grown = Buffer::new(0);
            grown.append(buffer.unread())?;
            self.return_block(std::mem::replace(buffer, grown));
            while buffer.unread().len() < 2 * unread {
                let Some(block) = self.next()? else { return Ok(true) };
                buffer.append(block.unread())?;
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

//! Compressed traces: inflated on one thread, read on another.
//!
//! What is inflated stays where it is: the scanner reads it there, and the few bytes of an event that the end of
//! one parcel cuts go in front of the next.

use std::fmt;
use std::io::{BufReader, Cursor, ErrorKind, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use flate2::read::MultiGzDecoder;

use super::json::buffer::{Buffer, Lack, Source};
use super::options::Options;
use crate::error::Result;

/// What goes from thread to thread at once, and how many of these there are.
const PARCEL: usize = 256 << 10;
const PARCELS: usize = 32;
/// So many are given back at once. The reading thread is the slower one: the other waits for every parcel that
/// comes back, and to wake it takes longer than to give sixteen.
const AT_ONCE: usize = PARCELS / 2;
/// How much of a parcel stays free in front, for what was left of the one before. Most events take less.
const HEADROOM: usize = 32 << 10;
/// Compressed bytes that are read at once.
const INPUT: usize = 128 << 10;

pub(super) fn is_gzip(head: &[u8]) -> bool {
    head.starts_with(&[0x1f, 0x8b])
}

type Input = BufReader<Counting>;

/// A stream that is inflated, or passed through.
pub(super) enum Unzip {
    Gzip(Box<MultiGzDecoder<Input>>),
    Plain(Input),
    /// Nothing more comes but this error; so many compressed bytes were taken.
    Cut(Option<std::io::Error>, u64),
}

impl fmt::Debug for Unzip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_gzip() { "Gzip" } else { "Plain" })
    }
}

/// Remembers how many compressed bytes were taken.
pub(super) struct Counting {
    input: Box<dyn Read + Send>,
    count: u64,
}

impl Read for Counting {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(bytes)?;
        self.count += count as u64;
        Ok(count)
    }
}

impl Unzip {
    /// Inflates `input`, which may be several gzip files in a row.
    pub(super) fn new(input: Box<dyn Read + Send>) -> Self {
        Self::Gzip(Box::new(MultiGzDecoder::new(Self::input(input))))
    }

    /// Passes `input` through.
    pub(super) fn plain(input: Box<dyn Read + Send>) -> Self {
        Self::Plain(Self::input(input))
    }

    fn input(input: Box<dyn Read + Send>) -> Input {
        BufReader::with_capacity(INPUT, Counting { input, count: 0 })
    }

    pub(super) fn is_gzip(&self) -> bool {
        matches!(self, Self::Gzip(_) | Self::Cut(..))
    }

    /// The same stream, of which all was read before this error.
    pub(super) fn cut(self, error: std::io::Error) -> Self {
        Self::Cut(Some(error), self.taken())
    }

    fn taken(&self) -> u64 {
        match self {
            Self::Cut(_, taken) => *taken,
            Self::Gzip(gzip) => gzip.get_ref().get_ref().count,
            Self::Plain(input) => input.get_ref().count,
        }
    }

    /// Has `read` read `head` and what comes out, while a thread of its own puts it in.
    pub(super) fn piped<T: Send>(
        self,
        head: Vec<u8>,
        options: &Options,
        read: impl FnOnce(Piped) -> Result<T>,
    ) -> Result<T> {
        let (full, parcels) = sync_channel(PARCELS);
        let (give_back, empty) = sync_channel(PARCELS);
        let size = HEADROOM + options.buffer.clamp(1, PARCEL);
        (0..PARCELS).for_each(|_| drop(give_back.send(Buffer::new(size))));
        thread::scope(|scope| {
            scope.spawn(move || self.fill(head, &empty, &full, options));
            read(Piped { parcels, give_back, read: Vec::new(), size, parcel: Buffer::new(0) })
        })
    }

    /// Until the end, an error, or until nobody reads any more.
    fn fill(
        self,
        head: Vec<u8>,
        empty: &Receiver<Buffer>,
        full: &SyncSender<std::io::Result<Buffer>>,
        options: &Options,
    ) {
        let mut input = Cursor::new(head).chain(self);
        let mut told = 0;
        while let Ok(mut parcel) = empty.recv() {
            parcel.clear(HEADROOM);
            let mut ended = None;
            while !parcel.is_full() && ended.is_none() {
                match parcel.read(&mut input) {
                    Ok(0) => ended = Some(Ok(())),
                    Ok(_) => {}
                    Err(error) if options.accept_cut && error.kind() == ErrorKind::UnexpectedEof => {
                        ended = Some(Ok(()));
                    }
                    Err(error) => ended = Some(Err(error)),
                }
            }
            let taken = input.get_ref().1.taken();
            options.tell(taken - told);
            told = taken;
            if full.send(Ok(parcel)).is_err() {
                return;
            }
            match ended {
                None => {}
                Some(Ok(())) => return,
                Some(Err(error)) => {
                    // Nobody may be there to hear it.
                    let _ = full.send(Err(error));
                    return;
                }
            }
        }
    }
}

impl Read for Unzip {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Gzip(gzip) => gzip.read(bytes).map_err(|error| {
                let what = format!("the gzip data is cut short or damaged ({error})");
                std::io::Error::new(error.kind(), what)
            }),
            Self::Plain(input) => input.read(bytes),
            Self::Cut(error, _) => error.take().map_or(Ok(0), Err),
        }
    }
}

/// The reading end.
pub(super) struct Piped {
    parcels: Receiver<std::io::Result<Buffer>>,
    give_back: SyncSender<Buffer>,
    /// Parcels that were read and not given back yet.
    read: Vec<Buffer>,
    /// Bytes of a parcel.
    size: usize,
    /// What [`Read`] reads from.
    parcel: Buffer,
}

impl Piped {
    /// The next parcel; `None` at the end.
    fn next(&self) -> std::io::Result<Option<Buffer>> {
        self.parcels.recv().ok().transpose()
    }

    /// Has a parcel filled again. Other buffers are dropped.
    fn give_back(&mut self, parcel: Buffer) {
        if parcel.size() == self.size {
            self.read.push(parcel);
        }
        if self.read.len() == AT_ONCE {
            // At the end nobody takes them.
            self.read.drain(..).for_each(|parcel| drop(self.give_back.send(parcel)));
        }
    }
}

impl Source for Piped {
    fn refill(&mut self, buffer: &mut Buffer) -> std::result::Result<bool, Lack> {
        let unread = buffer.unread().len();
        if unread > HEADROOM {
            // An event larger than a parcel: such are put together in a buffer that grows.
            let mut grown = Buffer::new(0);
            grown.append(buffer.unread())?;
            self.give_back(std::mem::replace(buffer, grown));
            while buffer.unread().len() < 2 * unread {
                let Some(parcel) = self.next()? else { return Ok(true) };
                buffer.append(parcel.unread())?;
                self.give_back(parcel);
            }
            return Ok(false);
        }
        let Some(mut parcel) = self.next()? else { return Ok(true) };
        assert!(parcel.prepend(buffer.unread()), "the headroom is as large as that");
        self.give_back(std::mem::replace(buffer, parcel));
        Ok(false)
    }
}

impl Read for Piped {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        while self.parcel.unread().is_empty() {
            let Some(parcel) = self.next()? else { return Ok(0) };
            let read = std::mem::replace(&mut self.parcel, parcel);
            self.give_back(read);
        }
        let unread = self.parcel.unread();
        let count = bytes.len().min(unread.len());
        bytes[..count].copy_from_slice(&unread[..count]);
        self.parcel.consume(count);
        Ok(count)
    }
}

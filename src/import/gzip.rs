//! Compressed traces: inflated on one thread, read on another.

use std::fmt;
use std::io::{BufReader, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use flate2::read::MultiGzDecoder;

use super::open::{Options, tell};
use crate::error::Result;

/// What goes from thread to thread at once, and how many of these there are.
const PARCEL: usize = 256 << 10;
const PARCELS: usize = 8;
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
        matches!(self, Self::Gzip(_))
    }

    fn taken(&self) -> u64 {
        match self {
            Self::Gzip(gzip) => gzip.get_ref().get_ref().count,
            Self::Plain(input) => input.get_ref().count,
        }
    }

    /// Has `read` read what comes out, while a thread of its own puts it in.
    pub(super) fn piped<T: Send>(
        mut self,
        options: &Options,
        read: impl FnOnce(Piped) -> Result<T>,
    ) -> Result<T> {
        let (full, parcels) = sync_channel(PARCELS);
        let (give_back, empty) = sync_channel(PARCELS);
        (0..PARCELS).for_each(|_| drop(give_back.send(vec![0; PARCEL])));
        thread::scope(|scope| {
            scope.spawn(move || self.fill(&empty, &full, options));
            read(Piped { parcels, give_back, parcel: Vec::new(), at: 0, left: 0 })
        })
    }

    /// Until the end, an error, or until nobody reads any more.
    fn fill(
        &mut self,
        empty: &Receiver<Vec<u8>>,
        full: &SyncSender<std::io::Result<(Vec<u8>, usize)>>,
        options: &Options,
    ) {
        let mut told = 0;
        while let Ok(mut parcel) = empty.recv() {
            let mut filled = 0;
            let mut ended = None;
            while filled < parcel.len() && ended.is_none() {
                match self.read(&mut parcel[filled..]) {
                    Ok(0) => ended = Some(Ok((Vec::new(), 0))),
                    Ok(count) => filled += count,
                    Err(error) => ended = Some(Err(error)),
                }
            }
            tell(options, self.taken() - told);
            told = self.taken();
            if full.send(Ok((parcel, filled))).is_err() {
                return;
            }
            if let Some(end) = ended {
                // Nobody may be there to hear it.
                let _ = full.send(end);
                return;
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
        }
    }
}

/// The reading end.
pub(super) struct Piped {
    parcels: Receiver<std::io::Result<(Vec<u8>, usize)>>,
    give_back: SyncSender<Vec<u8>>,
    parcel: Vec<u8>,
    at: usize,
    left: usize,
}

impl Read for Piped {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        while self.left == 0 {
            let parcel = std::mem::take(&mut self.parcel);
            if !parcel.is_empty() {
                // At the end nobody takes it.
                let _ = self.give_back.send(parcel);
            }
            match self.parcels.recv() {
                Ok(Ok((_, 0))) | Err(_) => return Ok(0),
                Ok(Ok((parcel, filled))) => (self.parcel, self.at, self.left) = (parcel, 0, filled),
                Ok(Err(error)) => return Err(error),
            }
        }
        let count = bytes.len().min(self.left);
        bytes[..count].copy_from_slice(&self.parcel[self.at..][..count]);
        self.at += count;
        self.left -= count;
        Ok(count)
    }
}

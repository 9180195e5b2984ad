//! Traces in Chrome's JSON format, from whatever tool: a scanner that reads through a small reused buffer,
//! and decides for each event by itself what it is.
//!
//! ```text
//! file or pipe -> buffer -> scan: where am I? -> fields: where are ph, cat, ts, args ...
//!                                                    -> dialect: what is it? -> Event -> Sink
//! ```
//!
//! Seven dialects of GPU events are known (see `dialect`); keys may come in any order. What nobody asked
//! for is stepped over by its brackets and quotes, 64 bytes at a time (`mask`), and not looked into.

pub(super) mod buffer;
mod cursor;
mod damage;
mod dialect;
pub(crate) mod document;
mod fields;
mod mask;
pub(crate) mod number;
mod parallel;
mod scan;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;

use super::model::{Fork, Sink};
use crate::error::Result;
use buffer::{Reads, Source};
use scan::{End, Scan, Trouble};

/// What was seen while reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Bytes of JSON, after decompression.
    pub bytes: u64,
    /// Elements of `traceEvents`.
    pub events: u64,
    /// Times (of events that were asked for) with digits behind the microsecond.
    pub fractions: u64,
    /// Times without a decimal point.
    pub whole: u64,
    /// Events that were asked for, but whose times or duration are missing or no numbers: passed over.
    pub untimed: u64,
    /// Elements that are no event: `{}`, `null`; lines that are none of their kind.
    pub blank: u64,
    /// The number of the first such line.
    pub first_blank: Option<u64>,
    /// Where the file was cut short, if it was and that was said to be no error.
    pub cut: Option<u64>,
}

impl Seen {
    fn add(&mut self, later: &Self) {
        self.bytes = self.bytes.max(later.bytes);
        self.events += later.events;
        self.fractions += later.fractions;
        self.whole += later.whole;
        self.untimed += later.untimed;
        self.blank += later.blank;
        self.first_blank = self.first_blank.or(later.first_blank);
        self.cut = self.cut.or(later.cut);
    }
}

/// How to read JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The size of the buffer in bytes; it grows where a single event is larger.
    pub buffer: usize,
    /// Whether a file that ends in mid-event counts as one that ends before it.
    pub accept_cut: bool,
}

/// Reads a trace with one thread.
///
/// # Errors
/// `Format` with the number of the event, the position and what is wrong there; what `input` reports.
/// The events before it were handed on.
pub fn read(input: impl Read, reading: Reading, sink: &mut impl Sink) -> Result<Seen> {
    read_from(&mut Reads { input, size: reading.buffer }, reading, sink)
}

/// The same from a source that has its own buffers.
pub(super) fn read_from(input: &mut impl Source, reading: Reading, sink: &mut impl Sink) -> Result<Seen> {
    let mut scan = Scan::new();
    let ended = scan.run(input, 0, u64::MAX, sink);
    finish(scan.seen, ended, reading)
}

/// Reads a trace with several threads; the result is the same as with one. `told` is called with the
/// number of bytes of each read.
///
/// # Errors
/// As [`read`].
pub fn read_parallel(
    file: &File,
    threads: usize,
    reading: Reading,
    sink: &mut impl Fork,
    told: impl Fn(u64) + Sync,
) -> Result<Seen> {
    let size = file.metadata()?.len();
    let (seen, ended) = parallel::read(file, size, reading.buffer, threads, sink, &told);
    finish(seen, ended, reading)
}

fn finish(mut seen: Seen, ended: std::result::Result<End, Trouble>, reading: Reading) -> Result<Seen> {
    match ended {
        Ok(_) => Ok(seen),
        Err(Trouble::Cut { whole, .. }) if reading.accept_cut => {
            seen.cut = Some(whole);
            Ok(seen)
        }
        Err(trouble) => Err(trouble.told(seen.events)),
    }
}

//! Reads JSON files in Chrome's trace format, from any tool. A scanner reads one part of the file after another into a
//! small buffer, and classifies each trace event separately.
//!
//! ```text
//! file or pipe -> buffer -> scan: where am I? -> fields: where are ph, cat, ts, args ...
//!                                                    -> dialect: what is it? -> Event -> Sink
//! ```
//!
//! Module `dialect` lists the dialects in which tools write GPU events. The keys of an event may be in any order. A
//! value that no sink has requested is not parsed. To skip such a value, the reader finds the brackets and quotes in 64
//! bytes in one step (see `mask`).

mod args;
pub(super) mod buffer;
mod classes;
mod cursor;
mod damage;
mod dialect;
pub mod document;
mod fields;
mod mask;
pub mod number;
mod parallel;
mod pipeline;
mod scan;
mod visit;

use std::fs::File;
use std::io::Read;

use super::model::{Fork, Sink};
use buffer::{ReaderSource, Source};
use gpuflame_model::error::Result;
use parallel::MIN_BYTES_PER_THREAD;
use scan::{ScanEnd, ScanError, Scanner};
use visit::ToSink;

/// Counts that the reader collects while it reads a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Number of input bytes, after decompression.
    pub bytes: u64,
    /// Number of elements in the array `traceEvents`. In formats other than Chrome's, the number of records.
    pub events: u64,
    /// Number of time values in requested events that have digits after the decimal point (a fraction of a
    /// microsecond).
    pub fractional_times: u64,
    /// Number of time values in requested events that have no decimal point.
    pub whole_times: u64,
    /// Number of requested events that were skipped because they have no time or duration, or because it is not a
    /// number.
    pub untimed: u64,
    /// Number of elements that are not trace events (for example `{}` or `null`). In text formats, the number of
    /// malformed lines.
    pub non_events: u64,
    /// Line number of the first malformed line.
    pub first_non_event_line: Option<u64>,
    /// Byte offset at which the last complete event ends. The offset is set only for a truncated file, if truncated
    /// files are accepted.
    pub truncated_at: Option<u64>,
    /// Version of the file's schema, if the format has a version.
    pub schema: Option<String>,
    /// Remarks about content that the file lacks, or that the reader left out. There is one sentence per kind of
    /// content.
    pub remarks: Vec<String>,
}

impl ReadCounts {
    fn add(&mut self, later: &Self) {
        self.bytes = self.bytes.max(later.bytes);
        self.events += later.events;
        self.fractional_times += later.fractional_times;
        self.whole_times += later.whole_times;
        self.untimed += later.untimed;
        self.non_events += later.non_events;
        self.first_non_event_line = self.first_non_event_line.or(later.first_non_event_line);
        self.truncated_at = self.truncated_at.or(later.truncated_at);
        self.remarks.extend_from_slice(&later.remarks);
    }
}

/// Options for reading a JSON trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonOptions {
    /// Size of the read buffer in bytes. The buffer grows if a single event is larger.
    pub buffer: usize,
    /// Whether to accept a file that ends in the middle of an event. All complete events in an accepted file are read.
    pub accept_cut: bool,
}

/// Reads a trace with a single thread.
///
/// # Errors `Format`, with the number of preceding events, the byte offset and the unexpected byte; errors of `input`.
/// If an error is returned, the events before the error have already been passed to the sink.
pub fn read(input: impl Read, reading: JsonOptions, sink: &mut impl Sink) -> Result<ReadCounts> {
    read_from(&mut ReaderSource { input, size: reading.buffer }, reading, sink)
}

/// Reads a trace from a source that has its own buffers.
pub(super) fn read_from(
    input: &mut impl Source,
    reading: JsonOptions,
    sink: &mut impl Sink,
) -> Result<ReadCounts> {
    let mut scan = Scanner::new();
    let ended = scan.run(input, 0, u64::MAX, &mut ToSink::new(sink));
    finish(scan.counts, ended, reading)
}

/// Reads a trace that has `size` bytes. If the trace is large, one thread finds the events, and another thread reads
/// them.
///
/// # Errors
/// Returns the same errors as [`read`].
pub(super) fn read_with_two_threads(
    input: impl Read + Send,
    size: u64,
    reading: JsonOptions,
    sink: &mut impl Sink,
) -> Result<ReadCounts> {
    if size < MIN_BYTES_PER_THREAD {
        return read(input, reading, sink);
    }
    let (counts, ended) = pipeline::read(input, reading.buffer, sink);
    finish(counts, ended, reading)
}

/// Reads a trace with several threads. The events and their order are the same as with one thread. After each read from
/// the file, `on_read` is called with the number of bytes.
///
/// # Errors
/// Returns the same errors as [`read`].
pub fn read_parallel(
    file: &File,
    threads: usize,
    reading: JsonOptions,
    sink: &mut impl Fork,
    on_read: impl Fn(u64) + Sync,
) -> Result<ReadCounts> {
    let size = file.metadata()?.len();
    let (counts, ended) = parallel::read_parallel(file, size, reading.buffer, threads, sink, &on_read);
    finish(counts, ended, reading)
}

fn finish(
    mut counts: ReadCounts,
    ended: std::result::Result<ScanEnd, ScanError>,
    reading: JsonOptions,
) -> Result<ReadCounts> {
    match ended {
        Ok(_) => Ok(counts),
        Err(ScanError::Truncated { complete, .. }) if reading.accept_cut => {
            counts.truncated_at = Some(complete);
            Ok(counts)
        }
        Err(error) => Err(error.into_error(counts.events)),
    }
}

//! Tells what a file is by its content, never by its name, and hands it to the reader of that kind.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::json::Seen;
use super::{Fork, Sink};
use crate::error::{Error, ErrorKind, Result};

/// What kind of trace a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// JSON with a `traceEvents` array or a bare array of events: torch.profiler's Kineto, Paddle, and all
    /// others that write for Chrome's viewer. The dialect is decided for each event.
    Chrome,
    /// An sqlite export of Nsight Systems.
    Nsys,
    /// JSON of rocprofv3.
    Rocprof,
    /// The text that the CUPTI tracer of eunomia's tutorial writes.
    CuptiText,
    /// Stacks and weights.
    Folded,
    /// Stacks with time, program, process, thread and processor.
    ExtendedFolded,
    /// TraceSmith's binary format.
    Sbt,
    /// Our own recording.
    Recording,
}

impl Kind {
    /// What to call it in a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::Chrome => "a JSON trace (Chrome, Kineto)",
            Self::Nsys => "an Nsight Systems sqlite export",
            Self::Rocprof => "a rocprofv3 JSON file",
            Self::CuptiText => "a CUPTI text trace",
            Self::Folded => "folded stacks",
            Self::ExtendedFolded => "extended folded stacks",
            Self::Sbt => "a TraceSmith SBT file",
            Self::Recording => "a gpuflame recording",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// How to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The size of the buffer in bytes; it grows where a single event is larger. Default: 1 MiB.
    pub buffer: usize,
    /// How many threads may read a plain JSON file. The result does not depend on it. Default: 2.
    pub threads: usize,
    /// Whether a file that ends in mid-event counts as one that ends before it. Default: false, an error.
    pub accept_cut: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { buffer: 1 << 20, threads: 2, accept_cut: false }
    }
}

/// What reading a file found beside its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Counts, most of them only kept for JSON.
    pub seen: Seen,
    /// Where the file was cut short, if it was and [`Options::accept_cut`] said so.
    pub cut: Option<u64>,
}

/// A file whose kind is known.
#[derive(Debug)]
pub struct Opened {
    path: PathBuf,
    kind: Kind,
    compressed: bool,
    _file: Option<File>,
}

/// Opens the trace at `path`; `-` is the standard input.
///
/// # Errors
/// `Io` where it cannot be read, `Format` where it is no trace that we know; the message says what it
/// looks like and what to do.
pub fn open(path: &Path) -> Result<Opened> {
    Err(Error::new(ErrorKind::Format, format!("{}: not a trace", path.display())))
}

impl Opened {
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it is gzipped.
    pub fn is_compressed(&self) -> bool {
        self.compressed
    }

    /// The name to put in front of messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Hands all events to `sink`, in the order of the file.
    ///
    /// # Errors
    /// `Io` and `Format`, with the position. What came before it was handed on.
    pub fn read(self, _options: &Options, _sink: &mut impl Sink) -> Result<Read> {
        Err(Error::new(ErrorKind::State, format!("{}: cannot be read yet", self.path.display())))
    }

    /// The same with several threads where the file allows it.
    ///
    /// # Errors
    /// As [`Opened::read`].
    pub fn read_parallel(self, options: &Options, sink: &mut impl Fork) -> Result<Read> {
        self.read(options, sink)
    }
}

//! Tells what a file is by its content, never by its name, and hands it to the reader of that kind.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use super::gzip::{self, Unzip};
use super::json::{self, Seen};
use super::options::Options;
use super::{Fork, Sink, cupti_text, folded, kind, nsys, rocprof, sbt};
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

/// A file whose kind is known.
#[derive(Debug)]
pub struct Opened {
    path: PathBuf,
    kind: Kind,
    rank: Option<u32>,
    size: Option<u64>,
    source: Source,
}

/// Where the bytes come from.
#[derive(Debug)]
enum Source {
    File(File),
    Gzip { head: Vec<u8>, rest: Unzip },
    Pipe { head: Vec<u8> },
}

/// So much is looked at to tell what a file is: more than the metadata that may stand before the events.
const HEAD: u64 = 64 << 10;

/// Opens the trace at `path`; `-` is the standard input.
///
/// # Errors
/// `Io` where it cannot be read, `Format` where it is no trace that we know; the message says what it
/// looks like and what to do.
pub fn open(path: &Path) -> Result<Opened> {
    begin(path)
        .map_err(|error| match path.file_name().and_then(|name| kind::named(&name.to_string_lossy())) {
            Some(what) if error.kind() == ErrorKind::Format => Error::new(ErrorKind::Format, what),
            _ => error,
        })
        .map_err(|error| error.within(path.display()))
}

fn begin(path: &Path) -> Result<Opened> {
    let path_buf = path.to_path_buf();
    if path.as_os_str() == "-" {
        let head = head(&mut std::io::stdin().lock())?;
        if gzip::is_gzip(&head) {
            let input = Cursor::new(head).chain(std::io::stdin());
            return unzipped(path_buf, None, Box::new(input));
        }
        let (kind, rank) = kind_and_rank(&head)?;
        return Ok(Opened { path: path_buf, kind, rank, size: None, source: Source::Pipe { head } });
    }
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(Error::new(ErrorKind::Io, "is a folder; give a file"));
    }
    let head = head(&mut file)?;
    if metadata.is_file() {
        std::io::Seek::rewind(&mut file)?;
        if gzip::is_gzip(&head) {
            return unzipped(path_buf, Some(metadata.len()), Box::new(file));
        }
        let (kind, rank) = kind_and_rank(&head)?;
        let (size, source) = (Some(metadata.len()), Source::File(file));
        return Ok(Opened { path: path_buf, kind, rank, size, source });
    }
    // A named pipe or a device: what was read is gone from it.
    unzipped_or_plain(path_buf, head, file)
}

fn unzipped_or_plain(path: PathBuf, head: Vec<u8>, file: File) -> Result<Opened> {
    let is_gzip = gzip::is_gzip(&head);
    let input = Box::new(Cursor::new(head).chain(file));
    if is_gzip {
        return unzipped(path, None, input);
    }
    let mut rest = Unzip::plain(input);
    let head = self::head(&mut rest)?;
    let (kind, rank) = kind_and_rank(&head)?;
    Ok(Opened { path, kind, rank, size: None, source: Source::Gzip { head, rest } })
}

fn unzipped(path: PathBuf, size: Option<u64>, input: Box<dyn Read + Send>) -> Result<Opened> {
    let mut rest = Unzip::new(input);
    let mut head = Vec::new();
    let ended = (&mut rest).take(HEAD).read_to_end(&mut head);
    let (kind, rank) = match (kind_and_rank(&head), ended) {
        (Ok(known), Ok(_)) => known,
        // Cut short within what is looked at: whoever reads on is told so.
        (Ok(known), Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            rest = rest.cut(error);
            known
        }
        (_, Err(error)) => return Err(error.into()),
        (Err(error), _) => return Err(error),
    };
    if kind == Kind::Nsys {
        let message = "is a gzipped sqlite file; unpack it first (`gunzip FILE`)";
        return Err(Error::new(ErrorKind::Format, message));
    }
    Ok(Opened { path, kind, rank, size, source: Source::Gzip { head, rest } })
}

fn kind_and_rank(head: &[u8]) -> Result<(Kind, Option<u32>)> {
    let kind = kind::of(head)?;
    Ok((kind, if kind == Kind::Chrome { kind::rank_of(head) } else { None }))
}

fn head(input: &mut impl Read) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    input.take(HEAD).read_to_end(&mut head)?;
    Ok(head)
}

impl Opened {
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The rank of the job that wrote it, where it says so before its events, as torch.profiler does.
    pub fn rank(&self) -> Option<u32> {
        self.rank
    }

    /// Whether it is gzipped.
    pub fn is_compressed(&self) -> bool {
        matches!(&self.source, Source::Gzip { rest, .. } if rest.is_gzip())
    }

    /// The name to put in front of messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes the file has on the disk; `None` for a pipe.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Hands all events to `sink`, in the order of the file.
    ///
    /// # Errors
    /// `Io` and `Format`, with the position. What came before it was handed on.
    pub fn read(self, options: &Options, sink: &mut impl Sink) -> Result<Seen> {
        let path = self.path.clone();
        self.read_with(options, sink).map_err(|error| error.within(path.display()))
    }

    /// The same with several threads where the file allows it.
    ///
    /// # Errors
    /// As [`Opened::read`].
    pub fn read_parallel(self, options: &Options, sink: &mut impl Fork) -> Result<Seen> {
        match &self.source {
            Source::File(file) if self.kind == Kind::Chrome && options.threads > 1 => {
                let told = |count| options.tell(count);
                json::read_parallel(file, options.threads, options.reading(), sink, told)
                    .map_err(|error| error.within(self.path.display()))
            }
            _ => self.read(options, sink),
        }
    }

    /// Hands the (inflated) bytes to `read`, for formats that are no events.
    pub(crate) fn bytes<T: Send>(
        self,
        options: &Options,
        read: impl FnOnce(&mut dyn BufRead) -> Result<T>,
    ) -> Result<T> {
        let size = options.buffer;
        match self.source {
            Source::File(input) => read(&mut BufReader::with_capacity(size, Told { input, options })),
            Source::Pipe { head } => {
                let input = Cursor::new(head).chain(std::io::stdin().lock());
                read(&mut BufReader::with_capacity(size, Told { input, options }))
            }
            Source::Gzip { head, rest } => {
                rest.piped(head, options, |rest| read(&mut BufReader::with_capacity(size, rest)))
            }
        }
    }

    fn read_with(self, options: &Options, sink: &mut impl Sink) -> Result<Seen> {
        let Self { path, kind, source, .. } = self;
        match source {
            Source::File(_) if kind == Kind::Nsys => nsys::read(&path, sink),
            Source::File(file) => read_kind(kind, Told { input: file, options }, options, sink),
            Source::Pipe { head } => {
                let input = Cursor::new(head).chain(std::io::stdin().lock());
                read_kind(kind, Told { input, options }, options, sink)
            }
            Source::Gzip { head, rest } => rest.piped(head, options, |mut rest| match kind {
                Kind::Chrome => json::read_from(&mut rest, options.reading(), sink),
                _ => read_kind(kind, rest, options, sink),
            }),
        }
    }
}

fn read_kind(kind: Kind, input: impl Read, options: &Options, sink: &mut impl Sink) -> Result<Seen> {
    if kind == Kind::Chrome {
        return json::read(input, options.reading(), sink);
    }
    let input = BufReader::with_capacity(options.buffer, input);
    match kind {
        Kind::Rocprof => rocprof::read(input, sink),
        Kind::CuptiText => cupti_text::read(input, sink),
        Kind::Folded => folded::read(input, sink),
        Kind::ExtendedFolded => folded::read_extended(input, sink),
        Kind::Sbt => sbt::read(input, sink),
        Kind::Nsys => {
            Err(Error::new(ErrorKind::Format, "an sqlite file cannot be read from a pipe; save it first"))
        }
        Kind::Recording | Kind::Chrome => {
            Err(Error::new(ErrorKind::Format, "is a gpuflame recording, which has rows and no events"))
        }
    }
}

/// Counts what is read.
struct Told<'a, R> {
    input: R,
    options: &'a Options,
}

impl<R: Read> Read for Told<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(bytes)?;
        self.options.tell(count as u64);
        Ok(count)
    }
}

//! Opens a trace. The format is detected by the content of the file, never by its name. The trace is then passed to the
//! reader for this format.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use super::gzip::{self, Inflater};
use super::job::JobPlace;
use super::json::{self, ReadCounts};
use super::options::Options;
use super::sqlite::Database;
use super::{Fork, Sink, cupti_text, detect, folded, nsys, rocpd, rocprof, rpd, sbt};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// JSON in Chrome's trace format: an object with an array `traceEvents`, or just an array of trace events. Such
    /// files are written by torch.profiler (Kineto), by Paddle, and by all other tools that write traces for Chrome's
    /// viewer. The reader of this format determines the dialect of each trace event separately.
    Chrome,
    /// Sqlite database that Nsight Systems exported.
    Nsys,
    /// Sqlite database (rocpd) that rocprofv3 or rocprof-sys wrote.
    Rocpd,
    /// Sqlite database (`.rpd`) that rocmProfileData wrote.
    Rpd,
    /// JSON that rocprofv3 wrote.
    Rocprof,
    /// Text that the CUPTI tracer of eunomia's tutorial wrote.
    CuptiText,
    /// Folded stacks. Folded stacks: each line contains the frames of a stack and a weight.
    Folded,
    /// Extended folded stacks. Extended folded stacks: each line also contains the time, program, process, thread and
    /// processor.
    ExtendedFolded,
    /// Binary format of the tool TraceSmith.
    Sbt,
    /// PyTorch's execution trace (ET), which contains operators with their inputs and outputs, without times.
    ExecutionTrace,
    /// Chakra's execution trace in protobuf format.
    Chakra,
    /// A recording that gpuflame wrote.
    Recording,
}

impl Kind {
    /// Returns a noun phrase that names the format in messages.
    pub fn description(self) -> &'static str {
        match self {
            Self::Chrome => "a JSON trace (Chrome, Kineto)",
            Self::Nsys => "an Nsight Systems sqlite export",
            Self::Rocpd => "a rocpd database (rocprofv3)",
            Self::Rpd => "an .rpd database (rocmProfileData)",
            Self::Rocprof => "a rocprofv3 JSON file",
            Self::CuptiText => "a CUPTI text trace",
            Self::Folded => "folded stacks",
            Self::ExtendedFolded => "extended folded stacks",
            Self::Sbt => "a TraceSmith SBT file",
            Self::ExecutionTrace => "a PyTorch execution trace (ET)",
            Self::Chakra => "a Chakra execution trace (protobuf)",
            Self::Recording => "a gpuflame recording",
        }
    }

    /// Whether files in this format contain events with times. All commands that read traces need events with times.
    pub fn has_events(self) -> bool {
        !matches!(self, Self::ExecutionTrace | Self::Chakra)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}

/// An open trace file whose format is known.
#[derive(Debug)]
pub struct Opened {
    path: PathBuf,
    kind: Kind,
    place: JobPlace,
    size: Option<u64>,
    source: Input,
}

/// Source from which the bytes of the trace are read.
#[derive(Debug)]
enum Input {
    File(File),
    Stream { head: Vec<u8>, rest: Inflater },
    Pipe { head: Vec<u8> },
}

/// Number of bytes at the beginning of a file from which the format is detected. These bytes usually include the
/// metadata before the trace events.
const HEAD_BYTES: u64 = 64 << 10;

/// Opens the trace at `path`. The path `-` means standard input.
///
/// # Errors
/// Returns an `Io` error if the file cannot be read, and a `Format` error if the file is not a known kind of trace. The
/// message names the format that the file resembles, and states the next step for the user.
pub fn open(path: &Path) -> Result<Opened> {
    open_any(path)
        .map_err(|error| {
            match path.file_name().and_then(|name| detect::describe_by_name(&name.to_string_lossy())) {
                Some(what) if error.kind() == ErrorKind::Format && !detect::is_described(&error, what) => {
                    Error::new(ErrorKind::Format, what)
                }
                _ => error,
            }
        })
        .map_err(|error| error.within(path.display()))
}

fn open_any(path: &Path) -> Result<Opened> {
    let path_buf = path.to_path_buf();
    if path.as_os_str() == "-" {
        let head = read_head(&mut std::io::stdin().lock())?;
        if gzip::is_compressed(&head) {
            let first = head.clone();
            let input = Cursor::new(head).chain(std::io::stdin());
            return open_compressed(path_buf, None, &first, Box::new(input));
        }
        let (kind, place) = detect_kind_and_place(&head)?;
        return Ok(Opened { path: path_buf, kind, place, size: None, source: Input::Pipe { head } });
    }
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(Error::new(ErrorKind::Io, "is a folder; give a file"));
    }
    let head = read_head(&mut file)?;
    if metadata.is_file() {
        std::io::Seek::rewind(&mut file)?;
        if gzip::is_compressed(&head) {
            return open_compressed(path_buf, Some(metadata.len()), &head, Box::new(file));
        }
        let (kind, place) = match detect_kind_and_place(&head)? {
            // The names of the tables in a database show which tool wrote the database.
            (Kind::Nsys, _) => {
                let base = Database::open(path)?;
                let kind = detect::detect_database(&base)?;
                (kind, if kind == Kind::Rocpd { rocpd::find_place(&base)? } else { JobPlace::default() })
            }
            detected => detected,
        };
        let (size, source) = (Some(metadata.len()), Input::File(file));
        return Ok(Opened { path: path_buf, kind, place, size, source });
    }
    // The input is not a regular file (it may be a named pipe or a device), so the bytes in `head` cannot be read a
    // second time.
    open_stream(path_buf, head, file)
}

fn open_stream(path: PathBuf, head: Vec<u8>, file: File) -> Result<Opened> {
    let is_compressed = gzip::is_compressed(&head);
    let first = head.clone();
    let input = Box::new(Cursor::new(head).chain(file));
    if is_compressed {
        return open_compressed(path, None, &first, input);
    }
    let mut rest = Inflater::plain(input);
    let head = read_head(&mut rest)?;
    let (kind, place) = detect_kind_and_place(&head)?;
    Ok(Opened { path, kind, place, size: None, source: Input::Stream { head, rest } })
}

fn open_compressed(
    path: PathBuf,
    size: Option<u64>,
    first: &[u8],
    input: Box<dyn Read + Send>,
) -> Result<Opened> {
    let mut rest = Inflater::new(first, input);
    let mut head = Vec::new();
    let ended = (&mut rest).take(HEAD_BYTES).read_to_end(&mut head);
    let (kind, place) = match (detect_kind_and_place(&head), ended) {
        (Ok(detected), Ok(_)) => detected,
        // The compressed data is truncated or damaged within the bytes in `head`. The events before the damage are
        // passed on first, and then the error is returned.
        (Ok(detected), Err(error)) if gzip::is_damage(&error) => {
            rest = rest.broken(error);
            detected
        }
        (_, Err(error)) => return Err(error.into()),
        (Err(error), _) => return Err(error),
    };
    if kind == Kind::Nsys {
        let message = "is a compressed sqlite file; unpack it first (`gunzip FILE` or `zstd -d FILE`)";
        return Err(Error::new(ErrorKind::Format, message));
    }
    Ok(Opened { path, kind, place, size, source: Input::Stream { head, rest } })
}

fn detect_kind_and_place(head: &[u8]) -> Result<(Kind, JobPlace)> {
    let kind = detect::detect_kind(head)?;
    Ok((kind, if kind == Kind::Chrome { JobPlace::from_head(head) } else { JobPlace::default() }))
}

fn read_head(input: &mut impl Read) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    input.take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok(head)
}

impl Opened {
    /// Returns the format of the trace.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the rank of the process that wrote the trace. Returns `None` unless the file contains the rank in a
    /// table or before the events (as torch.profiler writes it).
    pub fn rank(&self) -> Option<u32> {
        self.place.rank
    }

    /// Returns the number of ranks in the job, if the file contains this number next to the rank.
    pub fn world_size(&self) -> Option<u32> {
        self.place.world_size
    }

    /// Whether the trace is compressed.
    pub fn is_compressed(&self) -> bool {
        matches!(&self.source, Input::Stream { rest, .. } if rest.is_compressed())
    }

    /// Returns the path of the trace, which messages use as a prefix.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size of the file in bytes; `None` if the trace is a pipe.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Passes all events of the trace to `sink`, in the order of the file.
    ///
    /// # Errors
    /// Returns `Io` and `Format` errors with the position of the error, and a `Format` error if the trace has no
    /// events. If an error is returned, the events before the error have already been passed to `sink`.
    pub fn read(self, options: &Options, sink: &mut impl Sink) -> Result<ReadCounts> {
        let path = self.path.clone();
        self.read_with(options, sink).and_then(need_events).map_err(|error| error.within(path.display()))
    }

    /// Does the same as [`Opened::read`], but uses several threads if the file allows it.
    ///
    /// # Errors
    /// Returns the same errors as [`Opened::read`].
    pub fn read_parallel(self, options: &Options, sink: &mut impl Fork) -> Result<ReadCounts> {
        match &self.source {
            Input::File(file) if self.kind == Kind::Chrome && options.threads > 1 => {
                let on_read = |count| options.add_bytes_read(count);
                json::read_parallel(file, options.threads, options.json_options(), sink, on_read)
                    .and_then(need_events)
                    .map_err(|error| error.within(self.path.display()))
            }
            _ => self.read(options, sink),
        }
    }

    /// Calls `read` with a reader that returns the bytes of the file, decompressed if necessary. This function is for
    /// formats that do not consist of events.
    pub fn bytes<T: Send>(
        self,
        options: &Options,
        read: impl FnOnce(&mut dyn BufRead) -> Result<T>,
    ) -> Result<T> {
        let size = options.buffer;
        match self.source {
            Input::File(input) => {
                read(&mut BufReader::with_capacity(size, ProgressReader { input, options }))
            }
            Input::Pipe { head } => {
                let input = Cursor::new(head).chain(std::io::stdin().lock());
                read(&mut BufReader::with_capacity(size, ProgressReader { input, options }))
            }
            Input::Stream { head, rest } => rest
                .read_with_thread(head, options, |rest| read(&mut BufReader::with_capacity(size, rest)))
                .map_err(|error| offer_accept_cut(error, options)),
        }
    }

    fn read_with(self, options: &Options, sink: &mut impl Sink) -> Result<ReadCounts> {
        let Self { path, kind, source, .. } = self;
        if !kind.has_events() {
            return Err(no_events_error(kind));
        }
        match source {
            Input::File(_) if kind == Kind::Nsys => nsys::read(&path, sink),
            Input::File(_) if kind == Kind::Rocpd => rocpd::read(&path, sink),
            Input::File(_) if kind == Kind::Rpd => rpd::read(&path, sink),
            Input::File(file) if kind == Kind::Chrome && options.threads > 1 => {
                let size = file.metadata()?.len();
                let input = ProgressReader { input: file, options };
                json::read_with_two_threads(input, size, options.json_options(), sink)
            }
            Input::File(file) => read_kind(kind, ProgressReader { input: file, options }, options, sink),
            Input::Pipe { head } => {
                let input = Cursor::new(head).chain(std::io::stdin().lock());
                read_kind(kind, ProgressReader { input, options }, options, sink)
            }
            Input::Stream { head, rest } => {
                let remarks = rest.remarks();
                let mut counts = rest.read_with_thread(head, options, |mut rest| match kind {
                    Kind::Chrome => json::read_from(&mut rest, options.json_options(), sink),
                    Kind::Rocprof => read_kind(kind, rest.in_proportion(), options, sink),
                    Kind::Folded | Kind::ExtendedFolded | Kind::CuptiText => {
                        read_kind(kind, rest, options, sink).map_err(|error| offer_accept_cut(error, options))
                    }
                    _ => read_kind(kind, rest, options, sink),
                })?;
                counts.remarks.append(&mut remarks.lock().unwrap_or_else(PoisonError::into_inner));
                Ok(counts)
            }
        }
    }
}

/// Adds a hint to an error about truncated or damaged compressed data. The hint names the option with which the data
/// before the damage can be read. The hint is not added for formats that can only be read as a whole. For JSON, the
/// scanner adds the hint itself.
fn offer_accept_cut(error: Error, options: &Options) -> Error {
    let text = error.to_string();
    let is_truncated = text.contains(gzip::TRUNCATED_AT) || text.contains(gzip::DAMAGED_AT);
    match is_truncated && !options.accept_cut {
        true => Error::new(error.kind(), format!("{text}; `--accept-cut` reads the data before it")),
        false => error,
    }
}

/// Returns an error if the trace has no events. An empty output would hide that the profiler recorded nothing.
fn need_events(counts: ReadCounts) -> Result<ReadCounts> {
    if counts.events > counts.non_events {
        return Ok(counts);
    }
    let what = match (counts.truncated_at, counts.non_events) {
        (Some(_), _) => "has no events before the place where it is truncated".to_owned(),
        (None, 0) => {
            "has no events; was anything recorded between the profiler's start and its stop, and the trace \
                      exported after that?"
                .to_owned()
        }
        (None, count) => format!(
            "has no events: none of its {count} elements is one; give a trace of torch.profiler or for Chrome's viewer"
        ),
    };
    Err(Error::new(ErrorKind::Format, what))
}

fn read_kind(kind: Kind, input: impl Read, options: &Options, sink: &mut impl Sink) -> Result<ReadCounts> {
    if kind == Kind::Chrome {
        return json::read(input, options.json_options(), sink);
    }
    let input = BufReader::with_capacity(options.buffer, input);
    match kind {
        Kind::Rocprof => rocprof::read(input, sink),
        Kind::CuptiText => cupti_text::read(input, options.accept_cut, sink),
        Kind::Folded => folded::read(input, options.accept_cut, sink),
        Kind::ExtendedFolded => folded::read_extended(input, options.accept_cut, sink),
        Kind::Sbt => sbt::read(input, sink),
        Kind::Nsys | Kind::Rocpd | Kind::Rpd => {
            Err(Error::new(ErrorKind::Format, "an sqlite file cannot be read from a pipe; save it first"))
        }
        Kind::ExecutionTrace | Kind::Chakra => Err(no_events_error(kind)),
        Kind::Recording | Kind::Chrome => {
            Err(Error::new(ErrorKind::Format, "is a gpuflame recording, which has rows, not events"))
        }
    }
}

/// Returns the error message for an execution trace that was given although a trace with times is needed.
fn no_events_error(kind: Kind) -> Error {
    let next = "give the Kineto trace of the same run; `gpuflame info` shows this file";
    let join = if kind == Kind::ExecutionTrace { ", `gpuflame link-et` joins both" } else { "" };
    Error::new(ErrorKind::Format, format!("is {kind}, which is not a timeline; {next}{join}"))
}

/// A reader that adds the number of bytes that it reads to the progress counter.
struct ProgressReader<'a, R> {
    input: R,
    options: &'a Options,
}

impl<R: Read> Read for ProgressReader<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(bytes)?;
        self.options.add_bytes_read(count as u64);
        Ok(count)
    }
}

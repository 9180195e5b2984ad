//! Reads one uncompressed file with several threads.
//!
//! The file is divided into equal shares, and each share is read by one thread. Each thread begins near the start of
//! its share, at a position where an event is guessed to begin. Each thread stops where the next thread began. The
//! guess of a thread is accepted only if the preceding thread arrives at exactly the guessed byte, between two events.
//! Otherwise the results of the thread that guessed are discarded, and reading continues where the preceding thread
//! stopped. So the events are always the same as with one thread.

use std::fs::File;
use std::io::Read;
use std::thread;

use super::super::model::Fork;
use super::ReadCounts;
use super::buffer::{PADDING, ReaderSource};
use super::scan::{ScanEnd, ScanError, Scanner, is_event};
use super::visit::ToSink;

/// Minimum size in bytes of the share of a file that one thread reads. With smaller shares, an additional thread would
/// not save time.
pub(super) const MIN_BYTES_PER_THREAD: u64 = 4 << 20;
/// Maximum number of bytes at the start of a share in which the start of a trace event is searched.
const MAX_SEARCH_BYTES: usize = 1 << 20;

/// Reads a file, beginning at a given position. The read does not move the file offset, which all threads share.
struct FileFrom<'a> {
    file: &'a File,
    at: u64,
}

impl Read for FileFrom<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = read_at(self.file, bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Reads from a file at the position `at`. On Windows, the read moves the file offset, but no thread depends on the
/// file offset.
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> std::io::Result<usize> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_at(file, bytes, at);
    #[cfg(windows)]
    return std::os::windows::fs::FileExt::seek_read(file, bytes, at);
}

type ScanResult = Result<ScanEnd, ScanError>;

/// Reads `file`, which has `size` bytes, with up to `threads` threads.
pub(super) fn read_parallel<S: Fork>(
    file: &File,
    size: u64,
    buffer: usize,
    threads: usize,
    sink: &mut S,
    on_read: &(impl Fn(u64) + Sync),
) -> (ReadCounts, ScanResult) {
    let in_object = first_byte(file) == Some(b'{');
    let starts = guess_starts(file, size, threads);
    let mut later: Vec<(u64, S, Scanner)> =
        starts.iter().map(|&start| (start, sink.fork(), Scanner::at_event(in_object))).collect();
    let mut first = Scanner::new();
    let (first_end, ends) = thread::scope(|scope| {
        let workers: Vec<_> = later
            .iter_mut()
            .enumerate()
            .map(|(at, (start, sink, scan))| {
                let until = starts.get(at + 1).copied().unwrap_or(u64::MAX);
                let start = *start;
                scope.spawn(move || {
                    let input = ProgressReader(FileFrom { file, at: start }, on_read);
                    let source = &mut ReaderSource { input, size: buffer };
                    scan.run(source, start, until, &mut ToSink::new(sink))
                })
            })
            .collect();
        let until = starts.first().copied().unwrap_or(u64::MAX);
        let input = ProgressReader(FileFrom { file, at: 0 }, on_read);
        let source = &mut ReaderSource { input, size: buffer };
        let end = first.run(source, 0, until, &mut ToSink::new(sink));
        let ends: Vec<ScanResult> = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        (end, ends)
    });
    let (mut counts, mut ended, mut state) = (first.counts.clone(), first_end, first);
    for ((start, part, scan), end) in later.into_iter().zip(ends) {
        let Ok(ScanEnd::Reached(at)) = ended else { break };
        if at != start {
            // All events after the guessed position are discarded, because the guess was wrong.
            break;
        }
        sink.join(part);
        counts.add(&scan.counts);
        (ended, state) = (end, scan);
    }
    if let Ok(ScanEnd::Reached(at)) = ended {
        let mut rest = state.resume();
        let source = &mut ReaderSource { input: FileFrom { file, at }, size: buffer };
        ended = rest.run(source, at, u64::MAX, &mut ToSink::new(sink));
        counts.add(&rest.counts);
    }
    (counts, ended)
}

/// A reader that reports the number of bytes that each read returned.
struct ProgressReader<'a, R, T>(R, &'a T)
where
    T: Fn(u64);

impl<R: Read, T: Fn(u64)> Read for ProgressReader<'_, R, T> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.read(bytes)?;
        (self.1)(count as u64);
        Ok(count)
    }
}

fn first_byte(file: &File) -> Option<u8> {
    let mut head = [0; 4096];
    let count = read_at(file, &mut head, 0).ok()?;
    let head = &head[..count];
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    head.iter().copied().find(|byte| !byte.is_ascii_whitespace())
}

/// Returns positions at which events are guessed to begin, in ascending order. There is one position near the start of
/// each share except the first.
fn guess_starts(file: &File, size: u64, threads: usize) -> Vec<u64> {
    let shares = (threads as u64).min(size / MIN_BYTES_PER_THREAD).max(1);
    let mut starts: Vec<u64> =
        (1..shares).filter_map(|share| guess_start(file, size / shares * share)).collect();
    starts.dedup();
    starts
}

/// Returns the first position at or after `from` that looks like the beginning of an event: a `{` followed by a `"`,
/// with a `}` and a `,` before it. The event must also contain a phase (the field `ph`).
fn guess_start(file: &File, from: u64) -> Option<u64> {
    let mut bytes = vec![0; MAX_SEARCH_BYTES + PADDING];
    let count = FileFrom { file, at: from }
        .take(MAX_SEARCH_BYTES as u64)
        .read_until_full(&mut bytes[..MAX_SEARCH_BYTES])
        .ok()?;
    let padded = &bytes[..count + PADDING];
    let mut last = [0_u8; 2];
    for (at, &byte) in padded[..count].iter().enumerate() {
        if byte.is_ascii_whitespace() {
            continue;
        }
        if byte == b'{' && last == *b"}," && is_event(padded, at) {
            return Some(from + at as u64);
        }
        last = [last[1], byte];
    }
    None
}

trait ReadUntilFull: Read {
    /// Reads until `bytes` is full or the input ends.
    fn read_until_full(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.read(&mut bytes[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }
}

impl<R: Read> ReadUntilFull for R {}

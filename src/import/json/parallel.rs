//! Several threads on one plain file.
//!
//! Each begins at an event that was guessed near an even share of the file, and ends where the next one
//! began. A guess counts only once the thread before it arrives at exactly that byte, between two events;
//! else what the later thread read is thrown away and the earlier one's end is the new beginning. So the
//! result is always that of one thread.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::thread;

use super::super::model::Fork;
use super::Seen;
use super::buffer::{PADDING, Reads};
use super::scan::{End, Scan, Trouble, is_event};

/// A stretch smaller than this is not worth a thread.
const SMALLEST: u64 = 4 << 20;
/// How far behind an even share an event is looked for.
const LOOK: usize = 1 << 20;

/// A file read from a position on, without moving the position that others read from.
struct From<'a> {
    file: &'a File,
    at: u64,
}

impl Read for From<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

type Ended = Result<End, Trouble>;

/// Reads `file`, which is `size` bytes long, with up to `threads` threads.
pub(super) fn read<S: Fork>(
    file: &File,
    size: u64,
    buffer: usize,
    threads: usize,
    sink: &mut S,
    told: &(impl Fn(u64) + Sync),
) -> (Seen, Ended) {
    let in_object = first_byte(file) == Some(b'{');
    let starts = guesses(file, size, threads);
    let mut later: Vec<(u64, S, Scan)> =
        starts.iter().map(|&start| (start, sink.fork(), Scan::within(in_object))).collect();
    let mut first = Scan::new();
    let (first_end, ends) = thread::scope(|scope| {
        let workers: Vec<_> = later
            .iter_mut()
            .enumerate()
            .map(|(at, (start, sink, scan))| {
                let until = starts.get(at + 1).copied().unwrap_or(u64::MAX);
                let start = *start;
                scope.spawn(move || {
                    let input = Counted(From { file, at: start }, told);
                    scan.run(&mut Reads { input, size: buffer }, start, until, sink)
                })
            })
            .collect();
        let until = starts.first().copied().unwrap_or(u64::MAX);
        let input = Counted(From { file, at: 0 }, told);
        let end = first.run(&mut Reads { input, size: buffer }, 0, until, sink);
        let ends: Vec<Ended> = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        (end, ends)
    });
    let (mut seen, mut ended, mut state) = (first.seen, first_end, first);
    for ((start, part, scan), end) in later.into_iter().zip(ends) {
        let Ok(End::Reached(at)) = ended else { break };
        if at != start {
            // The guess was wrong, and so is all that came of it.
            break;
        }
        sink.join(part);
        seen.add(&scan.seen);
        (ended, state) = (end, scan);
    }
    if let Ok(End::Reached(at)) = ended {
        let mut rest = state.resumed();
        ended = rest.run(&mut Reads { input: From { file, at }, size: buffer }, at, u64::MAX, sink);
        seen.add(&rest.seen);
    }
    (seen, ended)
}

/// Says how many bytes were read.
struct Counted<'a, R, T>(R, &'a T)
where
    T: Fn(u64);

impl<R: Read, T: Fn(u64)> Read for Counted<'_, R, T> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.read(bytes)?;
        (self.1)(count as u64);
        Ok(count)
    }
}

fn first_byte(file: &File) -> Option<u8> {
    let mut head = [0; 4096];
    let count = file.read_at(&mut head, 0).ok()?;
    let head = &head[..count];
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    head.iter().copied().find(|byte| !byte.is_ascii_whitespace())
}

/// Where events may begin, near even shares of the file, ascending.
fn guesses(file: &File, size: u64, threads: usize) -> Vec<u64> {
    let shares = (threads as u64).min(size / SMALLEST).max(1);
    let mut starts: Vec<u64> = (1..shares).filter_map(|share| guess(file, size / shares * share)).collect();
    starts.dedup();
    starts
}

/// The first place at or behind `from` that looks like an event: `}`, `,`, `{`, `"`, and a phase in it.
fn guess(file: &File, from: u64) -> Option<u64> {
    let mut bytes = vec![0; LOOK + PADDING];
    let count = From { file, at: from }.take(LOOK as u64).read_exact_or_end(&mut bytes[..LOOK]).ok()?;
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

trait ReadToEnd: Read {
    /// Reads until `bytes` is full or the input ends.
    fn read_exact_or_end(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
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

impl<R: Read> ReadToEnd for R {}

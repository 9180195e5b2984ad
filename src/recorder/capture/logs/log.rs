//! A log that passes records, as 64-bit words, from one application thread to the collector. The length of a single log
//! is unlimited, but all logs together have a memory limit.
//!
//! ```text
//! writer (application thread)                      reader (collector)
//!    chunk 3  [len|next|words.............]  <---next---  chunk 2  <---next---  chunk 1
//!    plain stores, then len with Release                  reads up to len, gives the chunk back
//! ```
//!
//! A log consists of chunks of memory, which come from a pool that the collector refills. While the collector keeps up
//! with the writer, a push neither allocates memory nor makes a system call. If the writer outruns the collector, the
//! writer itself maps further chunks, which takes about 20 us per chunk. The writer outruns the collector, for example,
//! if a thousand new stacks occur, or if the collector gets no processor time. After the collector has read the
//! additional chunks, it unmaps them. If the number of chunks has reached its limit, the log refuses the push, and the
//! caller counts the record as lost.

use std::cell::Cell;
use std::mem::{offset_of, size_of};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use gpuflame_unwind::memory;

use super::unread_limit;

const CHUNK_BYTES: usize = 64 << 10;
/// Number of 64-bit words per chunk. The record of a launch has 3 words. The number of words is a multiple of 3, so
/// that records of launches fill a chunk completely.
pub(super) const CHUNK_WORDS: usize = (CHUNK_BYTES - 64) / 8 / 3 * 3;
/// Maximum number of chunks in all logs together. At this limit, the chunks take 32 MiB, which is enough for 1.4
/// million unread launches. The first chunk of each log does not count towards this limit. Each thread has two logs. If
/// several threads map a chunk at the same moment, a few more chunks may exist.
const MAX_CHUNKS: usize = 512;
/// Current limit on the number of chunks in all logs together. The limit is `MAX_CHUNKS`, or a smaller number if the
/// memory limit is small.
static CHUNK_LIMIT: AtomicUsize = AtomicUsize::new(MAX_CHUNKS);
/// Number of ready (empty) chunks in the pool after the collector has refilled it. The ready chunks take 2 MiB, which
/// is enough for 90,000 launches. This many launches may occur between two visits of the collector.
const READY_CHUNKS: usize = 32;
/// Maximum number of ready chunks in the pool, including chunks that the collector has read and returned. This maximum
/// is 1.5 times `READY_CHUNKS`. Therefore the number of launches between two visits of the collector can vary by 40,000
/// before chunks must be mapped or unmapped.
const MAX_READY_CHUNKS: usize = READY_CHUNKS * 3 / 2;

#[repr(C, align(64))]
struct LogChunk {
    len: AtomicU32,
    next: AtomicPtr<LogChunk>,
    words: [Cell<u64>; CHUNK_WORDS],
}

const _: () = assert!(size_of::<LogChunk>() <= CHUNK_BYTES && offset_of!(LogChunk, words) <= 64);

/// Limits the total memory of all chunks to `bytes`. At least `MAX_READY_CHUNKS` chunks are always allowed, even if
/// `bytes` is smaller.
pub(crate) fn limit_memory(bytes: usize) {
    CHUNK_LIMIT.store((bytes / CHUNK_BYTES).clamp(MAX_READY_CHUNKS, MAX_CHUNKS), Ordering::Relaxed);
}

/// The ready chunks, in no particular order. A thread takes a chunk out of a slot, or puts a chunk into a slot, by a
/// single atomic exchange. Therefore a preempted thread never blocks another thread, even if the threads have different
/// priorities.
struct ChunkPool {
    ready: [AtomicPtr<LogChunk>; MAX_READY_CHUNKS],
    created: AtomicUsize,
    /// Number of logs with at least one record. Each log with a record permanently holds at least one chunk.
    logs: AtomicUsize,
    /// Whether [`refill_chunks`] was called at least once. Before the first call of [`refill_chunks`], every push is
    /// refused.
    is_open: AtomicBool,
}

static POOL: ChunkPool = ChunkPool::new();

impl ChunkPool {
    const fn new() -> Self {
        Self {
            ready: [const { AtomicPtr::new(null_mut()) }; MAX_READY_CHUNKS],
            created: AtomicUsize::new(0),
            logs: AtomicUsize::new(0),
            is_open: AtomicBool::new(false),
        }
    }

    /// Takes a ready chunk from the pool. Examines each of the pool's 48 slots at most once.
    fn take(&self) -> Option<NonNull<LogChunk>> {
        // The slot is loaded before the exchange, because an exchange takes the slot's cache line away from all other
        // threads. During a burst of launches most slots are empty, so an exchange without this check would usually be
        // in vain.
        let mut full = self.ready.iter().filter(|slot| !slot.load(Ordering::Relaxed).is_null());
        full.find_map(|slot| NonNull::new(slot.swap(null_mut(), Ordering::Acquire)))
    }

    /// Puts a ready chunk into the pool. Returns `false` if the pool has no free slot.
    fn put(&self, chunk: NonNull<LogChunk>) -> bool {
        self.ready.iter().any(|slot| {
            let order = (Ordering::Release, Ordering::Relaxed);
            slot.compare_exchange(null_mut(), chunk.as_ptr(), order.0, order.1).is_ok()
        })
    }

    fn len(&self) -> usize {
        self.ready.iter().filter(|slot| !slot.load(Ordering::Relaxed).is_null()).count()
    }
}

/// Number of logs with at least one record.
pub(crate) fn count_logs() -> usize {
    POOL.logs.load(Ordering::Relaxed)
}

/// Maps chunks until `READY_CHUNKS` chunks are ready. Only the collector calls this function, and never inside a
/// callback.
pub fn refill_chunks() {
    POOL.is_open.store(true, Ordering::Release);
    while POOL.len() < READY_CHUNKS {
        let Some(chunk) = create_chunk() else { return };
        return_chunk(chunk);
    }
}

/// Maps a new chunk of memory. Returns `None` if there are too many chunks or the kernel provides no memory.
#[cold]
fn create_chunk() -> Option<NonNull<LogChunk>> {
    let created = POOL.created.load(Ordering::Relaxed).saturating_sub(POOL.logs.load(Ordering::Relaxed));
    let is_reserved = created < MAX_READY_CHUNKS;
    let has_room = || created < CHUNK_LIMIT.load(Ordering::Relaxed) && unread_limit::has_room(CHUNK_BYTES);
    if !is_reserved && !has_room() {
        return None;
    }
    let chunk = memory::map(CHUNK_BYTES)?.cast();
    POOL.created.fetch_add(1, Ordering::Relaxed);
    Some(chunk)
}

/// Returns an empty chunk, which comes from the pool or is newly mapped. Returns `None` if there are too many chunks or
/// no memory is available.
fn take_chunk() -> Option<NonNull<LogChunk>> {
    if !POOL.is_open.load(Ordering::Acquire) {
        return None;
    }
    let chunk = POOL.take().or_else(create_chunk)?;
    // SAFETY: this thread has taken the chunk out of the pool and is its only owner, and the chunk's memory is mapped.
    let empty = unsafe { chunk.as_ref() };
    empty.len.store(0, Ordering::Relaxed);
    empty.next.store(null_mut(), Ordering::Relaxed);
    Some(chunk)
}

/// Returns a chunk that will be the first chunk of a log. The first chunk of each log does not count against the limit.
/// If first chunks counted, the first chunks of many threads could use up the limit.
#[cold]
fn take_first_chunk() -> Option<NonNull<LogChunk>> {
    POOL.logs.fetch_add(1, Ordering::Relaxed);
    let chunk = take_chunk();
    if chunk.is_none() {
        POOL.logs.fetch_sub(1, Ordering::Relaxed);
    }
    chunk
}

/// Returns a chunk to the pool. If the pool is full, unmaps the chunk instead, so that the memory used by a burst of
/// launches is released.
fn return_chunk(chunk: NonNull<LogChunk>) {
    if !POOL.put(chunk) {
        POOL.created.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: only the reader still has a pointer to this chunk, and it has finished reading.
        unsafe { memory::unmap(chunk.cast(), CHUNK_BYTES) };
    }
}

/// State that a log's writer and reader share, which is a pointer to the first chunk of the log. Each chunk points to
/// the next chunk.
#[derive(Debug)]
pub(crate) struct Log {
    first: AtomicPtr<LogChunk>,
}

impl Log {
    pub(crate) const fn new() -> Self {
        Self { first: AtomicPtr::new(null_mut()) }
    }
}

/// Writer of a log. Each writer belongs to one application thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogWriter {
    chunk: Option<NonNull<LogChunk>>,
    used: usize,
}

impl LogWriter {
    pub(crate) const fn new() -> Self {
        Self { chunk: None, used: 0 }
    }

    /// Whether the writer has a chunk. A writer has no chunk until the first push that succeeds.
    pub(crate) fn has_begun(&self) -> bool {
        self.chunk.is_some()
    }

    /// Appends `parts` as one record that is never split between two chunks. If the log has no room for the record,
    /// returns `false` and writes nothing.
    #[inline]
    pub(crate) fn push<const N: usize>(&mut self, log: &Log, parts: [&[u64]; N]) -> bool {
        let needed: usize = parts.iter().map(|part| part.len()).sum();
        let chunk = match self.chunk {
            Some(chunk) if self.used + needed <= CHUNK_WORDS => chunk,
            _ => match self.next_chunk(log, needed) {
                Some(chunk) => chunk,
                None => return false,
            },
        };
        // SAFETY: the writer's current chunk stays mapped until the reader has moved past it.
        let chunk = unsafe { chunk.as_ref() };
        for word in parts.into_iter().flatten() {
            chunk.words[self.used].set(*word);
            self.used += 1;
        }
        chunk.len.store(self.used as u32, Ordering::Release);
        true
    }

    #[cold]
    fn next_chunk(&mut self, log: &Log, needed: usize) -> Option<NonNull<LogChunk>> {
        if needed > CHUNK_WORDS {
            return None;
        }
        let fresh = match self.chunk {
            Some(_) if unread_limit::are_activities_lost(CHUNK_BYTES) => return None,
            Some(_) => take_chunk(),
            None => take_first_chunk(),
        }?;
        let link = match &self.chunk {
            // SAFETY: as in `push`, the writer's current chunk stays mapped until the reader has moved past it.
            Some(chunk) => unsafe { &chunk.as_ref().next },
            None => &log.first,
        };
        link.store(fresh.as_ptr(), Ordering::Release);
        self.chunk = Some(fresh);
        self.used = 0;
        Some(fresh)
    }
}

/// Reader of a log. All readers belong to the collector.
#[derive(Debug)]
pub(crate) struct LogReader {
    chunk: *const LogChunk,
    read: usize,
}

/// A mark, which is a position in a log: the end of the words that were written when the mark was made.
#[derive(Clone, Copy)]
pub(crate) struct LogMark {
    chunk: *const LogChunk,
    len: usize,
}

impl LogMark {
    fn at(chunk: *const LogChunk) -> Self {
        // SAFETY: only the reader calls this function, and a chunk stays mapped until the reader has moved to the next
        // chunk.
        let len = unsafe { chunk.as_ref() }.map_or(0, |chunk| chunk.len.load(Ordering::Acquire) as usize);
        Self { chunk, len }
    }
}

impl LogReader {
    pub(crate) const fn new() -> Self {
        Self { chunk: std::ptr::null(), read: 0 }
    }

    /// Returns a mark at the current end of `log`.
    pub(crate) fn mark_end(&self, log: &Log) -> LogMark {
        let mut mark = self.mark_chunk_end(log);
        // SAFETY: all chunks from the reader's current chunk to the newest chunk stay mapped, because only this reader
        // frees chunks.
        while let Some(chunk) = unsafe { mark.chunk.as_ref() } {
            let next = chunk.next.load(Ordering::Acquire);
            if next.is_null() {
                break;
            }
            mark = LogMark::at(next);
        }
        mark
    }

    /// Returns the number of words in the log that are written but not yet read.
    pub(crate) fn unread(&self, log: &Log) -> usize {
        let first = if self.chunk.is_null() { log.first.load(Ordering::Acquire) } else { self.chunk };
        let mut words = 0;
        let mut at = first;
        // SAFETY: as in `mark_end`, all chunks from the reader's current chunk to the newest chunk stay mapped.
        while let Some(chunk) = unsafe { at.as_ref() } {
            words += chunk.len.load(Ordering::Acquire) as usize;
            at = chunk.next.load(Ordering::Acquire);
        }
        words - if std::ptr::eq(first, self.chunk) { self.read } else { 0 }
    }

    /// Whether the reader has read all words up to `mark`.
    pub(super) fn is_at(&self, mark: LogMark) -> bool {
        mark.chunk.is_null() || (std::ptr::eq(self.chunk, mark.chunk) && self.read == mark.len)
    }

    /// Returns a mark at the current end of the reader's current chunk.
    pub(crate) fn mark_chunk_end(&self, log: &Log) -> LogMark {
        let chunk = if self.chunk.is_null() { log.first.load(Ordering::Acquire) } else { self.chunk };
        LogMark::at(chunk)
    }

    /// Passes all words up to `mark` to `each`, in slices of complete records. Returns a chunk to the pool once both
    /// the writer and the reader have finished with it. Returns `false` if there were no unread words up to `mark`.
    pub(crate) fn drain(&mut self, log: &Log, mark: LogMark, mut each: impl FnMut(&[u64])) -> bool {
        if mark.chunk.is_null() {
            return false;
        }
        if self.chunk.is_null() {
            self.chunk = log.first.load(Ordering::Acquire);
        }
        let mut any = false;
        // SAFETY: as in `mark_end`, all chunks from the reader's current chunk to the newest chunk stay mapped.
        while let Some(chunk) = unsafe { self.chunk.as_ref() } {
            let is_last = std::ptr::eq(self.chunk, mark.chunk);
            let next = chunk.next.load(Ordering::Acquire);
            let len = if is_last { mark.len } else { chunk.len.load(Ordering::Acquire) as usize };
            if self.read < len {
                // SAFETY: the writer has stored the chunk's length with Release, and words below this length are never
                // written again.
                each(unsafe {
                    std::slice::from_raw_parts(
                        chunk.words.as_ptr().cast::<u64>().add(self.read),
                        len - self.read,
                    )
                });
                self.read = len;
                any = true;
            }
            // If the chunk already had a successor when `next` was loaded, the writer will not add words to the chunk,
            // so the chunk's length is final.
            let finished = !next.is_null() && self.read == chunk.len.load(Ordering::Acquire) as usize;
            if finished {
                self.chunk = next;
                self.read = 0;
                any = true;
                return_chunk(NonNull::from(chunk));
            }
            if is_last || !finished {
                break;
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_taken_and_put_back_by_several_threads_are_neither_lost_nor_duplicated() {
        let pool = ChunkPool::new();
        let chunks: Vec<_> =
            (0..MAX_READY_CHUNKS).map(|_| memory::map(CHUNK_BYTES).unwrap().cast()).collect();
        assert!(chunks.iter().all(|chunk| pool.put(*chunk)));
        assert!(!pool.put(NonNull::dangling()), "the pool is full");
        // No thread can be preempted in the middle of a change to a slot, because the change is a single atomic
        // exchange.
        let mut taken: Vec<_> = std::thread::scope(|scope| {
            let take_all = || {
                let mut mine = Vec::new();
                for turn in 0..20_000 {
                    if let Some(chunk) = pool.take() {
                        // Each thread puts every second chunk back into the pool.
                        if turn % 2 == 0 && turn < 19_000 {
                            assert!(pool.put(chunk));
                        } else {
                            mine.push(chunk.addr().get());
                        }
                    }
                }
                mine
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take_all)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        taken.sort();
        let mut all: Vec<_> = chunks.iter().map(|chunk: &NonNull<LogChunk>| chunk.addr().get()).collect();
        all.sort();
        assert_eq!((taken, pool.len()), (all, 0), "every chunk exactly once");
        // SAFETY: each chunk was mapped above with this size, and no thread uses the chunk any more.
        chunks.iter().for_each(|chunk| unsafe { memory::unmap(chunk.cast(), CHUNK_BYTES) });
    }

    fn drain_all(reader: &mut LogReader, log: &Log) -> Vec<u64> {
        let mut all = Vec::new();
        reader.drain(log, reader.mark_end(log), |words| all.extend_from_slice(words));
        all
    }

    #[test]
    fn pushed_records_are_drained_once_and_in_order() {
        refill_chunks();
        let (log, mut writer, mut reader) = (Log::new(), LogWriter::new(), LogReader::new());
        assert!(drain_all(&mut reader, &log).is_empty());
        for value in 0..3 * CHUNK_WORDS as u64 / 2 {
            assert!(writer.push(&log, [&[value], &[value + 1]]));
        }
        let expected: Vec<u64> =
            (0..3 * CHUNK_WORDS as u64 / 2).flat_map(|value| [value, value + 1]).collect();
        assert_eq!(drain_all(&mut reader, &log), expected);
        assert!(drain_all(&mut reader, &log).is_empty());
        assert!(writer.push(&log, [&[7]]));
        assert_eq!(drain_all(&mut reader, &log), [7]);
    }

    #[test]
    fn draining_to_a_mark_leaves_later_records() {
        refill_chunks();
        let (log, mut writer, mut reader) = (Log::new(), LogWriter::new(), LogReader::new());
        assert!(writer.push(&log, [&[1, 2, 3]]));
        let mark = reader.mark_end(&log);
        assert!(writer.push(&log, [&[4, 5, 6]]));
        let mut seen = Vec::new();
        reader.drain(&log, mark, |words| seen.extend_from_slice(words));
        assert_eq!(seen, [1, 2, 3]);
        assert_eq!(drain_all(&mut reader, &log), [4, 5, 6]);
    }

    #[test]
    fn unread_words_are_counted_over_all_chunks() {
        refill_chunks();
        let (log, mut writer, mut reader) = (Log::new(), LogWriter::new(), LogReader::new());
        assert_eq!(reader.unread(&log), 0);
        (0..CHUNK_WORDS + 5).for_each(|_| assert!(writer.push(&log, [&[1]])));
        assert_eq!(reader.unread(&log), CHUNK_WORDS + 5);
        reader.drain(&log, reader.mark_chunk_end(&log), |_| {});
        assert_eq!(reader.unread(&log), 5);
        assert!(writer.push(&log, [&[2]]));
        assert_eq!((reader.unread(&log), drain_all(&mut reader, &log).len(), reader.unread(&log)), (6, 6, 0));
    }

    #[test]
    fn a_record_larger_than_a_chunk_is_refused() {
        refill_chunks();
        let (log, mut writer) = (Log::new(), LogWriter::new());
        assert!(!writer.push(&log, [&vec![0; CHUNK_WORDS + 1][..]]));
        assert!(writer.push(&log, [&vec![9; CHUNK_WORDS][..]]));
    }

    #[test]
    fn no_record_is_lost_between_a_writer_and_a_reader_thread() {
        const RECORDS: u64 = 300_000;
        refill_chunks();
        let log: &'static Log = Box::leak(Box::new(Log::new()));
        let producer = std::thread::spawn(move || {
            let mut writer = LogWriter::new();
            for value in 0..RECORDS {
                while !writer.push(log, [&[value, !value, value ^ 5]]) {
                    std::thread::yield_now();
                }
            }
        });
        let mut reader = LogReader::new();
        let mut expected = 0;
        while expected < RECORDS {
            refill_chunks();
            reader.drain(log, reader.mark_end(log), |words| {
                for record in words.chunks_exact(3) {
                    assert_eq!(record, [expected, !expected, expected ^ 5]);
                    expected += 1;
                }
            });
        }
        producer.join().unwrap();
    }
}

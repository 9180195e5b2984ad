//! A log to which all threads write under a lock, for rare records whose order across threads matters.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuflame_os::host_signals;

use super::log::{Log, LogMark, LogReader, LogWriter};

/// A log that all threads share, with its writer and its reader.
pub(crate) struct CommonLog {
    log: Log,
    writer: Mutex<LogEnd<LogWriter>>,
    reader: Mutex<LogEnd<LogReader>>,
}

/// The writer or the reader of a log, which are called the "ends" of the log.
struct LogEnd<T>(T);

// SAFETY: an end of the log points to chunks to which only this log refers. The thread that holds the end's lock is the
// only writer or the only reader.
unsafe impl<T> Send for LogEnd<T> {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CommonLog {
    pub(crate) const fn new() -> Self {
        Self {
            log: Log::new(),
            writer: Mutex::new(LogEnd(LogWriter::new())),
            reader: Mutex::new(LogEnd(LogReader::new())),
        }
    }

    /// Appends `parts` as one record. If the log has no room for the record, returns `false` and writes nothing.
    pub(crate) fn push<const N: usize>(&self, parts: [&[u64]; N]) -> bool {
        // Signals are blocked during the push. If signals were not blocked, a signal handler could jump out of this
        // call, and the lock would stay held forever.
        host_signals::with_all_blocked(|| lock(&self.writer).0.push(&self.log, parts))
    }

    /// Returns the records that are unread at the time of this call; `None` if there are none.
    pub(crate) fn unread(&self) -> Option<Unread<'_>> {
        let reader = lock(&self.reader);
        let mark = reader.0.mark_end(&self.log);
        (!reader.0.is_at(mark)).then(|| Unread { log: &self.log, reader, mark })
    }
}

/// Records of a log that were still unread when this struct was created. If these records refer to records in other
/// logs, drain the other logs first.
pub(crate) struct Unread<'a> {
    log: &'a Log,
    reader: MutexGuard<'a, LogEnd<LogReader>>,
    mark: LogMark,
}

impl Unread<'_> {
    /// Passes each unread record to `each`. Each record of the log must consist of `WORDS` words.
    pub(crate) fn drain<const WORDS: usize>(mut self, mut each: impl FnMut(&[u64; WORDS])) {
        self.reader.0.drain(self.log, self.mark, |words| words.as_chunks().0.iter().for_each(&mut each));
    }
}

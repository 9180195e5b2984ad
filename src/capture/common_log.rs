//! A log that all threads write to, under a lock: for what is rare and makes sense only in the order in which it
//! happened, whichever thread it happened on.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::host::signals;

use super::log::{Log, Mark, Reader, Writer};

/// The log, and both its ends.
pub(super) struct CommonLog {
    log: Log,
    writer: Mutex<End<Writer>>,
    reader: Mutex<End<Reader>>,
}

/// An end of the log.
struct End<T>(T);

// SAFETY: the ends point to chunks that only the log knows; whoever holds the lock is the one writer, or
// the one reader.
unsafe impl<T> Send for End<T> {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CommonLog {
    pub(super) const fn new() -> Self {
        Self {
            log: Log::new(),
            writer: Mutex::new(End(Writer::new())),
            reader: Mutex::new(End(Reader::new())),
        }
    }

    /// Appends `parts` as one record. False: there was no room, nothing was written.
    pub(super) fn push<const N: usize>(&self, parts: [&[u64]; N]) -> bool {
        // A signal handler that jumped out of here would leave the lock to nobody.
        signals::without(|| lock(&self.writer).0.push(&self.log, parts))
    }

    /// What was written up to now and not read yet; `None` if that is nothing.
    pub(super) fn unread(&self) -> Option<Unread<'_>> {
        let reader = lock(&self.reader);
        let mark = reader.0.mark(&self.log);
        (!reader.0.is_at(mark)).then(|| Unread { log: &self.log, reader, mark })
    }
}

/// Records that lie in the log. What they refer to, other logs, is to be read first.
pub(super) struct Unread<'a> {
    log: &'a Log,
    reader: MutexGuard<'a, End<Reader>>,
    mark: Mark,
}

impl Unread<'_> {
    /// Hands over each record, all of them of so many words.
    pub(super) fn drain<const WORDS: usize>(mut self, mut each: impl FnMut(&[u64; WORDS])) {
        self.reader.0.drain(self.log, self.mark, |words| words.as_chunks().0.iter().for_each(&mut each));
    }
}

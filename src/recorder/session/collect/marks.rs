//! Passes marks from the program's threads to the collector. A mark is an instant to which the program has attached a
//! text. Programmers write the calls that set marks by hand, so marks are rare, and one locked list is enough for all
//! threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::capture;
use gpuflame_model::record::{Instant, Nanos, ThreadId};
use gpuflame_os::threads;

/// Maximum number of marks that wait for the collector, which fetches them at least every 80 ms.
const MAX_PENDING_MARKS: usize = 4096;
/// Maximum length of a mark's text in bytes. Together with `MAX_PENDING_MARKS`, this limit restricts the memory for
/// waiting marks to 4 MiB.
const MAX_TEXT_BYTES: usize = 1024;
/// Maximum time for which adding a mark blocks the calling thread.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct Marks {
    pending: Mutex<Vec<(Nanos, ThreadId, Box<str>)>>,
    dropped: AtomicU64,
}

impl Marks {
    /// Adds a mark for this thread with the text `text` at the current time.
    pub(crate) fn add(&self, text: &str) {
        let (now, thread) = (capture::now(), ThreadId(threads::current_id() as u32));
        let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
        match self.pending.try_lock_for(LOCK_TIMEOUT) {
            Some(mut pending) if pending.len() < MAX_PENDING_MARKS => {
                pending.push((now, thread, text.into()))
            }
            _ => drop(self.dropped.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Removes the waiting marks, and passes them to `each`.
    pub(crate) fn drain(&self, mut each: impl FnMut(&Instant<'_>)) {
        let Some(pending) = self.pending.try_lock_for(LOCK_TIMEOUT).map(|mut all| std::mem::take(&mut *all))
        else {
            return;
        };
        pending.iter().for_each(|(time, thread, text)| each(&Instant { time: *time, thread: *thread, text }));
    }

    /// Number of marks that were dropped because too many marks were waiting for the collector.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_marks_are_counted_and_long_text_is_truncated_at_a_character_boundary() {
        let marks = Marks::default();
        (0..MAX_PENDING_MARKS + 3).for_each(|_| marks.add(&"é".repeat(600)));
        let mut lengths = Vec::new();
        marks.drain(|mark| lengths.push(mark.text.len()));
        assert_eq!((lengths.len(), marks.dropped()), (MAX_PENDING_MARKS, 3));
        assert!(lengths.iter().all(|length| *length == MAX_TEXT_BYTES));
        marks.add(&format!("x{}", "é".repeat(600)));
        marks.drain(|mark| assert_eq!(mark.text.len(), MAX_TEXT_BYTES - 1));
        marks.drain(|_| panic!("each mark must be taken only once"));
    }
}

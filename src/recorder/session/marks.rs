//! Carries instants that the program marks from its threads to the collector. Unlike launches, marks are placed by hand
//! and are rare, so one locked list serves all threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::capture;
use gpuflame_model::record::{Instant, Nanos, ThreadId};
use gpuflame_os::threads;

/// Maximum number of marks that wait for the collector, which visits every 100 ms or sooner.
const MOST: usize = 4096;
/// Maximum length of a text in bytes. Together with `MOST`, this length limits the memory of waiting marks to 4 MiB.
const LONGEST: usize = 1024;
/// Maximum time for which a mark blocks the calling thread.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Marks {
    waiting: Mutex<Vec<(Nanos, ThreadId, Box<str>)>>,
    dropped: AtomicU64,
}

impl Marks {
    /// Notes that the calling thread is at `text` now.
    pub(super) fn add(&self, text: &str) {
        let (now, thread) = (capture::now(), ThreadId(threads::current_id() as u32));
        let text = &text[..text.floor_char_boundary(LONGEST)];
        match self.waiting.try_lock_for(LONGEST_WAIT) {
            Some(mut waiting) if waiting.len() < MOST => waiting.push((now, thread, text.into())),
            _ => drop(self.dropped.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Hands over the waiting marks.
    pub(super) fn take(&self, mut each: impl FnMut(&Instant<'_>)) {
        let Some(waiting) = self.waiting.try_lock_for(LONGEST_WAIT).map(|mut all| std::mem::take(&mut *all))
        else {
            return;
        };
        waiting.iter().for_each(|(time, thread, text)| each(&Instant { time: *time, thread: *thread, text }));
    }

    /// Number of marks dropped for lack of room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_marks_are_counted_and_long_text_is_truncated_at_a_character_boundary() {
        let marks = Marks::default();
        (0..MOST + 3).for_each(|_| marks.add(&"é".repeat(600)));
        let mut lengths = Vec::new();
        marks.take(|mark| lengths.push(mark.text.len()));
        assert_eq!((lengths.len(), marks.dropped()), (MOST, 3));
        assert!(lengths.iter().all(|length| *length == LONGEST));
        marks.add(&format!("x{}", "é".repeat(600)));
        marks.take(|mark| assert_eq!(mark.text.len(), LONGEST - 1));
        marks.take(|_| panic!("they are taken once"));
    }
}

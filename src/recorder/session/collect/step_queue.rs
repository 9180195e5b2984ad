//! Passes the start of each of the program's steps from the program's threads to the collector. Steps take
//! milliseconds, so one locked list is enough for all threads. The queue of marks (in the module `marks`) has the same
//! design.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use gpuflame_model::record::{Nanos, Step, ThreadId};

/// Maximum number of steps that wait for the collector, which fetches them at least every 80 ms.
const MAX_PENDING_STEPS: usize = 4096;
/// Maximum length of a step's name in bytes.
const MAX_NAME_BYTES: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct StepQueue {
    pending: Mutex<Vec<PendingStep>>,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct PendingStep {
    time: Nanos,
    thread: ThreadId,
    number: u64,
    name: Box<str>,
}

impl StepQueue {
    /// Maximum time for which adding a step blocks the calling thread.
    pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

    /// Adds the start of a step to the queue.
    pub(crate) fn add(&self, step: &Step<'_>) {
        let Step { time, thread, number, name, .. } = *step;
        let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES)];
        match self.pending.try_lock_for(Self::LOCK_TIMEOUT) {
            Some(mut pending) if pending.len() < MAX_PENDING_STEPS => {
                pending.push(PendingStep { time, thread, number, name: name.into() });
            }
            _ => drop(self.dropped.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Removes the waiting steps, and passes them to `each`. Waits at most `patience` for a thread that is adding a
    /// step.
    pub(crate) fn drain(&self, patience: Duration, mut each: impl FnMut(&Step<'_>)) {
        let Some(mut pending) = self.pending.try_lock_for(patience) else { return };
        if pending.is_empty() {
            return;
        }
        let all = std::mem::take(&mut *pending);
        drop(pending);
        for PendingStep { time, thread, number, name } in &all {
            each(&Step { time: *time, end: None, thread: *thread, number: *number, name });
        }
    }

    /// Number of steps that were dropped because too many steps were waiting for the collector.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_steps_are_counted_and_long_names_are_cut_at_a_character_boundary() {
        let steps = StepQueue::default();
        for number in 1..=MAX_PENDING_STEPS as u64 + 3 {
            let name = format!("x{}", "é".repeat(600));
            steps.add(&Step { time: Nanos(number), end: None, thread: ThreadId(1), number, name: &name });
        }
        let mut lengths = Vec::new();
        steps.drain(Duration::ZERO, |step| lengths.push(step.name.len()));
        assert_eq!((lengths.len(), steps.dropped()), (MAX_PENDING_STEPS, 3));
        assert!(lengths.iter().all(|length| *length == MAX_NAME_BYTES - 1));
        steps.drain(Duration::ZERO, |_| panic!("each step must be taken only once"));
    }
}

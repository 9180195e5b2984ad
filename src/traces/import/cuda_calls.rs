//! Stores when each thread was inside calls to CUDA.

use std::cmp::Reverse;
use std::collections::HashMap;

/// Start and end of each call to CUDA, keyed by the global id of the thread.
#[derive(Default)]
pub(super) struct CudaCalls(HashMap<i64, Vec<(i64, i64)>>);

impl CudaCalls {
    pub(super) fn note(&mut self, thread: Option<i64>, start: i64, end: i64) {
        if let Some(thread) = thread {
            self.0.entry(thread).or_default().push((start, end));
        }
    }

    /// Sorts the calls, and drops calls that are inside other calls. Call this function once, after the last call was
    /// added.
    pub(super) fn sort(&mut self) {
        for calls in self.0.values_mut() {
            calls.sort_unstable_by_key(|(start, end)| (*start, Reverse(*end)));
            let mut last = i64::MIN;
            calls.retain(|(_, end)| {
                let is_inside = *end <= last;
                last = last.max(*end);
                !is_inside
            });
        }
    }

    /// Whether the thread makes calls to CUDA, but is not inside any CUDA call at the time `start`.
    pub(super) fn is_between(&self, thread: i64, start: i64) -> bool {
        let Some(calls) = self.0.get(&thread) else { return false };
        let after = calls.partition_point(|(begin, _)| *begin <= start);
        after.checked_sub(1).is_none_or(|last| calls[last].1 <= start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_between_its_calls_from_the_end_of_one_to_the_begin_of_the_next() {
        let mut calls = CudaCalls::default();
        // In this test, the second call is inside the first call.
        for (start, end) in [(100, 200), (120, 130), (300, 310)] {
            calls.note(Some(7), start, end);
        }
        calls.note(None, 0, 1000);
        calls.sort();
        let between = |time| calls.is_between(7, time);
        assert_eq!([99, 100, 125, 150, 199].map(between), [true, false, false, false, false]);
        assert_eq!([200, 250, 299, 300, 310].map(between), [true, true, true, false, true]);
        assert!(!calls.is_between(8, 250));
    }
}

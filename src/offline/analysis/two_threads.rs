//! Runs two steps of an analysis in parallel, if the run is large.

use std::thread;

/// Minimum number of edges for which a second thread is started. Lists of items other than edges have this minimum too,
/// if each item takes a few ns. Starting a thread takes about 50 us.
const MIN_LARGE: usize = 1 << 16;

/// Whether a list with this number of edges is large enough for a second thread.
pub(super) fn is_large(edges: usize) -> bool {
    edges >= MIN_LARGE
}

/// Runs the steps `one` and `other`, and returns their results. The steps run in parallel if `is_large` is true.
pub(super) fn in_parallel<A, B: Send>(
    is_large: bool,
    one: impl FnOnce() -> A,
    other: impl FnOnce() -> B + Send,
) -> (A, B) {
    if !is_large {
        return (one(), other());
    }
    thread::scope(|scope| {
        let other = scope.spawn(other);
        let one = one();
        (one, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_steps_are_taken_with_one_and_with_two_threads() {
        for is_large in [false, true] {
            let mut of_other = 0;
            let taken = in_parallel(is_large, || 1, || of_other = 2);
            assert_eq!((taken, of_other), ((1, ()), 2));
        }
    }
}

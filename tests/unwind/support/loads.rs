//! Runs threads that capture stacks while another thread loads and unloads libraries.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::build::{Library, compile};
use super::seen::{SEEN, call, twins, use_new_unwinder};

/// Minimum number of times that the test loads and unloads the libraries. On a busy machine, the worker threads may
/// finish their rounds before the loading thread runs.
const TURNS: usize = 100;
/// Minimum number of rounds of captures that each worker makes.
const ROUNDS: usize = 300;

/// Captures on four threads while the calling thread loads and unloads the twin libraries, and asserts that each
/// capture agrees with libgcc. `after_each` runs after each unload.
pub(crate) fn assert_agreement_during_loads(check_every_capture: bool, mut after_each: impl FnMut()) {
    let case = compile("cases.c", &["-O2"]);
    let twins = twins();
    let is_over = AtomicBool::new(false);
    let work = || {
        use_new_unwinder(check_every_capture);
        let library = Library::open(&case);
        let mut round = 0;
        while round < ROUNDS || !is_over.load(Ordering::Relaxed) {
            for name in ["plain", "realigned", "with_alloca"] {
                call(library, name);
                let (_, ours, theirs) = SEEN.take();
                assert_eq!(ours, theirs, "{name}");
                assert!(ours.len() > 4, "{name}");
            }
            round += 1;
        }
    };
    thread::scope(|scope| {
        // Ends the worker threads even if loading a library fails below.
        let _end = SetOnDrop(&is_over);
        let workers = [(); 4].map(|()| scope.spawn(work));
        let mut turn = 0;
        while turn < TURNS || !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            Library::open(&twins[turn % 2]).close();
            after_each();
            turn += 1;
            if turn >= TURNS {
                is_over.store(true, Ordering::Relaxed);
            }
        }
    });
}

/// Sets the flag on drop.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

//! Ends a session that gets no more memory: the checkpoint keeps the rows recorded so far, and the application continues.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::control::lifecycle;
use gpuflame_os::{file, shortage, stderr, threads};

/// Maximum time for which the message waits for a full stderr.
const LONGEST_TELLING: Duration = Duration::from_millis(200);

/// Notes in the checkpoint or the recording that recording ended because memory ran out.
pub(super) trait Starve: Sync {
    /// Writes the note that memory ran out. Waits for no lock.
    fn starve(&self);
}

static RECORDED: OnceLock<&'static dyn Starve> = OnceLock::new();

/// Sets the session whose checkpoint or recording receives the note.
pub(super) fn tell(recorded: &'static dyn Starve) {
    let _ = RECORDED.set(recorded);
}

/// Ends the session. Reports the end once: first on stderr, which takes no memory, then in the recording, which takes
/// little memory.
pub(super) fn end() {
    static SAID: AtomicBool = AtomicBool::new(false);
    lifecycle::end();
    if !SAID.swap(true, Ordering::AcqRel) {
        let line =
            b"gpuflame: there is no memory left, and recording has ended; `gpuflame recover` rebuilds the \
              files from the checkpoint (.gfr), if there is one; the application is not affected\n";
        stderr::write_here(line, LONGEST_TELLING);
        if let Some(recorded) = RECORDED.get() {
            recorded.starve();
        }
        // The threads that write these files do not continue.
        file::remove_unpublished();
    }
}

/// Ends the session, and stops the calling thread, which is ours. The thread may hold locks. The application never
/// waits without a time limit for one of these locks.
pub fn end_this_thread() -> ! {
    shortage::go_out();
    end();
    threads::stop()
}

//! Ends a session when memory has run out. The checkpoint keeps the rows recorded so far, and the application
//! continues.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::control::lifecycle;
use gpuflame_os::{file, shortage, stderr, threads};

/// Maximum time for which the message waits while stderr is full.
const STDERR_TIMEOUT: Duration = Duration::from_millis(200);

/// A session that can note in its checkpoint or recording that memory has run out.
pub(crate) trait OnMemoryExhausted: Sync {
    /// Writes the note that recording ended because memory has run out. Waits for no lock.
    fn on_memory_exhausted(&self);
}

static HANDLER: OnceLock<&'static dyn OnMemoryExhausted> = OnceLock::new();

/// Sets the session that writes the note.
pub(crate) fn set_handler(handler: &'static dyn OnMemoryExhausted) {
    let _ = HANDLER.set(handler);
}

/// Ends the session. Reports the end once: first on stderr, for which no memory is needed, then in the checkpoint or
/// recording, for which little is needed.
pub(crate) fn end_session() {
    static IS_PRINTED: AtomicBool = AtomicBool::new(false);
    lifecycle::end();
    if !IS_PRINTED.swap(true, Ordering::AcqRel) {
        let line =
            b"gpuflame: there is no memory left, and recording has ended; `gpuflame recover` rebuilds the \
              files from the checkpoint (.gfr), if there is one; the application is not affected\n";
        stderr::write_here(line, STDERR_TIMEOUT);
        if let Some(handler) = HANDLER.get() {
            handler.on_memory_exhausted();
        }
        // The threads that write temporary files will not run again, so these files are removed.
        file::remove_temporary_files();
    }
}

/// Ends the session, and stops the calling thread, one of gpuflame's, permanently. The thread may hold locks; the
/// application never waits for a lock of gpuflame without a time limit.
pub fn end_this_thread() -> ! {
    shortage::set_thread_stopped();
    end_session();
    threads::park_forever()
}

//! Ends a session when memory has run out. The rows recorded so far stay in the checkpoint, and the application
//! continues.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::control::lifecycle;
use gpuflame_os::{file, shortage, stderr, threads};

/// Maximum time for which the message about exhausted memory waits while stderr is full.
const STDERR_TIMEOUT: Duration = Duration::from_millis(200);

/// A session that can note in its checkpoint or recording that memory has run out.
pub(crate) trait OnMemoryExhausted: Sync {
    /// Writes a note to the checkpoint or recording, which says that recording ended because memory ran out. This
    /// function must not wait for a lock.
    fn on_memory_exhausted(&self);
}

static HANDLER: OnceLock<&'static dyn OnMemoryExhausted> = OnceLock::new();

/// Sets the session that writes the note when memory has run out.
pub(crate) fn set_handler(handler: &'static dyn OnMemoryExhausted) {
    let _ = HANDLER.set(handler);
}

/// Ends the session because memory has run out. The end of the session is reported once: first on stderr, which needs
/// no memory, and then in the checkpoint or recording, which needs little memory.
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
        // The threads that write temporary files will not run again, so the calling thread removes these files.
        file::remove_temporary_files();
    }
}

/// Ends the session, and permanently stops the calling thread, which must be one of gpuflame's threads. When the thread
/// stops, it may hold locks. This is safe, because the application never waits for a lock of gpuflame without a time
/// limit.
pub fn end_this_thread() -> ! {
    shortage::set_thread_stopped();
    end_session();
    threads::park_forever()
}

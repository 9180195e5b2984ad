//! What becomes of a session that gets no more memory: what was recorded stays in the checkpoint, and the application runs on.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::control::life;
use crate::host::{file, shortage, stderr, threads};

/// How long a full stderr may take the line.
const LONGEST_TELLING: Duration = Duration::from_millis(200);

/// What says that it ends here.
pub(super) trait Starve: Sync {
    /// Does so, and waits for nobody.
    fn starve(&self);
}

static RECORDED: OnceLock<&'static dyn Starve> = OnceLock::new();

/// Has what is recorded say so, when it comes to that.
pub(super) fn tell(recorded: &'static dyn Starve) {
    let _ = RECORDED.set(recorded);
}

/// Ends everything, and says so once, first to people, which takes no memory, then in the recording, which takes little.
pub(super) fn end() {
    static SAID: AtomicBool = AtomicBool::new(false);
    life::end();
    if !SAID.swap(true, Ordering::AcqRel) {
        let line = b"gpuflame: there is no memory left, and recording has ended; `gpuflame recover` draws what is in the \
                     checkpoint (.gfr), if there is one; the application is not affected\n";
        stderr::write_here(line, LONGEST_TELLING);
        if let Some(recorded) = RECORDED.get() {
            recorded.starve();
        }
        // The threads that write them go no further.
        file::remove_unpublished();
    }
}

/// Ends everything, and has the calling thread, which is ours, go no further: it may hold locks, of which none is one that
/// the application waits for without a limit.
pub fn end_this_thread() -> ! {
    shortage::go_out();
    end();
    threads::stop()
}

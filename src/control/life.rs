//! Whether anything of ours may still run in this process. It may until the process ends, forks, or meets a bug
//! of ours; then nothing does, for good. One flag, read at every way in.

use std::sync::atomic::{AtomicBool, Ordering};

static OVER: AtomicBool = AtomicBool::new(false);

/// Whether nothing of ours may run any more.
#[inline]
pub fn is_over() -> bool {
    OVER.load(Ordering::Acquire)
}

/// Switches everything of ours off, for good.
pub fn end() {
    OVER.store(true, Ordering::Release);
}

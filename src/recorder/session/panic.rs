//! Ends a session in which gpuflame has panicked.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::lifecycle;

use super::messages::tell;

/// Switches everything off after gpuflame has panicked: nothing more is recorded or written.
pub fn disable_after_panic() {
    static SAID: AtomicBool = AtomicBool::new(false);
    lifecycle::end();
    if !SAID.swap(true, Ordering::AcqRel) {
        tell("internal error (a bug in gpuflame): recording has stopped; the application is not affected");
    }
}

//! Ends a session because gpuflame has panicked.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::lifecycle;

use super::messages::print_from_app;

/// Switches gpuflame off after a panic. After a panic, nothing more is recorded or written. Prints only one message,
/// even after several panics.
pub fn disable_after_panic() {
    static IS_PRINTED: AtomicBool = AtomicBool::new(false);
    lifecycle::end();
    if !IS_PRINTED.swap(true, Ordering::AcqRel) {
        print_from_app(
            "internal error (a bug in gpuflame): recording has stopped; the application is not affected",
        );
    }
}

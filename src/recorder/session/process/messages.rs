//! Prints messages while the application runs. Each message is one line on stderr, and the line is never split. Lines
//! that stderr does not accept are kept until the process exits, and are then written to a file next to the outputs.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use gpuflame_export::clean_line;
use gpuflame_os::{host_signals, stderr};

/// Maximum time for which a thread that prints a message waits while stderr is full.
const STDERR_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum wait for the lock that protects the unprinted lines. The wait is limited because a forked child may inherit
/// the lock in the locked state.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum total size in bytes of the unprinted lines. Further lines are lost.
const MAX_UNPRINTED_BYTES: usize = 64 << 10;

/// Lines that could not be printed, in the order of the attempts.
struct Unprinted {
    /// Id of the process that added the lines. A forked child inherits the lines of its parent, and drops them.
    process: u32,
    text: String,
}

static UNPRINTED: Mutex<Unprinted> = Mutex::new(Unprinted { process: 0, text: String::new() });

/// Prints a line. Call this function on threads of the application.
pub(crate) fn print_from_app(message: &str) {
    let line = format_line(message);
    if !stderr::write(line.as_bytes(), STDERR_TIMEOUT) {
        keep_unprinted(&line);
    }
}

/// Prints a line. Call this function on threads of gpuflame.
pub(crate) fn print_from_own(message: &str) {
    let line = format_line(message);
    if !stderr::write_here(line.as_bytes(), STDERR_TIMEOUT) {
        keep_unprinted(&line);
    }
}

/// Returns the line with gpuflame's prefix.
pub(crate) fn format_line(message: &str) -> String {
    // The message may contain text that gpuflame did not write, such as names and values of settings. That text must
    // not end the line or control a terminal.
    format!("gpuflame: {}\n", clean_line(message))
}

fn keep_unprinted(line: &str) {
    with_unprinted(|unprinted| {
        if unprinted.text.len() + line.len() <= MAX_UNPRINTED_BYTES {
            unprinted.text.push_str(line);
        }
    });
}

/// Removes and returns the lines of this process that could not be printed.
pub(crate) fn take_unprinted() -> String {
    with_unprinted(|unprinted| std::mem::take(&mut unprinted.text)).unwrap_or_default()
}

fn with_unprinted<T>(action: impl FnOnce(&mut Unprinted) -> T) -> Option<T> {
    host_signals::with_all_blocked(|| {
        let unprinted: Option<MutexGuard<'_, Unprinted>> = UNPRINTED.try_lock_for(LOCK_TIMEOUT);
        unprinted.map(|mut unprinted| {
            let process = std::process::id();
            if unprinted.process != process {
                *unprinted = Unprinted { process, text: String::new() };
            }
            action(&mut unprinted)
        })
    })
}

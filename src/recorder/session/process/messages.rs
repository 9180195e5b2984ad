//! Prints messages to stderr while the application runs. Each message is a single line, which is never split. Lines
//! that cannot be written to stderr are kept until the process exits, and are then written to a file next to the
//! outputs.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use gpuflame_export::clean_line;
use gpuflame_os::{host_signals, stderr};

/// Maximum time for which a thread waits to print a message while stderr is full.
const STDERR_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum time to wait for the lock that protects the unprinted lines. The wait is limited because a forked child may
/// inherit the lock in the locked state.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum total size of the unprinted lines in bytes. If the unprinted lines exceed this size, further lines are lost.
const MAX_UNPRINTED_BYTES: usize = 64 << 10;

/// Lines that could not be printed, in the order in which gpuflame tried to print them.
struct Unprinted {
    /// Id of the process that has added the unprinted lines. A forked child inherits its parent's lines, and drops
    /// them.
    process: u32,
    text: String,
}

static UNPRINTED: Mutex<Unprinted> = Mutex::new(Unprinted { process: 0, text: String::new() });

/// Prints a line to stderr. Call this function only on the application's threads.
pub(crate) fn print_from_app(message: &str) {
    let line = format_line(message);
    if !stderr::write(line.as_bytes(), STDERR_TIMEOUT) {
        keep_unprinted(&line);
    }
}

/// Prints a line to stderr. Call this function only on gpuflame's own threads.
pub(crate) fn print_from_own(message: &str) {
    let line = format_line(message);
    if !stderr::write_here(line.as_bytes(), STDERR_TIMEOUT) {
        keep_unprinted(&line);
    }
}

/// Returns the message as a line that begins with gpuflame's prefix.
pub(crate) fn format_line(message: &str) -> String {
    // The message may contain text that gpuflame has not written, such as names and values of settings. Such foreign
    // text must not end the line or send control codes to a terminal.
    format!("gpuflame: {}\n", clean_line(message))
}

fn keep_unprinted(line: &str) {
    with_unprinted(|unprinted| {
        if unprinted.text.len() + line.len() <= MAX_UNPRINTED_BYTES {
            unprinted.text.push_str(line);
        }
    });
}

/// Removes and returns the lines that this process could not print.
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

//! What gpuflame says while the application runs: lines to stderr, which never fail and never split. Lines that stderr does
//! not take are kept until the exit, for the file next to the outputs.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::export::clean_line;
use crate::host::{signals, stderr};

/// How long the application may be held up by a line to a stderr that is full.
const LONGEST_TELLING: Duration = Duration::from_millis(200);
/// Maximum wait for the lock of the unprinted lines: a forked child may inherit it locked.
const LONGEST_KEEPING: Duration = Duration::from_millis(100);
/// Maximum length of the lines that are kept. Further ones are lost.
const MAX_UNPRINTED_BYTES: usize = 64 << 10;

/// Lines that stderr did not take.
struct Unprinted {
    /// The process that they are about: a forked child inherits its parent's.
    process: u32,
    text: String,
}

static UNPRINTED: Mutex<Unprinted> = Mutex::new(Unprinted { process: 0, text: String::new() });

/// One line, on a thread of the application.
pub(super) fn tell(message: &str) {
    let line = line(message);
    if !stderr::write(line.as_bytes(), LONGEST_TELLING) {
        keep(&line);
    }
}

/// The same, on a thread of ours.
pub(super) fn say(message: &str) {
    let line = line(message);
    if !stderr::write_here(line.as_bytes(), LONGEST_TELLING) {
        keep(&line);
    }
}

/// The line, with whose it is.
pub(super) fn line(message: &str) -> String {
    // Names and settings are other people's words: none may end a line or drive a terminal.
    format!("gpuflame: {}\n", clean_line(message))
}

fn keep(line: &str) {
    with_unprinted(|unprinted| {
        if unprinted.text.len() + line.len() <= MAX_UNPRINTED_BYTES {
            unprinted.text.push_str(line);
        }
    });
}

/// The lines of this process that were not printed, which are the caller's from now on.
pub(super) fn take_unprinted() -> String {
    with_unprinted(|unprinted| std::mem::take(&mut unprinted.text)).unwrap_or_default()
}

fn with_unprinted<T>(action: impl FnOnce(&mut Unprinted) -> T) -> Option<T> {
    signals::without(|| {
        let unprinted: Option<MutexGuard<'_, Unprinted>> = UNPRINTED.try_lock_for(LONGEST_KEEPING);
        unprinted.map(|mut unprinted| {
            let process = std::process::id();
            if unprinted.process != process {
                *unprinted = Unprinted { process, text: String::new() };
            }
            action(&mut unprinted)
        })
    })
}

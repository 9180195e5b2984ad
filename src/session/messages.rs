//! What gpuflame says while the application runs: lines to stderr, which never fail and never split.

use std::time::Duration;

use crate::export::clean_line;
use crate::host::stderr;

/// How long the application may be held up by a line to a stderr that is full.
const LONGEST_TELLING: Duration = Duration::from_millis(200);

/// One line, on a thread of the application.
pub(super) fn tell(message: &str) {
    stderr::write(line(message).as_bytes(), LONGEST_TELLING);
}

/// The same, on a thread of ours.
pub(super) fn say(message: &str) {
    stderr::write_here(line(message).as_bytes(), LONGEST_TELLING);
}

/// The line, with whose it is.
pub(super) fn line(message: &str) -> String {
    // Names and settings are other people's words: none may end a line or drive a terminal.
    format!("gpuflame: {}\n", clean_line(message))
}

//! What all verbs tell their user by: standard error, a line for each thing, and how they ended.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::export::clean_line;
use crate::host::patient;

/// What became of a verb that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It did it: exit code 0.
    Clean,
    /// It did it, and found what `--strict` or the like has it fail for: exit code 1.
    Found,
    /// It ran a command, whose exit code this is.
    Status(u8),
}

/// Standard error, as far as it is wanted, and what else all verbs are told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Console {
    /// Whether only failures are told, and no progress is shown.
    pub(super) quiet: bool,
    /// Whether a file that was cut short is taken as far as it goes.
    pub(super) accept_cut: bool,
    /// Maximum time that a line waits for room in standard error; afterwards no further lines are written. None: as long as
    /// it takes.
    pub(super) patience: Option<Duration>,
}

impl Console {
    /// Prints a remark, in one line.
    pub(super) fn remark(self, text: impl std::fmt::Display) {
        if !self.quiet {
            self.print(&text);
        }
    }

    /// Prints why a verb could not do its work.
    pub(super) fn fail(self, error: &Error) {
        self.print(error);
    }

    /// Whether progress may be drawn, which waits for room in standard error.
    pub(super) fn shows_progress(self) -> bool {
        !self.quiet && self.patience.is_none()
    }

    /// A line that cannot be written (a reader or a terminal that went away, a full disk) is dropped: it must not change how
    /// a verb ends.
    fn print(self, text: &impl std::fmt::Display) {
        static IS_STALLED: AtomicBool = AtomicBool::new(false);
        let line = format!("gpuflame: {}\n", clean_line(&text.to_string()));
        let written = match self.patience {
            None => io::stderr().write_all(line.as_bytes()),
            Some(_) if IS_STALLED.load(Ordering::Relaxed) => return,
            Some(patience) => patient::write(line.as_bytes(), patience),
        };
        if written.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            IS_STALLED.store(true, Ordering::Relaxed);
        }
    }
}

/// A command line that cannot mean anything.
pub(super) fn usage(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Setting, message)
}

//! What all verbs tell their user by: standard error, a line for each thing, and how they ended.

use crate::error::{Error, ErrorKind};
use crate::export::clean_line;

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
}

impl Console {
    /// Tells something that is no failure, in one line.
    pub(super) fn remark(self, text: impl std::fmt::Display) {
        if !self.quiet {
            say(&text);
        }
    }

    /// Tells why a verb could not do its work.
    pub(super) fn fail(self, error: &Error) {
        say(error);
    }
}

fn say(text: &impl std::fmt::Display) {
    eprintln!("gpuflame: {}", clean_line(&text.to_string()));
}

/// A command line that cannot mean anything.
pub(super) fn usage(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Setting, message)
}

//! Prints the remarks of all verbs on stderr, one line each, and defines the exit status of verbs.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ValueEnum;

use gpuflame_export::clean_line;
use gpuflame_model::error::{Error, ErrorKind};
use gpuflame_os::timed_stderr;

/// Result of a verb that completed its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Success: exit code 0.
    Clean,
    /// Success, with a finding that counts as a failure under `--strict` or a similar flag: exit code 1.
    Findings,
    /// Exit code of the command that the verb ran, or an exit code that represents a verdict.
    Status(u8),
}

/// When to colour text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ColorChoice {
    /// Colour on a terminal, unless NO_COLOR is set or TERM is `dumb`.
    #[default]
    Auto,
    /// Colour everywhere, including pipes and files, even if NO_COLOR is set.
    Always,
    Never,
}

/// Options that all verbs share: what to print on stderr, and whether to accept truncated input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Console {
    /// Whether to print only errors, and no progress.
    pub(super) quiet: bool,
    /// Whether to accept a truncated input file.
    pub(super) accept_cut: bool,
    /// Maximum time to wait until stderr accepts a line. If stderr does not accept a line within this time, no further
    /// lines are written. `None`: no limit.
    pub(super) patience: Option<Duration>,
    /// Setting that decides whether tables are coloured.
    pub(super) color: ColorChoice,
}

impl Console {
    /// Prints a remark as one line.
    pub(super) fn remark(self, text: impl std::fmt::Display) {
        if !self.quiet {
            self.print(&text);
        }
    }

    /// Prints the reason why a verb failed.
    pub(super) fn print_error(self, error: &Error) {
        self.print(error);
    }

    /// Whether a progress bar may be drawn on stderr. Returns false if the wait for stderr has a time limit, because
    /// drawing a progress bar blocks while stderr accepts no output.
    pub(super) fn shows_progress(self) -> bool {
        !self.quiet && self.patience.is_none()
    }

    /// Prints a line. If the line cannot be written (the reader or terminal is gone, or the disk is full), the line is
    /// dropped, because a lost message must not change the exit status of a verb.
    fn print(self, text: &impl std::fmt::Display) {
        static IS_STALLED: AtomicBool = AtomicBool::new(false);
        let line = format!("gpuflame: {}\n", clean_line(&text.to_string()));
        let written = match self.patience {
            None => io::stderr().write_all(line.as_bytes()),
            Some(_) if IS_STALLED.load(Ordering::Relaxed) => return,
            Some(patience) => timed_stderr::write(line.as_bytes(), patience),
        };
        if written.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            IS_STALLED.store(true, Ordering::Relaxed);
        }
    }
}

/// Creates the error for an invalid command line.
pub(super) fn usage_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Setting, message)
}

//! The error type of the crate. An error's message states what failed, where it failed, and what the user can do next.
//!
//! This module depends on no other module. Errors of the operating system and of libraries are converted to this error
//! type at the place where they occur. Missing data (a frame without a name, an activity without a launch) is not an
//! error. Missing data is represented by values that are stored and shown: `profile::Unnamed`, `record::Missing`.

use std::fmt;

/// `Result` with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Kind of an [`Error`]. Functions of the C interface return the kind of an error as a negative number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no NVIDIA driver (`libcuda.so.1`) in this process or on this machine.
    NoDriver,
    /// No usable `libcupti` was found.
    NoCupti,
    /// CUPTI was found but refused to work: there is no GPU, the driver is too old, or another profiler uses CUPTI.
    CuptiRefused,
    /// A setting has an invalid value.
    Setting,
    /// A file could not be read or written.
    Io,
    /// A recording or a trace is malformed.
    Format,
    /// The call is invalid in the present state of gpuflame, for example because the process has begun to exit.
    State,
}

/// An error, with its kind and one sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// Creates an error of `kind`, whose message states the failure, its location and the next step.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the error with `context` and a colon in front of its message.
    #[must_use]
    pub fn within(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::new(ErrorKind::Io, error.to_string())
    }
}

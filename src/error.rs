//! The one error type of the crate: what went wrong, where, and what the user can do next.
//!
//! It is a leaf: lower-level errors are turned into it in the module that meets them. An *absence*
//! (a frame without a name, an activity without a launch) is not an error but a value of its own, kept and shown:
//! `profile::Unnamed`, `record::Missing`.

use std::fmt;

/// `Result` with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of trouble an [`Error`] is. The C interface returns it as a negative number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No NVIDIA driver (`libcuda.so.1`) in this process or on this machine.
    NoDriver,
    /// No usable `libcupti` was found.
    NoCupti,
    /// CUPTI is there but refused: no GPU, driver too old, or another profiler holds it.
    CuptiRefused,
    /// A setting could not be understood.
    Setting,
    /// Reading or writing a file failed.
    Io,
    /// A recording or a trace is malformed.
    Format,
    /// The call makes no sense in the present state (for example after the process began to exit).
    State,
}

/// An error: its kind, and one sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// An error of `kind` whose message says what, where, and what next.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What kind of trouble this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error with `context: ` in front of its message.
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

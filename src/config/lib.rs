//! Handles a user's requests to the recorder: the settings (a table of environment variables), the names of the output
//! files, and the schedule of windows. Both the recorder and the command use this package.

#![forbid(unsafe_code)]

mod outputs;
mod python_program;
pub mod schedule;
pub mod settings;

pub use outputs::{Outputs, PrefixMacros, RenamedOutput, expand};

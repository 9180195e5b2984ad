//! Contains the user's requests to the recorder: the settings (a table of environment variables), the names of the
//! output files, and the schedule of recording windows. The recorder and the `gpuflame` command both use this package.

#![forbid(unsafe_code)]

mod outputs;
mod python_program;
pub mod schedule;
pub mod settings;

pub use outputs::{Outputs, PrefixMacros, RenamedOutput, expand};

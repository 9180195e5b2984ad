//! What a user asks of the recorder: the table of environment variables, the names of outputs, and the schedule of
//! windows. The recorder and the command share it.

#![forbid(unsafe_code)]

mod outputs;
pub mod schedule;
pub mod settings;

pub use outputs::{Outputs, PrefixMacros, RenamedOutput, expand};

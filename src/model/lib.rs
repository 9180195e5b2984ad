//! The data model of gpuflame. It consists of rows (the events of a run), their encoding in a recording, profiles made
//! from rows, and the options that the recorder's settings share with the command's flags.

#![forbid(unsafe_code)]

pub mod error;
pub mod options;
pub mod profile;
pub mod record;
pub mod sorting;
pub mod stats;

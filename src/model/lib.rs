//! The data model of gpuflame: rows (the events of a run), their encoding in a recording, profiles made from rows, and
//! options that are both settings of the recorder and flags of the command.

#![forbid(unsafe_code)]

pub mod error;
pub mod options;
pub mod profile;
pub mod record;
pub mod sorting;
pub mod stats;

//! The data model of gpuflame. The data model consists of rows (the events of a run), the encoding of rows in a
//! recording, and profiles that are computed from rows. This crate also defines options that exist both as settings of
//! the recorder and as flags of the command.

#![forbid(unsafe_code)]

pub mod error;
pub mod options;
pub mod profile;
pub mod record;
pub mod sorting;
pub mod stats;

//! The data model of gpuflame. It consists of rows (the events of a run) and their encoding in a recording, of
//! profiles made from rows, and of the options that the recorder's settings and the command's flags share.

#![forbid(unsafe_code)]

pub mod error;
pub mod options;
pub mod profile;
pub mod record;
pub mod sorting;
pub mod stats;

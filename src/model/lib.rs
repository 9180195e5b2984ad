//! The data model of gpuflame: rows and how they are encoded in a recording, profiles made of them, and the options
//! that the recorder's settings and the command's flags share.

#![forbid(unsafe_code)]

pub mod error;
pub mod options;
pub mod profile;
pub mod record;
pub mod stats;

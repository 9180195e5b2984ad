//! The analyses and formats of the command, which read what the recorder or another tool wrote.

#![forbid(unsafe_code)]

pub mod analysis;
pub mod formats;
pub mod run;

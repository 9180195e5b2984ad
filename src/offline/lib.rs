//! Analyses and output formats of the `gpuflame` command, for files that the recorder or another tool wrote.

#![forbid(unsafe_code)]

pub mod analysis;
pub mod execution;
pub mod formats;
pub mod pipeline_file;
pub mod report;
pub mod run;

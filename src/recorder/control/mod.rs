//! Decides whether gpuflame records and where its outputs go. It does not decide how gpuflame records.
//!
//! [`output_override`] stores the output prefix that the program has chosen. [`window`] tracks whether a window is
//! open. [`steps`] counts the program's steps. [`lifecycle`] tracks whether gpuflame may still run. The code for the
//! names of output files and for the schedule of windows is in [`gpuflame_config`], because the `gpuflame` command
//! needs this code too.

pub mod lifecycle;
pub mod output_override;
pub mod steps;
pub mod window;

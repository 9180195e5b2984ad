//! Decides whether gpuflame records and where its outputs go, but never *how* it records.
//!
//! [`output_override`] stores the output prefix that the program chose, [`window`] tracks whether a window is open,
//! [`steps`] counts the program's steps, and [`lifecycle`] tracks whether gpuflame may still run. The names of output
//! files and the schedule of windows are in [`gpuflame_config`], because the command needs them too.

pub mod lifecycle;
pub mod output_override;
pub mod steps;
pub mod window;

//! Decides whether gpuflame records and where its outputs go, but never *how* it records.
//!
//! [`Outputs`] turns the path prefix into names, [`window`] tracks whether a window is open, [`schedule`] computes when
//! a window should be open, [`steps`] counts the program's steps, and [`life`] tracks whether gpuflame may still run.

pub mod chosen;
pub mod life;
mod outputs;
pub mod schedule;
pub mod steps;
pub mod window;

pub use outputs::{Facts, Outputs, Rename, expand};

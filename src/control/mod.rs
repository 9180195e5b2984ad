//! Decides whether gpuflame records and where its outputs go, but never *how* it records.
//!
//! [`Outputs`] turns the path prefix into names, [`window`] tells whether a window is open, [`schedule`] when
//! one should be, [`steps`] counts the program's steps, and [`life`] tells whether everything is over.

pub mod chosen;
pub mod life;
mod outputs;
pub mod schedule;
pub mod steps;
pub mod window;

pub use outputs::{Facts, Outputs, Rename, expand};

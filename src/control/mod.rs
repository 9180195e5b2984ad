//! Whether gpuflame records, and where its outputs go; never *how* it records.
//!
//! [`Outputs`] turn the path prefix into names; [`window`] says whether a window is open, [`schedule`] when one is to be,
//! [`steps`] how far the program has come, and [`life`] whether all is over.

pub mod chosen;
pub mod life;
mod outputs;
pub mod schedule;
pub mod steps;
pub mod window;

pub use outputs::{Facts, Outputs, Rename, expand};

//! Whether gpuflame records, and where its outputs go; never *how* it records.
//!
//! [`Outputs`] turn the path prefix into names; [`window`] says whether a window is open, and [`life`] whether
//! all is over.

pub mod life;
mod outputs;
pub mod window;

pub use outputs::{Facts, Outputs, Rename, expand};

//! Whether gpuflame records, and where its outputs go; never *how* it records.
//!
//! [`Settings`] come from environment variables by way of one table; [`Outputs`] turn the path prefix
//! into names; [`window`] says whether a window is open.

mod outputs;
mod settings;
pub mod window;

pub use outputs::{Facts, Outputs, Rename, expand};
pub use settings::{
    GraphStacks, Nvtx, Output, Root, SETTINGS, Setting, Settings, Unit, from_environment, parse,
};

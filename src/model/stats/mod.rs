//! Compact summaries of many numbers. This module does not depend on GPU concepts.

mod histogram;

pub use histogram::Histogram;

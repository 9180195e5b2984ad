//! Compact summaries of many numbers. This module knows nothing about GPUs.

mod histogram;

pub use histogram::Histogram;

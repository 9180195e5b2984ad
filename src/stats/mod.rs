//! Summaries of many numbers in little space. Knows nothing of GPUs.

mod histogram;

pub use histogram::Histogram;

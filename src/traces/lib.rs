//! Reads traces of other tools as a stream of events, computes averages over the steps in a trace, and merges a trace
//! with stacks that another tool captured.

#![deny(unsafe_code)]

pub mod execution;
pub mod import;
pub mod merge;
pub mod steps;

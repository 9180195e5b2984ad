//! Reads traces of other tools as a stream of events, computes averages over their steps, and merges them with stacks
//! that another tool captured.

#![deny(unsafe_code)]

pub mod execution;
pub mod import;
pub mod merge;
pub mod steps;

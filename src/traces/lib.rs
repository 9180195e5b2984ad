//! Traces of other tools: read as one stream of events, averaged by step, and merged with stacks that another tool took.

#![deny(unsafe_code)]

pub mod execution;
pub mod import;
pub mod merge;
pub mod steps;

//! Traces of other tools. They are read as one stream of events, averaged by step, and merged with stacks of another
//! tool.

#![deny(unsafe_code)]

pub mod execution;
pub mod import;
pub mod merge;
pub mod steps;

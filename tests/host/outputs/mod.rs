//! Tests the content of output files, and output folders that disappear.

mod hostile_names;
mod removed;

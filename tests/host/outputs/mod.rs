//! Output files: their content, and folders that disappear.

mod hostile_names;
mod removed;

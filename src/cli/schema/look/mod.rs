//! Tables of the verbs that look at one run.

pub(crate) mod critical_path;
pub(crate) mod instructions;
pub(crate) mod overview;
pub(crate) mod states;
pub(crate) mod tables;

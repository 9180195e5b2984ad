//! JSON tables of the verbs that show one run.

pub(crate) mod critical_path;
pub(crate) mod instructions;
pub(crate) mod overview;
pub(crate) mod states;
pub(crate) mod tables;

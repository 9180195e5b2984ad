//! Assigns process-wide unique numbers to stacks, range names and texts. Records contain these numbers.

pub(super) mod intern;
pub(super) mod range_names;
pub(super) mod text_table;

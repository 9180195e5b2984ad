//! Numbers that are unique in the process, for stacks, range names and texts. Records contain these numbers.

pub(super) mod intern;
pub(super) mod range_names;
pub(super) mod text_table;

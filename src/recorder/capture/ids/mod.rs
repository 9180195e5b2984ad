//! Assigns process-wide unique ids to stacks, range names and texts. Records refer to stacks, names and texts by these
//! ids.

pub(super) mod intern;
pub(super) mod range_names;
pub(super) mod text_table;

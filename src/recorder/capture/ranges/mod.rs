//! Records the named ranges that the application opens and closes, directly or through NVTX.

pub(super) mod nvtx;
pub(super) mod push_pop;

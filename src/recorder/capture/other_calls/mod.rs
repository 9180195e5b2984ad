//! API calls that are not launches: calls that create graph nodes, wait, handle events, or allocate and free memory.

pub(super) mod graphs;
pub(super) mod host_calls;

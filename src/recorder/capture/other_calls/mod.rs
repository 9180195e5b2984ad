//! Records API calls that are not launches: calls that create graph nodes, wait for GPU work, use CUDA events, or
//! allocate and free memory.

pub(super) mod graphs;
pub(super) mod host_calls;

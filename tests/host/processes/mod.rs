//! Programs of several processes: forked children, workers, servers, ranks, and shells with a preload.

mod forks;
pub(super) mod preload;
mod ranks;
mod servers;
mod workers;

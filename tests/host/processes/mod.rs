//! Tests programs with several processes: forked children, workers, servers, ranks, and shells with a preloaded
//! library.

mod forks;
pub(super) mod preload;
mod ranks;
mod servers;
mod workers;

//! Samplers of one thread: the kernel's performance events, and a timer for systems where the kernel refuses them.

pub mod cpu_timer;
pub mod perf;
pub mod wake;

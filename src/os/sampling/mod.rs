//! Samples one thread with the kernel's performance events (perf events), or with a timer on systems where the kernel
//! refuses these events.

pub mod cpu_timer;
pub mod perf;
pub mod wake;

//! Samples one thread: by the kernel's performance events, or by a timer on systems where the kernel refuses these
//! events.

pub mod cpu_timer;
pub mod perf;
pub mod wake;

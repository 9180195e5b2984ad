//! Tests of hosts: whatever the application is and does, gpuflame does not harm the application, and every loss is
//! counted.

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod ceiling;
mod chaos;
mod checkpoint;
mod descriptors;
mod ending;
mod forks;
mod generated;
mod handlers;
mod hostile_names;
mod killed_at_any_moment;
mod memory;
mod older_glibc;
mod other_cupti_clients;
mod per_window_outputs;
mod preload;
mod python_end;
mod ranks;
mod removed;
mod running;
mod runtimes;
mod sandbox_limits;
mod scheduled_windows;
mod servers;
mod stress;
mod unloads;
mod workers;

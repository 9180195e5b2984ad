//! Tests of hosts: whatever the application is and does, gpuflame does not harm the application, and every loss is
//! counted.

#[path = "../support/mod.rs"]
mod support;

mod apart;
mod bad_input;
mod ceiling;
mod chaos;
mod checkpoint;
mod descriptors;
mod ending;
mod forks;
mod generated;
mod handlers;
mod limits;
mod memory;
mod moments;
mod names;
mod older_glibc;
mod preload;
mod python_end;
mod ranks;
mod removed;
mod rivals;
mod running;
mod runtimes;
mod servers;
mod stress;
mod timed;
mod unloads;
mod workers;

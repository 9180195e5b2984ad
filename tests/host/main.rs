//! Tests of hosts: whatever the application is and does, gpuflame does not harm the application, and every loss is
//! counted.

#[path = "../support/mod.rs"]
mod support;

mod everything;
mod exits;
mod faults;
mod limits;
mod other_cupti_clients;
mod outputs;
mod platforms;
mod processes;
mod running;
mod windows;

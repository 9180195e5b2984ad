//! Tests of gpuflame in host applications: whatever the application does, gpuflame does not harm it and counts every
//! loss.

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

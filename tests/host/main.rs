//! Tests of gpuflame in host applications. Whatever the application does, gpuflame must not harm the application, and
//! must count every loss of data.

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

//! Tests of faults in the environment of the program: missing or broken CUDA libraries, full disks, nonsensical
//! records.

pub(super) mod bad_input;
mod unloads;

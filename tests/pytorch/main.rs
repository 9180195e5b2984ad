//! Tests PyTorch's unmodified CUDA wheel on the simulated CUDA stack. The programs are like those of users, so the
//! stacks of their launches were not designed for these tests. The tests compare gpuflame's output with the GPU work
//! that ran, and with PyTorch's own profiler.
#![cfg(target_arch = "x86_64")]

#[path = "../support/mod.rs"]
mod support;

mod averages;
mod captured;
#[path = "../support/chakra_decoder.rs"]
mod chakra_decoder;
mod cost;
mod faults;
mod flag_windows;
mod installed;
mod kit;
mod one_run;
mod operators;
mod programs;
mod ranks;
mod replayed;
mod wheel;
mod witness;

//! PyTorch's CUDA wheel, unmodified, on the simulated stack: programs as users write them, whose launch stacks were not
//! designed for these tests. gpuflame's output is compared with what ran, and with PyTorch's own profiler.
#![cfg(target_arch = "x86_64")]

#[path = "../support/mod.rs"]
mod support;

mod averages;
mod captured;
mod cost;
mod faults;
mod flag_windows;
mod installed;
mod kit;
mod one_run;
mod operators;
mod programs;
mod ranks;
mod wheel;
mod witness;

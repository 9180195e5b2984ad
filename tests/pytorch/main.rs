//! PyTorch's CUDA wheel, unmodified, on the simulated stack: programs that people write, with a stack of launches that
//! nobody here thought of. What gpuflame says of them is held against what ran, and against PyTorch's own profiler.
#![cfg(target_arch = "x86_64")]

#[path = "../support/mod.rs"]
mod support;

mod captured;
mod cost;
mod installed;
mod kit;
mod one_run;
mod operators;
mod programs;
mod ranks;
mod wheel;
mod witness;

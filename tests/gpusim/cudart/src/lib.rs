//! The simulated `libcudart.so.13`: implements the runtime API by calls to the driver. Like the real library, libcudart
//! loads libcuda by its soname, and initialises libcuda on the first API call. The state of the simulated GPU is in
//! libcuda.

mod link;
#[macro_use]
mod runtime_api;

mod array;
mod device;
mod function;
mod graph;
mod ipc;
mod launch;
mod library;
mod memory;
mod pool;
mod stream;
mod stubs;

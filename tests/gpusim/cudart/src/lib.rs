//! The simulated `libcudart.so.13`: the runtime API as calls into the driver. Like the real library it finds libcuda by
//! its soname and initialises libcuda on the first call; the state of the GPU is in libcuda.

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

//! The simulated `libcudart.so.13`: the runtime API as calls into the driver. Like the real library, it finds libcuda
//! by the soname, and initialises it on the first call; libcuda holds the state of the GPU.

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

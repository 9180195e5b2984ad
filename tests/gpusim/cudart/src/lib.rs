//! The simulated `libcudart.so.13`: the runtime API as calls into the driver's. It finds libcuda by its
//! soname, like the real one, initialises it at the first call, and holds no state of the GPU's.

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

//! The simulated `libcuda.so.1`: implements the driver API with [`gpusim_core`], which is linked into this library.

#[macro_use]
mod driver_api;

mod array;
mod context;
mod cubin;
mod device;
mod export;
mod function;
mod graph;
mod ipc;
mod launch;
mod linker;
mod mapped;
mod memory;
mod module;
mod proc_address;
mod stream;

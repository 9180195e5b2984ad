//! Driver API functions that share memory and events between processes. These functions make no CUPTI callbacks.

use gpusim_core::arg::{Handle, Out};
use gpusim_core::error::{self, CuError, INVALID_CONTEXT};
use gpusim_core::memory;
use gpusim_core::share::Shared;
use gpusim_core::thread;

/// Runs a driver call if the thread has a current CUDA context.
fn with_context(call: impl FnOnce() -> Result<(), CuError>) -> u32 {
    error::code(thread::current().context().ok_or(INVALID_CONTEXT).and_then(|_| call()))
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcGetMemHandle(out: Out<Shared>, address: u64) -> u32 {
    with_context(|| out.set(Shared::memory(address)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcOpenMemHandle_v2(out: Out<u64>, handle: Shared, _flags: u32) -> u32 {
    with_context(|| out.set(handle.open_memory()?))
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcCloseMemHandle(address: u64) -> u32 {
    with_context(|| memory::free_device(address))
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcGetEventHandle(out: Out<Shared>, event: Handle) -> u32 {
    with_context(|| out.set(Shared::event(event)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcOpenEventHandle(out: Out<Handle>, handle: Shared) -> u32 {
    with_context(|| out.set(handle.open_event()?))
}

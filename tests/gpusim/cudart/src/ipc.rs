//! Runtime API functions that share memory and events between processes: each function calls the driver's equivalent
//! function and makes no callbacks.

use crate::link::{self, Driver};
use crate::runtime_api::{check, remember};
use gpusim_core::arg::{Handle, Out};
use gpusim_core::error::{self, CuError};
use gpusim_core::share::Shared;

fn with_driver(call: impl FnOnce(&Driver) -> u32) -> u32 {
    let done = link::ready().and_then(|driver| -> Result<(), CuError> {
        driver.context()?;
        check(call(driver))
    });
    remember(error::code(done))
}

#[unsafe(no_mangle)]
extern "C" fn cudaIpcGetMemHandle(out: Out<Shared>, address: u64) -> u32 {
    with_driver(|driver| (driver.cuIpcGetMemHandle)(out, address))
}

#[unsafe(no_mangle)]
extern "C" fn cudaIpcOpenMemHandle(out: Out<u64>, handle: Shared, flags: u32) -> u32 {
    with_driver(|driver| (driver.cuIpcOpenMemHandle_v2)(out, handle, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cudaIpcCloseMemHandle(address: u64) -> u32 {
    with_driver(|driver| (driver.cuIpcCloseMemHandle)(address))
}

#[unsafe(no_mangle)]
extern "C" fn cudaIpcGetEventHandle(out: Out<Shared>, event: Handle) -> u32 {
    with_driver(|driver| (driver.cuIpcGetEventHandle)(out, event))
}

#[unsafe(no_mangle)]
extern "C" fn cudaIpcOpenEventHandle(out: Out<Handle>, handle: Shared) -> u32 {
    with_driver(|driver| (driver.cuIpcOpenEventHandle)(out, handle))
}

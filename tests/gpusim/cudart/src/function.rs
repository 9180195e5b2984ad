//! Attributes of a kernel that is identified by its host function: the values are those that the driver returns.

use crate::runtime_api::check;
use crate::stubs;
use gpusim_core::arg::{Handle, Out};
use gpusim_core::error::{CuError, INVALID_DEVICE_FUNCTION};

/// cudaFuncAttributes: 144 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Attributes {
    shared_bytes: usize,
    constant_bytes: usize,
    local_bytes: usize,
    threads_per_block: u32,
    registers: u32,
    ptx_version: u32,
    binary_version: u32,
    cache_mode: u32,
    dynamic_shared_bytes: u32,
    _others: [u32; 24],
}

const _: () = assert!(size_of::<Attributes>() == 144, "the runtime API's size");

const EVERY_KERNELS: Attributes = Attributes {
    shared_bytes: 0,
    constant_bytes: 0,
    local_bytes: 0,
    threads_per_block: 1024,
    registers: 32,
    ptx_version: 90,
    binary_version: 90,
    cache_mode: 0,
    dynamic_shared_bytes: 48 << 10,
    _others: [0; 24],
};

fn handle_of(function: Handle) -> Result<Handle, CuError> {
    stubs::kernel_of(function).map(|kernel| kernel.handle).ok_or(INVALID_DEVICE_FUNCTION)
}

runtime_api! {
    cudaFuncGetAttributes @ 15 |driver, _own| (out: Out<Attributes>, function: Handle) {
        driver.context()?;
        handle_of(function)?;
        out.set(EVERY_KERNELS)
    }

    cudaFuncSetCacheConfig @ 14 |driver, _own| (function: Handle, _config: u32) {
        driver.context()?;
        handle_of(function).map(drop)
    }

    cudaFuncSetAttribute @ 273 |driver, _own| (function: Handle, what: u32, value: i32) {
        driver.context()?;
        check((driver.cuFuncSetAttribute)(handle_of(function)?, what, value))
    }

    cudaKernelSetAttributeForDevice @ 479 |driver, _own| (kernel: Handle, what: u32, value: i32, ordinal: u32) {
        driver.context()?;
        check((driver.cuKernelSetAttribute)(what, value, kernel, ordinal))
    }

    cudaOccupancyMaxActiveBlocksPerMultiprocessor @ 210 |driver, _own| (
        blocks: Out<u32>, function: Handle, threads: u32, shared_bytes: usize,
    ) {
        driver.context()?;
        check((driver.cuOccupancyMaxActiveBlocksPerMultiprocessor)(
            blocks, handle_of(function)?, threads, shared_bytes,
        ))
    }

    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags @ 251 |driver, _own| (
        blocks: Out<u32>, function: Handle, threads: u32, shared_bytes: usize, _flags: u32,
    ) {
        driver.context()?;
        check((driver.cuOccupancyMaxActiveBlocksPerMultiprocessor)(
            blocks, handle_of(function)?, threads, shared_bytes,
        ))
    }
}

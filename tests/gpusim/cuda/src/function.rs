//! Kernel attributes that libraries query before a launch; all kernels have the same plausible values.

use gpusim_core::arg::{Handle, Out};
use gpusim_core::error::{INVALID_HANDLE, INVALID_VALUE};
use gpusim_core::kernel::Kernel;

/// Number of blocks that an H100's multiprocessor runs at the same time, if each block has `threads` threads and uses
/// `shared_bytes` of shared memory.
fn blocks_at_once(threads: u32, shared_bytes: usize) -> u32 {
    const THREADS: u32 = 2048;
    const BLOCKS: u32 = 32;
    const SHARED: usize = 228 << 10;
    const SHARED_OF_EACH: usize = 1 << 10;
    let by_shared = SHARED / (shared_bytes + SHARED_OF_EACH);
    (THREADS / threads.next_multiple_of(32)).min(BLOCKS).min(by_shared as u32)
}

fn occupancy(blocks: Out<u32>, function: Handle, threads: u32, shared_bytes: usize) -> Result<(), u32> {
    Kernel::of_handle(function).ok_or(INVALID_HANDLE)?;
    if threads == 0 {
        return Err(INVALID_VALUE);
    }
    blocks.set(blocks_at_once(threads, shared_bytes))
}

driver_api! {
    cuFuncGetAttribute @ 85 |_own| (value: Out<u32>, what: u32, function: Handle) {
        Kernel::of_handle(function).ok_or(INVALID_HANDLE)?;
        value.set(match what {
            0 => 1024,     // threads per block
            4 => 32,       // registers
            5 | 6 => 90,   // versions of PTX and of the binary
            8 => 48 << 10, // dynamic shared memory
            _ => 0,
        })
    }

    cuFuncSetAttribute @ 481 |_own| (function: Handle, _what: u32, _value: i32) {
        Kernel::of_handle(function).map(drop).ok_or(INVALID_HANDLE)
    }

    cuFuncSetCacheConfig @ 86 |_own| (function: Handle, _config: u32) {
        Kernel::of_handle(function).map(drop).ok_or(INVALID_HANDLE)
    }

    cuKernelSetAttribute @ 687 |_own| (_what: u32, _value: i32, kernel: Handle, _device: u32) {
        Kernel::of_handle(kernel).map(drop).ok_or(INVALID_HANDLE)
    }

    cuOccupancyMaxActiveBlocksPerMultiprocessor @ 374 |_own| (
        blocks: Out<u32>, function: Handle, threads: u32, shared_bytes: usize,
    ) { occupancy(blocks, function, threads, shared_bytes) }

    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags @ 451 |_own| (
        blocks: Out<u32>, function: Handle, threads: u32, shared_bytes: usize, _flags: u32,
    ) { occupancy(blocks, function, threads, shared_bytes) }

    cuOccupancyMaxPotentialBlockSize @ 384 |_own| (
        blocks: Out<i32>, threads: Out<i32>, function: Handle, _shared_bytes: Handle, _dynamic: usize, limit: i32,
    ) {
        Kernel::of_handle(function).ok_or(INVALID_HANDLE)?;
        threads.set(if limit > 0 { limit.min(1024) } else { 1024 })?;
        blocks.set(2 * 132)
    }

    cuTensorMapEncodeTiled @ 697 |_own| (
        map: Out<[u64; 16]>, _type: u32, _rank: u32, _address: u64, _sizes: Handle, _strides: Handle, _box: Handle,
        _element_strides: Handle, _interleave: u32, _swizzle: u32, _promotion: u32, _fill: u32,
    ) { map.set([0; 16]) }
}

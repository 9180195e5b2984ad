//! Contents of device memory, with GPUSIM_MATH=1. Zeroed host memory backs a device's address space, and copies and
//! fills are executed when they are submitted. Copies and fills move no bytes if they are in graphs, are copies or
//! fills of CUDA arrays, or have three dimensions.

use crate::error::{CuError, OUT_OF_MEMORY};
use crate::settings;
use crate::stream::Stream;
use crate::sync::lock;
use std::sync::Mutex;

/// Whether simulated device memory stores bytes.
pub fn is_held() -> bool {
    settings::get().math
}

/// Maps memory at an address range when the range is used for the first time. The kernel allocates each page when it is
/// first written.
pub fn back(start: u64, bytes: u64) -> Result<(), CuError> {
    static BACKED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    let mut backed = lock(&BACKED);
    if !is_held() || backed.contains(&start) {
        return Ok(());
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the address range is reserved for devices, so no mapping is replaced.
    let mapped = unsafe { libc::mmap(start as *mut libc::c_void, bytes as usize, access, flags, -1, 0) };
    if mapped as u64 != start {
        return Err(OUT_OF_MEMORY);
    }
    backed.push(start);
    Ok(())
}

/// Copies bytes between two addresses, each on a device or on the host.
pub fn copy(stream: &Stream, target: u64, source: u64, bytes: usize) {
    if is_held() && stream.capture().is_none() {
        // SAFETY: the C API requires `bytes` valid bytes at both addresses; device addresses are mapped.
        unsafe { std::ptr::copy(source as *const u8, target as *mut u8, bytes) };
    }
}

/// Writes a value of `size` bytes `count` times, one after another, at the address `target`.
pub fn fill(stream: &Stream, target: u64, (value, size): (u32, usize), count: usize) {
    if !is_held() || stream.capture().is_some() {
        return;
    }
    // SAFETY: the C API requires room for `count` values; device addresses are mapped.
    let place = unsafe { std::slice::from_raw_parts_mut(target as *mut u8, count * size) };
    place.chunks_exact_mut(size).for_each(|one| one.copy_from_slice(&value.to_le_bytes()[..size]));
}

//! Memory that a program puts together itself: addresses are reserved, memory is made, and then one is mapped to the
//! other. As no byte is ever stored, an address that is reserved is as good as memory.

use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::error::{CuError, INVALID_CONTEXT, NOT_SUPPORTED};
use gpusim_core::{memory, share, thread};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const GRANULARITY: usize = 2 << 20;

fn device() -> Result<u32, CuError> {
    thread::current().context().map(|c| c.device).ok_or(INVALID_CONTEXT)
}

/// A handle of memory: nothing is known of it.
fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// CUmemAllocationHandleType
const POSIX_DESCRIPTOR: u32 = 1;

driver_api! {
    cuMemGetAllocationGranularity @ 556 |_own| (bytes: Out<usize>, _properties: Handle, _which: u32) {
        bytes.set(GRANULARITY)
    }

    cuMemAddressReserve @ 547 |_own| (address: Out<u64>, bytes: usize, _alignment: usize, _wish: u64, _flags: u64) {
        address.set(memory::reserve(device()?, bytes as u64)?)
    }

    cuMemAddressFree @ 548 |_own| (_address: u64, _bytes: usize) { Ok(()) }

    cuMemCreate @ 549 |_own| (handle: Out<u64>, _bytes: usize, _properties: Handle, _flags: u64) {
        handle.set(next())
    }

    cuMemExportToShareableHandle @ 554 |_own| (shared: Handle, _handle: u64, kind: u32, _flags: u64) {
        if kind != POSIX_DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        Out(shared.cast()).set(share::descriptor()?)
    }

    cuMemImportFromShareableHandle @ 555 |_own| (handle: Out<u64>, shared: Handle, kind: u32) {
        if kind != POSIX_DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        share::check_descriptor(shared as i32)?;
        handle.set(next())
    }

    cuMemGetAllocationPropertiesFromHandle @ 557 |_own| (properties: Out<[u64; 4]>, _handle: u64) {
        properties.set([0; 4])
    }

    cuMemRelease @ 550 |_own| (_handle: u64) { Ok(()) }

    cuMemMap @ 551 |_own| (_address: u64, _bytes: usize, _offset: usize, _handle: u64, _flags: u64) { Ok(()) }

    cuMemUnmap @ 552 |_own| (_address: u64, _bytes: usize) { Ok(()) }

    cuMemSetAccess @ 553 |_own| (_address: u64, _bytes: usize, _access: In<u64>, _count: usize) { Ok(()) }
}

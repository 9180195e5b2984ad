//! Driver API functions for virtual memory management: a program reserves addresses, creates memory, and then maps the
//! memory to the addresses. Simulated memory stores no bytes, so reserved addresses can be used even if no memory is
//! mapped to them.

use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::error::{CuError, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED};
use gpusim_core::sync::lock;
use gpusim_core::{memory, share, thread};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

const GRANULARITY: usize = 2 << 20;

fn device() -> Result<u32, CuError> {
    thread::current().context().map(|c| c.device).ok_or(INVALID_CONTEXT)
}

/// CUmemAllocationProp: the memory's kind, the ways in which it may be shared, its location, and fields that the
/// simulation ignores.
type Properties = [u64; 4];

/// Memory handles, with the properties of each handle's memory.
#[derive(Default)]
struct Handles {
    made: u64,
    all: BTreeMap<u64, Properties>,
}

fn handles() -> MutexGuard<'static, Handles> {
    static HANDLES: Mutex<Handles> = Mutex::new(Handles { made: 0, all: BTreeMap::new() });
    lock(&HANDLES)
}

fn new_handle(properties: Properties) -> u64 {
    let mut handles = handles();
    handles.made += 1;
    let handle = handles.made;
    handles.all.insert(handle, properties);
    handle
}

/// CUmemAllocationHandleType
const POSIX_DESCRIPTOR: u32 = 1;
/// CUmemAllocationType, CUmemLocationType
const PINNED: u64 = 1;
const ON_DEVICE: u64 = 1;

driver_api! {
    cuMemGetAllocationGranularity @ 556 |_own| (bytes: Out<usize>, _properties: Handle, _which: u32) {
        bytes.set(GRANULARITY)
    }

    cuMemAddressReserve @ 547 |_own| (address: Out<u64>, bytes: usize, _alignment: usize, _wish: u64, _flags: u64) {
        address.set(memory::reserve(device()?, bytes as u64)?)
    }

    cuMemAddressFree @ 548 |_own| (_address: u64, _bytes: usize) { Ok(()) }

    cuMemCreate @ 549 |_own| (handle: Out<u64>, _bytes: usize, properties: In<Properties>, _flags: u64) {
        handle.set(new_handle(properties.get()?))
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
        // The file descriptor does not contain the memory's device. Therefore the memory is treated as memory of the
        // current device that may be shared again.
        let place = ON_DEVICE | u64::from(device()?) << 32;
        handle.set(new_handle([PINNED | u64::from(POSIX_DESCRIPTOR) << 32, place, 0, 0]))
    }

    cuMemGetAllocationPropertiesFromHandle @ 557 |_own| (properties: Out<Properties>, handle: u64) {
        properties.set(*handles().all.get(&handle).ok_or(INVALID_VALUE)?)
    }

    cuMemRelease @ 550 |_own| (handle: u64) { handles().all.remove(&handle).map(drop).ok_or(INVALID_VALUE) }

    cuMemMap @ 551 |_own| (_address: u64, _bytes: usize, _offset: usize, _handle: u64, _flags: u64) { Ok(()) }

    cuMemUnmap @ 552 |_own| (_address: u64, _bytes: usize) { Ok(()) }

    cuMemSetAccess @ 553 |_own| (_address: u64, _bytes: usize, _access: In<u64>, _count: usize) { Ok(()) }
}

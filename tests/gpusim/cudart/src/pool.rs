//! Runtime API functions for memory pools. In the simulation, memory that is allocated from a pool belongs to the
//! device, not to the pool. A pool only stores the attributes that a program sets; the memory use that it reports is
//! that of the whole device.

use crate::runtime_api::{check, stream};
use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::error::{CuError, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use gpusim_core::settings;
use gpusim_core::share::{self, Shared};
use gpusim_core::sync::lock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// Memory pool to which a cudaMemPool_t points.
struct Pool {
    attributes: [AtomicU64; ATTRIBUTES],
}

const ATTRIBUTES: usize = 16;
const MOST_DEVICES: usize = 16;
static POOLS: [Pool; MOST_DEVICES] =
    [const { Pool { attributes: [const { AtomicU64::new(0) }; ATTRIBUTES] } }; MOST_DEVICES];

/// Memory pools that the program has created.
static MADE: Mutex<Vec<&'static Pool>> = Mutex::new(Vec::new());

fn made() -> MutexGuard<'static, Vec<&'static Pool>> {
    lock(&MADE)
}

impl Pool {
    fn new() -> Pool {
        Pool { attributes: [const { AtomicU64::new(0) }; ATTRIBUTES] }
    }

    fn handle(&'static self) -> Handle {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

/// Creates a memory pool and returns its handle.
fn make() -> Handle {
    let pool: &Pool = Box::leak(Box::new(Pool::new()));
    made().push(pool);
    pool.handle()
}

fn of_handle(handle: Handle) -> Result<&'static Pool, CuError> {
    let is_it = |pool: &&Pool| std::ptr::from_ref(*pool) == handle.cast_const().cast();
    POOLS.iter().find(is_it).or_else(|| made().iter().copied().find(is_it)).ok_or(INVALID_VALUE)
}

/// cudaMemAllocationHandleType
const POSIX_DESCRIPTOR: u32 = 1;

fn check_kind(kind: u32) -> Result<(), CuError> {
    if kind == POSIX_DESCRIPTOR { Ok(()) } else { Err(NOT_SUPPORTED) }
}

/// Whether a pool attribute is an 8-byte number; all other attributes are 4-byte flags.
fn is_long(attribute: u32) -> bool {
    (4..=8).contains(&attribute)
}

const RESERVED_NOW: u32 = 5;
const USED_HIGH: u32 = 8;

runtime_api! {
    cudaDeviceGetDefaultMemPool @ 372 |_driver, _own| (pool: Out<Handle>, ordinal: u32) {
        let found = POOLS.get(ordinal as usize).filter(|_| ordinal < settings::get().devices);
        pool.set(found.ok_or(INVALID_DEVICE)?.handle())
    }

    cudaMemPoolTrimTo @ 377 |_driver, _own| (pool: Handle, _keep: usize) { of_handle(pool).map(drop) }

    cudaMemPoolSetAttribute @ 378 |_driver, _own| (pool: Handle, what: u32, value: Handle) {
        let slot = of_handle(pool)?.attributes.get(what as usize).ok_or(INVALID_VALUE)?;
        let value =
            if is_long(what) { In(value.cast::<u64>()).get()? } else { In(value.cast::<u32>()).get()?.into() };
        slot.store(value, Relaxed);
        Ok(())
    }

    cudaMemPoolGetAttribute @ 379 |driver, _own| (pool: Handle, what: u32, value: Handle) {
        let stored = of_handle(pool)?.attributes.get(what as usize).ok_or(INVALID_VALUE)?.load(Relaxed);
        let (mut free, mut total) = (0, 0);
        if (RESERVED_NOW..=USED_HIGH).contains(&what) {
            driver.context()?;
            check((driver.cuMemGetInfo_v2)(Out(&mut free), Out(&mut total)))?;
            return Out(value.cast()).set((total - free) as u64);
        }
        if is_long(what) { Out(value.cast()).set(stored) } else { Out(value.cast()).set(stored as u32) }
    }

    cudaMemPoolSetAccess @ 380 |_driver, _own| (pool: Handle, _list: Handle, _count: usize) {
        of_handle(pool).map(drop)
    }

    cudaMemPoolGetAccess @ 382 |_driver, _own| (access: Out<u32>, pool: Handle, _location: Handle) {
        const READS_AND_WRITES: u32 = 3;
        of_handle(pool)?;
        access.set(READS_AND_WRITES)
    }

    cudaMemPoolCreate @ 383 |_driver, _own| (pool: Out<Handle>, properties: In<u64>) {
        properties.get()?;
        pool.set(make())
    }

    cudaMemPoolDestroy @ 384 |_driver, _own| (pool: Handle) {
        of_handle(pool)?;
        made().retain(|other| other.handle() != pool);
        Ok(())
    }

    cudaMemPoolExportToShareableHandle @ 387 |_driver, _own| (
        shared: Handle, pool: Handle, kind: u32, _flags: u32,
    ) {
        of_handle(pool)?;
        check_kind(kind)?;
        Out(shared.cast()).set(share::descriptor()?)
    }

    cudaMemPoolImportFromShareableHandle @ 388 |_driver, _own| (
        pool: Out<Handle>, shared: Handle, kind: u32, _flags: u32,
    ) {
        check_kind(kind)?;
        share::check_descriptor(shared as i32)?;
        pool.set(make())
    }

    cudaMemPoolExportPointer @ 389 |driver, _own| (shared: Out<Shared>, address: u64) {
        driver.context()?;
        check((driver.cuIpcGetMemHandle)(shared, address))
    }

    cudaMemPoolImportPointer @ 390 |driver, _own| (address: Out<u64>, pool: Handle, shared: In<Shared>) {
        driver.context()?;
        of_handle(pool)?;
        check((driver.cuIpcOpenMemHandle_v2)(address, shared.get()?, 0))
    }

    cudaMallocFromPoolAsync @ 391 / cudaMallocFromPoolAsync_ptsz @ 392 |driver, own| (
        pointer: Out<u64>, bytes: usize, pool: Handle, handle: Handle,
    ) {
        driver.context()?;
        of_handle(pool)?;
        check((driver.cuMemAllocAsync)(pointer, bytes, stream(handle, own)))
    }

    cudaDeviceGraphMemTrim @ 423 |driver, _own| (ordinal: u32) {
        driver.context()?;
        check((driver.cuDeviceGraphMemTrim)(ordinal))
    }

    cudaDeviceGetGraphMemAttribute @ 424 |driver, _own| (ordinal: u32, what: u32, value: Out<u64>) {
        driver.context()?;
        check((driver.cuDeviceGetGraphMemAttribute)(ordinal, what, value))
    }

    cudaDeviceSetGraphMemAttribute @ 425 |_driver, _own| (_ordinal: u32, _what: u32, _value: In<u64>) { Ok(()) }
}

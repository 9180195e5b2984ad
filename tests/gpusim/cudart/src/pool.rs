//! Memory pools. Memory is the device's whatever pool it is said to come from: a pool keeps the attributes that it
//! is given, and answers the memory in use of its device.

use crate::runtime_api::check;
use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::error::{CuError, INVALID_DEVICE, INVALID_VALUE};
use gpusim_core::settings;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a cudaMemPool_t points to: a device's default pool.
struct Pool {
    attributes: [AtomicU64; ATTRIBUTES],
}

const ATTRIBUTES: usize = 16;
const MOST_DEVICES: usize = 16;
static POOLS: [Pool; MOST_DEVICES] =
    [const { Pool { attributes: [const { AtomicU64::new(0) }; ATTRIBUTES] } }; MOST_DEVICES];

fn of_handle(handle: Handle) -> Result<&'static Pool, CuError> {
    POOLS.iter().find(|pool| std::ptr::from_ref(*pool) == handle.cast_const().cast()).ok_or(INVALID_VALUE)
}

/// Attributes whose value is a number of bytes, in eight; the others' is a flag, in four.
fn is_long(attribute: u32) -> bool {
    (4..=8).contains(&attribute)
}

const RESERVED_NOW: u32 = 5;
const USED_HIGH: u32 = 8;

runtime_api! {
    cudaDeviceGetDefaultMemPool @ 372 |_driver, _own| (pool: Out<Handle>, ordinal: u32) {
        let found = POOLS.get(ordinal as usize).filter(|_| ordinal < settings::get().devices);
        pool.set(std::ptr::from_ref(found.ok_or(INVALID_DEVICE)?).cast_mut().cast())
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

    cudaDeviceGetGraphMemAttribute @ 424 |_driver, _own| (_ordinal: u32, _what: u32, value: Out<u64>) {
        value.set(0)
    }

    cudaDeviceSetGraphMemAttribute @ 425 |_driver, _own| (_ordinal: u32, _what: u32, _value: In<u64>) { Ok(()) }
}

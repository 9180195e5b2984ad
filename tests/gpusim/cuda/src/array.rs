//! Driver API functions for CUDA arrays: device memory with dimensions and an element format, which textures and
//! surfaces access. CUPTI reports copies of CUDA arrays with special copy kinds. In the simulation, texture and surface
//! objects are only handles without state.

use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::error::{CuError, INVALID_CONTEXT, INVALID_VALUE};
use gpusim_core::memory::{self, Cube, Plane};
use gpusim_core::thread;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of bytes per value of a CUarray_format.
fn bytes_of(format: u32) -> Result<usize, CuError> {
    match format {
        0x01 | 0x08 => Ok(1),
        0x02 | 0x09 | 0x10 => Ok(2),
        0x03 | 0x0a | 0x20 => Ok(4),
        _ => Err(INVALID_VALUE),
    }
}

fn create(sizes: [usize; 3], format: u32, channels: u32) -> Result<u64, CuError> {
    let device = thread::current().context().map(|c| c.device).ok_or(INVALID_CONTEXT)?;
    let elements = sizes.into_iter().map(|size| size.max(1) as u64).product();
    memory::alloc_array(device, elements, bytes_of(format)? * channels as usize)
}

fn looks_at_it(out: Out<u64>) -> Result<(), CuError> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    out.set(NEXT.fetch_add(1, Relaxed))
}

driver_api! {
    cuArrayCreate_v2 @ 272 |_own| (array: Out<u64>, shape: In<Plane>) {
        let Plane { width, height, format, channels } = shape.get()?;
        array.set(create([width, height, 1], format, channels)?)
    }

    cuArray3DCreate_v2 @ 274 |_own| (array: Out<u64>, shape: In<Cube>) {
        let Cube { width, height, depth, format, channels, .. } = shape.get()?;
        array.set(create([width, height, depth], format, channels)?)
    }

    cuArrayDestroy @ 89 |_own| (array: u64) { memory::free_device(array) }

    cuTexObjectCreate @ 339 |_own| (object: Out<u64>, _what: Handle, _how: Handle, _view: Handle) {
        looks_at_it(object)
    }

    cuTexObjectDestroy @ 340 |_own| (_object: u64) { Ok(()) }

    cuSurfObjectCreate @ 343 |_own| (object: Out<u64>, _what: Handle) { looks_at_it(object) }

    cuSurfObjectDestroy @ 344 |_own| (_object: u64) { Ok(()) }
}

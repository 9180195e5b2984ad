//! Runtime API functions for CUDA arrays, textures and surfaces: each function calls the equivalent function of the
//! driver.

use crate::link::Driver;
use crate::memory::Extent;
use crate::runtime_api::{check, stream};
use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::error::{CuError, INVALID_VALUE};
use gpusim_core::memory::{Cube, End, Rectangle};
use gpusim_core::stream::Default;
use gpusim_core::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// cudaChannelFormatDesc: number of bits per component of an array element, and the type of the components.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channels {
    bits: [i32; 4],
    kind: u32,
}

const SIGNED: u32 = 0;
const UNSIGNED: u32 = 1;
const FLOAT: u32 = 2;

#[unsafe(no_mangle)]
extern "C" fn cudaCreateChannelDesc(x: i32, y: i32, z: i32, w: i32, kind: u32) -> Channels {
    Channels { bits: [x, y, z, w], kind }
}

/// Element formats of all CUDA arrays, keyed by the array's address.
fn arrays() -> MutexGuard<'static, BTreeMap<u64, Channels>> {
    static ARRAYS: Mutex<BTreeMap<u64, Channels>> = Mutex::new(BTreeMap::new());
    lock(&ARRAYS)
}

/// Number of bytes per array element; `None` if the array does not exist.
pub(crate) fn element_of(array: u64) -> Option<usize> {
    let channels = *arrays().get(&array)?;
    Some(channels.bits.iter().sum::<i32>() as usize / 8)
}

fn create(
    driver: &Driver,
    array: Out<u64>,
    channels: In<Channels>,
    Extent { width, height, depth }: Extent,
    flags: u32,
) -> Result<(), CuError> {
    driver.context()?;
    let channels = channels.get()?;
    // CUarray_format
    let format = match (channels.kind, channels.bits[0]) {
        (UNSIGNED, 8) => 0x01,
        (UNSIGNED, 16) => 0x02,
        (UNSIGNED, 32) => 0x03,
        (SIGNED, 8) => 0x08,
        (SIGNED, 16) => 0x09,
        (SIGNED, 32) => 0x0a,
        (FLOAT, 16) => 0x10,
        (FLOAT, 32) => 0x20,
        _ => return Err(INVALID_VALUE),
    };
    let count = channels.bits.iter().filter(|bits| **bits > 0).count() as u32;
    let mut made = 0;
    let shape = Cube { width, height, depth, format, channels: count, flags };
    check((driver.cuArray3DCreate_v2)(Out(&mut made), In(&shape)))?;
    arrays().insert(made, channels);
    array.set(made)
}

/// Copies rows of bytes from one memory plane to another.
fn copy(
    driver: &Driver,
    (own, handle): (Default, Option<Handle>),
    (target, source): (End, End),
    (width, height): (usize, usize),
) -> Result<(), CuError> {
    driver.context()?;
    let what = Rectangle { source, target, width, height };
    check(match (handle, own) {
        (Some(handle), _) => (driver.cuMemcpy2DAsync_v2)(In(&what), stream(handle, own)),
        (None, Default::PerThread) => (driver.cuMemcpy2D_v2_ptds)(In(&what)),
        (None, Default::Context) => (driver.cuMemcpy2D_v2)(In(&what)),
    })
}

runtime_api! {
    cudaMallocArray @ 23 |driver, _own| (
        array: Out<u64>, channels: In<Channels>, width: usize, height: usize, flags: u32,
    ) { create(driver, array, channels, Extent { width, height, depth: 0 }, flags) }

    cudaMalloc3DArray @ 141 |driver, _own| (array: Out<u64>, channels: In<Channels>, extent: Extent, flags: u32) {
        create(driver, array, channels, extent, flags)
    }

    cudaFreeArray @ 24 |driver, _own| (array: u64) {
        driver.context()?;
        arrays().remove(&array);
        check((driver.cuArrayDestroy)(array))
    }

    cudaGetChannelDesc @ 6 |_driver, _own| (channels: Out<Channels>, array: u64) {
        let known = arrays().get(&array).copied();
        channels.set(known.ok_or(INVALID_VALUE)?)
    }

    cudaCreateTextureObject @ 185 |driver, _own| (object: Out<u64>, what: Handle, how: Handle, view: Handle) {
        driver.context()?;
        check((driver.cuTexObjectCreate)(object, what, how, view))
    }

    cudaDestroyTextureObject @ 186 |driver, _own| (object: u64) { check((driver.cuTexObjectDestroy)(object)) }

    cudaCreateSurfaceObject @ 189 |driver, _own| (object: Out<u64>, what: Handle) {
        driver.context()?;
        check((driver.cuSurfObjectCreate)(object, what))
    }

    cudaDestroySurfaceObject @ 190 |driver, _own| (object: u64) { check((driver.cuSurfObjectDestroy)(object)) }

    cudaMemcpyToArray @ 33 / cudaMemcpyToArray_ptds @ 217 |driver, own| (
        array: u64, _x: usize, _y: usize, source: u64, bytes: usize, _kind: u32,
    ) { copy(driver, (own, None), (End::array(array), End::unified(source, bytes)), (bytes, 1)) }

    cudaMemcpyFromArray @ 35 / cudaMemcpyFromArray_ptds @ 219 |driver, own| (
        target: u64, array: u64, _x: usize, _y: usize, bytes: usize, _kind: u32,
    ) { copy(driver, (own, None), (End::unified(target, bytes), End::array(array)), (bytes, 1)) }

    cudaMemcpy2DToArray @ 34 / cudaMemcpy2DToArray_ptds @ 218 |driver, own| (
        array: u64, _x: usize, _y: usize, source: u64, pitch: usize, width: usize, height: usize, _kind: u32,
    ) { copy(driver, (own, None), (End::array(array), End::unified(source, pitch)), (width, height)) }

    cudaMemcpy2DToArrayAsync @ 45 / cudaMemcpy2DToArrayAsync_ptsz @ 229 |driver, own| (
        array: u64, _x: usize, _y: usize, source: u64, pitch: usize, width: usize, height: usize, _kind: u32,
        handle: Handle,
    ) { copy(driver, (own, Some(handle)), (End::array(array), End::unified(source, pitch)), (width, height)) }

    cudaMemcpy2DFromArray @ 36 / cudaMemcpy2DFromArray_ptds @ 220 |driver, own| (
        target: u64, pitch: usize, array: u64, _x: usize, _y: usize, width: usize, height: usize, _kind: u32,
    ) { copy(driver, (own, None), (End::unified(target, pitch), End::array(array)), (width, height)) }
}

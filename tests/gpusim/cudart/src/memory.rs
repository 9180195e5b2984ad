//! Runtime API functions for allocations, copies and memsets: each function calls the driver's equivalent function.

use crate::array::element_of;
use crate::link::Driver;
use crate::runtime_api::{check, stream};
use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::error::{CuError, INVALID_VALUE};
use gpusim_core::memory::{Corner, Cuboid, End, Location, Rectangle};
use gpusim_core::stream::Default;
use gpusim_core::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// cudaMemcpyKind
const HOST_TO_DEVICE: u32 = 1;
const DEVICE_TO_HOST: u32 = 2;
const DEVICE_TO_DEVICE: u32 = 3;
const LAST_KIND: u32 = 4;

fn copy(
    driver: &Driver,
    own: Default,
    (target, source): (u64, u64),
    bytes: usize,
    kind: u32,
) -> Result<(), CuError> {
    driver.context()?;
    let function = match (kind, own) {
        (HOST_TO_DEVICE, Default::Context) => driver.cuMemcpyHtoD_v2,
        (HOST_TO_DEVICE, Default::PerThread) => driver.cuMemcpyHtoD_v2_ptds,
        (DEVICE_TO_HOST, Default::Context) => driver.cuMemcpyDtoH_v2,
        (DEVICE_TO_HOST, Default::PerThread) => driver.cuMemcpyDtoH_v2_ptds,
        (DEVICE_TO_DEVICE, Default::Context) => driver.cuMemcpyDtoD_v2,
        (DEVICE_TO_DEVICE, Default::PerThread) => driver.cuMemcpyDtoD_v2_ptds,
        (..=LAST_KIND, Default::Context) => driver.cuMemcpy,
        (..=LAST_KIND, Default::PerThread) => driver.cuMemcpy_ptds,
        _ => return Err(INVALID_VALUE),
    };
    check(function(target, source, bytes))
}

fn copy_async(
    driver: &Driver,
    stream: Handle,
    (target, source): (u64, u64),
    bytes: usize,
    kind: u32,
) -> Result<(), CuError> {
    driver.context()?;
    let function = match kind {
        HOST_TO_DEVICE => driver.cuMemcpyHtoDAsync_v2,
        DEVICE_TO_HOST => driver.cuMemcpyDtoHAsync_v2,
        DEVICE_TO_DEVICE => driver.cuMemcpyDtoDAsync_v2,
        ..=LAST_KIND => driver.cuMemcpyAsync,
        _ => return Err(INVALID_VALUE),
    };
    check(function(target, source, bytes, stream))
}

fn primary(driver: &Driver, device: u32) -> Result<Handle, CuError> {
    let mut context = std::ptr::null_mut();
    check((driver.core.primary)(device, &mut context)).map(|()| context)
}

/// cudaPitchedPtr
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pitched {
    address: u64,
    pitch: usize,
    _width: usize,
    height: usize,
}

/// cudaExtent
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// cudaMemcpy3DParms: 160 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy3d {
    source_array: u64,
    _source_position: [usize; 3],
    source: Pitched,
    target_array: u64,
    _target_position: [usize; 3],
    target: Pitched,
    extent: Extent,
    _kind: u32,
}

const _: () = assert!(size_of::<Copy3d>() == 160, "the runtime API's size");

impl Copy3d {
    pub(crate) fn cuboid(self) -> Cuboid {
        let end = |array: u64, it: Pitched| match array {
            0 => Corner::unified(it.address, it.pitch, it.height),
            array => Corner::array(array),
        };
        let Extent { width, height, depth } = self.extent;
        // If the source or the target is a CUDA array, the width is a number of array elements, not of bytes.
        let element = element_of(self.source_array).or_else(|| element_of(self.target_array));
        Cuboid {
            source: end(self.source_array, self.source),
            target: end(self.target_array, self.target),
            width: width * element.unwrap_or(1),
            height,
            depth,
        }
    }
}

/// cudaPointerAttributes: 88 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointer {
    /// Kind of memory: 0 not CUDA memory, 1 host, 2 device, 3 managed.
    kind: u32,
    device: i32,
    on_device: u64,
    on_host: u64,
    _reserved: [u64; 8],
}

const _: () = assert!(size_of::<Pointer>() == 88, "the runtime API's size");

const UNKNOWN: Pointer = Pointer { kind: 0, device: -2, on_device: 0, on_host: 0, _reserved: [0; 8] };

fn pointer(driver: &Driver, address: u64) -> Pointer {
    const MEMORY_TYPE: u32 = 2;
    const IS_MANAGED: u32 = 8;
    const DEVICE_ORDINAL: u32 = 9;
    let ask = |what| {
        let mut answer = 0;
        ((driver.cuPointerGetAttribute)(Out(&mut answer), what, address) == 0).then_some(answer)
    };
    let Some(kind) = ask(MEMORY_TYPE) else {
        return Pointer { on_host: address, ..UNKNOWN };
    };
    let kind = if ask(IS_MANAGED) == Some(1) { 3 } else { kind };
    let on_host = if kind == 2 { 0 } else { address };
    let device = ask(DEVICE_ORDINAL).unwrap_or(0) as i32;
    Pointer { kind, device, on_device: address, on_host, ..UNKNOWN }
}

/// Returns the device address of a `__device__` variable, given the address of its host variable. The device memory of
/// each variable is allocated on first use.
fn symbol(driver: &Driver, host: u64) -> Result<u64, CuError> {
    const ROOM: usize = 64 << 10;
    static SYMBOLS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
    let mut symbols = lock(&SYMBOLS);
    if let Some(found) = symbols.get(&host) {
        return Ok(*found);
    }
    let mut address = 0;
    check((driver.cuMemAlloc_v2)(Out(&mut address), ROOM))?;
    symbols.insert(host, address);
    Ok(address)
}

runtime_api! {
    cudaPointerGetAttributes @ 151 |driver, _own| (out: Out<Pointer>, address: u64) {
        driver.context()?;
        out.set(pointer(driver, address))
    }

    cudaGetSymbolAddress @ 53 |driver, _own| (address: Out<u64>, host: u64) {
        driver.context()?;
        address.set(symbol(driver, host)?)
    }

    cudaMalloc @ 20 |driver, _own| (pointer: Out<u64>, bytes: usize) {
        driver.context()?;
        check((driver.cuMemAlloc_v2)(pointer, bytes))
    }

    cudaMallocPitch @ 21 |driver, _own| (pointer: Out<u64>, pitch: Out<usize>, width: usize, height: usize) {
        driver.context()?;
        let row = width.next_multiple_of(512);
        pitch.set(row)?;
        check((driver.cuMemAlloc_v2)(pointer, row * height))
    }

    cudaFree @ 22 |driver, _own| (pointer: u64) {
        driver.context()?;
        check((driver.cuMemFree_v2)(pointer))
    }

    cudaMallocAsync @ 373 / cudaMallocAsync_ptsz @ 374 |driver, own| (
        pointer: Out<u64>, bytes: usize, handle: Handle,
    ) {
        driver.context()?;
        check((driver.cuMemAllocAsync)(pointer, bytes, stream(handle, own)))
    }

    cudaFreeAsync @ 375 / cudaFreeAsync_ptsz @ 376 |driver, own| (pointer: u64, handle: Handle) {
        driver.context()?;
        check((driver.cuMemFreeAsync)(pointer, stream(handle, own)))
    }

    cudaMallocHost @ 25 |driver, _own| (pointer: Out<u64>, bytes: usize) {
        driver.context()?;
        check((driver.cuMemHostAlloc)(pointer, bytes, 0))
    }

    cudaHostAlloc @ 27 |driver, _own| (pointer: Out<u64>, bytes: usize, flags: u32) {
        driver.context()?;
        check((driver.cuMemHostAlloc)(pointer, bytes, flags))
    }

    cudaFreeHost @ 26 |driver, _own| (pointer: u64) {
        driver.context()?;
        check((driver.cuMemFreeHost)(pointer))
    }

    cudaHostRegister @ 152 |driver, _own| (_pointer: u64, _bytes: usize, _flags: u32) { driver.context() }

    cudaHostUnregister @ 153 |driver, _own| (_pointer: u64) { driver.context() }

    cudaHostGetDevicePointer @ 28 |driver, _own| (pointer: Out<u64>, host: u64, _flags: u32) {
        driver.context()?;
        pointer.set(host)
    }

    cudaHostGetFlags @ 29 |driver, _own| (flags: Out<u32>, _host: u64) {
        driver.context()?;
        flags.set(0)
    }

    cudaMallocManaged @ 206 |driver, _own| (pointer: Out<u64>, bytes: usize, flags: u32) {
        driver.context()?;
        check((driver.cuMemAllocManaged)(pointer, bytes, flags))
    }

    cudaMemPrefetchAsync @ 449 / cudaMemPrefetchAsync_ptsz @ 450 |driver, own| (
        start: u64, bytes: usize, location: Location, flags: u32, handle: Handle,
    ) {
        driver.context()?;
        check((driver.cuMemPrefetchAsync_v2)(start, bytes, location, flags, stream(handle, own)))
    }

    cudaMemcpy @ 31 / cudaMemcpy_ptds @ 215 |driver, own| (target: u64, source: u64, bytes: usize, kind: u32) {
        copy(driver, own, (target, source), bytes, kind)
    }

    cudaMemcpyAsync @ 41 / cudaMemcpyAsync_ptsz @ 225 |driver, own| (
        target: u64, source: u64, bytes: usize, kind: u32, handle: Handle,
    ) { copy_async(driver, stream(handle, own), (target, source), bytes, kind) }

    cudaMemcpyToSymbol @ 39 / cudaMemcpyToSymbol_ptds @ 223 |driver, own| (
        symbol: u64, source: u64, bytes: usize, _offset: usize, _kind: u32,
    ) { copy(driver, own, (symbol, source), bytes, HOST_TO_DEVICE) }

    cudaMemcpyFromSymbol @ 40 / cudaMemcpyFromSymbol_ptds @ 224 |driver, own| (
        target: u64, symbol: u64, bytes: usize, _offset: usize, _kind: u32,
    ) { copy(driver, own, (target, symbol), bytes, DEVICE_TO_HOST) }

    cudaMemcpyToSymbolAsync @ 47 / cudaMemcpyToSymbolAsync_ptsz @ 231 |driver, own| (
        symbol: u64, source: u64, bytes: usize, _offset: usize, _kind: u32, handle: Handle,
    ) { copy_async(driver, stream(handle, own), (symbol, source), bytes, HOST_TO_DEVICE) }

    cudaMemcpy2D @ 32 / cudaMemcpy2D_ptds @ 216 |driver, own| (
        target: u64, target_pitch: usize, source: u64, source_pitch: usize, width: usize, height: usize, _kind: u32,
    ) {
        driver.context()?;
        let (source, target) = (End::unified(source, source_pitch), End::unified(target, target_pitch));
        let what = Rectangle { source, target, width, height };
        let ptds = own == Default::PerThread;
        check(if ptds { driver.cuMemcpy2D_v2_ptds } else { driver.cuMemcpy2D_v2 }(In(&what)))
    }

    cudaMemcpy2DAsync @ 44 / cudaMemcpy2DAsync_ptsz @ 228 |driver, own| (
        target: u64, target_pitch: usize, source: u64, source_pitch: usize, width: usize, height: usize, _kind: u32,
        handle: Handle,
    ) {
        driver.context()?;
        let (source, target) = (End::unified(source, source_pitch), End::unified(target, target_pitch));
        check((driver.cuMemcpy2DAsync_v2)(In(&Rectangle { source, target, width, height }), stream(handle, own)))
    }

    cudaMemcpy3D @ 144 / cudaMemcpy3D_ptds @ 245 |driver, own| (what: In<Copy3d>) {
        driver.context()?;
        let what = what.get()?.cuboid();
        let ptds = own == Default::PerThread;
        check(if ptds { driver.cuMemcpy3D_v2_ptds } else { driver.cuMemcpy3D_v2 }(In(&what)))
    }

    cudaMemcpy3DAsync @ 145 / cudaMemcpy3DAsync_ptsz @ 246 |driver, own| (what: In<Copy3d>, handle: Handle) {
        driver.context()?;
        check((driver.cuMemcpy3DAsync_v2)(In(&what.get()?.cuboid()), stream(handle, own)))
    }

    cudaMemcpyBatchAsync @ 509 / cudaMemcpyBatchAsync_ptsz @ 510 |driver, own| (
        targets: In<u64>, sources: In<u64>, sizes: In<usize>, count: usize, attributes: Handle,
        attribute_indices: Handle, attribute_count: usize, handle: Handle,
    ) {
        driver.context()?;
        let attributes = (attributes, attribute_indices, attribute_count);
        check((driver.cuMemcpyBatchAsync_v2)(
            targets, sources, sizes, count, attributes.0, attributes.1, attributes.2, stream(handle, own),
        ))
    }

    cudaMemset3D @ 142 / cudaMemset3D_ptds @ 243 |driver, own| (target: Pitched, value: i32, extent: Extent) {
        driver.context()?;
        let ptds = own == Default::PerThread;
        let set = if ptds { driver.cuMemsetD2D8_v2_ptds } else { driver.cuMemsetD2D8_v2 };
        check(set(target.address, target.pitch, value as u8, extent.width, extent.height * extent.depth))
    }

    cudaMemset3DAsync @ 143 / cudaMemset3DAsync_ptsz @ 244 |driver, own| (
        target: Pitched, value: i32, extent: Extent, handle: Handle,
    ) {
        driver.context()?;
        let rows = extent.height * extent.depth;
        let stream = stream(handle, own);
        check((driver.cuMemsetD2D8Async)(target.address, target.pitch, value as u8, extent.width, rows, stream))
    }

    cudaMemcpyPeer @ 160 |driver, _own| (
        target: u64, target_device: u32, source: u64, source_device: u32, bytes: usize,
    ) {
        driver.context()?;
        let (to, from) = (primary(driver, target_device)?, primary(driver, source_device)?);
        check((driver.cuMemcpyPeer)(target, to, source, from, bytes))
    }

    cudaMemcpyPeerAsync @ 161 |driver, _own| (
        target: u64, target_device: u32, source: u64, source_device: u32, bytes: usize, handle: Handle,
    ) {
        driver.context()?;
        let (to, from) = (primary(driver, target_device)?, primary(driver, source_device)?);
        check((driver.cuMemcpyPeerAsync)(target, to, source, from, bytes, handle))
    }

    cudaMemset @ 49 / cudaMemset_ptds @ 233 |driver, own| (target: u64, value: i32, bytes: usize) {
        driver.context()?;
        let ptds = own == Default::PerThread;
        check(if ptds { driver.cuMemsetD8_v2_ptds } else { driver.cuMemsetD8_v2 }(target, value as u8, bytes))
    }

    cudaMemsetAsync @ 51 / cudaMemsetAsync_ptsz @ 235 |driver, own| (
        target: u64, value: i32, bytes: usize, handle: Handle,
    ) {
        driver.context()?;
        check((driver.cuMemsetD8Async)(target, value as u8, bytes, stream(handle, own)))
    }

    cudaMemset2D @ 50 / cudaMemset2D_ptds @ 234 |driver, own| (
        target: u64, pitch: usize, value: i32, width: usize, height: usize,
    ) {
        driver.context()?;
        let ptds = own == Default::PerThread;
        let set = if ptds { driver.cuMemsetD2D8_v2_ptds } else { driver.cuMemsetD2D8_v2 };
        check(set(target, pitch, value as u8, width, height))
    }

    cudaMemset2DAsync @ 52 / cudaMemset2DAsync_ptsz @ 236 |driver, own| (
        target: u64, pitch: usize, value: i32, width: usize, height: usize, handle: Handle,
    ) {
        driver.context()?;
        check((driver.cuMemsetD2D8Async)(target, pitch, value as u8, width, height, stream(handle, own)))
    }
}

//! Driver API functions for allocations, copies and memsets. Bytes are moved only with GPUSIM_MATH=1; see the core's
//! module `contents`.

use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::contents;
use gpusim_core::context::Context;
use gpusim_core::error::{CuError, INVALID_CONTEXT, INVALID_VALUE};
use gpusim_core::gpu::{self, Order};
use gpusim_core::graph::What;
use gpusim_core::memory::{self, Cuboid, Location, Rectangle};
use gpusim_core::stream::{Default, Stream};
use gpusim_core::work::{Copy, Memory, Place};
use gpusim_core::{thread, unified};
use std::ptr::null_mut;

/// Submits a copy whose direction is determined by the addresses.
fn submit(
    own: Default,
    stream: Handle,
    target: u64,
    source: u64,
    bytes: u64,
    asynchronous: bool,
) -> Result<(), CuError> {
    let stream = Stream::resolve(stream, own)?;
    let direction = memory::direction(target, source);
    let order = match direction {
        Copy::PtoP => Order::peer(place_of(source)?, place_of(target)?, bytes, asynchronous),
        Copy::HtoD | Copy::HtoA => Order::memcpy(direction, memory::kind_of(source), bytes, asynchronous),
        _ => Order::memcpy(direction, memory::kind_of(target), bytes, asynchronous),
    };
    if bytes == 0 { Ok(()) } else { gpu::submit(stream, order) }
}

/// Submits a copy of contiguous bytes.
fn copy(
    own: Default,
    stream: Handle,
    target: u64,
    source: u64,
    bytes: u64,
    asynchronous: bool,
) -> Result<(), CuError> {
    submit(own, stream, target, source, bytes, asynchronous)?;
    contents::copy(Stream::resolve(stream, own)?, target, source, bytes as usize);
    Ok(())
}

/// Submits a copy whose direction is determined by the name of the API function, not by the addresses.
fn directed(
    own: Default,
    stream: Handle,
    direction: Copy,
    (target, source): (u64, u64),
    bytes: usize,
    asynchronous: bool,
) -> Result<(), CuError> {
    let stream = Stream::resolve(stream, own)?;
    let host = if direction == Copy::HtoD { source } else { target };
    let order = Order::memcpy(direction, memory::kind_of(host), bytes as u64, asynchronous);
    if bytes == 0 {
        return Ok(());
    }
    gpu::submit(stream, order)?;
    contents::copy(stream, target, source, bytes);
    Ok(())
}

/// Returns the device that an address belongs to, and the current CUDA context if that context is on the same device.
/// If the current context is on another device, the returned context is 0 (unknown).
fn place_of(address: u64) -> Result<Place, CuError> {
    let device = memory::device_of(address).ok_or(INVALID_VALUE)?;
    let context = thread::current().context().filter(|c| c.device == device);
    Ok(Place { device, context: context.map_or(0, |c| c.uid) })
}

fn peer(
    own: Default,
    stream: Handle,
    (target, source): (Handle, Handle),
    bytes: u64,
    asynchronous: bool,
) -> Result<(), CuError> {
    let place = |context| Context::of_handle(context).map(|c| Place { device: c.device, context: c.uid });
    let (from, to) = (place(source)?, place(target)?);
    let order = if from.device == to.device {
        Order::memcpy(Copy::DtoD, Memory::Device, bytes, asynchronous)
    } else {
        Order::peer(from, to, bytes, asynchronous)
    };
    gpu::submit(Stream::resolve(stream, own)?, order)
}

/// Submits a memset of one or more rows with a value of 1, 2 or 4 bytes.
fn set(
    own: Default,
    stream: Handle,
    (target, pitch): (u64, usize),
    value: (u32, usize),
    (width, height): (usize, usize),
    asynchronous: bool,
) -> Result<(), CuError> {
    let stream = Stream::resolve(stream, own)?;
    let bytes = value.1 * width * height;
    let order = Order::memset(bytes as u64, value.0, memory::kind_of(target), asynchronous);
    if bytes == 0 {
        return Ok(());
    }
    gpu::submit(stream, order)?;
    (0..height).for_each(|row| contents::fill(stream, target + (row * pitch) as u64, value, width));
    Ok(())
}

fn copy_2d(own: Default, stream: Handle, what: In<Rectangle>, asynchronous: bool) -> Result<(), CuError> {
    let Rectangle { source, target, width, height } = what.get()?;
    let bytes = (width * height) as u64;
    submit(own, stream, target.address(), source.address(), bytes, asynchronous)?;
    let stream = Stream::resolve(stream, own)?;
    if target.is_array() || source.is_array() {
        return Ok(());
    }
    (0..height).for_each(|row| contents::copy(stream, target.row(row), source.row(row), width));
    Ok(())
}

fn copy_3d(own: Default, stream: Handle, what: In<Cuboid>, asynchronous: bool) -> Result<(), CuError> {
    let Cuboid { source, target, width, height, depth } = what.get()?;
    let bytes = (width * height * depth) as u64;
    submit(own, stream, target.address(), source.address(), bytes, asynchronous)
}

/// Submits several copies as one copy, because the real driver merges similar copies. In the simulation all these
/// copies must have the direction of the first copy.
fn copy_batch(
    own: Default,
    stream: Handle,
    (targets, sources, sizes): (In<u64>, In<u64>, In<usize>),
    count: usize,
) -> Result<(), CuError> {
    let stream = Stream::resolve(stream, own)?;
    let (target, source) = (targets.get()?, sources.get()?);
    let mut bytes = 0;
    for at in 0..count {
        bytes += In(sizes.0.wrapping_add(at)).get()? as u64;
        let ends = (In(targets.0.wrapping_add(at)).get()?, In(sources.0.wrapping_add(at)).get()?);
        if memory::direction(ends.0, ends.1) != memory::direction(target, source) {
            return Err(INVALID_VALUE);
        }
    }
    let direction = memory::direction(target, source);
    let host = if direction == Copy::HtoD { source } else { target };
    let order = Order::memcpy(direction, memory::kind_of(host), bytes, true);
    gpu::submit(stream, Order { copies: count as u64, ..order })?;
    for at in 0..count {
        let ends = (In(targets.0.wrapping_add(at)).get()?, In(sources.0.wrapping_add(at)).get()?);
        contents::copy(stream, ends.0, ends.1, In(sizes.0.wrapping_add(at)).get()?);
    }
    Ok(())
}

fn current_device() -> Result<u32, CuError> {
    thread::current().context().map(|c| c.device).ok_or(INVALID_CONTEXT)
}

driver_api! {
    cuMemAlloc_v2 @ 243 |_own| (pointer: Out<u64>, bytes: usize) {
        pointer.set(memory::alloc_device(current_device()?, bytes as u64)?)
    }

    cuMemFree_v2 @ 245 |_own| (pointer: u64) { memory::free_device(pointer) }

    cuMemAllocAsync @ 598 / cuMemAllocAsync_ptsz @ 599 |own| (pointer: Out<u64>, bytes: usize, stream: Handle) {
        let stream = Stream::resolve(stream, own)?;
        let (device, bytes) = (stream.context.device, bytes as u64);
        let Some(capture) = stream.capture() else { return pointer.set(memory::alloc_device(device, bytes)?) };
        let address = memory::reserve_for_graph(device, bytes)?;
        capture.add(stream, What::Alloc(address))?;
        pointer.set(address)
    }

    cuMemFreeAsync @ 600 / cuMemFreeAsync_ptsz @ 601 |own| (pointer: u64, stream: Handle) {
        let stream = Stream::resolve(stream, own)?;
        match stream.capture() {
            Some(capture) => capture.add(stream, What::Free(pointer)),
            None => memory::free_device(pointer),
        }
    }

    cuMemAllocHost_v2 @ 294 |_own| (pointer: Out<u64>, bytes: usize) {
        pointer.set(memory::alloc_host(bytes as u64, Memory::Pinned)?)
    }

    cuMemHostAlloc @ 39 |_own| (pointer: Out<u64>, bytes: usize, _flags: u32) {
        pointer.set(memory::alloc_host(bytes as u64, Memory::Pinned)?)
    }

    cuMemFreeHost @ 38 |_own| (pointer: u64) { memory::free_host(pointer) }

    cuMemAllocManaged @ 371 |_own| (pointer: Out<u64>, bytes: usize, _flags: u32) {
        current_device()?;
        pointer.set(memory::alloc_host(bytes as u64, Memory::Managed)?)
    }

    cuMemPrefetchAsync_v2 @ 716 / cuMemPrefetchAsync_v2_ptsz @ 717 |own| (
        start: u64, bytes: usize, location: Location, _flags: u32, stream: Handle,
    ) {
        let stream = Stream::resolve(stream, own)?;
        if bytes == 0 || memory::kind_of(start) != Memory::Managed {
            return Err(INVALID_VALUE);
        }
        let target = match location.kind {
            1 => Some(location.id as u32),
            2 => None,
            _ => return Err(INVALID_VALUE),
        };
        unified::prefetch(stream, start, bytes as u64, target);
        Ok(())
    }

    cuMemcpy @ 305 / cuMemcpy_ptds @ 408 |own| (target: u64, source: u64, bytes: usize) {
        copy(own, null_mut(), target, source, bytes as u64, false)
    }

    cuMemcpyAsync @ 306 / cuMemcpyAsync_ptsz @ 418 |own| (
        target: u64, source: u64, bytes: usize, stream: Handle,
    ) { copy(own, stream, target, source, bytes as u64, true) }

    cuMemcpyHtoD_v2 @ 276 / cuMemcpyHtoD_v2_ptds @ 397 |own| (target: u64, source: u64, bytes: usize) {
        directed(own, null_mut(), Copy::HtoD, (target, source), bytes, false)
    }

    cuMemcpyHtoDAsync_v2 @ 277 / cuMemcpyHtoDAsync_v2_ptsz @ 421 |own| (
        target: u64, source: u64, bytes: usize, stream: Handle,
    ) { directed(own, stream, Copy::HtoD, (target, source), bytes, true) }

    cuMemcpyDtoH_v2 @ 278 / cuMemcpyDtoH_v2_ptds @ 398 |own| (target: u64, source: u64, bytes: usize) {
        directed(own, null_mut(), Copy::DtoH, (target, source), bytes, false)
    }

    cuMemcpyDtoHAsync_v2 @ 279 / cuMemcpyDtoHAsync_v2_ptsz @ 422 |own| (
        target: u64, source: u64, bytes: usize, stream: Handle,
    ) { directed(own, stream, Copy::DtoH, (target, source), bytes, true) }

    cuMemcpyDtoD_v2 @ 280 / cuMemcpyDtoD_v2_ptds @ 399 |own| (target: u64, source: u64, bytes: usize) {
        copy(own, null_mut(), target, source, bytes as u64, false)
    }

    cuMemcpyDtoDAsync_v2 @ 281 / cuMemcpyDtoDAsync_v2_ptsz @ 423 |own| (
        target: u64, source: u64, bytes: usize, stream: Handle,
    ) { copy(own, stream, target, source, bytes as u64, true) }

    cuMemcpyPeer @ 318 / cuMemcpyPeer_ptds @ 409 |own| (
        target: u64, target_context: Handle, source: u64, source_context: Handle, bytes: usize,
    ) {
        peer(own, null_mut(), (target_context, source_context), bytes as u64, false)?;
        contents::copy(Stream::resolve(null_mut(), own)?, target, source, bytes);
        Ok(())
    }

    cuMemcpyPeerAsync @ 319 / cuMemcpyPeerAsync_ptsz @ 426 |own| (
        target: u64, target_context: Handle, source: u64, source_context: Handle, bytes: usize, stream: Handle,
    ) {
        peer(own, stream, (target_context, source_context), bytes as u64, true)?;
        contents::copy(Stream::resolve(stream, own)?, target, source, bytes);
        Ok(())
    }

    cuMemcpy2D_v2 @ 287 / cuMemcpy2D_v2_ptds @ 405 |own| (what: In<Rectangle>) {
        copy_2d(own, null_mut(), what, false)
    }

    cuMemcpy2DAsync_v2 @ 289 / cuMemcpy2DAsync_v2_ptsz @ 424 |own| (what: In<Rectangle>, stream: Handle) {
        copy_2d(own, stream, what, true)
    }

    cuMemcpy3D_v2 @ 290 / cuMemcpy3D_v2_ptds @ 407 |own| (what: In<Cuboid>) {
        copy_3d(own, null_mut(), what, false)
    }

    cuMemcpy3DAsync_v2 @ 291 / cuMemcpy3DAsync_v2_ptsz @ 425 |own| (what: In<Cuboid>, stream: Handle) {
        copy_3d(own, stream, what, true)
    }

    cuMemcpyBatchAsync_v2 @ 796 / cuMemcpyBatchAsync_v2_ptsz @ 797 |own| (
        targets: In<u64>, sources: In<u64>, sizes: In<usize>, count: usize, _attributes: Handle,
        _attribute_indices: Handle, _attribute_count: usize, stream: Handle,
    ) { copy_batch(own, stream, (targets, sources, sizes), count) }

    cuMemsetD8_v2 @ 249 / cuMemsetD8_v2_ptds @ 411 |own| (target: u64, value: u8, count: usize) {
        set(own, null_mut(), (target, 0), (value.into(), 1), (count, 1), false)
    }

    cuMemsetD16_v2 @ 250 / cuMemsetD16_v2_ptds @ 412 |own| (target: u64, value: u16, count: usize) {
        set(own, null_mut(), (target, 0), (value.into(), 2), (count, 1), false)
    }

    cuMemsetD32_v2 @ 251 / cuMemsetD32_v2_ptds @ 413 |own| (target: u64, value: u32, count: usize) {
        set(own, null_mut(), (target, 0), (value, 4), (count, 1), false)
    }

    cuMemsetD8Async @ 216 / cuMemsetD8Async_ptsz @ 428 |own| (
        target: u64, value: u8, count: usize, stream: Handle,
    ) { set(own, stream, (target, 0), (value.into(), 1), (count, 1), true) }

    cuMemsetD16Async @ 218 / cuMemsetD16Async_ptsz @ 429 |own| (
        target: u64, value: u16, count: usize, stream: Handle,
    ) { set(own, stream, (target, 0), (value.into(), 2), (count, 1), true) }

    cuMemsetD32Async @ 220 / cuMemsetD32Async_ptsz @ 430 |own| (
        target: u64, value: u32, count: usize, stream: Handle,
    ) { set(own, stream, (target, 0), (value, 4), (count, 1), true) }

    cuMemsetD2D8_v2 @ 252 / cuMemsetD2D8_v2_ptds @ 414 |own| (
        target: u64, pitch: usize, value: u8, width: usize, height: usize,
    ) { set(own, null_mut(), (target, pitch), (value.into(), 1), (width, height), false) }

    cuMemsetD2D8Async @ 222 / cuMemsetD2D8Async_ptsz @ 431 |own| (
        target: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle,
    ) { set(own, stream, (target, pitch), (value.into(), 1), (width, height), true) }

    cuMemGetAddressRange_v2 @ 246 |_own| (start: Out<u64>, bytes: Out<usize>, address: u64) {
        let (first, length) = memory::range_of(address).ok_or(INVALID_VALUE)?;
        start.set_if_wanted(first);
        bytes.set_if_wanted(length as usize);
        Ok(())
    }

    cuPointerGetAttribute @ 310 |_own| (data: Out<u32>, attribute: u32, pointer: u64) {
        const MEMORY_TYPE: u32 = 2;
        const DEVICE_POINTER: u32 = 3;
        const IS_MANAGED: u32 = 8;
        const DEVICE_ORDINAL: u32 = 9;
        match (attribute, memory::kind_of(pointer)) {
            (_, Memory::Pageable) => Err(INVALID_VALUE),
            // The device address is the same number as the pointer; it is stored as eight bytes.
            (DEVICE_POINTER, _) => Out::<u64>(data.0.cast()).set(pointer),
            (IS_MANAGED, kind) => data.set(u32::from(kind == Memory::Managed)),
            (MEMORY_TYPE, Memory::Pinned) => data.set(1),
            (MEMORY_TYPE, _) => data.set(2),
            (DEVICE_ORDINAL, _) => data.set(memory::device_of(pointer).unwrap_or(0)),
            _ => Err(INVALID_VALUE),
        }
    }
}

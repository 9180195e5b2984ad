//! Memory of the simulated devices and of the host. Device memory is only address space, without real memory (see
//! `contents` for the exception). A device pointer identifies its device, and copies move no bytes. Host allocations
//! are real memory, because programs write to it.

use crate::contents;
use crate::error::{CuError, INVALID_VALUE, OUT_OF_MEMORY};
use crate::settings;
use crate::sync::lock;
use crate::unified;
use crate::work::{Copy, Memory};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, MutexGuard};

/// Start of the devices' address space, in a range that Linux does not assign by default. Device n owns the n-th TiB
/// after this address.
const BASE: u64 = 0x2000_0000_0000;
const DEVICE_SPACE: u64 = 1 << 40;
/// Memory size that each device reports.
pub const DEVICE_BYTES: u64 = 80 << 30;
const ALIGNMENT: u64 = 512;
const PAGE: usize = 4096;

#[derive(Default)]
struct Space {
    /// Length and memory kind of each live allocation on devices and on the host, keyed by the start address.
    live: BTreeMap<u64, (u64, Memory)>,
    /// Start addresses of freed device ranges, keyed by length, for reuse.
    spare: BTreeMap<u64, Vec<u64>>,
    /// Length of each memory range that belongs to a CUDA graph, keyed by the start address. The memory is live from
    /// the node that allocates it to the node that frees it. The addresses are never reused for other memory.
    of_graphs: BTreeMap<u64, u64>,
    /// Bytes per element of each CUDA array, keyed by the array's start address.
    arrays: BTreeMap<u64, usize>,
    /// Number of allocated bytes and start of the unused address space, keyed by device.
    used: BTreeMap<u32, (u64, u64)>,
}

fn space() -> MutexGuard<'static, Space> {
    static SPACE: LazyLock<Mutex<Space>> = LazyLock::new(Mutex::default);
    lock(&SPACE)
}

/// Allocates memory on a device.
pub fn alloc_device(device: u32, bytes: u64) -> Result<u64, CuError> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let length = bytes.checked_next_multiple_of(ALIGNMENT).ok_or(OUT_OF_MEMORY)?;
    let mut space = space();
    let base = BASE + u64::from(device) * DEVICE_SPACE;
    contents::back(base, DEVICE_SPACE)?;
    let (used, next) = *space.used.entry(device).or_insert((0, base));
    if used + length > DEVICE_BYTES {
        return Err(OUT_OF_MEMORY);
    }
    let fits = |start: &u64| (base..base + DEVICE_SPACE).contains(start);
    let spare = space.spare.get_mut(&length);
    let reused = spare.and_then(|s| Some(s.swap_remove(s.iter().position(fits)?)));
    let next = if reused.is_some() { next } else { next + length };
    let start = reused.unwrap_or(next - length);
    space.used.insert(device, (used + length, next));
    space.live.insert(start, (length, Memory::Device));
    Ok(start)
}

/// Reserves device addresses to which the program will map memory later. The addresses are never reused.
pub fn reserve(device: u32, bytes: u64) -> Result<u64, CuError> {
    let mut space = space();
    let base = BASE + u64::from(device) * DEVICE_SPACE;
    contents::back(base, DEVICE_SPACE)?;
    let (_, next) = space.used.entry(device).or_insert((0, base));
    let end = next.checked_add(bytes.next_multiple_of(PAGE as u64)).ok_or(OUT_OF_MEMORY)?;
    if bytes == 0 || end > base + DEVICE_SPACE {
        return Err(OUT_OF_MEMORY);
    }
    Ok(std::mem::replace(next, end))
}

/// Reserves addresses at which a graph node allocates memory in each launch of the graph.
pub fn reserve_for_graph(device: u32, bytes: u64) -> Result<u64, CuError> {
    let start = reserve(device, bytes)?;
    space().of_graphs.insert(start, bytes.next_multiple_of(PAGE as u64));
    Ok(start)
}

/// Allocates a graph's memory when the graph's allocation node runs. If the previous launch did not free this memory,
/// the memory stays allocated.
pub fn alloc_of_graph(start: u64) {
    let mut space = space();
    let Some(&length) = space.of_graphs.get(&start) else { return };
    let was_live = space.live.insert(start, (length, Memory::Device)).is_some();
    if let (false, Some((used, _))) = (was_live, device_of(start).and_then(|d| space.used.get_mut(&d))) {
        *used += length;
    }
}

/// Returns the number of bytes that CUDA graphs have allocated on a device.
pub fn bytes_of_graphs(device: u32) -> u64 {
    let space = space();
    let is_live = |start: &u64| device_of(*start) == Some(device) && space.live.contains_key(start);
    space.of_graphs.iter().filter(|(start, _)| is_live(start)).map(|(_, length)| length).sum()
}

/// Allocates an array on a device. The array's handle is its address.
pub fn alloc_array(device: u32, elements: u64, bytes_of_each: usize) -> Result<u64, CuError> {
    let start = alloc_device(device, elements.saturating_mul(bytes_of_each as u64))?;
    space().arrays.insert(start, bytes_of_each);
    Ok(start)
}

/// Returns the bytes per element of a CUDA array, or `None` if no array starts at the address.
pub fn element_of(address: u64) -> Option<usize> {
    space().arrays.get(&address).copied()
}

/// Frees device memory.
pub fn free_device(start: u64) -> Result<(), CuError> {
    if start == 0 {
        return Ok(());
    }
    let mut space = space();
    space.arrays.remove(&start);
    match space.live.get(&start) {
        Some((_, Memory::Device)) => {}
        Some((_, Memory::Managed)) => {
            drop(space);
            return free_host(start);
        }
        _ => return Err(INVALID_VALUE),
    }
    let (length, _) = space.live.remove(&start).ok_or(INVALID_VALUE)?;
    if !space.of_graphs.contains_key(&start) {
        space.spare.entry(length).or_default().push(start);
    }
    if let Some((used, _)) = device_of(start).and_then(|device| space.used.get_mut(&device)) {
        *used -= length;
    }
    Ok(())
}

/// Allocates host memory for the driver API, pinned or managed.
pub fn alloc_host(bytes: u64, memory: Memory) -> Result<u64, CuError> {
    let layout = host_layout(bytes)?;
    // SAFETY: `host_layout` refuses the size 0.
    let start = unsafe { alloc_zeroed(layout) } as u64;
    if start == 0 {
        return Err(OUT_OF_MEMORY);
    }
    space().live.insert(start, (bytes, memory));
    Ok(start)
}

/// Frees host memory.
pub fn free_host(start: u64) -> Result<(), CuError> {
    if start == 0 {
        return Ok(());
    }
    let mut space = space();
    let (bytes, _) = *space.live.get(&start).filter(|(_, m)| *m != Memory::Device).ok_or(INVALID_VALUE)?;
    space.live.remove(&start);
    unified::forget(start, bytes);
    // SAFETY: `alloc_host` allocated this memory with the same layout, and it was live until the line above.
    unsafe { dealloc(start as *mut u8, host_layout(bytes)?) };
    Ok(())
}

fn host_layout(bytes: u64) -> Result<Layout, CuError> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    Layout::from_size_align(bytes as usize, PAGE).map_err(|_| OUT_OF_MEMORY)
}

/// Returns the number of free bytes on a device.
pub fn free_bytes(device: u32) -> u64 {
    DEVICE_BYTES - space().used.get(&device).map_or(0, |(used, _)| *used)
}

/// Returns the device that owns an address, or `None` for a host address.
pub fn device_of(address: u64) -> Option<u32> {
    let device = address.checked_sub(BASE)? / DEVICE_SPACE;
    (device < u64::from(settings::get().devices)).then_some(device as u32)
}

/// Returns the start and length of the allocation that contains an address.
pub fn range_of(address: u64) -> Option<(u64, u64)> {
    let space = space();
    let (start, (bytes, _)) = space.live.range(..=address).next_back()?;
    (address < start + bytes).then_some((*start, *bytes))
}

/// Returns the kind of memory at an address.
pub fn kind_of(address: u64) -> Memory {
    if device_of(address).is_some() {
        return Memory::Device;
    }
    match space().live.range(..=address).next_back() {
        Some((start, (bytes, memory))) if address < start + bytes => *memory,
        _ => Memory::Pageable,
    }
}

/// Returns the direction of a copy, derived from its two addresses.
pub fn direction(target: u64, source: u64) -> Copy {
    let is_array = |address| element_of(address).is_some();
    match (is_array(target), is_array(source)) {
        (true, true) => return Copy::AtoA,
        (true, false) if device_of(source).is_some() => return Copy::DtoA,
        (true, false) => return Copy::HtoA,
        (false, true) if device_of(target).is_some() => return Copy::AtoD,
        (false, true) => return Copy::AtoH,
        (false, false) => {}
    }
    match (device_of(target), device_of(source)) {
        (None, None) => Copy::HtoH,
        (Some(_), None) => Copy::HtoD,
        (None, Some(_)) => Copy::DtoH,
        (Some(a), Some(b)) if a != b => Copy::PtoP,
        (Some(_), Some(_)) => Copy::DtoD,
    }
}

/// CUmemLocation: a device or the host, as the place for memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct Location {
    /// Kind of place: 1 device, 2 host.
    pub kind: u32,
    pub id: i32,
}

/// CUDA_ARRAY3D_DESCRIPTOR: 40 bytes. CUDA_ARRAY_DESCRIPTOR, which has no depth, starts with the same fields, but with
/// other sizes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct Cube {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}

/// CUDA_ARRAY_DESCRIPTOR: 24 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct Plane {
    pub width: usize,
    pub height: usize,
    pub format: u32,
    pub channels: u32,
}

const _: () = assert!(size_of::<Cube>() == 40 && size_of::<Plane>() == 24, "the driver API's sizes");

/// CUDA_MEMCPY2D: 128 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct Rectangle {
    pub source: End,
    pub target: End,
    pub width: usize,
    pub height: usize,
}

/// One end of a [`Rectangle`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct End {
    pub x: usize,
    pub y: usize,
    /// Kind of memory: 1 host, 2 device, 3 array, 4 unified.
    pub kind: u32,
    pub host: u64,
    pub device: u64,
    pub array: u64,
    pub pitch: usize,
}

const _: () = assert!(size_of::<Rectangle>() == 128, "the driver API's size");

impl End {
    /// Address of this end. The kind of memory determines the field that contains the address.
    pub fn address(&self) -> u64 {
        match self.kind {
            1 => self.host,
            3 => self.array,
            _ => self.device,
        }
    }

    /// Whether the memory at this end of the copy is a CUDA array.
    pub fn is_array(&self) -> bool {
        self.kind == 3
    }

    /// Address of the start of the row with this index.
    pub fn row(&self, row: usize) -> u64 {
        self.address() + ((self.y + row) * self.pitch + self.x) as u64
    }

    /// Creates an end of a copy that is in a CUDA array.
    pub fn array(address: u64) -> End {
        End { kind: 3, array: address, ..End::unified(0, 0) }
    }

    /// Creates an end of a copy at an address. The address determines the kind of memory.
    pub fn unified(address: u64, pitch: usize) -> End {
        End { x: 0, y: 0, kind: 4, host: 0, device: address, array: 0, pitch }
    }
}

/// CUDA_MEMCPY3D: 200 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct Cuboid {
    pub source: Corner,
    pub target: Corner,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// One end of a [`Cuboid`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct Corner {
    pub position: [usize; 3],
    pub level: usize,
    /// Kind of memory, with the same values as in [`End`].
    pub kind: u32,
    pub host: u64,
    pub device: u64,
    pub array: u64,
    pub reserved: u64,
    pub pitch: usize,
    pub height: usize,
}

const _: () = assert!(size_of::<Cuboid>() == 200, "the driver API's size");

impl Corner {
    /// Address of this end. The kind of memory determines the field that contains the address.
    pub fn address(&self) -> u64 {
        match self.kind {
            1 => self.host,
            3 => self.array,
            _ => self.device,
        }
    }

    /// Creates an end of a copy that is in a CUDA array.
    pub fn array(address: u64) -> Corner {
        Corner { kind: 3, array: address, ..Corner::unified(0, 0, 0) }
    }

    /// Creates an end of a copy at an address. The address determines the kind of memory.
    pub fn unified(address: u64, pitch: usize, height: usize) -> Corner {
        let (position, host, array, reserved) = ([0; 3], 0, 0, 0);
        Corner { position, level: 0, kind: 4, host, device: address, array, reserved, pitch, height }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_is_handed_out_again() {
        let a = alloc_device(0, 1000).unwrap();
        let b = alloc_device(0, 1000).unwrap();
        free_device(a).unwrap();
        assert_eq!(alloc_device(0, 1024).unwrap(), a);
        assert_ne!(a, b);
        assert_eq!(free_device(b), Ok(()));
        assert_eq!(free_device(b), Err(INVALID_VALUE));
    }

    #[test]
    fn graph_memory_is_reallocated_at_its_reserved_address() {
        let start = reserve_for_graph(0, 5000).unwrap();
        assert_eq!((free_device(start), bytes_of_graphs(0)), (Err(INVALID_VALUE), 0));
        for _ in 0..2 {
            alloc_of_graph(start);
            assert_eq!((range_of(start + 4999), bytes_of_graphs(0)), (Some((start, 8192)), 8192));
            free_device(start).unwrap();
            assert_ne!(alloc_device(0, 8192).unwrap(), start);
        }
    }

    #[test]
    fn the_memory_kind_follows_from_the_address() {
        let pinned = alloc_host(10_000, Memory::Pinned).unwrap();
        let device = alloc_device(0, 10).unwrap();
        let kinds = [pinned, pinned + 9_999, pinned + 10_000, device].map(kind_of);
        assert_eq!(kinds, [Memory::Pinned, Memory::Pinned, Memory::Pageable, Memory::Device]);
        assert_eq!(direction(device, pinned), Copy::HtoD);
        free_host(pinned).unwrap();
    }

    #[test]
    fn a_device_runs_out_of_memory() {
        assert_eq!(alloc_device(0, 81 << 30), Err(OUT_OF_MEMORY));
    }
}

//! Runtime API functions for devices, errors and versions.

use crate::link::{self, VERSION};
use crate::runtime_api::{check, device, last_error, set_device, take_last_error};
use gpusim_core::arg::{Handle, Out, Text};
use gpusim_core::error::{self, CuError, INVALID_DEVICE};
use gpusim_core::memory::DEVICE_BYTES;
use gpusim_core::settings;
use std::ffi::c_char;

/// The first fields of cudaDeviceProp, with an H100's values, at their offsets in CUDA 13.x. In CUDA 12.x these fields
/// have the same offsets, except the number of multiprocessors.
type Properties = [u8; 1008];

/// Offset of the number of multiprocessors in the cudaDeviceProp of CUDA 13.x.
const MULTIPROCESSORS_AT: usize = 384;
const PCI_BUS_AT: usize = 568;

/// Further fields of cudaDeviceProp in CUDA 13.x: offset and value.
const LATER: [(usize, u32); 21] = [
    (392, 1),        // can map the host's memory
    (560, 1),        // kernels run concurrently
    (564, 1),        // memory with error correction
    (584, 3),        // copy engines
    (588, 1),        // one address space
    (592, 5120),     // width of the memory bus in bits
    (596, 50 << 20), // L2 cache
    (600, 30 << 20), // part of the L2 cache that can be set aside
    (604, 2048),     // threads per multiprocessor
    (608, 1),        // priorities
    (612, 1),        // L1 cache
    (616, 1),
    (624, 228 << 10), // shared memory per multiprocessor
    (632, 65_536),    // registers per multiprocessor
    (636, 1),         // managed memory
    (656, 1),
    (660, 1),         // preemption
    (668, 1),         // cooperative launches
    (672, 227 << 10), // maximum shared memory per block that a kernel can opt in to
    (688, 32),        // blocks per multiprocessor
    (696, 1 << 10),   // shared memory reserved per block
];

fn properties(ordinal: u32, multiprocessors_at: usize) -> Result<Properties, CuError> {
    if ordinal >= settings::get().devices {
        return Err(INVALID_DEVICE);
    }
    let mut p: Properties = [0; 1008];
    let mut put = |offset: usize, bytes: &[u8]| p[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(0, format!("Simulated GPU {ordinal}").as_bytes());
    put(256, b"gpusim-device-0");
    put(271, &[ordinal as u8]);
    for (offset, value) in [(288, DEVICE_BYTES), (296, 48 << 10), (312, 0x7fff_ffff), (352, 64 << 10)] {
        put(offset, &value.to_ne_bytes());
    }
    let limits: [(usize, u32); 12] = [
        (304, 65_536), // registers per block
        (308, 32),     // warp
        (320, 1024),   // threads per block
        (324, 1024),
        (328, 1024),
        (332, 64),
        (336, 0x7fff_ffff), // grid
        (340, 65_535),
        (344, 65_535),
        (360, 9), // compute capability
        (364, 0),
        (multiprocessors_at, 132),
    ];
    for (offset, value) in limits {
        put(offset, &value.to_ne_bytes());
    }
    if multiprocessors_at == MULTIPROCESSORS_AT {
        for (offset, value) in LATER {
            put(offset, &value.to_ne_bytes());
        }
        put(PCI_BUS_AT, &(0x1e + ordinal).to_ne_bytes());
    }
    Ok(p)
}

#[unsafe(no_mangle)]
extern "C" fn cudaRuntimeGetVersion(version: Out<u32>) -> u32 {
    error::code(version.set(VERSION))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDriverGetVersion(version: Out<u32>) -> u32 {
    match link::loaded() {
        Some(driver) => (driver.cuDriverGetVersion)(version),
        None => error::code(version.set(0)),
    }
}

/// Returns the name of an error. Like the real function, this function initialises the runtime, but returns a name even
/// if the initialisation fails.
#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(code: u32) -> *const c_char {
    let _ = link::ready();
    error::runtime_name(code).map_or(c"unrecognized error code", |(name, _)| name).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: u32) -> *const c_char {
    let _ = link::ready();
    error::runtime_name(code).map_or(c"unrecognized error code", |(_, text)| text).as_ptr()
}

/// Defines a function that returns the thread's last error, even if the runtime cannot be initialised.
macro_rules! error_getter {
    ($name:ident, $id:literal, $get:expr) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> u32 {
            const NAME: &std::ffi::CStr = gpusim_core::arg::literal(concat!(stringify!($name), "\0"));
            let error = $get;
            crate::runtime_api::runtime($id, NAME, &(), std::ptr::null(), |_| Ok(()));
            error
        }
    };
}

error_getter!(cudaGetLastError, 10, take_last_error());
error_getter!(cudaPeekAtLastError, 11, last_error());

runtime_api! {
    cudaGetDeviceCount @ 3 |driver, _own| (count: Out<u32>) { check((driver.cuDeviceGetCount)(count)) }

    cudaGetDeviceProperties @ 440 |_driver, _own| (out: Out<Properties>, ordinal: u32) {
        out.set(properties(ordinal, MULTIPROCESSORS_AT)?)
    }

    cudaGetDeviceProperties_v2 @ 440 |_driver, _own| (out: Out<Properties>, ordinal: u32) {
        out.set(properties(ordinal, 388)?)
    }

    cudaDeviceGetAttribute @ 200 |driver, _own| (value: Out<u32>, what: u32, ordinal: u32) {
        check((driver.cuDeviceGetAttribute)(value, what, ordinal))
    }

    cudaDeviceGetPCIBusId @ 174 |driver, _own| (text: Out<c_char>, room: i32, ordinal: u32) {
        check((driver.cuDeviceGetPCIBusId)(text, room, ordinal))
    }

    cudaDeviceGetStreamPriorityRange @ 205 |driver, _own| (least: Out<i32>, greatest: Out<i32>) {
        driver.context()?;
        check((driver.cuCtxGetStreamPriorityRange)(least, greatest))
    }

    cudaGetDriverEntryPointByVersion @ 468 |driver, _own| (
        name: Text, function: Out<Handle>, version: u32, flags: u64, found: Out<u32>,
    ) {
        const NOT_FOUND: u32 = 1;
        let result = (driver.cuGetProcAddress_v2)(name, function, version as i32, flags, Out(std::ptr::null_mut()));
        found.set_if_wanted(if result == 0 { 0 } else { NOT_FOUND });
        // If the program passes a pointer for the result of the query, an unknown function name is not an error.
        if found.0.is_null() { check(result) } else { Ok(()) }
    }

    cudaDeviceCanAccessPeer @ 154 |driver, _own| (can: Out<u32>, ordinal: u32, peer: u32) {
        check((driver.cuDeviceCanAccessPeer)(can, ordinal, peer))
    }

    cudaDeviceEnablePeerAccess @ 155 |_driver, _own| (peer: u32, _flags: u32) {
        if peer < settings::get().devices { Ok(()) } else { Err(INVALID_DEVICE) }
    }

    cudaDeviceGetP2PAttribute @ 255 |_driver, _own| (value: Out<i32>, _what: u32, one: u32, other: u32) {
        let devices = settings::get().devices;
        if one == other || one >= devices || other >= devices {
            return Err(INVALID_DEVICE);
        }
        value.set(1)
    }

    cudaDeviceDisablePeerAccess @ 156 |_driver, _own| (peer: u32) {
        if peer < settings::get().devices { Ok(()) } else { Err(INVALID_DEVICE) }
    }

    cudaSetDeviceFlags @ 19 |driver, _own| (_flags: u32) { driver.context() }

    cudaGetDeviceFlags @ 212 |driver, _own| (flags: Out<u32>) {
        driver.context()?;
        flags.set(0)
    }

    cudaDeviceSetLimit @ 167 |driver, _own| (_which: u32, _value: usize) { driver.context() }

    cudaDeviceGetLimit @ 166 |driver, _own| (value: Out<usize>, _which: u32) {
        driver.context()?;
        value.set(1024)
    }

    cudaCtxResetPersistingL2Cache @ 337 |driver, _own| () { driver.context() }

    cudaSetDevice @ 16 |driver, _own| (ordinal: u32) {
        if ordinal >= settings::get().devices {
            return Err(INVALID_DEVICE);
        }
        set_device(ordinal);
        driver.context()
    }

    cudaInitDevice @ 444 |driver, _own| (ordinal: u32, _device_flags: u32, _flags: u32) {
        if ordinal >= settings::get().devices {
            return Err(INVALID_DEVICE);
        }
        driver.context()
    }

    cudaGetDevice @ 17 |_driver, _own| (ordinal: Out<u32>) { ordinal.set(device()) }

    cudaDeviceSynchronize @ 165 |driver, _own| () {
        driver.context()?;
        check(if settings::get().cupti.synchronizes_by_context() {
            (driver.cuCtxSynchronize_v2)(std::ptr::null_mut())
        } else {
            (driver.cuCtxSynchronize)()
        })
    }

    cudaDeviceReset @ 164 |driver, _own| () { check((driver.core.reset_primary)(device())) }

    cudaProfilerStart @ 171 |driver, _own| () { check((driver.cuProfilerStart)()) }

    cudaProfilerStop @ 172 |driver, _own| () { check((driver.cuProfilerStop)()) }

    cudaMemGetInfo @ 30 |driver, _own| (free: Out<usize>, total: Out<usize>) {
        driver.context()?;
        check((driver.cuMemGetInfo_v2)(free, total))
    }
}

/// Sets the test program's call site. Test programs declare this function as a weak symbol. This library exports the
/// function because test programs link with the runtime and not with the driver.
#[unsafe(no_mangle)]
extern "C" fn gpusim_site(path: Text) {
    if let Some(driver) = link::loaded() {
        (driver.core.site)(path.0);
    }
}

fn host(what: u32, a: u64, b: u64) -> u64 {
    link::loaded().map_or(0, |driver| (driver.core.host)(what, a, b))
}

gpusim_core::host_functions!(host);

//! Driver API functions for initialisation and devices, and functions that work without initialisation.

use gpusim_core::arg::{Out, Text, copy_text};
use gpusim_core::error::{self, CuError, DEINITIALIZED, INVALID_DEVICE, INVALID_VALUE};
use gpusim_core::table::Phase;
use gpusim_core::{init, memory, settings};
use std::ffi::{CString, c_char};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cuInit(flags: u32) -> u32 {
    error::code(init::init(flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<u32>) -> u32 {
    if init::phase() == Phase::Ended {
        return DEINITIALIZED;
    }
    error::code(version.set(settings::get().driver))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: u32, name: Out<Text>) -> u32 {
    error_text(name, error::driver_name(code).map(|(name, _)| Text(name.as_ptr())))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: u32, text: Out<Text>) -> u32 {
    error_text(text, error::driver_name(code).map(|(_, text)| Text(text.as_ptr())))
}

fn error_text(out: Out<Text>, text: Option<Text>) -> u32 {
    let set = out.set(text.unwrap_or(Text(std::ptr::null())));
    error::code(set.and(text.map(drop).ok_or(INVALID_VALUE)))
}

/// Returns the handle of the device with this ordinal; the handle is the same number as the ordinal.
pub(crate) fn check(device: u32) -> Result<u32, CuError> {
    if device < settings::get().devices { Ok(device) } else { Err(INVALID_DEVICE) }
}

/// Ids of the attributes for the major and the minor compute capability.
const COMPUTE_CAPABILITY: [u32; 2] = [75, 76];

/// PCI bus number of the first device.
const PCI_BUS: u32 = 0x1e;

/// Returns a device attribute: the value of an H100 for attributes that programs query often, and 1 for any other
/// attribute.
fn attribute(attribute: u32, device: u32) -> u32 {
    match attribute {
        1 => 1024,         // threads per block
        2 | 3 => 1024,     // block x, y
        4 => 64,           // block z
        5 => 0x7fff_ffff,  // grid x
        6 | 7 => 65_535,   // grid y, z
        8 => 48 << 10,     // shared memory per block
        9 => 64 << 10,     // constant memory
        10 => 32,          // warp
        11 => 0x7fff_ffff, // pitch
        12 => 65_536,      // registers per block
        13 => 1_980_000,   // kHz
        16 => 132,         // multiprocessors
        17 | 18 | 20 => 0, // no run time limit, not integrated, default compute mode
        33 => PCI_BUS + device,
        34 | 50 => 0,    // PCI device and PCI domain
        36 => 2_619_000, // memory clock in kHz
        37 => 5120,      // width of the memory bus in bits
        38 => 50 << 20,  // L2 cache
        39 => 2048,      // threads per multiprocessor
        40 => 3,         // copy engines
        75 => 9,         // compute capability
        76 => 0,
        81 => 228 << 10,                     // shared memory per multiprocessor
        82 => 65_536,                        // registers per multiprocessor
        84 | 86 | 88 | 100 | 101 | 133 => 0, // single-GPU board, and host memory is not device memory
        97 => 227 << 10,                     // maximum shared memory per block that a kernel can opt in to
        106 => 32,                           // blocks per multiprocessor
        108 => 30 << 20,                     // maximum L2 cache that can be set aside
        111 => 1 << 10,                      // shared memory reserved per block
        _ => 1,
    }
}

/// First 15 bytes of each device's UUID. The last byte depends on the device's ordinal.
const UUID: [u8; 15] = *b"gpusim-device-0";

fn uuid(device: u32) -> [u8; 16] {
    let mut uuid = [device as u8; 16];
    uuid[..15].copy_from_slice(&UUID);
    uuid
}

driver_api! {
    cuDeviceGetCount @ 4 |_own| (count: Out<u32>) { count.set(settings::get().devices) }

    cuDeviceGet @ 3 |_own| (device: Out<u32>, ordinal: u32) { device.set(check(ordinal)?) }

    cuDeviceGetName @ 5 |_own| (name: Out<c_char>, room: i32, device: u32) {
        let text = CString::new(format!("Simulated GPU {}", check(device)?)).map_err(|_| INVALID_VALUE)?;
        copy_text(&text, name, room.max(0) as usize)
    }

    cuDeviceGetAttribute @ 9 |_own| (value: Out<u32>, what: u32, device: u32) {
        check(device)?;
        value.set(attribute(what, device))
    }

    cuDeviceComputeCapability @ 6 |_own| (major: Out<u32>, minor: Out<u32>, device: u32) {
        check(device)?;
        major.set(attribute(COMPUTE_CAPABILITY[0], device))?;
        minor.set(attribute(COMPUTE_CAPABILITY[1], device))
    }

    cuDeviceGetPCIBusId @ 332 |_own| (text: Out<c_char>, room: i32, device: u32) {
        let id = format!("0000:{:02x}:00.0", PCI_BUS + check(device)?);
        copy_text(&CString::new(id).map_err(|_| INVALID_VALUE)?, text, room.max(0) as usize)
    }

    cuDeviceTotalMem_v2 @ 259 |_own| (bytes: Out<usize>, device: u32) {
        check(device)?;
        bytes.set(memory::DEVICE_BYTES as usize)
    }

    cuDeviceGetUuid @ 482 |_own| (id: Out<[u8; 16]>, device: u32) { id.set(uuid(check(device)?)) }

    cuDeviceGetUuid_v2 @ 647 |_own| (id: Out<[u8; 16]>, device: u32) { id.set(uuid(check(device)?)) }

    cuDeviceCanAccessPeer @ 312 |_own| (can: Out<u32>, device: u32, peer: u32) {
        can.set(u32::from(check(device)? != check(peer)?))
    }

    cuProfilerStart @ 308 |_own| () { Ok(()) }

    cuProfilerStop @ 309 |_own| () { Ok(()) }
}

//! Finds the NVIDIA driver in this process, and reads its version.
//!
//! A value of type [`Driver`] proves that `libcuda.so.1` is mapped. Every CUPTI call requires this proof, because the
//! first call of some CUPTI releases (13.2) crashes if the driver is not mapped. No function in this module initialises
//! CUDA. The module `devices` initialises CUDA.

use std::ffi::{CStr, c_int, c_void};

/// A value that proves that `libcuda.so.1` is mapped into this process and stays mapped.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: Option<u32>,
}

/// File name with which programs, and CUPTI itself, open the driver.
const FILE: &CStr = c"libcuda.so.1";

impl Driver {
    /// Returns the driver if this process has already mapped it. If the driver is not mapped and `load` is true, maps
    /// it. Mapping the driver runs the driver's initialisers, but does not initialise CUDA. If the driver is not mapped
    /// and `load` is false, returns `None`.
    pub fn find(load: bool) -> Option<Self> {
        let how = if load { libc::RTLD_NOW } else { libc::RTLD_NOW | libc::RTLD_NOLOAD };
        // SAFETY: the name ends with NUL, and any program may open the driver.
        let handle = unsafe { libc::dlopen(FILE.as_ptr(), how) };
        // The handle is never closed, so the driver stays mapped and the returned value stays a valid proof.
        (!handle.is_null()).then(|| Self { version: version(handle) })
    }

    /// Returns the newest CUDA version that the driver supports, in the driver's encoding (12040 = 12.4). Returns
    /// `None` if the driver does not report its version.
    pub fn version(self) -> Option<u32> {
        self.version
    }

    /// Returns the address of one of the driver's functions, or null if the driver does not have this function.
    pub(super) fn symbol(self, name: &CStr) -> *mut c_void {
        // SAFETY: the name ends with NUL, and `self` proves that the driver is mapped.
        let handle = unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        // SAFETY: the handle belongs to an open library, and the name is a C string.
        unsafe { libc::dlsym(handle, name.as_ptr()) }
    }

    /// Creates a value that stands for a driver with the version `version`, for tests with a fake CUPTI.
    #[cfg(test)]
    pub(super) fn pretended(version: u32) -> Self {
        Self { version: Some(version) }
    }
}

/// Returns the version that `cuDriverGetVersion` reports. This call needs no device and no `cuInit`.
fn version(driver: *mut c_void) -> Option<u32> {
    // SAFETY: the handle is open, and the name ends with NUL.
    let address = unsafe { libc::dlsym(driver, c"cuDriverGetVersion".as_ptr()) };
    if address.is_null() {
        return None;
    }
    // SAFETY: in the driver, the symbol with this name is a function of this type.
    let ask: unsafe extern "C" fn(*mut c_int) -> u32 = unsafe { std::mem::transmute(address) };
    let mut version = 0;
    // SAFETY: `version` has room for the single int that the function writes.
    let status = unsafe { ask(&raw mut version) };
    (status == 0).then_some(version as u32).filter(|version| *version > 0)
}

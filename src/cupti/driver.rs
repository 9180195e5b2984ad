//! The NVIDIA driver in this process: whether it is there, and how new.
//!
//! A [`Driver`] is the proof that `libcuda.so.1` is mapped, and every way to a CUPTI call asks for it:
//! some releases (13.2) crash in their first call without it. Nothing here initialises CUDA.

use std::ffi::{CStr, c_int, c_void};

/// `libcuda.so.1` is mapped into this process, and stays.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: Option<u32>,
}

/// What every program, and CUPTI itself, opens the driver as.
const FILE: &CStr = c"libcuda.so.1";

impl Driver {
    /// The driver that this process has mapped already; with `load`, maps it if need be, which runs its
    /// initialisers but does not initialise CUDA. `None`: there is none.
    pub fn find(load: bool) -> Option<Self> {
        let how = if load { libc::RTLD_NOW } else { libc::RTLD_NOW | libc::RTLD_NOLOAD };
        // SAFETY: the name ends with NUL; the driver is made to be opened by any program.
        let handle = unsafe { libc::dlopen(FILE.as_ptr(), how) };
        // The handle is kept for ever on purpose: it is what keeps the proof true.
        (!handle.is_null()).then(|| Self { version: version(handle) })
    }

    /// The newest CUDA it supports, as it numbers them (12040 = 12.4); `None` if it does not say.
    pub fn version(self) -> Option<u32> {
        self.version
    }

    /// A driver of some version, for tests whose CUPTI is made of their own functions.
    #[cfg(test)]
    pub(super) fn pretended(version: u32) -> Self {
        Self { version: Some(version) }
    }
}

/// Asks `cuDriverGetVersion`, which needs no device and no `cuInit`.
fn version(driver: *mut c_void) -> Option<u32> {
    // SAFETY: the handle is open, the name ends with NUL.
    let address = unsafe { libc::dlsym(driver, c"cuDriverGetVersion".as_ptr()) };
    if address.is_null() {
        return None;
    }
    // SAFETY: the driver's symbol of this name is a function of this type.
    let ask: unsafe extern "C" fn(*mut c_int) -> u32 = unsafe { std::mem::transmute(address) };
    let mut version = 0;
    // SAFETY: it writes one int, for which there is room.
    let status = unsafe { ask(&raw mut version) };
    (status == 0).then_some(version as u32).filter(|version| *version > 0)
}

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

    /// The names of the GPUs that this process may use. Initialises CUDA.
    ///
    /// # Errors
    /// What the driver answers: 100 where there is no GPU.
    #[cfg(feature = "cli")]
    pub(super) fn gpus(self) -> Result<Vec<String>, u32> {
        // SAFETY: the driver is mapped, as this proves.
        let handle = unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        let ask = |name: &CStr| {
            // SAFETY: an open library and a C string.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if address.is_null() { Err(0_u32) } else { Ok(address) }
        };
        let done = |status: u32| if status == 0 { Ok(()) } else { Err(status) };
        // SAFETY: NVIDIA's documentation gives the function of this name this type.
        let init: unsafe extern "C" fn(u32) -> u32 = unsafe { std::mem::transmute(ask(c"cuInit")?) };
        // SAFETY: as above.
        let count: unsafe extern "C" fn(*mut c_int) -> u32 =
            unsafe { std::mem::transmute(ask(c"cuDeviceGetCount")?) };
        // SAFETY: as above.
        let name: unsafe extern "C" fn(*mut u8, c_int, c_int) -> u32 =
            unsafe { std::mem::transmute(ask(c"cuDeviceGetName")?) };
        // SAFETY: it takes a number.
        done(unsafe { init(0) })?;
        let mut devices = 0;
        // SAFETY: it writes one int, for which there is room.
        done(unsafe { count(&raw mut devices) })?;
        let named = |device| {
            let mut text = [0_u8; 256];
            // SAFETY: it writes as many bytes as it is told that there is room for.
            done(unsafe { name(text.as_mut_ptr(), text.len() as c_int, device) })?;
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            Ok(String::from_utf8_lossy(&text[..end]).into_owned())
        };
        (0..devices).map(named).collect()
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

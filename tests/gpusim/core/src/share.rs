//! Memory and CUDA events shared between processes. A shared memory handle identifies an allocation. A process that
//! opens the handle gets address space of the same size on the same device. A CUDA event from another process is
//! treated as already completed.

use crate::error::{CuError, INVALID_HANDLE, OPERATING_SYSTEM};
use crate::memory;
use crate::stream::Event;
use std::ffi::c_void;

/// Creates a file descriptor that represents memory or a memory pool, and that a program sends to another process. The
/// file behind the descriptor is empty.
pub fn descriptor() -> Result<i32, CuError> {
    // SAFETY: the name is a C string.
    let descriptor = unsafe { libc::memfd_create(c"gpusim".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 { Err(OPERATING_SYSTEM) } else { Ok(descriptor) }
}

/// Checks that `descriptor` is an open file descriptor; the kind of file does not matter.
pub fn check_descriptor(descriptor: i32) -> Result<(), CuError> {
    // SAFETY: F_GETFD accepts any number.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
    if flags < 0 { Err(INVALID_HANDLE) } else { Ok(()) }
}

/// CUipcMemHandle and CUipcEventHandle: 64 bytes that a program sends to another process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    magic: u64,
    process: u64,
    bytes: u64,
    device: u64,
    unused: [u64; 4],
}

const MEMORY: u64 = u64::from_le_bytes(*b"sharemem");
const EVENT: u64 = u64::from_le_bytes(*b"share_ev");

impl Shared {
    fn new(magic: u64, bytes: u64, device: u32) -> Shared {
        Shared { magic, process: std::process::id().into(), bytes, device: device.into(), unused: [0; 4] }
    }

    /// Creates a handle for the allocation that contains an address.
    pub fn memory(address: u64) -> Result<Shared, CuError> {
        let (_, bytes) = memory::range_of(address).ok_or(INVALID_HANDLE)?;
        let device = memory::device_of(address).ok_or(INVALID_HANDLE)?;
        Ok(Shared::new(MEMORY, bytes, device))
    }

    /// Creates a handle for a CUDA event.
    pub fn event(event: *mut c_void) -> Result<Shared, CuError> {
        Event::of_handle(event).map(|_| Shared::new(EVENT, 0, 0))
    }

    /// Checks that another process created the handle, and that the handle represents the kind of object that `magic`
    /// identifies.
    fn is_others(&self, magic: u64) -> Result<(), CuError> {
        let is_own = self.process == std::process::id().into();
        if self.magic == magic && !is_own { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    /// Reserves address space for the shared memory. The space stays reserved until the program frees it.
    pub fn open_memory(&self) -> Result<u64, CuError> {
        self.is_others(MEMORY)?;
        memory::alloc_device(self.device as u32, self.bytes)
    }

    /// Creates a CUDA event in this process that represents the shared event.
    pub fn open_event(&self) -> Result<*mut c_void, CuError> {
        self.is_others(EVENT)?;
        Ok(Event::create().handle())
    }
}

//! Memory and events shared between processes. A handle identifies an allocation; a process that opens the handle gets
//! address space of the same size on the same device. An event from another process counts as having happened.

use crate::error::{CuError, INVALID_HANDLE, OPERATING_SYSTEM};
use crate::memory;
use crate::stream::Event;
use std::ffi::c_void;

/// Creates a descriptor for memory or a pool, which a program sends to another process. The file is empty.
pub fn descriptor() -> Result<i32, CuError> {
    // SAFETY: the name is a C string.
    let descriptor = unsafe { libc::memfd_create(c"gpusim".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 { Err(OPERATING_SYSTEM) } else { Ok(descriptor) }
}

/// Checks that the number is an open descriptor, of any kind of file.
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

    /// Handle of the allocation that contains an address.
    pub fn memory(address: u64) -> Result<Shared, CuError> {
        let (_, bytes) = memory::range_of(address).ok_or(INVALID_HANDLE)?;
        let device = memory::device_of(address).ok_or(INVALID_HANDLE)?;
        Ok(Shared::new(MEMORY, bytes, device))
    }

    /// Handle of an event.
    pub fn event(event: *mut c_void) -> Result<Shared, CuError> {
        Event::of_handle(event).map(|_| Shared::new(EVENT, 0, 0))
    }

    /// Checks that another process created the handle, and that the handle is for this kind of object.
    fn is_others(&self, magic: u64) -> Result<(), CuError> {
        let is_own = self.process == std::process::id().into();
        if self.magic == magic && !is_own { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    /// Reserves address space for the shared memory, until the memory is freed.
    pub fn open_memory(&self) -> Result<u64, CuError> {
        self.is_others(MEMORY)?;
        memory::alloc_device(self.device as u32, self.bytes)
    }

    /// Creates an event of this process for the shared event.
    pub fn open_event(&self) -> Result<*mut c_void, CuError> {
        self.is_others(EVENT)?;
        Ok(Event::create().handle())
    }
}

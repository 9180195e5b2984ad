//! User objects: program data that exists as long as CUDA graphs refer to it. When the last reference is released, the
//! thread that runs host functions calls a function of the program. The real driver calls this function on an internal
//! thread.

use crate::error::{CuError, INVALID_VALUE};
use crate::host_fn::{self, HostFn};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Object to which a CUuserObject handle points. Never freed.
#[derive(Debug)]
pub struct UserObject {
    magic: AtomicU64,
    references: AtomicU32,
    destroy: HostFn,
    argument: usize,
}

const MAGIC: u64 = u64::from_le_bytes(*b"userobj\x01");

impl UserObject {
    /// Creates a user object with this number of references, which the caller owns.
    pub fn create(destroy: HostFn, argument: *mut c_void, references: u32) -> &'static UserObject {
        Box::leak(Box::new(UserObject {
            magic: AtomicU64::new(MAGIC),
            references: AtomicU32::new(references),
            destroy,
            argument: argument as usize,
        }))
    }

    /// Returns the object to which a handle points, if the handle is valid and the object has not been destroyed.
    pub fn of_handle(handle: *mut c_void) -> Result<&'static UserObject, CuError> {
        let object = handle.cast::<UserObject>();
        if object.is_null() || !object.is_aligned() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: programs pass the result of cuUserObjectCreate, and these objects are never freed.
        let object = unsafe { &*object };
        if object.magic.load(Relaxed) == MAGIC { Ok(object) } else { Err(INVALID_VALUE) }
    }

    /// Returns the handle by which a program refers to this object.
    pub fn handle(&'static self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Adds `count` references to the object.
    pub fn retain(&self, count: u32) {
        self.references.fetch_add(count, Relaxed);
    }

    /// Releases `count` references to the object.
    pub fn release(&self, count: u32) {
        if self.references.fetch_sub(count, Relaxed) == count {
            self.magic.store(0, Relaxed);
            host_fn::run_soon(self.destroy, self.argument as *mut c_void);
        }
    }
}

//! Registers gpuflame's mappings with a leak checker, such as the leak checker that a sanitizer runs on exit. A leak
//! checker searches the heap, stacks and variables for pointers, but does not search mappings. If a mapping were not
//! registered, memory to which only this mapping points would count as leaked. The process would then exit with the
//! sanitizer's exit code.

use std::ffi::c_void;
use std::mem;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

type RegisterRoot = unsafe extern "C" fn(*const c_void, usize);

/// Address of the process's `__lsan_register_root_region`; null if the process has no leak checker, or if
/// [`find_leak_checker`] was not called yet.
static REGISTER_ROOT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks for a leak checker in the process. Do not call this function in a callback, because it calls the loader.
pub fn find_leak_checker() {
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__lsan_register_root_region".as_ptr()) };
    REGISTER_ROOT.store(found, Ordering::Release);
}

/// Registers a mapping that is never unmapped, so that the leak checker also searches this mapping for pointers.
pub fn register_root(mapping: NonNull<u8>, size: usize) {
    let register = REGISTER_ROOT.load(Ordering::Acquire);
    if !register.is_null() {
        // SAFETY: in every sanitizer, `__lsan_register_root_region` has this type.
        let register = unsafe { mem::transmute::<*mut c_void, RegisterRoot>(register) };
        // SAFETY: the mapping exists as long as the process.
        unsafe { register(mapping.as_ptr().cast(), size) };
    }
}

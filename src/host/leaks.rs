//! Who looks for leaks in a process, as the sanitizers do at its end, looks at the heap, stacks and variables, and not at memory
//! that was mapped: what such memory alone points to seems lost, and the process ends with a code of the sanitizer's.

use std::ffi::c_void;
use std::mem;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

type Register = unsafe extern "C" fn(*const c_void, usize);

/// `__lsan_register_root_region` of the process; null: it has none, or nobody has looked yet.
static REGISTER: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks whether somebody looks. Asks the loader: not to be called in a callback.
pub fn prepare() {
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__lsan_register_root_region".as_ptr()) };
    REGISTER.store(found, Ordering::Release);
}

/// What lies in this mapping, which stays for good, points to memory that is none that was lost.
pub fn keeps(mapping: NonNull<u8>, size: usize) {
    let register = REGISTER.load(Ordering::Acquire);
    if !register.is_null() {
        // SAFETY: the function of that name has this type, in every sanitizer that has it.
        let register = unsafe { mem::transmute::<*mut c_void, Register>(register) };
        // SAFETY: the mapping is there for as long as the process.
        unsafe { register(mapping.as_ptr().cast(), size) };
    }
}

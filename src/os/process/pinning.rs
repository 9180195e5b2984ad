//! Keeps `libgpuflame.so` loaded until the process ends.

/// Makes sure that the library that contains this code is never unloaded, because threads, callbacks and exit handlers
/// use its code until the process ends.
pub fn pin_library() {
    // SAFETY: all-zero is a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address and writes to `info`.
    let found = unsafe { libc::dladdr(pin_library as *const libc::c_void, &mut info) } != 0;
    if found && !info.dli_fname.is_null() {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: `dladdr` returned a C string, and with RTLD_NOLOAD `dlopen` loads nothing.
        unsafe { libc::dlopen(info.dli_fname, flags) };
    }
}

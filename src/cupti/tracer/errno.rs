//! Preserves errno, because errno belongs to the application's last call, and only the application's own calls may
//! change it.

/// Runs `action` and restores errno. All code of gpuflame that runs on threads of the application is wrapped in this
/// function.
#[inline(always)]
pub fn preserve<T>(action: impl FnOnce() -> T) -> T {
    // SAFETY: errno's location is valid for as long as the thread runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the location is valid for as long as the thread runs.
    let before = unsafe { errno.read() };
    let result = action();
    // SAFETY: the location is valid for as long as the thread runs.
    unsafe { errno.write(before) };
    result
}

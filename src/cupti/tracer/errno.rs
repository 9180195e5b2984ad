//! Preserves errno. The application reads errno after its own calls, so gpuflame's code that runs in between must not
//! change errno.

/// Runs `action` and restores errno afterwards. All code of gpuflame on threads of the application runs inside this
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

//! Keeps the value of errno. The application reads errno after its own calls. Therefore gpuflame's code that runs
//! between such a call and the read must not change errno.

/// Runs `action`, and then restores the previous value of errno. All gpuflame code that runs on application threads
/// runs inside this function.
#[inline(always)]
pub fn preserve<T>(action: impl FnOnce() -> T) -> T {
    // SAFETY: the location of errno is valid as long as the thread runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the location of errno is valid as long as the thread runs.
    let before = unsafe { errno.read() };
    let result = action();
    // SAFETY: the location of errno is valid as long as the thread runs.
    unsafe { errno.write(before) };
    result
}

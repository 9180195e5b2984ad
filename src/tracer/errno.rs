//! Preserves errno: it belongs to the host's last call, and only the host's own calls may change it.

/// Runs `action` and restores errno. Wraps all of our code that the host or its libraries call on their threads.
#[inline(always)]
pub fn kept<T>(action: impl FnOnce() -> T) -> T {
    // SAFETY: errno's location is valid for as long as the thread runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    let result = action();
    // SAFETY: as above.
    unsafe { errno.write(before) };
    result
}

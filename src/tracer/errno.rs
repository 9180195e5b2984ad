//! What the host's last call has left in errno, which is nobody's to change but its own.

/// Runs `action`, and puts errno back: around all that the host or its libraries call of ours, on their threads.
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

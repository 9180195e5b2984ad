//! Locks that do not change errno. Waiting for a mutex may set errno to EAGAIN, and the tests attribute every change of
//! errno in a CUDA call to a CUPTI client.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, even if a thread panicked while holding it, and restores errno.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let _errno = Errno::kept();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Saves errno, and restores the saved value on drop.
pub struct Errno(i32);

impl Errno {
    /// Saves the current value of errno.
    pub fn kept() -> Self {
        // SAFETY: errno's location is valid for as long as the thread runs.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: errno's location is valid for as long as the thread runs.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

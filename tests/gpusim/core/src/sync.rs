//! Locks that leave errno as it was. Waiting for a mutex may set errno to EAGAIN, and the tests take every change of
//! errno in a call for a change by a client of CUPTI.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, even if a thread panicked while holding it, and restores errno.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let _errno = Errno::kept();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Restores errno when it is dropped.
pub struct Errno(i32);

impl Errno {
    /// Notes the present errno.
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

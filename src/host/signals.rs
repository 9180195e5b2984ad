//! Signals are the application's: none of our threads takes one.

/// Runs `spawn` with all signals blocked, so that a thread that it makes never runs the application's
/// signal handlers.
pub fn without<T>(spawn: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero is a valid signal set, and sigfillset and pthread_sigmask write to the two.
    let old = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    };
    let result = spawn();
    // SAFETY: `old` is the set that pthread_sigmask wrote.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut()) };
    result
}

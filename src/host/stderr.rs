//! The application's stderr, on which we say what went wrong and print the ledger.

use std::io::Write;

/// Writes `text`. If nobody reads it any more, the signal that says so would end the application for our sake:
/// it is held back and taken away.
pub fn write(text: &[u8]) {
    // SAFETY: all-zero is a valid signal set; the calls write to the sets and read no other memory.
    unsafe {
        let mut pipe: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut old);
        libc::sigpending(&mut pending);
        let was_pending = libc::sigismember(&pending, libc::SIGPIPE) == 1;
        let failed = std::io::stderr().lock().write_all(text).is_err();
        if failed && !was_pending {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&pipe, std::ptr::null_mut(), &at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
    }
}

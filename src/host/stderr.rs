//! The application's stderr, on which we say what went wrong and print the ledger.

use std::io;

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
        let failed = !write_all(text);
        if failed && !was_pending {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&pipe, std::ptr::null_mut(), &at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
    }
}

/// Writes to the descriptor itself: the standard library's lock may be held by a thread that a forked child has not.
/// False: it cannot be written to.
fn write_all(mut text: &[u8]) -> bool {
    while !text.is_empty() {
        // SAFETY: the kernel reads no more than the bytes of `text`.
        let written = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        match usize::try_from(written) {
            Ok(0) => return false,
            Ok(written) => text = &text[written..],
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    true
}

//! Keeps thread cancellation, which belongs to the application, away from our frames. The C library unwinds a cancelled
//! thread by an exception of its own, and this exception must not pass through Rust.

use libc::c_int;

const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Runs `body` with cancellation disabled on this thread. A request that arrives meanwhile takes effect at the next
/// cancellation point after `body`. Use it for code that makes system calls. The code path of a launch whose stack is
/// cached has no cancellation point and does not need it.
pub fn barred<T>(body: impl FnOnce() -> T) -> T {
    struct Before(c_int);
    // The destructor restores the state even if an exception of the application passes through.
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: the call restores a state that the thread had, and writes one int.
            unsafe { pthread_setcancelstate(self.0, &mut 0) };
        }
    }
    let mut before = Before(0);
    // SAFETY: the call writes one int.
    unsafe { pthread_setcancelstate(DISABLE, &mut before.0) };
    body()
}

//! Cancellation is the application's, and not for our frames: the C library unwinds a cancelled thread by an exception of
//! its own, which must not pass through Rust.

use libc::c_int;

const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Runs `body` on a thread that is not cancelled meanwhile; where that was asked for, it is at the first place behind it
/// where a thread may be. For what calls into the system: the way of a launch whose stack is known has no such place.
pub fn barred<T>(body: impl FnOnce() -> T) -> T {
    struct Before(c_int);
    // Also where an exception of the application's passes.
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: a state that it had; room for one int.
            unsafe { pthread_setcancelstate(self.0, &mut 0) };
        }
    }
    let mut before = Before(0);
    // SAFETY: room for one int.
    unsafe { pthread_setcancelstate(DISABLE, &mut before.0) };
    body()
}

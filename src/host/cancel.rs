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
    let mut old = 0;
    // SAFETY: `old` is one int.
    unsafe { pthread_setcancelstate(DISABLE, &mut old) };
    let result = body();
    // SAFETY: as above; a state that it had.
    unsafe { pthread_setcancelstate(old, &mut 0) };
    result
}

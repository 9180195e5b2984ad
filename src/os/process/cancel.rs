//! Prevents cancellation (`pthread_cancel`) of the application's threads while they run gpuflame's code. The C library
//! unwinds a cancelled thread with an exception, which must not pass through Rust frames.

use libc::c_int;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Runs `body` with cancellation disabled on this thread. A cancellation request that arrives while `body` runs takes
/// effect at the next cancellation point after `body`. Use this function for code that makes system calls. Recording a
/// launch whose stack is cached does not need this function, because that code contains no cancellation point.
pub fn without_cancellation<T>(body: impl FnOnce() -> T) -> T {
    struct PreviousState(c_int);
    // The destructor restores the state even if an exception of the application passes through this function.
    impl Drop for PreviousState {
        fn drop(&mut self) {
            // SAFETY: the call restores the thread's earlier state, and writes one int.
            unsafe { pthread_setcancelstate(self.0, &mut 0) };
        }
    }
    let mut before = PreviousState(0);
    // SAFETY: the call writes one int.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before.0) };
    body()
}

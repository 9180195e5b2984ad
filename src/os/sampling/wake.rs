//! Wakes one of gpuflame's threads as soon as the kernel has written a sample.
//!
//! A perf event has no open descriptor for which a thread could wait (see `perf`). Therefore the kernel sends a signal
//! to gpuflame's thread. Because gpuflame's thread blocks all signals and receives this signal with `sigtimedwait`, no
//! handler runs, and no thread of the program gets a signal. `sigtimedwait` would also receive a signal that was sent
//! to the whole process. Therefore the signal is SIGSTKFLT, which neither the kernel nor a program sends. The open
//! event stores which thread gets the signal. The event's mapping keeps the event alive after the descriptor is closed.

use std::io;
use std::mem::size_of;
use std::ptr::{null, null_mut};
use std::time::Duration;

const SIGNAL: i32 = libc::SIGSTKFLT;
/// Two `fcntl` commands of the kernel, and the value of `SignalOwner::kind` for a single thread.
const SET_OWNER: i32 = 15;
const SET_SIGNAL: i32 = 10;
const OWNER_IS_THREAD: i32 = 0;

/// The kernel's `f_owner_ex`.
#[repr(C)]
struct SignalOwner {
    kind: i32,
    thread: i32,
}

/// Makes each sample of a perf event wake the gpuflame thread with id `thread` (0 for no thread). If the kernel refuses
/// one of these settings, samples wake no thread.
pub(super) fn on_event(event: i32, thread: i32) {
    if thread != 0 {
        let owner = SignalOwner { kind: OWNER_IS_THREAD, thread };
        // SAFETY: the event is an open descriptor, and `owner` has the kernel's layout.
        unsafe {
            libc::fcntl(event, SET_OWNER, &raw const owner);
            libc::fcntl(event, SET_SIGNAL, SIGNAL);
            libc::fcntl(event, libc::F_SETFL, libc::O_ASYNC);
        }
    }
}

/// Waits until this thread is woken, but at most for `limit`. Returns whether the thread was woken. If the kernel
/// refuses `sigtimedwait`, the thread sleeps for `limit`. Call this function only on gpuflame's threads, because they
/// block all signals.
pub fn wait(limit: Duration) -> bool {
    let (set, milliseconds) = (1_u64 << (SIGNAL - 1), limit.as_millis() as i32);
    let limit = libc::timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let none = null::<u8>();
    // SAFETY: the call reads a set of 64 signals and a time, and writes nothing.
    let signal = unsafe {
        let bytes = size_of::<u64>();
        libc::syscall(libc::SYS_rt_sigtimedwait, &raw const set, none, &raw const limit, bytes)
    };
    if signal < 0 && !matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
        sleep(milliseconds);
    }
    signal == libc::c_long::from(SIGNAL)
}

/// Wakes the gpuflame thread with id `thread` in the process with id `process`. Do not call this function for a thread
/// that may have ended long ago. Another thread may have received the ended thread's id, and the signal's default
/// action would end the process. This function may be called in a signal handler.
pub fn wake(process: i32, thread: i32) {
    // SAFETY: the call has no preconditions, and fails for a thread that has ended.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGNAL) };
}

/// Makes the calling thread sleep for the whole given time, even if another thread wakes it.
pub fn sleep(milliseconds: i32) {
    // SAFETY: the call gets no descriptors.
    unsafe { libc::poll(null_mut(), 0, milliseconds) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::time::Instant;

    use super::*;
    use crate::process::{host_signals, threads};
    use crate::sampling::perf;

    fn spin(nanos: u128) {
        let began = Instant::now();
        while std::hint::black_box(began.elapsed().as_nanos()) < nanos {}
    }

    #[test]
    fn a_refused_wait_takes_its_time() {
        let refused = std::thread::spawn(|| {
            let code = |code: u32| code as u16;
            // SAFETY: the functions have no preconditions.
            let mut filter = unsafe {
                [
                    libc::BPF_STMT(code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), 0),
                    libc::BPF_JUMP(
                        code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K),
                        libc::SYS_rt_sigtimedwait as u32,
                        0,
                        1,
                    ),
                    libc::BPF_STMT(code(libc::BPF_RET), libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
                    libc::BPF_STMT(code(libc::BPF_RET), libc::SECCOMP_RET_ALLOW),
                ]
            };
            let all = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
            // SAFETY: the filter exists until the calls return, and applies only to this thread.
            let is_set = unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const all) == 0
            };
            let began = Instant::now();
            assert!(is_set && !wait(Duration::from_millis(50)));
            began.elapsed()
        });
        assert!(refused.join().unwrap() >= Duration::from_millis(50));
    }

    #[test]
    fn a_sample_and_a_wake_reach_a_thread_that_waits() {
        static SPINNING: AtomicI32 = AtomicI32::new(0);
        let spinning = std::thread::spawn(|| {
            SPINNING.store(threads::current_id(), Ordering::Release);
            spin(2_000_000_000);
        });
        while SPINNING.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let other = SPINNING.load(Ordering::Acquire);
        let waiting = host_signals::with_all_blocked(|| {
            std::thread::spawn(move || {
                let me = threads::current_id();
                assert!(!wait(Duration::from_millis(1)), "nothing has woken this thread");
                wake(std::process::id() as i32, me);
                assert!(wait(Duration::from_secs(10)));
                // Skip the test if the user is not permitted to sample.
                let Ok(event) = perf::PerfEvent::open(other, Duration::from_millis(5), me) else { return };
                assert!(wait(Duration::from_secs(10)), "a sample wakes, although no descriptor is open");
                drop(event);
                wait(Duration::from_millis(50));
                assert!(!wait(Duration::from_millis(50)), "an event that has ended wakes no thread");
            })
        });
        waiting.join().unwrap();
        spinning.join().unwrap();
    }
}

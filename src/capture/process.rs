//! What gpuflame asks of the process it is a guest in: a call at exit, silence in forked children, no
//! signals on its own thread, and to stay loaded.

use std::io::Write;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::control::window;

static AT_EXIT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
static EXIT_CALLS: AtomicUsize = AtomicUsize::new(0);

/// Has `action` called when the process exits in the ordinary way, on the thread that exits, before
/// the handlers that were registered earlier. May be called again to move it to the front; `action` is
/// then called once per registration.
pub fn call_at_exit(action: fn()) {
    AT_EXIT.store(action as *mut (), Ordering::Release);
    // SAFETY: `at_exit` is a function for ever: the library is never unloaded (see `stay_loaded`).
    if unsafe { libc::atexit(at_exit) } == 0 {
        EXIT_CALLS.fetch_add(1, Ordering::AcqRel);
    }
}

/// How often the action of [`call_at_exit`] will still be called after the call that is under way.
pub fn exit_calls_left() -> usize {
    EXIT_CALLS.load(Ordering::Acquire)
}

extern "C" fn at_exit() {
    EXIT_CALLS.fetch_sub(1, Ordering::AcqRel);
    let action = AT_EXIT.load(Ordering::Acquire);
    if action.is_null() {
        return;
    }
    // SAFETY: only `call_at_exit` stores here, and what it stores is a `fn()`.
    let action: fn() = unsafe { std::mem::transmute(action) };
    // A panic must not reach the C library; the outputs are lost, the application's exit is not.
    if std::panic::catch_unwind(action).is_err() {
        window::kill();
    }
}

/// Makes forked children do nothing: the driver's state is not theirs, and our collector did not
/// follow them.
pub fn stop_in_forked_children() {
    extern "C" fn child() {
        window::kill();
    }
    // SAFETY: `child` does one atomic store, which is allowed after a fork.
    unsafe { libc::pthread_atfork(None, None, Some(child)) };
}

/// Runs `spawn` with all signals blocked, so that a thread that it makes never runs the application's
/// signal handlers.
pub fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
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

/// Pins the library that this code is in: it has a thread, callbacks and exit handlers.
pub fn stay_loaded() {
    // SAFETY: all-zero is a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address and writes to `info`.
    let found = unsafe { libc::dladdr(stay_loaded as *const libc::c_void, &mut info) } != 0;
    if found && !info.dli_fname.is_null() {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: dladdr gave a NUL-terminated name; RTLD_NOLOAD loads nothing.
        unsafe { libc::dlopen(info.dli_fname, flags) };
    }
}

/// Writes to the application's stderr. If nobody reads it any more, the signal that says so would end the
/// application for our sake: it is held back and taken away.
pub fn write_to_stderr(text: &[u8]) {
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

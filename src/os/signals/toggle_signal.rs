//! Handles a signal with which a user or another process opens and closes recording windows. The signal is used only if
//! the application has left it at its default action.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

static TOGGLES: AtomicU32 = AtomicU32::new(0);
static ON_TOGGLE: OnceLock<fn()> = OnceLock::new();

/// Installs a handler that counts the arrivals of `signal` and calls `on_toggle` on each arrival. `on_toggle` runs
/// inside the signal handler, which may interrupt any code. If the signal already has a handler or is ignored, leaves
/// its action unchanged and returns false.
pub fn install(signal: i32, on_toggle: fn()) -> bool {
    let _ = ON_TOGGLE.set(on_toggle);
    // SAFETY: all-zero is a valid `sigaction`.
    let (mut old, mut new): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    // SAFETY: without an action to set, the call only writes to `old`.
    let is_known = unsafe { libc::sigaction(signal, std::ptr::null(), &mut old) } == 0;
    if !is_known || old.sa_sigaction != libc::SIG_DFL {
        return false;
    }
    let handler: extern "C" fn(i32) = on_signal;
    new.sa_sigaction = handler as usize;
    new.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler is never unloaded (see `pinning::pin_library`), and its type matches the flags.
    unsafe { libc::sigaction(signal, &new, std::ptr::null_mut()) == 0 }
}

/// Number of arrivals of the signal so far.
pub fn toggles() -> u32 {
    TOGGLES.load(Ordering::Acquire)
}

extern "C" fn on_signal(_: i32) {
    // SAFETY: the C library returns this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` points to an aligned integer that belongs to this thread.
    let before = unsafe { errno.read() };
    TOGGLES.fetch_add(1, Ordering::AcqRel);
    if let Some(on_toggle) = ON_TOGGLE.get() {
        on_toggle();
    }
    // SAFETY: `errno` points to this thread's own integer.
    unsafe { errno.write(before) };
}

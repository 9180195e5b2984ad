//! A call when the process exits in the ordinary way.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

static AT_EXIT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
static CALLS_LEFT: AtomicUsize = AtomicUsize::new(0);

/// Has `action` called when the process exits in the ordinary way, on the thread that exits, before
/// the handlers that were registered earlier. May be called again to move it to the front; `action` is
/// then called once per registration. A panic of it ends there.
pub fn call_at_exit(action: fn()) {
    AT_EXIT.store(action as *mut (), Ordering::Release);
    // SAFETY: `at_exit` is a function for ever: the library is never unloaded (see `loaded::stay`).
    if unsafe { libc::atexit(at_exit) } == 0 {
        CALLS_LEFT.fetch_add(1, Ordering::AcqRel);
    }
}

/// How often the action of [`call_at_exit`] will still be called after the call that is under way.
pub fn calls_left() -> usize {
    CALLS_LEFT.load(Ordering::Acquire)
}

extern "C" fn at_exit() {
    CALLS_LEFT.fetch_sub(1, Ordering::AcqRel);
    let action = AT_EXIT.load(Ordering::Acquire);
    if action.is_null() {
        return;
    }
    // SAFETY: only `call_at_exit` stores here, and what it stores is a `fn()`.
    let action: fn() = unsafe { std::mem::transmute(action) };
    // A panic must not reach the C library.
    let _ = std::panic::catch_unwind(action);
}

//! Calls when the process exits in the ordinary way: by `exit` or a return from `main`, and by `quick_exit`.
//!
//! Before glibc 2.41 several threads may be in `exit` at once. Each handler runs on one of them, and whoever finds
//! none left ends the process, whatever the others are doing. So as long as one of ours has not done, it is registered
//! anew by each thread that it runs on: every other finds one, and waits in it as well.

use std::sync::OnceLock;

/// So many threads may come before the first of them has registered the handler anew. Few: where there are more than
/// 32 in all, glibc loses its way when several threads exit.
const AT_ONCE: usize = 4;

static EARLY: Action = Action::none();
static LATE: Action = Action::none();

/// What to do, and whether it is done.
#[derive(Clone, Copy)]
pub struct Call {
    /// Does it, or waits until another thread has. Called several times.
    pub action: fn(),
    /// Whether it was done.
    pub is_done: fn() -> bool,
}

struct Action(OnceLock<Call>);

impl Action {
    const fn none() -> Self {
        Self(OnceLock::new())
    }

    fn call(&self, register: fn()) {
        let Some(call) = self.0.get() else { return };
        if !(call.is_done)() {
            register();
        }
        // A panic must not reach the C library.
        let _ = std::panic::catch_unwind(call.action);
    }
}

unsafe extern "C" {
    fn at_quick_exit(action: extern "C" fn()) -> libc::c_int;
}

/// Has `call` made when the process exits, on the thread that exits, after the handlers that are registered later.
pub fn call_at_exit(call: Call) {
    if LATE.0.set(call).is_ok() {
        (0..AT_ONCE).for_each(|_| {
            register_late();
            register_quick();
        });
    }
}

/// Has `call` made before the handlers that were registered so far.
pub fn call_early_at_exit(call: Call) {
    if EARLY.0.set(call).is_ok() {
        (0..AT_ONCE).for_each(|_| register_early());
    }
}

/// Ends the process as `exit(0)` does, on the calling thread.
pub fn exit() -> ! {
    // SAFETY: whoever calls this has decided that the process ends.
    unsafe { libc::exit(0) }
}

fn register_late() {
    // SAFETY: a function for ever: the library is never unloaded (see `loaded::stay`).
    unsafe { libc::atexit(late) };
}

fn register_early() {
    // SAFETY: as above.
    unsafe { libc::atexit(early) };
}

fn register_quick() {
    // SAFETY: as above.
    unsafe { at_quick_exit(quick) };
}

extern "C" fn late() {
    LATE.call(register_late);
}

extern "C" fn early() {
    EARLY.call(register_early);
}

extern "C" fn quick() {
    LATE.call(register_quick);
}

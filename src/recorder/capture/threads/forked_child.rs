//! Sets gpuflame up, or keeps it off, in forked children. A child has a copy of its parent's memory, but only the
//! thread that forked. If another thread of the parent held a lock during the fork, that lock stays locked in the
//! child. If another thread was writing data, that data stays half written.
//!
//! If the parent has a session, the child is not recorded, because it cannot use the parent's driver state and has no
//! collector thread. If the parent has no session, the child may start to use CUDA itself, and keeps the names and open
//! ranges that it inherited. In both cases the child never waits for a lock of gpuflame that another thread of the
//! parent may have held.
//!
//! `fork` runs gpuflame's fork handler in the child, but other ways to fork (`_Fork`, the bare system call) run no
//! handler. Therefore the word that states whether gpuflame may run (`control::lifecycle`) is on a page that the kernel
//! zeroes in children. Code that reads the word in a child finds zero. The functions of gpuflame that need no session
//! then initialise the word again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::lifecycle;
use gpuflame_cupti::tracer::errno;
use gpuflame_os::{fork_hooks, pinning};

use super::thread;

/// Whether this process or a parent has ever requested a session, even if the session failed.
static SESSION_BEGUN: AtomicBool = AtomicBool::new(false);

/// Makes forked children distinguishable from this process, and keeps gpuflame's library loaded so that its fork
/// handler can be called. Call this function before anything can be recorded or named. Repeated calls have no effect.
pub fn install_handler() {
    // This flag is not a `Once`, because a child that was forked while a thread of the parent was initialising a `Once`
    // would wait for that thread forever.
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    if IS_INSTALLED.swap(true, Ordering::AcqRel) {
        return;
    }
    pinning::pin_library();
    // SAFETY: `lifecycle::page()` consists of whole pages that contain only one atomic word of gpuflame, for which zero
    // is a valid value.
    if unsafe { fork_hooks::wipe_on_fork(lifecycle::page()) } {
        lifecycle::note_children_find_zeroes();
    }
    thread::prepare();
    fork_hooks::on_fork_in_child(on_fork);
}

/// Fork handler, which runs in the child. The handler waits for no lock and allocates nothing.
extern "C" fn on_fork() {
    // True if no thread has set up the child yet, or if the kernel does not zero the page.
    if lifecycle::claim_inherited() || !lifecycle::is_over() {
        errno::preserve(decide_in_child);
    }
}

/// Notes that a session is requested. Call this function before taking any lock of the session, because a child that
/// inherits this note takes none of these locks.
pub fn note_session_begin() {
    install_handler();
    SESSION_BEGUN.store(true, Ordering::SeqCst);
}

/// Whether this process or a parent has ever requested a session.
pub fn session_has_begun() -> bool {
    SESSION_BEGUN.load(Ordering::SeqCst)
}

/// Whether gpuflame must not run in this process any more. In a forked child that may use gpuflame, sets gpuflame up
/// first.
#[inline]
pub fn is_over() -> bool {
    lifecycle::is_over() && !may_continue()
}

#[cold]
fn may_continue() -> bool {
    lifecycle::claim_inherited() && decide_in_child()
}

/// Decides whether gpuflame may run in this child, and if so sets it up. No thread of the child except the calling
/// thread can have a thread state. The calling thread has no state either if it was created in the child.
fn decide_in_child() -> bool {
    if session_has_begun() || thread::is_inside() {
        lifecycle::end();
        return false;
    }
    thread::continue_in_child();
    lifecycle::set_alive();
    true
}

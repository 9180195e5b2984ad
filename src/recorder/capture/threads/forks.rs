//! Forked children. A child has a copy of its parent's memory but only one of its parent's threads. A lock that another
//! thread of the parent held stays locked in the child permanently, and data that another thread had half written stays
//! half written.
//!
//! If the parent has a session, its child is not recorded, because the child cannot use the parent's driver state, and
//! our collector thread does not exist in the child. If the parent has no session, the child may start to use CUDA
//! itself, and keeps the names and open ranges that it inherited. In both cases the child never waits for a lock of
//! ours that another thread of the parent may have held.
//!
//! `fork` runs a handler of ours in the child; other ways to fork (`_Fork`, the bare system call) run no handler. So
//! the word that decides whether gpuflame may run (`control::lifecycle`) is on a page that the kernel zeroes in children.
//! Code that reads the word in a child finds it cleared, and the functions of ours that need no session initialise it
//! again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::lifecycle;
use gpuflame_cupti::tracer::errno;
use gpuflame_os::{fork, pinning};

use super::thread;

/// Whether a session was ever requested, even if it failed.
static SESSION_BEGUN: AtomicBool = AtomicBool::new(false);

/// Starts to distinguish forked children from this process, and keeps this library loaded so that the fork handler
/// can be called. Call before anything can be recorded or named; repeated calls have no effect.
pub fn install_handler() {
    // This flag is not a `Once`, because a child that was forked while a `Once` is being initialised would wait for it
    // forever.
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    if IS_INSTALLED.swap(true, Ordering::AcqRel) {
        return;
    }
    pinning::pin_library();
    // SAFETY: `lifecycle::page()` consists of whole pages that contain only one atomic of ours, for which zero is a valid
    // value.
    if unsafe { fork::wipe_on_fork(lifecycle::page()) } {
        lifecycle::note_children_find_zeroes();
    }
    thread::prepare();
    fork::on_fork_in_child(on_fork);
}

/// Fork handler that runs in a child. It waits for no lock and allocates nothing.
extern "C" fn on_fork() {
    // True if the child has not been claimed yet, or if the kernel does not zero the page.
    if lifecycle::claim_inherited() || !lifecycle::is_over() {
        errno::preserve(decide_in_child);
    }
}

/// Notes that a session is requested. Call before taking any lock of the session, because a child that finds this note
/// takes none of these locks.
pub fn note_session_begin() {
    install_handler();
    SESSION_BEGUN.store(true, Ordering::SeqCst);
}

/// Whether a session was ever requested.
pub fn session_has_begun() -> bool {
    SESSION_BEGUN.load(Ordering::SeqCst)
}

/// Whether gpuflame's code must not run any more. If the caller is in a child that may continue, this function
/// re-initialises the child.
#[inline]
pub fn is_over() -> bool {
    lifecycle::is_over() && !may_continue()
}

#[cold]
fn may_continue() -> bool {
    lifecycle::claim_inherited() && decide_in_child()
}

/// Decides whether this child continues. At most one thread of the child has a state: the calling thread. If the child
/// itself created the calling thread, no thread has one.
fn decide_in_child() -> bool {
    if session_has_begun() || thread::is_inside() {
        lifecycle::end();
        return false;
    }
    thread::continue_in_child();
    lifecycle::set_alive();
    true
}

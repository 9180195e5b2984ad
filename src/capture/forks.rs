//! Forked children. A child has its parent's memory and one of its threads: locks that another thread held, and data
//! that it had half written, stay that way permanently.
//!
//! If the parent has a session, its child is not recorded: the child cannot use the parent's driver state, and our
//! collector thread does not exist there. If the parent has no session, the child may start to use CUDA itself, and
//! keeps the names and open ranges that it inherited. In either case we wait for no lock of ours that another thread
//! may hold.
//!
//! `fork` runs a handler of ours in the child. Other ways (`_Fork`, the bare system call) run none. So the word that
//! tells whether we may run (`control::life`) is on a page that the kernel zeroes in children: code that reads it in
//! a child finds it cleared, and those of our functions that need no session initialise it again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::life;
use crate::host::{fork, loaded};
use crate::tracer::errno;

use super::thread;

/// Whether a session was ever requested, even if it failed.
static SESSION_BEGUN: AtomicBool = AtomicBool::new(false);

/// Starts to distinguish forked children from this process, and keeps this library loaded so that the fork handler
/// can be called. Call before anything can be recorded or named; repeated calls have no effect.
pub fn watch() {
    // Not a `Once`: a child that was forked during its initialisation would wait for it.
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if IS_WATCHED.swap(true, Ordering::AcqRel) {
        return;
    }
    loaded::stay();
    // SAFETY: whole pages that contain only one atomic of ours, for which zero is valid.
    if unsafe { fork::leave_zeroes(life::page()) } {
        life::children_find_zeroes();
    }
    thread::prepare();
    fork::in_each_child(child);
}

/// Runs in a child. Waits for no lock and allocates nothing.
extern "C" fn child() {
    // The child has not been claimed yet, or its kernel does not zero the page.
    if life::claim_inherited() || !life::is_over() {
        errno::kept(settle);
    }
}

/// Call before taking any lock of the session: a child that finds this flag set takes none of these locks.
pub fn session_begins() {
    watch();
    SESSION_BEGUN.store(true, Ordering::SeqCst);
}

/// Whether a session was ever requested.
pub fn session_has_begun() -> bool {
    SESSION_BEGUN.load(Ordering::SeqCst)
}

/// Whether nothing of gpuflame may run any more. A child that may continue is re-initialised here.
#[inline]
pub fn is_over() -> bool {
    life::is_over() && !goes_on()
}

#[cold]
fn goes_on() -> bool {
    life::claim_inherited() && settle()
}

/// Decides whether this child continues. It has at most one thread with a state: the calling thread, or none if the
/// child created the calling thread.
fn settle() -> bool {
    if session_has_begun() || thread::is_inside() {
        life::end();
        return false;
    }
    thread::go_on_in_child();
    life::renew();
    true
}

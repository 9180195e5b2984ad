//! Forked children. A child has its parent's memory and one of its threads: what another thread held or was about to
//! write, stays so for ever.
//!
//! The child of a process with a session is not looked at: the driver's state is not its own, and our collector did
//! not follow it. The child of a process without one may turn to CUDA itself, and goes on with the names and open ranges
//! that it has. No lock of ours that another thread may hold is waited for in either.
//!
//! `fork` runs a handler of ours in the child. Other ways (`_Fork`, the bare system call) run none. So the word that
//! says whether we may run (`control::life`) lies on a page that the kernel hands to children as zeroes: whoever
//! looks at it in a child finds nobody at home, and those of our functions that need no session make it a home again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::life;
use crate::host::{fork, loaded};
use crate::tracer::errno;

use super::thread;

/// Somebody has asked for a session, whatever became of it.
static SESSION_BEGUN: AtomicBool = AtomicBool::new(false);

/// Has forked children told from this process, from now on, and keeps this library where the handler for that can be
/// called. To be called before anything can be recorded or named; again is no harm.
pub fn watch() {
    // Not a `Once`: a child that was forked meanwhile would wait for it.
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if IS_WATCHED.swap(true, Ordering::AcqRel) {
        return;
    }
    loaded::stay();
    // SAFETY: whole pages that hold one atomic of ours, which may be zero.
    if unsafe { fork::leave_zeroes(life::page()) } {
        life::children_find_zeroes();
    }
    thread::prepare();
    fork::in_each_child(child);
}

/// In a child. Waits for nothing, and allocates nothing.
extern "C" fn child() {
    // Nobody has looked after it, or its kernel hands out no zeroes.
    if life::claim_inherited() || !life::is_over() {
        errno::kept(settle);
    }
}

/// To be called before any lock of the session is taken: in a child that finds this said, none of them is.
pub fn session_begins() {
    watch();
    SESSION_BEGUN.store(true, Ordering::SeqCst);
}

/// Whether somebody has asked for a session.
pub fn session_has_begun() -> bool {
    SESSION_BEGUN.load(Ordering::SeqCst)
}

/// Whether nothing of ours may run any more. A child that may go on does so from here.
#[inline]
pub fn is_over() -> bool {
    life::is_over() && !goes_on()
}

#[cold]
fn goes_on() -> bool {
    life::claim_inherited() && settle()
}

/// Decides what becomes of this child. It has one thread that is ours to know of: the calling one, or one that the
/// child has made and we have not met.
fn settle() -> bool {
    if session_has_begun() || thread::is_inside() {
        life::end();
        return false;
    }
    thread::go_on_in_child();
    life::renew();
    true
}

//! In a forked child, sets gpuflame up again or keeps it switched off. A child has a copy of its parent's memory, but
//! only one of its parent's threads: the thread that forked. If another thread of the parent held a lock at the fork,
//! that lock stays locked in the child. If another thread of the parent was writing data at the fork, that data stays
//! half written in the child.
//!
//! If the parent has a session, the child is not recorded, because it cannot use the parent's driver state and has no
//! collector thread. If the parent has no session, the child itself may start to use CUDA. The child keeps the names
//! and open ranges that it has inherited. In both cases, the child never waits for a gpuflame lock that another thread
//! of the parent may have held.
//!
//! After `fork`, gpuflame's fork handler runs in the child. If a child is created in another way (`_Fork`, the bare
//! system call), no handler runs. Therefore the word that states whether gpuflame may run (`control::lifecycle`) is on
//! a page that the kernel fills with zeroes in children. In a child, code that reads this word finds zero, which means
//! that the word was not written in this process. If the word is zero, the functions of gpuflame that need no session
//! initialise it again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::lifecycle;
use gpuflame_cupti::tracer::errno;
use gpuflame_os::{fork_hooks, pinning};

use super::thread;

/// Whether this process or one of its ancestors has ever requested a session. This includes sessions that could not be
/// set up.
static SESSION_BEGUN: AtomicBool = AtomicBool::new(false);

/// Lets gpuflame recognise forked children of this process, and keeps gpuflame's library loaded so that its fork
/// handler can always be called. Call this function before anything can be recorded or named. Only the first call has
/// an effect.
pub fn install_handler() {
    // This flag is not a `Once`. If a thread of the parent was initialising a `Once` at the fork, the child would wait
    // for that thread forever.
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    if IS_INSTALLED.swap(true, Ordering::AcqRel) {
        return;
    }
    pinning::pin_library();
    // SAFETY: `lifecycle::page()` consists of whole pages whose only content is one atomic word of gpuflame, for which
    // zero is a valid value.
    if unsafe { fork_hooks::wipe_on_fork(lifecycle::page()) } {
        lifecycle::note_children_find_zeroes();
    }
    thread::prepare();
    fork_hooks::on_fork_in_child(on_fork);
}

/// Fork handler, which runs in the forked child. The handler waits for no lock and allocates nothing.
extern "C" fn on_fork() {
    // The condition is true if gpuflame still has to be set up in the child, or if the kernel does not fill the page
    // with zeroes.
    if lifecycle::claim_inherited() || !lifecycle::is_over() {
        errno::preserve(decide_in_child);
    }
}

/// Notes that a session was requested. Call this function before taking any lock of the session. A child that inherits
/// this note takes none of these locks.
pub fn note_session_begin() {
    install_handler();
    SESSION_BEGUN.store(true, Ordering::SeqCst);
}

/// Whether this process or one of its ancestors has ever requested a session.
pub fn session_has_begun() -> bool {
    SESSION_BEGUN.load(Ordering::SeqCst)
}

/// Whether gpuflame must not run in this process any more. In a forked child that may use gpuflame, first sets gpuflame
/// up.
#[inline]
pub fn is_over() -> bool {
    lifecycle::is_over() && !may_continue()
}

#[cold]
fn may_continue() -> bool {
    lifecycle::claim_inherited() && decide_in_child()
}

/// Decides whether gpuflame may run in this forked child, and sets it up if it may run. In the child, the calling
/// thread is the only thread that can have a thread state. If the calling thread was created after the fork, it has no
/// thread state either.
fn decide_in_child() -> bool {
    if session_has_begun() || thread::is_inside() {
        lifecycle::end();
        return false;
    }
    thread::continue_in_child();
    lifecycle::set_alive();
    true
}

//! Forked children, into which neither the driver's state nor our collector follows.

/// Has `action` called in each child of a fork, on its only thread. It may do nothing but what is allowed
/// there: no lock, no allocation.
pub fn in_each_child(action: extern "C" fn()) {
    // SAFETY: `action` is a function for ever (see `loaded::stay`), and its caller keeps it to what a child may do.
    unsafe { libc::pthread_atfork(None, None, Some(action)) };
}

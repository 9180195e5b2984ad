//! Signals by which a process is asked to end, where the application has left them at their default.
//!
//! Only what the kernel would have done is put off: the thread that takes the signal runs no further, the process
//! dies of the signal, and its parent sees that. What happens in between is the caller's.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use super::actions::{self, SIGNALS};
use super::threads;

/// What to do about them. Both are called by a signal handler, which may interrupt anything: no lock, no memory of the
/// heap, no wait for a thread of the application.
#[derive(Clone, Copy)]
pub struct Listener {
    /// Called for each signal.
    pub came: fn(i32),
    /// Called once on each thread that took one, which is then to wait for the end.
    pub wait: fn(i32) -> !,
}

struct Listening {
    process: u32,
    listener: Listener,
}

static LISTENING: OnceLock<Listening> = OnceLock::new();

/// Threads that wait. More than that wait as well, but each of their signals anew.
static WAITING: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

/// Takes those of [`SIGNALS`] whose action is the default now, or becomes it later; to be called once. In the first process of
/// a container the default is that nothing happens, and nothing is taken.
pub fn listen(listener: Listener) {
    let process = std::process::id();
    if process != 1 && LISTENING.set(Listening { process, listener }).is_ok() {
        actions::take_defaults(on_signal);
    }
}

/// Takes those whose action has become the default since without being seen: to be called where the program is over, and only
/// its exit is left. A process that does not listen takes none.
pub fn listen_again() {
    if LISTENING.get().is_some_and(|listening| listening.process == std::process::id()) {
        actions::take_current_defaults();
    }
}

extern "C" fn on_signal(signal: i32) {
    // A handler of the program's own called this one, which it found installed before. Without us it would have found the
    // default, and called nothing.
    if !actions::is_installed(signal) {
        return;
    }
    // A forked child has our handler, but not our threads.
    let own = LISTENING.get().filter(|listening| listening.process == std::process::id());
    let Some(Listening { listener, .. }) = own else { die(signal) };
    (listener.came)(signal);
    // The thread that waits goes back to waiting.
    if begins_to_wait(threads::number()) {
        let foreign = SIGNALS.iter().filter(|signal| !actions::is_installed(**signal));
        foreign.for_each(|signal| mask(libc::SIG_BLOCK, *signal));
        (listener.wait)(signal);
    }
}

/// False: this thread waits already.
fn begins_to_wait(thread: i32) -> bool {
    if WAITING.iter().any(|place| place.load(Ordering::Acquire) == thread) {
        return false;
    }
    let take =
        |place: &AtomicI32| place.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Acquire).is_ok();
    let _ = WAITING.iter().any(take);
    true
}

fn mask(how: i32, signal: i32) {
    // SAFETY: all-zero is a valid signal set.
    let mut one: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: each writes to `one` or reads it.
    unsafe {
        libc::sigemptyset(&mut one);
        libc::sigaddset(&mut one, signal);
        libc::pthread_sigmask(how, &one, std::ptr::null_mut());
    }
}

/// Ends the process by the default action of a signal that ends processes. May be called in a signal handler.
pub fn die(signal: i32) -> ! {
    actions::restore_default(signal);
    // SAFETY: the signal goes to this very thread; it is taken when it is let through.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), threads::number(), signal) };
    mask(libc::SIG_UNBLOCK, signal);
    // SAFETY: it ends the process; reached only where the application set another action just now.
    unsafe { libc::_exit(128 + signal) }
}

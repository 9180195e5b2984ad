//! Handles the signals that ask a process to end, if the application has left them at their default action.
//!
//! Only the kernel's action is delayed: the thread that takes the signal runs no further, the process dies of the
//! signal, and its parent sees that. The caller decides what happens in between.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use super::actions::{self, SIGNALS};
use super::threads;

/// Callbacks for these signals. Both run in a signal handler, which may interrupt any code: they must take no lock, use
/// no heap memory, and not wait for a thread of the application.
#[derive(Clone, Copy)]
pub struct Listener {
    /// Called for each signal.
    pub came: fn(i32),
    /// Called once on each thread that took a signal, and waits there for the process's end.
    pub wait: fn(i32) -> !,
}

struct Listening {
    process: u32,
    listener: Listener,
}

static LISTENING: OnceLock<Listening> = OnceLock::new();

/// Threads that wait. If the table is full, further threads wait as well, but again for each of their signals.
static WAITING: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

/// Handles those of [`SIGNALS`] whose action is the default now or becomes it later. Call once. In the first process of
/// a container the default is to ignore them, and none is handled.
pub fn listen(listener: Listener) {
    let process = std::process::id();
    if process != 1 && LISTENING.set(Listening { process, listener }).is_ok() {
        actions::take_defaults(on_signal);
    }
}

/// Handles those signals whose action has become the default without being noticed. Call when the program is over and
/// only its exit is left. Has no effect in a process that does not listen.
pub fn listen_again() {
    if LISTENING.get().is_some_and(|listening| listening.process == std::process::id()) {
        actions::take_current_defaults();
    }
}

extern "C" fn on_signal(signal: i32) {
    // One of the program's own handlers called this one, which it found installed before. Without us it would have
    // found the default action, and called nothing.
    if !actions::is_installed(signal) {
        return;
    }
    // A forked child has our handler, but not our threads.
    let own = LISTENING.get().filter(|listening| listening.process == std::process::id());
    let Some(Listening { listener, .. }) = own else { die(signal) };
    (listener.came)(signal);
    // A thread that is waiting already returns to its wait.
    if begins_to_wait(threads::number()) {
        let foreign = SIGNALS.iter().filter(|signal| !actions::is_installed(**signal));
        foreign.for_each(|signal| mask(libc::SIG_BLOCK, *signal));
        (listener.wait)(signal);
    }
}

/// Notes that the thread waits. False: it is waiting already.
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
    // SAFETY: each call writes to `one` or reads it.
    unsafe {
        libc::sigemptyset(&mut one);
        libc::sigaddset(&mut one, signal);
        libc::pthread_sigmask(how, &one, std::ptr::null_mut());
    }
}

/// Ends the process by the default action of a signal that ends processes. May be called in a signal handler.
pub fn die(signal: i32) -> ! {
    actions::restore_default(signal);
    // SAFETY: the signal is sent to the calling thread, and delivered once it is unblocked.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), threads::number(), signal) };
    mask(libc::SIG_UNBLOCK, signal);
    // Not `_exit`, which is interposed in a forked worker.
    // SAFETY: ends the process; only reached if the application has set another action just now.
    unsafe { libc::syscall(libc::SYS_exit_group, 128 + signal) };
    threads::stop()
}

//! Handles the signals that ask a process to end, if the application has left them at their default action.
//!
//! This module only delays the kernel's action: the thread that receives the signal executes nothing more of the
//! application, the process dies of the signal, and the parent process sees this signal as the cause. The caller of
//! [`listen`] decides what happens before the process dies.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use super::actions::{self, SIGNALS};
use super::threads;

/// Callbacks for these signals. Both run in a signal handler, which may interrupt any code: they must take no lock, use
/// no heap memory, and not wait for a thread of the application.
#[derive(Clone, Copy)]
pub struct Listener {
    /// Called for each of these signals that arrives.
    pub came: fn(i32),
    /// Called once on each thread that received a signal. Waits on that thread for the end of the process.
    pub wait: fn(i32) -> !,
}

struct Listening {
    process: u32,
    listener: Listener,
}

static LISTENING: OnceLock<Listening> = OnceLock::new();

/// Numbers of the threads that wait in [`Listener::wait`]. Threads that do not fit into the table wait as well, but
/// each further signal on such a thread calls [`Listener::wait`] again.
static WAITING: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

/// Handles each of [`SIGNALS`] whose action is the default now or becomes the default later. Call once. In the first
/// process of a container the default is to ignore these signals, and none of them is handled.
pub fn listen(listener: Listener) {
    let process = std::process::id();
    if process != 1 && LISTENING.set(Listening { process, listener }).is_ok() {
        actions::take_defaults(on_signal);
    }
}

/// Handles signals whose action has become the default by a call that is not interposed. Call when the program has
/// ended and only its exit remains. Has no effect in a process that does not listen.
pub fn listen_again() {
    if LISTENING.get().is_some_and(|listening| listening.process == std::process::id()) {
        actions::take_current_defaults();
    }
}

extern "C" fn on_signal(signal: i32) {
    // One of the program's own handlers has called this handler, which the program had found installed earlier. Without
    // gpuflame the program would have found the default action, and would have called nothing.
    if !actions::is_installed(signal) {
        return;
    }
    // A forked child has inherited our handler, but not our threads, so it dies at once.
    let own = LISTENING.get().filter(|listening| listening.process == std::process::id());
    let Some(Listening { listener, .. }) = own else { die(signal) };
    (listener.came)(signal);
    // A thread that is waiting already returns from this handler to its wait.
    if begins_to_wait(threads::number()) {
        let foreign = SIGNALS.iter().filter(|signal| !actions::is_installed(**signal));
        foreign.for_each(|signal| mask(libc::SIG_BLOCK, *signal));
        (listener.wait)(signal);
    }
}

/// Notes that the thread waits. Returns false if the thread is waiting already.
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
    // `_exit` is not called, because it is interposed in a forked worker. SAFETY: the call ends the process. This line
    // is only reached if the application has set another action just now.
    unsafe { libc::syscall(libc::SYS_exit_group, 128 + signal) };
    threads::stop()
}

//! Handles the signals that ask a process to end, if the application has left them at their default action.
//!
//! This module only delays the kernel's action: the thread that receives the signal executes nothing more of the
//! application, the process dies of the signal, and the parent process sees this signal as the cause. The caller of
//! [`handle_fatal_signals`] decides what happens before the process dies.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use super::signal_actions::{self, SIGNALS};
use crate::process::threads;

/// Callbacks for these signals. Both run in a signal handler, which may interrupt any code: they must take no lock, use
/// no heap memory, and not wait for a thread of the application.
#[derive(Clone, Copy)]
pub struct FatalSignalHandler {
    /// Called for each of these signals that arrives.
    pub on_signal: fn(i32),
    /// Called once on each thread that received a signal. Waits on that thread for the end of the process.
    pub wait: fn(i32) -> !,
}

struct Installed {
    process: u32,
    handler: FatalSignalHandler,
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();

/// Numbers of the threads that wait in [`FatalSignalHandler::wait`]. Threads that do not fit into the table wait as
/// well, but each further signal on such a thread calls [`FatalSignalHandler::wait`] again.
static WAITING_THREADS: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

/// Handles each of [`SIGNALS`] whose action is the default now or becomes the default later. Call once. In the first
/// process of a container the default is to ignore these signals, and none of them is handled.
pub fn handle_fatal_signals(handler: FatalSignalHandler) {
    let process = std::process::id();
    if process != 1 && INSTALLED.set(Installed { process, handler }).is_ok() {
        signal_actions::handle_default_signals(on_signal);
    }
}

/// Handles signals whose action has become the default by a call that is not interposed. Call when the program has
/// ended and only its exit remains. Has no effect in a process that has not called [`handle_fatal_signals`].
pub fn handle_new_defaults() {
    if INSTALLED.get().is_some_and(|installed| installed.process == std::process::id()) {
        signal_actions::handle_current_defaults();
    }
}

extern "C" fn on_signal(signal: i32) {
    // One of the program's own handlers has called this handler, which the program had found installed earlier. Without
    // gpuflame the program would have found the default action, and would have called nothing.
    if !signal_actions::is_installed(signal) {
        return;
    }
    // A forked child has inherited our handler, but not our threads, so it dies at once.
    let own = INSTALLED.get().filter(|installed| installed.process == std::process::id());
    let Some(Installed { handler, .. }) = own else { die(signal) };
    (handler.on_signal)(signal);
    // A thread that is waiting already returns from this handler to its wait.
    if note_waiting(threads::current_id()) {
        let foreign = SIGNALS.iter().filter(|signal| !signal_actions::is_installed(**signal));
        foreign.for_each(|signal| change_mask(libc::SIG_BLOCK, *signal));
        (handler.wait)(signal);
    }
}

/// Notes that the thread waits. Returns false if the thread is waiting already.
fn note_waiting(thread: i32) -> bool {
    if WAITING_THREADS.iter().any(|place| place.load(Ordering::Acquire) == thread) {
        return false;
    }
    let take =
        |place: &AtomicI32| place.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Acquire).is_ok();
    let _ = WAITING_THREADS.iter().any(take);
    true
}

fn change_mask(how: i32, signal: i32) {
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
    signal_actions::restore_default(signal);
    // SAFETY: the signal is sent to the calling thread, and delivered once it is unblocked.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), threads::current_id(), signal) };
    change_mask(libc::SIG_UNBLOCK, signal);
    // `_exit` is not called, because it is interposed in a forked worker. SAFETY: the call ends the process. This line
    // is only reached if the application has set another action just now.
    unsafe { libc::syscall(libc::SYS_exit_group, 128 + signal) };
    threads::park_forever()
}

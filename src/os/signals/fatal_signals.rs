//! Handles signals that ask a process to end (such as SIGTERM), if the application has left them at their default
//! action.
//!
//! The handler only delays the end of the process. The thread that receives the signal executes no more code of the
//! application. Later the process dies of the same signal, so that its parent process sees this signal as the cause of
//! death. The callbacks passed to [`handle_fatal_signals`] run before the process dies.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use super::signal_actions::{self, SIGNALS};
use crate::process::threads;

/// Callbacks for signals that end the process. Both callbacks run in a signal handler, which may interrupt any code.
/// Therefore the callbacks must not take a lock, use heap memory or wait for a thread of the application.
#[derive(Clone, Copy)]
pub struct FatalSignalHandler {
    /// Function that is called with the signal's number each time that a signal which ends the process arrives.
    pub on_signal: fn(i32),
    /// Function that is called once on each thread that has received a signal which ends the process. This function
    /// must block the thread until the process ends.
    pub wait: fn(i32) -> !,
}

struct Installed {
    process: u32,
    handler: FatalSignalHandler,
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();

/// Ids of the threads that are in [`FatalSignalHandler::wait`]. If the table is full, further threads also wait, but
/// each later signal on a thread without an entry calls [`FatalSignalHandler::wait`] again.
static WAITING_THREADS: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

/// Installs the handler for each of [`SIGNALS`] whose action is the default now. If the program later sets the action
/// of such a signal to the default, also installs the handler then. Call this function once. In the first process of a
/// container, this function does nothing, because the kernel ignores these signals there by default.
pub fn handle_fatal_signals(handler: FatalSignalHandler) {
    let process = std::process::id();
    if process != 1 && INSTALLED.set(Installed { process, handler }).is_ok() {
        signal_actions::handle_default_signals(on_signal);
    }
}

/// Also installs the handler for signals that the program has set to the default by a call that is not interposed. Call
/// this function when the program has ended and only its exit remains. If the process has not called
/// [`handle_fatal_signals`], this function has no effect.
pub fn handle_new_defaults() {
    if INSTALLED.get().is_some_and(|installed| installed.process == std::process::id()) {
        signal_actions::handle_current_defaults();
    }
}

extern "C" fn on_signal(signal: i32) {
    // If gpuflame's handler is not installed, one of the program's own handlers has called it, because the program
    // found gpuflame's handler earlier and saved its address. Return without effect, because without gpuflame the
    // program would have found the default action and would have called nothing.
    if !signal_actions::is_installed(signal) {
        return;
    }
    // A forked child inherits gpuflame's handler but none of gpuflame's threads. Therefore the signal ends the child
    // immediately.
    let own = INSTALLED.get().filter(|installed| installed.process == std::process::id());
    let Some(Installed { handler, .. }) = own else { die(signal) };
    (handler.on_signal)(signal);
    // If this thread was already in `wait`, the signal has interrupted `wait`, and this handler returns to `wait`.
    if note_waiting(threads::current_id()) {
        let foreign = SIGNALS.iter().filter(|signal| !signal_actions::is_installed(**signal));
        foreign.for_each(|signal| change_mask(libc::SIG_BLOCK, *signal));
        (handler.wait)(signal);
    }
}

/// Notes that the thread is about to wait. Returns false if the thread is already waiting.
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
    // SAFETY: each call only reads or writes the local variable `one`.
    unsafe {
        libc::sigemptyset(&mut one);
        libc::sigaddset(&mut one, signal);
        libc::pthread_sigmask(how, &one, std::ptr::null_mut());
    }
}

/// Ends the process with a signal: restores the signal's default action, and sends the signal to the calling thread.
/// This function may be called in a signal handler.
pub fn die(signal: i32) -> ! {
    signal_actions::restore_default(signal);
    // SAFETY: the signal is sent to the calling thread, and delivered as soon as it is unblocked.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), threads::current_id(), signal) };
    change_mask(libc::SIG_UNBLOCK, signal);
    // `_exit` is not called, because it is interposed in a forked worker. SAFETY: the call ends the process. This line
    // is only reached if the application has just set another action.
    unsafe { libc::syscall(libc::SYS_exit_group, 128 + signal) };
    threads::park_forever()
}

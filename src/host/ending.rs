//! Signals by which a process is asked to end, where the application has left them at their default.
//!
//! Only what the kernel would have done is put off: the thread that takes the signal runs no further, the process
//! dies of the signal, and its parent sees that. What happens in between is the caller's.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use super::threads;

/// By a terminal, by `kill` and whoever runs jobs, and by a terminal that goes away.
pub const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

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

/// Takes those of [`SIGNALS`] whose action is the default now; to be called once. In the first process of a container
/// the default is that nothing happens, and nothing is taken.
pub fn listen(listener: Listener) {
    let process = std::process::id();
    if process != 1 && LISTENING.set(Listening { process, listener }).is_ok() {
        take_those_at_default();
    }
}

/// Takes those whose action has become the default since: to be called where the program is over, and only its exit is
/// left. Whoever does not listen takes none.
pub fn listen_again() {
    if LISTENING.get().is_some_and(|listening| listening.process == std::process::id()) {
        take_those_at_default();
    }
}

fn take_those_at_default() {
    for signal in SIGNALS {
        if action_of(signal).is_some_and(|action| action.sa_sigaction == libc::SIG_DFL) {
            take(signal);
        }
    }
}

/// Puts the handler on a signal.
fn take(signal: i32) {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(i32) = on_signal;
    action.sa_sigaction = handler as usize;
    // A repeat is to be seen by the thread that waits, where there is no other. Handlers of the application are not
    // to run on it any more.
    action.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: both write to the mask, which is ours.
    unsafe {
        libc::sigfillset(&mut action.sa_mask);
        for ours in SIGNALS {
            libc::sigdelset(&mut action.sa_mask, ours);
        }
    }
    // SAFETY: the handler is a function for ever (see `loaded::stay`) and of the type that the flags say.
    unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
}

fn action_of(signal: i32) -> Option<libc::sigaction> {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without an action to set, the call only writes to `action`.
    (unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } == 0).then_some(action)
}

extern "C" fn on_signal(signal: i32) {
    // A forked child has our handler, but not our threads.
    let own = LISTENING.get().filter(|listening| listening.process == std::process::id());
    let Some(Listening { listener, .. }) = own else { die(signal) };
    (listener.came)(signal);
    // The thread that waits goes back to waiting.
    if begins_to_wait(threads::number()) {
        let handler: extern "C" fn(i32) = on_signal;
        let is_foreign =
            |signal: &i32| action_of(*signal).is_none_or(|action| action.sa_sigaction != handler as usize);
        SIGNALS.iter().filter(|signal| is_foreign(signal)).for_each(|signal| mask(libc::SIG_BLOCK, *signal));
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
    // SAFETY: all-zero is a valid `sigaction`: the default action.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a valid action, and the signal goes to this very thread; it is taken when it is let through.
    unsafe {
        libc::sigaction(signal, &default, std::ptr::null_mut());
        libc::syscall(libc::SYS_tgkill, libc::getpid(), threads::number(), signal);
    }
    mask(libc::SIG_UNBLOCK, signal);
    // SAFETY: it ends the process; reached only where the application set another action just now.
    unsafe { libc::_exit(128 + signal) }
}

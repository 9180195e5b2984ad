//! Runs actions when the process exits normally: by `exit`, by a return from `main`, or by `quick_exit`. In a forked
//! worker process, `_exit` counts as a normal exit too, because worker processes end by `_exit`.
//!
//! Before glibc 2.41, several threads may be in `exit` at the same time. Each exit handler runs on one of the exiting
//! threads. A thread that finds no more handlers ends the process, even if other threads are still running handlers.
//! Therefore, until gpuflame's action is done, each thread that runs gpuflame's handler first registers the handler
//! again. Therefore every other exiting thread finds the handler, and waits in this handler until the action is done.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::interpose::{self, Interposition};
use super::process_liveness;

/// Number of times that gpuflame registers its exit handler initially. At most this many threads may call `exit` before
/// the first of them has registered the handler again. The number is small because glibc fails if several threads exit
/// and more than 32 handlers are registered in total.
const INITIAL_REGISTRATIONS: usize = 4;

static EARLY_ACTION: RegisteredAction = RegisteredAction::none();
static LATE_ACTION: RegisteredAction = RegisteredAction::none();

/// An action that runs when the process exits.
#[derive(Clone, Copy)]
pub struct ExitAction {
    /// Performs the action, or waits until another thread has performed it. This function may be called several times.
    pub action: fn(),
    /// Whether the action is done.
    pub is_done: fn() -> bool,
}

struct RegisteredAction(OnceLock<ExitAction>);

impl RegisteredAction {
    const fn none() -> Self {
        Self(OnceLock::new())
    }

    fn call(&self, register: fn()) {
        let Some(call) = self.0.get() else { return };
        if !(call.is_done)() {
            register();
        }
        // A panic must not reach the C library.
        let _ = std::panic::catch_unwind(call.action);
    }
}

unsafe extern "C" {
    fn at_quick_exit(action: extern "C" fn()) -> libc::c_int;
}

/// Registers `call` to run on the exiting thread when the process exits. Exit handlers that are registered later run
/// before `call`.
pub fn call_at_exit(call: ExitAction) {
    if LATE_ACTION.0.set(call).is_ok() {
        (0..INITIAL_REGISTRATIONS).for_each(|_| {
            register_late();
            register_quick();
        });
    }
}

/// Registers `call` to run when the process exits. Exit handlers that were registered earlier run after `call`.
pub fn call_early_at_exit(call: ExitAction) {
    if EARLY_ACTION.0.set(call).is_ok() {
        (0..INITIAL_REGISTRATIONS).for_each(|_| register_early());
    }
}

/// Action that runs in a forked worker process before it ends by `_exit`.
struct WorkerExit {
    process: libc::pid_t,
    action: fn(),
}

static WORKER: OnceLock<WorkerExit> = OnceLock::new();
/// Address of the C library's `_exit`.
static ORIGINAL_EXIT: AtomicUsize = AtomicUsize::new(0);

/// In a forked worker process, interposes on `_exit`, so that `action` is called before the process ends. (Python's
/// `multiprocessing` ends its workers by `_exit`.) `action` may be called in a signal handler, and while the program
/// holds any lock. Call this function once. In a process that is not a forked worker, this function does nothing,
/// because a program that calls `_exit` there wants to end immediately.
pub fn call_at_worker_exit(action: fn()) {
    let name = c"_exit";
    // SAFETY: the name is a C string; the result is null or the address of `_exit`.
    let theirs = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.addr();
    let worker = WorkerExit { process: process_id(), action };
    if theirs == 0 || !process_liveness::is_forked() || WORKER.set(worker).is_err() {
        return;
    }
    ORIGINAL_EXIT.store(theirs, Ordering::Release);
    let ours: unsafe extern "C" fn(c_int) -> ! = exit_worker;
    let places =
        ["_exit", "_Exit"].map(|name| Interposition { name, original: theirs, replacement: ours as usize });
    // If interposing fails, the worker process ends without the action, and its last checkpoint file remains.
    let _ = interpose::replace_functions(&places);
}

/// Returns the process id. Asks the kernel directly, because the C library may return the parent's id in a child
/// created by `vfork`.
fn process_id() -> libc::pid_t {
    // SAFETY: the call has no preconditions.
    unsafe { libc::syscall(libc::SYS_getpid) as libc::pid_t }
}

/// Replacement for `_exit`. The program calls this function instead of the C library's `_exit`.
unsafe extern "C" fn exit_worker(status: c_int) -> ! {
    let is_worker = |worker: &&WorkerExit| worker.process == process_id();
    // Skip the action on an alternate signal stack, on which crash handlers run. An alternate stack may be too small,
    // and the last checkpoint contains the sums anyway.
    if let Some(worker) = WORKER.get().filter(is_worker).filter(|_| !is_on_alternate_stack()) {
        // A panic must not reach the program.
        let _ = std::panic::catch_unwind(worker.action);
    }
    // SAFETY: the loader returned this address for `_exit`, and this code only runs after the address was stored.
    let theirs = unsafe {
        std::mem::transmute::<usize, unsafe extern "C" fn(c_int) -> !>(ORIGINAL_EXIT.load(Ordering::Acquire))
    };
    // SAFETY: `_exit` accepts any number.
    unsafe { theirs(status) }
}

/// Whether the calling thread runs on its alternate signal stack.
fn is_on_alternate_stack() -> bool {
    // SAFETY: all-zero is a valid `stack_t`.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes the description of the alternate stack to `stack`, and does not change the alternate
    // stack.
    unsafe { libc::sigaltstack(std::ptr::null(), &mut stack) };
    stack.ss_flags & libc::SS_ONSTACK != 0
}

/// Ends the process by calling `exit(0)` on this thread.
pub fn exit() -> ! {
    // SAFETY: the caller has decided to end the process.
    unsafe { libc::exit(0) }
}

fn register_late() {
    // SAFETY: the handler is never unloaded (see `pinning::pin_library`).
    unsafe { libc::atexit(run_late_action) };
}

fn register_early() {
    // SAFETY: the handler is never unloaded (see `pinning::pin_library`).
    unsafe { libc::atexit(run_early_action) };
}

fn register_quick() {
    // SAFETY: the handler is never unloaded (see `pinning::pin_library`).
    unsafe { at_quick_exit(run_at_quick_exit) };
}

extern "C" fn run_late_action() {
    LATE_ACTION.call(register_late);
}

extern "C" fn run_early_action() {
    EARLY_ACTION.call(register_early);
}

extern "C" fn run_at_quick_exit() {
    LATE_ACTION.call(register_quick);
}

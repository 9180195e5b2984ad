//! Sets the actions of the signals that end a process. The action in the kernel may differ from the action that the
//! program sees.
//!
//! gpuflame's handler is installed while the program's action is the default. Some programs, such as uvicorn and
//! CPython, handle a signal, then set the default action, and send the signal to themselves again. Therefore
//! `sigaction` and `signal` are interposed for these signals. With the interposed functions, the program sees the same
//! actions as without gpuflame:
//!
//! ```text
//! the program ...      the kernel gets          the program's view
//! sets the default     our handler              the default, with the flags and mask that it set
//! sets anything else   that                     that
//! asks                                          the kernel's action; the default if that is our handler
//! ```
//!
//! gpuflame does not store which action is set; only the kernel stores it. Therefore gpuflame also respects an action
//! that the program sets by a direct system call, or by a function of the C library that is not interposed. However, a
//! program that queries the action by a call that is not interposed finds gpuflame's handler. If the program later sets
//! its own handler, which calls the handler that the program found, [`is_installed`] returns false, and gpuflame's
//! handler returns without effect.
//!
//! All functions may be called in a signal handler, so they use no lock and no heap memory.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::process::interpose::{self, Interposition};

/// The signals that gpuflame handles. By default, each of these signals ends the process. SIGINT comes from a terminal,
/// SIGTERM from `kill` and job runners, and SIGHUP from a terminal that closes.
pub const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Flag in `sa_flags` that marks the field `sa_restorer` as set. The C library sets this flag, and the kernel returns
/// the flag with the action.
const SA_RESTORER: i32 = 0x0400_0000;

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Signal = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;

/// Address of gpuflame's handler; 0 if no handler is set yet.
static HANDLER: AtomicUsize = AtomicUsize::new(0);
/// Id of the process in which the handler was installed. A forked child inherits the installed handlers, but does not
/// install the handler for further signals.
static OWNER_PROCESS: AtomicU32 = AtomicU32::new(0);
/// Addresses of the C library's functions; 0 while they are not interposed.
static ORIGINAL_SIGACTION: AtomicUsize = AtomicUsize::new(0);
static ORIGINAL_SIGNAL: AtomicUsize = AtomicUsize::new(0);

/// Default action of each of [`SIGNALS`], with the flags and mask that the program set.
static DEFAULT_ACTIONS: [DefaultAction; SIGNALS.len()] = [const { DefaultAction::new() }; SIGNALS.len()];

/// A default action. The flags and the mask of a default action have no effect, but `sigaction` returns them.
struct DefaultAction {
    flags: AtomicI32,
    /// Mask of the signals 1 to 64. The kernel has no other signals.
    mask: AtomicU64,
    restorer: AtomicUsize,
}

impl DefaultAction {
    const fn new() -> Self {
        Self { flags: AtomicI32::new(0), mask: AtomicU64::new(0), restorer: AtomicUsize::new(0) }
    }

    /// Returns the stored default action of a signal that gpuflame handles; `None` for other signals.
    fn for_signal(signal: i32) -> Option<&'static Self> {
        SIGNALS.iter().position(|ours| *ours == signal).map(|at| &DEFAULT_ACTIONS[at])
    }

    fn set(&self, action: &libc::sigaction) {
        self.flags.store(action.sa_flags, Ordering::Relaxed);
        // SAFETY: a signal set starts with a word for the signals 1 to 64.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
        self.mask.store(mask, Ordering::Relaxed);
        self.restorer.store(action.sa_restorer.map_or(0, |restorer| restorer as usize), Ordering::Relaxed);
    }

    /// Stores `action`, a default action that the program has set, so that `sigaction` returns it later.
    fn set_by_program(&self, action: &libc::sigaction, restorer: Option<extern "C" fn()>) {
        let mut kept = *action;
        if restorer.is_some() {
            kept.sa_flags |= SA_RESTORER;
            kept.sa_restorer = restorer;
        }
        for always_delivered in [libc::SIGKILL, libc::SIGSTOP] {
            // SAFETY: the call writes to the mask of a local copy.
            unsafe { libc::sigdelset(&mut kept.sa_mask, always_delivered) };
        }
        self.set(&kept);
    }

    fn get(&self) -> libc::sigaction {
        let mut action = default_action();
        action.sa_flags = self.flags.load(Ordering::Relaxed);
        // SAFETY: a signal set starts with a word for the signals 1 to 64.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write(self.mask.load(Ordering::Relaxed)) };
        let restorer = self.restorer.load(Ordering::Relaxed);
        // SAFETY: `restorer` is 0 (which represents `None`), or the address of a function that was stored earlier.
        action.sa_restorer = unsafe { std::mem::transmute::<usize, Option<extern "C" fn()>>(restorer) };
        action
    }
}

/// Installs `handler` for each of [`SIGNALS`] whose action is the default now. If the program later sets the action of
/// such a signal to the default, also installs the handler then. Call this function once.
pub fn handle_default_signals(handler: extern "C" fn(i32)) {
    HANDLER.store(handler as usize, Ordering::Release);
    OWNER_PROCESS.store(std::process::id(), Ordering::Release);
    handle_current_defaults();
    // Ignore an error of interposing, because the program then still calls the C library's functions.
    let _ = interpose();
}

/// Installs the handler for signals that the program has set to the default by a call that is not interposed.
pub fn handle_current_defaults() {
    for signal in SIGNALS.into_iter().filter(|_| is_active()) {
        let action = current_action(signal).filter(|action| action.sa_sigaction == libc::SIG_DFL);
        if let (Some(action), Some(default)) = (action, DefaultAction::for_signal(signal)) {
            default.set(&action);
            // SAFETY: the action is valid, and its handler is never unloaded (see `pinning::pin_library`).
            unsafe { original_sigaction()(signal, &our_action(), std::ptr::null_mut()) };
        }
    }
}

/// Whether the kernel calls gpuflame's handler for `signal`.
pub fn is_installed(signal: i32) -> bool {
    current_action(signal).is_some_and(|action| is_ours(&action))
}

/// Sets the default action in the kernel, and stops replacing later defaults with gpuflame's handler. Call this
/// function only to end the process.
pub fn restore_default(signal: i32) {
    // After this statement, if a thread of the program sets the default, the kernel gets the default instead of
    // gpuflame's handler.
    let _ = OWNER_PROCESS.compare_exchange(std::process::id(), 0, Ordering::AcqRel, Ordering::Relaxed);
    // SAFETY: the action is valid.
    unsafe { original_sigaction()(signal, &default_action(), std::ptr::null_mut()) };
}

fn is_active() -> bool {
    HANDLER.load(Ordering::Acquire) != 0 && OWNER_PROCESS.load(Ordering::Acquire) == std::process::id()
}

fn is_ours(action: &libc::sigaction) -> bool {
    let handler = HANDLER.load(Ordering::Acquire);
    handler != 0 && action.sa_sigaction == handler
}

fn default_action() -> libc::sigaction {
    // SAFETY: all-zero is a valid `sigaction`: the default action.
    unsafe { std::mem::zeroed() }
}

/// Returns the action that installs gpuflame's handler.
fn our_action() -> libc::sigaction {
    let mut action = default_action();
    action.sa_sigaction = HANDLER.load(Ordering::Acquire);
    // In gpuflame's handler, the thread waits until the process ends. SA_NODEFER and a mask without [`SIGNALS`] let a
    // second of these signals interrupt the waiting thread. Therefore the second signal arrives even if the process has
    // only this thread. All other signals are masked, because the application's handlers must not run on this thread
    // any more.
    action.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: both calls write to the mask of a local action.
    unsafe {
        libc::sigfillset(&mut action.sa_mask);
        for ours in SIGNALS {
            libc::sigdelset(&mut action.sa_mask, ours);
        }
    }
    action
}

fn current_action(signal: i32) -> Option<libc::sigaction> {
    let mut action = default_action();
    // SAFETY: without an action to set, the call only writes to `action`.
    (unsafe { original_sigaction()(signal, std::ptr::null(), &mut action) } == 0).then_some(action)
}

/// Returns the address of the C library's `sigaction`. A call by the name `sigaction` might reach gpuflame's
/// replacement instead.
fn original_sigaction() -> Sigaction {
    match ORIGINAL_SIGACTION.load(Ordering::Acquire) {
        0 => libc::sigaction,
        // SAFETY: the loader returned this address for `sigaction`, which has this type.
        address => unsafe { std::mem::transmute::<usize, Sigaction>(address) },
    }
}

/// Replaces the C library's functions with [`sigaction`] and [`signal`], under all their names.
fn interpose() -> std::io::Result<()> {
    const NAMES: [(&std::ffi::CStr, bool); 5] = [
        (c"sigaction", true),
        (c"__sigaction", true),
        (c"signal", false),
        (c"bsd_signal", false),
        (c"ssignal", false),
    ];
    let find = |name: *const c_char| {
        // SAFETY: the name is a C string; the result is null or an address in the C library.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name) };
        address.addr()
    };
    let (of_action, of_signal) = (find(c"sigaction".as_ptr()), find(c"signal".as_ptr()));
    let (our_action, our_signal): (Sigaction, Signal) = (sigaction, signal);
    if of_action == 0 || of_signal == 0 || of_action == our_action as usize {
        return Ok(());
    }
    ORIGINAL_SIGACTION.store(of_action, Ordering::Release);
    ORIGINAL_SIGNAL.store(of_signal, Ordering::Release);
    let place = |(name, is_action): (&'static std::ffi::CStr, bool)| Interposition {
        name: name.to_str().unwrap_or_default(),
        original: if is_action { of_action } else { of_signal },
        replacement: if is_action { our_action as usize } else { our_signal as usize },
    };
    interpose::replace_functions(&NAMES.map(place)).map(drop)
}

/// Replacement for `sigaction`, which the program calls instead of the C library's function.
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let theirs = original_sigaction();
    let Some(kept) = DefaultAction::for_signal(signal) else {
        // SAFETY: this code passes the caller's arguments unchanged.
        return unsafe { theirs(signal, new, old) };
    };
    // SAFETY: the caller guarantees that the pointer is null or refers to a valid action.
    let new = unsafe { new.as_ref() }.copied();
    let seen = kept.get();
    let mut before = default_action();
    let result = match new {
        Some(new) if new.sa_sigaction == libc::SIG_DFL && is_active() => {
            // SAFETY: the action to set is valid, and the call writes to a local action.
            let result = unsafe { theirs(signal, &our_action(), &mut before) };
            if result == 0 {
                kept.set_by_program(&new, current_restorer(signal));
            }
            result
        }
        Some(new) => {
            // SAFETY: the action to set is null or valid, and the call writes to a local action.
            unsafe { theirs(signal, &new, &mut before) }
        }
        None => {
            // SAFETY: the action to set is null or valid, and the call writes to a local action.
            unsafe { theirs(signal, std::ptr::null(), &mut before) }
        }
    };
    if result == 0 && !old.is_null() {
        // SAFETY: the caller guarantees that `old` has room for an action.
        unsafe { old.write(if is_ours(&before) { seen } else { before }) };
    }
    result
}

/// Returns the function through which signal handlers return. The C library adds this function to each action that it
/// sets.
fn current_restorer(signal: i32) -> Option<extern "C" fn()> {
    current_action(signal)
        .and_then(|action| action.sa_restorer.filter(|_| action.sa_flags & SA_RESTORER != 0))
}

/// Replacement for `signal`, which the program calls instead of the C library's function.
unsafe extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    if handler == libc::SIG_DFL && DefaultAction::for_signal(signal).is_some() && is_active() {
        let (mut new, mut old) = (default_action(), default_action());
        // Set SA_RESTART, as the C library's `signal` does.
        new.sa_flags = libc::SA_RESTART;
        // SAFETY: the call writes to the mask of a local action.
        unsafe { libc::sigaddset(&mut new.sa_mask, signal) };
        // SAFETY: the action to set is valid, and the call writes to a local action.
        let result = unsafe { sigaction(signal, &new, &mut old) };
        return if result == 0 { old.sa_sigaction } else { libc::SIG_ERR };
    }
    // SAFETY: the loader returned this address for `signal`, which has this type, and this code only runs after the
    // address was stored.
    let theirs = unsafe { std::mem::transmute::<usize, Signal>(ORIGINAL_SIGNAL.load(Ordering::Acquire)) };
    // SAFETY: this code passes the caller's arguments unchanged.
    let before = unsafe { theirs(signal, handler) };
    if before != 0 && before == HANDLER.load(Ordering::Acquire) { libc::SIG_DFL } else { before }
}

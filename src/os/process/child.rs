//! Runs a command as a shell does, and returns its exit status. The command uses the same terminal as this process.
//! Signals that are meant for the command are forwarded to it. The command inherits the same state (signal actions,
//! signal mask, descriptors) that this process inherited.
//!
//! ```text
//! start --spawn--> command runs --ends--> signals have their earlier actions again; status
//!                    |      ^
//!             it stops      it is continued
//!                    v      |
//!                  this process stops by the same signal, so that the shell sees a stopped job
//! ```

use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Signals that the terminal sends both to this process and to the command. The command decides how to react to these
/// signals. This process ends only after the command.
const TERMINAL_SIGNALS: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];
/// Signals that other processes send only to this process. These signals are meant for the command, so this process
/// forwards them.
const FORWARDED_SIGNALS: [i32; 5] =
    [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM];
/// Stop signal (SIGTSTP) that the terminal sends both to this process and to the command. This process stops only after
/// the command has stopped.
const TERMINAL_STOP_SIGNAL: i32 = libc::SIGTSTP;
const HANDLED_SIGNALS: [i32; 8] = {
    let [interrupt, quit] = TERMINAL_SIGNALS;
    let [terminate, hang_up, first, second, alarm] = FORWARDED_SIGNALS;
    [interrupt, quit, terminate, hang_up, first, second, alarm, TERMINAL_STOP_SIGNAL]
};
const STANDARD_DESCRIPTORS: [i32; 3] = [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO];
/// Interval in ns between checks whether a stopped command was continued.
const STATE_POLL_INTERVAL_NS: i64 = 50_000_000;

/// Process id of the command; 0 before the command is started and after it has ended.
static CHILD_PROCESS: AtomicI32 = AtomicI32::new(0);
/// Bit mask of the signals that arrived before the command was started and must be forwarded to the command.
static EARLY_SIGNALS: AtomicU64 = AtomicU64::new(0);
/// Bit mask of the signals that this process has received.
static RECEIVED_SIGNALS: AtomicU64 = AtomicU64::new(0);
/// Id of the process that called [`run`]. The signal handler compares this id with the current process id, because the
/// child runs the same handler between fork and exec.
static OWNER_PROCESS: AtomicU32 = AtomicU32::new(0);
/// Bit mask of the signals that the child received between fork and exec.
static SIGNALS_BEFORE_EXEC: AtomicU64 = AtomicU64::new(0);
static WAS_CONTINUED: AtomicBool = AtomicBool::new(false);
static WAS_INTERRUPTED: AtomicBool = AtomicBool::new(false);
static KEEPS_RUNNING: AtomicBool = AtomicBool::new(false);

/// Whether SIGPIPE was ignored when this process started. The original state must be noted early, because Rust's
/// runtime ignores SIGPIPE before `main`, and opens `/dev/null` in place of closed standard descriptors.
static SIGPIPE_IS_IGNORED: AtomicBool = AtomicBool::new(false);
/// Bit mask of the standard descriptors that were closed when this process started.
static CLOSED_DESCRIPTORS: AtomicU32 = AtomicU32::new(0);

/// Notes the inherited state that Rust's runtime is about to change. Call this function from a constructor
/// (`.init_array`) of the program, because constructors run before Rust's runtime starts. If this function is not
/// called, the command gets the default action for SIGPIPE, and `/dev/null` in place of closed standard descriptors.
pub extern "C" fn note_inherited() {
    SIGPIPE_IS_IGNORED.store(
        current_action(libc::SIGPIPE).is_some_and(|action| action.sa_sigaction == libc::SIG_IGN),
        Ordering::Relaxed,
    );
    for number in STANDARD_DESCRIPTORS {
        // SAFETY: F_GETFD accepts any number and takes no pointer.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
            CLOSED_DESCRIPTORS.fetch_or(1 << number, Ordering::Relaxed);
        }
    }
}

/// Starts `command` and waits until it ends. Call this function once per process.
///
/// # Errors
/// Fails if the command could not be started.
pub fn run(command: &mut Command) -> io::Result<ExitStatus> {
    OWNER_PROCESS.store(std::process::id(), Ordering::SeqCst);
    let inherited = InheritedActions::read_current();
    let blocked = SignalMask::block_all();
    // If SIGCHLD were ignored, the kernel would reap the command, and the command's status would be lost.
    set_action(libc::SIGCHLD, libc::SIG_DFL, 0);
    let keeps_running = KEEPS_RUNNING.load(Ordering::SeqCst);
    for signal in
        HANDLED_SIGNALS.into_iter().filter(|signal| *signal != TERMINAL_STOP_SIGNAL || !keeps_running)
    {
        if TERMINAL_SIGNALS.contains(&signal) || inherited.is_default(signal) {
            install_handler(signal);
        }
    }
    let (restored, mask) = (inherited.clone(), blocked.0);
    // SAFETY: the closure only reads atomics and makes system calls that are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            restored.restore_in_child(mask);
            Ok(())
        })
    };
    let spawned = command.spawn();
    if let Ok(child) = &spawned {
        CHILD_PROCESS.store(child.id() as i32, Ordering::SeqCst);
        forward_early_signals(child.id() as i32);
    }
    drop(blocked);
    let ended = spawned.and_then(|mut child| {
        wait_for_end(child.id() as i32);
        // After the command is reaped below, another process may get the command's process id.
        CHILD_PROCESS.store(0, Ordering::SeqCst);
        child.wait()
    });
    inherited.restore(ended.as_ref().ok().copied());
    ended
}

/// Makes this process continue to run while the command is stopped. Call this function if this process itself stops and
/// continues the command.
pub fn keep_running_while_stopped() {
    KEEPS_RUNNING.store(true, Ordering::SeqCst);
}

/// Whether SIGINT arrived while the command was running. (The command itself decides whether SIGINT ends it.)
pub fn was_interrupted() -> bool {
    WAS_INTERRUPTED.load(Ordering::SeqCst)
}

/// Converts a process's status to the number that a shell reports: the exit code, or 128 plus the number of the signal
/// that killed the process.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.unwrap_or(1) as u8
}

/// The signal actions that this process had before [`run`] changed them.
#[derive(Clone)]
struct InheritedActions {
    handled: [Option<libc::sigaction>; HANDLED_SIGNALS.len()],
    child_ended: Option<libc::sigaction>,
}

impl InheritedActions {
    fn read_current() -> Self {
        Self { handled: HANDLED_SIGNALS.map(current_action), child_ended: current_action(libc::SIGCHLD) }
    }

    fn action(&self, signal: i32) -> Option<&libc::sigaction> {
        HANDLED_SIGNALS.iter().position(|handled| *handled == signal).and_then(|at| self.handled[at].as_ref())
    }

    fn is_default(&self, signal: i32) -> bool {
        self.action(signal).is_some_and(|action| action.sa_sigaction == libc::SIG_DFL)
    }

    /// Restores the signal actions, descriptors and signal mask that this process was started with. Call this function
    /// in the child before `exec`.
    fn restore_in_child(&self, mask: libc::sigset_t) {
        for (signal, action) in HANDLED_SIGNALS.iter().zip(&self.handled) {
            restore_action(*signal, action.as_ref());
        }
        restore_action(libc::SIGCHLD, self.child_ended.as_ref());
        if SIGPIPE_IS_IGNORED.load(Ordering::Relaxed) {
            set_action(libc::SIGPIPE, libc::SIG_IGN, 0);
        }
        for number in STANDARD_DESCRIPTORS {
            if CLOSED_DESCRIPTORS.load(Ordering::Relaxed) & 1 << number != 0 {
                close_if_placeholder(number);
            }
        }
        set_mask(&mask);
        let missed = SIGNALS_BEFORE_EXEC.swap(0, Ordering::SeqCst);
        // SAFETY: raise accepts any number, and the actions of the signals are the inherited actions again.
        HANDLED_SIGNALS.iter().filter(|signal| missed & signal_bit(**signal) != 0).for_each(
            |signal| unsafe {
                libc::raise(*signal);
            },
        );
    }

    /// Restores the signal actions after the command has ended, because later signals are meant for this process. The
    /// signal that killed the command is an exception, because it may have been sent to both processes and may still
    /// arrive in this process. If this process has not received that signal yet, the signal has no effect when it
    /// arrives.
    fn restore(&self, ended: Option<ExitStatus>) {
        let fatal = ended.map_or(0, |status| i32::from(exit_code(status)) - 128);
        for (signal, action) in HANDLED_SIGNALS.iter().zip(&self.handled) {
            let is_due =
                *signal == fatal && RECEIVED_SIGNALS.load(Ordering::SeqCst) & signal_bit(*signal) == 0;
            if is_due && self.is_default(*signal) {
                set_action(*signal, do_nothing as *const () as usize, libc::SA_RESETHAND | libc::SA_RESTART);
            } else {
                restore_action(*signal, action.as_ref());
            }
        }
    }
}

/// The calling thread's previous signal mask, which is restored on drop.
struct SignalMask(libc::sigset_t);

impl SignalMask {
    fn block_all() -> Self {
        // SAFETY: all-zero is a valid `sigset_t`.
        let (mut all, mut before) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: both sets are live; sigfillset writes to the first set, and pthread_sigmask writes to the second set.
        unsafe {
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        }
        Self(before)
    }
}

impl Drop for SignalMask {
    fn drop(&mut self) {
        set_mask(&self.0);
    }
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: the set is live, and the call does not write to it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, null_mut()) };
}

/// Closes a standard descriptor that was closed when this process started and that now refers to `/dev/null`, which
/// Rust's runtime has opened in its place. A descriptor that was replaced since then, for example by
/// [`Command::stdin`], stays open.
fn close_if_placeholder(number: i32) {
    // SAFETY: all-zero is a valid `stat`.
    let (mut found, mut placeholder): (libc::stat, libc::stat) = unsafe { std::mem::zeroed() };
    // SAFETY: each call only writes to its `stat`, and the path is a C string.
    let are_known = unsafe {
        libc::fstat(number, &mut found) == 0 && libc::stat(c"/dev/null".as_ptr(), &mut placeholder) == 0
    };
    if are_known && found.st_rdev == placeholder.st_rdev {
        // SAFETY: close accepts any number, and the child does not use the descriptor before `exec`.
        unsafe { libc::close(number) };
    }
}

/// A change of the command's state.
enum StateChange {
    Ended,
    /// The command is stopped. The variant contains the signal that stopped the command.
    Stopped(i32),
}

/// Waits until the process with id `process` has ended, without reaping it. Whenever that process is stopped, this
/// process stops as well, unless [`keep_running_while_stopped`] was called.
fn wait_for_end(process: i32) {
    let stops = if KEEPS_RUNNING.load(Ordering::SeqCst) { 0 } else { libc::WSTOPPED };
    while let Some(StateChange::Stopped(signal)) = wait_for_change(process, stops) {
        stop_with_command(process, signal);
    }
}

/// Waits until the process has ended. If `options` contains WSTOPPED, returns also when the process is stopped. The
/// change is not consumed, so the next wait finds the same change again. Returns `None` if the process cannot be waited
/// for. With WNOHANG, also returns `None` if the process's state has not changed.
fn wait_for_change(process: i32, options: i32) -> Option<StateChange> {
    let options = options | libc::WEXITED | libc::WNOWAIT;
    loop {
        // SAFETY: all-zero is a valid `siginfo_t`.
        let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: waitid writes to `found` only.
        let waited = unsafe { libc::waitid(libc::P_PID, process as u32, &mut found, options) };
        if waited != 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            continue;
        }
        return match (waited, found.si_code) {
            // SAFETY: waitid has filled in the status of a child that changed.
            (0, libc::CLD_STOPPED) => Some(StateChange::Stopped(unsafe { found.si_status() })),
            (0, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) => Some(StateChange::Ended),
            _ => None,
        };
    }
}

/// Stops this process with the signal that stopped the command, until this process or the command is continued.
fn stop_with_command(command: i32, signal: i32) {
    let watcher = spawn_continue_watcher(command);
    let continued = current_action(libc::SIGCONT);
    let stop_key = current_action(TERMINAL_STOP_SIGNAL);
    WAS_CONTINUED.store(false, Ordering::SeqCst);
    set_action(libc::SIGCONT, note_continued as *const () as usize, libc::SA_RESTART);
    set_action(TERMINAL_STOP_SIGNAL, libc::SIG_DFL, 0);
    // Check first whether the command is still stopped, because the shell may already have continued both processes.
    if is_stopped(command) {
        raise(signal);
        // If `signal` has not stopped this process, use SIGSTOP, because the kernel ignores all other stop signals if
        // no shell controls the process group.
        if !WAS_CONTINUED.load(Ordering::SeqCst) && is_stopped(command) {
            raise(libc::SIGSTOP);
        }
    }
    restore_action(TERMINAL_STOP_SIGNAL, stop_key.as_ref());
    restore_action(libc::SIGCONT, continued.as_ref());
    if let Some(watcher) = watcher {
        // SAFETY: kill accepts any two numbers, and waitpid accepts a null status. The helper is a child of this
        // process.
        unsafe {
            libc::kill(watcher, libc::SIGKILL);
            libc::waitpid(watcher, null_mut(), 0);
        }
    }
    if is_stopped(command) {
        if WAS_CONTINUED.load(Ordering::SeqCst) {
            // Continue the command as well, because perhaps only this process was continued.
            send_signal(command, libc::SIGCONT);
        } else {
            // The first process of a container cannot stop itself, so this process waits until the command is
            // continued.
            wait_until_continued(command);
        }
    }
}

/// Waits until a stopped process is continued or has ended. The change is not consumed, so the next wait finds the same
/// change again.
fn wait_until_continued(process: i32) {
    // SAFETY: all-zero is a valid `siginfo_t`.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WCONTINUED | libc::WNOWAIT;
    // SAFETY: waitid writes to `found` only.
    while unsafe { libc::waitid(libc::P_PID, process as u32, &mut found, options) } != 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

fn is_stopped(command: i32) -> bool {
    matches!(wait_for_change(command, libc::WSTOPPED | libc::WNOHANG), Some(StateChange::Stopped(_)))
}

fn raise(signal: i32) {
    // SAFETY: raise accepts any number.
    unsafe { libc::raise(signal) };
}

/// Starts a helper process that watches the stopped command. If the command is continued or killed, the helper
/// continues this process. This process cannot notice that the command was continued, because this process is stopped.
/// Returns `None` if there is no `/proc`, or if no process can be created.
fn spawn_continue_watcher(command: i32) -> Option<i32> {
    // SAFETY: getpid has no preconditions.
    let owner = unsafe { libc::getpid() };
    let stat = std::ffi::CString::new(format!("/proc/{command}/stat")).ok()?;
    let stopped = read_state(&stat)?;
    let blocked = SignalMask::block_all();
    // SAFETY: the child makes only system calls.
    match unsafe { libc::fork() } {
        -1 => None,
        // SAFETY: the child makes only system calls, and `_exit` runs none of this process's exit handlers.
        0 => unsafe {
            let pause = libc::timespec { tv_sec: 0, tv_nsec: STATE_POLL_INTERVAL_NS };
            while libc::getppid() == owner {
                if read_state(&stat).is_some_and(|state| state != stopped) {
                    // Send SIGCONT repeatedly, because the parent process (`owner`) may not have stopped yet. When the
                    // parent process runs again, it kills this helper process.
                    libc::kill(owner, libc::SIGCONT);
                }
                libc::nanosleep(&pause, null_mut());
            }
            libc::_exit(0)
        },
        watcher => {
            drop(blocked);
            Some(watcher)
        }
    }
}

/// Reads the letter that encodes a process's state from `/proc/PID/stat`. The letter `t` (a debugger has stopped the
/// process) is returned as `T`. Allocates nothing.
fn read_state(stat: &std::ffi::CStr) -> Option<u8> {
    let mut text = [0_u8; 256];
    // SAFETY: the path is a C string, and read writes at most the length of `text`.
    let length = unsafe {
        let file = libc::open(stat.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let length = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        usize::try_from(length).ok()?
    };
    // The state follows the process's name, which is in parentheses. The name may contain any characters, including
    // parentheses, so search for the last parenthesis.
    let name_end = text[..length].iter().rposition(|byte| *byte == b')')?;
    text.get(name_end + 2).map(u8::to_ascii_uppercase)
}

fn send_signal(process: i32, signal: i32) {
    // SAFETY: kill accepts any two numbers, and the target is a child of this process that is not reaped yet.
    unsafe { libc::kill(process, signal) };
}

fn forward_early_signals(child: i32) {
    let early = EARLY_SIGNALS.swap(0, Ordering::SeqCst);
    HANDLED_SIGNALS
        .into_iter()
        .filter(|signal| early & signal_bit(*signal) != 0)
        .for_each(|signal| send_signal(child, signal));
}

const fn signal_bit(signal: i32) -> u64 {
    1 << signal
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    if std::process::id() != OWNER_PROCESS.load(Ordering::SeqCst) {
        SIGNALS_BEFORE_EXEC.fetch_or(signal_bit(signal), Ordering::SeqCst);
        return;
    }
    RECEIVED_SIGNALS.fetch_or(signal_bit(signal), Ordering::SeqCst);
    WAS_INTERRUPTED.fetch_or(signal == libc::SIGINT, Ordering::SeqCst);
    // SAFETY: the kernel hands over a valid `siginfo_t`.
    let is_from_process = unsafe { (*info).si_code } <= 0;
    if !is_forwarded(signal, is_from_process) {
        return;
    }
    // SAFETY: errno belongs to this thread. The handler restores errno for the code that the signal interrupted.
    let errno = unsafe { *libc::__errno_location() };
    match CHILD_PROCESS.load(Ordering::SeqCst) {
        0 => drop(EARLY_SIGNALS.fetch_or(signal_bit(signal), Ordering::SeqCst)),
        child => send_signal(child, signal),
    }
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
}

fn is_forwarded(signal: i32, is_from_process: bool) -> bool {
    match signal {
        // A terminal sends SIGINT, SIGQUIT and SIGTSTP to the command as well, so these signals are not forwarded if
        // they come from a terminal. Another process may send these three signals to this process only. Signals from
        // another process are forwarded, because otherwise a parent process could not interrupt the command. If another
        // process signals the whole process group, the command gets the signal twice.
        libc::SIGINT | libc::SIGQUIT | TERMINAL_STOP_SIGNAL => is_from_process,
        // When the terminal closes, the kernel sends SIGHUP either to the command as well or only to the session
        // leader. If the command also received the signal, forwarding is unnecessary. Therefore a signal from the
        // kernel is forwarded only if this process is the session leader. A signal from another process is always
        // forwarded.
        libc::SIGTERM | libc::SIGHUP => is_from_process || leads_session(),
        _ => true,
    }
}

extern "C" fn note_continued(_signal: i32) {
    WAS_CONTINUED.store(true, Ordering::SeqCst);
}

extern "C" fn do_nothing(_signal: i32) {}

/// Whether this process leads the session, as on a terminal of `ssh -t` or of a container. When the terminal closes,
/// the kernel notifies only the process that leads the session.
fn leads_session() -> bool {
    // SAFETY: neither call has preconditions.
    unsafe { libc::getsid(0) == libc::getpid() }
}

fn current_action(signal: i32) -> Option<libc::sigaction> {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without an action to set, the call only writes to `action`.
    (unsafe { libc::sigaction(signal, null(), &mut action) } == 0).then_some(action)
}

fn restore_action(signal: i32, action: Option<&libc::sigaction>) {
    if let Some(action) = action {
        // SAFETY: the kernel returned this action for this signal.
        unsafe { libc::sigaction(signal, action, null_mut()) };
    }
}

/// Installs [`on_signal`] as the handler of a signal.
fn install_handler(signal: i32) {
    set_action(signal, on_signal as *const () as usize, libc::SA_SIGINFO | libc::SA_RESTART);
}

/// Sets the action of a signal. `action` is SIG_DFL, SIG_IGN, or a handler whose type matches `flags`.
fn set_action(signal: i32, action: usize, flags: i32) {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    (new.sa_sigaction, new.sa_flags) = (action, flags);
    // SAFETY: each handler in this file has the type that its flags require, and is async-signal-safe.
    unsafe { libc::sigaction(signal, &new, null_mut()) };
}

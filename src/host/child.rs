//! A command that is run as a shell runs one: on the same terminal, with the signals that are meant for it, and with
//! its status as the answer.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// The terminal sends these to the command as well, which decides: we are there until it ends.
const FROM_TERMINAL: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];
/// These are sent to one process, and are meant for the command.
const PASSED_ON: [i32; 2] = [libc::SIGTERM, libc::SIGHUP];

/// Who gets what is passed on; 0: nobody yet, or nobody any more.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// A signal that came before there was a child; 0: none.
static EARLY: AtomicI32 = AtomicI32::new(0);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static PASSES_INTERRUPTS: AtomicBool = AtomicBool::new(false);

/// Runs `command` to its end. To be called once in a process.
///
/// # Errors
/// It could not be started.
pub fn run(command: &mut Command) -> io::Result<ExitStatus> {
    PASSED_ON.into_iter().filter(|signal| is_default(*signal)).for_each(|signal| act(signal, pass_on));
    let mut child = command.spawn()?;
    FROM_TERMINAL.into_iter().for_each(ignore);
    act(libc::SIGINT, note_interrupt);
    let number = child.id() as i32;
    CHILD.store(number, Ordering::SeqCst);
    match EARLY.swap(0, Ordering::SeqCst) {
        0 => {}
        signal => send(number, signal),
    }
    wait_for_end(number);
    // From here on its number may be another process's.
    CHILD.store(0, Ordering::SeqCst);
    child.wait()
}

/// From now on SIGINT that a process sends to us goes to the command as well: one that is to end both may know only us. (A
/// terminal sends it to all.)
pub fn pass_interrupts_on() {
    PASSES_INTERRUPTS.store(true, Ordering::SeqCst);
}

/// Whether SIGINT came while a command ran: it was the command's to act on.
pub fn was_interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// What a shell says of it: its exit code, or 128 and the number of the signal that it died of.
pub fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.unwrap_or(1) as u8
}

/// Waits until the process has ended, and leaves it to be waited for.
fn wait_for_end(process: i32) {
    loop {
        // SAFETY: all-zero is a valid `siginfo_t`.
        let mut ended: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: waitid writes to `ended` only.
        let waited =
            unsafe { libc::waitid(libc::P_PID, process as u32, &mut ended, libc::WEXITED | libc::WNOWAIT) };
        if waited == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

fn send(process: i32, signal: i32) {
    // SAFETY: kill takes any two numbers; the process is our child, which nobody has waited for.
    unsafe { libc::kill(process, signal) };
}

extern "C" fn pass_on(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands over a valid `siginfo_t`.
    if unsafe { (*info).si_code } > 0 && !leads_session() {
        // The kernel's own, of a terminal whose session has ended: the command gets that too.
        return;
    }
    // SAFETY: errno is this thread's own; it is put back for what the signal interrupted.
    let errno = unsafe { *libc::__errno_location() };
    match CHILD.load(Ordering::SeqCst) {
        0 => EARLY.store(signal, Ordering::SeqCst),
        child => send(child, signal),
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

extern "C" fn note_interrupt(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    INTERRUPTED.store(true, Ordering::SeqCst);
    // SAFETY: the kernel hands over a valid `siginfo_t`.
    let is_from_process = unsafe { (*info).si_code } <= 0;
    let child = CHILD.load(Ordering::SeqCst);
    if is_from_process && child != 0 && PASSES_INTERRUPTS.load(Ordering::SeqCst) {
        send(child, libc::SIGINT);
    }
}

/// Whether a terminal that goes away tells this process alone, as where nothing else runs on it (`ssh -t`, a container's).
fn leads_session() -> bool {
    // SAFETY: neither has preconditions.
    unsafe { libc::getsid(0) == libc::getpid() }
}

fn is_default(signal: i32) -> bool {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without an action to set, the call only writes to `action`.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_DFL
}

fn act(signal: i32, handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)) {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler has the type that the flags say, and calls nothing that a handler may not.
    unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
}

fn ignore(signal: i32) {
    // SAFETY: to ignore a signal needs no handler.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

//! Starts a command. Starts the process of a command, which waits until it is watched and only then executes the
//! command's program. This module also handles signals, and waits until one of several file descriptors becomes
//! readable.

use std::ffi::OsString;
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use gpuflame_model::error::{Error, ErrorKind, Result};

/// A process that was created for a command and waits before it executes the command's program.
#[derive(Debug)]
pub(crate) struct PausedCommand {
    pub(crate) pid: u32,
    go: PipeWriter,
    running: RunningCommand,
}

/// A command that is running.
#[derive(Debug)]
pub(crate) struct RunningCommand {
    /// A pipe whose other end is closed when the command ends.
    over: PipeReader,
    thread: JoinHandle<std::io::Result<ExitStatus>>,
}

/// Starts the process of a command. The process waits before it executes the program of the command.
pub(crate) fn start_paused(words: &[OsString], environment: &[(&str, OsString)]) -> Result<PausedCommand> {
    let (mut from_child, to_us) = std::io::pipe()?;
    let (from_us, go) = std::io::pipe()?;
    let (over, ends) = std::io::pipe()?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).envs(environment.iter().map(|(name, value)| (name, value)));
    let (to_parent, from_parent) = (to_us.as_raw_fd(), from_us.as_raw_fd());
    // SAFETY: the child calls only getpid, write and read, which are async-signal-safe.
    unsafe { command.pre_exec(move || wait_for_go(to_parent, from_parent)) };
    let thread = std::thread::spawn(move || {
        // At each `exec`, the eBPF programs stop the command until its libraries are probed. This process itself must
        // not stop when the eBPF programs stop the command.
        gpuflame_os::child::keep_running_while_stopped();
        let status = gpuflame_os::child::run(&mut command);
        // The child has its own copies of these ends of the pipes. After our copies are closed, the pipe `over` is
        // closed as soon as the child ends.
        drop((to_us, from_us, ends));
        status
    });
    let mut pid = [0; 4];
    match from_child.read_exact(&mut pid) {
        Ok(()) => {
            Ok(PausedCommand { pid: u32::from_ne_bytes(pid), go, running: RunningCommand { over, thread } })
        }
        Err(_) => match thread.join() {
            Ok(Err(error)) => Err(not_started(words, &error)),
            _ => Err(Error::new(ErrorKind::State, "the command was never started")),
        },
    }
}

/// Runs in the child. Writes the child's process id to the parent, and waits until the parent permits it to continue.
fn wait_for_go(to_parent: RawFd, from_parent: RawFd) -> std::io::Result<()> {
    // SAFETY: the child has inherited these descriptors from its parent, so they are open.
    unsafe {
        let pid = libc::getpid().to_ne_bytes();
        libc::write(to_parent, pid.as_ptr().cast(), pid.len());
        let mut word = 0_u8;
        // If this read fails, the parent process has ended. The child must then not execute the program, because no
        // process would watch it.
        match libc::read(from_parent, (&raw mut word).cast(), 1) {
            1 => Ok(()),
            _ => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl PausedCommand {
    /// Lets the waiting process execute the program.
    pub(crate) fn start(mut self) -> RunningCommand {
        // If the waiting process was killed, no process reads this byte, and the error is ignored.
        let _ = self.go.write_all(b"!");
        self.running
    }
}

impl RunningCommand {
    /// Returns a file descriptor that becomes readable when the command has ended.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.over.as_raw_fd()
    }

    /// Returns the exit status of the command.
    pub(crate) fn status(self, words: &[OsString]) -> Result<ExitStatus> {
        match self.thread.join() {
            Ok(status) => status.map_err(|error| not_started(words, &error)),
            Err(_) => Err(Error::new(ErrorKind::State, "waiting for the command failed")),
        }
    }
}

fn not_started(words: &[OsString], error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot run {}: {error}", words[0].display()))
}

/// Resumes a process that is stopped.
pub(crate) fn resume(pid: u32) {
    // SAFETY: `kill` accepts any two integers.
    unsafe { libc::kill(pid as i32, libc::SIGCONT) };
}

/// Whether a process with this id exists.
pub(crate) fn process_exists(pid: u32) -> bool {
    std::path::Path::new("/proc").join(pid.to_string()).exists()
}

/// Returns a file descriptor that becomes readable when the process has ended.
pub(crate) fn open_pidfd(pid: u32) -> Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: the system call takes two integers and accesses no memory.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if descriptor < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Error::new(
            ErrorKind::State,
            format!("process {pid}: {error}; check that it still runs"),
        ));
    }
    // SAFETY: the descriptor is new, and no other code in this process owns it.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(descriptor as RawFd) })
}

/// Waits until one of the file descriptors is readable or a signal arrives. Returns which of the descriptors are
/// readable.
pub(crate) fn wait_readable<const N: usize>(descriptors: [RawFd; N]) -> [bool; N] {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: the pointer points to an array of N elements, which the call fills in.
    unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, -1) };
    polled.map(|one| one.revents != 0)
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Installs a handler for SIGINT and SIGTERM, so that these signals end the recording, but do not kill this process.
pub(crate) fn catch_interrupts() {
    // SAFETY: a `sigaction` of zero bytes is valid, and the handler only stores to an atomic variable.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        for signal in [libc::SIGINT, libc::SIGTERM] {
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Whether SIGINT or SIGTERM has arrived.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

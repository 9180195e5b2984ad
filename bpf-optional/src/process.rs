//! Processes: a command that waits before its first instruction until it is followed, signals, and waiting for whatever
//! comes first.

use std::ffi::OsString;
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use gpuflame::{Error, ErrorKind, Result};

/// A command that was started, and has not begun.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) pid: u32,
    go: PipeWriter,
    running: Running,
}

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Running {
    /// Is at its end when the command is.
    over: PipeReader,
    thread: JoinHandle<std::io::Result<ExitStatus>>,
}

/// Starts a command that waits: it is there, but has not become its program.
pub(crate) fn hold(words: &[OsString], environment: &[(&str, OsString)]) -> Result<Held> {
    let (mut from_child, to_us) = std::io::pipe()?;
    let (from_us, go) = std::io::pipe()?;
    let (over, ends) = std::io::pipe()?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).envs(environment.iter().map(|(name, value)| (name, value)));
    let (say, hear) = (to_us.as_raw_fd(), from_us.as_raw_fd());
    // SAFETY: in the child only getpid, write and read are called, which may be called there.
    unsafe { command.pre_exec(move || wait_for_word(say, hear)) };
    let thread = std::thread::spawn(move || {
        let status = gpuflame::host::child::run(&mut command);
        // The child has its own; ours tell the end.
        drop((to_us, from_us, ends));
        status
    });
    let mut pid = [0; 4];
    match from_child.read_exact(&mut pid) {
        Ok(()) => Ok(Held { pid: u32::from_ne_bytes(pid), go, running: Running { over, thread } }),
        Err(_) => match thread.join() {
            Ok(Err(error)) => Err(not_started(words, &error)),
            _ => Err(Error::new(ErrorKind::State, "the command was never started")),
        },
    }
}

/// Says who we are, and waits until we may go on.
fn wait_for_word(say: RawFd, hear: RawFd) -> std::io::Result<()> {
    // SAFETY: the descriptors are open: the child has them of its parent.
    unsafe {
        let pid = libc::getpid().to_ne_bytes();
        libc::write(say, pid.as_ptr().cast(), pid.len());
        let mut word = 0_u8;
        // Who was to say it has ended: then nothing is run that nobody watches.
        match libc::read(hear, (&raw mut word).cast(), 1) {
            1 => Ok(()),
            _ => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Held {
    /// Lets it become its program.
    pub(crate) fn go(mut self) -> Running {
        // If it was killed meanwhile nobody reads this.
        let _ = self.go.write_all(b"!");
        self.running
    }
}

impl Running {
    /// Ready to be read once the command is over.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.over.as_raw_fd()
    }

    /// How it ended.
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

/// Lets a stopped process go on.
pub(crate) fn go_on(pid: u32) {
    // SAFETY: kill takes any two numbers.
    unsafe { libc::kill(pid as i32, libc::SIGCONT) };
}

/// Whether there is such a process.
pub(crate) fn is_there(pid: u32) -> bool {
    std::path::Path::new("/proc").join(pid.to_string()).exists()
}

/// A descriptor that is readable when the process has ended.
pub(crate) fn end_of(pid: u32) -> Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: the call takes two numbers.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if descriptor < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Error::new(ErrorKind::State, format!("process {pid}: {error}; is it still there?")));
    }
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(descriptor as RawFd) })
}

/// Waits until one of the descriptors can be read, or a signal comes. Which can is answered.
pub(crate) fn wait<const N: usize>(descriptors: [RawFd; N]) -> [bool; N] {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: an array of N, which the call fills in.
    unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, -1) };
    polled.map(|one| one.revents != 0)
}

static ENOUGH: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: i32) {
    ENOUGH.store(true, Ordering::Relaxed);
}

/// From now on SIGINT and SIGTERM end the recording and not us.
pub(crate) fn end_on_signals() {
    // SAFETY: all-zero is a valid `sigaction`; the handler stores to an atomic and does nothing else.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as *const () as usize;
        for signal in [libc::SIGINT, libc::SIGTERM] {
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Whether one of them came.
pub(crate) fn is_enough() -> bool {
    ENOUGH.load(Ordering::Relaxed)
}

//! `gpuflame run` at a terminal: what a shell sees of the command is what it would see without us.

use std::fs::{self, File};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::run::{run, said, send, wait_for_launches};
use crate::support::{Done, compile};

/// Launches kernels of 1,000 ns until it gets a signal.
fn for_ever() -> [&'static str; 3] {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("tests/programs/ending.c", &["-O2", "-g0"]));
    [program.to_str().unwrap(), "for_ever", "1"]
}

/// Waits until that is so.
fn until(is_so: impl Fn() -> bool, otherwise: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{otherwise}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the only child of `process` is stopped.
fn is_child_stopped(process: u32) -> bool {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let child = children.split_whitespace().next().unwrap_or_default();
    let state = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    state.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

/// Waits until the process is stopped, or goes on, as a shell does.
fn waited(process: u32, how: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the process is our child, which nobody else waits for, and there is a place for its status.
    assert_eq!(unsafe { libc::waitpid(process as i32, &mut status, how) }, process as i32);
    status
}

#[test]
fn it_stops_with_its_command_and_goes_on_with_it() {
    let (mut command, folder) = run(&[], &for_ever()).into_command();
    let child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let process = child.id();
    // SAFETY: kill takes any two numbers; the group is our child's.
    let send_to_all = |signal| unsafe { libc::kill(-(process as i32), signal) };
    wait_for_launches(&folder);
    assert_eq!(send_to_all(libc::SIGTSTP), 0);
    let status = waited(process, libc::WUNTRACED);
    assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTSTP, "{status:x}");
    until(|| is_child_stopped(process), "the command does not stop");
    assert_eq!(send_to_all(libc::SIGCONT), 0);
    assert!(libc::WIFCONTINUED(waited(process, libc::WCONTINUED)));
    until(|| !is_child_stopped(process), "the command does not go on");
    send(&child, libc::SIGTERM);
    let done = Done::of(child.wait_with_output().unwrap(), folder);
    assert_eq!(done.code, Some(128 + libc::SIGTERM), "{}", done.stderr);
    assert_eq!(said(&done, "ending (process ").len(), 1, "{}", done.stderr);
}

/// Both ends of a terminal.
fn terminal() -> (OwnedFd, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: there are places for two descriptors; the rest is left to the system.
    let opened = unsafe { libc::openpty(&mut ours, &mut theirs, null_mut(), null_mut(), null_mut()) };
    assert_eq!(opened, 0, "a terminal");
    // Else the command would keep our end open.
    // SAFETY: the call is about a descriptor of ours.
    assert_eq!(unsafe { libc::fcntl(ours, libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
    // SAFETY: both were just opened, and are nobody else's.
    unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

fn stderr_of(folder: &Path) -> Stdio {
    File::create(folder.join("stderr")).unwrap().into()
}

#[test]
fn a_terminal_that_is_closed_ends_the_command_and_leaves_its_picture() {
    let (ours, theirs) = terminal();
    let (mut command, folder) = run(&[], &for_ever()).into_command();
    command.stdin(theirs).stdout(Stdio::null()).stderr(stderr_of(&folder));
    let take_terminal = || {
        // SAFETY: neither takes memory: a session of its own, whose terminal is standard input.
        let is_taken = unsafe { libc::setsid() != -1 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 };
        if is_taken { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec only system calls are made.
    unsafe { command.pre_exec(take_terminal) };
    let mut child = command.spawn().unwrap();
    drop(command);
    wait_for_launches(&folder);
    drop(ours);
    let code = child.wait().unwrap().code();
    let stderr = fs::read_to_string(folder.join("stderr")).unwrap();
    assert_eq!(code, Some(128 + libc::SIGHUP), "{stderr}");
    assert!(stderr.contains("ending (process "), "{stderr}");
    let folded = fs::read_to_string(folder.join("out.folded")).unwrap();
    assert!(folded.contains("main;launch;") && folded.contains(";cudaLaunchKernel;"), "{folded}");
}

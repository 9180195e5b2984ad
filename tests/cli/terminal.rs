//! Tests `gpuflame run` at a terminal. A shell must see `gpuflame run` behave like the command without gpuflame.

use std::fs::{self, File};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::run::{code_of, run, said, send, wait_for_launches};
use crate::support::{Done, compile};

/// Returns a command that launches kernels of 1,000 ns until it gets a signal.
fn for_ever() -> [&'static str; 3] {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("tests/programs/ending.c", &["-O2", "-g0"]));
    [program.to_str().unwrap(), "for_ever", "1"]
}

/// Waits until the condition is true.
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

/// Waits as a shell does, until the process is stopped, continued or ended.
fn waited(process: u32, how: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the process is a child of this test, for which no other thread waits, and waitpid may write to `status`.
    let mut has_changed =
        || unsafe { libc::waitpid(process as i32, &mut status, how | libc::WNOHANG) } == process as i32;
    let deadline = Instant::now() + Duration::from_secs(60);
    while !has_changed() {
        if Instant::now() > deadline {
            // SAFETY: kill accepts any two numbers. If the process group exists, it is the group of this test's child.
            unsafe { libc::kill(-(process as i32), libc::SIGKILL) };
            panic!("the process neither stops nor ends");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    status
}

#[test]
fn run_stops_and_continues_together_with_its_command() {
    let (mut command, folder) = run(&[], &for_ever()).into_command();
    let child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let process = child.id();
    // SAFETY: kill accepts any two numbers. The process group is the group of this test's child.
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
    let done = Done::from_output(child.wait_with_output().unwrap(), folder);
    assert_eq!(done.code, Some(128 + libc::SIGTERM), "{}", done.stderr);
    assert_eq!(said(&done, "ending (process ").len(), 1, "{}", done.stderr);
}

/// Opens a pseudo terminal, and returns its two ends.
fn terminal() -> (OwnedFd, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: openpty has room for the two descriptors that it returns. With null pointers, the system chooses the
    // terminal's name and settings.
    let opened = unsafe { libc::openpty(&mut ours, &mut theirs, null_mut(), null_mut(), null_mut()) };
    assert_eq!(opened, 0, "a terminal");
    // If FD_CLOEXEC were not set, the command would inherit the test's end of the terminal and keep this end open.
    // SAFETY: the call to fcntl changes only a descriptor of this test.
    assert_eq!(unsafe { libc::fcntl(ours, libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
    // SAFETY: openpty has just opened both descriptors, and no other code owns them.
    unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

fn stderr_of(folder: &Path) -> Stdio {
    File::create(folder.join("stderr")).unwrap().into()
}

#[test]
fn closing_the_terminal_ends_the_command_and_its_outputs_are_written() {
    let (ours, theirs) = terminal();
    let (mut command, folder) = run(&[], &for_ever()).into_command();
    command.stdin(theirs).stdout(Stdio::null()).stderr(stderr_of(&folder));
    // SAFETY: between fork and exec the child makes only system calls.
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

/// Starts a command in its own process group, like a shell with job control.
fn job(script: &str) -> (Child, PathBuf) {
    let (mut command, folder) = run(&["-q"], &["sh", "-c", script]).into_command();
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
    (command.spawn().unwrap(), folder)
}

/// Sends a signal to all processes of the job, as `fg` does.
fn send_to_job(child: &Child, signal: i32) {
    // SAFETY: kill accepts any two numbers. The process group is the group of this test's child.
    assert_eq!(unsafe { libc::kill(-(child.id() as i32), signal) }, 0);
}

fn exit_code(status: i32) -> Option<i32> {
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

#[test]
fn run_stops_when_its_command_stops_itself() {
    for signal in [libc::SIGSTOP, libc::SIGTSTP] {
        // The shell's `fg` continues all processes of the job. `kill -CONT` continues only one process: either
        // `gpuflame run` or the command.
        for continued in ["job", "us", "command"] {
            let (child, folder) = job(&format!("echo $$ > started; kill -{signal} $$; exit 5"));
            let status = waited(child.id(), libc::WUNTRACED);
            let is_stopped = libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == signal;
            if is_stopped {
                match continued {
                    "job" => send_to_job(&child, libc::SIGCONT),
                    "us" => send(&child, libc::SIGCONT),
                    _ => {
                        let command = fs::read_to_string(folder.join("started")).unwrap();
                        // SAFETY: kill accepts any two numbers. The process is the stopped command.
                        unsafe { libc::kill(command.trim().parse().unwrap(), libc::SIGCONT) };
                    }
                }
            }
            assert!(is_stopped, "{signal} {continued}: {status:x}");
            assert_eq!(exit_code(waited(child.id(), 0)), Some(5), "{signal} {continued}");
        }
    }
}

#[test]
fn run_does_not_stop_when_its_command_ignores_the_stop_key() {
    let (child, folder) = job("trap '' TSTP; : > started; while [ ! -e go ]; do sleep 0.01; done; exit 5");
    until(|| folder.join("started").exists(), "the command does not start");
    send_to_job(&child, libc::SIGTSTP);
    fs::write(folder.join("go"), "").unwrap();
    let status = waited(child.id(), libc::WUNTRACED);
    if libc::WIFSTOPPED(status) {
        send_to_job(&child, libc::SIGKILL);
    }
    assert_eq!(exit_code(status), Some(5), "{status:x}");
}

/// Makes standard input the controlling terminal of a new session. This function is called in the child process.
fn take_terminal() -> std::io::Result<()> {
    // SAFETY: neither system call allocates memory. The two system calls create a session and make standard input its
    // terminal.
    let is_taken = unsafe { libc::setsid() != -1 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 };
    if is_taken { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn a_signal_after_the_command_exited_terminates_run() {
    // This terminal stops background jobs that write to it. Therefore the terminal stops `gpuflame run` when it prints
    // its line after the command has ended. While `gpuflame run` is stopped, the shell's `wait` returns 150.
    let (ours, theirs) = terminal();
    let script = format!(
        "stty tostop; set -m; {} run --library {} -- sh -c 'exit 3' & \
         s=150; while [ $s = 150 ]; do wait $!; s=$?; sleep 0.05; done; echo $s > status",
        env!("CARGO_BIN_EXE_gpuflame"),
        crate::support::gpuflame().display()
    );
    let folder = crate::support::scratch("late-signal");
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).current_dir(&folder).stdout(Stdio::null());
    shell.stdin(theirs.try_clone().unwrap()).stderr(theirs);
    // SAFETY: between fork and exec the child makes only system calls.
    unsafe { shell.pre_exec(take_terminal) };
    let child = shell.spawn().unwrap();
    drop(shell);
    let ours_is_stopped = || is_child_stopped(child.id());
    until(ours_is_stopped, "it does not write");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let job: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    // SAFETY: kill accepts any two numbers. The process group is the job of this test's shell.
    unsafe {
        libc::kill(job, libc::SIGTERM);
        libc::kill(job, libc::SIGCONT);
    }
    until(|| !Path::new(&format!("/proc/{job}")).exists() || is_child_stopped(child.id()), "it hangs");
    // SAFETY: kill accepts any two numbers. The process group is the job of this test's shell.
    unsafe { libc::kill(job, libc::SIGKILL) };
    assert_eq!(code_of(child), Some(0));
    assert_eq!(fs::read_to_string(folder.join("status")).unwrap().trim(), (128 + libc::SIGTERM).to_string());
    drop(ours);
}

#[test]
fn a_vanished_terminal_does_not_change_the_exit_status() {
    let (ours, theirs) = terminal();
    let script = ["sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; exit 3"];
    let (mut command, folder) = run(&[], &script).into_command();
    let child = command.stdout(Stdio::null()).stderr(theirs).spawn().unwrap();
    drop(command);
    drop(ours);
    fs::write(folder.join("go"), "").unwrap();
    assert_eq!(code_of(child), Some(3));
}

//! Tests `gpuflame-bpf` with targets that cannot be watched. The command must print the reason in one line, exit with
//! code 2, and leave nothing in the kernel.

mod support;

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use support::{Ran, can_probe, command, compile, cuda, finish, run, scratch, skip, until_ready};

/// Asserts that the run ended with exit code 2, and printed a single line on standard error. This line begins with the
/// name of the command, and contains `why`.
fn assert_refused(ran: &Ran, why: &str) {
    assert_eq!(ran.code, 2, "{ran:?}");
    let ours: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("gpuflame-bpf: ")).collect();
    assert_eq!(ours.len(), 1, "{ran:?}");
    assert!(ours[0].contains(why), "`{why}` is not in: {}", ours[0]);
}

#[test]
fn targets_that_cannot_be_probed_are_rejected_in_one_line() {
    if !can_probe() {
        return;
    }
    assert_refused(&run(["record", "--pid", "4194304"]), "there is no process 4194304");
    assert_refused(&run(["record", "--", "true"]), "nothing was probed");
    assert_refused(
        &run(["record", "--", "./there-is-no-such-program"]),
        "cannot run ./there-is-no-such-program",
    );
    assert_refused(
        &run(["record", "-o", "no/such/folder/cpu.txt", "--", "true"]),
        "name another file with -o",
    );
    assert_refused(&run(["record"]), "give a command, --pid or --all");
    assert_refused(&run(["crosscheck", "--library", "no.so", "--", "true"]), "--library");
    assert_refused(&stripped(), "a stripped program");
    assert_refused(&without_rights(), "root");
    assert_refused(&without_types("record"), "a kernel with CONFIG_DEBUG_INFO_BTF is needed");
    assert_refused(&without_types("crosscheck"), "a kernel with CONFIG_DEBUG_INFO_BTF is needed");
    assert_no_programs_left();
}

#[test]
fn a_killed_recorder_leaves_no_probes_and_the_program_continues() {
    if !can_probe() {
        return;
    }
    let mut program = Command::new(compile("bpf-optional/tests/programs/late.c", &[]));
    program.args(["libcudart.so.13", "7", "wait"]).env("LD_LIBRARY_PATH", cuda());
    let program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut watching, _) = command(["record", "-E", "-o", "cpu.txt", "--pid", &program.id().to_string()]);
    let mut watching = watching.stderr(Stdio::null()).spawn().unwrap();
    until_ready(&watching);
    watching.kill().unwrap();
    watching.wait().unwrap();
    assert_no_programs_left();
    program.stdin.as_ref().unwrap().write_all(b"!").unwrap();
    let output = program.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"failed 7\n"[..]));
}

/// Tries to record a program that has no symbols and maps no CUDA library.
fn stripped() -> Ran {
    let folder = scratch();
    let (source, program) = (folder.join("static.c"), folder.join("static"));
    std::fs::write(&source, "int main(void) { return 3; }\n").unwrap();
    let compiled =
        Command::new("gcc").args(["-static", "-s", "-o"]).arg(&program).arg(&source).status().unwrap();
    assert!(compiled.success());
    let ran = run([OsStr::new("record"), OsStr::new("--"), program.as_os_str()]);
    assert!(ran.stderr.contains("ended with 3"), "{ran:?}");
    ran
}

/// Tries to record a program as a user who is not permitted to use probes.
fn without_rights() -> Ran {
    let program = compile("tests/programs/threads.c", &[]);
    let (_, folder) = command(["record"]);
    // The command is copied, because the user may not be permitted to read the folders above the build folder.
    let copy = std::env::temp_dir().join(format!("gpuflame-bpf-{}", std::process::id()));
    std::fs::copy(env!("CARGO_BIN_EXE_gpuflame-bpf"), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.args(["record", "-o", "/dev/null", "--"]).arg(program).env("LD_LIBRARY_PATH", cuda());
    command.current_dir("/").uid(65534).gid(65534);
    let ran = finish(command, folder);
    std::fs::remove_file(copy).unwrap();
    ran
}

/// Runs the command on a simulated kernel without BTF (the description of the kernel's types). For this process only,
/// the folder in which the kernel provides its BTF is empty.
fn without_types(verb: &str) -> Ran {
    let program = env!("CARGO_BIN_EXE_gpuflame-bpf");
    let (_, folder) = command([verb]);
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"",
        "sh",
        program,
        verb,
    ]);
    if verb == "crosscheck" {
        command.arg("--library").arg(support::gpuflame());
    }
    command.args(["--", "true"]).current_dir(&folder);
    finish(command, folder)
}

/// Asserts that none of our eBPF programs is left in the kernel. After the last process that uses an eBPF program has
/// ended, the kernel removes the program after a short time.
fn assert_no_programs_left() {
    let listed = || Command::new("bpftool").args(["-j", "prog", "show"]).output();
    if listed().is_err() {
        return skip("there is no bpftool; .ci/install installs it");
    }
    let begin = std::time::Instant::now();
    for name in ["launch", "marker", "called", "execs", "forks"] {
        while String::from_utf8(listed().unwrap().stdout).unwrap().contains(&format!("\"name\":\"{name}\"")) {
            assert!(begin.elapsed().as_secs() < 60, "{name} is still in the kernel");
        }
    }
}

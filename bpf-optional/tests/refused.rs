//! What cannot be watched: a line that says why, exit code 2, and nothing left in the kernel.

mod support;

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use support::{Ran, can_probe, command, compile, cuda, finish, run, scratch};

/// One line on standard error that begins with the command's name, and exit code 2.
fn is_refused(ran: &Ran, why: &str) {
    assert_eq!(ran.code, 2, "{ran:?}");
    let ours: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("gpuflame-bpf: ")).collect();
    assert_eq!(ours.len(), 1, "{ran:?}");
    assert!(ours[0].contains(why), "`{why}` is not in: {}", ours[0]);
}

#[test]
fn what_cannot_be_watched_is_refused_in_one_line() {
    if !can_probe() {
        return;
    }
    is_refused(&run(["record", "--pid", "4194304"]), "there is no process 4194304");
    is_refused(&run(["record", "--", "true"]), "nothing was probed");
    is_refused(&run(["record", "--", "./there-is-no-such-program"]), "cannot run ./there-is-no-such-program");
    is_refused(&run(["record", "-o", "no/such/folder/cpu.txt", "--", "true"]), "name another file with -o");
    is_refused(&run(["record"]), "give a command, --pid or --all");
    is_refused(&run(["crosscheck", "--library", "no.so", "--", "true"]), "--library");
    is_refused(&stripped(), "a stripped program");
    is_refused(&without_rights(), "root");
    nothing_is_left();
}

/// A program without libraries and symbols.
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

/// The same as somebody who may not.
fn without_rights() -> Ran {
    let program = compile("tests/programs/threads.c", &[]);
    let (_, folder) = command(["record"]);
    // Nobody may look into the folders that lead to the build.
    let copy = std::env::temp_dir().join(format!("gpuflame-bpf-{}", std::process::id()));
    std::fs::copy(env!("CARGO_BIN_EXE_gpuflame-bpf"), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.args(["record", "-o", "/dev/null", "--"]).arg(program).env("LD_LIBRARY_PATH", cuda());
    command.current_dir("/").uid(65534).gid(65534);
    let ran = finish(command, folder);
    std::fs::remove_file(copy).unwrap();
    ran
}

/// No program of ours is in the kernel. It takes them away a moment after their last user has gone.
fn nothing_is_left() {
    let listed = || Command::new("bpftool").args(["-j", "prog", "show"]).output();
    if listed().is_err() {
        assert!(std::env::var_os("CI").is_none(), "there is no bpftool, which .ci/install installs");
        return eprintln!("skipped: there is no bpftool");
    }
    let begin = std::time::Instant::now();
    for name in ["launch", "marker", "called", "execs", "forks"] {
        while String::from_utf8(listed().unwrap().stdout).unwrap().contains(&format!("\"name\":\"{name}\"")) {
            assert!(begin.elapsed().as_secs() < 60, "{name} is still in the kernel");
        }
    }
}

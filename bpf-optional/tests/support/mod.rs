//! Functions that the tests in this folder share. These functions compile programs for the simulated CUDA stack, run
//! the command, and skip tests on machines that do not allow probes.
#![allow(dead_code)] // Each test binary uses only some of these functions.

#[path = "../../../tests/support/skip.rs"]
mod skip;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use skip::skip;

/// Returns the root folder of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Creates an empty folder for the files of a test.
pub(crate) fn scratch() -> PathBuf {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bpf-{}-{run}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns the folder in which cargo stores the shared libraries that the tests depend on.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Returns the path of the `libgpuflame.so` that was built for the tests.
pub(crate) fn gpuflame() -> PathBuf {
    libraries().join("libgpuflame.so")
}

/// Returns a folder that contains the simulated libraries under the names of the real libraries.
pub(crate) fn cuda() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = scratch();
        for (library, name) in [
            ("cuda", "libcuda.so.1"),
            ("cuda", "libcuda.so"),
            ("cudart", "libcudart.so.13"),
            ("cudart", "libcudart.so"),
            ("cupti", "libcupti.so.13"),
        ] {
            symlink(libraries().join(format!("libgpusim_{library}.so")), folder.join(name)).unwrap();
        }
        folder
    })
}

/// Compiles a program from the repository, with frame pointers. Returns the path of the program.
pub(crate) fn compile(source: &str, flags: &[&str]) -> PathBuf {
    let source = root().join(source);
    let program = scratch().join(source.file_stem().unwrap());
    let mut command = Command::new("gcc");
    command.args(["-g", "-O2", "-std=gnu99", "-fno-omit-frame-pointer"]).args(flags);
    command.arg("-I").arg(root().join("tests/gpusim/include")).arg("-I").arg(root().join("include"));
    command.arg(&source).arg("-o").arg(&program);
    command.arg("-L").arg(cuda()).args(["-lcudart", "-lcuda", "-lpthread", "-ldl", "-lm"]);
    let output = command.output().expect("a C compiler (gcc) is needed for the tests");
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Exit code and output of one run of the command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) folder: PathBuf,
}

impl Ran {
    /// Returns the lines about launches that the command has written, each split into its columns: time, comm, pid,
    /// tid, cpu and frames.
    pub(crate) fn lines(&self) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.folder.join("cpu.txt")).unwrap();
        text.lines().map(|line| line.splitn(6, ' ').map(str::to_owned).collect()).collect()
    }
}

/// Returns the command `gpuflame-bpf ARGS` on the simulated CUDA stack, and the folder in which it will run.
pub(crate) fn command<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> (Command, PathBuf) {
    let folder = scratch();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame-bpf"));
    command.args(args).current_dir(&folder).env("LD_LIBRARY_PATH", cuda());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("GPUFLAME_") || name.starts_with("GPUSIM_") || name.starts_with("CUDA_INJ") {
            command.env_remove(name);
        }
    }
    (command, folder)
}

/// Runs `gpuflame-bpf` with these arguments.
pub(crate) fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Ran {
    let (command, folder) = command(args);
    finish(command, folder)
}

pub(crate) fn finish(mut command: Command, folder: PathBuf) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        folder,
    }
}

/// Waits until `gpuflame-bpf` has begun to watch. At that time, the command prints nothing. Once the command waits in
/// `poll`, its eBPF programs are in the kernel.
pub(crate) fn until_ready(watching: &Child) {
    let syscall = format!("/proc/{}/syscall", watching.id());
    while !fs::read_to_string(&syscall).is_ok_and(|text| text.starts_with("7 ")) {
        std::thread::yield_now();
    }
}

/// Runs `gpuflame-bpf record -E -o cpu.txt -- PROGRAM ARGS`, which must succeed.
pub(crate) fn record(program: &Path, args: &[&str]) -> Ran {
    let words = ["record", "-E", "-o", "cpu.txt", "--"].map(OsStr::new);
    let all = words.into_iter().chain([program.as_os_str()]).chain(args.iter().map(OsStr::new));
    let ran = run(all);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran
}

/// Runs `gpuflame-bpf crosscheck FLAGS -- PROGRAM ARGS`.
pub(crate) fn crosscheck(flags: &[&str], program: &Path, args: &[&str]) -> Ran {
    let library = gpuflame();
    let words = [OsStr::new("crosscheck"), OsStr::new("--library"), library.as_os_str()];
    let flags = flags.iter().map(OsStr::new).chain([OsStr::new("--"), program.as_os_str()]);
    run(words.into_iter().chain(flags).chain(args.iter().map(OsStr::new)))
}

/// Whether probes can be attached on this machine. If this function returns false, the test is skipped. In CI, skipping
/// a test is an error, unless the machine lacks a feature that probes need.
pub(crate) fn can_probe() -> bool {
    static WHY_NOT: OnceLock<Option<String>> = OnceLock::new();
    let why_not = WHY_NOT.get_or_init(|| {
        let tried = run(["record", "-o", "/dev/null", "--", "true"]);
        (!tried.stderr.contains("nothing was probed")).then_some(tried.stderr)
    });
    let Some(why_not) = why_not else { return true };
    // SAFETY: the system call takes no arguments and changes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    let has_all = ["/sys/kernel/btf/vmlinux", "/sys/bus/event_source/devices/uprobe/type"]
        .iter()
        .all(|path| Path::new(path).exists());
    let reason = match is_root && has_all {
        true => "root can attach no probes here",
        false => "probes need root, a kernel with BTF, and the uprobe event source",
    };
    skip(&format!("{reason}: {why_not}"));
    false
}

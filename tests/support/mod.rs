//! Shared parts of the integration tests:
//! - the simulated CUDA stack in a folder, and C programs that are compiled for it;
//! - runs of these programs under gpuflame;
//! - comparisons of gpuflame's outputs with the truth file, which lists the GPU work that really ran.
#![allow(dead_code, unreachable_pub)] // Each test binary uses only a part of this module.

pub mod command;
pub mod handmade;
pub mod harmless;
pub mod pythons;
pub mod rank_traces;
mod skip;
pub mod traces;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;
pub use skip::{is_ci, skip};

/// Root of the repository.
pub fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package
        .ancestors()
        .find(|folder| folder.join("Cargo.lock").exists())
        .expect("a package of the repository")
}

/// Creates an empty folder for a test's files.
pub fn scratch(name: &str) -> PathBuf {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{run}", std::process::id()));
    // Process ids are reused, so an earlier process may have left a folder with the same name.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Folder in which cargo stores the shared libraries on which the tests depend.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Path of the `libgpuflame.so` that cargo built for the tests.
pub fn gpuflame() -> PathBuf {
    libraries().join("libgpuflame.so")
}

/// Path of the small library that is preloaded into shells, in the build's output folder.
pub fn preload() -> PathBuf {
    libraries().join("libgpuflame-preload.so")
}

/// Folder with the simulated libraries under their real names.
pub fn cuda() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| stage("cuda", &["libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8"]))
}

/// Creates a folder with the simulated libraries. `cupti` are the file names of CUPTI in this folder; if it is empty,
/// the folder has no CUPTI.
pub fn stage(name: &str, cupti: &[&str]) -> PathBuf {
    let folder = scratch(name);
    let link = |library: &str, soname: &str| {
        symlink(libraries().join(library), folder.join(soname)).unwrap();
    };
    for soname in ["libcuda.so.1", "libcuda.so"] {
        link("libgpusim_cuda.so", soname);
    }
    for soname in ["libcudart.so.13", "libcudart.so"] {
        link("libgpusim_cudart.so", soname);
    }
    for soname in cupti {
        link("libgpusim_cupti.so", soname);
    }
    folder
}

/// Compiles `source` (a path in the repository; `.c` or `.cpp`) with `flags`, and links it with the CUDA runtime.
pub fn compile(source: &str, flags: &[&str]) -> PathBuf {
    let source = root().join(source);
    let is_cpp = source.extension() == Some(OsStr::new("cpp"));
    let program = scratch("program").join(source.file_stem().unwrap());
    let mut command = Command::new(if is_cpp { "g++" } else { "gcc" });
    command.args(["-g", if is_cpp { "-std=c++11" } else { "-std=gnu99" }, "-Wall", "-Wextra", "-Werror"]);
    command.arg("-I").arg(root().join("tests/gpusim/include")).arg("-I").arg(root().join("include"));
    command.args(flags).arg(&source).arg("-o").arg(&program);
    command.arg("-L").arg(cuda()).args(["-lcudart", "-lcuda", "-lpthread", "-ldl", "-lm"]);
    if flags.contains(&"-DLINKED") {
        command.arg("-L").arg(libraries()).arg("-lgpuflame");
    }
    let output = command.output().expect("a C compiler (gcc and g++) is needed for the tests");
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Compiles `tests/programs/plugin.c` as `NAME.so`, a library that tests load and unload.
pub fn plugin(name: &str) -> PathBuf {
    let library = scratch("plugin").join(format!("{name}.so"));
    let mut command = Command::new("gcc");
    command.args(["-g", "-O2", "-shared", "-fPIC", "-fomit-frame-pointer"]).arg(format!("-DNAME={name}"));
    command.arg("-I").arg(root().join("tests/gpusim/include"));
    command.arg(root().join("tests/programs/plugin.c")).arg("-o").arg(&library);
    assert!(command.status().unwrap().success());
    library
}

/// Way in which gpuflame is loaded into the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The environment does not make the program load gpuflame.
    None,
    /// `CUDA_INJECTION64_PATH` names gpuflame.
    Injected,
    /// `LD_PRELOAD` names gpuflame.
    Preloaded,
}

/// A run of a program under gpuflame; the run has not started yet.
pub struct Run {
    command: Command,
    folder: PathBuf,
}

/// Exit status and outputs of a finished run.
pub struct Done {
    pub code: Option<i32>,
    /// Signal that ended the process.
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub folder: PathBuf,
}

impl Run {
    pub fn new(program: &Path, way: Way) -> Self {
        let folder = scratch("run");
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("GPUFLAME_") || name.starts_with("GPUSIM_") || name.starts_with("CUDA_INJ") {
                command.env_remove(name);
            }
        }
        command.current_dir(&folder).stdin(Stdio::null());
        // If a shell started the tests in the background, the tests may ignore these signals, and the programs that
        // they start would inherit this. Therefore the child restores the default actions of these signals.
        let defaults = || {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
                // SAFETY: setting a signal to its default action needs no handler.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: between fork and exec only `signal` is called, which is async-signal-safe.
        unsafe { command.pre_exec(defaults) };
        command.env("GPUFLAME_OUTPUT", "out").env("GPUSIM_TRUTH", "summary:truth.json");
        // Make gpuflame print its ledger, because most tests read it.
        command.env("GPUFLAME_VERBOSE", "1");
        let mut run = Self { command, folder };
        run.libraries(cuda());
        match way {
            Way::None => {}
            Way::Injected => drop(run.command.env("CUDA_INJECTION64_PATH", gpuflame())),
            Way::Preloaded => drop(run.command.env("LD_PRELOAD", gpuflame())),
        }
        run
    }

    /// Makes the loader look for CUDA's libraries in `folder`.
    pub fn libraries(&mut self, folder: &Path) {
        let path = std::env::join_paths([folder, &libraries()]).unwrap();
        self.command.env("LD_LIBRARY_PATH", path);
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn in_folder(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    pub fn with_libraries(mut self, folder: &Path) -> Self {
        self.libraries(folder);
        self
    }

    /// Runs the program and asserts that it succeeds.
    pub fn ok(self) -> Done {
        let shown = format!("{:?}", self.command);
        let done = self.done();
        assert_eq!(done.code, Some(0), "{shown}\n{}{}", done.stdout, done.stderr);
        done
    }

    /// Runs the program and returns its results, even if it fails.
    pub fn done(mut self) -> Done {
        // If exec fails, try again: a child that another test has just forked may still have this test's program file
        // open for writing.
        let mut output = self.command.output();
        for _ in 0..100 {
            if !output.as_ref().is_err_and(|error| error.kind() == ErrorKind::ExecutableFileBusy) {
                break;
            }
            thread::sleep(Duration::from_millis(20));
            output = self.command.output();
        }
        Done::from_output(output.unwrap(), self.folder)
    }

    /// Returns the command and the folder in which it runs, for callers that start the command and wait for it
    /// themselves.
    pub fn into_command(self) -> (Command, PathBuf) {
        (self.command, self.folder)
    }
}

impl Done {
    /// Returns the results of a finished run: its exit status, its output, and the files in `folder`.
    pub fn from_output(Output { status, stdout, stderr }: Output, folder: PathBuf) -> Self {
        Self {
            code: status.code(),
            signal: status.signal(),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            folder,
        }
    }

    /// Returns the results of a run whose exit status no longer matters.
    pub fn from_folder(folder: &Path) -> Self {
        let folder = folder.to_owned();
        Self { code: None, signal: None, stdout: String::new(), stderr: String::new(), folder }
    }

    pub fn file(&self, name: &str) -> String {
        let path = self.folder.join(name);
        fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", path.display(), self.stderr))
    }

    /// Folded stacks in the output `out.folded`: the frames of each stack, root first, and the stack's weight.
    pub fn folded(&self) -> Vec<(Vec<String>, u64)> {
        self.folded_file("out.folded")
    }

    /// Folded stacks in the file `name`.
    pub fn folded_file(&self, name: &str) -> Vec<(Vec<String>, u64)> {
        let line = |line: &str| {
            let (stack, weight) = line.rsplit_once(' ').unwrap();
            (stack.split(';').map(str::to_owned).collect(), weight.parse().unwrap())
        };
        self.file(name).lines().filter(|text| !text.starts_with("# ")).map(line).collect()
    }

    /// GPU time for each pair of call site and leaf frame. API call frames are removed, so that tests can compare the
    /// times with the truth file.
    pub fn by_site(&self) -> BTreeMap<(String, String), u64> {
        let mut sums = BTreeMap::new();
        for (mut frames, weight) in self.folded() {
            let leaf = frames.pop().unwrap();
            frames.pop();
            *sums.entry((frames.join(";"), leaf)).or_default() += weight;
        }
        sums
    }

    pub fn truth(&self) -> Truth {
        let mut truth = Truth { sums: BTreeMap::new(), totals: Value::Null };
        for line in self.file("truth.json").lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            match row.get("totals") {
                Some(totals) => truth.totals = totals.clone(),
                None => truth.add(&row),
            }
        }
        truth
    }

    /// Returns the lines of gpuflame's ledger that begin with `gpuflame: WORD`, without this prefix.
    pub fn ledger(&self, word: &str) -> Vec<&str> {
        let prefix = format!("gpuflame: {word}");
        self.stderr
            .lines()
            .filter_map(|line| line.strip_prefix(prefix.as_str()))
            .map(str::trim_start)
            .collect()
    }

    /// Returns the sum N and its parts from a ledger line `WORD N = a 1 + b 2`. Asserts that the parts add up to N.
    pub fn sum(&self, word: &str) -> (u64, BTreeMap<String, u64>) {
        let lines = self.ledger(&format!("{word} "));
        let [line] = lines[..] else { panic!("one line of {word}, not {lines:?}\n{}", self.stderr) };
        let (total, parts) = line.split_once(" = ").unwrap();
        let part = |part: &str| {
            let (word, count) = part.rsplit_once(' ').unwrap();
            (word.to_owned(), count.parse::<u64>().unwrap())
        };
        let parts: BTreeMap<_, _> = parts.split(" + ").map(part).collect();
        let total: u64 = total.parse().unwrap();
        assert_eq!(total, parts.values().sum::<u64>(), "the ledger does not add up: {line}");
        (total, parts)
    }

    /// Asserts that the outputs contain exactly the GPU work that ran: the same nanoseconds, under the stack of the
    /// call site. Also asserts that the ledger contains the same counts.
    pub fn assert_exact(&self) {
        self.assert_exact_as(&self.truth());
    }

    /// Asserts the same as `assert_exact`, for a truth file in which the test has changed call sites.
    pub fn assert_exact_as(&self, truth: &Truth) {
        let found = self.by_site();
        for (key, nanos) in &truth.sums {
            assert_eq!(found.get(key), Some(nanos), "{key:?}\n{found:#?}\n{}", self.stderr);
        }
        assert_eq!(found, truth.sums, "{}", self.stderr);
        let (launches, parts) = self.sum("launches");
        assert_eq!(launches, truth.count("count"), "{}", self.stderr);
        assert_eq!(parts["matched"], launches, "{}", self.stderr);
        let (activities, parts) = self.sum("activities");
        assert_eq!(activities, truth.count("count"), "{}", self.stderr);
        assert_eq!(parts["matched"], activities, "{}", self.stderr);
    }
}

/// GPU work that really ran, read from the simulated stack's truth file.
pub struct Truth {
    /// GPU time for each pair of call site and leaf frame in the flame graph.
    pub sums: BTreeMap<(String, String), u64>,
    totals: Value,
}

impl Truth {
    pub fn count(&self, what: &str) -> u64 {
        self.totals[what].as_u64().unwrap_or_else(|| panic!("no {what} in {}", self.totals))
    }

    /// Number of activity records to which the simulated stack applied this fault.
    pub fn fault(&self, name: &str) -> u64 {
        self.totals["faults"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.totals))
    }

    /// Returns the truth with nvcc's launch stubs removed from the ends of the call sites. A stub has the kernel's
    /// name.
    pub fn without_stubs(self) -> Self {
        let mut sums = BTreeMap::new();
        for ((site, leaf), nanos) in self.sums {
            let own = match site.rsplit_once(';') {
                Some((own, last)) if leaf == format!("[GPU_Kernel]{last}") => own.to_owned(),
                _ => site,
            };
            *sums.entry((own, leaf)).or_default() += nanos;
        }
        Self { sums, ..self }
    }

    fn add(&mut self, row: &Value) {
        let text = |field: &str| row[field].as_str().unwrap_or_default();
        let leaf = match text("kind") {
            "kernel" => format!("[GPU_Kernel]{}", plain(text("name"))),
            "memset" => "[GPU_Memset]".to_owned(),
            "memcpy_p2p" => "[GPU_Memcpy PtoP]".to_owned(),
            _ => format!("[GPU_Memcpy {}]", text("copy")),
        };
        let sum = self.sums.entry((text("site").to_owned(), leaf)).or_default();
        *sum += row["total_ns"].as_u64().unwrap();
    }
}

/// Returns a kernel's name without C++ mangling, such as `add` for `_Z3addPf`. The function does not demangle templates
/// or namespaces.
pub fn plain(symbol: &str) -> &str {
    let Some(rest) = symbol.strip_prefix("_Z") else { return symbol };
    let name = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    rest[..rest.len() - name.len()].parse().ok().and_then(|length| name.get(..length)).unwrap_or(symbol)
}

/// Returns the path of the program `what` that `tests/runtimes.sh` installs, for `python` if given. If this program is
/// not available, prints the reason and returns `None`.
pub fn installed(what: &str, python: Option<&Path>) -> Option<PathBuf> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("runtimes");
    let mut command = Command::new(root().join("tests/runtimes.sh"));
    command.arg(what).arg(&cache).envs(python.map(|python| ("PYTHON", python)));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Some(String::from_utf8(output.stdout).unwrap().trim_end().into());
    }
    match python {
        Some(python) => {
            skip(&format!("there is no package for this Python: {what}, {}\n{said}", python.display()))
        }
        None => skip(&format!("{what} cannot be installed here\n{said}")),
    }
    None
}

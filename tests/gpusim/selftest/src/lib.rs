//! Runs small C programs on the simulated CUDA stack, and reads the CUPTI client's log and the truth file. The tests
//! compute their expected values by arithmetic and never copy them from an earlier run.

use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A program to run on the simulated CUDA stack, with its arguments and environment.
pub struct Run {
    command: Command,
    scratch: PathBuf,
}

/// Result of a program's run.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Signal that ended the program, if any.
    pub signal: Option<i32>,
    /// Standard output of the program.
    pub stdout: String,
    /// Standard error of the program.
    pub stderr: String,
    /// Lines of the CUPTI client's log.
    pub log: Vec<Line>,
    /// Rows of the detailed truth file.
    pub truth: Vec<Value>,
    /// Rows of the summary truth file (`GPUSIM_TRUTH=summary:PATH`); the last row has the totals.
    pub summary: Vec<Value>,
    /// Rows of the schedule file, which is written only on the stepped clock.
    pub schedule: Vec<Value>,
    /// Text of the Kineto trace, which is written only on the stepped clock.
    pub kineto: String,
}

/// A line of the client's log: a word, then more words, some of them `key=value`.
#[derive(Clone, Debug)]
pub struct Line {
    /// First word of the line, such as `record`.
    pub what: String,
    /// Values of the line's `key=value` words; for example, `kind=10` has the key `kind` and the value `10`.
    pub fields: HashMap<String, String>,
    /// The whole line.
    pub text: String,
}

impl Line {
    fn parse(text: &str) -> Line {
        let mut words = text.split(' ');
        let what = words.next().unwrap_or_default().to_owned();
        let fields =
            words.filter_map(|w| w.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        Line { what, fields, text: text.to_owned() }
    }

    /// Returns the value of a field as a number; panics if the value is not a number.
    pub fn number(&self, key: &str) -> u64 {
        self.str(key).parse().unwrap_or_else(|_| panic!("{key} is no number in: {}", self.text))
    }

    /// Returns the value of a field; panics if the field is missing.
    pub fn str(&self, key: &str) -> &str {
        self.fields.get(key).unwrap_or_else(|| panic!("no {key} in: {}", self.text))
    }
}

/// Maximum run time of a program, after which the test fails.
const LIMIT: Duration = Duration::from_secs(30);

impl Run {
    /// Prepares to run a C program in `programs/`, which is built on first use.
    pub fn new(name: &str, args: &[&str]) -> Run {
        let mut run = Run::of(&program(name), args);
        run.command.env("LD_LIBRARY_PATH", folder());
        run
    }

    /// Prepares to run any program on the simulated CUDA stack.
    pub fn of(path: &Path, args: &[&str]) -> Run {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let scratch = scratch().join(format!("run-{}-{number}", std::process::id()));
        fs::create_dir_all(&scratch).expect("a folder in target");
        let mut command = Command::new(path);
        command.args(args).env("CLIENT_LOG", scratch.join("log"));
        command.env("GPUSIM_TRUTH", format!("{0}/truth,summary:{0}/summary", scratch.display()));
        Run { command, scratch }
    }

    /// Sets an environment variable of the program.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Run {
        self.command.env(name, value);
        self
    }

    /// Makes the program run on the stepped clock and write its schedule and a Kineto trace.
    pub fn stepped(self) -> Run {
        let dir = self.scratch.display().to_string();
        self.env("GPUSIM_CLOCK", "stepped")
            .env("GPUSIM_KINETO", format!("{dir}/kineto"))
            .env("GPUSIM_TRUTH", format!("{dir}/truth,summary:{dir}/summary,schedule:{dir}/schedule"))
    }

    /// Injects the CUPTI client into the program, with these activity kinds and callbacks enabled.
    pub fn client(self, kinds: &str, callbacks: &str) -> Run {
        let client = program("client.so");
        self.env("CUDA_INJECTION64_PATH", client)
            .env("CLIENT_KINDS", kinds)
            .env("CLIENT_CALLBACKS", callbacks)
    }

    /// Runs the program until it ends; panics after 30 s.
    pub fn outcome(self) -> Outcome {
        let scratch = self.scratch.clone();
        let (status, stdout, stderr) = self.finish(LIMIT).expect("the program ends");
        use std::os::unix::process::ExitStatusExt;
        let read = |name: &str| {
            String::from_utf8_lossy(&fs::read(scratch.join(name)).unwrap_or_default()).into_owned()
        };
        let json = |name| -> Vec<Value> {
            let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            read(name).lines().map(parse).collect()
        };
        let outcome = Outcome {
            code: status.code(),
            signal: status.signal(),
            stdout,
            stderr,
            log: read("log").lines().map(Line::parse).collect(),
            truth: json("truth"),
            summary: json("summary"),
            schedule: json("schedule"),
            kineto: read("kineto"),
        };
        let _ = fs::remove_dir_all(&scratch);
        outcome
    }

    /// Starts the program and returns whether it still runs after `time`. A program that still runs is killed.
    pub fn hangs_for(self, time: Duration) -> bool {
        self.finish(time).is_none()
    }

    fn finish(mut self, limit: Duration) -> Option<(std::process::ExitStatus, String, String)> {
        let mut child =
            self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let drain = |mut pipe: Box<dyn Read + Send>| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = pipe.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        };
        let stdout = drain(Box::new(child.stdout.take().expect("piped")));
        let stderr = drain(Box::new(child.stderr.take().expect("piped")));
        let started = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("it can be waited for") {
                return Some((status, stdout.join().expect("utf8"), stderr.join().expect("utf8")));
            }
            if started.elapsed() > limit {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Outcome {
    /// Returns the lines of the client's log that begin with this word.
    pub fn lines(&self, what: &str) -> Vec<&Line> {
        self.log.iter().filter(|l| l.what == what).collect()
    }

    /// Returns the log lines of activity records of this kind.
    pub fn records(&self, kind: u32) -> Vec<&Line> {
        self.lines("record").into_iter().filter(|l| l.number("kind") == u64::from(kind)).collect()
    }

    /// Returns the totals in the last line of the summary.
    pub fn totals(&self) -> &Value {
        &self.summary.last().expect("a summary")["totals"]
    }

    /// Returns the value of the total `name` in the summary.
    pub fn total(&self, name: &str) -> u64 {
        self.totals()[name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.totals()))
    }

    /// Panics unless the program exited with code 0.
    pub fn expect_success(self) -> Outcome {
        assert_eq!((self.code, self.signal), (Some(0), None), "stderr: {}", self.stderr);
        self
    }

    /// Panics unless the simulation aborted with a message that contains `text`.
    pub fn expect_abort(self, text: &str) -> Outcome {
        const SIGABRT: i32 = 6;
        assert_eq!(self.signal, Some(SIGABRT), "code {:?}, stderr: {}", self.code, self.stderr);
        assert!(self.stderr.contains(text), "stderr: {}", self.stderr);
        self
    }
}

/// Returns a folder inside `target` for files that tests create.
pub fn scratch() -> PathBuf {
    let deps = deps();
    let dir = deps.parent().expect("deps has a parent").join("gpusim-selftest");
    fs::create_dir_all(&dir).expect("a folder in target");
    dir
}

/// Returns the folder of this test's executable, in which cargo has also put the libraries that it built.
pub fn deps() -> PathBuf {
    let exe = std::env::current_exe().expect("a path");
    exe.parent().expect("a folder").to_owned()
}

/// Returns the folder with the simulated libraries under their real names.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let dir = scratch().join(format!("libs-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder in target");
        for (library, names) in [
            ("cuda", &["libcuda.so.1", "libcuda.so"][..]),
            ("cudart", &["libcudart.so.13", "libcudart.so"]),
            ("cupti", &["libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8"]),
        ] {
            let built = deps().join(format!("libgpusim_{library}.so"));
            for name in names {
                let _ = fs::remove_file(dir.join(name));
                std::os::unix::fs::symlink(&built, dir.join(name)).expect("a link in target");
            }
        }
        dir
    })
}

/// Returns the path of a compiled C program or of the compiled client; each is compiled once per test process.
pub fn program(name: &str) -> PathBuf {
    static BUILT: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let path = folder().join(name);
    if !built.iter().any(|b| b == name) {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = here.join("programs").join(Path::new(name).with_extension("c"));
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-g", "-Wall", "-o"]).arg(&path).arg(&source).arg("-I").arg(here.join("../include"));
        if name.ends_with(".so") {
            gcc.args(["-shared", "-fPIC", "-fno-omit-frame-pointer"]);
        } else {
            gcc.arg("-L").arg(folder()).args(["-lcudart", "-lcuda"]);
        }
        let done = gcc.args(["-lpthread", "-ldl"]).output().expect("gcc is installed");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        built.push(name.to_owned());
    }
    path
}

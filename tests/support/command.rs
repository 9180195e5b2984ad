//! Runs the `gpuflame` command as a user runs it.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Exit code and output of a run of the command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `gpuflame ARGS` in `folder`.
pub fn gpuflame<A: AsRef<OsStr>>(folder: &Path, args: impl IntoIterator<Item = A>) -> Ran {
    gpuflame_with(folder, args, b"")
}

/// Runs `gpuflame ARGS` in `folder` with `input` as its standard input.
pub fn gpuflame_with<A: AsRef<OsStr>>(folder: &Path, args: impl IntoIterator<Item = A>, input: &[u8]) -> Ran {
    // Cargo sets this variable only for the command's package. Packages other than the command's compile this file, but
    // do not call this function.
    #[allow(clippy::option_env_unwrap)]
    let mut command = Command::new(option_env!("CARGO_BIN_EXE_gpuflame").unwrap());
    command.args(args).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // The command may stop reading its input early, so the test ignores write errors.
    let feed = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    feed.join().unwrap();
    Ran {
        code: status.code().expect("the command was not killed by a signal"),
        stdout: String::from_utf8(stdout).expect("outputs are UTF-8; tests write binary outputs to files"),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

impl Ran {
    /// Asserts that the command succeeded.
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self
    }

    /// Asserts that the command failed with this code, and printed one line that contains all of `words`.
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        let lines: Vec<_> = self.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "one line, not:\n{}", self.stderr);
        assert!(lines[0].starts_with("gpuflame: "), "{}", lines[0]);
        for word in words {
            assert!(lines[0].contains(word), "no {word:?} in: {}", lines[0]);
        }
    }
}

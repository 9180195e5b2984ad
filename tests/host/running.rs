//! A program that runs until a file or a signal from the test tells it to continue.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use gpuflame_model::record::Reader;
use gpuflame_offline::run::{self, ReadOptions};

use crate::support::{Done, Run};

/// Name of the checkpoint file that a process leaves if it dies without running its exit handlers.
pub(crate) const FILE: &str = "out.gfr";

/// Returns whether the file is a recording whose header states that it contains the final sums of a process that
/// exited.
pub(crate) fn is_finished(path: &Path) -> bool {
    let head = fs::read(path).unwrap_or_default();
    Reader::new(&head[..]).is_ok_and(|reader| reader.state().finished)
}

/// A running program, and the folder in which it runs.
pub(crate) struct Running {
    child: Child,
    pub(crate) folder: PathBuf,
}

impl Running {
    pub(crate) fn of(run: Run) -> Self {
        let (mut command, folder) = run.into_command();
        // The ledger is written to a regular file only if the file is open for appending.
        let stderr = File::options().create(true).append(true).open(folder.join("stderr")).unwrap();
        let child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        Self { child, folder }
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns what the program has printed to standard error so far.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.folder.join("stderr")).unwrap()
    }

    /// Returns whether the running program has a handler for this signal.
    pub(crate) fn takes(&self, signal: i32) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
        u64::from_str_radix(caught, 16).unwrap() >> (signal - 1) & 1 == 1
    }

    /// Waits until the recording of the process reports `matched` matched activities.
    pub(crate) fn until(&mut self, matched: u64) {
        self.wait_for(|running| {
            let read = run::read(running.folder.join(FILE), &ReadOptions::default());
            let tally = read.map(|run| run.ledger().tally);
            (tally.as_ref().is_ok_and(|tally| tally.activities.matched == matched), format!("{tally:?}"))
        });
    }

    /// Waits until the first value that `is_so` returns is true. The second value that `is_so` returns describes the
    /// current state; it is printed if the wait times out.
    pub(crate) fn wait_for(&mut self, mut is_so: impl FnMut(&Self) -> (bool, String)) {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let (is, what) = is_so(self);
            if is {
                return;
            }
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "the program has ended: {what}\n{}",
                self.stderr()
            );
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Creates the file `what`, for which the program waits.
    pub(crate) fn tell(&self, what: &str) {
        fs::write(self.folder.join(what), "").unwrap();
    }

    /// Waits for the end of the program, and returns its outputs.
    pub(crate) fn ended(self) -> Done {
        let mut output = self.child.wait_with_output().unwrap();
        output.stderr = fs::read(self.folder.join("stderr")).unwrap();
        Done::from_output(output, self.folder)
    }

    /// Sends a signal, waits for the end of the program, and returns its outputs.
    pub(crate) fn signalled(self, signal: i32) -> Done {
        send(self.child.id(), signal);
        self.ended()
    }
}

/// Returns the time in ns for which gpuflame's threads in `process` and the calling thread have waited for a processor
/// so far. This delay is caused by a busy machine and not by gpuflame.
pub(crate) fn starved_for(process: u32) -> u64 {
    let waited = |folder: &Path| {
        let figures = fs::read_to_string(folder.join("schedstat")).unwrap_or_default();
        figures.split(' ').nth(1).and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0)
    };
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten().map(|task| task.path());
    let is_ours =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("gpuflame"));
    tasks.filter(is_ours).map(|task| waited(&task)).sum::<u64>() + waited(Path::new("/proc/thread-self"))
}

/// Sends a signal to a process for which the test has not waited.
pub(crate) fn send(process: u32, signal: i32) {
    // SAFETY: callers have not waited for the process yet, so its id still belongs to it. Therefore the id of the
    // process cannot have been reused.
    assert_eq!(unsafe { libc::kill(process as i32, signal) }, 0);
}

//! A program that runs until it is told, or gets a signal.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Done, Run};

/// What a process leaves that ends without a word.
pub(crate) const FILE: &str = "out.gfr";

/// A program that runs, and the folder that it runs in.
pub(crate) struct Running {
    child: Child,
    pub(crate) folder: PathBuf,
}

impl Running {
    pub(crate) fn of(run: Run) -> Self {
        let (mut command, folder) = run.into_command();
        // A regular file gets our lines only if it is open for appending.
        let stderr = File::options().create(true).append(true).open(folder.join("stderr")).unwrap();
        let child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        Self { child, folder }
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// What it has said so far.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.folder.join("stderr")).unwrap()
    }

    /// Whether it handles this signal.
    pub(crate) fn takes(&self, signal: i32) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
        u64::from_str_radix(caught, 16).unwrap() >> (signal - 1) & 1 == 1
    }

    /// Waits until its file says that so many activities have found their launch.
    pub(crate) fn until(&mut self, matched: u64) {
        self.wait_for(|running| {
            let read = gpuflame::read(running.folder.join(FILE), &gpuflame::ReadOptions::default());
            let tally = read.map(|run| run.ledger().tally);
            (tally.as_ref().is_ok_and(|tally| tally.activities.matched == matched), format!("{tally:?}"))
        });
    }

    /// Waits until that is so; it says what is instead.
    pub(crate) fn wait_for(&mut self, mut is_so: impl FnMut(&Self) -> (bool, String)) {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let (is, what) = is_so(self);
            if is {
                return;
            }
            assert!(self.child.try_wait().unwrap().is_none(), "it is over: {what}\n{}", self.stderr());
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Makes a file of this name.
    pub(crate) fn tell(&self, what: &str) {
        fs::write(self.folder.join(what), "").unwrap();
    }

    /// What it leaves when it is over.
    pub(crate) fn ended(self) -> Done {
        let mut output = self.child.wait_with_output().unwrap();
        output.stderr = fs::read(self.folder.join("stderr")).unwrap();
        Done::of(output, self.folder)
    }

    /// The same after this signal.
    pub(crate) fn signalled(self, signal: i32) -> Done {
        send(self.child.id(), signal);
        self.ended()
    }
}

/// How long the threads of gpuflame in this process, and this one, have waited for a processor so far, in ns. A delay of that length is
/// the machine's.
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

/// Sends a signal to a process that nobody has waited for.
pub(crate) fn send(process: u32, signal: i32) {
    // SAFETY: whoever calls this has not waited for that process, so that its number is its own.
    assert_eq!(unsafe { libc::kill(process as i32, signal) }, 0);
}

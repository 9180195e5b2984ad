//! Reads other tools' traces for the verbs that want their events, with a bar where it takes long.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::Console;
use super::input::Source;
use crate::error::Result;
use crate::import::{self, Fork, Options, Seen};

/// Files smaller than this are read before anybody could look at a bar: half a second's worth.
const LONG: u64 = 512 << 20;

/// How to read.
#[derive(Debug, Args)]
pub(super) struct How {
    /// Threads that read a plain JSON file. The result does not depend on it.
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// The size of the read buffer in KiB. The result does not depend on it.
    #[arg(long, value_name = "KIB", default_value_t = 1024, hide = true)]
    buffer: usize,
    /// Take a file that was cut short as far as it goes.
    #[arg(long)]
    accept_cut: bool,
}

/// Hands the events of `source` to `sink`.
pub(super) fn read(source: &Source, how: &How, console: Console, sink: &mut impl Fork) -> Result<Seen> {
    let path = match source {
        Source::Stdin => PathBuf::from("-"),
        Source::File(path) => path.clone(),
    };
    let opened = import::open(&path)?;
    let progress = Arc::new(AtomicU64::new(0));
    let options = Options {
        buffer: how.buffer.clamp(1, 1 << 20) << 10,
        threads: how.threads.clamp(1, 64),
        accept_cut: how.accept_cut,
        progress: Some(Arc::clone(&progress)),
    };
    let shown = opened.size().filter(|&size| !console.quiet && size >= LONG && io::stderr().is_terminal());
    let seen = watched(shown, &progress, || opened.read_parallel(&options, sink))?;
    remark(&path, &seen, console);
    Ok(seen)
}

/// Runs `read`, with a bar if the file's size is given.
fn watched<T>(size: Option<u64>, progress: &AtomicU64, read: impl FnOnce() -> T) -> T {
    let Some(size) = size else { return read() };
    let style =
        ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    let bar = ProgressBar::new(size).with_style(style.expect("the template is right"));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                bar.set_position(progress.load(Ordering::Relaxed));
                thread::sleep(Duration::from_millis(50));
            }
            bar.finish_and_clear();
        });
        let result = read();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// What is odd about a trace, and no failure.
fn remark(path: &Path, seen: &Seen, console: Console) {
    let path = path.display();
    if let Some(at) = seen.cut {
        console.remark(format!("{path}: cut short behind byte {at}; read {} whole events", seen.events));
    }
    if seen.untimed > 0 {
        console.remark(format!("{path}: passed over {} events without usable times", seen.untimed));
    }
}

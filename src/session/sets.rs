//! Where each window has files of its own (`%w` in the prefix): a thread of its own draws them, while the process runs.
//! It has a profile of its own as well, which grows by what is new, so that a frame is named once, and nobody waits for a
//! file system but this thread, not even the one that ends the process: it looks whether this one gets on.
//!
//! ```text
//! pipeline --a window is over: what its sums refer to that is new, and its sums--> queue --> thread: names, files
//! ```
//!
//! What goes through the queue is what a checkpoint would hold of that window alone. No more windows are kept apart than
//! GPUFLAME_MAX_WINDOWS says, so the queue has an end.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::control::{Outputs, chosen, life};
use crate::error::Result;
use crate::explain::{Explain, Options, Snapshot};
use crate::export;
use crate::host::threads::{self, Clock};
use crate::record::{Reader, Row};
use crate::settings::{Output, Root, Settings};
use crate::symbolize::Symbolizer;

use super::draw;
use super::generated::GeneratedCode;
use super::panic::disable_after_panic;
use super::progress;
use super::write::{Report, is_taken};

/// A window that is to be drawn.
#[derive(Debug)]
pub(super) struct Set {
    /// Which window.
    pub(super) number: u64,
    /// It refers to nothing that earlier ones brought.
    pub(super) is_fresh: bool,
    /// As a file would hold it.
    pub(super) bytes: Vec<u8>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Sets {
    settings: Settings,
    outputs: Outputs,
    queue: Mutex<VecDeque<Set>>,
    asked: Condvar,
    artist: Mutex<Artist>,
    /// The process ends, and the queue holds all that there will be.
    ends: AtomicBool,
    /// Whether a thread draws. Where none does, or not any more, whoever ends the process draws what is left.
    is_drawn_elsewhere: AtomicBool,
    /// Told when that one has done.
    done: Condvar,
    /// What it has taken of a processor: as long as that grows, it gets on.
    thread: Clock,
}

/// Who draws, one at a time.
#[derive(Debug)]
struct Artist {
    explain: Explain,
    symbolizer: Symbolizer,
    generated: GeneratedCode,
    drawn: Drawn,
}

/// What became of windows.
#[derive(Debug, Default)]
pub(super) struct Drawn {
    pub(super) windows: u64,
    pub(super) report: Report,
}

impl Sets {
    pub(super) fn new(settings: &Settings, outputs: &Outputs) -> Self {
        Self {
            settings: settings.clone(),
            outputs: outputs.clone(),
            queue: Mutex::default(),
            asked: Condvar::new(),
            artist: Mutex::new(Artist::new(settings)),
            ends: AtomicBool::new(false),
            is_drawn_elsewhere: AtomicBool::new(false),
            done: Condvar::new(),
            thread: Clock::new(),
        }
    }

    /// Starts the thread. Where there can be none, all is drawn at the end.
    pub(super) fn spawn(&'static self) -> io::Result<()> {
        let run = move || {
            let run = std::panic::AssertUnwindSafe(|| self.run());
            if std::panic::catch_unwind(run).is_err() {
                disable_after_panic();
            }
            self.draws_no_more();
        };
        self.is_drawn_elsewhere.store(true, Ordering::Release);
        let spawned = threads::spawn(c"gpuflame-draw", threads::STACK, run);
        if spawned.is_err() {
            self.draws_no_more();
        }
        spawned
    }

    fn draws_no_more(&self) {
        // Whoever looks does so with the queue, and is told from then on.
        let _queue = self.queue.lock();
        self.is_drawn_elsewhere.store(false, Ordering::Release);
        self.done.notify_one();
    }

    /// Has a window drawn. Waits for nobody.
    pub(super) fn push(&self, set: Set) {
        self.queue.lock().push_back(set);
        self.asked.notify_one();
    }

    /// Has what is left drawn, as the process ends. `None`: the thread that draws has not got on for as long as `limit`.
    /// Its next file may be one that a file system does not let go of, so whoever calls this opens none.
    pub(super) fn finish(&self, limit: Duration) -> Option<Drawn> {
        if !self.wait_until_drawn(limit) {
            return None;
        }
        let mut artist = self.artist.lock();
        while self.draw_next(&mut artist) {}
        Some(std::mem::take(&mut artist.drawn))
    }

    /// False: the thread has not got on.
    fn wait_until_drawn(&self, limit: Duration) -> bool {
        let mut queue = self.queue.lock();
        self.ends.store(true, Ordering::Release);
        self.asked.notify_one();
        let (mut taken, mut since) = (self.thread.taken(), Instant::now());
        while self.is_drawn_elsewhere.load(Ordering::Acquire) {
            self.done.wait_for(&mut queue, progress::LOOK_EVERY);
            let now = self.thread.taken();
            if now != taken {
                (taken, since) = (now, Instant::now());
            } else if since.elapsed() >= limit {
                return !self.is_drawn_elsewhere.load(Ordering::Acquire);
            }
        }
        true
    }

    fn run(&self) {
        threads::note_ours();
        self.thread.follow_this_thread();
        // See `ending`: what is looked up when it is first done may not be had at the end.
        export::draw_once();
        loop {
            // What comes after our life is over comes with the end, if that is in good order.
            let is_to_draw = self.ends.load(Ordering::Acquire) || !life::is_over();
            if is_to_draw && self.draw_next(&mut self.artist.lock()) {
                continue;
            }
            let mut queue = self.queue.lock();
            let ends = self.ends.load(Ordering::Acquire);
            if ends && queue.is_empty() {
                return;
            }
            if !ends && (queue.is_empty() || life::is_over()) {
                self.asked.wait(&mut queue);
            }
        }
    }

    /// False: there is none.
    fn draw_next(&self, artist: &mut Artist) -> bool {
        let Some(set) = self.queue.lock().pop_front() else { return false };
        let chosen = chosen::outputs();
        let outputs = chosen.as_ref().unwrap_or(&self.outputs).of_window(set.number);
        let report = artist.draw(&set, &self.settings, &outputs).unwrap_or_else(|error| Report {
            failures: vec![format!("window {}: {error}", set.number)],
            ..Report::default()
        });
        artist.drawn.add(report);
        true
    }
}

impl Artist {
    fn new(settings: &Settings) -> Self {
        Self {
            explain: explain(settings),
            symbolizer: Symbolizer::new(draw::naming(settings)),
            generated: GeneratedCode::default(),
            drawn: Drawn::default(),
        }
    }

    fn draw(&mut self, set: &Set, settings: &Settings, outputs: &Outputs) -> Result<Report> {
        if set.is_fresh {
            let drawn = std::mem::take(&mut self.drawn);
            *self = Self { drawn, ..Self::new(settings) };
        }
        self.explain.forget_stored();
        let mut reader = Reader::new(&set.bytes[..])?;
        while let Some(row) = reader.next_row()? {
            self.explain.push(&row, &mut ());
        }
        let Snapshot { profile, ledger } = self.explain.snapshot(&[], &mut ());
        for (address, name) in self.generated.names(profile) {
            profile.push(&Row::Generated { address, name: &name });
        }
        self.symbolizer.name(profile);
        let drawn = |output: &Output| !output.grows() && *output != Output::Stacks;
        let wanted: Vec<_> = settings.formats.iter().copied().filter(drawn).collect();
        Ok(draw::files(profile, settings, &wanted, (outputs, None), (Some(set.number), &ledger), None))
    }
}

/// What explains nothing but what was explained before.
fn explain(settings: &Settings) -> Explain {
    Explain::new(Options {
        by_stream: settings.root.contains(&Root::Stream),
        merge_threads: !settings.root.contains(&Root::Thread),
        ..Options::default()
    })
}

impl Drawn {
    /// A cause that keeps windows from being written is told once.
    fn add(&mut self, more: Report) {
        self.windows += u64::from(!more.written.is_empty());
        self.report.written.extend(more.written);
        self.report.renamed.extend(more.renamed);
        if self.report.failures.is_empty() {
            self.report.failures = more.failures;
        }
    }

    /// In one line, and not a line a file.
    pub(super) fn line(&self) -> Option<String> {
        let files = &self.report.written;
        let (first, last): (&PathBuf, &PathBuf) = (files.first()?, files.last()?);
        let counted = |count: usize, word| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        let windows = counted(usize::try_from(self.windows).unwrap_or(usize::MAX), "window");
        let last = if files.len() == 1 { String::new() } else { format!(" to {}", last.display()) };
        let gone = files.iter().filter(|file| !is_taken(file)).count();
        let gone = match gone {
            0 => String::new(),
            gone => format!("; {} removed or moved since", counted(gone, "file")),
        };
        Some(format!("wrote {windows} in {}: {}{last}{gone}", counted(files.len(), "file"), first.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::testing::folder;

    #[test]
    fn files_of_windows_that_were_removed_later_are_counted_as_removed() {
        let folder = folder("sets-removed");
        let written: Vec<_> = ["out.1.svg", "out.2.svg"].iter().map(|name| folder.join(name)).collect();
        fs::write(&written[1], "").unwrap();
        let [first, last] = [0, 1].map(|at: usize| written[at].display().to_string());
        let drawn = Drawn { windows: 2, report: Report { written, ..Report::default() } };
        let expected =
            format!("wrote 2 windows in 2 files: {first} to {last}; 1 file removed or moved since");
        assert_eq!(drawn.line(), Some(expected));
        fs::remove_dir_all(folder).unwrap();
    }
}

//! Draws the files of windows that have closed. A separate thread draws these files while the process runs. Windows
//! have their own files if the output path prefix contains `%w`.
//!
//! The drawing thread has a profile of its own. Only new definitions are added to this profile, so each frame is
//! symbolized once and not once per window. Only the drawing thread ever waits for a file system. The thread that ends
//! the process does not wait for a file system, and only checks that the drawing thread makes progress.
//!
//! ```text
//! pipeline --a window has ended: its sums, and the definitions that are new--> queue --> thread: names, files
//! ```
//!
//! An entry in the queue has the same content as a checkpoint, but covers only one window. The length of the queue is
//! limited, because at most GPUFLAME_MAX_WINDOWS windows have sums of their own.

use std::collections::VecDeque;
use std::hash::RandomState;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::control::{lifecycle, output_override};
use gpuflame_config::Outputs;
use gpuflame_config::settings::{Output, Settings};
use gpuflame_explain::symbolize::Symbolizer;
use gpuflame_explain::{Explain, Options, Snapshot};
use gpuflame_model::error::Result;
use gpuflame_model::options::Root;
use gpuflame_model::record::{Reader, Row};
use gpuflame_os::threads::{self, CpuClock};

use super::draw;
use super::generated::GeneratedCode;
use super::output_files::{WriteReport, is_name_taken};
use crate::session::process::panic::disable_after_panic;
use crate::session::process::progress;

/// Entry in the queue: a window whose files must be drawn.
#[derive(Debug)]
pub(crate) struct WindowOutput {
    /// Sequence number of the window.
    pub(crate) number: u64,
    /// Whether `bytes` contains all definitions. If it does, the definitions in earlier entries are no longer valid.
    pub(crate) is_fresh: bool,
    /// Definitions and sums of the window, in the format that recordings use.
    pub(crate) bytes: Vec<u8>,
}

/// Queue of the windows to draw, and the state of the drawing thread.
#[derive(Debug)]
pub(crate) struct WindowOutputQueue {
    settings: Settings,
    outputs: Outputs,
    queue: Mutex<VecDeque<WindowOutput>>,
    wakeup: Condvar,
    renderer: Mutex<WindowRenderer>,
    /// Whether the process is ending, so that no more windows will be queued.
    is_ending: AtomicBool,
    /// Whether the drawing thread is currently running. If the drawing thread is not running, the thread that ends the
    /// process draws the remaining windows.
    has_thread: AtomicBool,
    /// Condition variable that is notified when the drawing thread has finished.
    done: Condvar,
    /// CPU time that the drawing thread has used. While this CPU time grows, the drawing thread makes progress.
    thread: CpuClock,
}

/// State that is needed to draw windows. Only one thread at a time uses this state.
#[derive(Debug)]
struct WindowRenderer {
    explain: Explain,
    symbolizer: Symbolizer,
    generated: GeneratedCode,
    rendered: RenderedWindows,
}

/// Results of drawing all windows so far.
#[derive(Debug, Default)]
pub(crate) struct RenderedWindows {
    pub(super) windows: u64,
    pub(crate) report: WriteReport,
    /// Paths of the files that describe the outputs of a window. There is one such file per window.
    pub(crate) sets: Vec<PathBuf>,
}

impl WindowOutputQueue {
    pub(crate) fn new(settings: &Settings, outputs: &Outputs) -> Self {
        Self {
            settings: settings.clone(),
            outputs: outputs.clone(),
            queue: Mutex::default(),
            wakeup: Condvar::new(),
            renderer: Mutex::new(WindowRenderer::new(settings)),
            is_ending: AtomicBool::new(false),
            has_thread: AtomicBool::new(false),
            done: Condvar::new(),
            thread: CpuClock::new(),
        }
    }

    /// Starts the drawing thread. If the drawing thread cannot be started, all windows are drawn when the process ends.
    pub(crate) fn spawn(&'static self) -> io::Result<()> {
        let run = move || {
            let run = std::panic::AssertUnwindSafe(|| self.run());
            if std::panic::catch_unwind(run).is_err() {
                disable_after_panic();
            }
            self.note_thread_finished();
        };
        self.has_thread.store(true, Ordering::Release);
        let spawned = threads::spawn(c"gpuflame-draw", threads::DEFAULT_STACK_BYTES, run);
        if spawned.is_err() {
            self.note_thread_finished();
        }
        spawned
    }

    fn note_thread_finished(&self) {
        // The thread that waits for `done` checks the flag that is set here while it holds the queue's lock. Therefore
        // this thread takes the queue's lock too, so that the waiting thread cannot miss the notification.
        let _queue = self.queue.lock();
        self.has_thread.store(false, Ordering::Release);
        self.done.notify_one();
    }

    /// Adds a window to the queue. This function does not wait for a file system.
    pub(crate) fn push(&self, output: WindowOutput) {
        self.queue.lock().push_back(output);
        self.wakeup.notify_one();
    }

    /// Draws the remaining windows while the process ends. Returns `None` if the drawing thread makes no progress for
    /// the time `limit`. In this case, a file system may be blocking the drawing thread, so the caller must not open
    /// any file either.
    pub(crate) fn finish(&self, limit: Duration) -> Option<RenderedWindows> {
        if !self.wait_until_rendered(limit) {
            return None;
        }
        let mut renderer = self.renderer.lock();
        while self.render_next(&mut renderer) {}
        Some(std::mem::take(&mut renderer.rendered))
    }

    /// Waits until the drawing thread has drawn all windows in the queue and has ended. Returns false if the drawing
    /// thread stops making progress.
    fn wait_until_rendered(&self, limit: Duration) -> bool {
        let mut queue = self.queue.lock();
        self.is_ending.store(true, Ordering::Release);
        self.wakeup.notify_one();
        let (mut taken, mut since) = (self.thread.elapsed(), Instant::now());
        while self.has_thread.load(Ordering::Acquire) {
            self.done.wait_for(&mut queue, progress::POLL_INTERVAL);
            let now = self.thread.elapsed();
            if now != taken {
                (taken, since) = (now, Instant::now());
            } else if since.elapsed() >= limit {
                return !self.has_thread.load(Ordering::Acquire);
            }
        }
        true
    }

    fn run(&self) {
        threads::note_ours();
        self.thread.follow_this_thread();
        // When a thread creates its first hash table, the table needs random numbers. To get these random numbers, the
        // loader resolves symbols. The first hash table of this thread is created here, because resolving symbols may
        // be impossible when the process ends (see `shutdown`).
        drop(RandomState::new());
        loop {
            // Once gpuflame is switched off, windows are drawn only if the process exits normally.
            let may_render = self.is_ending.load(Ordering::Acquire) || !lifecycle::is_over();
            if may_render && self.render_next(&mut self.renderer.lock()) {
                continue;
            }
            let mut queue = self.queue.lock();
            let is_ending = self.is_ending.load(Ordering::Acquire);
            if is_ending && queue.is_empty() {
                return;
            }
            if !is_ending && (queue.is_empty() || lifecycle::is_over()) {
                self.wakeup.wait(&mut queue);
            }
        }
    }

    /// Draws the files of the next window in the queue. Returns false if the queue is empty.
    fn render_next(&self, renderer: &mut WindowRenderer) -> bool {
        let Some(output) = self.queue.lock().pop_front() else { return false };
        let chosen = output_override::get();
        let outputs = chosen.as_ref().unwrap_or(&self.outputs).for_window(output.number);
        let report = renderer.render(&output, &self.settings, &outputs).unwrap_or_else(|error| WriteReport {
            failures: vec![format!("window {}: {error}", output.number)],
            ..WriteReport::default()
        });
        renderer.rendered.add(report);
        true
    }
}

impl WindowRenderer {
    fn new(settings: &Settings) -> Self {
        Self {
            explain: sums_reader(settings),
            symbolizer: Symbolizer::new(draw::symbolize_options(settings)),
            generated: GeneratedCode::default(),
            rendered: RenderedWindows::default(),
        }
    }

    fn render(
        &mut self,
        output: &WindowOutput,
        settings: &Settings,
        outputs: &Outputs,
    ) -> Result<WriteReport> {
        if output.is_fresh {
            let rendered = std::mem::take(&mut self.rendered);
            *self = Self { rendered, ..Self::new(settings) };
        }
        self.explain.forget_checkpoint();
        let mut reader = Reader::new(&output.bytes[..])?;
        while let Some(row) = reader.next_row()? {
            self.explain.push(&row, &mut ());
        }
        let Snapshot { profile, ledger } = self.explain.snapshot(&[], &mut ());
        for (address, name) in self.generated.names(profile) {
            profile.push(&Row::Generated { address, name: &name });
        }
        self.symbolizer.name(profile);
        let is_drawn =
            |output: &Output| !output.is_streamed() && !matches!(output, Output::Stacks | Output::Sums);
        let wanted: Vec<_> = settings.formats.iter().copied().filter(is_drawn).collect();
        Ok(draw::write_files(
            profile,
            settings,
            &wanted,
            (outputs, None),
            (Some(output.number), &ledger),
            draw::SumsOptions::default(),
            None,
        ))
    }
}

/// Creates an `Explain` into which the sums of another `Explain` can be read.
fn sums_reader(settings: &Settings) -> Explain {
    Explain::new(Options {
        by_stream: settings.root.contains(&Root::Stream),
        merge_threads: !settings.root.contains(&Root::Thread),
        ..Options::default()
    })
}

impl RenderedWindows {
    /// Adds the report about the files of one window. A failure that affects all windows should be printed only once.
    /// Therefore only the failures of the first window that has failures are kept.
    fn add(&mut self, more: WriteReport) {
        self.windows += u64::from(!more.written.is_empty());
        self.report.written.extend(more.written);
        self.sets.extend(more.about);
        self.report.renamed.extend(more.renamed);
        if self.report.failures.is_empty() {
            self.report.failures = more.failures;
        }
    }

    /// Returns one ledger line about the files of all windows.
    pub(crate) fn ledger_line(&self) -> Option<String> {
        let files = &self.report.written;
        let (first, last): (&PathBuf, &PathBuf) = (files.first()?, files.last()?);
        let counted = |count: usize, word| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        let windows = counted(usize::try_from(self.windows).unwrap_or(usize::MAX), "window");
        let last = if files.len() == 1 { String::new() } else { format!(" to {}", last.display()) };
        let gone = files.iter().filter(|file| !is_name_taken(file)).count();
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
    use gpuflame_os::testing::folder;

    #[test]
    fn set_files_of_windows_are_listed_separately() {
        let mut rendered = RenderedWindows::default();
        for number in [1, 2] {
            let [svg, set] =
                ["svg", "set.json"].map(|ending| PathBuf::from(format!("out.{number}.{ending}")));
            rendered.add(WriteReport { written: vec![svg], about: Some(set), ..WriteReport::default() });
        }
        let sets = ["out.1.set.json", "out.2.set.json"].map(PathBuf::from);
        assert_eq!((rendered.windows, rendered.report.written.len(), &rendered.sets[..]), (2, 2, &sets[..]));
    }

    #[test]
    fn window_files_removed_after_writing_are_counted_as_removed() {
        let folder = folder("sets-removed");
        let written: Vec<_> = ["out.1.svg", "out.2.svg"].iter().map(|name| folder.join(name)).collect();
        fs::write(&written[1], "").unwrap();
        let [first, last] = [0, 1].map(|at: usize| written[at].display().to_string());
        let rendered = RenderedWindows {
            windows: 2,
            report: WriteReport { written, ..WriteReport::default() },
            sets: Vec::new(),
        };
        let expected =
            format!("wrote 2 windows in 2 files: {first} to {last}; 1 file removed or moved since");
        assert_eq!(rendered.ledger_line(), Some(expected));
        fs::remove_dir_all(folder).unwrap();
    }
}

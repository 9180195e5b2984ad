//! Writes the checkpoint, a file that preserves the sums if the process dies without running its exit handlers
//! (SIGKILL, a crash, `_exit`, `exec`). Once the process has launched GPU work, the checkpoint's own thread appends the
//! changed sums to the file about once a second. `record::encode` documents the file's layout. If the settings request
//! a recording of the rows themselves, there is no checkpoint, because the recording serves the same purpose.
//!
//! ```text
//! collector -> pipeline <-locked for a moment- this thread -appends-> NAME.gfr
//! ```
//!
//! No thread waits for the checkpoint's thread. The checkpoint's thread assembles each piece of data in memory. While
//! it writes to the file system, it holds no lock that other threads need. Sums that have not changed are not written
//! again. If a checkpoint file has grown much larger than its content, a new file replaces it. A process that exits
//! normally first writes its outputs, and then removes its checkpoint. Therefore the checkpoint is still complete if
//! the process is killed while its outputs are being written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::lifecycle;
use gpuflame_config::Outputs;
use gpuflame_config::settings::{Output, Settings};
use gpuflame_explain::Definitions;
use gpuflame_model::error::Result;
use gpuflame_model::record::{CheckpointMark, Chunk, Nanos, RecordingState, SumsWriter};
use gpuflame_os::descriptor::{Appender, FileId};
use gpuflame_os::file::Draft;
use gpuflame_os::futex::EventFlags;
use gpuflame_os::{process_liveness, shortage, threads};

use super::pipeline::Pipeline;
use crate::session::outputs::generated::CheckpointedNames;
use crate::session::outputs::growing_outputs;
use crate::session::process::launcher_report;
use crate::session::process::messages::print_from_own;
use crate::session::process::out_of_memory;
use crate::session::process::panic::disable_after_panic;
use crate::session::process::progress::POLL_INTERVAL;

/// Time from the process's first launch to its first checkpoint. This time is short, because a worker process may soon
/// end by `_exit`. Most of these worker processes are forked. Therefore in a forked process, each interval between
/// checkpoints is twice as long as the previous interval, up to the full interval. In other processes, the full
/// interval already applies after the first checkpoint.
const FIRST_CHECKPOINT_DELAY: Duration = Duration::from_millis(100);
/// Minimum pause after a checkpoint write, as a multiple of the duration of the write. With this factor, checkpoint
/// writes take at most half a percent of the elapsed time.
const PAUSE_PER_WRITE_TIME: u32 = 200;
/// Maximum size in bytes of one piece of a checkpoint. While a piece is assembled, the pipeline is locked.
const MAX_PIECE_BYTES: usize = 1 << 20;
/// Maximum time for which an exiting process waits for a checkpoint write that is in progress.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Stack size in bytes for the checkpoint's own thread. This thread only sorts and copies data, and calls no foreign
/// code.
const STACK_BYTES: usize = 512 << 10;

/// Source of the sums for a checkpoint, and of the rows from which the sums are computed.
pub(crate) trait CheckpointSource: Sync {
    /// Makes the collector read all rows that are ready. Before the first checkpoint (`is_first`), also flushes CUPTI.
    fn read_ready(&self, is_first: bool);
    /// Locks the pipeline and calls `action`. Returns the time that `action` took.
    fn with_pipeline(&self, action: &mut dyn FnMut(&mut Pipeline)) -> Duration;
}

/// State of the checkpoint of this process.
pub(crate) struct Checkpoint {
    outputs: Outputs,
    formats: Vec<Output>,
    /// Folder for reports to the launcher, which is the program that started this process. A report contains the path
    /// of the checkpoint file.
    report: Option<PathBuf>,
    interval: Duration,
    /// Number of bytes by which the checkpoint file may exceed twice the size of its content.
    slack_bytes: usize,
    began: Nanos,
    /// Requests to the checkpoint's thread, which are made while the process is ending. `done` contains the requests
    /// that the checkpoint's thread has carried out.
    requested: EventFlags,
    done: EventFlags,
    /// Contains [`WORK`] as soon as the checkpoint's thread has something to do.
    woken: EventFlags,
    /// Time in ns at which the process made its first launch.
    first_work: AtomicU64,
    /// Whether the checkpoint's thread still appends to the file.
    is_active: AtomicBool,
    /// Number of rows of work (see `Pipeline::rows_of_work`) whose sums are in the checkpoint file.
    work: AtomicU64,
    file: Mutex<CheckpointFile>,
    /// Path of the checkpoint file, stored separately for threads that must not wait for a file system. While a thread
    /// holds the lock of this path, it does not access a file.
    name: Mutex<Option<PathBuf>>,
}

/// Request that no further regular checkpoint be written, because the process is ending. A regular checkpoint makes the
/// collector read rows. A thread that waits for the collector would mistake this reading for progress towards the exit.
const STOP_REGULAR: u32 = 1;
/// Request to write the last checkpoint, which includes the remaining rows. The thread that makes this request waits
/// until the checkpoint is written.
const WRITE_LAST: u32 = 2;
/// Flag in `requested`. This flag means that the thread that requested the last checkpoint no longer waits for it, so
/// nothing more may be written.
const TOO_LATE: u32 = 4;
/// Flag in `woken`. This flag means that the process has made its first launch of GPU work, or is ending.
const WORK: u32 = 1;

/// State of the checkpoint file on disk.
#[derive(Debug, Default)]
struct CheckpointFile {
    written: Option<CurrentFile>,
    /// Unfinished file that will replace the file in `written`; `None` if that file is not being replaced.
    next: Option<Draft>,
    /// Whether nothing more may be written to the checkpoint file.
    is_closed: bool,
    /// Whether the head of the file states that a mark was due but has not been written. (A mark is the row that ends a
    /// checkpoint.)
    is_late: bool,
}

/// Result of an attempt to write a checkpoint that is due.
enum CheckpointOutcome {
    /// The checkpoint was written. The next checkpoint is due after this duration.
    Written(Duration),
    /// Nothing was written, because no sums had changed.
    Unchanged,
    /// Nothing was written, because there was too little memory to compute the sums.
    NoRoom,
}

#[derive(Debug)]
struct CurrentFile {
    path: PathBuf,
    identity: FileId,
    bytes: usize,
}

/// Describes what the checkpoint file already contains.
#[derive(Default)]
struct CheckpointContent {
    definitions: Definitions,
    definition_bytes: usize,
    sums: SumsWriter,
    generated: CheckpointedNames,
    /// Values of three counters of the pipeline at the last write: rows, rows of work (see `Pipeline::rows_of_work`),
    /// and entries that were merged into "others".
    rows: u64,
    work: u64,
    forgotten: u64,
    /// Whether the checkpoint file has reached its maximum size. If the file has reached this size, a new file must
    /// replace it before more sums are appended.
    is_full: bool,
    /// Duration of the last append to the file.
    append_time: Duration,
}

impl Checkpoint {
    /// Creates the checkpoint's state, but no file. Returns `None` if the settings disable checkpoints, or if the rows
    /// themselves are recorded.
    pub(crate) fn new(settings: &Settings, outputs: &Outputs) -> Option<Self> {
        let interval = settings.checkpoint.filter(|_| !settings.formats.contains(&Output::Recording))?;
        Some(Self {
            outputs: outputs.clone(),
            formats: [&settings.formats[..], &[Output::Recording]].concat(),
            report: settings.report.clone(),
            interval,
            slack_bytes: settings.checkpoint_max,
            began: capture::now(),
            requested: EventFlags::new(),
            done: EventFlags::new(),
            woken: EventFlags::new(),
            first_work: AtomicU64::new(0),
            is_active: AtomicBool::new(false),
            work: AtomicU64::new(0),
            file: Mutex::default(),
            name: Mutex::default(),
        })
    }

    /// Starts the checkpoint's thread. If the thread cannot be started, the program runs without checkpoints.
    pub(crate) fn spawn(&'static self, source: &'static impl CheckpointSource) -> io::Result<()> {
        let spawned = threads::spawn(c"gpuflame-keep", STACK_BYTES, move || {
            let run = std::panic::AssertUnwindSafe(|| self.run(source));
            if std::panic::catch_unwind(run).is_err() {
                disable_after_panic();
            }
            // This thread sleeps forever instead of ending. The file names this thread as its writer, and programs that
            // read the file conclude from the thread's existence that the process is alive.
            threads::park_forever()
        });
        self.is_active.store(spawned.is_ok(), Ordering::Release);
        spawned
    }

    /// Ends regular checkpoints, because the process is ending and the remaining rows are about to be read.
    pub(crate) fn stop_regular(&self) {
        self.requested.set(STOP_REGULAR);
    }

    /// Writes all sums one last time, before the outputs are written. If no checkpoint file exists yet, does nothing
    /// unless `in_any_case` is true. The checkpoint's own thread writes the sums, because a file system may block the
    /// writer. The caller waits until the sums are written, but at most for `patience`.
    pub(crate) fn write_last(&self, in_any_case: bool, patience: Duration) {
        if !self.is_active() || !(in_any_case || self.path().is_some()) {
            return;
        }
        self.requested.set(STOP_REGULAR | WRITE_LAST);
        self.wake();
        shortage::end_sleeps();
        let began = Instant::now();
        while !self.done.has(WRITE_LAST)
            && let Some(patience) = patience.checked_sub(began.elapsed())
        {
            // Each single wait is limited to `POLL_INTERVAL`, so that the calling thread wakes up regularly and uses
            // CPU time. Yet another thread waits for the calling thread, and regards its growing CPU time as progress.
            self.done.wait(self.done.get() & !WRITE_LAST, Some(patience.min(POLL_INTERVAL)));
        }
        self.requested.set(TOO_LATE);
    }

    /// Notes the time of the first launch. The first checkpoint is due soon after the first launch.
    pub(crate) fn note_first_work(&self, time: Nanos) {
        if !self.woken.has(WORK) {
            self.first_work.store(time.0, Ordering::Release);
            self.wake();
        }
    }

    /// Wakes the checkpoint's thread if it is still waiting for the first launch.
    pub(crate) fn wake(&self) {
        self.woken.set(WORK);
    }

    /// Sleeps until the process makes its first launch. Returns the time until the first checkpoint is due.
    fn wait_for_work(&self) -> Duration {
        while !self.woken.has(WORK) {
            self.woken.wait(0, None);
        }
        let since = capture::now().since(Nanos(self.first_work.load(Ordering::Acquire)));
        FIRST_CHECKPOINT_DELAY.min(self.interval).saturating_sub(Duration::from_nanos(since))
    }

    /// Path of the checkpoint file; `None` if no file exists.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.name.lock().clone()
    }

    /// Keeps the checkpoint file because other outputs could not be written. The head of the file then states that the
    /// process has exited, and whether the file contains the sums of all `work` rows of work. Returns the path of the
    /// file, or `None` if no file exists.
    pub(crate) fn keep(&self, work: u64) -> Option<PathBuf> {
        let Some(mut file_state) = self.file.try_lock_for(WRITE_TIMEOUT) else { return self.path() };
        file_state.is_closed = true;
        file_state.next = None;
        let is_late = file_state.is_late || self.work.load(Ordering::Acquire) != work;
        let written = file_state.written.as_ref()?;
        written
            .write_state(RecordingState { missed_mark: is_late, exited: true, finished: false })
            .is_ok()
            .then(|| written.path.clone())
    }

    /// Whether the checkpoint file still exists under its name. If it does, a file with the final sums may replace it.
    /// Returns `None` if another thread is blocked while it writes to the checkpoint file.
    pub(crate) fn is_replaceable(&self) -> Option<bool> {
        let file_state = self.file.try_lock_for(WRITE_TIMEOUT)?;
        Some(file_state.written.as_ref().is_some_and(CurrentFile::has_its_name))
    }

    /// Removes the checkpoint file, because the outputs now contain all of its content. If a file with the final sums
    /// has already replaced the checkpoint file under the same name, the new file stays.
    pub(crate) fn remove(&self) {
        // If a thread is blocked in a file system while it holds the file's lock, the checkpoint file is not removed.
        let Some(mut file_state) = self.file.try_lock_for(WRITE_TIMEOUT) else { return };
        file_state.is_closed = true;
        file_state.next = None;
        if let Some(written) = file_state.written.take().filter(CurrentFile::has_its_name) {
            let _ = fs::remove_file(written.path);
        }
    }

    /// Notes in the checkpoint file that recording has ended because memory ran out. Does nothing if the checkpoint's
    /// thread is in the middle of a write. If the checkpoint's thread is in the middle of a write, it has been stopped
    /// and never releases the lock.
    pub(crate) fn note_out_of_memory(&self) {
        let Some(file_state) = self.file.try_lock() else { return };
        if let Some(written) = file_state.written.as_ref().filter(|_| !file_state.is_closed) {
            let mut chunk = Chunk::default();
            chunk.memory_exhausted();
            let _ = append(&written.path, written.identity, written.bytes as u64, &chunk.take());
        }
    }

    fn run(&self, source: &impl CheckpointSource) {
        threads::note_ours();
        // When a thread of this process waits on a lock for the first time, the wait resolves symbols and takes the
        // loader's lock. The first such wait is made here, because later another thread may hold the loader's lock
        // forever.
        Condvar::new().wait_for(&mut Mutex::new(()).lock(), Duration::from_millis(1));
        let (mut content, mut pause) = (None, self.wait_for_work());
        let mut doubled = if process_liveness::is_forked() {
            FIRST_CHECKPOINT_DELAY.min(self.interval)
        } else {
            self.interval
        };
        let (mut is_skip_printed, mut is_first) = (false, true);
        let mut is_restarted = false;
        loop {
            shortage::sleep_unless_short(pause);
            let is_last = self.is_last_checkpoint();
            if self.must_stop() {
                return;
            }
            let is_starved = shortage::is_short();
            // The rows that are read below include all launches up to `time`.
            let time = capture::now();
            if !is_last {
                source.read_ready(std::mem::take(&mut is_first));
            }
            doubled = self.interval.min(2 * doubled);
            pause = doubled;
            match self.write(source, &mut content, (time, doubled), is_last) {
                Ok(CheckpointOutcome::Written(next)) => {
                    pause = next;
                    is_restarted = false;
                    self.work.store(content.as_ref().map_or(0, |content| content.work), Ordering::Release);
                }
                Ok(CheckpointOutcome::Unchanged) => {}
                Ok(CheckpointOutcome::NoRoom) => {
                    self.note_mark_missing(true);
                    if !std::mem::replace(&mut is_skip_printed, true) {
                        let remark = if self.path().is_some() {
                            "; the previous checkpoint is still valid"
                        } else {
                            ""
                        };
                        print_from_own(&format!(
                            "checkpoint skipped: it does not fit into GPUFLAME_MAX_MEM{remark}"
                        ));
                    }
                }
                Err(error) => {
                    // Drops the unfinished replacement file, which would only take up disk space.
                    self.file.lock().next = None;
                    // If the write failed because someone removed the checkpoint file, a new file is started.
                    if content.take().is_some()
                        && !is_restarted
                        && !is_last
                        && !self.must_stop()
                        && !self.has_file()
                    {
                        is_restarted = true;
                        continue;
                    }
                    if !self.must_stop() {
                        print_from_own(&format!("checkpoints stop: {error}; recording continues"));
                        self.note_mark_missing(true);
                    }
                    self.is_active.store(false, Ordering::Release);
                    self.done.set(WRITE_LAST);
                    // Memory has run out, so this thread has to end the session.
                    if is_starved && !is_last {
                        out_of_memory::end_session();
                    }
                    return;
                }
            }
            // At this point, the process is already ending. Therefore there is no session to end, even if memory has
            // run out.
            if is_last {
                return self.done.set(WRITE_LAST);
            }
            if is_starved {
                return out_of_memory::end_session();
            }
        }
    }

    /// Whether the next checkpoint is the last one. If the process is ending, waits for the request to write the last
    /// checkpoint or to stop.
    fn is_last_checkpoint(&self) -> bool {
        loop {
            match self.requested.get() {
                0 => return false,
                _ if self.must_stop() => threads::park_forever(),
                requested if requested & WRITE_LAST != 0 => return true,
                requested => self.requested.wait(requested, None),
            }
        }
    }

    /// Whether nothing more may be written to the checkpoint file. There are two cases: the thread that requested the
    /// last checkpoint no longer waits, or gpuflame was switched off without a request to the checkpoint's thread.
    fn must_stop(&self) -> bool {
        match self.requested.get() {
            0 => lifecycle::is_over(),
            requested => requested & TOO_LATE != 0,
        }
    }

    /// Writes into the head of the file whether a mark was due but has not been written. If the head cannot be written,
    /// it stays as it is.
    fn note_mark_missing(&self, is_late: bool) {
        let mut file_state = self.file.lock();
        let CheckpointFile { written: Some(written), is_late: was_late, .. } = &mut *file_state else {
            return;
        };
        if *was_late != is_late {
            let state = RecordingState { missed_mark: is_late, ..RecordingState::default() };
            let result = written.write_state(state);
            *was_late = is_late && result.is_ok();
        }
    }

    /// Whether the checkpoint's thread still appends to the file.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// Writes the sums that have changed since the last checkpoint. `moment` contains the current time and the interval
    /// to the next checkpoint. The interval becomes longer if a write takes long. The last checkpoint is skipped if the
    /// only new rows are window edges, because the file already covers all launches. Skipping this checkpoint saves
    /// time, because a thread waits for it, and examining 80,000 sums would take 40 ms.
    fn write(
        &self,
        source: &impl CheckpointSource,
        content: &mut Option<CheckpointContent>,
        moment: (Nanos, Duration),
        is_last: bool,
    ) -> Result<CheckpointOutcome> {
        let (mut rows, mut work, mut forgotten, mut has_room) = (0, 0, 0, false);
        let mut has_work = false;
        source.with_pipeline(&mut |pipeline| {
            has_work = pipeline.has_work();
            (rows, work, forgotten) = (pipeline.rows(), pipeline.rows_of_work(), pipeline.forgotten());
            has_room = pipeline.has_room(capture::bytes_held());
        });
        let (rows_before, work_before) =
            content.as_ref().map_or((0, 0), |content| (content.rows, content.work));
        if !has_work || rows == rows_before || is_last && work == work_before {
            return Ok(CheckpointOutcome::Unchanged);
        }
        if !has_room {
            return Ok(CheckpointOutcome::NoRoom);
        }
        let can_append =
            content.as_ref().is_some_and(|content| content.forgotten == forgotten) && self.has_file();
        if can_append && let Some(content) = content {
            let outcome = self.append_changes(source, content, Chunk::default(), moment)?;
            if !content.is_full {
                return Ok(outcome);
            }
        }
        // Starts a new file, which replaces the previous file. A new file is needed because the previous file is full,
        // was removed, or contains outdated sums.
        let append_time = content.take().map_or(Duration::ZERO, |content| content.append_time);
        let mut new = CheckpointContent { append_time, ..CheckpointContent::default() };
        self.begin_file()?;
        let mut chunk = Chunk::default();
        chunk.writer(&growing_outputs::this_thread());
        let outcome = self.append_changes(source, &mut new, chunk, moment)?;
        match outcome {
            CheckpointOutcome::Written(_) => {
                self.publish_file()?;
                *content = Some(new);
            }
            _ => self.file.lock().next = None,
        }
        Ok(outcome)
    }

    /// Assembles the changed sums, in several pieces if there are many. Appends the pieces to the file, unless the file
    /// would become too large.
    fn append_changes(
        &self,
        source: &impl CheckpointSource,
        content: &mut CheckpointContent,
        mut chunk: Chunk,
        (time, interval): (Nanos, Duration),
    ) -> Result<CheckpointOutcome> {
        let mut took = append_generated_names(source, content, &mut chunk);
        let (mut is_all, mut next) = (false, None);
        while !is_all {
            let before = took;
            took += source.with_pipeline(&mut |pipeline| {
                let began = Instant::now();
                is_all = pipeline.write_definitions(&mut content.definitions, &mut chunk, MAX_PIECE_BYTES);
                // Checks again whether there is room for the sums, because memory use has grown since the first check.
                if is_all && pipeline.has_room(capture::bytes_held()) {
                    content.definition_bytes += chunk.len();
                    (content.rows, content.forgotten) = (pipeline.rows(), pipeline.forgotten());
                    content.work = pipeline.rows_of_work();
                    let open = pipeline.write_sums(&mut content.sums, &mut chunk);
                    // The mark at the end of this checkpoint states when the next mark is due. This due time depends on
                    // the duration of the current write, which is not known yet. Therefore the duration of the last
                    // append is used as an estimate.
                    let pause = pause_after(before + began.elapsed() + content.append_time, interval);
                    let interval_ms = pause.as_millis() as u32;
                    chunk.mark(&CheckpointMark { began: self.began, time, interval_ms, open });
                    next = Some(pause);
                }
            });
            let bytes = chunk.take();
            if next.is_none() {
                content.definition_bytes += bytes.len();
            }
            let began = Instant::now();
            let most = 2 * (content.definition_bytes + content.sums.bytes()) + self.slack_bytes;
            if is_all && self.bytes() + bytes.len() > most {
                content.is_full = true;
            } else {
                self.append(&bytes)?;
            }
            content.append_time = began.elapsed();
            took += content.append_time;
        }
        if next.is_some() {
            self.note_mark_missing(false);
        }
        Ok(next.map_or(CheckpointOutcome::NoRoom, CheckpointOutcome::Written))
    }

    /// Size of the checkpoint file in bytes; 0 while a replacement is being written.
    fn bytes(&self) -> usize {
        let file_state = self.file.lock();
        let written = file_state.written.as_ref().filter(|_| file_state.next.is_none());
        written.map_or(0, |written| written.bytes)
    }

    /// Whether there is a checkpoint file to which sums can be appended. Returns false if the file was removed. If the
    /// file was removed, the caller starts a new file.
    fn has_file(&self) -> bool {
        self.file.lock().written.as_ref().is_some_and(CurrentFile::has_its_name)
    }

    /// Starts a new checkpoint file under a temporary name.
    fn begin_file(&self) -> Result<()> {
        let mut file_state = self.lock_file()?;
        let removed =
            file_state.written.take_if(|written| !written.has_its_name()).map(|written| written.path);
        let next = match &file_state.written {
            Some(written) => Draft::create(&written.path)?,
            None => growing_outputs::with_free_name(&self.outputs, &self.formats, Draft::create)?,
        };
        append(next.path(), next.identity(), 0, &Chunk::file_header())?;
        file_state.next = Some(next);
        drop(file_state);
        if let Some(path) = removed {
            print_from_own(&format!(
                "{} was removed during the run; checkpoints continue in a new file",
                path.display()
            ));
        }
        Ok(())
    }

    /// Appends `bytes` to the checkpoint file, or to its unfinished replacement.
    fn append(&self, bytes: &[u8]) -> Result<()> {
        let mut file_state = self.lock_file()?;
        if let Some(next) = &file_state.next {
            let there = fs::metadata(next.path())?.len();
            return Ok(append(next.path(), next.identity(), there, bytes)?);
        }
        if let Some(written) = &mut file_state.written {
            append(&written.path, written.identity, written.bytes as u64, bytes)?;
            written.bytes += bytes.len();
        }
        Ok(())
    }

    /// Gives the new checkpoint file the name of the old file. If there is no old file, chooses a free name.
    fn publish_file(&self) -> Result<()> {
        let mut file_state = self.lock_file()?;
        let Some(next) = file_state.next.take() else { return Ok(()) };
        let (identity, bytes) = (next.identity(), fs::metadata(next.path())?.len() as usize);
        let path = match file_state.written.take() {
            Some(CurrentFile { path, .. }) => {
                next.publish_as(&path)?;
                path
            }
            None => {
                let mut next = Some(next);
                let formats = &self.formats;
                growing_outputs::with_free_name(&self.outputs, formats, |path| {
                    match next.as_ref().map(Draft::path) {
                        Some(from) if fs::hard_link(from, path).is_ok() => Ok(path.to_owned()),
                        _ if growing_outputs::is_name_taken(path) => Err(io::ErrorKind::AlreadyExists.into()),
                        // This code runs if the file system does not support hard links, so the file is renamed
                        // instead.
                        _ => {
                            next.take().map_or(Ok(()), |next| next.publish_as(path)).map(|()| path.to_owned())
                        }
                    }
                })
                .inspect(|path| launcher_report::note_file(self.report.as_deref(), path, self.began))?
            }
        };
        *self.name.lock() = Some(path.clone());
        file_state.written = Some(CurrentFile { path, identity, bytes });
        file_state.is_late = false;
        Ok(())
    }

    fn lock_file(&self) -> io::Result<parking_lot::MutexGuard<'_, CheckpointFile>> {
        let file_state = self.file.lock();
        match file_state.is_closed || self.must_stop() {
            true => Err(io::Error::other("the process is ending")),
            false => Ok(file_state),
        }
    }
}

impl CurrentFile {
    /// Writes the state of the recording into the head of the file.
    fn write_state(&self, standing: RecordingState) -> io::Result<()> {
        Appender::new(&self.path, self.identity, None).overwrite(&Chunk::header(standing))
    }

    /// Whether the checkpoint file still exists under its name.
    fn has_its_name(&self) -> bool {
        Appender::new(&self.path, self.identity, None).open().is_ok()
    }
}

/// Appends the current names of generated code, because after the process has ended, these names can no longer be
/// looked up. Returns how long the append took.
fn append_generated_names(
    source: &impl CheckpointSource,
    content: &mut CheckpointContent,
    chunk: &mut Chunk,
) -> Duration {
    if shortage::is_short() {
        return Duration::ZERO;
    }
    let began = Instant::now();
    source.with_pipeline(&mut |pipeline| content.generated.add_new_frames(pipeline.profile()));
    content.generated.write_changes(|row| chunk.row(row));
    began.elapsed()
}

/// Returns the pause that follows a checkpoint write that took `spent`. The pause is at least `interval`.
fn pause_after(spent: Duration, interval: Duration) -> Duration {
    interval.max(PAUSE_PER_WRITE_TIME * spent)
}

/// Appends `bytes` to a file whose size is `there` bytes. If the write fails, truncates the file to its previous size.
fn append(path: &Path, identity: FileId, there: u64, bytes: &[u8]) -> io::Result<()> {
    let mut file: File = Appender::new(path, identity, None).open()?;
    file.write_all(bytes).inspect_err(|_| drop(file.set_len(there)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkpoint_pause_limits_writing_to_half_a_percent_of_the_time() {
        let interval = Duration::from_secs(1);
        let pause = |spent_ms| pause_after(Duration::from_millis(spent_ms), interval);
        assert_eq!([0, 5, 6, 50].map(pause).map(|pause| pause.as_millis()), [1000, 1000, 1200, 10_000]);
    }
}

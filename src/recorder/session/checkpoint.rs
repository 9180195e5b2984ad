//! The checkpoint is a file that survives if the process dies without running its exit handlers (SIGKILL, a crash,
//! `_exit`, `exec`). From the first launch on, a dedicated thread appends the sums that have changed to the file, about
//! once a second. `record::encode` shows its layout. If the rows themselves are recorded, the recording serves the same
//! purpose and there is no checkpoint.
//!
//! ```text
//! collector -> pipeline <-locked for a moment- this thread -appends-> NAME.gfr
//! ```
//!
//! No thread waits for the checkpoint's thread: it assembles each append in memory, and while it writes to the file
//! system it holds no lock that other threads need. Unchanged sums are not written again. A file that has grown much
//! larger than its content is replaced by a new file. A process that exits normally removes its checkpoint after it has
//! written its outputs, so a process that is killed while it writes its outputs still leaves a complete checkpoint.

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
use gpuflame_model::record::{Chunk, Mark, Nanos, Standing, SumsWriter};
use gpuflame_os::descriptor::{Appender, Identity};
use gpuflame_os::file::Draft;
use gpuflame_os::futex::Bits;
use gpuflame_os::{alive, shortage, threads};

use super::about;
use super::generated::NamesSoFar;
use super::messages::say;
use super::out_of_memory;
use super::panic::disable_after_panic;
use super::pipeline::Pipeline;
use super::progress::POLL_INTERVAL;
use super::stream;

/// Time from the first launch to the first checkpoint. This time is short, because a worker process may soon end by
/// `_exit`. In a forked process, as most workers are, the following intervals double; in other processes the full
/// interval follows at once.
const FIRST_AFTER: Duration = Duration::from_millis(100);
/// Pause after a write, as a multiple of the time that the write took, so that writing takes at most half a percent of
/// the thread's time.
const RARER: u32 = 200;
/// Maximum size of a piece assembled while the pipeline is locked.
const PIECE: usize = 1 << 20;
/// Maximum time for which an exit waits for a write in progress.
const LONGEST_WRITE: Duration = Duration::from_secs(1);
/// Stack size of the thread, which sorts and copies, and calls no foreign code.
const STACK: usize = 512 << 10;

/// Source of the sums.
pub(super) trait Recorded: Sync {
    /// Lets the collector read everything that was delivered so far. If `is_first`, CUPTI is flushed before.
    fn read_ready(&self, is_first: bool);
    /// Locks the pipeline and calls `look`. Returns how long `look` took.
    fn locked(&self, look: &mut dyn FnMut(&mut Pipeline)) -> Duration;
}

/// See the module's documentation.
pub(super) struct Checkpoint {
    outputs: Outputs,
    formats: Vec<Output>,
    /// Folder for reports to the program that started this process, such as the path of the checkpoint.
    report: Option<PathBuf>,
    interval: Duration,
    /// Bytes by which the file may exceed twice the size of its content.
    room: usize,
    began: Nanos,
    /// Requests to the checkpoint's thread while the process ends, and the requests that the thread has fulfilled.
    asked: Bits,
    done: Bits,
    /// Contains [`WORK`] once the thread has something to do.
    woken: Bits,
    /// Time of the first launch, in nanoseconds.
    first_work: AtomicU64,
    /// Whether the thread still appends to the file.
    is_kept: AtomicBool,
    /// Number of rows of work in the file, as counted by `Pipeline::rows_of_work`.
    work: AtomicU64,
    file: Mutex<Place>,
    /// Path of the file, for threads that must not wait for a file system. Never locked during file operations.
    name: Mutex<Option<PathBuf>>,
}

/// Request to start no further checkpoint. Otherwise a thread that waits for the collector would mistake reads by the
/// checkpoint's thread for progress of the collector.
const REST: u32 = 1;
/// Request to write the gathered rows one last time, while a thread waits for this write.
const LAST: u32 = 2;
/// The wait for the last write is over, and nothing more may be written.
const TOO_LATE: u32 = 4;
/// The process has launched something, or is ending.
const WORK: u32 = 1;

/// State of the file on disk.
#[derive(Debug, Default)]
struct Place {
    written: Option<Written>,
    /// Unfinished file that will replace `written`.
    next: Option<Draft>,
    /// The file is closed for writing.
    is_closed: bool,
    /// The file states that a mark was due and is missing.
    is_late: bool,
}

/// Outcome of a checkpoint that was due.
enum Taken {
    /// The checkpoint was written, and the next checkpoint is due after this time.
    Written(Duration),
    /// The sums had not changed.
    Nothing,
    /// There was not enough memory to compute the sums.
    NoRoom,
}

#[derive(Debug)]
struct Written {
    path: PathBuf,
    identity: Identity,
    bytes: usize,
}

/// Content of the file.
#[derive(Default)]
struct Book {
    definitions: Definitions,
    definition_bytes: usize,
    sums: SumsWriter,
    generated: NamesSoFar,
    /// Numbers of rows, of rows of work and of entries merged into "others" when the file was last written.
    rows: u64,
    work: u64,
    forgotten: u64,
    /// The file has reached its maximum size, and must be replaced before any sums are appended.
    is_full: bool,
    /// Duration of the last append.
    appending: Duration,
}

impl Checkpoint {
    /// Creates a checkpoint. `None` if the settings disable checkpoints, or if the rows are recorded.
    pub(super) fn new(settings: &Settings, outputs: &Outputs) -> Option<Self> {
        let interval = settings.checkpoint.filter(|_| !settings.formats.contains(&Output::Recording))?;
        Some(Self {
            outputs: outputs.clone(),
            formats: [&settings.formats[..], &[Output::Recording]].concat(),
            report: settings.report.clone(),
            interval,
            room: settings.checkpoint_max,
            began: capture::now(),
            asked: Bits::new(),
            done: Bits::new(),
            woken: Bits::new(),
            first_work: AtomicU64::new(0),
            is_kept: AtomicBool::new(false),
            work: AtomicU64::new(0),
            file: Mutex::default(),
            name: Mutex::default(),
        })
    }

    /// Starts the thread. If that fails, the program runs without checkpoints.
    pub(super) fn spawn(&'static self, recorded: &'static impl Recorded) -> io::Result<()> {
        let spawned = threads::spawn(c"gpuflame-keep", STACK, move || {
            let run = std::panic::AssertUnwindSafe(|| self.run(recorded));
            if std::panic::catch_unwind(run).is_err() {
                disable_after_panic();
            }
            // The file names this thread as its writer, so the process counts as alive while the thread exists. The
            // thread therefore stops instead of ending.
            threads::stop()
        });
        self.is_kept.store(spawned.is_ok(), Ordering::Release);
        spawned
    }

    /// Prevents further checkpoints, because the process is ending and the remaining rows are about to be gathered.
    pub(super) fn rest(&self) {
        self.asked.set(REST);
    }

    /// Writes all sums one last time, before the outputs are written, if a checkpoint exists or `in_any_case`. The
    /// checkpoint's own thread does the writing, because a file system may block the write. The caller waits for at
    /// most `patience`.
    pub(super) fn write_last(&self, in_any_case: bool, patience: Duration) {
        if !self.is_kept() || !(in_any_case || self.kept().is_some()) {
            return;
        }
        self.asked.set(REST | LAST);
        self.wake();
        shortage::wake_for_good();
        let began = Instant::now();
        while !self.done.has(LAST)
            && let Some(patience) = patience.checked_sub(began.elapsed())
        {
            // This thread wakes up regularly, because another thread waits for it and checks whether it still runs.
            self.done.wait(self.done.get() & !LAST, Some(patience.min(POLL_INTERVAL)));
        }
        self.asked.set(TOO_LATE);
    }

    /// Notes the time of the first launch. A checkpoint is due soon after that time.
    pub(super) fn note_first_work(&self, time: Nanos) {
        if !self.woken.has(WORK) {
            self.first_work.store(time.0, Ordering::Release);
            self.wake();
        }
    }

    /// Wakes the thread if it still waits for the first launch.
    pub(super) fn wake(&self) {
        self.woken.set(WORK);
    }

    /// Sleeps until the first launch. Returns the time left until the first checkpoint.
    fn wait_for_work(&self) -> Duration {
        while !self.woken.has(WORK) {
            self.woken.wait(0, None);
        }
        let since = capture::now().since(Nanos(self.first_work.load(Ordering::Acquire)));
        FIRST_AFTER.min(self.interval).saturating_sub(Duration::from_nanos(since))
    }

    /// Path of the file; `None` if there is no file.
    pub(super) fn kept(&self) -> Option<PathBuf> {
        self.name.lock().clone()
    }

    /// Keeps the file because other outputs could not be written. The head of the file then states that the process has
    /// ended, and whether all `work` rows are in the file. Returns the path of the file; `None` if there is no file.
    pub(super) fn leave(&self, work: u64) -> Option<PathBuf> {
        let Some(mut place) = self.file.try_lock_for(LONGEST_WRITE) else { return self.kept() };
        place.is_closed = true;
        place.next = None;
        let is_late = place.is_late || self.work.load(Ordering::Acquire) != work;
        let written = place.written.as_ref()?;
        written.stands(Standing { is_late, is_over: true }).is_ok().then(|| written.path.clone())
    }

    /// Removes the file, because the outputs contain everything that the file contains.
    pub(super) fn remove(&self) {
        // If a thread is blocked in a file system, it holds this lock, and the file stays.
        let Some(mut place) = self.file.try_lock_for(LONGEST_WRITE) else { return };
        place.is_closed = true;
        place.next = None;
        if let Some(written) = place.written.take().filter(Written::is_ours) {
            let _ = fs::remove_file(written.path);
        }
    }

    /// Notes in the file that recording ended because memory ran out. If the checkpoint's thread is writing to the
    /// file, nothing is noted, because that thread will not run again and release its lock.
    pub(super) fn starve(&self) {
        let Some(place) = self.file.try_lock() else { return };
        if let Some(written) = place.written.as_ref().filter(|_| !place.is_closed) {
            let mut chunk = Chunk::default();
            chunk.starved();
            let _ = append(&written.path, written.identity, written.bytes as u64, &chunk.take());
        }
    }

    fn run(&self, recorded: &impl Recorded) {
        threads::note_ours();
        // The first wait on a lock resolves symbols under the loader's lock, which may later be held forever.
        Condvar::new().wait_for(&mut Mutex::new(()).lock(), Duration::from_millis(1));
        let (mut book, mut pause) = (None, self.wait_for_work());
        let mut doubled = if alive::is_forked() { FIRST_AFTER.min(self.interval) } else { self.interval };
        let (mut has_said, mut is_first) = (false, true);
        let mut is_begun_anew = false;
        loop {
            shortage::sleep_unless_short(pause);
            let is_last = self.rests_and_is_asked();
            if self.is_out() {
                return;
            }
            let is_starved = shortage::is_short();
            // All launches up to `time` are among the rows that are read next.
            let time = capture::now();
            if !is_last {
                recorded.read_ready(std::mem::take(&mut is_first));
            }
            doubled = self.interval.min(2 * doubled);
            pause = doubled;
            match self.write(recorded, &mut book, (time, doubled), is_last) {
                Ok(Taken::Written(next)) => {
                    pause = next;
                    is_begun_anew = false;
                    self.work.store(book.as_ref().map_or(0, |book| book.work), Ordering::Release);
                }
                Ok(Taken::Nothing) => {}
                Ok(Taken::NoRoom) => {
                    self.say_late(true);
                    if !std::mem::replace(&mut has_said, true) {
                        let stands = if self.kept().is_some() {
                            "; the previous checkpoint is still valid"
                        } else {
                            ""
                        };
                        say(&format!("checkpoint skipped: it does not fit into GPUFLAME_MAX_MEM{stands}"));
                    }
                }
                Err(error) => {
                    // An unfinished replacement would only take up space.
                    self.file.lock().next = None;
                    // If the file was removed during the write, a new file is started.
                    if book.take().is_some()
                        && !is_begun_anew
                        && !is_last
                        && !self.is_out()
                        && !self.is_there()
                    {
                        is_begun_anew = true;
                        continue;
                    }
                    if !self.is_out() {
                        say(&format!("checkpoints stop: {error}; recording continues"));
                        self.say_late(true);
                    }
                    self.is_kept.store(false, Ordering::Release);
                    self.done.set(LAST);
                    // If memory has run out, no other thread ends the session.
                    if is_starved && !is_last {
                        out_of_memory::end_session();
                    }
                    return;
                }
            }
            // The process is already ending, so running out of memory ends nothing more.
            if is_last {
                return self.done.set(LAST);
            }
            if is_starved {
                return out_of_memory::end_session();
            }
        }
    }

    /// Whether this is the last checkpoint. While the process ends, waits until a request decides this.
    fn rests_and_is_asked(&self) -> bool {
        loop {
            match self.asked.get() {
                0 => return false,
                _ if self.is_out() => threads::stop(),
                asked if asked & LAST != 0 => return true,
                asked => self.asked.wait(asked, None),
            }
        }
    }

    /// Whether nothing may be written any more, because the last wait is over or gpuflame was switched off without a
    /// request.
    fn is_out(&self) -> bool {
        match self.asked.get() {
            0 => lifecycle::is_over(),
            asked => asked & TOO_LATE != 0,
        }
    }

    /// States in the file that a due mark is missing, or is no longer missing, as far as the file system permits.
    fn say_late(&self, is_late: bool) {
        let mut place = self.file.lock();
        let Place { written: Some(written), is_late: was_late, .. } = &mut *place else { return };
        if *was_late != is_late {
            let said = written.stands(Standing { is_late, is_over: false });
            *was_late = is_late && said.is_ok();
        }
    }

    /// Whether the thread still appends to the file.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Acquire)
    }

    /// Writes the sums that have changed. The next checkpoint is due after `interval`, or later if writing takes long.
    /// The last checkpoint is skipped if nothing but a window edge is new: all launches are in the file then, a thread
    /// waits for the last checkpoint, and examining 80,000 sums takes 40 ms.
    fn write(
        &self,
        recorded: &impl Recorded,
        book: &mut Option<Book>,
        moment: (Nanos, Duration),
        is_last: bool,
    ) -> Result<Taken> {
        let (mut rows, mut work, mut forgotten, mut has_room) = (0, 0, 0, false);
        let mut has_work = false;
        recorded.locked(&mut |pipeline| {
            has_work = pipeline.has_work();
            (rows, work, forgotten) = (pipeline.rows(), pipeline.rows_of_work(), pipeline.forgotten());
            has_room = pipeline.has_room(capture::bytes_held());
        });
        let (rows_before, work_before) = book.as_ref().map_or((0, 0), |book| (book.rows, book.work));
        if !has_work || rows == rows_before || is_last && work == work_before {
            return Ok(Taken::Nothing);
        }
        if !has_room {
            return Ok(Taken::NoRoom);
        }
        let goes_on = book.as_ref().is_some_and(|book| book.forgotten == forgotten) && self.is_there();
        if goes_on && let Some(book) = book {
            let taken = self.add(recorded, book, Chunk::default(), moment)?;
            if !book.is_full {
                return Ok(taken);
            }
        }
        // Start a new file that replaces the previous file, which is full or was removed.
        let appending = book.take().map_or(Duration::ZERO, |book| book.appending);
        let mut new = Book { appending, ..Book::default() };
        self.begin()?;
        let mut chunk = Chunk::default();
        chunk.writer(&stream::this_thread());
        let taken = self.add(recorded, &mut new, chunk, moment)?;
        match taken {
            Taken::Written(_) => {
                self.replace()?;
                *book = Some(new);
            }
            _ => self.file.lock().next = None,
        }
        Ok(taken)
    }

    /// Assembles the changed sums, in several pieces if there are many, and appends the pieces if the file has room.
    fn add(
        &self,
        recorded: &impl Recorded,
        book: &mut Book,
        mut chunk: Chunk,
        (time, interval): (Nanos, Duration),
    ) -> Result<Taken> {
        let mut took = name_generated(recorded, book, &mut chunk);
        let (mut is_all, mut next) = (false, None);
        while !is_all {
            let before = took;
            took += recorded.locked(&mut |pipeline| {
                let began = Instant::now();
                is_all = pipeline.write_definitions(&mut book.definitions, &mut chunk, PIECE);
                // Memory use has grown since the first check, so it is checked again.
                if is_all && pipeline.has_room(capture::bytes_held()) {
                    book.definition_bytes += chunk.len();
                    (book.rows, book.forgotten) = (pipeline.rows(), pipeline.forgotten());
                    book.work = pipeline.rows_of_work();
                    let open = pipeline.write_sums(&mut book.sums, &mut chunk);
                    // The mark states when the next mark is due. The time that writing this mark will take is estimated
                    // from the last append.
                    let pause = pause_after(before + began.elapsed() + book.appending, interval);
                    let interval_ms = pause.as_millis() as u32;
                    chunk.mark(&Mark { began: self.began, time, interval_ms, open });
                    next = Some(pause);
                }
            });
            let bytes = chunk.take();
            if next.is_none() {
                book.definition_bytes += bytes.len();
            }
            let began = Instant::now();
            let most = 2 * (book.definition_bytes + book.sums.bytes()) + self.room;
            if is_all && self.bytes() + bytes.len() > most {
                book.is_full = true;
            } else {
                self.append(&bytes)?;
            }
            book.appending = began.elapsed();
            took += book.appending;
        }
        if next.is_some() {
            self.say_late(false);
        }
        Ok(next.map_or(Taken::NoRoom, Taken::Written))
    }

    /// Size of the file that grows; 0 while a replacement is being written.
    fn bytes(&self) -> usize {
        let place = self.file.lock();
        let written = place.written.as_ref().filter(|_| place.next.is_none());
        written.map_or(0, |written| written.bytes)
    }

    /// Whether there is a file that can grow. If the file was removed, the caller starts a new file.
    fn is_there(&self) -> bool {
        self.file.lock().written.as_ref().is_some_and(Written::is_ours)
    }

    /// Starts a new file.
    fn begin(&self) -> Result<()> {
        let mut place = self.open()?;
        let removed = place.written.take_if(|written| !written.is_ours()).map(|written| written.path);
        let next = match &place.written {
            Some(written) => Draft::create(&written.path)?,
            None => stream::free_name(&self.outputs, &self.formats, Draft::create)?,
        };
        append(next.path(), next.identity(), 0, &Chunk::file_head())?;
        place.next = Some(next);
        drop(place);
        if let Some(path) = removed {
            say(&format!(
                "{} was removed during the run; checkpoints continue in a new file",
                path.display()
            ));
        }
        Ok(())
    }

    /// Appends to the file, or to its unfinished replacement.
    fn append(&self, bytes: &[u8]) -> Result<()> {
        let mut place = self.open()?;
        if let Some(next) = &place.next {
            let there = fs::metadata(next.path())?.len();
            return Ok(append(next.path(), next.identity(), there, bytes)?);
        }
        if let Some(written) = &mut place.written {
            append(&written.path, written.identity, written.bytes as u64, bytes)?;
            written.bytes += bytes.len();
        }
        Ok(())
    }

    /// Moves the new file to the name of the old file, or to a free name.
    fn replace(&self) -> Result<()> {
        let mut place = self.open()?;
        let Some(next) = place.next.take() else { return Ok(()) };
        let (identity, bytes) = (next.identity(), fs::metadata(next.path())?.len() as usize);
        let path = match place.written.take() {
            Some(Written { path, .. }) => {
                next.publish_as(&path)?;
                path
            }
            None => {
                let mut next = Some(next);
                let formats = &self.formats;
                stream::free_name(&self.outputs, formats, |path| match next.as_ref().map(Draft::path) {
                    Some(from) if fs::hard_link(from, path).is_ok() => Ok(path.to_owned()),
                    _ if stream::is_taken(path) => Err(io::ErrorKind::AlreadyExists.into()),
                    // The file system does not support hard links.
                    _ => next.take().map_or(Ok(()), |next| next.publish_as(path)).map(|()| path.to_owned()),
                })
                .inspect(|path| about::begun(self.report.as_deref(), path, self.began))?
            }
        };
        *self.name.lock() = Some(path.clone());
        place.written = Some(Written { path, identity, bytes });
        place.is_late = false;
        Ok(())
    }

    fn open(&self) -> io::Result<parking_lot::MutexGuard<'_, Place>> {
        let place = self.file.lock();
        match place.is_closed || self.is_out() {
            true => Err(io::Error::other("the process is ending")),
            false => Ok(place),
        }
    }
}

impl Written {
    /// Writes the state of the recording into the file's head.
    fn stands(&self, standing: Standing) -> io::Result<()> {
        Appender::new(&self.path, self.identity, None).overwrite(&Chunk::head_of(standing))
    }

    /// Whether the file still has its name.
    fn is_ours(&self) -> bool {
        Appender::new(&self.path, self.identity, None).open().is_ok()
    }
}

/// Appends the current names of generated code, which cannot be looked up after the process has ended. Returns how long
/// this took.
fn name_generated(recorded: &impl Recorded, book: &mut Book, chunk: &mut Chunk) -> Duration {
    if shortage::is_short() {
        return Duration::ZERO;
    }
    let began = Instant::now();
    recorded.locked(&mut |pipeline| book.generated.look(pipeline.profile()));
    book.generated.tell(|row| chunk.row(row));
    began.elapsed()
}

/// Minimum pause after a write that took `spent`.
fn pause_after(spent: Duration, interval: Duration) -> Duration {
    interval.max(RARER * spent)
}

/// Appends `bytes` to a file that has `there` bytes. An incomplete write is undone.
fn append(path: &Path, identity: Identity, there: u64, bytes: &[u8]) -> io::Result<()> {
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

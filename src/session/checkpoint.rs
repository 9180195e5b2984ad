//! What a process leaves that ends without a word (killed, crashed, `_exit`, `exec`): a file that a thread of its own
//! adds to about once a second after the first launch, by what all rows so far have come to. `record::encode` draws it. Where the rows
//! themselves are recorded, they are that file, and there is none of these.
//!
//! ```text
//! collector -> pipeline <-locked for a moment- this thread -appends-> NAME.gfr
//! ```
//!
//! Nobody waits for this thread: what it writes it has put together before, and no lock that others need is held
//! while a file system takes its time. What has not changed is not written again; when a file has become much larger
//! than what it says, a new one takes its place. A process that ends in the ordinary way takes its file away, when all
//! is in others: whoever kills it while those are written finds all in this one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::capture;
use crate::control::{Outputs, life};
use crate::error::Result;
use crate::explain::Definitions;
use crate::host::descriptor::{Appender, Identity};
use crate::host::file::Draft;
use crate::host::futex::Bits;
use crate::host::{alive, shortage, threads};
use crate::record::{Chunk, Mark, Nanos, Standing, SumsWriter};
use crate::settings::{Output, Settings};

use super::about;
use super::generated::NamesSoFar;
use super::memory;
use super::messages::say;
use super::panic::disable_after_panic;
use super::pipeline::Pipeline;
use super::progress::LOOK_EVERY;
use super::stream;

/// From the first launch to the first checkpoint: a worker may end by `_exit` soon. In a forked process, which most workers are,
/// the times after it double; in others the interval follows at once.
const FIRST_AFTER: Duration = Duration::from_millis(100);
/// For each unit of time that it takes there are so many until the next: half a percent.
const RARER: u32 = 200;
/// So much is put together at once, with the pipeline locked.
const PIECE: usize = 1 << 20;
/// How long an exit waits for a file system that is just being written to.
const LONGEST_WRITE: Duration = Duration::from_secs(1);
/// Of the thread's stack: it sorts and copies, and calls nobody.
const STACK: usize = 512 << 10;

/// Who knows what all rows have come to.
pub(super) trait Recorded: Sync {
    /// Lets the collector read everything delivered so far; the first time after a flush of the tracer.
    fn read_ready(&self, is_first: bool);
    /// Nobody else changes it while `look` does. Returns how long that took.
    fn locked(&self, look: &mut dyn FnMut(&mut Pipeline)) -> Duration;
}

/// See the module's documentation.
pub(super) struct Checkpoint {
    outputs: Outputs,
    formats: Vec<Output>,
    /// The folder of whoever is to be told where the file is.
    report: Option<PathBuf>,
    interval: Duration,
    /// How much larger than what it says, twice, a file may become.
    room: usize,
    began: Nanos,
    /// What the thread is asked for when the process ends, and that it has done it.
    asked: Bits,
    done: Bits,
    /// The thread has something to do: [`WORK`].
    woken: Bits,
    /// Time of the first launch, in nanoseconds.
    first_work: AtomicU64,
    /// A thread adds to it.
    is_kept: AtomicBool,
    /// How many rows of work are in the file, as `Pipeline::rows_of_work` counts them.
    work: AtomicU64,
    file: Mutex<Place>,
    /// Its name, for whoever may not wait for a file system. Held for no longer than that takes.
    name: Mutex<Option<PathBuf>>,
}

/// That no more is begun: whoever waits for the collector then must not take what the thread reads for its progress.
const REST: u32 = 1;
/// That what was gathered be written down a last time, while somebody waits for it.
const LAST: u32 = 2;
/// That nobody waits any more.
const TOO_LATE: u32 = 4;
/// The process has launched something, or ends.
const WORK: u32 = 1;

/// Where the file is.
#[derive(Debug, Default)]
struct Place {
    written: Option<Written>,
    /// One that is to take its place.
    next: Option<Draft>,
    /// No more is written.
    is_closed: bool,
    /// The file says that a mark which was due is not in it.
    is_late: bool,
}

/// What became of a checkpoint that was due.
enum Taken {
    /// It was written, and the next is to come after this time.
    Written(Duration),
    /// There was nothing new.
    Nothing,
    /// There was no room in memory for the sums.
    NoRoom,
}

#[derive(Debug)]
struct Written {
    path: PathBuf,
    identity: Identity,
    bytes: usize,
}

/// What is in the file.
#[derive(Default)]
struct Book {
    definitions: Definitions,
    definition_bytes: usize,
    sums: SumsWriter,
    generated: NamesSoFar,
    /// How many rows there had been, how many but those of windows, and how much had been added up as others.
    rows: u64,
    work: u64,
    forgotten: u64,
    /// There is no room for more in the file.
    is_full: bool,
    /// How long the last append took.
    appending: Duration,
}

impl Checkpoint {
    /// None where nobody wants any, or the rows are recorded.
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

    /// Starts the thread. Where there can be none the program runs on without.
    pub(super) fn spawn(&'static self, recorded: &'static impl Recorded) -> io::Result<()> {
        let spawned = threads::spawn(c"gpuflame-keep", STACK, move || {
            let run = std::panic::AssertUnwindSafe(|| self.run(recorded));
            if std::panic::catch_unwind(run).is_err() {
                disable_after_panic();
            }
            // The file says that this thread writes it: as long as it is there the process lives.
            threads::stop()
        });
        self.is_kept.store(spawned.is_ok(), Ordering::Release);
        spawned
    }

    /// No more is begun: the process ends, and all is about to be gathered.
    pub(super) fn rest(&self) {
        self.asked.set(REST);
    }

    /// Has all that was added up written down a last time, before it is written elsewhere: where there is a file, or
    /// `in_any_case`. By the thread that keeps it, which may hang in a file system: it is waited for so long.
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
            // Whoever waits for the caller looks whether it runs now and then.
            self.done.wait(self.done.get() & !LAST, Some(patience.min(LOOK_EVERY)));
        }
        self.asked.set(TOO_LATE);
    }

    /// Notes the time of the first launch: a checkpoint is due soon.
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

    /// The file, if there is one.
    pub(super) fn kept(&self) -> Option<PathBuf> {
        self.name.lock().clone()
    }

    /// Has the file stay, as others could not be written, and say so, and whether it has all `work` that there was. Returns its
    /// name, if there is one.
    pub(super) fn leave(&self, work: u64) -> Option<PathBuf> {
        let Some(mut place) = self.file.try_lock_for(LONGEST_WRITE) else { return self.kept() };
        place.is_closed = true;
        place.next = None;
        let is_late = place.is_late || self.work.load(Ordering::Acquire) != work;
        let written = place.written.as_ref()?;
        written.stands(Standing { is_late, is_over: true }).is_ok().then(|| written.path.clone())
    }

    /// Takes the file away: all that is in it is in others now.
    pub(super) fn remove(&self) {
        // Who hangs in a file system keeps it.
        let Some(mut place) = self.file.try_lock_for(LONGEST_WRITE) else { return };
        place.is_closed = true;
        place.next = None;
        if let Some(written) = place.written.take().filter(Written::is_ours) {
            let _ = fs::remove_file(written.path);
        }
    }

    /// Says in the file that recording has ended for want of memory. Whoever does without is one whose thread was just
    /// writing to it, and goes no further.
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
        // What it takes to wait for a lock is looked up under the loader's, which may be held for good later.
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
            // Whatever was launched before is among what is read.
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
                        let stands =
                            if self.kept().is_some() { "; the last one stands until there is" } else { "" };
                        say(&format!(
                            "there is no room for a checkpoint below the ceiling, GPUFLAME_MAX_MEM{stands}"
                        ));
                    }
                }
                Err(error) => {
                    // What was begun in its place takes room, and nobody goes on with it.
                    self.file.lock().next = None;
                    // The file was removed while it was written to, which a new one makes up for.
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
                        say(&format!("checkpoints stop: {error}; recording goes on"));
                        self.say_late(true);
                    }
                    self.is_kept.store(false, Ordering::Release);
                    return self.done.set(LAST);
                }
            }
            // The process ends: that there is no memory any more ends nothing else.
            if is_last {
                return self.done.set(LAST);
            }
            if is_starved {
                return memory::end();
            }
        }
    }

    /// Whether this is to be the last time. Where the process ends, it waits until that is known.
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

    /// Whether nothing is to be written any more: nobody waits for it, or all of ours came to an end that was not asked for.
    fn is_out(&self) -> bool {
        match self.asked.get() {
            0 => life::is_over(),
            asked => asked & TOO_LATE != 0,
        }
    }

    /// Says in the file that a mark was due and is not there, or that this is so no more; as far as the file system takes it.
    fn say_late(&self, is_late: bool) {
        let mut place = self.file.lock();
        let Place { written: Some(written), is_late: was_late, .. } = &mut *place else { return };
        if *was_late != is_late {
            let said = written.stands(Standing { is_late, is_over: false });
            *was_late = is_late && said.is_ok();
        }
    }

    /// Whether a thread adds to it.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Acquire)
    }

    /// Writes what has changed; the next time is to come after `interval`, or later where writing takes long. The last time
    /// somebody waits for it, and what changed must be more than that a window closed: all launches are in the file then, and
    /// 80,000 sums take 40 ms to be looked at.
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
        // A new file takes the place of one that goes away.
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

    /// Puts together what is new, a piece at a time where it is much, and has the file grow by it if there is room.
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
                // It grows until this moment.
                if is_all && pipeline.has_room(capture::bytes_held()) {
                    book.definition_bytes += chunk.len();
                    (book.rows, book.forgotten) = (pipeline.rows(), pipeline.forgotten());
                    book.work = pipeline.rows_of_work();
                    let open = pipeline.write_sums(&mut book.sums, &mut chunk);
                    // The mark says when the next is to come, so what is written with it is taken to take as long as
                    // what was written last.
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

    /// How large the file is that grows; none does while another is to take its place.
    fn bytes(&self) -> usize {
        let place = self.file.lock();
        let written = place.written.as_ref().filter(|_| place.next.is_none());
        written.map_or(0, |written| written.bytes)
    }

    /// Whether there is a file that can grow. One that somebody has taken away is begun anew.
    fn is_there(&self) -> bool {
        self.file.lock().written.as_ref().is_some_and(Written::is_ours)
    }

    /// Begins a new file.
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
            say(&format!("{} was removed during the run; checkpoints continue in a new one", path.display()));
        }
        Ok(())
    }

    /// Adds to the file, or to the one that is to take its place.
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

    /// The new file takes the place of the old one, or a name that is free.
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
                    // A file system that knows no second names.
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
            true => Err(io::Error::other("the process ends")),
            false => Ok(place),
        }
    }
}

impl Written {
    /// Has it say how it stands.
    fn stands(&self, standing: Standing) -> io::Result<()> {
        Appender::new(&self.path, self.identity, None).overwrite(&Chunk::head_of(standing))
    }

    /// Whether that file has its name still.
    fn is_ours(&self) -> bool {
        Appender::new(&self.path, self.identity, None).open().is_ok()
    }
}

/// Puts down what generated code is called as of now: nobody can be asked once the process is gone. Returns how long that took.
fn name_generated(recorded: &impl Recorded, book: &mut Book, chunk: &mut Chunk) -> Duration {
    if shortage::is_short() {
        return Duration::ZERO;
    }
    let began = Instant::now();
    recorded.locked(&mut |pipeline| book.generated.look(pipeline.profile()));
    book.generated.tell(|row| chunk.row(row));
    began.elapsed()
}

/// How long nothing is written after a write that took `spent`.
fn pause_after(spent: Duration, interval: Duration) -> Duration {
    interval.max(RARER * spent)
}

/// Writes `bytes` behind the first `there` of a file. What cannot be written whole is taken away again.
fn append(path: &Path, identity: Identity, there: u64, bytes: &[u8]) -> io::Result<()> {
    let mut file: File = Appender::new(path, identity, None).open()?;
    file.write_all(bytes).inspect_err(|_| drop(file.set_len(there)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_takes_half_a_percent_of_the_time_at_most() {
        let interval = Duration::from_secs(1);
        let pause = |spent_ms| pause_after(Duration::from_millis(spent_ms), interval);
        assert_eq!([0, 5, 6, 50].map(pause).map(|pause| pause.as_millis()), [1000, 1000, 1200, 10_000]);
    }
}

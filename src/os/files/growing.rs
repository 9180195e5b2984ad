//! A growing file is written by a separate thread while the application runs. Only the writing thread calls the file
//! system, which may be slow or hang forever. Therefore the file system never blocks the application's threads or the
//! thread that produces the data (that "feeds" the file).
//!
//! Blocks that are not written yet stay in memory, up to a limit. At the limit, the feeding thread waits for room, but
//! only while the writing thread continues to write blocks. If no block is written for a given time, the file is
//! abandoned. The file is created only when the first row must be stored ([`GrowingFile::create_file`]), so a process
//! that launches nothing leaves no file.
//!
//! ```text
//! FileFeed -blocks, up to the bound-> GrowingFile -its thread-> Appender
//! ```

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::file::Draft;
use crate::process::descriptor::{Appender, FileId};
use crate::process::threads;
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Size of a block of data in bytes.
const BLOCK_BYTES: usize = 1 << 16;
/// Initial capacity of the queue of pending blocks. The capacity must be large enough, because a thread that hands over
/// a block cannot enlarge the queue after memory has run out.
const QUEUE_BLOCKS: usize = 64;
/// Stack size in bytes of the writing thread, which only opens and writes the file.
const STACK_BYTES: usize = 256 << 10;
/// Maximum time for which dropping a [`FileFeed`] waits until the file is removed.
const REMOVAL_TIMEOUT: Duration = Duration::from_millis(100);
/// Interval between two checks whether blocks are being written.
const PROGRESS_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Handle to a growing file. Callers use this handle to create the file, to wait until its data is written, and to
/// change or remove an abandoned file.
#[derive(Clone, Debug)]
pub struct GrowingFile(Arc<SharedFile>);

/// Feeds data to a growing file. If the feed is dropped before [`FileFeed::finish`] was called, the file is removed.
#[derive(Debug)]
pub struct FileFeed {
    file: GrowingFile,
    block: Vec<u8>,
}

/// Limits of a growing file: maximum amount of unwritten data, and maximum time to wait until some of this data is
/// written.
#[derive(Clone, Copy, Debug)]
pub struct GrowthLimits {
    /// Maximum number of bytes that are not yet written to the file system.
    pub pending: usize,
    /// Maximum time to wait for room in the queue while no block is written. When this time is over, the file is
    /// abandoned.
    pub patience: Duration,
}

/// Determines what happens to an abandoned file, which is only partly written.
#[derive(Debug)]
pub enum OnAbandon {
    /// The abandoned file is removed, because it is useless and takes up disk space.
    Remove,
    /// The abandoned file stays, and its first bytes are overwritten with the bytes in this variant.
    Keep(Vec<u8>),
}

#[derive(Debug)]
struct SharedFile {
    limits: GrowthLimits,
    state: Mutex<FileState>,
    /// Signalled when there is work for the writing thread: a block to write, or the end of the file.
    work_available: Condvar,
    /// Signalled after a block was written, and when no more blocks will be written.
    progressed: Condvar,
}

#[derive(Debug, Default)]
struct FileState {
    pending: VecDeque<Vec<u8>>,
    /// Size in bytes of the pending blocks, including the block that is being written.
    bytes: usize,
    /// Number of steps completed so far. One step is creating the file, writing a block, or completing the file.
    steps: u64,
    /// An empty block, whose memory will be reused.
    spare: Vec<u8>,
    /// Path and identity of the file.
    file: Option<(PathBuf, FileId)>,
    /// Whether the file was abandoned and still exists. The writing thread no longer writes to an abandoned file.
    is_abandoned: bool,
    /// Whether the file must be created, because there is data that must be stored.
    is_needed: bool,
    /// Whether all data was handed over, so that no more blocks will follow.
    is_ended: bool,
    /// Whether the [`FileFeed`] was dropped before `finish` was called, which means that the file must be removed.
    is_dropped: bool,
    /// Whether the writing thread has finished.
    has_thread_finished: bool,
    /// The complete file; `None` until all data is written.
    complete: Option<Draft>,
    /// Reason why no more blocks are written.
    failure: Option<Error>,
}

impl GrowingFile {
    /// Starts a thread that creates the file by calling `open` as soon as the file is needed, and writes all data to
    /// it.
    pub fn start(
        limits: GrowthLimits,
        on_abandon: OnAbandon,
        open: Box<dyn FnOnce() -> Result<Draft> + Send>,
    ) -> (Self, FileFeed) {
        let pending = VecDeque::with_capacity(QUEUE_BLOCKS);
        let state = Mutex::new(FileState { pending, ..FileState::default() });
        let file = Self(Arc::new(SharedFile {
            limits,
            state,
            work_available: Condvar::new(),
            progressed: Condvar::new(),
        }));
        let own = file.clone();
        let spawned = threads::spawn(c"gpuflame-rows", STACK_BYTES, move || {
            threads::note_ours();
            // Wait once now, because a thread's first wait on a condition variable takes the loader's lock. Later, a
            // stopped thread may hold this lock.
            Condvar::new().wait_for(&mut Mutex::new(()).lock(), Duration::from_millis(1));
            if own.is_needed() {
                match open() {
                    Ok(draft) => own.write(draft, on_abandon),
                    Err(error) => own.fail(error),
                }
            }
            own.0.state.lock().has_thread_finished = true;
            own.0.progressed.notify_all();
        });
        if let Err(error) = spawned {
            let message = format!("cannot start a thread ({error}); raise the limit on threads");
            file.fail(Error::new(ErrorKind::State, message));
        }
        (file.clone(), FileFeed { file, block: Vec::with_capacity(BLOCK_BYTES) })
    }

    /// Makes the writing thread create the file, if the file does not exist yet. Call this function when there are rows
    /// that must survive the end of the process. This function does not wait for the file system.
    pub fn create_file(&self) {
        let mut state = self.0.state.lock();
        if !std::mem::replace(&mut state.is_needed, true) {
            self.0.work_available.notify_one();
        }
    }

    /// Waits until the file must be created. Returns false if the file ends or is abandoned before it is needed.
    fn is_needed(&self) -> bool {
        let mut state = self.0.state.lock();
        while !state.is_needed && !state.is_ended && state.failure.is_none() {
            self.0.work_available.wait(&mut state);
        }
        state.failure.is_none()
    }

    /// Path of the file; `None` if the file does not exist yet, or no longer exists.
    pub fn path(&self) -> Option<PathBuf> {
        self.0.state.lock().file.as_ref().map(|(path, _)| path.clone())
    }

    /// Waits until all data that was handed over is written. Stops waiting if nothing is written for `patience`.
    pub fn wait_until_written(&self, patience: Duration) {
        let mut state = self.0.state.lock();
        self.wait_until(&mut state, patience, &|state| state.bytes == 0 && state.file.is_some());
    }

    /// If the file is needed, waits until the file exists. If the file does not exist after `patience`, abandons it.
    pub fn wait_until_created(&self, patience: Duration) {
        let mut state = self.0.state.lock();
        if state.is_needed {
            // Ignore the error here, because [`FileFeed::finish`] will return the stored error.
            let _ = self.wait_or_abandon(&mut state, patience, &|state| state.file.is_some());
        }
    }

    /// Removes the written part of an abandoned file, so that the caller can use its disk space. If the file system
    /// hangs, the file stays. Returns true if a file was removed.
    pub fn remove_abandoned(&self) -> bool {
        let Some((path, identity)) = self.take_abandoned() else { return false };
        Appender::new(&path, identity, None).open().is_ok() && fs::remove_file(path).is_ok()
    }

    /// Overwrites the first bytes of an abandoned file.
    pub fn overwrite_abandoned(&self, head: &[u8]) {
        if let Some((path, identity)) = self.take_abandoned() {
            let _ = Appender::new(&path, identity, None).overwrite(head);
        }
    }

    /// Removes and returns the path and identity of an abandoned file. Later calls return `None`, so only one caller
    /// changes the file.
    fn take_abandoned(&self) -> Option<(PathBuf, FileId)> {
        let mut state = self.0.state.lock();
        let is_abandoned = state.is_abandoned;
        state.file.take_if(|_| is_abandoned)
    }

    /// Waits until `is_so` returns true, or until no more blocks will be written. If no step was completed for
    /// `patience`, stops waiting and returns false.
    fn wait_until(
        &self,
        state: &mut MutexGuard<'_, FileState>,
        patience: Duration,
        is_so: &dyn Fn(&FileState) -> bool,
    ) -> bool {
        let (mut steps, mut since) = (state.steps, Instant::now());
        while state.failure.is_none() && !is_so(state) {
            if state.steps != steps {
                (steps, since) = (state.steps, Instant::now());
            }
            if since.elapsed() >= patience {
                return false;
            }
            self.0.progressed.wait_for(state, PROGRESS_POLL_INTERVAL.min(patience));
        }
        true
    }

    /// Waits like [`GrowingFile::wait_until`], but also abandons the file if no step was completed for `patience`.
    fn wait_or_abandon(
        &self,
        state: &mut MutexGuard<'_, FileState>,
        patience: Duration,
        is_so: &dyn Fn(&FileState) -> bool,
    ) -> Result<()> {
        if !self.wait_until(state, patience, is_so) {
            let message = format!("its file system has accepted no data for {} s", patience.as_secs_f32());
            self.abandon(state, Error::new(ErrorKind::Io, message));
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    /// Abandons the file. Stores `error` as the reason why no more blocks are written, unless an earlier error is
    /// stored already.
    fn abandon(&self, state: &mut FileState, error: Error) {
        state.failure.get_or_insert(error);
        state.pending.clear();
        self.0.work_available.notify_one();
        self.0.progressed.notify_all();
    }

    fn fail(&self, error: Error) {
        self.abandon(&mut self.0.state.lock(), error);
    }

    /// Hands `block` over to the writing thread, and replaces it with an empty block.
    fn push(&self, block: &mut Vec<u8>) -> Result<()> {
        let GrowthLimits { pending, patience } = self.0.limits;
        let mut state = self.0.state.lock();
        if state.bytes >= pending {
            // The queue gets room only when blocks are written to the file, so the file must be created now.
            state.is_needed = true;
            self.0.work_available.notify_one();
        }
        self.wait_or_abandon(&mut state, patience, &|state| state.bytes < pending)?;
        state.bytes += block.len();
        // If the block is small, append it to the last pending block, because each block in the queue takes the memory
        // of a full block. Small blocks arrive once or twice per second.
        match state.pending.back_mut().filter(|last| last.len() + block.len() <= BLOCK_BYTES) {
            Some(last) => {
                last.extend_from_slice(block);
                block.clear();
            }
            None => {
                let spare = std::mem::take(&mut state.spare);
                state.pending.push_back(std::mem::replace(block, spare));
            }
        }
        self.0.work_available.notify_one();
        Ok(())
    }

    /// Writes blocks until the file ends or is abandoned. The writing thread calls this function after it has created
    /// the file.
    fn write(&self, mut draft: Draft, on_abandon: OnAbandon) {
        let mut out = draft.appender();
        let mut state = self.0.state.lock();
        state.file = Some((draft.path().to_owned(), draft.identity()));
        self.note_progress(&mut state);
        let error = loop {
            let Some(mut block) = self.next_block(&mut state) else { break state.failure.clone() };
            drop(state);
            let written = out.write_all(&block);
            state = self.0.state.lock();
            if let Err(error) = written {
                break Some(error.into());
            }
            state.bytes -= block.len();
            block.clear();
            state.spare = block;
            self.note_progress(&mut state);
        };
        drop(state);
        draft.return_appender(out);
        let Some(error) = error else {
            let mut state = self.0.state.lock();
            state.complete = Some(draft);
            return self.note_progress(&mut state);
        };
        // Remove the file before the waiting threads are notified, so that its disk space is free when they continue.
        let is_dropped = self.0.state.lock().is_dropped;
        let stays = if is_dropped { OnAbandon::Remove } else { on_abandon }.apply(draft);
        let mut state = self.0.state.lock();
        state.is_abandoned = stays;
        state.file.take_if(|_| !stays);
        self.abandon(&mut state, error);
    }

    /// Waits for the next block to write. Returns `None` if no more blocks follow.
    fn next_block(&self, state: &mut MutexGuard<'_, FileState>) -> Option<Vec<u8>> {
        while state.failure.is_none() {
            match state.pending.pop_front() {
                None if !state.is_ended => self.0.work_available.wait(state),
                next => return next,
            }
        }
        None
    }

    fn note_progress(&self, state: &mut FileState) {
        state.steps += 1;
        self.0.progressed.notify_all();
    }
}

impl OnAbandon {
    /// Keeps or removes the file of an abandoned `draft`. Returns true if the file stays.
    fn apply(self, draft: Draft) -> bool {
        let Self::Keep(head) = self else { return false };
        let file = Appender::new(draft.path(), draft.identity(), None);
        draft.keep();
        let _ = file.overwrite(&head);
        true
    }
}

impl FileFeed {
    /// Ends the file, waits until all data is written, and returns the file. After this call, the writing thread no
    /// longer uses the file.
    ///
    /// # Errors
    /// Fails if the file system returns an error, or if nothing was written for `patience`.
    pub fn finish(mut self, patience: Duration) -> Result<Draft> {
        self.flush_block()?;
        let mut state = self.file.0.state.lock();
        state.is_ended = true;
        self.file.0.work_available.notify_one();
        self.file.wait_or_abandon(&mut state, patience, &|state| state.complete.is_some())?;
        state.complete.take().ok_or_else(|| Error::new(ErrorKind::State, "the file was already ended"))
    }

    fn flush_block(&mut self) -> Result<()> {
        if self.block.is_empty() { Ok(()) } else { self.file.push(&mut self.block) }
    }
}

/// `flush` hands the data over to the writing thread, and does not wait until the data is written.
impl Write for FileFeed {
    /// This method is not inlined, because it has many callers.
    #[inline(never)]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.block.len() + bytes.len() > BLOCK_BYTES {
            self.flush()?;
        }
        if self.block.capacity() == 0 {
            self.block.reserve(BLOCK_BYTES);
        }
        self.block.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_block().map_err(|error| io::Error::other(error.to_string()))
    }
}

impl Drop for FileFeed {
    fn drop(&mut self) {
        let mut state = self.file.0.state.lock();
        if state.is_ended || state.failure.is_some() {
            return;
        }
        state.is_dropped = true;
        self.file.abandon(&mut state, Error::new(ErrorKind::State, "the file was abandoned"));
        // Wait for a short time, because then the file is usually already removed when `drop` returns.
        let began = Instant::now();
        while !state.has_thread_finished && began.elapsed() < REMOVAL_TIMEOUT {
            self.file.0.progressed.wait_for(&mut state, PROGRESS_POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::testing::{folder, names};

    const BOUNDS: GrowthLimits =
        GrowthLimits { pending: 3 * BLOCK_BYTES, patience: Duration::from_millis(200) };
    const LONG: Duration = Duration::from_secs(100);

    /// Creates a growing file whose `open` function waits until `opens` receives a message.
    fn held(path: &Path, on_abandon: OnAbandon, opens: Receiver<()>) -> (GrowingFile, FileFeed) {
        held_within(BOUNDS, path, on_abandon, opens)
    }

    fn held_within(
        limits: GrowthLimits,
        path: &Path,
        on_abandon: OnAbandon,
        opens: Receiver<()>,
    ) -> (GrowingFile, FileFeed) {
        let path = path.to_owned();
        let open = move || {
            let _ = opens.recv();
            Ok(Draft::create_in_place(&path)?)
        };
        let (file, feed) = GrowingFile::start(limits, on_abandon, Box::new(open));
        file.create_file();
        (file, feed)
    }

    /// Returns a million bytes, in pieces of different sizes.
    fn pieces() -> impl Iterator<Item = Vec<u8>> {
        (0..1000_u32).map(|piece| vec![piece as u8; (piece as usize * 7919) % 2003])
    }

    #[test]
    fn a_file_that_is_about_to_be_created_has_a_path_after_the_wait() {
        let folder = folder("growing-about");
        let path = folder.join("x");
        let (opens, opened) = channel();
        let (file, feed) = held(&path, OnAbandon::Remove, opened);
        assert_eq!(file.path(), None);
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            opens.send(()).unwrap();
        });
        file.wait_until_created(LONG);
        assert_eq!(file.path(), Some(path));
        late.join().unwrap();
        drop(feed);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_created_in_time_fails_with_the_reason() {
        let folder = folder("growing-never");
        let (opens, opened) = channel();
        let (file, feed) = held(&folder.join("x"), OnAbandon::Remove, opened);
        file.wait_until_created(Duration::from_millis(50));
        assert!(feed.finish(LONG).unwrap_err().to_string().contains("accepted no data"));
        drop(opens);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_is_created_only_when_needed_and_contains_all_earlier_data() {
        let folder = folder("growing-needed");
        let path = folder.join("x");
        let begin = || {
            let path = path.clone();
            GrowingFile::start(
                BOUNDS,
                OnAbandon::Remove,
                Box::new(move || Ok(Draft::create_in_place(&path)?)),
            )
        };
        let (file, mut feed) = begin();
        feed.write_all(b"early ").unwrap();
        feed.flush().unwrap();
        drop(feed);
        assert!(file.0.state.lock().has_thread_finished, "its thread ends without a file");
        assert_eq!(names(&folder), [""; 0]);
        let (file, mut feed) = begin();
        feed.write_all(b"early ").unwrap();
        feed.flush().unwrap();
        assert_eq!(file.path(), None);
        file.create_file();
        feed.write_all(b"late").unwrap();
        feed.finish(LONG).unwrap().keep();
        assert_eq!(fs::read(&path).unwrap(), b"early late");
        fs::remove_file(&path).unwrap();
        // When the limit on unwritten data is reached, the file must be created, so that data can be written.
        let (_file, mut feed) = begin();
        for _ in 0..8 {
            feed.write_all(&[b'.'; BLOCK_BYTES]).unwrap();
        }
        feed.finish(LONG).unwrap().keep();
        assert_eq!(fs::metadata(&path).unwrap().len(), 8 * BLOCK_BYTES as u64);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn all_data_fed_is_written_in_order() {
        let folder = folder("growing-all");
        let (open, opens) = channel();
        // Use a long time limit, because on a busy machine the writing thread may have to wait for a processor.
        let limits = GrowthLimits { patience: LONG, ..BOUNDS };
        let (file, mut feed) = held_within(limits, &folder.join("x"), OnAbandon::Remove, opens);
        assert_eq!(file.path(), None);
        open.send(()).unwrap();
        for piece in pieces() {
            feed.write_all(&piece).unwrap();
            if piece.len() % 3 == 0 {
                feed.flush().unwrap();
            }
        }
        feed.flush().unwrap();
        file.wait_until_written(LONG);
        let expected = pieces().flatten().collect::<Vec<_>>();
        assert!(fs::read(folder.join("x")).unwrap() == expected);
        feed.write_all(b"end").unwrap();
        feed.finish(LONG).unwrap().publish_as(&folder.join("y")).unwrap();
        assert!(fs::read(folder.join("y")).unwrap() == [&expected[..], b"end"].concat());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn feeding_blocks_only_when_memory_is_full_and_then_times_out() {
        let folder = folder("growing-held");
        let (open, opens) = channel();
        let (file, mut feed) = held(&folder.join("x"), OnAbandon::Keep(b"HEAD".to_vec()), opens);
        let block = vec![b'.'; BLOCK_BYTES];
        // The feed hands a full block over to the writing thread only when more data arrives.
        for _ in 0..4 {
            feed.write_all(&block).unwrap();
        }
        let why = feed.write_all(&block).and_then(|()| feed.flush()).unwrap_err().to_string();
        assert_eq!(why, "its file system has accepted no data for 0.2 s");
        assert_eq!(feed.finish(LONG).unwrap_err().to_string(), why);
        // The file system responds again, but too late, because the file has been abandoned.
        open.send(()).unwrap();
        while !file.0.state.lock().is_abandoned {
            std::thread::yield_now();
        }
        assert_eq!(fs::read(folder.join("x")).unwrap(), b"HEAD");
        file.remove_abandoned();
        assert_eq!(names(&folder), [""; 0]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn small_pending_pieces_share_one_block() {
        let folder = folder("growing-small");
        let (open, opens) = channel();
        let (file, mut feed) = held(&folder.join("x"), OnAbandon::Remove, opens);
        for _ in 0..BLOCK_BYTES {
            feed.write_all(b"x").unwrap();
            feed.flush().unwrap();
        }
        assert_eq!(file.0.state.lock().pending.len(), 1);
        open.send(()).unwrap();
        drop(feed.finish(LONG).unwrap());
        assert_eq!(names(&folder), [""; 0]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_dropped_file_is_removed_and_a_failed_open_is_reported() {
        let folder = folder("growing-dropped");
        let (open, opens) = channel();
        let (file, mut feed) = held(&folder.join("x"), OnAbandon::Remove, opens);
        open.send(()).unwrap();
        feed.write_all(b"begun").unwrap();
        feed.flush().unwrap();
        file.wait_until_written(LONG);
        drop(feed);
        while file.path().is_some() {
            std::thread::yield_now();
        }
        assert_eq!(names(&folder), [""; 0]);
        let (open, opens) = channel();
        let (_, feed) = held(&folder.join("nowhere/x"), OnAbandon::Remove, opens);
        open.send(()).unwrap();
        assert!(feed.finish(LONG).unwrap_err().to_string().starts_with("No such file or directory"));
        fs::remove_dir_all(folder).unwrap();
    }
}

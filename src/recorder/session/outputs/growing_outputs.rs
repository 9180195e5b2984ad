//! Growing outputs, which are files that gpuflame writes while the application runs, because their size grows with the
//! run. The growing outputs are the recording, the table of activities, the Chrome trace, and the text in the format of
//! the tutorial's tracer.
//!
//! The recording has its final name from the beginning. If a file with the plain name exists, the recording's name
//! contains a number. When the recording began, no other output had a name with this number. The files of the other
//! growing outputs first have temporary names. Growing outputs other than the recording get their final names on exit,
//! like all other outputs. No file is created before there is data to write to it. Each file has its own thread, which
//! creates and writes the file ([`gpuflame_os::growing`]). Therefore the file system blocks neither the application nor
//! the collector. Errors are printed on exit, and not while the application runs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::capture;
use gpuflame_config::Outputs;
use gpuflame_config::settings::{Output, Settings, TraceFile};
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_explain::symbolize;
use gpuflame_export::{ActivityTable, ChromeText, CuptiText};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{
    self, Activity, CheckpointMark, Chunk, CorrelationId, Instant, Loss, NameId, Nanos, RecordingState, Row,
    WriterId,
};
use gpuflame_os::file::{Draft, FileLocation};
use gpuflame_os::growing::{FileFeed, GrowingFile, GrowthLimits, OnAbandon};
use gpuflame_os::process_liveness::ThreadIdentity;
use gpuflame_os::stdout::Stdout;

pub(crate) use super::output_files::is_name_taken;
use super::output_files::{WrittenFile, make_folders};
use crate::session::process::launcher_report;

/// Maximum time in ms between two marks in the recording. A mark is a row that states up to which time the recording is
/// complete. A mark follows the rows of each flush of CUPTI.
const MARK_INTERVAL_MS: u32 = 1200;
/// Maximum time by which the modification time of a file can be earlier than the actual write. The kernel takes the
/// modification time from a clock that advances in ticks.
const MTIME_GRANULARITY: Duration = Duration::from_millis(10);
/// Maximum number of names that are tried for the recording if files with these names exist.
const MAX_TRIED_NAMES: usize = 1000;
/// Divisor for the memory for the rows that wait to be written to one output: the memory ceiling is divided by this
/// number. With the usual 8 MiB per output, the rows of one second can wait if the program causes at most 80,000 rows
/// per second.
const WAITING_SHARE: usize = 32;
/// If an output makes no progress for this time while the memory for its waiting rows is full, the output fails. This
/// time is shorter than the time for which an exiting process waits for the collector.
const MAX_STALL: Duration = Duration::from_secs(2);
/// Minimum for both time limits on outputs that make no progress. This minimum applies even if the user sets a shorter
/// exit limit.
const MIN_STALL: Duration = Duration::from_millis(100);
/// All growing outputs of the session.
pub(crate) struct GrowingOutputs {
    activities: GrowingOutput<ActivityTable<FileFeed>>,
    chrome: GrowingOutput<ChromeText<FileFeed>>,
    /// Up to two texts that have the format of the tutorial's tracer. One of these texts is named like the other
    /// outputs, and the other text has the path from the tutorial's own environment variable.
    texts: Vec<(TextTarget, GrowingOutput<CuptiText<TextOut>>)>,
    opened: SystemTime,
    recording: GrowingOutput<record::Writer<FileFeed>>,
    /// Maximum size of the recording in bytes. `rows_left_out` is the number of rows that were omitted because of this
    /// maximum.
    max_recording_bytes: u64,
    rows_left_out: u64,
    began: Nanos,
    /// Whether the recording already names the thread that writes it. `has_unmarked_rows` states whether any rows were
    /// added after the recording's last mark.
    is_named: bool,
    has_unmarked_rows: bool,
    /// File of a recording that failed before it was complete.
    failed_recording: Option<GrowingFile>,
    /// While the process ends, an output is abandoned if it makes no progress for this time (half of the exit limit).
    stall_limit: Duration,
}

/// State of one growing output, and its writer.
enum GrowingOutput<W> {
    /// The settings do not request this output, or this output is already finished.
    None,
    Open(Option<GrowingFile>, W),
    Failed(Error),
}

/// Destination of a text that is in the format of the tutorial's tracer.
enum TextTarget {
    /// A file that is named like the other outputs.
    OutputName,
    Path(PathBuf),
    Stdout,
}

enum TextOut {
    File(FileFeed),
    Stdout(Stdout),
}

impl GrowingOutputs {
    /// Opens the growing outputs that the settings request. `ceiling` is the maximum number of bytes of memory that
    /// gpuflame may use.
    pub(crate) fn open(outputs: &Outputs, settings: &Settings, ceiling: usize) -> Self {
        let wants = |output| settings.formats.contains(&output);
        let patience = MIN_STALL.max(settings.exit_limit / 2);
        let bounds = GrowthLimits { pending: ceiling / WAITING_SHARE, patience: MAX_STALL.min(patience) };
        Self {
            activities: match wants(Output::Activities) {
                true => GrowingOutput::open(begin_draft(outputs, Output::Activities, bounds), |out| {
                    ActivityTable::new(out, |symbol| symbolize::kernel_name(symbol).into_owned())
                }),
                false => GrowingOutput::None,
            },
            chrome: match wants(Output::Chrome) {
                true => GrowingOutput::open(begin_draft(outputs, Output::Chrome, bounds), |out| {
                    Ok(ChromeText::new(out, capture::now(), |symbol| {
                        symbolize::kernel_name(symbol).into_owned()
                    }))
                }),
                false => GrowingOutput::None,
            },
            texts: open_texts(outputs, settings, bounds),
            opened: SystemTime::now() - MTIME_GRANULARITY,
            recording: match wants(Output::Recording) {
                true => GrowingOutput::open(begin_recording(outputs, settings, bounds), |out| {
                    let mut writer = record::Writer::new(out)?;
                    // The header is flushed at this point, so that the recording is valid even if the process is killed
                    // right after its first launch.
                    writer.flush()?;
                    Ok(writer)
                }),
                false => GrowingOutput::None,
            },
            max_recording_bytes: settings.max_file.unwrap_or(u64::MAX),
            rows_left_out: 0,
            began: capture::now(),
            is_named: false,
            has_unmarked_rows: false,
            failed_recording: None,
            stall_limit: patience,
        }
    }

    /// Makes each output's thread create its file, because there is now data to write.
    pub(crate) fn create_files(&self) {
        let texts = self.texts.iter().filter_map(|(_, text)| text.file());
        let others = [self.activities.file(), self.chrome.file(), self.recording.file()];
        others.into_iter().flatten().chain(texts).for_each(GrowingFile::create_file);
    }

    /// Discards all growing outputs. Called only if the files of the outputs were never created.
    pub(crate) fn discard(&mut self) {
        (self.activities, self.chrome, self.recording) =
            (GrowingOutput::None, GrowingOutput::None, GrowingOutput::None);
        self.texts.clear();
    }

    /// Final path of the recording; `None` if no recording exists.
    pub(super) fn recording_path(&self) -> Option<PathBuf> {
        self.open_recording().or(self.failed_recording.as_ref()).and_then(GrowingFile::path)
    }

    /// Returns the path of the recording, for a thread that is about to choose names of outputs. Waits until the file
    /// of the recording exists. Without this wait, the recording of a short run might be created only after this
    /// function has returned. A thread that chooses names would then mistake the recording for a file of another
    /// process.
    pub(crate) fn wait_for_recording_path(&self) -> Option<PathBuf> {
        self.open_recording().iter().for_each(|file| file.wait_until_created(self.stall_limit));
        self.recording_path()
    }

    /// Returns the file of the recording, so that a caller can wait until all rows are in the file.
    pub(crate) fn open_recording(&self) -> Option<&GrowingFile> {
        match &self.recording {
            GrowingOutput::Open(file, _) => file.as_ref(),
            _ => None,
        }
    }

    /// Writes a row of any kind to all growing outputs.
    pub(crate) fn write_row(&mut self, row: &Row<'_>) {
        if let GrowingOutput::Open(_, table) = &mut self.activities {
            table.row(row);
        }
        if let GrowingOutput::Open(_, chrome) = &mut self.chrome {
            chrome.row(row);
        }
        self.for_each_text(|text| text.row(row));
        if let GrowingOutput::Open(_, writer) = &mut self.recording {
            if writer.bytes() >= self.max_recording_bytes && !is_kept_beyond_limit(row) {
                self.rows_left_out += 1;
                return;
            }
            self.has_unmarked_rows = true;
            if let Err(error) = writer.row(row) {
                self.fail_recording(error);
            }
        }
    }

    /// Adds a mark to the recording, and passes the rows so far to the recording's file, so that the rows survive if
    /// the process is killed. `open` is the number of launches that still have no activity. Only the thread that writes
    /// rows may call this function, because the recording names the calling thread as its writer.
    pub(crate) fn flush(&mut self, open: u64) {
        let GrowingOutput::Open(_, writer) = &mut self.recording else { return };
        if !std::mem::take(&mut self.has_unmarked_rows) {
            return;
        }
        let is_named = std::mem::replace(&mut self.is_named, true);
        let named = if is_named { Ok(()) } else { writer.writer(&this_thread()) };
        let mark =
            CheckpointMark { began: self.began, time: capture::now(), interval_ms: MARK_INTERVAL_MS, open };
        if let Err(error) = named.and_then(|()| writer.mark(&mark)).and_then(|()| writer.flush()) {
            self.fail_recording(error);
        }
    }

    /// Stops recording because of an error. The file of the recording may cover hours of the run. Therefore this file
    /// is kept, in case the process is killed before it writes the other outputs. The head of the kept file then states
    /// that rows after the last mark are missing.
    fn fail_recording(&mut self, error: Error) {
        if let GrowingOutput::Open(file, _) =
            std::mem::replace(&mut self.recording, GrowingOutput::Failed(error))
        {
            self.failed_recording = file;
        }
    }

    /// Removes the file of a failed recording. The other outputs contain the same sums and need the disk space. Returns
    /// true if a file was removed.
    pub(super) fn remove_failed_recording(&mut self) -> bool {
        self.failed_recording.take().is_some_and(|left| left.remove_abandoned())
    }

    /// Notes in the head of a failed recording that the process has exited.
    pub(crate) fn mark_failed_recording_ended(&mut self) {
        let over = RecordingState { missed_mark: true, exited: true, finished: false };
        self.failed_recording.take().iter().for_each(|left| left.overwrite_abandoned(&Chunk::header(over)));
    }

    /// Notes in the recording that it has ended because memory ran out. This function is called at most once.
    pub(crate) fn note_out_of_memory(&mut self, open: u64) {
        self.flush(open);
        let GrowingOutput::Open(_, writer) = &mut self.recording else { return };
        let _ = writer.memory_exhausted().and_then(|()| writer.flush());
    }

    /// Forgets the names of all kernels for which `keep` returns false.
    pub(crate) fn keep_kernels(&mut self, keep: impl Fn(NameId) -> bool) {
        if let GrowingOutput::Open(_, table) = &mut self.activities {
            table.keep_kernels(&keep);
        }
        if let GrowingOutput::Open(_, chrome) = &mut self.chrome {
            chrome.keep_kernels(&keep);
        }
        self.for_each_text(|text| text.keep_kernels(&keep));
    }

    /// Finishes the file of `output` with the names in `profile`, and renames the file to `path`. If a file with the
    /// name `path` exists, chooses a similar name that contains a number.
    pub(super) fn publish(&mut self, output: Output, path: &Path, profile: &Profile) -> Result<WrittenFile> {
        match output {
            Output::Activities => self.activities.publish(path, self.stall_limit, ActivityTable::finish),
            Output::Chrome => self.chrome.publish(path, self.stall_limit, |chrome| chrome.finish(profile)),
            Output::CuptiText => {
                let named =
                    self.texts.iter_mut().find(|(target, _)| matches!(target, TextTarget::OutputName));
                let (_, text) = named.ok_or_else(never_opened_error)?;
                text.publish(path, self.stall_limit, |text| text.finish()?.into_file())
            }
            _ => self.publish_recording(path),
        }
    }

    fn publish_recording(&mut self, path: &Path) -> Result<WrittenFile> {
        let count = self.rows_left_out;
        let written = self.recording.publish(path, self.stall_limit, |mut writer| {
            if count > 0 {
                writer.row(&Row::Loss { loss: Loss::RowsOverLimit, count })?;
            }
            writer.finish()
        });
        written.map(|file| {
            let limit = || {
                format!(
                    "{}: {count} rows were left out, because the recording reached GPUFLAME_MAX_FILE; the other files \
                     are complete",
                    file.path.display()
                )
            };
            let notes = file.note.iter().cloned().chain((count > 0).then(limit));
            let note = notes.reduce(|first, second| format!("{first}; {second}"));
            WrittenFile { path: file.path.clone(), note }
        })
    }

    /// Finishes the text that the tutorial's environment variable has requested. Returns the path of the text. Returns
    /// an error if the text is incomplete.
    pub(crate) fn publish_trace(&mut self, patience: Duration) -> Option<(PathBuf, Result<WrittenFile>)> {
        let at = self.texts.iter().position(|(target, _)| !matches!(target, TextTarget::OutputName))?;
        let (target, mut text) = self.texts.remove(at);
        let TextTarget::Path(path) = target else {
            let GrowingOutput::Open(_, text) = text else { return None };
            let TextOut::Stdout(out) = text.finish().ok()? else { return None };
            let lost = Some(out.finish(patience)).filter(|lost| *lost > 0)?;
            let why = Error::new(ErrorKind::Io, format!("{lost} records did not fit and were dropped"));
            return Some((PathBuf::from("standard output"), Err(why)));
        };
        let path = self.path_free_of_siblings(path);
        let ended = text.end(&path, self.stall_limit, |text| text.finish()?.into_file());
        // If the path belongs to a text from an earlier run, the new text replaces the old text, as with the tutorial's
        // tracer.
        let published = ended.and_then(|(draft, fate)| {
            draft.publish_as(&path)?;
            let note = (fate == FileLocation::Restored).then(|| restored(&path));
            Ok(WrittenFile { path: path.clone(), note })
        });
        Some((path, published))
    }

    /// Returns a path for a text that no related process has used. All processes that one process has started inherit
    /// the same path from it. If another process has written to the inherited path since this process began, this
    /// function appends the process id to the name.
    fn path_free_of_siblings(&self, path: PathBuf) -> PathBuf {
        let file = path.metadata().ok().filter(|file| file.len() > 0);
        if file.and_then(|file| file.modified().ok()).is_none_or(|written| written < self.opened) {
            return path;
        }
        let mut name = path.into_os_string();
        name.push(format!(".{}", std::process::id()));
        name.into()
    }

    /// Calls `write` for each text that is open. If the file of a text fails, it is removed immediately, because the
    /// other outputs need the disk space.
    fn for_each_text(&mut self, write: impl Fn(&mut CuptiText<TextOut>)) {
        for (_, output) in &mut self.texts {
            let GrowingOutput::Open(_, text) = output else { continue };
            write(text);
            if let Some(error) = text.failure() {
                *output = GrowingOutput::Failed(error);
            }
        }
    }

    /// Calls `write` for the Chrome trace, if it is open. If the Chrome trace fails, its file is removed immediately,
    /// because the other outputs need the disk space.
    fn with_chrome(&mut self, write: impl FnOnce(&mut ChromeText<FileFeed>)) {
        let GrowingOutput::Open(_, chrome) = &mut self.chrome else { return };
        write(chrome);
        if let Some(error) = chrome.failure() {
            self.chrome = GrowingOutput::Failed(error);
        }
    }

    /// Calls `write` for the table of activities, if it is open. If the table of activities fails, its file is removed
    /// immediately, because the other outputs need the disk space.
    fn with_table(&mut self, write: impl FnOnce(&mut ActivityTable<FileFeed>)) {
        let GrowingOutput::Open(_, table) = &mut self.activities else { return };
        write(table);
        if let Some(error) = table.failure() {
            self.activities = GrowingOutput::Failed(error);
        }
    }
}

/// Whether a row of this kind is written even if the recording has reached its size limit. Only a few rows are written
/// beyond the limit, and these rows describe what the recording covers.
fn is_kept_beyond_limit(row: &Row<'_>) -> bool {
    matches!(
        row,
        Row::Loss { .. }
            | Row::Provenance { .. }
            | Row::Window { .. }
            | Row::CallbacksSwitched { .. }
            | Row::Process { .. }
            | Row::Thread { .. }
    )
}

/// Returns the identity of the calling thread. A recording stores this identity as the identity of its writer.
pub(crate) fn this_thread() -> WriterId {
    let ThreadIdentity { process, thread, started, namespace, boot } = ThreadIdentity::current();
    WriterId { process, thread, started, namespace, boot }
}

/// Starts an output whose file has a temporary name.
fn begin_draft(outputs: &Outputs, output: Output, bounds: GrowthLimits) -> (GrowingFile, FileFeed) {
    let outputs = outputs.clone();
    let open = move || {
        let (names, _) = outputs.choose_names(&[&output.suffix()], |_| false, |_| true);
        create_draft(&names[0])
    };
    GrowingFile::start(bounds, OnAbandon::Remove, Box::new(open))
}

/// Starts a recording. The temporary name contains a number that no output uses yet. If another process creates a file
/// with the chosen name first, the next number is tried.
fn begin_recording(outputs: &Outputs, settings: &Settings, bounds: GrowthLimits) -> (GrowingFile, FileFeed) {
    let (outputs, formats, report) = (outputs.clone(), settings.formats.clone(), settings.report.clone());
    let open = move || {
        let draft = with_free_name(&outputs, &formats, Draft::create_in_place)?;
        launcher_report::note_file(report.as_deref(), draft.path(), capture::now());
        Ok(draft)
    };
    let late = RecordingState { missed_mark: true, ..RecordingState::default() };
    GrowingFile::start(bounds, OnAbandon::Keep(Chunk::header(late).to_vec()), Box::new(open))
}

fn create_draft(target: &Path) -> Result<Draft> {
    make_folders(target)?;
    Ok(Draft::create(target)?)
}

/// Calls `take` with a name for the recording. The name contains a number that no output uses yet. If `take` fails
/// because another process has taken the name in the meantime, calls `take` again with the next name. Returns the
/// result of the last call of `take`.
pub(crate) fn with_free_name<T>(
    outputs: &Outputs,
    formats: &[Output],
    mut take: impl FnMut(&Path) -> io::Result<T>,
) -> Result<T> {
    let suffixes: Vec<_> = formats.iter().map(|output| output.suffix()).collect();
    let suffixes: Vec<_> = suffixes.iter().map(String::as_str).collect();
    for _ in 0..MAX_TRIED_NAMES {
        let (names, _) = outputs.choose_names(&suffixes, is_name_taken, |_| true);
        let own = formats.iter().zip(&names).find(|(output, _)| **output == Output::Recording);
        let Some((_, path)) = own else { break };
        make_folders(path)?;
        match take(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            taken => return Ok(taken?),
        }
    }
    Err(Error::new(ErrorKind::Io, "every numbered name is taken"))
}

/// Opens each text that the settings request in the format of the tutorial's tracer.
fn open_texts(
    outputs: &Outputs,
    settings: &Settings,
    bounds: GrowthLimits,
) -> Vec<(TextTarget, GrowingOutput<CuptiText<TextOut>>)> {
    let to_file = |file| GrowingOutput::open(file, |out| Ok(CuptiText::new(TextOut::File(out))));
    let mut texts = Vec::new();
    if settings.formats.contains(&Output::CuptiText) {
        texts.push((TextTarget::OutputName, to_file(begin_draft(outputs, Output::CuptiText, bounds))));
    }
    match &settings.trace_file {
        Some(TraceFile::Path(path)) => {
            let target = path.clone();
            let file = GrowingFile::start(bounds, OnAbandon::Remove, Box::new(move || create_draft(&target)));
            texts.push((TextTarget::Path(path.clone()), to_file(file)));
        }
        Some(TraceFile::Stdout) => {
            let text = CuptiText::new(TextOut::Stdout(Stdout::new()));
            texts.push((TextTarget::Stdout, GrowingOutput::Open(None, text)));
        }
        None => {}
    }
    texts
}

impl TextOut {
    fn into_file(self) -> Result<FileFeed> {
        match self {
            Self::File(out) => Ok(out),
            Self::Stdout(_) => Err(never_opened_error()),
        }
    }
}

impl Write for TextOut {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(out) => out.write(record),
            Self::Stdout(out) => out.write(record),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(out) => out.flush(),
            Self::Stdout(out) => out.flush(),
        }
    }
}

fn restored(path: &Path) -> String {
    format!("{} was removed during the run; it was written again from the open file", path.display())
}

pub(super) fn never_opened_error() -> Error {
    Error::new(ErrorKind::State, "the file was never opened")
}

impl<W> GrowingOutput<W> {
    /// Returns the file of an open output, or `None` if the output is not open or has no file.
    fn file(&self) -> Option<&GrowingFile> {
        if let Self::Open(file, _) = self { file.as_ref() } else { None }
    }

    fn open((file, feed): (GrowingFile, FileFeed), begin: impl FnOnce(FileFeed) -> Result<W>) -> Self {
        match begin(feed) {
            Ok(writer) => Self::Open(Some(file), writer),
            Err(error) => Self::Failed(error),
        }
    }

    fn publish(
        &mut self,
        path: &Path,
        patience: Duration,
        end: impl FnOnce(W) -> Result<FileFeed>,
    ) -> Result<WrittenFile> {
        publish(self.end(path, patience, end)?, path)
    }

    /// Ends the writing of an output. Returns the complete file of the output, which can now be renamed to `path`.
    fn end(
        &mut self,
        path: &Path,
        patience: Duration,
        end: impl FnOnce(W) -> Result<FileFeed>,
    ) -> Result<(Draft, FileLocation)> {
        match std::mem::replace(self, Self::None) {
            Self::Open(Some(_), writer) => {
                let draft = end(writer)?.finish(patience)?;
                find_draft(draft, path)
            }
            Self::Failed(error) => Err(error),
            Self::Open(None, _) | Self::None => Err(never_opened_error()),
        }
    }
}

/// Determines where the complete file `draft` currently is, and creates the parent folders of `path`.
fn find_draft(mut draft: Draft, path: &Path) -> Result<(Draft, FileLocation)> {
    let fate = draft.locate()?;
    // The folder may have changed, because the program may have chosen another folder after the file was created.
    if fate != FileLocation::Moved || draft.path() != draft.target() {
        make_folders(path)?;
    }
    Ok((draft, fate))
}

/// Renames a file that `find_draft` has found. The new name is `path`, or a similar name if `path` is taken.
fn publish((draft, fate): (Draft, FileLocation), path: &Path) -> Result<WrittenFile> {
    // If a user has moved a file that had its final name from the beginning, the file stays where the user moved it.
    let stays = fate == FileLocation::Moved && draft.path() == draft.target();
    let target = if stays { draft.path().to_owned() } else { path.to_owned() };
    let used = draft.publish_new_as(&target)?;
    let note = match fate {
        FileLocation::Restored => Some(restored(&used)),
        FileLocation::Moved if stays => {
            Some(format!("{} was moved during the run; it is {} now", path.display(), used.display()))
        }
        _ => None,
    };
    Ok(WrittenFile { path: used, note })
}

impl Sink for GrowingOutputs {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        self.with_table(|table| table.activity(activity, origin));
        self.with_chrome(|chrome| chrome.activity(activity, origin));
        self.for_each_text(|text| text.activity(activity, origin));
    }

    fn matched(&mut self, launched: Launched, is_graph: bool) {
        self.with_chrome(|chrome| chrome.matched(launched, is_graph));
        self.for_each_text(|text| text.matched(launched, is_graph));
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        self.with_table(|table| table.pending(id, launched));
        self.with_chrome(|chrome| chrome.pending(id, launched));
        self.for_each_text(|text| text.pending(id, launched));
    }

    fn host(&mut self, row: &Row<'_>) {
        self.with_chrome(|chrome| chrome.host(row));
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        self.with_chrome(|chrome| chrome.instant(instant));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;
    use gpuflame_config::PrefixMacros;
    use gpuflame_os::testing::{folder, names};

    #[test]
    fn a_trace_another_process_just_wrote_is_kept_and_an_old_one_replaced() {
        let folder = folder("stream-text");
        let path = folder.join("trace.txt");
        let settings = Settings {
            formats: Vec::new(),
            trace_file: Some(TraceFile::Path(path.clone())),
            ..Settings::default()
        };
        let outputs = Outputs::new(format!("{}/x", folder.display()), &PrefixMacros::default());
        fs::write(&path, "old").unwrap();
        let yesterday = SystemTime::now() - Duration::from_secs(86_400);
        File::options().write(true).open(&path).unwrap().set_modified(yesterday).unwrap();
        let [mut first, mut second] = [(); 2].map(|()| GrowingOutputs::open(&outputs, &settings, 24 << 20));
        first.write_row(&Row::Loss { loss: Loss::LaunchesDropped, count: 7 });
        assert_eq!(first.publish_trace(Duration::ZERO).unwrap().0, path);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# lost: 7 "), "{text}");
        let own = format!("trace.txt.{}", std::process::id());
        assert_eq!(second.publish_trace(Duration::ZERO).unwrap().0, folder.join(&own));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(names(&folder), ["trace.txt", &own]);
        fs::remove_dir_all(folder).unwrap();
    }
}

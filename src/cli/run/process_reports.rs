//! Reads the reports from the processes of a command. Each process that calls CUDA writes small files about itself to a
//! folder that was created for the run (`src/recorder/session/process/launcher_report.rs` defines their names). The
//! processes of the command may run as other users, and may put any files into the report folder.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write as _};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::HumanCount;
use serde_json::Value;

use crate::recover::{Recovered, Recovery};
use crate::set_file::parse_path;
use gpuflame_export::percent;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::format_nanos;
use gpuflame_os as host;

/// Maximum number of names to try for the report folder. If a folder with a tried name exists already, that folder
/// belongs to another run.
const MAX_FOLDER_NAMES: u32 = 1000;
/// Folders in which the report folder is created if it cannot be created in `TMPDIR`.
const FALLBACK_FOLDERS: [&str; 2] = ["/tmp", "/dev/shm"];
/// Maximum number of report files to read. `MAX_FILE_BYTES` is the maximum size of one report file. A report lists the
/// path of each file that a process wrote.
const MAX_FILES: usize = 100_000;
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Maximum total size in bytes of the ranks' recordings. If the recordings are larger than this, `gpuflame run` does
/// not search them for a straggler. Reading recordings of the maximum size takes about a second.
const MAX_RANK_BYTES: u64 = 128 << 20;
/// Maximum depth of nested report folders that are searched. Report folders are nested if a run starts other runs. Each
/// nested run adds two levels of folders.
const MAX_DEPTH: u32 = 8;
/// Maximum total time to wait for processes whose environment is temporarily empty. A process has no environment during
/// a part of an `exec`: while the Linux kernel reads the start of the new program from the disk. The limit applies to
/// all processes together, so several processes that were really started with an empty environment do not each wait for
/// the full time.
const EXEC_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum size in bytes of the environment with which Linux starts a program.
const MAX_ENVIRONMENT_BYTES: usize = 6 << 20;
/// Maximum number of processes for which the summary has a line.
const MAX_LISTED: usize = 20;
/// Environment variable that names the report folder for the command's processes. If this variable is already set when
/// this run starts, its value is the report folder of an enclosing run, or of another program that wants the reports.
pub(super) const REPORT_VARIABLE: &str = "GPUFLAME_REPORT";

/// A folder for reports, which is removed on drop. Processes of other users may create files in the report folder, but
/// cannot list the files in this folder. The folder's name is random, and processes of other users cannot list the
/// parent folder either. Therefore only processes of the command know the name of the report folder.
pub(super) struct ReportFolder {
    path: PathBuf,
    parent: PathBuf,
    /// Folder to which the reports are moved after this run has read them; `None` if no other program wants the
    /// reports.
    outer: Option<PathBuf>,
}

impl ReportFolder {
    /// # Errors
    /// Fails if the folder cannot be created in any of the candidate folders.
    pub(super) fn new() -> Result<Self> {
        let outer = std::env::var_os(REPORT_VARIABLE).and_then(|folder| std::path::absolute(folder).ok());
        let outer = outer.filter(|folder| folder.is_dir());
        // The report folder's path is made absolute, because the command may change its current folder.
        let temporary = std::path::absolute(std::env::temp_dir()).ok();
        let places = outer.iter().cloned().chain(temporary).chain(FALLBACK_FOLDERS.map(PathBuf::from));
        let mut first = None;
        for place in places {
            match Self::new_in(&place) {
                Ok((path, parent)) => return Ok(Self { path, parent, outer }),
                Err(error) => drop(first.get_or_insert(error.within(place.display()))),
            }
        }
        Err(first.unwrap_or_else(|| Error::new(ErrorKind::Io, "no folder for temporary files")))
    }

    fn new_in(place: &Path) -> Result<(PathBuf, PathBuf)> {
        for attempt in 0..MAX_FOLDER_NAMES {
            let parent = place.join(format!("gpuflame-run-{}-{attempt}", std::process::id()));
            match fs::DirBuilder::new().mode(0o711).create(&parent) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error.into()),
            }
            let path = parent.join(format!("{:016x}{:016x}", random(), random()));
            let made = fs::create_dir(&path)
                .and_then(|()| fs::set_permissions(&parent, Permissions::from_mode(0o711)))
                .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o1733)));
            return made.map(|()| (path, parent)).map_err(Error::from);
        }
        Err(Error::new(ErrorKind::Io, "every name for a folder is taken"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the reports that have arrived so far. Skips report files that cannot be read.
    pub(super) fn read(&self) -> CollectedReports {
        let mut files = Vec::new();
        list_files(&self.path, 0, &mut files);
        let mut left = CollectedReports::default();
        for path in files {
            if let Some((bytes, owner)) = read_file(&path) {
                left.add(path, bytes, owner);
            }
        }
        left.reports.sort_by_key(|report| report.process);
        left
    }

    /// Finds processes of the command that are still running. A process of the command is recognized by its
    /// environment, which contains the path of the report folder.
    pub(super) fn find_survivors(&self) -> BTreeSet<u32> {
        let setting = [REPORT_VARIABLE.as_bytes(), b"=", self.path.as_os_str().as_encoded_bytes()].concat();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let deadline = Instant::now() + EXEC_TIMEOUT;
        let is_set = |variable: &[u8]| {
            // If the command starts another `gpuflame run`, the report folder of that run is inside this run's folder.
            variable.strip_prefix(&setting[..]).is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
        };
        numbers
            .filter(|number: &u32| environment(*number, deadline).split(|byte| *byte == 0).any(is_set))
            .collect()
    }

    /// Moves the report files to the folder of the enclosing run, or of the other program that wants the reports.
    pub(super) fn forward(&self, left: &CollectedReports) {
        let Some(outer) = &self.outer else { return };
        for file in &left.files {
            let Some(name) = file.file_name() else { continue };
            // Renaming cannot move a file to another file system, so the file is copied there instead.
            if fs::rename(file, outer.join(name)).is_err()
                && let Some((bytes, _)) = read_file(file)
            {
                let _ = write_new(&outer.join(name), &bytes);
            }
        }
        for (session, report) in &left.recovered {
            let _ = write_new(&outer.join(format!("{session}.json")), report.as_bytes());
        }
    }
}

impl Drop for ReportFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.parent);
    }
}

fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// Lists the files in `folder` and in the report folders of nested runs.
fn list_files(folder: &Path, depth: u32, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if files.len() >= MAX_FILES {
            return;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => list_files(&entry.path(), depth + 1, files),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
}

/// Returns the content and the owner (user id) of a regular file. Rejects files that are too large, and everything that
/// is not a regular file. The file is opened in a way that does not block if the file is a pipe.
fn read_file(path: &Path) -> Option<(Vec<u8>, u32)> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some((bytes, metadata.uid()))
}

/// Creates a file. If a file, link or pipe with that name exists already, fails without changing anything, because
/// another user may have created it.
fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Returns the environment with which a process was started. The environment is empty for a short time during an
/// `exec`, so an empty environment is read again until `deadline`. The environment of kernel threads and zombies is
/// always empty, so the environment of such processes is read only once.
fn environment(process: u32, deadline: Instant) -> Vec<u8> {
    loop {
        let environment = read_environment(process);
        let may_have_more = matches!(&environment, Ok(variables) if variables.is_empty())
            && fs::read_link(format!("/proc/{process}/exe")).is_ok();
        if !may_have_more || Instant::now() >= deadline {
            return environment.unwrap_or_default();
        }
        std::thread::sleep(EXEC_TIMEOUT / 100);
    }
}

/// Reads the environment of a process with a single system call. Between two system calls, the process could switch to
/// another program. Therefore an environment that is read with two system calls could be truncated.
fn read_environment(process: u32) -> std::io::Result<Vec<u8>> {
    let mut variables = vec![0; MAX_ENVIRONMENT_BYTES];
    let read = fs::File::open(format!("/proc/{process}/environ"))?.read(&mut variables)?;
    variables.truncate(read);
    Ok(variables)
}

/// Contents of the files that the processes of a command left in the report folder. Sessions are keyed by the stem of
/// their file names.
#[derive(Default)]
pub(super) struct CollectedReports {
    pub(super) reports: Vec<ProcessReport>,
    reported: BTreeSet<String>,
    /// Output files that the sessions began to write. A file is incomplete if its process ended without running its
    /// exit handlers.
    unfinished: Vec<UnfinishedFile>,
    /// Sessions whose process called CUDA.
    sessions: BTreeMap<String, CudaSession>,
    /// Reports about recovered sessions, keyed by session.
    recovered: BTreeMap<String, String>,
    /// Sentences about files that recovery could not write. Each of these sentences contains the program's name and the
    /// process id.
    unwritten: Vec<String>,
    files: Vec<PathBuf>,
}

/// An output file that a session began to write.
struct UnfinishedFile {
    session: String,
    file: PathBuf,
    /// Whether the output file belongs to the user who runs this command. An output file that belongs to another user
    /// is not recovered. If such a file were recovered, the other user could choose which files this user reads, and
    /// where this user writes.
    is_ours: bool,
}

/// A session (the recording of one process) that called CUDA.
struct CudaSession {
    program: String,
    /// Reason why the session could not be recorded.
    refusal: Option<String>,
}

impl CollectedReports {
    fn add(&mut self, path: PathBuf, bytes: Vec<u8>, owner: u32) {
        let is_ours = owner == host::user();
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned) else { return };
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => {
                let report =
                    serde_json::from_slice(&bytes).ok().and_then(|value| ProcessReport::from_json(&value));
                let Some(report) = report else { return };
                self.reports.push(ProcessReport { is_ours, ..report });
                self.reported.insert(stem);
            }
            Some("begun") => {
                let Some((session, _)) = stem.rsplit_once('.') else { return };
                let file = PathBuf::from(OsString::from_vec(bytes));
                self.unfinished.push(UnfinishedFile { session: session.to_owned(), file, is_ours });
            }
            Some("called") => {
                let text = String::from_utf8_lossy(&bytes);
                let (program, refusal) = match text.split_once('\0') {
                    Some((program, refusal)) => (program, Some(refusal.to_owned())),
                    None => (&*text, None),
                };
                self.sessions.insert(stem, CudaSession { program: program.to_owned(), refusal });
            }
            _ => return,
        }
        self.files.push(path);
    }

    /// Recovers the output files of processes that were killed or crashed and therefore did not run their exit
    /// handlers. `recover` recovers one recording and prints its own errors.
    pub(super) fn recover(&mut self, recover: impl Fn(&Path) -> Result<Recovery>) {
        let is_reported = |file: &PathBuf| self.reports.iter().any(|report| report.files.contains(file));
        // The recording must be a regular file, because reading a pipe or a device may never end.
        let is_left =
            |begun: &&UnfinishedFile| begun.is_ours && begun.file.is_file() && !is_reported(&begun.file);
        let mut left: Vec<_> = self.unfinished.iter().filter(is_left).collect();
        left.sort_by(|a, b| a.file.cmp(&b.file));
        let (mut recovered, mut unwritten) = (Vec::new(), Vec::new());
        for UnfinishedFile { session, file, .. } in left {
            let sentence = match recover(file) {
                Ok(Recovery::Written(written)) => {
                    let sentence = written.describe_unwritten(file);
                    let Recovered { report, .. } = written;
                    recovered.push((session.clone(), report));
                    sentence
                }
                Ok(Recovery::StillRunning | Recovery::Finished) => None,
                Err(_) => Some(format!("no files could be written from its recording {}", file.display())),
            };
            unwritten.extend(sentence.map(|sentence| format!("{}: {sentence}", self.name_process(session))));
        }
        self.unwritten = unwritten;
        for (session, text) in recovered {
            let report = serde_json::from_str(&text).ok().and_then(|value| ProcessReport::from_json(&value));
            self.reports.extend(report);
            self.files.retain(|file| !belongs_to_session(file, &session));
            self.recovered.insert(session, text);
        }
    }

    /// Returns the rank and the recording of each process that got a rank from a launcher such as `torchrun`. Returns
    /// an empty list if the recordings are larger than [`MAX_RANK_BYTES`] in total.
    pub(super) fn ranks(&self) -> Vec<(u32, PathBuf)> {
        let recording = |report: &ProcessReport| {
            let rank = report.rank.as_ref()?.parse().ok()?;
            let mut files = report.files.iter().filter(|_| report.is_ours);
            let file = files.find(|file| file.extension().is_some_and(|ending| ending == "gfr"))?;
            Some((rank, file.clone()))
        };
        let ranks: Vec<(u32, PathBuf)> = self.reports.iter().filter_map(recording).collect();
        let bytes =
            ranks.iter().map(|(_, file)| fs::metadata(file).map_or(0, |data| data.len())).sum::<u64>();
        if bytes > MAX_RANK_BYTES { Vec::new() } else { ranks }
    }

    /// Returns the recordings of all processes, sorted by number of launches in descending order. Recordings larger
    /// than [`MAX_RANK_BYTES`] are left out, because reading them would take long.
    pub(super) fn recordings(&self) -> Vec<PathBuf> {
        let mut reports: Vec<_> = self.reports.iter().filter(|report| report.is_ours).collect();
        reports.sort_by_key(|report| std::cmp::Reverse(report.launches));
        let is_recording = |file: &&PathBuf| file.extension().is_some_and(|ending| ending == "gfr");
        let files = reports.iter().flat_map(|report| report.files.iter().filter(is_recording));
        let is_short = |file: &&PathBuf| fs::metadata(file).is_ok_and(|data| data.len() <= MAX_RANK_BYTES);
        files.filter(is_short).take(MAX_LISTED).cloned().collect()
    }

    /// Returns the recording of the process with the most launches. Returns `None` if there is no recording, or if the
    /// recording is larger than [`MAX_RANK_BYTES`], because reading such a recording would take long.
    pub(super) fn longest(&self) -> Option<PathBuf> {
        let report =
            self.reports.iter().filter(|report| report.is_ours).max_by_key(|report| report.launches)?;
        let is_recording = |file: &&PathBuf| file.extension().is_some_and(|ending| ending == "gfr");
        let file = report.files.iter().find(is_recording)?;
        let is_short = fs::metadata(file).is_ok_and(|data| data.len() <= MAX_RANK_BYTES);
        is_short.then(|| file.clone())
    }

    /// Returns the sessions that called CUDA but sent no report, except the sessions of processes in `survivors`.
    fn without_report(&self, survivors: &BTreeSet<u32>) -> impl Iterator<Item = (u32, &CudaSession)> {
        // A session with a file from which nothing was recovered is left out, because the summary has a separate line
        // for that file.
        let has_left = |session: &String| {
            self.unfinished.iter().any(|begun| begun.session == *session && begun.file.is_file())
        };
        let has_arrived = move |session: &String| {
            self.reported.contains(session) || self.recovered.contains_key(session) || has_left(session)
        };
        let silent = self.sessions.iter().filter(move |(session, _)| !has_arrived(session));
        let silent = silent.map(|(session, called)| (process_id(session), called));
        silent.filter(|(process, _)| !survivors.contains(process))
    }

    /// Returns a text that names the process of a session: `train (process 7)`.
    fn name_process(&self, session: &str) -> String {
        let process = process_id(session);
        match self.sessions.get(session).map(|called| &called.program).filter(|program| !program.is_empty()) {
            Some(program) => format!("{program} (process {process})"),
            None => format!("process {process}"),
        }
    }

    /// Returns lines that summarize the reports. `is_disabled` is whether the command was started with
    /// `GPUFLAME_DISABLE=1`.
    pub(super) fn lines(&self, survivors: &BTreeSet<u32>, is_disabled: bool) -> Vec<String> {
        let (idle, busy): (Vec<_>, Vec<_>) = self.reports.iter().partition(|report| report.is_idle());
        let mut lines: Vec<_> = busy.iter().take(MAX_LISTED).map(|report| report.line()).collect();
        if let Some(more) = busy.len().checked_sub(MAX_LISTED).filter(|more| *more > 0) {
            lines.push(format!("and {more} more processes"));
        }
        if !idle.is_empty() {
            lines.push(format!("{} called CUDA and launched nothing: no files", describe_count(idle.len())));
        }
        let (refused, silent): (Vec<_>, Vec<_>) =
            self.without_report(survivors).partition(|(_, called)| called.refusal.is_some());
        lines.extend(refused.iter().take(MAX_LISTED).map(|(process, called)| {
            let why = called.refusal.as_deref().unwrap_or_default();
            format!("{} (process {process}) was not recorded: {why}", called.program)
        }));
        if !silent.is_empty() {
            lines.push(format!(
                "no report arrived from {} that called CUDA and left no file: {}; killed, or ended without exit handlers \
                 (`_exit`, Go), before the first checkpoint",
                describe_count(silent.len()),
                join_listed(silent.iter().map(|(process, called)| format!("{} (process {process})", called.program)))
            ));
        }
        lines.extend(self.unwritten.iter().take(MAX_LISTED).cloned());
        lines.extend(
            self.unfinished.iter().filter(|begun| !begun.is_ours && begun.file.is_file()).filter_map(
                |begun| {
                    let is_over = !self.reported.contains(&begun.session)
                        && !survivors.contains(&process_id(&begun.session));
                    let file = begun.file.display();
                    is_over.then(|| {
                        format!(
                            "another user's process left {file}: `gpuflame recover {file}` writes its files"
                        )
                    })
                },
            ),
        );
        if !survivors.is_empty() {
            let numbers: Vec<_> = survivors.iter().map(u32::to_string).collect();
            lines.push(format!("still running, not waited for: processes {}", numbers.join(", ")));
        }
        if lines.is_empty() {
            lines.push(if is_disabled {
                "nothing was recorded: GPUFLAME_DISABLE=1 switches gpuflame off; unset it to record"
                    .to_owned()
            } else if !self.sessions.is_empty() {
                let called = self.sessions.keys().map(|session| self.name_process(session));
                format!("no report arrived, but these processes called CUDA: {}", join_listed(called))
            } else {
                "no report arrived: gpuflame saw no process of the command call CUDA; if one did, try \
                 `gpuflame run --preload`, or run `gpuflame doctor`"
                    .to_owned()
            });
        }
        lines
    }
}

/// Whether a file in the report folder belongs to this session.
fn belongs_to_session(file: &Path, session: &str) -> bool {
    let rest = file.file_name().and_then(|name| name.to_str()?.strip_prefix(session));
    rest.is_some_and(|rest| rest.starts_with('.'))
}

/// Returns the process id in a session's name, `HOST.PROCESS.TIME`.
fn process_id(session: &str) -> u32 {
    session.rsplit('.').nth(1).and_then(|process| process.parse().ok()).unwrap_or(0)
}

fn describe_count(count: usize) -> String {
    format!("{count} process{}", if count == 1 { "" } else { "es" })
}

/// Joins the first `MAX_LISTED` items to one text. If there are more than `MAX_LISTED` items, the text ends with `...`.
fn join_listed(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = if items.len() > MAX_LISTED { ", ..." } else { "" };
    items.take(MAX_LISTED).collect::<Vec<_>>().join(", ") + more
}

/// The report of one process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProcessReport {
    process: u64,
    program: String,
    rank: Option<String>,
    launches: u64,
    /// Number of launches made while no recording window was open. `launches` includes the launches that were made
    /// while no window was open.
    outside: u64,
    /// For each GPU: the GPU's index, and its busy and idle time in ns in the steady part of the run. In reports of
    /// earlier versions of gpuflame, these times cover the whole run.
    gpus: Vec<(u64, u64, u64)>,
    pub(super) files: Vec<PathBuf>,
    /// Whether the report file belongs to the user who runs this command.
    pub(super) is_ours: bool,
}

impl ProcessReport {
    fn from_json(value: &Value) -> Option<Self> {
        let gpu = |gpu: &Value| {
            let nanos = |steady: &str, whole: &str| gpu[steady].as_u64().or_else(|| gpu[whole].as_u64());
            let (busy, idle) = (nanos("steady_busy_ns", "busy_ns")?, nanos("steady_idle_ns", "idle_ns")?);
            Some((gpu["gpu"].as_u64()?, busy, idle))
        };
        Some(Self {
            process: value["process"].as_u64()?,
            program: value["program"].as_str()?.to_owned(),
            rank: value["rank"].as_str().map(str::to_owned),
            launches: value["launches"].as_u64()?,
            outside: value["outside"].as_u64().unwrap_or(0),
            gpus: value["gpus"].as_array()?.iter().filter_map(gpu).collect(),
            files: value["files"].as_array()?.iter().filter_map(parse_path).map(PathBuf::from).collect(),
            is_ours: true,
        })
    }

    /// Whether the summary needs no line about the process, because the process launched no GPU work and wrote no
    /// files.
    fn is_idle(&self) -> bool {
        self.launches == 0 && self.files.is_empty()
    }

    fn line(&self) -> String {
        let rank = self.rank.as_ref().map_or(String::new(), |rank| format!(", rank {rank}"));
        let gpus = self.gpus.iter().map(|(gpu, busy, idle)| {
            let window = busy.saturating_add(*idle);
            format!(", GPU {gpu} busy {:.1} % of {}", percent(*busy, window), format_nanos(window))
        });
        let file = match self.files.iter().find(|file| file.extension().is_some_and(|ending| ending == "svg"))
        {
            Some(picture) => format!("; {}", picture.display()),
            None => {
                self.files.first().map_or("; no files".to_owned(), |first| format!("; {}", first.display()))
            }
        };
        let launches = HumanCount(self.launches);
        let none = if self.launches > 0 && self.outside == self.launches { ", none in a window" } else { "" };
        format!(
            "{} (process {}{rank}): {launches} launches{none}{}{file}",
            self.program,
            self.process,
            gpus.collect::<String>()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> ProcessReport {
        ProcessReport::from_json(&serde_json::from_str(text).unwrap()).unwrap()
    }

    #[test]
    fn a_process_is_reported_in_one_line_with_its_svg() {
        let report = report(
            r#"{"process":7,"program":"train","rank":"3","launches":12345,
                "gpus":[{"gpu":1,"busy_ns":750000000,"idle_ns":250000000}],"files":["/a/x.csv","/a/x.svg"]}"#,
        );
        assert_eq!(
            lines(vec![report]),
            ["train (process 7, rank 3): 12,345 launches, GPU 1 busy 75.0 % of 1.000 s; /a/x.svg"]
        );
    }

    #[test]
    fn the_busy_share_is_that_of_the_steady_part() {
        let report = report(
            r#"{"process":7,"program":"train","rank":null,"launches":5,"gpus":[{"gpu":0,"busy_ns":750000000,
                "idle_ns":750000000,"steady_busy_ns":600000000,"steady_idle_ns":200000000}],"files":[]}"#,
        );
        assert_eq!(report.line(), "train (process 7): 5 launches, GPU 0 busy 75.0 % of 800.000 ms; no files");
    }

    #[test]
    fn a_process_with_no_launch_inside_a_window_is_reported_as_such() {
        let of = |outside: u32| {
            let text = format!(
                r#"{{"process":7,"program":"train","rank":null,"launches":5,"outside":{outside},"gpus":[],"files":[]}}"#
            );
            report(&text).line()
        };
        assert_eq!(of(5), "train (process 7): 5 launches, none in a window; no files");
        assert_eq!(of(4), "train (process 7): 5 launches; no files");
    }

    fn lines(reports: Vec<ProcessReport>) -> Vec<String> {
        CollectedReports { reports, ..CollectedReports::default() }.lines(&BTreeSet::new(), false)
    }

    #[test]
    fn survivors_are_listed_and_a_line_reports_that_no_report_arrived() {
        assert!(lines(Vec::new())[0].starts_with("no report arrived: gpuflame saw no process"));
        let disabled = CollectedReports::default().lines(&BTreeSet::new(), true);
        assert!(disabled[0].contains("GPUFLAME_DISABLE=1"), "{disabled:?}");
        let survivors = CollectedReports::default().lines(&[8, 9].into(), false);
        assert_eq!(survivors, ["still running, not waited for: processes 8, 9"]);
    }

    #[test]
    fn sessions_without_a_report_are_counted_by_cause() {
        let mut left = CollectedReports::default();
        let own = host::user();
        for (name, content) in [
            ("node.a.5.100.called", &b"exec"[..]),
            ("node.a.5.200.called", b"exec"),
            ("node.a.5.200.json", br#"{"process":5,"program":"exec","launches":0,"gpus":[],"files":[]}"#),
            ("node.a.6.100.called", b"go"),
            ("node.a.7.100.called", b"train\0there is no CUPTI"),
            ("node.a.8.100.called", b"daemon"),
        ] {
            left.add(name.into(), content.to_vec(), own);
        }
        assert_eq!(
            left.lines(&[8].into(), false),
            [
                "1 process called CUDA and launched nothing: no files",
                "train (process 7) was not recorded: there is no CUPTI",
                "no report arrived from 2 processes that called CUDA and left no file: exec (process 5), go (process 6); \
                 killed, or ended without exit handlers (`_exit`, Go), before the first checkpoint",
                "still running, not waited for: processes 8",
            ]
        );
    }

    #[test]
    fn a_process_whose_recording_cannot_be_recovered_is_named_with_the_recording() {
        let file = std::env::current_exe().unwrap();
        let mut left = CollectedReports::default();
        let bytes = file.as_os_str().as_encoded_bytes().to_vec();
        left.add("node.5.100.300.begun".into(), bytes, host::user());
        left.add("node.5.100.called".into(), b"train".to_vec(), host::user());
        let before = left.lines(&BTreeSet::new(), false);
        assert_eq!(before, ["no report arrived, but these processes called CUDA: train (process 5)"]);
        left.recover(|_| Err(Error::new(ErrorKind::Format, "damaged")));
        let expected =
            format!("train (process 5): no files could be written from its recording {}", file.display());
        assert_eq!(left.lines(&BTreeSet::new(), false), [expected]);
    }

    #[test]
    fn files_reported_by_another_user_are_listed_but_not_read() {
        let file = std::env::current_exe().unwrap();
        let mut left = CollectedReports::default();
        let bytes = file.as_os_str().as_encoded_bytes().to_vec();
        left.add("node.5.100.300.begun".into(), bytes, host::user() + 1);
        left.add("node.5.100.called".into(), b"train".to_vec(), host::user() + 1);
        left.recover(|file| panic!("{} is read", file.display()));
        let [line] = &left.lines(&BTreeSet::new(), false)[..] else { panic!("one line") };
        assert!(
            line.starts_with("another user's process left ") && line.contains("gpuflame recover "),
            "{line}"
        );
    }
}

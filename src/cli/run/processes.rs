//! What became of the processes of a command: each that recorded leaves a few lines about itself in a folder that is
//! made for the run, when it has written its files.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::HumanCount;
use serde_json::Value;

use crate::cli::recover::Recovered;
use crate::error::{Error, ErrorKind, Result};
use crate::explain::{Device, path_of};

/// So many folders are tried; each that is there is another run's.
const MOST_FOLDERS: u32 = 1000;
/// So long an `exec` may take in which a process has no environment, all processes together: it reads the head of the
/// program from the disk. Processes that were begun with none cost this once.
const EXEC: Duration = Duration::from_millis(200);
/// An environment of so many bytes is the largest that Linux begins a program with.
const MOST_VARIABLES: usize = 6 << 20;
/// So many processes are listed one by one.
const MOST_LISTED: usize = 20;

/// The folder, which goes with this.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Self> {
        let base = std::env::temp_dir();
        for attempt in 0..MOST_FOLDERS {
            let path = base.join(format!("gpuflame-run-{}-{attempt}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let why =
                        format!("{}: {error}; set TMPDIR to a folder that can be written", path.display());
                    return Err(Error::new(ErrorKind::Io, why));
                }
            }
        }
        Err(Error::new(ErrorKind::Io, format!("{}: every name for a folder is taken", base.display())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// What processes left so far, in the order of their numbers. What cannot be read is passed over: it is only told.
    pub(super) fn read(&self) -> Vec<Report> {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
        let mut reports: Vec<_> = files
            .filter_map(|path| Report::of(&serde_json::from_slice(&fs::read(path).ok()?).ok()?))
            .collect();
        reports.sort_by_key(|report| report.process);
        reports
    }

    /// Files that processes left which are gone, and have told of none since: they were killed, or crashed.
    pub(super) fn cut(&self, ended: &[Report]) -> Vec<PathBuf> {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path());
        let begun = files.filter(|path| path.extension().is_some_and(|ending| ending == "begun"));
        let mut cut: Vec<_> = begun
            .filter_map(|path| Some(PathBuf::from(OsString::from_vec(fs::read(path).ok()?))))
            .filter(|file| file.exists() && !ended.iter().any(|report| report.files.contains(file)))
            .collect();
        cut.sort();
        cut
    }

    /// Processes of the command that live on: they have the folder's name in the environment that they began with.
    pub(super) fn survivors(&self) -> BTreeSet<u32> {
        let setting = [b"GPUFLAME_REPORT=", self.0.as_os_str().as_encoded_bytes()].concat();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let looks_end = Instant::now() + EXEC;
        numbers
            .filter(|number: &u32| {
                environment(*number, looks_end).split(|byte| *byte == 0).any(|variable| variable == setting)
            })
            .collect()
    }
}

/// What a process began with. While it is becoming another program it has none for a moment, so that it is read again
/// until `looks_end`; threads of the kernel and processes that are gone but not awaited have no program either.
fn environment(process: u32, looks_end: Instant) -> Vec<u8> {
    loop {
        let environment = read_at_once(process);
        let may_have_more = matches!(&environment, Ok(variables) if variables.is_empty())
            && fs::read_link(format!("/proc/{process}/exe")).is_ok();
        if !may_have_more || Instant::now() >= looks_end {
            return environment.unwrap_or_default();
        }
        std::thread::sleep(EXEC / 100);
    }
}

/// By a single read: of two the second could find the program gone that the first was of, and what was read cut.
fn read_at_once(process: u32) -> std::io::Result<Vec<u8>> {
    let mut variables = vec![0; MOST_VARIABLES];
    let read = fs::File::open(format!("/proc/{process}/environ"))?.read(&mut variables)?;
    variables.truncate(read);
    Ok(variables)
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a process says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Report {
    process: u64,
    program: String,
    rank: Option<String>,
    launches: u64,
    /// Of these, made while no window was open.
    outside: u64,
    /// Number of each GPU, with its busy and idle nanoseconds.
    gpus: Vec<(u64, u64, u64)>,
    pub(super) files: Vec<PathBuf>,
}

impl Report {
    /// Of a process that told nothing itself.
    pub(super) fn of_recovered(recovered: Recovered) -> Self {
        let Recovered { process, ledger, files } = recovered;
        let (process, program) = process.unwrap_or_default();
        let time =
            |device: &Device| device.time.map(|time| (device.work.device.0.into(), time.busy, time.idle));
        let gpus = ledger.devices.iter().filter_map(time).collect();
        let (launches, outside) = (ledger.launches().total, ledger.tally.launches.outside);
        Self { process: process.into(), program, rank: None, launches, outside, gpus, files }
    }

    fn of(value: &Value) -> Option<Self> {
        let gpu =
            |gpu: &Value| Some((gpu["gpu"].as_u64()?, gpu["busy_ns"].as_u64()?, gpu["idle_ns"].as_u64()?));
        Some(Self {
            process: value["process"].as_u64()?,
            program: value["program"].as_str()?.to_owned(),
            rank: value["rank"].as_str().map(str::to_owned),
            launches: value["launches"].as_u64()?,
            outside: value["outside"].as_u64().unwrap_or(0),
            gpus: value["gpus"].as_array()?.iter().filter_map(gpu).collect(),
            files: value["files"].as_array()?.iter().filter_map(path_of).map(PathBuf::from).collect(),
        })
    }

    fn line(&self) -> String {
        let rank = self.rank.as_ref().map_or(String::new(), |rank| format!(", rank {rank}"));
        let gpus = self.gpus.iter().map(|(gpu, busy, idle)| {
            let share = 100.0 * *busy as f64 / (busy + idle).max(1) as f64;
            format!(", GPU {gpu} busy {share:.1} % of {:.3} s", (busy + idle) as f64 / 1e9)
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

/// What is told at the end.
pub(super) fn lines(left: &[Report], survivors: &BTreeSet<u32>) -> Vec<String> {
    let mut lines: Vec<_> = left.iter().take(MOST_LISTED).map(Report::line).collect();
    if let Some(more) = left.len().checked_sub(MOST_LISTED).filter(|more| *more > 0) {
        lines.push(format!("and {more} processes more"));
    }
    if !survivors.is_empty() {
        let numbers: Vec<_> = survivors.iter().map(u32::to_string).collect();
        lines.push(format!("still running, and not awaited: processes {}", numbers.join(", ")));
    }
    if lines.is_empty() {
        lines.push(
            "nothing was recorded: no process of the command called CUDA, or it was killed in its first 2 s; if one did, \
             try `gpuflame run --preload`, or ask `gpuflame doctor`"
                .to_owned(),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> Report {
        Report::of(&serde_json::from_str(text).unwrap()).unwrap()
    }

    #[test]
    fn a_process_is_a_line_with_its_picture() {
        let report = report(
            r#"{"process":7,"program":"train","rank":"3","launches":12345,
                "gpus":[{"gpu":1,"busy_ns":750000000,"idle_ns":250000000}],"files":["/a/x.csv","/a/x.svg"]}"#,
        );
        assert_eq!(
            lines(&[report], &BTreeSet::new()),
            ["train (process 7, rank 3): 12,345 launches, GPU 1 busy 75.0 % of 1.000 s; /a/x.svg"]
        );
    }

    #[test]
    fn a_process_whose_windows_had_nothing_says_so() {
        let of = |outside: u32| {
            let text = format!(
                r#"{{"process":7,"program":"train","rank":null,"launches":5,"outside":{outside},"gpus":[],"files":[]}}"#
            );
            report(&text).line()
        };
        assert_eq!(of(5), "train (process 7): 5 launches, none in a window; no files");
        assert_eq!(of(4), "train (process 7): 5 launches; no files");
    }

    #[test]
    fn what_lives_on_and_what_there_is_nothing_of_are_told() {
        assert!(lines(&[], &BTreeSet::new())[0].starts_with("nothing was recorded"));
        assert_eq!(lines(&[], &[8, 9].into()), ["still running, and not awaited: processes 8, 9"]);
    }
}

//! Reads the recordings that libgpuflame.so has made inside the watched processes. `compare` compares these recordings
//! with the launches that the probes have seen.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use gpuflame_model::error::Result;
use gpuflame_model::record::{Detail, Frame, FrameKind, Loss, ModuleEpoch, Reader, Row};

use crate::address_spaces::{FileLocation, FileNumber, Files};
use crate::entry_points::{self, Segment};
use crate::mapped_file::MappedFile;

/// A launch that the library has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedLaunch {
    /// Time of the launch according to `CLOCK_REALTIME`, in ns.
    pub(crate) time: u64,
    pub(crate) tid: u32,
    /// Stack of the launch, leaf first. Each frame consists of a file and an offset in that file.
    pub(crate) stack: std::rc::Rc<Vec<FileLocation>>,
    /// Whether the stack is complete.
    pub(crate) is_complete: bool,
    /// GPU work that the launch started: the name of its first kernel, and the total GPU time in ns.
    pub(crate) work: Option<(String, u64)>,
}

/// Id of a launch: a process id, and the correlation id in that process.
pub(crate) type LaunchId = (u32, u32);

/// The launches of all processes that were recorded.
#[derive(Debug, Default)]
pub(crate) struct RecordedLaunches {
    pub(crate) launches: BTreeMap<LaunchId, RecordedLaunch>,
    /// Number of launches that were lost, keyed by the kind of loss.
    pub(crate) lost: BTreeMap<&'static str, u64>,
    /// Number of launches that were made while no window was open.
    pub(crate) outside: u64,
    pub(crate) processes: usize,
}

impl RecordedLaunches {
    /// Reads all recordings in a folder.
    pub(crate) fn read(folder: &Path, files: &Files) -> Result<Self> {
        let mut inside = Self::default();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "gfr") {
                inside.processes += 1;
                inside.add(&path, files).map_err(|error| error.within(path.display()))?;
            }
        }
        Ok(inside)
    }

    fn add(&mut self, path: &Path, files: &Files) -> Result<()> {
        let mut reader = Reader::new(BufReader::new(File::open(path)?))?;
        let mut modules = ModuleFiles { files, modules: Vec::new(), known: HashMap::new() };
        let (mut contexts, mut names, mut pid) = (HashMap::new(), HashMap::new(), 0);
        let (mut launches, mut work) = (Vec::new(), HashMap::<u32, (u32, u64)>::new());
        while let Some(row) = reader.next_row()? {
            match row {
                Row::Process { id, .. } => pid = id,
                Row::Module(module) => modules.modules.push(module),
                Row::Context { id, thread, flags, frames } => {
                    let stack = std::rc::Rc::new(modules.stack(frames));
                    contexts.insert(id, (thread.0, stack, flags.label().is_none()));
                }
                Row::Launch(launch) if !launch.is_alias() => launches.push(launch),
                Row::Name { id, text } => drop(names.insert(id.0, text.to_owned())),
                Row::Activity(activity) => {
                    let nanos = activity.duration().unwrap_or(0);
                    let name = match activity.detail {
                        Detail::Kernel(kernel) => kernel.name.0,
                        _ => u32::MAX,
                    };
                    work.entry(activity.correlation.0).or_insert((name, 0)).1 += nanos;
                }
                Row::Outside(outside) => self.outside += u64::from(outside.count),
                Row::Loss { loss, count } if is_launch_loss(loss) => {
                    *self.lost.entry(loss.label()).or_default() += count;
                }
                _ => {}
            }
        }
        for launch in launches {
            let Some((tid, stack, is_complete)) = contexts.get(&launch.context) else { continue };
            let work = work.get(&launch.correlation.0);
            let named = |(name, nanos): &(u32, u64)| (names.get(name).cloned().unwrap_or_default(), *nanos);
            let recorded = RecordedLaunch {
                time: launch.time.0,
                tid: *tid,
                stack: stack.clone(),
                is_complete: *is_complete,
                work: work.map(named),
            };
            self.launches.insert((pid, launch.correlation.0), recorded);
        }
        Ok(())
    }
}

fn is_launch_loss(loss: Loss) -> bool {
    matches!(loss, Loss::LaunchesDropped | Loss::LaunchesFailed | Loss::LaunchesCaptured | Loss::StacksNested)
}

/// The files that a process had mapped, according to the recording of that process.
struct ModuleFiles<'a> {
    files: &'a Files,
    modules: Vec<gpuflame_model::record::Module>,
    known: HashMap<PathBuf, Option<(FileNumber, Vec<Segment>)>>,
}

impl ModuleFiles<'_> {
    fn stack(&mut self, frames: &[Frame]) -> Vec<FileLocation> {
        frames
            .iter()
            .filter_map(|frame| match frame.kind() {
                FrameKind::Native { address, epoch } => Some(self.locate(address, epoch)),
                _ => None,
            })
            .collect()
    }

    fn locate(&mut self, address: u64, epoch: ModuleEpoch) -> FileLocation {
        let module = self
            .modules
            .iter()
            .find(|module| module.epoch == epoch && (module.start..module.end).contains(&address));
        let nowhere = FileLocation { file: FileLocation::UNKNOWN, offset: address };
        let Some(module) = module else { return nowhere };
        let files = self.files;
        let known =
            self.known.entry(module.path.clone()).or_insert_with(|| resolve_path(&module.path, files));
        let Some((file, segments)) = known else { return nowhere };
        match entry_points::file_offset(segments, address.wrapping_sub(module.bias)) {
            Some(offset) => FileLocation { file: *file, offset },
            None => nowhere,
        }
    }
}

/// Returns the index in `files` of the file that has this path. Also returns the segments of the file. Resolves
/// symbolic links first, because the loader and the kernel may use different paths for the same file (`/lib` and
/// `/usr/lib`).
fn resolve_path(path: &Path, files: &Files) -> Option<(FileNumber, Vec<Segment>)> {
    let path = std::fs::canonicalize(path).ok()?;
    let bytes = MappedFile::map(&File::open(&path).ok()?).ok()?;
    Some((files.find_by_path(&path)?, entry_points::segments(bytes.bytes())))
}

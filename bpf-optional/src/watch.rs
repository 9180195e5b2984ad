//! Processes the records from the eBPF programs as they arrive. This includes storing launches, updating address
//! spaces, and attaching probes to every new file. A process that maps a new file is stopped until the probes are
//! attached to that file.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use gpuflame_model::error::Result;

use crate::address_spaces::{self, AddressSpace, FileLocation, FileNumber, MapsLine};
use crate::entry_points::{self, CudaExtent, EntryKind, EntryPoint};
use crate::kernel::{self, DropCounts, KernelPrograms, WatchOptions};
use crate::mapped_file::MappedFile;
use crate::probed_launches::{Launch, Probe, ProbedLaunches};
use crate::process;
use crate::wire::{self, FileId, KernelRecord, Mapping, ProbeHit, RecordHeader};

/// A function that the user wants to probe. The user names the function as `LIB:SYMBOL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserProbe {
    pub(crate) library: String,
    pub(crate) symbol: String,
}

impl UserProbe {
    /// Whether `path` is the file that the user has named, either by its complete path or by the beginning of its file
    /// name.
    fn matches(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if self.library.contains('/') {
            path == Path::new(&self.library)
        } else {
            name.starts_with(&self.library)
        }
    }
}

/// Watches processes, and collects their launches.
#[derive(Debug)]
pub(crate) struct Watcher {
    kernel: KernelPrograms,
    user_probes: Vec<UserProbe>,
    copies: bool,
    spaces: HashMap<u64, AddressSpace>,
    probed: ProbedLaunches,
    /// Index of the last launch of each thread. The next marker record of the thread assigns its correlation id to this
    /// launch.
    last_launch: HashMap<u32, usize>,
    /// Indices of the stacks, keyed by address space, version of that address space, and bytes of the raw stack.
    stack_ids: HashMap<(u64, u32, Vec<u8>), u32>,
    /// Messages about problems with files. Each message is stored only once.
    pub(crate) remarks: Vec<String>,
}

impl Watcher {
    pub(crate) fn new(watched: WatchOptions, user_probes: Vec<UserProbe>) -> Result<Self> {
        let kernel = KernelPrograms::load(watched)?;
        let (spaces, probed, last_launch, stack_ids) = Default::default();
        Ok(Self {
            kernel,
            user_probes,
            copies: watched.copies,
            spaces,
            probed,
            last_launch,
            stack_ids,
            remarks: Vec::new(),
        })
    }

    /// Starts to watch the process with this id.
    pub(crate) fn follow(&mut self, pid: u32) -> Result<()> {
        self.kernel.follow(pid)
    }

    /// Attaches probes to all files that are mapped by a process which was already running.
    pub(crate) fn inspect_process(&mut self, pid: u32) {
        self.inspect_mappings(pid);
    }

    /// Attaches probes to all files that a process has mapped. Returns the address space of the process, which is empty
    /// if the process has ended.
    fn inspect_mappings(&mut self, pid: u32) -> AddressSpace {
        let mut space = AddressSpace::default();
        for line in address_spaces::read_maps(pid).unwrap_or_default() {
            if let Some(number) = self.inspect_file(pid, &line) {
                space.map(line.start, line.end, line.offset, number);
            }
        }
        space
    }

    /// Returns the number of attached probes, not counting the probes for the marker function.
    pub(crate) fn probe_count(&self) -> usize {
        self.probed.probes.iter().filter(|probe| probe.kind != EntryKind::Marker).count()
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.kernel.descriptor()
    }

    pub(crate) fn into_launches(self) -> Result<(ProbedLaunches, DropCounts, Vec<String>)> {
        let dropped = self.kernel.dropped()?;
        Ok((self.probed, dropped, self.remarks))
    }

    /// Processes all records that have arrived.
    pub(crate) fn read(&mut self) {
        // Collects the mappings of files that are new. These processes are stopped until their files are inspected. The
        // files are inspected only after this loop, because the loop borrows `kernel`.
        let mut stopped = Vec::new();
        let Self { kernel, spaces, probed, last_launch, copies, stack_ids, .. } = self;
        let mut handler = RecordHandler { spaces, probed, last_launch, copies: *copies, stack_ids };
        kernel.read(|bytes| {
            let record = wire::parse(bytes);
            if !kernel::is_parsed(&record) {
                return;
            }
            let Some((head, record)) = record else { return };
            match record {
                KernelRecord::Hit(hit) => handler.on_hit(&head, &hit),
                KernelRecord::Marker { correlation, is_copy } => {
                    handler.on_marker(&head, correlation, is_copy)
                }
                KernelRecord::Fork { child, space } => handler.on_fork(&head, child, space),
                KernelRecord::Mapping(mapping) => {
                    if !handler.on_mapping(&head, &mapping) {
                        stopped.push((head, mapping));
                    }
                }
            }
        });
        for (head, mapping) in stopped {
            self.handle_new_mapping(&head, &mapping);
        }
    }

    /// Handles a new mapping of a file that was not inspected yet, or a process that has begun to execute another
    /// program.
    fn handle_new_mapping(&mut self, head: &RecordHeader, mapping: &Mapping) {
        let Mapping { start, end, offset, file, stopped } = *mapping;
        // Also inspects the files that the process had mapped before it was watched. Without this inspection, a program
        // into which the CUDA runtime is linked would not be found.
        if !self.spaces.contains_key(&head.space) || end == 0 {
            let space = self.inspect_mappings(head.pid);
            self.spaces.insert(head.space, space);
        }
        if end == 0 {
            return if stopped {
                process::resume(head.pid)
            };
        }
        let line = MapsLine { start, end, offset, file, path: PathBuf::new() };
        let number = self.inspect_file(head.pid, &line);
        if let Some(number) = number {
            self.spaces.entry(head.space).or_default().map(start, end, offset, number);
        }
        if stopped {
            // If resuming the process fails, the process has died.
            process::resume(head.pid);
        }
    }

    /// Attaches probes to functions in the file that `line` maps: the functions that begin GPU work, and the functions
    /// that the user has named. Returns the index of the file, or `None` if the file no longer exists.
    fn inspect_file(&mut self, pid: u32, line: &MapsLine) -> Option<FileNumber> {
        if let Some(number) = self.probed.files.number(line.file) {
            return Some(number);
        }
        let link = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", line.start, line.end));
        let path = std::fs::read_link(&link)
            .ok()
            .or((!line.path.as_os_str().is_empty()).then(|| line.path.clone()))?;
        let file = File::open(&link).or_else(|_| File::open(&path)).ok()?;
        let api = match self.attach(&path, &link, &file) {
            Ok(api) => api,
            Err(error) => {
                self.remarks.push(format!("{}: {error}", path.display()));
                CudaExtent::None
            }
        };
        if let Err(error) = self.kernel.add_known_file(line.file) {
            self.remarks.push(error.to_string());
        }
        Some(self.probed.files.add(line.file, path, file, api))
    }

    fn attach(&mut self, path: &Path, link: &Path, file: &File) -> Result<CudaExtent> {
        let named: Vec<&str> = self
            .user_probes
            .iter()
            .filter(|named| named.matches(path))
            .map(|named| named.symbol.as_str())
            .collect();
        let bytes = MappedFile::map(file)?;
        // A file that is not an ELF file contains no functions to probe.
        let Ok(found) = entry_points::find_entry_points(bytes.bytes(), &named) else {
            return Ok(CudaExtent::None);
        };
        let wanted = |kind| self.copies || kind != EntryKind::Copy;
        let entries: Vec<EntryPoint> = found.entries.into_iter().filter(|entry| wanted(entry.kind)).collect();
        for entry in entries {
            let probe = self.probed.probes.len() as u64;
            let target = if link.exists() { link } else { path };
            self.kernel.attach(entry.kind, target, entry.offset, probe)?;
            self.probed.probes.push(Probe { name: entry.name, kind: entry.kind });
        }
        Ok(found.api)
    }
}

/// The parts of a [`Watcher`] that change when a record is processed.
struct RecordHandler<'a> {
    spaces: &'a mut HashMap<u64, AddressSpace>,
    probed: &'a mut ProbedLaunches,
    last_launch: &'a mut HashMap<u32, usize>,
    copies: bool,
    stack_ids: &'a mut HashMap<(u64, u32, Vec<u8>), u32>,
}

impl RecordHandler<'_> {
    /// Returns the address space of the process that a record is about. If the process was already running before it
    /// was watched, the first call of this function reads the process's mappings.
    fn space(&mut self, head: &RecordHeader) -> &mut AddressSpace {
        let files = &self.probed.files;
        self.spaces.entry(head.space).or_insert_with(|| read_space(head.pid, |file| files.number(file)))
    }

    fn on_hit(&mut self, head: &RecordHeader, hit: &ProbeHit<'_>) {
        let Some(kind) = self.probed.probes.get(hit.probe as usize).map(|probe| probe.kind) else { return };
        let stack = self.intern_stack(head, hit);
        let comm = thread_name(&head.comm);
        let caller = self.space(head).locate(hit.caller.wrapping_sub(1));
        let nested = kind != EntryKind::Named
            && self.probed.files.get(caller.file).is_some_and(|file| file.api.contains(caller.offset));
        let launch = Launch {
            time: head.time,
            pid: head.pid,
            tid: head.tid,
            cpu: head.cpu,
            comm: self.probed.comms.intern(comm),
            probe: hit.probe as u32,
            stack,
            correlation: None,
            nested,
        };
        self.probed.launches.push(launch);
        if kind != EntryKind::Named {
            self.last_launch.insert(head.tid, self.probed.launches.len() - 1);
        }
    }

    /// Assigns a correlation id to the latest launch of the thread. The thread's last launch is the right one, because
    /// CUPTI's callback runs at the beginning of the outermost call, before any nested call begins.
    fn on_marker(&mut self, head: &RecordHeader, correlation: u32, is_copy: bool) {
        if is_copy && !self.copies {
            self.probed.copies.insert((head.pid, correlation));
            return;
        }
        let launch = self.last_launch.get(&head.tid).and_then(|at| self.probed.launches.get_mut(*at));
        match launch {
            Some(launch) if launch.correlation.is_none() && launch.pid == head.pid => {
                launch.correlation = Some(correlation);
            }
            _ => self.probed.unmatched_markers += 1,
        }
    }

    fn on_fork(&mut self, head: &RecordHeader, child: u32, space: u64) {
        let of_parent = self.space(head).clone();
        if space != head.space && child != 0 {
            self.spaces.insert(space, of_parent);
        }
    }

    /// Adds a mapping to the address space to which it belongs. Returns false if more must be done. Either the file is
    /// unknown and must be inspected, or the process is stopped and must be resumed.
    fn on_mapping(&mut self, head: &RecordHeader, mapping: &Mapping) -> bool {
        if mapping.end == 0 {
            // The process has begun to execute another program. The new address space may have the id of an older
            // address space that no longer exists.
            self.spaces.remove(&head.space);
            return false;
        }
        let Some(file) = self.probed.files.number(mapping.file) else { return false };
        let space = self.spaces.entry(head.space).or_default();
        space.map(mapping.start, mapping.end, mapping.offset, file);
        !mapping.stopped
    }

    fn intern_stack(&mut self, head: &RecordHeader, hit: &ProbeHit<'_>) -> u32 {
        let version = self.space(head).version;
        let raw = [hit.user, &hit.caller.to_ne_bytes(), hit.kernel].concat();
        if let Some(number) = self.stack_ids.get(&(head.space, version, raw.clone())) {
            return *number;
        }
        let space = self.space(head);
        let kernel = wire::addresses(hit.kernel)
            .map(|address| FileLocation { file: FileLocation::KERNEL, offset: address });
        let mut places: Vec<FileLocation> = kernel.collect();
        places.extend(user_addresses(hit).into_iter().enumerate().map(|(at, address)| {
            // All addresses except the first one are return addresses. A return address may be past the end of the
            // calling function. Therefore the name is looked up for the byte before the return address.
            space.locate(address - u64::from(at > 0))
        }));
        let number = self.probed.stacks.intern(places);
        self.stack_ids.insert((head.space, version, raw), number);
        number
    }
}

/// Returns the addresses in the user stack. Inserts the calling function if it is missing. At the first instruction of
/// a function, the frame pointer still belongs to the caller, so kernels before Linux 6.11 omit the caller from the
/// stack.
fn user_addresses(hit: &ProbeHit<'_>) -> Vec<u64> {
    let mut addresses: Vec<u64> = wire::addresses(hit.user).filter(|address| *address != 0).collect();
    if hit.caller != 0 && addresses.get(1) != Some(&hit.caller) {
        addresses.insert(addresses.len().min(1), hit.caller);
    }
    addresses
}

fn read_space(pid: u32, number: impl Fn(FileId) -> Option<FileNumber>) -> AddressSpace {
    let mut space = AddressSpace::default();
    for line in address_spaces::read_maps(pid).unwrap_or_default() {
        if let Some(file) = number(line.file) {
            space.map(line.start, line.end, line.offset, file);
        }
    }
    space
}

/// Returns the name of a thread, which has up to fifteen bytes. Blanks in the name are replaced, because a blank would
/// end the column of the output in which the name is.
fn thread_name(bytes: &[u8; 16]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(bytes);
    let text: String =
        text.chars().map(|c| if c.is_whitespace() || c.is_control() { '_' } else { c }).collect();
    if text.is_empty() { "unknown".to_owned() } else { text }
}

//! Reads the kernel's records as they arrive: stores launches, follows address spaces, and inspects every new file
//! while the process that mapped the file is stopped.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use gpuflame_model::error::Result;

use crate::bytes::Bytes;
use crate::entries::{self, Api, Entry, Kind};
use crate::kernel::{self, Dropped, Kernel, Watched};
use crate::launched::{Launch, Probe, Seen};
use crate::process;
use crate::spaces::{self, FileNumber, Line, Place, Space};
use crate::wire::{self, FileId, Head, Hit, Mapping, Record};

/// `LIB:SYMBOL`, as the user named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) library: String,
    pub(crate) symbol: String,
}

impl Named {
    /// Whether `path` is the named file. The user gives the complete path, or the beginning of the file name.
    fn means(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if self.library.contains('/') {
            path == Path::new(&self.library)
        } else {
            name.starts_with(&self.library)
        }
    }
}

/// Watches processes.
#[derive(Debug)]
pub(crate) struct Watch {
    kernel: Kernel,
    named: Vec<Named>,
    copies: bool,
    spaces: HashMap<u64, Space>,
    seen: Seen,
    /// Index of the last launch of each thread, to which a marker refers.
    last: HashMap<u32, usize>,
    /// Numbers of raw stacks, keyed by the address space and the version of that space.
    known: HashMap<(u64, u32, Vec<u8>), u32>,
    /// Problems with files, each to be reported once.
    pub(crate) remarks: Vec<String>,
}

impl Watch {
    pub(crate) fn new(watched: Watched, named: Vec<Named>) -> Result<Self> {
        let kernel = Kernel::load(watched)?;
        let (spaces, seen, last, known) = Default::default();
        Ok(Self { kernel, named, copies: watched.copies, spaces, seen, last, known, remarks: Vec::new() })
    }

    /// Watches a process from now on.
    pub(crate) fn follow(&mut self, pid: u32) -> Result<()> {
        self.kernel.follow(pid)
    }

    /// Inspects all files that a running process has mapped.
    pub(crate) fn look_into_process(&mut self, pid: u32) {
        self.whole_process(pid);
    }

    /// Inspects all mapped files of a process, and returns its address space; empty if the process is gone.
    fn whole_process(&mut self, pid: u32) -> Space {
        let mut space = Space::default();
        for line in spaces::maps(pid).unwrap_or_default() {
            if let Some(number) = self.look_into(pid, &line) {
                space.map(line.start, line.end, line.offset, number);
            }
        }
        space
    }

    /// Returns the number of probes that are attached to functions that begin GPU work, or that the user named.
    pub(crate) fn attached(&self) -> usize {
        self.seen.probes.iter().filter(|probe| probe.kind != Kind::Marker).count()
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.kernel.descriptor()
    }

    pub(crate) fn into_seen(self) -> Result<(Seen, Dropped, Vec<String>)> {
        let dropped = self.kernel.dropped()?;
        Ok((self.seen, dropped, self.remarks))
    }

    /// Processes all records that have arrived.
    pub(crate) fn read(&mut self) {
        // Mappings that stopped their process are copied out first, so that files can be inspected after the round of
        // records.
        let mut stopped = Vec::new();
        let Self { kernel, spaces, seen, last, copies, known, .. } = self;
        let mut state = State { spaces, seen, last, copies: *copies, known };
        kernel.read(|bytes| {
            let record = wire::parse(bytes);
            if !kernel::is_ours(&record) {
                return;
            }
            let Some((head, record)) = record else { return };
            match record {
                Record::Hit(hit) => state.hit(&head, &hit),
                Record::Marker { correlation, is_copy } => state.marker(&head, correlation, is_copy),
                Record::Fork { child, space } => state.fork(&head, child, space),
                Record::Mapping(mapping) => {
                    if !state.mapped(&head, &mapping) {
                        stopped.push((head, mapping));
                    }
                }
            }
        });
        for (head, mapping) in stopped {
            self.meet(&head, &mapping);
        }
    }

    /// Handles the mapping of a file that was never seen, or a process that has become another program.
    fn meet(&mut self, head: &Head, mapping: &Mapping) {
        let Mapping { start, end, offset, file, stopped } = *mapping;
        // Inspects files that were mapped before the watch began. This is the only way to find a program that
        // contains the runtime.
        if !self.spaces.contains_key(&head.space) || end == 0 {
            let space = self.whole_process(head.pid);
            self.spaces.insert(head.space, space);
        }
        if end == 0 {
            return if stopped {
                process::go_on(head.pid)
            };
        }
        let line = Line { start, end, offset, file, path: PathBuf::new() };
        let number = self.look_into(head.pid, &line);
        if let Some(number) = number {
            self.spaces.entry(head.space).or_default().map(start, end, offset, number);
        }
        if stopped {
            // Resuming fails only if the process has died in the meantime.
            process::go_on(head.pid);
        }
    }

    /// Attaches probes to the functions of interest in the file at `line`. Returns `None` if the file is gone.
    fn look_into(&mut self, pid: u32, line: &Line) -> Option<FileNumber> {
        if let Some(number) = self.seen.files.number(line.file) {
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
                Api::None
            }
        };
        if let Err(error) = self.kernel.know(line.file) {
            self.remarks.push(error.to_string());
        }
        Some(self.seen.files.add(line.file, path, file, api))
    }

    fn attach(&mut self, path: &Path, link: &Path, file: &File) -> Result<Api> {
        let named: Vec<&str> =
            self.named.iter().filter(|named| named.means(path)).map(|named| named.symbol.as_str()).collect();
        let bytes = Bytes::of(file)?;
        // A file that is not an ELF file has no functions that could be called.
        let Ok(found) = entries::find(bytes.get(), &named) else { return Ok(Api::None) };
        let wanted = |kind| self.copies || kind != Kind::Copy;
        let entries: Vec<Entry> = found.entries.into_iter().filter(|entry| wanted(entry.kind)).collect();
        for entry in entries {
            let probe = self.seen.probes.len() as u64;
            let target = if link.exists() { link } else { path };
            self.kernel.attach(entry.kind, target, entry.offset, probe)?;
            self.seen.probes.push(Probe { name: entry.name, kind: entry.kind });
        }
        Ok(found.api)
    }
}

/// State that records change.
struct State<'a> {
    spaces: &'a mut HashMap<u64, Space>,
    seen: &'a mut Seen,
    last: &'a mut HashMap<u32, usize>,
    copies: bool,
    known: &'a mut HashMap<(u64, u32, Vec<u8>), u32>,
}

impl State<'_> {
    /// Returns the address space of a process. For a process that ran before the watch began, the space is read when
    /// it is first needed.
    fn space(&mut self, head: &Head) -> &mut Space {
        let files = &self.seen.files;
        self.spaces.entry(head.space).or_insert_with(|| as_it_is(head.pid, |file| files.number(file)))
    }

    fn hit(&mut self, head: &Head, hit: &Hit<'_>) {
        let Some(kind) = self.seen.probes.get(hit.probe as usize).map(|probe| probe.kind) else { return };
        let stack = self.stack(head, hit);
        let comm = comm(&head.comm);
        let caller = self.space(head).place(hit.caller.wrapping_sub(1));
        let nested = kind != Kind::Named
            && self.seen.files.get(caller.file).is_some_and(|file| file.api.holds(caller.offset));
        let launch = Launch {
            time: head.time,
            pid: head.pid,
            tid: head.tid,
            cpu: head.cpu,
            comm: self.seen.comms.number(comm),
            probe: hit.probe as u32,
            stack,
            correlation: None,
            nested,
        };
        self.seen.launches.push(launch);
        if kind != Kind::Named {
            self.last.insert(head.tid, self.seen.launches.len() - 1);
        }
    }

    /// Assigns a correlation id to a launch. CUPTI calls back at the beginning of the outermost call, before nested
    /// calls begin.
    fn marker(&mut self, head: &Head, correlation: u32, is_copy: bool) {
        if is_copy && !self.copies {
            self.seen.copies.insert((head.pid, correlation));
            return;
        }
        let launch = self.last.get(&head.tid).and_then(|at| self.seen.launches.get_mut(*at));
        match launch {
            Some(launch) if launch.correlation.is_none() && launch.pid == head.pid => {
                launch.correlation = Some(correlation);
            }
            _ => self.seen.markers_alone += 1,
        }
    }

    fn fork(&mut self, head: &Head, child: u32, space: u64) {
        let of_parent = self.space(head).clone();
        if space != head.space && child != 0 {
            self.spaces.insert(space, of_parent);
        }
    }

    /// Records a mapping. Returns false if the file is not known.
    fn mapped(&mut self, head: &Head, mapping: &Mapping) -> bool {
        if mapping.end == 0 {
            // The new space may have the number of a space that no longer exists.
            self.spaces.remove(&head.space);
            return false;
        }
        let Some(file) = self.seen.files.number(mapping.file) else { return false };
        let space = self.spaces.entry(head.space).or_default();
        space.map(mapping.start, mapping.end, mapping.offset, file);
        !mapping.stopped
    }

    fn stack(&mut self, head: &Head, hit: &Hit<'_>) -> u32 {
        let version = self.space(head).version;
        let raw = [hit.user, &hit.caller.to_ne_bytes(), hit.kernel].concat();
        if let Some(number) = self.known.get(&(head.space, version, raw.clone())) {
            return *number;
        }
        let space = self.space(head);
        let kernel =
            wire::addresses(hit.kernel).map(|address| Place { file: Place::KERNEL, offset: address });
        let mut places: Vec<Place> = kernel.collect();
        places.extend(user(hit).into_iter().enumerate().map(|(at, address)| {
            // All addresses except the function's own are return addresses, which may be past the end of the caller.
            space.place(address - u64::from(at > 0))
        }));
        let number = self.seen.stacks.number(places);
        self.known.insert((head.space, version, raw), number);
        number
    }
}

/// Returns the addresses of the user stack. Before Linux 6.11 the kernel omits the caller of a function that is at
/// its first instruction, because the frame pointer is still the caller's at that point.
fn user(hit: &Hit<'_>) -> Vec<u64> {
    let mut addresses: Vec<u64> = wire::addresses(hit.user).filter(|address| *address != 0).collect();
    if hit.caller != 0 && addresses.get(1) != Some(&hit.caller) {
        addresses.insert(addresses.len().min(1), hit.caller);
    }
    addresses
}

fn as_it_is(pid: u32, number: impl Fn(FileId) -> Option<FileNumber>) -> Space {
    let mut space = Space::default();
    for line in spaces::maps(pid).unwrap_or_default() {
        if let Some(file) = number(line.file) {
            space.map(line.start, line.end, line.offset, file);
        }
    }
    space
}

/// Returns the name of a thread: up to fifteen bytes, without blanks, because a blank would end the column.
fn comm(bytes: &[u8; 16]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(bytes);
    let text: String =
        text.chars().map(|c| if c.is_whitespace() || c.is_control() { '_' } else { c }).collect();
    if text.is_empty() { "unknown".to_owned() } else { text }
}

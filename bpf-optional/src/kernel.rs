//! Controls the eBPF programs, which run in the kernel. Loads and attaches the programs, reads their records, and
//! unloads the programs on drop. Nothing is pinned in the kernel, so the kernel removes all programs and maps when this
//! process ends, even after a crash.

use std::os::fd::{AsRawFd as _, RawFd};
use std::path::Path;

use aya::maps::{HashMap, MapData, PerCpuArray, RingBuf};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use aya::programs::{BtfTracePoint, UProbe};
use aya::{Btf, Ebpf, EbpfLoader};
use gpuflame_model::error::{Error, ErrorKind, Result};

use crate::entry_points::EntryKind;
use crate::wire::{FileId, KernelRecord};

/// The eBPF programs, which `rebuild` has compiled from `bpf/probe.bpf.c` for x86-64.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/probe.bpf.o");

/// Options that select which processes and functions are watched, and the size of the buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WatchOptions {
    /// Whether to watch every process on the machine. Default: false, which means that only the processes passed to
    /// [`KernelPrograms::follow`] and their children are watched.
    pub(crate) all: bool,
    /// Whether to also capture the stacks in the kernel. Default: false.
    pub(crate) kernel_stacks: bool,
    /// Whether to also probe copies and fills. Default: false. Three quarters of all probes would be on functions that
    /// copy or fill, and removing one probe takes 100 ms.
    pub(crate) copies: bool,
    /// Size in MiB of the buffer for unread records, which must be a power of two. Default: 64.
    pub(crate) buffer_mib: Option<u32>,
}

/// For each kind of record, the number of records that were dropped because the buffer was full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DropCounts {
    pub(crate) hits: u64,
    pub(crate) markers: u64,
    pub(crate) mappings: u64,
}

/// The eBPF programs, which are loaded and attached.
pub(crate) struct KernelPrograms {
    ebpf: Ebpf,
    events: RingBuf<MapData>,
}

impl std::fmt::Debug for KernelPrograms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

impl KernelPrograms {
    /// Loads all eBPF programs, and attaches those that detect new mappings and new processes.
    pub(crate) fn load(watched: WatchOptions) -> Result<Self> {
        check_requirements()?;
        let btf = Btf::from_sys_fs().map_err(|error| kernel_error("read the kernel's types", &error))?;
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&btf))
            .override_global("ALL_PROCESSES", &u32::from(watched.all), true)
            .override_global("KERNEL_STACKS", &u32::from(watched.kernel_stacks), true)
            .override_global("OWN_PID", &std::process::id(), true)
            .override_global("OWN_NAMESPACE", &own_namespace()?, true)
            .map_max_entries("EVENTS", watched.buffer_mib.unwrap_or(64) << 20)
            .load(OBJECT)
            .map_err(|error| kernel_error("load the maps", &error))?;
        for name in ["launch", "marker"] {
            uprobe(&mut ebpf, name)?.load().map_err(|error| kernel_error("load the probe", &error))?;
        }
        for (name, tracepoint) in
            [("called", "sys_exit"), ("execs", "sched_process_exec"), ("forks", "sched_process_fork")]
        {
            let program: &mut BtfTracePoint = program(&mut ebpf, name)?;
            program
                .load(tracepoint, &btf)
                .and_then(|()| program.attach())
                .map_err(|error| kernel_error(&format!("attach to {tracepoint}"), &error))?;
        }
        let events = ebpf.take_map("EVENTS").ok_or_else(|| missing_in_object("EVENTS"))?;
        let events = RingBuf::try_from(events).map_err(|error| kernel_error("read the buffer", &error))?;
        Ok(Self { ebpf, events })
    }

    /// Starts to watch the process `pid` and all processes that it forks after this call.
    pub(crate) fn follow(&mut self, pid: u32) -> Result<()> {
        let map = self.ebpf.map_mut("FOLLOWED").ok_or_else(|| missing_in_object("FOLLOWED"))?;
        let mut followed: HashMap<_, u32, u8> =
            HashMap::try_from(map).map_err(|error| kernel_error("follow a process", &error))?;
        followed.insert(pid, 1, 0).map_err(|error| kernel_error("follow a process", &error))
    }

    /// Marks this file as inspected. The eBPF programs do not stop processes that map an inspected file.
    pub(crate) fn add_known_file(&mut self, file: FileId) -> Result<()> {
        let map = self.ebpf.map_mut("KNOWN").ok_or_else(|| missing_in_object("KNOWN"))?;
        let mut known: HashMap<_, [u8; 16], u8> =
            HashMap::try_from(map).map_err(|error| kernel_error("note a file", &error))?;
        known.insert(file.key(), 1, 0).map_err(|error| kernel_error("note a file", &error))
    }

    /// Attaches a probe to the function at `offset` of a file, in all processes that have the file mapped.
    pub(crate) fn attach(&mut self, kind: EntryKind, file: &Path, offset: u64, probe: u64) -> Result<()> {
        let name = if kind == EntryKind::Marker { "marker" } else { "launch" };
        let point =
            UProbeAttachPoint { location: UProbeAttachLocation::AbsoluteOffset(offset), cookie: Some(probe) };
        uprobe(&mut self.ebpf, name)?
            .attach(point, file, UProbeScope::AllProcesses)
            .map(drop)
            .map_err(|error| kernel_error("attach a probe", &error))
    }

    /// Passes all available records to `each`, and returns the number of these records.
    pub(crate) fn read(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while let Some(item) = self.events.next() {
            each(&item);
            count += 1;
        }
        count
    }

    /// Returns a file descriptor that is readable when records are available.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.events.as_raw_fd()
    }

    /// Returns the number of records that were dropped so far.
    pub(crate) fn dropped(&self) -> Result<DropCounts> {
        let map = self.ebpf.map("DROPPED").ok_or_else(|| missing_in_object("DROPPED"))?;
        let counts: PerCpuArray<_, u64> =
            PerCpuArray::try_from(map).map_err(|error| kernel_error("read the counts", &error))?;
        let sum = |what: u32| -> Result<u64> {
            let each = counts.get(&what, 0).map_err(|error| kernel_error("read the counts", &error))?;
            Ok(each.iter().sum())
        };
        Ok(DropCounts { hits: sum(0)?, markers: sum(1)?, mappings: sum(2)? })
    }
}

/// Whether a record from the eBPF programs could be parsed. In debug builds, a record that cannot be parsed is an
/// error. In release builds, such a record is skipped silently.
pub(crate) fn is_parsed(record: &Option<(crate::wire::RecordHeader, KernelRecord<'_>)>) -> bool {
    debug_assert!(record.is_some(), "the programs in the kernel and src/wire.rs differ");
    record.is_some()
}

fn program<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut T>
where
    &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = aya::programs::ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or_else(|| missing_in_object(name))?;
    program.try_into().map_err(|error| kernel_error("find a program", &error))
}

fn uprobe<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut UProbe> {
    program(ebpf, name)
}

/// Checks that this machine has everything that the eBPF programs need. If this machine lacks something, the error also
/// names the remedy.
fn check_requirements() -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Err(state_error("the probes are built for x86-64 only".into()));
    }
    for (path, what, remedy) in [
        (
            "/sys/kernel/btf/vmlinux",
            "the kernel provides no type information",
            "a kernel with CONFIG_DEBUG_INFO_BTF is needed",
        ),
        (
            "/sys/bus/event_source/devices/uprobe/type",
            "the kernel has no uprobes",
            "a kernel with CONFIG_UPROBE_EVENTS is needed",
        ),
    ] {
        std::fs::File::open(path)
            .map_err(|error| state_error(format!("{what} ({path}: {error}); {remedy}")))?;
    }
    Ok(())
}

/// Returns the inode of our PID namespace. The number of this inode identifies the namespace.
fn own_namespace() -> Result<u32> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(std::fs::metadata("/proc/self/ns/pid")?.ino() as u32)
}

/// Converts an error from the kernel to an error with a one-line message. The message contains the action that failed,
/// the reason, and the remedy.
fn kernel_error(what: &str, error: &(dyn std::error::Error + 'static)) -> Error {
    let mut last = error;
    let mut why = error.to_string();
    let mut errno = None;
    loop {
        if let Some(io) = last.downcast_ref::<std::io::Error>() {
            errno = io.raw_os_error();
        }
        let Some(source) = last.source() else { break };
        last = source;
        if !why.contains(&last.to_string()) {
            why = format!("{why}: {last}");
        }
    }
    let why = why.lines().next().unwrap_or_default().to_owned();
    let remedy = match errno {
        Some(libc::EPERM | libc::EACCES) => {
            "; run it as root, or with CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN"
        }
        Some(libc::EMFILE) => "; raise the limit of open files (ulimit -n)",
        _ => "",
    };
    state_error(format!("cannot {what}: {why}{remedy}"))
}

fn state_error(message: String) -> Error {
    Error::new(ErrorKind::State, message)
}

fn missing_in_object(name: &str) -> Error {
    state_error(format!("the probes' object lacks {name}; run bpf-optional/rebuild and build again"))
}

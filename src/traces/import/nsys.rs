//! Reads sqlite databases that Nsight Systems exported. The tables and columns differ between versions of Nsight
//! Systems. If a missing column changes the rows that are made from the file, the reader adds a remark with the name of
//! the column.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use rusqlite::Row;

use super::copies::memory_kind;
use super::cuda_calls::CudaCalls;
use super::model::*;
use super::nsys_columns::{FIRST_OWN, SHARED, SharedColumns, process_of, thread_of};
use super::sqlite::{self, Database, integer, integer_u32, quote, text_or};
use super::{ReadCounts, Text};
use gpuflame_model::error::Result;
use gpuflame_model::record::MemoryKind;

/// Values of `eventType` for NVTX ranges that are nested on their thread (59, and 70 from text logs), and for ranges
/// that need not be nested (60 and 71). All other values, such as those for marks or for names of domains and
/// categories, have no duration.
const PUSH_POP_RANGES: [i64; 2] = [59, 70];
const START_END_RANGES: [i64; 2] = [60, 71];

/// Groups of columns. A table must have at least one column of each group. Without a group of columns, data are missing
/// in the rows that are made from the file.
type NeededColumns = &'static [&'static [&'static str]];

const NEEDED_OF_WORK: NeededColumns =
    &[&["start"], &["end"], &["deviceId"], &["streamId"], &["correlationId"], &["globalPid"]];
const NEEDED_OF_CALLS: NeededColumns =
    &[&["start"], &["end"], &["globalTid"], &["correlationId"], &["nameId"]];
const NEEDED_OF_RANGES: NeededColumns =
    &[&["start"], &["end"], &["eventType"], &["globalTid"], &["text", "textId"]];
/// Columns that may contain the name of a kernel, in order of preference.
const KERNEL_NAMES: &[&str] = &["demangledName", "shortName", "mangledName"];

/// Reads the database at `path`.
pub(super) fn read(path: &Path, sink: &mut impl Sink) -> Result<ReadCounts> {
    let database = Database::open(path)?;
    let mut reader = NsysReader {
        base: &database,
        sink,
        counts: ReadCounts { bytes: database.bytes(), ..ReadCounts::default() },
        missing: Vec::new(),
        left_out_ranges: 0,
        node_launches: HashSet::new(),
        has_graph_rows: database.has_table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"),
        repeated_graphs: 0,
        memory_kinds: read_memory_kinds(&database)?,
        wait_calls: HashMap::new(),
        cuda_calls: CudaCalls::default(),
        gpus: GpuNumbers::read(&database)?,
    };
    reader.read_all()?;
    let mut counts = reader.counts;
    counts.schema = database.value("META_DATA_EXPORT", ["name", "value"], "EXPORT_SCHEMA_VERSION")?;
    if !reader.missing.is_empty() {
        counts.remarks.push(format!(
            "columns are missing: {}; the facts in them are unknown",
            reader.missing.join(", ")
        ));
    }
    for (device, processes) in reader.gpus.unknown.iter().filter(|(_, processes)| processes.len() > 1) {
        counts.remarks.push(format!(
            "{} processes use device {device}: the export does not tell whether this is one GPU, so their work is shown on one",
            processes.len()
        ));
    }
    if reader.left_out_ranges > 0 {
        let count = reader.left_out_ranges;
        let why = "they may overlap others of their thread, so they do not form a stack";
        counts.remarks.push(format!("left out NVTX start/end ranges: {count}; {why}"));
    }
    if reader.repeated_graphs > 0 {
        let count = reader.repeated_graphs;
        let why = "their nodes have rows of their own";
        counts.remarks.push(format!("left out rows of whole graphs: {count}; {why}"));
    }
    counts.remarks.extend(database.log_remark());
    Ok(counts)
}

pub(super) struct NsysReader<'a, S> {
    pub(super) base: &'a Database,
    pub(super) sink: &'a mut S,
    counts: ReadCounts,
    /// Missing columns without which rows lack data, each in the form `TABLE.column`.
    missing: Vec<String>,
    left_out_ranges: u64,
    /// Process and correlation id of each graph launch for whose nodes the file has rows.
    node_launches: HashSet<(Option<i64>, u64)>,
    has_graph_rows: bool,
    /// Number of rows about whole graphs that were skipped, because the file also has rows for the nodes of the same
    /// graph launch.
    repeated_graphs: u64,
    /// Kind of memory for each value by which the file represents kinds of memory.
    memory_kinds: BTreeMap<i64, MemoryKind>,
    /// Kind of wait of each waiting call, keyed by the call's process and correlation id. The kind of wait is derived
    /// from the name of the call.
    pub(super) wait_calls: HashMap<(Option<i64>, u64), &'static str>,
    /// Times at which threads were inside calls to CUDA. The times of CUDA calls are collected only if the file also
    /// contains calls to the operating system.
    pub(super) cuda_calls: CudaCalls,
    gpus: GpuNumbers,
}

/// Finds the GPU to which a device index refers. With `CUDA_VISIBLE_DEVICES`, several processes may use the same device
/// index for different GPUs.
#[derive(Default)]
struct GpuNumbers {
    /// Id of the GPU, keyed by a process and the device index in this process.
    known: HashMap<(i64, u32), u32>,
    /// Whether the same device index means different GPUs in different processes.
    differ: bool,
    /// Processes that used a device whose GPU is unknown, keyed by the device index.
    unknown: BTreeMap<u32, BTreeSet<i64>>,
}

/// Maximum number of labels that are read from a table of labels.
const MAX_LABELS: usize = 64;

/// Reads the table with the kind of memory for each value that the file uses. The file's values for kinds of memory
/// differ from the values in CUPTI's enum.
fn read_memory_kinds(base: &Database) -> Result<BTreeMap<i64, MemoryKind>> {
    let labels = read_labels(base, "ENUM_CUDA_MEM_KIND")?;
    Ok(labels.into_iter().map(|(number, label)| (number, memory_kind(&label))).collect())
}

/// Reads a table that contains a label for each id.
pub(super) fn read_labels(base: &Database, table: &str) -> Result<BTreeMap<i64, String>> {
    let mut labels = BTreeMap::new();
    if base.has_column(table, "id") && base.has_column(table, "label") {
        base.for_each_row(&format!("SELECT id, label FROM {table} LIMIT {MAX_LABELS}"), |row| {
            let label = sqlite::text(row, 1).map(|label| String::from_utf8_lossy(label).into_owned());
            labels.extend(integer(row, 0).zip(label));
        })?;
    }
    Ok(labels)
}

impl GpuNumbers {
    fn read(base: &Database) -> Result<Self> {
        let table = "TARGET_INFO_CUDA_DEVICE";
        let mut gpus = Self::default();
        if ["pid", "cudaId", "gpuId"].iter().all(|column| base.has_column(table, column)) {
            base.for_each_row(&format!("SELECT pid, cudaId, gpuId FROM {table}"), |row| {
                if let (Some(process), Some(device), Some(gpu)) =
                    (integer(row, 0), integer_u32(row, 1), integer_u32(row, 2))
                {
                    gpus.known.insert((process, device), gpu);
                }
            })?;
        }
        let mut of_device: HashMap<u32, u32> = HashMap::new();
        let mut is_first = |device: u32, gpu: u32| *of_device.entry(device).or_insert(gpu) == gpu;
        gpus.differ = !gpus.known.iter().all(|((_, device), gpu)| is_first(*device, *gpu));
        Ok(gpus)
    }

    /// Returns the id of the GPU that has the index `device` in `process`.
    fn of(&mut self, process: i64, device: u32) -> u32 {
        match self.known.get(&(process, device)) {
            Some(gpu) if self.differ => *gpu,
            Some(_) => device,
            None => {
                self.unknown.entry(device).or_default().insert(process);
                device
            }
        }
    }
}

impl<S: Sink> NsysReader<'_, S> {
    fn read_all(&mut self) -> Result<()> {
        self.read_calls()?;
        self.read_thread_waits()?;
        self.read_ranges()?;
        self.read_threads()?;
        for (table, kind) in [
            ("CUPTI_ACTIVITY_KIND_KERNEL", OpKind::Kernel),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", OpKind::Copy),
            ("CUPTI_ACTIVITY_KIND_MEMSET", OpKind::Set),
            // The table of whole graphs is read last, because a graph is skipped if other tables have rows for the
            // graph's nodes.
            ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", OpKind::Graph),
        ] {
            self.read_ops(table, kind)?;
        }
        self.read_host_functions()?;
        self.read_streams()?;
        self.read_event_records()?;
        self.read_syncs()
    }

    fn read_ops(&mut self, table: &str, kind: OpKind) -> Result<()> {
        const OWN: [&str; 17] = [
            "graphNodeId",
            "graphId",
            "graphExecId",
            "bytes",
            "copyKind",
            "registersPerThread",
            "staticSharedMemory",
            "dynamicSharedMemory",
            "gridX",
            "gridY",
            "gridZ",
            "blockX",
            "blockY",
            "blockZ",
            "srcKind",
            "dstKind",
            "memKind",
        ];
        let table = &*self.versioned(table);
        self.note_missing(table, NEEDED_OF_WORK);
        let name = match kind {
            OpKind::Kernel => {
                self.note_missing(table, &[KERNEL_NAMES]);
                self.name_of(table, KERNEL_NAMES)
            }
            OpKind::Copy => {
                self.note_missing(table, &[&["bytes"], &["copyKind"]]);
                no_name()
            }
            OpKind::Set | OpKind::Graph => no_name(),
        };
        self.for_each_gpu_row(table, &name, &OWN, |reader, shared, row| {
            let Some(work) = shared.work() else { return false };
            let graph_node = sqlite::id(row, FIRST_OWN);
            if reader.has_graph_rows && graph_node.is_some() && shared.correlation.is_some() {
                reader.node_launches.insert(shared.call_key());
            }
            if kind == OpKind::Graph && reader.node_launches.contains(&shared.call_key()) {
                reader.repeated_graphs += 1;
                return true;
            }
            let own = |at: usize| integer_u32(row, FIRST_OWN + at);
            let number = |at: usize| own(at).unwrap_or(0);
            let three = |at: usize| [at, at + 1, at + 2].map(number);
            let memory = reader.memory_of(kind, [14, 15, 16].map(|at| integer(row, FIRST_OWN + at)));
            let copy_kind = integer(row, FIRST_OWN + 4);
            let bytes = integer(row, FIRST_OWN + 3);
            reader.sink.event(&Event::Op(Op {
                kind,
                name: match kind {
                    OpKind::Kernel => text_or(row, 0, "[kernel without a name]"),
                    OpKind::Copy => Text::from(copy_name(copy_kind)),
                    OpKind::Set => Text::from("memset"),
                    OpKind::Graph => Text::from("[graph]"),
                },
                graph: own(1).or_else(|| own(2)).filter(|&id| id != 0),
                graph_node,
                bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
                registers: number(5),
                shared: number(6).saturating_add(number(7)),
                grid: three(8),
                block: three(11),
                memory,
                ..work
            }));
            true
        })
    }

    /// Returns the kinds of memory that a copy or fill reads and writes. `from` and `to` are the values in the file for
    /// the kinds of memory that a copy reads and writes. `filled` is the value for the kind of memory that a fill
    /// writes.
    fn memory_of(
        &self,
        kind: OpKind,
        [from, to, filled]: [Option<i64>; 3],
    ) -> Option<(MemoryKind, MemoryKind)> {
        let of = |number: Option<i64>| number.and_then(|number| self.memory_kinds.get(&number).copied());
        let known = |number| of(number).unwrap_or(MemoryKind::UNKNOWN);
        match kind {
            OpKind::Copy => Some((known(from), known(to))),
            OpKind::Set => Some((MemoryKind::UNKNOWN, known(filled))),
            OpKind::Kernel | OpKind::Graph => None,
        }
    }

    fn read_calls(&mut self) -> Result<()> {
        let table = &*self.versioned("CUPTI_ACTIVITY_KIND_RUNTIME");
        self.note_missing(table, NEEDED_OF_CALLS);
        let name = self.name_of(table, &["nameId"]);
        let has_thread_waits = self.base.has_table("OSRT_API");
        self.for_each_row(table, &name, &["start", "end", "globalTid", "correlationId"], |reader, row| {
            let (Some(start), Some(end)) = (integer(row, 1), integer(row, 2)) else { return false };
            let global = integer(row, 3);
            if has_thread_waits {
                reader.cuda_calls.note(global, start, end);
            }
            let name = strip_version(text_or(row, 0, "[call without a name]").raw());
            reader.note_wait_call(name, global, sqlite::id(row, 4));
            reader.sink.event(&Event::Call(Call {
                name: Text::plain(name),
                start,
                end,
                process: process_of(global),
                thread: thread_of(global),
                correlation: sqlite::id(row, 4),
                driver: !name.starts_with(b"cuda"),
                ..Call::default()
            }));
            true
        })
    }

    /// Reads NVTX ranges that are nested on their thread. Rows without a duration, such as marks and the names of
    /// domains and categories, are skipped. Skipped rows do not count as events without times.
    fn read_ranges(&mut self) -> Result<()> {
        let table = &*self.versioned("NVTX_EVENTS");
        self.note_missing(table, NEEDED_OF_RANGES);
        let name = self.name_of(table, &["text", "textId"]);
        self.for_each_row(table, &name, &["start", "end", "globalTid", "eventType"], |reader, row| {
            let kind = integer(row, 4).unwrap_or(PUSH_POP_RANGES[0]);
            reader.left_out_ranges += u64::from(START_END_RANGES.contains(&kind));
            if !PUSH_POP_RANGES.contains(&kind) {
                return true;
            }
            let (Some(start), Some(end)) = (integer(row, 1), integer(row, 2)) else { return false };
            let global = integer(row, 3);
            reader.sink.event(&Event::Cpu(CpuOp {
                kind: CpuKind::Range,
                name: text_or(row, 0, "[range without a name]"),
                start,
                end,
                process: process_of(global),
                thread: thread_of(global),
                ..CpuOp::default()
            }));
            true
        })
    }

    fn read_threads(&mut self) -> Result<()> {
        let table = "ThreadNames";
        let name = self.name_of(table, &["nameId"]);
        self.for_each_row(table, &name, &["globalTid"], |reader, row| {
            let global = integer(row, 1);
            let (process, thread) = (process_of(global), thread_of(global));
            reader.sink.event(&Event::Thread(ThreadName { process, thread, name: text_or(row, 0, "") }));
            true
        })
    }

    /// Stores which of the `needed` columns do not exist in the table. This function does nothing if the table itself
    /// does not exist.
    fn note_missing(&mut self, table: &str, needed: NeededColumns) {
        if !self.base.has_table(table) {
            return;
        }
        let missing =
            needed.iter().filter(|group| !group.iter().any(|column| self.base.has_column(table, column)));
        self.missing.extend(missing.map(|group| format!("{table}.{}", group[0])));
    }

    /// Returns an SQL expression for a name, and the SQL joins that this expression needs. The expression selects the
    /// first column of `columns` that has a value. Each of these columns contains a name, or the id of a name in the
    /// table of strings.
    pub(super) fn name_of(&self, table: &str, columns: &[&str]) -> (String, String) {
        let base = self.base;
        let (mut names, mut joins) = (Vec::new(), String::new());
        let has_strings = base.has_column("StringIds", "id") && base.has_column("StringIds", "value");
        for column in columns.iter().filter(|column| base.has_column(table, column)) {
            let column = format!("T.{}", quote(column));
            names.push(format!("CASE typeof({column}) WHEN 'text' THEN {column} END"));
            if has_strings {
                let strings = format!("S{}", names.len());
                names.push(format!("{strings}.value"));
                let keyed = base.keyed("StringIds", "id");
                joins.push_str(&format!(" LEFT JOIN {keyed} AS {strings} ON {strings}.id = {column}"));
            }
        }
        names.extend(["NULL".to_owned(), "NULL".to_owned()]);
        (format!("COALESCE({})", names.join(", ")), joins)
    }

    /// Calls `take` with each row of a table with GPU work, waits or event recordings, and with the columns that all
    /// these tables share. The columns `own`, which only this table has, begin at the index [`FIRST_OWN`] of the row.
    pub(super) fn for_each_gpu_row(
        &mut self,
        table: &str,
        name: &(String, String),
        own: &[&str],
        mut take: impl FnMut(&mut Self, &SharedColumns, &Row<'_>) -> bool,
    ) -> Result<()> {
        let wanted: Vec<&str> = SHARED.iter().chain(own).copied().collect();
        self.for_each_row(table, name, &wanted, |reader, row| {
            let mut shared = SharedColumns::read(row);
            let process = shared.global.map_or(0, |global| global >> 24 & 0xff_ffff);
            shared.device = shared.device.map(|device| reader.gpus.of(process, device));
            take(reader, &shared, row)
        })
    }

    /// Returns the name of the table in this file. Some exports append a version to the name, as in
    /// `CUPTI_ACTIVITY_KIND_KERNEL_V3`.
    fn versioned(&self, table: &str) -> String {
        let versions = (2..=9).rev().map(|version| format!("{table}_V{version}"));
        let mut versions = versions.filter(|name| self.base.has_table(name));
        if self.base.has_table(table) {
            table.to_owned()
        } else {
            versions.next().unwrap_or(table.to_owned())
        }
    }

    /// Calls `take` with each row of `table`. Each row contains the value of the expression `first`, followed by the
    /// `wanted` columns. The value of a column that does not exist in the table is NULL. `take` must return true if the
    /// row has usable times.
    pub(super) fn for_each_row(
        &mut self,
        table: &str,
        (first, joins): &(String, String),
        wanted: &[&str],
        mut take: impl FnMut(&mut Self, &Row<'_>) -> bool,
    ) -> Result<()> {
        let base = self.base;
        if !base.has_table(table) {
            return Ok(());
        }
        let mut query = format!("SELECT {first}");
        for column in wanted {
            query.push_str(", ");
            query.push_str(&base.column(table, "T", column));
        }
        query.push_str(&format!(" FROM {} AS T{joins}", quote(table)));
        base.for_each_row(&query, |row| {
            self.counts.events += 1;
            let has_times = take(self, row);
            self.counts.untimed += u64::from(!has_times);
        })
    }
}

/// Returns the SQL expression for a name in a table that contains no names. For a table with names, use
/// [`NsysReader::name_of`].
pub(super) fn no_name() -> (String, String) {
    ("NULL".to_owned(), String::new())
}

/// Removes the version from names such as `cudaLaunchKernel_v7000`.
fn strip_version(name: &[u8]) -> &[u8] {
    let Some(at) = name.windows(2).rposition(|two| two == b"_v") else { return name };
    let version = &name[at + 2..];
    match version.len() >= 4 && version.iter().all(u8::is_ascii_digit) {
        true => &name[..at],
        false => name,
    }
}

fn copy_name(kind: Option<i64>) -> &'static str {
    let kind = kind.and_then(|kind| u8::try_from(kind).ok());
    kind.map_or("unknown", |kind| gpuflame_model::record::CopyKind(kind).label())
}

//! Reads rocpd databases, which are sqlite files that rocprofv3 and rocprof-sys write. In schema 3 of this format, each
//! row contains its process, thread, device and times. In schema 4, rows refer to separate tables of tracks and times.
//!
//! The tables of one process form a set. The names of all tables in a set end in the same suffix (as in
//! `rocpd_region_0123abcd`). A file that was merged contains several sets. Ids are unique only within a set, so each
//! set is read separately. The file also contains views without a suffix, which are not used.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use rusqlite::Row;

use super::job::JobPlace;
use super::model::*;
use super::sqlite::{self, Database, integer, integer_u32, quote, text, text_or};
use super::{Id, ReadCounts, Text, rocprof};
use gpuflame_model::error::Result;

/// Tables by whose names a set is recognized. Each set of tables that contains GPU work has at least one of these
/// tables.
const MAIN_TABLES: [&str; 3] = ["rocpd_kernel_dispatch", "rocpd_memory_copy", "rocpd_region"];
/// Tables that are not read. Each table comes with a word for its rows, which is used in remarks to the user.
const LEFT_OUT: [(&str, &str); 3] = [
    ("rocpd_memory_allocate", "memory allocations"),
    ("rocpd_sample", "samples"),
    ("rocpd_pmc_event", "counter values"),
];

/// Maximum size in bytes of the environment of a process. The rest of a larger environment is ignored.
const MAX_ENVIRONMENT: usize = 1 << 20;

/// Returns the suffixes of all sets of tables in the file.
pub(super) fn find_sets(base: &Database) -> BTreeSet<String> {
    let suffixes = base
        .tables()
        .filter_map(|table| MAIN_TABLES.iter().find_map(|main| table.strip_prefix(main)).map(str::to_owned));
    suffixes.filter(|suffix| suffix.is_empty() || suffix.starts_with('_')).collect()
}

/// Returns the rank of the process in its job, and the number of ranks in the job. The rank and the number of ranks are
/// read from the environment of the process. The rank and the number of ranks are unknown if the database contains
/// several processes.
pub(super) fn find_place(base: &Database) -> Result<JobPlace> {
    let mut places = Vec::new();
    for suffix in find_sets(base) {
        let table = format!("rocpd_info_process{suffix}");
        if base.has_column(&table, "environment") {
            // A value that is longer than any real environment is truncated.
            let query = format!(
                "SELECT substr(CAST(environment AS TEXT), 1, {MAX_ENVIRONMENT}) FROM {} LIMIT 2",
                quote(&table)
            );
            base.for_each_row(&query, |row| {
                places.push(text(row, 0).map(JobPlace::from_environment).unwrap_or_default());
            })?;
        }
    }
    Ok(if let [place] = places[..] { place } else { JobPlace::default() })
}

/// Reads the database at `path`.
pub(super) fn read(path: &Path, sink: &mut impl Sink) -> Result<ReadCounts> {
    let base = Database::open(path)?;
    let mut counts = ReadCounts { bytes: base.bytes(), ..ReadCounts::default() };
    let mut devices = DeviceNumbers::default();
    let (mut schemas, mut compressions) = (BTreeSet::new(), BTreeSet::new());
    let mut left_out: BTreeMap<&str, u64> = BTreeMap::new();
    for (number, suffix) in (0..).zip(find_sets(&base)) {
        let set = TableSet { base: &base, suffix: &suffix };
        schemas.extend(set.metadata("schema_version")?);
        let compression = set.metadata("compression")?;
        let is_compressed = compression.is_some();
        compressions.extend(compression);
        let reader = SetReader {
            set,
            number,
            agents: devices.number_agents(set, number)?,
            link_column: set.link_column()?,
        };
        reader.read(sink, &mut counts)?;
        for (table, what) in LEFT_OUT {
            *left_out.entry(what).or_default() += set.count(table, "1")?;
        }
        if !is_compressed {
            *left_out.entry("call stacks").or_default() += set.count_call_stacks()?;
        }
    }
    counts.schema = (!schemas.is_empty()).then(|| Vec::from_iter(schemas).join(", "));
    for compression in compressions {
        counts.remarks.push(format!(
            "call stacks, source lines and extra data are compressed ({compression}) and left out; gpuflame does not \
             read this compression"
        ));
    }
    let left_out = left_out.into_iter().filter(|(_, count)| *count > 0);
    let left_out: Vec<String> = left_out.map(|(what, count)| format!("{what}: {count}")).collect();
    if !left_out.is_empty() {
        counts.remarks.push(format!("left out {}", left_out.join(", ")));
    }
    counts.remarks.extend(base.log_remark());
    Ok(counts)
}

/// A set of tables whose names have the same suffix.
#[derive(Clone, Copy)]
struct TableSet<'a> {
    base: &'a Database,
    suffix: &'a str,
}

impl TableSet<'_> {
    fn table(&self, name: &str) -> String {
        format!("{name}{}", self.suffix)
    }

    fn has(&self, table: &str, column: &str) -> bool {
        self.base.has_column(&self.table(table), column)
    }

    fn metadata(&self, tag: &str) -> Result<Option<String>> {
        self.base.value(&self.table("rocpd_metadata"), ["tag", "value"], tag)
    }

    /// Returns the number of rows in `table` that meet the SQL `condition`. Returns 0 if the table does not exist.
    fn count(&self, table: &str, condition: &str) -> Result<u64> {
        let table = self.table(table);
        match self.base.has_table(&table) {
            true => self.base.number(&format!("SELECT count(*) FROM {} WHERE {condition}", quote(&table))),
            false => Ok(0),
        }
    }

    fn count_call_stacks(&self) -> Result<u64> {
        let of_events = match self.has("rocpd_event", "call_stack") {
            true => self.count("rocpd_event", "call_stack NOT IN ('{}', '[]', '')")?,
            false => 0,
        };
        let table = self.table("rocpd_call_stack");
        let of_table = match self.base.has_column(&table, "event_id") {
            true => self.base.number(&format!("SELECT count(DISTINCT event_id) FROM {}", quote(&table)))?,
            false => 0,
        };
        Ok(of_events + of_table)
    }

    /// Returns the name of the column that links GPU work to the call that launched it: `stack_id`, which contains an
    /// id that the tracer assigned to the call. In a file without ids from the tracer, the column is `correlation_id`,
    /// which contains an id that the program chose.
    fn link_column(&self) -> Result<&'static str> {
        let has_ids = self.has("rocpd_event", "stack_id") && self.count("rocpd_event", "stack_id > 0")? > 0;
        Ok(if has_ids { "stack_id" } else { "correlation_id" })
    }
}

/// Assigns an index to each GPU. A GPU keeps the index that it has on its machine, unless a GPU of a different machine
/// already has this index.
#[derive(Default)]
struct DeviceNumbers {
    numbers: BTreeMap<(String, i64), u32>,
    used: BTreeSet<u32>,
}

impl DeviceNumbers {
    /// Returns the index of each GPU among the agents (devices) in a set, keyed by the agent's id.
    fn number_agents(&mut self, set: TableSet<'_>, set_number: u32) -> Result<HashMap<i64, u32>> {
        let mut agents = HashMap::new();
        let agent_table = set.table("rocpd_info_agent");
        if !set.has("rocpd_info_agent", "id") {
            return Ok(agents);
        }
        let column = |column: &str| set.base.column(&agent_table, "A", column);
        let (machine, join) =
            match set.has("rocpd_info_node", "machine_id") && set.has("rocpd_info_agent", "nid") {
                true => {
                    let nodes = set.base.keyed(&set.table("rocpd_info_node"), "id");
                    ("N.machine_id", format!("LEFT JOIN {nodes} AS N ON N.id = A.nid"))
                }
                false => ("NULL", String::new()),
            };
        let query = format!(
            "SELECT A.id, {machine}, {}, {}, {} FROM {} AS A {join} ORDER BY A.id",
            column("nid"),
            column("type_index"),
            column("type"),
            quote(&agent_table),
        );
        set.base.for_each_row(&query, |row| {
            let Some(agent) = integer(row, 0) else { return };
            if text(row, 4).is_some_and(|kind| !kind.eq_ignore_ascii_case(b"GPU")) {
                return;
            }
            let machine = text(row, 1).map(|machine| String::from_utf8_lossy(machine).into_owned());
            let nid = integer(row, 2).unwrap_or(0);
            let machine = machine.unwrap_or_else(|| format!("node {nid} of set {set_number}"));
            // Agents that have no index are sorted after all other agents.
            let index = integer(row, 3).unwrap_or((1 << 32) + agent);
            agents.insert(agent, self.number((machine, index)));
        })?;
        Ok(agents)
    }

    fn number(&mut self, key: (String, i64)) -> u32 {
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let index = u32::try_from(key.1).ok().filter(|index| !self.used.contains(index));
        let number = index.or_else(|| (0..).find(|number| !self.used.contains(number))).unwrap_or(0);
        self.used.insert(number);
        self.numbers.insert(key, number);
        number
    }
}

/// Reads the tables of one set.
struct SetReader<'a> {
    set: TableSet<'a>,
    number: u32,
    agents: HashMap<i64, u32>,
    link_column: &'static str,
}

impl SetReader<'_> {
    fn read(&self, sink: &mut impl Sink, counts: &mut ReadCounts) -> Result<()> {
        self.read_regions(sink, counts)?;
        self.read_threads(sink)?;
        self.read_dispatches(sink, counts)?;
        self.read_copies(sink, counts)
    }

    fn read_dispatches(&self, sink: &mut impl Sink, counts: &mut ReadCounts) -> Result<()> {
        let mut query = Query::new(self.set, "rocpd_kernel_dispatch", self.link_column);
        let name = match query.join("rocpd_info_kernel_symbol", "K", "kernel_id") {
            true => {
                let symbols = self.set.table("rocpd_info_kernel_symbol");
                let [display, plain] =
                    ["display_name", "kernel_name"].map(|name| self.set.base.column(&symbols, "K", name));
                format!("COALESCE(NULLIF({display}, ''), {plain})")
            }
            false => "NULL".to_owned(),
        };
        query.select(name);
        for column in [
            "agent_id",
            "group_segment_size",
            "workgroup_size_x",
            "workgroup_size_y",
            "workgroup_size_z",
            "grid_size_x",
            "grid_size_y",
            "grid_size_z",
            "graph_exec_id",
            "graph_node_id",
        ] {
            query.select(query.column(column));
        }
        query.for_each_row(counts, |row, place| {
            let size = |at: usize| integer_u32(row, at).unwrap_or(0);
            let block = [10, 11, 12].map(size);
            let mut grid = [13, 14, 15].map(size);
            // On AMD's GPUs, the grid size is a number of threads. For GPUs of all other vendors, the grid size is a
            // number of blocks.
            for (grid, block) in grid.iter_mut().zip(block) {
                *grid = grid.div_ceil(block.max(1));
            }
            sink.event(&Event::Op(Op {
                kind: OpKind::Kernel,
                name: text_or(row, 7, "[kernel without a name]"),
                start: place.start,
                end: place.end,
                process: self.process(place.process),
                device: integer(row, 8).and_then(|agent| self.agents.get(&agent).copied()),
                stream: place.stream,
                correlation: place.link,
                shared: size(9),
                block,
                grid,
                graph: integer_u32(row, 16).filter(|&graph| graph != 0),
                graph_node: sqlite::id(row, 17),
                ..Op::default()
            }));
        })
    }

    fn read_copies(&self, sink: &mut impl Sink, counts: &mut ReadCounts) -> Result<()> {
        let mut query = Query::new(self.set, "rocpd_memory_copy", self.link_column);
        query.select_string("name_id", "N");
        for column in ["dst_agent_id", "src_agent_id", "agent_id", "size"] {
            query.select(query.column(column));
        }
        query.for_each_row(counts, |row, place| {
            let device = |at: usize| integer(row, at).and_then(|agent| self.agents.get(&agent).copied());
            sink.event(&Event::Op(Op {
                kind: OpKind::Copy,
                name: rocprof::copy_name(text_or(row, 7, "[copy without a name]")),
                start: place.start,
                end: place.end,
                process: self.process(place.process),
                device: device(8).or_else(|| device(9)).or_else(|| device(10)),
                stream: place.stream,
                correlation: place.link,
                bytes: integer(row, 11).and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
                ..Op::default()
            }));
        })
    }

    fn read_regions(&self, sink: &mut impl Sink, counts: &mut ReadCounts) -> Result<()> {
        let mut query = Query::new(self.set, "rocpd_region", self.link_column);
        query.select_string("name_id", "N");
        let (category, message) = (query.category(), query.message());
        query.select(category);
        query.select(message);
        query.for_each_row(counts, |row, place| {
            let name = text_or(row, 7, "[region without a name]");
            let (process, thread) = (self.process(place.process), place.thread.map_or(Id::None, Id::Number));
            let (start, end) = (place.start, place.end);
            sink.event(&match RegionKind::new(text(row, 8).unwrap_or_default(), name.raw()) {
                RegionKind::Call { driver } => Event::Call(Call {
                    name,
                    start,
                    end,
                    process,
                    thread,
                    correlation: place.link,
                    driver,
                    ..Call::default()
                }),
                RegionKind::Range => {
                    let message = text(row, 9).filter(|message| !message.is_empty());
                    let name = message.map_or(name, Text::plain);
                    let kind = CpuKind::Range;
                    Event::Cpu(CpuOp { kind, name, start, end, process, thread, ..CpuOp::default() })
                }
                RegionKind::Function => {
                    let kind = CpuKind::Operator;
                    Event::Cpu(CpuOp { kind, name, start, end, process, thread, ..CpuOp::default() })
                }
            });
        })
    }

    fn read_threads(&self, sink: &mut impl Sink) -> Result<()> {
        if !["pid", "tid", "name"].iter().all(|column| self.set.has("rocpd_info_thread", column)) {
            return Ok(());
        }
        let table = self.set.table("rocpd_info_thread");
        self.set.base.for_each_row(&format!("SELECT pid, tid, name FROM {}", quote(&table)), |row| {
            let (Some(thread), Some(name)) = (integer(row, 1), text(row, 2)) else { return };
            let (process, thread) = (self.process(integer(row, 0)), Id::Number(thread));
            sink.event(&Event::Thread(ThreadName { process, thread, name: Text::plain(name) }));
        })
    }

    /// Returns an id for a process that is unique in the file. This id consists of the index of the set and the id that
    /// the process has within the set.
    fn process(&self, process: Option<i64>) -> Id<'static> {
        Id::Number(i64::from(self.number) << 32 | process.unwrap_or(0) & 0xffff_ffff)
    }
}

/// Kind of a region (a time span on a CPU thread).
enum RegionKind {
    Call { driver: bool },
    Range,
    Function,
}

impl RegionKind {
    /// The kind of a region is determined by its category. The kind of a region without a category is determined by the
    /// region's name.
    fn new(category: &[u8], name: &[u8]) -> Self {
        let category = category.to_ascii_uppercase();
        let has = |word: &[u8]| category.windows(word.len()).any(|window| window == word);
        let is_unknown = category.is_empty();
        match () {
            () if has(b"MARKER") || has(b"USER") => Self::Range,
            () if has(b"HSA") || is_unknown && name.starts_with(b"hsa_") => Self::Call { driver: true },
            () if ["HIP", "RCCL", "ROCDECODE", "ROCJPEG"].iter().any(|word| has(word.as_bytes()))
                || is_unknown && name.starts_with(b"hip") =>
            {
                Self::Call { driver: false }
            }
            () => Self::Function,
        }
    }
}

/// Process, thread, device and times of a row in any of the main tables.
struct RowPlace {
    start: i64,
    end: i64,
    /// Id that the process has within the set.
    process: Option<i64>,
    thread: Option<i64>,
    /// Id of the stream, or id of the queue if the row has no stream.
    stream: Option<u32>,
    /// Id that links the row to a call, if the row has such an id.
    link: Option<u64>,
}

/// An SQL query for the rows of a main table, which has the alias `D`. The first columns of the result are the fields
/// of [`RowPlace`].
struct Query<'a> {
    set: TableSet<'a>,
    table: String,
    columns: Vec<String>,
    joins: String,
}

impl<'a> Query<'a> {
    fn new(set: TableSet<'a>, table: &str, link_column: &str) -> Self {
        let mut query = Self { set, table: set.table(table), columns: Vec::new(), joins: String::new() };
        query.join("rocpd_track", "T", "track_id");
        query.join("rocpd_event", "E", "event_id");
        for (column, id, alias) in [("start", "start_id", "B"), ("end", "end_id", "F")] {
            let direct = set.base.column(&query.table, "D", column);
            let by_id = match query.join("rocpd_timestamp", alias, id) {
                true => set.base.column(&set.table("rocpd_timestamp"), alias, "value"),
                false => "NULL".to_owned(),
            };
            query.select(format!("COALESCE({direct}, {by_id})"));
        }
        query.select(query.column("pid"));
        let thread = query.column("tid");
        let of_thread = match set.has("rocpd_info_thread", "tid") && set.has("rocpd_info_thread", "id") {
            true => {
                let threads = set.base.keyed(&set.table("rocpd_info_thread"), "id");
                query.joins.push_str(&format!(" LEFT JOIN {threads} AS H ON H.id = {thread}"));
                "H.tid"
            }
            false => "NULL",
        };
        query.select(format!("COALESCE({of_thread}, {thread})"));
        query.select(query.column("stream_id"));
        query.select(query.column("queue_id"));
        let link = match query.joins.contains(" AS E ") {
            true => set.base.column(&set.table("rocpd_event"), "E", link_column),
            false => "NULL".to_owned(),
        };
        query.select(link);
        query
    }

    fn select(&mut self, expression: String) {
        self.columns.push(expression);
    }

    /// Returns an SQL expression for a column of the row. If the table does not have the column, the value in the row's
    /// track is used.
    fn column(&self, column: &str) -> String {
        let track = self.set.table("rocpd_track");
        match self.set.base.has_column(&self.table, column) {
            true => format!("D.{}", quote(column)),
            false if self.joins.contains(" AS T ") => self.set.base.column(&track, "T", column),
            false => "NULL".to_owned(),
        }
    }

    /// Adds an SQL join with the row of `table` whose id is in `column`. Returns false if the columns that the join
    /// needs do not exist.
    fn join(&mut self, table: &str, alias: &str, column: &str) -> bool {
        let is_possible = self.set.has(table, "id") && self.set.base.has_column(&self.table, column);
        if is_possible {
            let other = self.set.base.keyed(&self.set.table(table), "id");
            self.joins
                .push_str(&format!(" LEFT JOIN {other} AS {alias} ON {alias}.id = D.{}", quote(column)));
        }
        is_possible
    }

    /// Adds the string whose id is in `column` to the columns that the query selects.
    fn select_string(&mut self, column: &str, alias: &str) {
        let expression = match self.join("rocpd_string", alias, column) {
            true => self.set.base.column(&self.set.table("rocpd_string"), alias, "string"),
            false => "NULL".to_owned(),
        };
        self.select(expression);
    }

    /// Returns an SQL expression for the category of the row's event. The name of the category is in the table of
    /// strings, or in a table of categories.
    fn category(&mut self) -> String {
        let (table, column) = match self.set.has("rocpd_info_category", "id") {
            true => ("rocpd_info_category", "name"),
            false => ("rocpd_string", "string"),
        };
        let is_possible = self.joins.contains(" AS E ")
            && self.set.has("rocpd_event", "category_id")
            && self.set.has(table, "id");
        if !is_possible {
            return "NULL".to_owned();
        }
        let categories = self.set.base.keyed(&self.set.table(table), "id");
        self.joins.push_str(&format!(" LEFT JOIN {categories} AS C ON C.id = E.category_id"));
        self.set.base.column(&self.set.table(table), "C", column)
    }

    /// Returns an SQL expression for the text that the program gave to a range.
    fn message(&self) -> String {
        match self.joins.contains(" AS E ") && self.set.has("rocpd_event", "extdata") {
            true => "CASE WHEN typeof(E.extdata) = 'text' AND json_valid(E.extdata) \
                     THEN json_extract(E.extdata, '$.message') END"
                .to_owned(),
            false => "NULL".to_owned(),
        }
    }

    /// Calls `take` with each row that has start and end times. In each row, the columns that the caller selected begin
    /// at index 7.
    fn for_each_row(self, counts: &mut ReadCounts, mut take: impl FnMut(&Row<'_>, RowPlace)) -> Result<()> {
        if !self.set.base.has_table(&self.table) {
            return Ok(());
        }
        let query =
            format!("SELECT {} FROM {} AS D{}", self.columns.join(", "), quote(&self.table), self.joins);
        self.set.base.for_each_row(&query, |row| {
            counts.events += 1;
            let (Some(start), Some(end)) = (integer(row, 0), integer(row, 1)) else {
                counts.untimed += 1;
                return;
            };
            let place = RowPlace {
                start,
                end,
                process: integer(row, 2),
                thread: integer(row, 3),
                stream: integer_u32(row, 4).or_else(|| integer_u32(row, 5)),
                link: sqlite::id(row, 6),
            };
            take(row, place);
        })
    }
}

//! Reads sqlite exports of Nsight Systems. Tables and columns differ between versions, so only tables and columns
//! that exist are queried.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, Row};

use super::model::*;
use super::{Id, ReadCounts, Text};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Columns to select. Each column has the SQL expression that replaces it if the table lacks the column.
struct WantedColumns<'a>(&'a [(&'a str, &'a str)]);

/// Reads the database at `path`.
pub(super) fn read(path: &Path, sink: &mut impl Sink) -> Result<ReadCounts> {
    // With `immutable`, sqlite creates no lock or journal next to the user's file, whose folder may be read-only.
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let base = Connection::open_with_flags(sqlite_uri(path), flags).map_err(sqlite_error)?;
    let tables = list_tables(&base)?;
    let has = |table: &str| tables.iter().any(|name| name == table);
    if !has("StringIds")
        || !tables.iter().any(|name| name.starts_with("CUPTI_ACTIVITY_KIND_") || name == "NVTX_EVENTS")
    {
        let what = "is an sqlite file, but not an Nsight Systems export with CUDA data \
                    (run `nsys profile -t cuda …`, then `nsys export --type sqlite`)";
        return Err(Error::new(ErrorKind::Format, what));
    }
    let mut reader = NsysReader { base: &base, sink, counts: ReadCounts::default() };
    if has("CUPTI_ACTIVITY_KIND_RUNTIME") {
        reader.read_calls()?;
    }
    if has("NVTX_EVENTS") {
        reader.read_ranges()?;
    }
    if has("ThreadNames") {
        reader.read_threads()?;
    }
    for (table, kind) in [
        ("CUPTI_ACTIVITY_KIND_KERNEL", OpKind::Kernel),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", OpKind::Copy),
        ("CUPTI_ACTIVITY_KIND_MEMSET", OpKind::Set),
    ] {
        if has(table) {
            reader.read_ops(table, kind)?;
        }
    }
    if has("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION") {
        reader.read_syncs()?;
    }
    let mut counts = reader.counts;
    counts.bytes = path.metadata()?.len();
    Ok(counts)
}

struct NsysReader<'a, S> {
    base: &'a Connection,
    sink: &'a mut S,
    counts: ReadCounts,
}

impl<S: Sink> NsysReader<'_, S> {
    fn read_ops(&mut self, table: &str, kind: OpKind) -> Result<()> {
        let name = match kind {
            OpKind::Kernel => "(SELECT value FROM StringIds WHERE id = demangledName)",
            OpKind::Copy | OpKind::Set => "NULL",
        };
        let wanted = WantedColumns(&[
            ("start", "NULL"),
            ("end", "NULL"),
            ("globalPid", "NULL"),
            ("correlationId", "NULL"),
            ("deviceId", "NULL"),
            ("contextId", "NULL"),
            ("streamId", "NULL"),
            ("graphNodeId", "NULL"),
            ("graphId", "NULL"),
            ("bytes", "0"),
            ("copyKind", "0"),
            ("registersPerThread", "0"),
            ("staticSharedMemory", "0"),
            ("dynamicSharedMemory", "0"),
            ("gridX", "0"),
            ("gridY", "0"),
            ("gridZ", "0"),
            ("blockX", "0"),
            ("blockY", "0"),
            ("blockZ", "0"),
        ]);
        self.for_each_row(table, &wanted, name, |row, sink| {
            let text: Option<String> = row.get(0)?;
            let number = |at: usize| row.get::<_, Option<i64>>(at + 1);
            let id = |at: usize| Ok::<_, rusqlite::Error>(number(at)?.and_then(|n| u32::try_from(n).ok()));
            let (Some(start), Some(end)) = (number(0)?, number(1)?) else { return Ok(false) };
            let copy = number(10)?.unwrap_or(0);
            let name = match kind {
                OpKind::Kernel => text.as_deref().unwrap_or("[kernel without a name]"),
                OpKind::Copy => copy_name(copy),
                OpKind::Set => "memset",
            };
            let three = |at: usize| {
                Ok::<_, rusqlite::Error>([at, at + 1, at + 2].map(|at| id(at).ok().flatten().unwrap_or(0)))
            };
            sink.event(&Event::Op(Op {
                kind,
                name: Text::from(name),
                start,
                end,
                process: process_of(number(2)?),
                device: id(4)?,
                context: id(5)?,
                stream: id(6)?,
                correlation: number(3)?.and_then(|n| u64::try_from(n).ok()).filter(|&n| n != 0),
                graph: id(8)?.filter(|&id| id != 0),
                graph_node: number(7)?.and_then(|n| u64::try_from(n).ok()).filter(|&n| n != 0),
                bytes: number(9)?.and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
                grid: three(14)?,
                block: three(17)?,
                registers: id(11)?.unwrap_or(0),
                shared: id(12)?.unwrap_or(0).saturating_add(id(13)?.unwrap_or(0)),
                ..Op::default()
            }));
            Ok(true)
        })
    }

    fn read_calls(&mut self) -> Result<()> {
        let wanted = WantedColumns(&[
            ("start", "NULL"),
            ("end", "NULL"),
            ("globalTid", "NULL"),
            ("correlationId", "NULL"),
        ]);
        let name = "(SELECT value FROM StringIds WHERE id = nameId)";
        self.for_each_row("CUPTI_ACTIVITY_KIND_RUNTIME", &wanted, name, |row, sink| {
            let name: Option<String> = row.get(0)?;
            let name = strip_version(name.as_deref().unwrap_or("[call without a name]"));
            let (Some(start), Some(end)) = (row.get(1)?, row.get(2)?) else { return Ok(false) };
            let global: Option<i64> = row.get(3)?;
            let correlation: Option<i64> = row.get(4)?;
            sink.event(&Event::Call(Call {
                name: Text::from(name),
                start,
                end,
                process: process_of(global),
                thread: thread_of(global),
                correlation: correlation.and_then(|n| u64::try_from(n).ok()).filter(|&n| n != 0),
                driver: !name.starts_with("cuda"),
                ..Call::default()
            }));
            Ok(true)
        })
    }

    /// Reads push/pop ranges only, because other kinds of ranges need not nest.
    fn read_ranges(&mut self) -> Result<()> {
        let wanted =
            WantedColumns(&[("start", "NULL"), ("end", "NULL"), ("globalTid", "NULL"), ("eventType", "59")]);
        let name = "COALESCE(text, (SELECT value FROM StringIds WHERE id = textId))";
        self.for_each_row("NVTX_EVENTS", &wanted, name, |row, sink| {
            let name: Option<String> = row.get(0)?;
            let (Some(start), Some(end)) = (row.get(1)?, row.get(2)?) else { return Ok(false) };
            let global: Option<i64> = row.get(3)?;
            let kind: i64 = row.get(4)?;
            if !matches!(kind, 59 | 70) {
                return Ok(false);
            }
            sink.event(&Event::Cpu(CpuOp {
                kind: CpuKind::Range,
                name: Text::from(name.as_deref().unwrap_or("[range without a name]")),
                start,
                end,
                process: process_of(global),
                thread: thread_of(global),
                ..CpuOp::default()
            }));
            Ok(true)
        })
    }

    fn read_threads(&mut self) -> Result<()> {
        let wanted = WantedColumns(&[("globalTid", "NULL")]);
        let name = "(SELECT value FROM StringIds WHERE id = nameId)";
        self.for_each_row("ThreadNames", &wanted, name, |row, sink| {
            let (name, global): (Option<String>, Option<i64>) = (row.get(0)?, row.get(1)?);
            let name = Text::from(name.as_deref().unwrap_or_default());
            sink.event(&Event::Thread(ThreadName {
                process: process_of(global),
                thread: thread_of(global),
                name,
            }));
            Ok(true)
        })
    }

    fn read_syncs(&mut self) -> Result<()> {
        let wanted = WantedColumns(&[
            ("start", "NULL"),
            ("end", "NULL"),
            ("deviceId", "NULL"),
            ("streamId", "NULL"),
            ("correlationId", "NULL"),
            ("syncType", "0"),
        ]);
        self.for_each_row("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", &wanted, "NULL", |row, sink| {
            let (Some(start), Some(end)) = (row.get(1)?, row.get(2)?) else { return Ok(false) };
            let name = match row.get::<_, i64>(6)? {
                1 => "Event Sync",
                2 => "Stream Wait Event",
                3 => "Stream Sync",
                4 => "Context Sync",
                _ => "Sync",
            };
            let correlation: Option<i64> = row.get(5)?;
            sink.event(&Event::Sync(Sync {
                name: Text::from(name),
                start,
                end,
                device: row.get(3)?,
                stream: row.get::<_, Option<i64>>(4)?.and_then(|stream| u32::try_from(stream).ok()),
                correlation: correlation.and_then(|n| u64::try_from(n).ok()),
                ..Sync::default()
            }));
            Ok(true)
        })
    }

    /// Calls `take` with each row of `table`. The row consists of the expression `first` and the wanted columns.
    /// `take` returns whether the row had usable times.
    fn for_each_row(
        &mut self,
        table: &str,
        wanted: &WantedColumns<'_>,
        first: &str,
        mut take: impl FnMut(&Row<'_>, &mut S) -> rusqlite::Result<bool>,
    ) -> Result<()> {
        let mut existing: Vec<String> = Vec::new();
        self.base
            .pragma(None, "table_info", table, |row| {
                existing.push(row.get(1)?);
                Ok(())
            })
            .map_err(sqlite_error)?;
        let mut query = format!("SELECT {first}");
        for (column, fallback) in wanted.0 {
            let exists = existing.iter().any(|name| name == column);
            query.push_str(&format!(
                ", {}",
                if exists { format!("\"{column}\"") } else { (*fallback).to_owned() }
            ));
        }
        query.push_str(&format!(" FROM \"{table}\""));
        let mut statement = self.base.prepare(&query).map_err(sqlite_error)?;
        let mut rows = statement.query([]).map_err(sqlite_error)?;
        while let Some(row) = rows.next().map_err(sqlite_error)? {
            self.counts.events += 1;
            if !take(row, self.sink).map_err(sqlite_error)? {
                self.counts.untimed += 1;
            }
        }
        Ok(())
    }
}

fn list_tables(base: &Connection) -> Result<Vec<String>> {
    let mut statement =
        base.prepare("SELECT name FROM sqlite_master WHERE type = 'table'").map_err(sqlite_error)?;
    let names = statement.query_map([], |row| row.get(0)).map_err(sqlite_error)?;
    names.collect::<rusqlite::Result<_>>().map_err(sqlite_error)
}

fn sqlite_error(error: rusqlite::Error) -> Error {
    Error::new(ErrorKind::Format, format!("sqlite: {error}"))
}

/// Returns the percent-encoded path as a sqlite URI that opens the file without modifying it.
fn sqlite_uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for &byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => uri.push(char::from(byte)),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri + "?mode=ro&immutable=1"
}

/// Returns the process of a global id: the id's upper bits, which include the machine's number. The lowest 24 bits
/// are the thread.
fn process_of(global: Option<i64>) -> Id<'static> {
    global.map_or(Id::None, |id| Id::Number(id >> 24))
}

fn thread_of(global: Option<i64>) -> Id<'static> {
    global.map_or(Id::None, |id| Id::Number(id & 0xff_ffff))
}

/// Strips the version from names such as `cudaLaunchKernel_v7000`.
fn strip_version(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((strip_version, version))
            if version.len() >= 4 && version.bytes().all(|b| b.is_ascii_digit()) =>
        {
            strip_version
        }
        _ => name,
    }
}

fn copy_name(kind: i64) -> &'static str {
    u8::try_from(kind).map_or("unknown", |kind| gpuflame_model::record::CopyKind(kind).label())
}

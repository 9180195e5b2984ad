//! Reads `.rpd` files, which are sqlite databases that rocmProfileData writes. The files contain calls, GPU operations,
//! and a table that links operations to calls.

use std::collections::BTreeMap;
use std::path::Path;

use super::model::*;
use super::sqlite::{self, Database, integer, integer_u32, quote, text, text_or};
use super::{Id, ReadCounts, Text};
use gpuflame_model::error::Result;

/// Name of a call that represents a range or mark of the program. The argument of this call is the name that the
/// program gave to the range or mark.
const MARKER: &[u8] = b"UserMarker";

/// Reads the database at `path`.
pub(super) fn read(path: &Path, sink: &mut impl Sink) -> Result<ReadCounts> {
    let base = Database::open(path)?;
    let mut counts = ReadCounts { bytes: base.bytes(), ..ReadCounts::default() };
    counts.schema = base.value("rocpd_metadata", ["tag", "value"], "schema_version")?;
    read_calls(&base, sink, &mut counts)?;
    read_ops(&base, sink, &mut counts)?;
    counts.remarks.extend(base.log_remark());
    Ok(counts)
}

/// Adds an SQL join of the table of strings with `column` of `table` (alias `T`). The column contains the id of a
/// string, and the returned SQL expression selects this string.
fn string(base: &Database, table: &str, column: &str, alias: &str, joins: &mut String) -> String {
    if !base.has_column(table, column) || !base.has_column("rocpd_string", "id") {
        return "NULL".to_owned();
    }
    let strings = base.keyed("rocpd_string", "id");
    joins.push_str(&format!(" LEFT JOIN {strings} AS {alias} ON {alias}.id = T.{}", quote(column)));
    base.column("rocpd_string", alias, "string")
}

fn read_calls(base: &Database, sink: &mut impl Sink, counts: &mut ReadCounts) -> Result<()> {
    let (table, mut joins) = ("rocpd_api", String::new());
    let name = string(base, table, "apiName_id", "N", &mut joins);
    let arguments = string(base, table, "args_id", "A", &mut joins);
    let [id, process, thread, start, end] =
        ["id", "pid", "tid", "start", "end"].map(|column| base.column(table, "T", column));
    let query = format!(
        "SELECT {name}, {arguments}, {id}, {process}, {thread}, {start}, {end} FROM rocpd_api AS T{joins}"
    );
    base.for_each_row(&query, |row| {
        counts.events += 1;
        let (Some(start), Some(end)) = (integer(row, 5), integer(row, 6)) else {
            counts.untimed += 1;
            return;
        };
        let [process, thread] = [3, 4].map(|at| integer(row, at).map_or(Id::None, Id::Number));
        let name = text_or(row, 0, "[call without a name]");
        sink.event(&match name.raw() == MARKER {
            true => Event::Cpu(CpuOp {
                kind: CpuKind::Range,
                name: text_or(row, 1, "[range without a name]"),
                start,
                end,
                process,
                thread,
                ..CpuOp::default()
            }),
            false => Event::Call(Call {
                name,
                start,
                end,
                process,
                thread,
                correlation: sqlite::id(row, 2),
                driver: name.raw().starts_with(b"hsa_"),
                ..Call::default()
            }),
        });
    })
}

fn read_ops(base: &Database, sink: &mut impl Sink, counts: &mut ReadCounts) -> Result<()> {
    let (table, mut joins) = ("rocpd_op", String::new());
    let name = string(base, table, "description_id", "N", &mut joins);
    let kind = string(base, table, "opType_id", "K", &mut joins);
    let [device, queue, start, end] =
        ["gpuId", "queueId", "start", "end"].map(|column| base.column(table, "T", column));
    // At most one call belongs to an operation, but several operations may belong to a call.
    let mut call = "NULL";
    if ["api_id", "op_id"].iter().all(|column| base.has_column("rocpd_api_ops", column)) {
        call = "L.api_id";
        joins.push_str(
            " LEFT JOIN (SELECT op_id, min(api_id) AS api_id FROM rocpd_api_ops GROUP BY op_id) AS L \
             ON L.op_id = T.id",
        );
    }
    let mut bytes = "NULL";
    if call != "NULL" && ["api_ptr_id", "size"].iter().all(|column| base.has_column("rocpd_copyapi", column))
    {
        bytes = "B.size";
        joins.push_str(
            " LEFT JOIN (SELECT api_ptr_id, max(size) AS size FROM rocpd_copyapi GROUP BY api_ptr_id) AS B \
             ON B.api_ptr_id = L.api_id",
        );
    }
    let query = format!(
        "SELECT {name}, {kind}, {device}, {queue}, {start}, {end}, {call}, {bytes} FROM rocpd_op AS T{joins}"
    );
    let mut left_out: BTreeMap<String, u64> = BTreeMap::new();
    base.for_each_row(&query, |row| {
        counts.events += 1;
        let what = text(row, 1).unwrap_or_default();
        let Some(kind) = op_kind(what) else {
            *left_out.entry(String::from_utf8_lossy(what).into_owned()).or_default() += 1;
            return;
        };
        let (Some(start), Some(end)) = (integer(row, 4), integer(row, 5)) else {
            counts.untimed += 1;
            return;
        };
        sink.event(&Event::Op(Op {
            kind,
            name: match kind {
                OpKind::Copy => copy_name(what),
                _ => text_or(row, 0, "[kernel without a name]"),
            },
            start,
            end,
            device: integer_u32(row, 2),
            stream: integer_u32(row, 3),
            correlation: sqlite::id(row, 6),
            bytes: integer(row, 7).and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
            ..Op::default()
        }));
    })?;
    let left_out: Vec<String> =
        left_out.into_iter().map(|(what, count)| format!("{count} of {what}")).collect();
    if !left_out.is_empty() {
        counts.remarks.push(format!("left out operations that are not GPU work: {}", left_out.join(", ")));
    }
    Ok(())
}

/// Returns the kind of an operation for its type (such as `KernelExecution` or `CopyHostToDevice`). Returns `None` for
/// barriers and markers in a queue, which are not operations. Operations of an unknown type count as kernels.
fn op_kind(what: &[u8]) -> Option<OpKind> {
    let what = what.to_ascii_lowercase();
    let has = |word: &str| what.windows(word.len()).any(|window| window == word.as_bytes());
    match () {
        () if has("barrier") || has("marker") => None,
        () if has("copy") || has("memcpy") => Some(OpKind::Copy),
        () if has("fill") || has("memset") => Some(OpKind::Set),
        () => Some(OpKind::Kernel),
    }
}

/// Converts the name of a copy direction, such as `CopyHostToDevice`, to the short name that other tools use (`HtoD`).
fn copy_name(what: &[u8]) -> Text<'_> {
    let has =
        |word: &str| what.windows(word.len()).any(|window| window.eq_ignore_ascii_case(word.as_bytes()));
    let names = [
        ("HostToDevice", "HtoD"),
        ("DeviceToHost", "DtoH"),
        ("DeviceToDevice", "DtoD"),
        ("HostToHost", "HtoH"),
    ];
    names.iter().find(|(word, _)| has(word)).map_or(Text::plain(what), |(_, name)| Text::from(*name))
}

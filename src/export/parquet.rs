//! Every activity as a row of Parquet, for DuckDB, Spark and whatever else asks questions over many runs.
//!
//! | column | type | what |
//! |---|---|---|
//! | `kind` | text | `kernel`, `copy`, `set`, `graph` |
//! | `name` | text | the kernel's name, the copy's direction, `memset` |
//! | `device`, `context`, `stream` | int | where it ran |
//! | `correlation` | int | ties it to its call, within a process |
//! | `start_ns`, `end_ns`, `duration_ns` | long | since 1970; null where they were not collected |
//! | `bytes` | long | moved or set |
//! | `graph`, `graph_node` | int, long | the graph it was part of |
//! | `grid_x` … `block_z`, `registers`, `static_shared`, `dynamic_shared` | int | of a kernel |
//! | `call`, `stack` | text | the API call, and its frames from the root on, `;` in between |
//! | `thread`, `thread_name` | int, text | who called |
//! | `launch_ns`, `launch_duration_ns` | long | when the call began, and how long it took |
//! | `reason` | text | why it has no stack or no time; null where it has both |
//!
//! The stack of a graph's node goes on with `[graph]` and where the node was made.
//! Rows stand in the order of time. What was lost is in the file's key-value metadata (`gpuflame.lost.*`),
//! and how many launches had no activity (`gpuflame.launches.pending`).
//! `run` and `rank` are no columns: they are the names of the folders (`run=A/rank=3/`), which both tools
//! take for columns.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use super::callers::{Caller, Callers};
use super::clean;
use super::compose::{event_place, stack_names, work_name};
use super::format::Format;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Events, JoinedActivity};
use crate::join::{Launched, Origin};
use crate::profile::{Kind, Profile};
use crate::record::{Activity, ContextId, Detail, KernelDetail, Missing};

/// So many rows are held in columns before they are written.
const GROUP: usize = 1 << 17;

/// What a column gets from a row.
enum Column {
    Int(fn(&Line<'_>) -> Option<i32>),
    Long(fn(&Line<'_>) -> Option<i64>),
    Text(fn(&Line<'_>) -> Option<String>),
}

use Column::{Int, Long, Text};

const COLUMNS: [(&str, Column); 28] = [
    ("kind", Text(|line| Some(line.kind().to_owned()))),
    ("name", Text(|line| line.name())),
    ("device", Int(|line| Some(line.activity().device.0 as i32))),
    ("context", Int(|line| Some(line.activity().context.0 as i32))),
    ("stream", Int(|line| Some(line.activity().stream.0 as i32))),
    ("correlation", Long(|line| Some(line.correlation().into()))),
    ("start_ns", Long(|line| line.timed().map(|activity| activity.start.0 as i64))),
    ("end_ns", Long(|line| line.timed().map(|activity| activity.end.0 as i64))),
    ("duration_ns", Long(|line| line.timed()?.duration().map(|nanos| nanos as i64))),
    ("bytes", Long(|line| Some(line.activity().bytes() as i64))),
    ("graph", Int(|line| Some(line.activity().graph.0 as i32).filter(|id| *id != 0))),
    ("graph_node", Long(|line| Some(line.activity().graph_node.0 as i64).filter(|id| *id != 0))),
    ("grid_x", Int(|line| Some(line.kernel()?.grid[0] as i32))),
    ("grid_y", Int(|line| Some(line.kernel()?.grid[1] as i32))),
    ("grid_z", Int(|line| Some(line.kernel()?.grid[2] as i32))),
    ("block_x", Int(|line| Some(line.kernel()?.block[0] as i32))),
    ("block_y", Int(|line| Some(line.kernel()?.block[1] as i32))),
    ("block_z", Int(|line| Some(line.kernel()?.block[2] as i32))),
    ("registers", Int(|line| Some(line.kernel()?.registers.into()))),
    ("static_shared", Int(|line| Some(line.kernel()?.static_shared as i32))),
    ("dynamic_shared", Int(|line| Some(line.kernel()?.dynamic_shared as i32))),
    ("call", Text(|line| Some(clean::text(&line.caller()?.call)))),
    ("stack", Text(|line| line.stack())),
    ("thread", Int(|line| Some(line.caller()?.thread.0 as i32))),
    ("thread_name", Text(|line| Some(line.caller()?.thread_name.clone()))),
    ("launch_ns", Long(|line| Some(line.launched()?.time.0 as i64))),
    ("launch_duration_ns", Long(|line| Some(line.launched()?.duration.into()))),
    ("reason", Text(|line| line.reason())),
];

/// Parquet, with the names that the profile has.
pub(super) static PARQUET: Format = Format::of_events(
    "parquet",
    &[".parquet"],
    |profile, events, _, mut out| write(profile, events, &mut out),
    "A table for DuckDB and Spark (a folder, or .parquet)",
)
.binary();

fn write(profile: &Profile, events: &Events, out: &mut (impl Write + Send)) -> Result<()> {
    let pending = events.calls().iter().filter(|call| call.pending).count();
    let pending = KeyValue::new("gpuflame.launches.pending".to_owned(), pending.to_string());
    let lost = profile
        .lost()
        .map(|(loss, count)| KeyValue::new(format!("gpuflame.lost.{}", loss.label()), count.to_string()));
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by("gpuflame".to_owned())
        .set_key_value_metadata(Some([pending].into_iter().chain(lost).collect()))
        .build();
    let mut writer =
        SerializedFileWriter::new(out, Arc::new(schema().map_err(failed)?), Arc::new(properties))
            .map_err(failed)?;
    let callers = Callers::of(profile);
    let mut rows = events.activities().iter().map(|event| Line { profile, callers: &callers, event });
    loop {
        let group: Vec<_> = rows.by_ref().take(GROUP).collect();
        if group.is_empty() {
            break;
        }
        let mut columns = writer.next_row_group().map_err(failed)?;
        for (_, column) in &COLUMNS {
            write_column(column, &group, &mut columns).map_err(failed)?;
        }
        columns.close().map_err(failed)?;
    }
    writer.close().map_err(failed)?;
    Ok(())
}

fn failed(error: ParquetError) -> Error {
    Error::new(ErrorKind::Io, error.to_string())
}

fn schema() -> std::result::Result<Type, ParquetError> {
    let column = |(name, column): &(&str, Column)| {
        let (physical, logical) = match column {
            Int(_) => (Physical::INT32, None),
            Long(_) => (Physical::INT64, None),
            Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let builder = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
        builder.with_logical_type(logical).build().map(Arc::new)
    };
    let columns = COLUMNS.iter().map(column).collect::<std::result::Result<Vec<_>, _>>()?;
    Type::group_type_builder("gpuflame").with_fields(columns).build()
}

fn write_column<W: Write + Send>(
    column: &Column,
    lines: &[Line<'_>],
    group: &mut SerializedRowGroupWriter<'_, W>,
) -> std::result::Result<(), ParquetError> {
    let mut writer = group.next_column()?.expect("there is a column for each of the schema");
    // Values stand without gaps; the levels say which rows have one.
    match column {
        Int(get) => {
            let (values, levels) = split(lines.iter().map(get));
            writer.typed::<Int32Type>().write_batch(&values, Some(&levels), None)?;
        }
        Long(get) => {
            let (values, levels) = split(lines.iter().map(get));
            writer.typed::<Int64Type>().write_batch(&values, Some(&levels), None)?;
        }
        Text(get) => {
            let texts = lines.iter().map(|line| get(line).map(|text| ByteArray::from(text.as_str())));
            let (values, levels) = split(texts);
            writer.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
        }
    }
    writer.close()
}

fn split<T>(values: impl Iterator<Item = Option<T>>) -> (Vec<T>, Vec<i16>) {
    let (mut present, mut levels) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        present.extend(value);
    }
    (present, levels)
}

/// A row, and where to look its names up.
struct Line<'a> {
    profile: &'a Profile,
    callers: &'a Callers<'a>,
    event: &'a JoinedActivity,
}

impl Line<'_> {
    fn activity(&self) -> &Activity {
        &self.event.activity
    }

    fn timed(&self) -> Option<&Activity> {
        Some(self.activity()).filter(|activity| activity.duration().is_some())
    }

    fn kernel(&self) -> Option<&KernelDetail> {
        match &self.activity().detail {
            Detail::Kernel(kernel) => Some(kernel),
            Detail::Copy(_) | Detail::Set(_) | Detail::Graph => None,
        }
    }

    fn launched(&self) -> Option<Launched> {
        match self.event.origin {
            Origin::Launch(launched) => Some(launched),
            Origin::Missing(_) => None,
        }
    }

    fn caller(&self) -> Option<std::rc::Rc<Caller>> {
        let context = self.launched()?.context;
        (context != ContextId::NONE).then(|| self.callers.get(context))
    }

    fn stack(&self) -> Option<String> {
        if self.activity().created.is_none() {
            return Some(self.caller()?.stack());
        }
        let names = stack_names(self.profile, event_place(self.event));
        Some(names.iter().map(|name| clean::frame(name)).collect::<Vec<_>>().join(";"))
    }

    fn kind(&self) -> &'static str {
        Kind::of(self.activity().work()).word()
    }

    fn name(&self) -> Option<String> {
        Some(clean::text(&work_name(self.profile, self.activity().work())))
    }

    fn correlation(&self) -> u32 {
        self.activity().correlation.0
    }

    fn reason(&self) -> Option<String> {
        let event = self.event;
        let untimed = event.activity.duration().is_none().then_some(Missing::Untimed);
        let reasons: Vec<_> =
            event.origin.context().err().into_iter().chain(untimed).map(Missing::word).collect();
        (!reasons.is_empty()).then(|| reasons.join(" "))
    }
}

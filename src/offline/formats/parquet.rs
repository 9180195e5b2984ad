//! The activity table as Parquet, for queries over many runs with DuckDB, Spark and similar tools.
//! [`super::activity_columns`] lists the columns.
//!
//! The file's key-value metadata contain the counts of dropped data (`gpuflame.lost.*`) and the number of launches
//! without an activity (`gpuflame.launches.pending`). The Parquet file has no columns `run` and `rank`. The values of
//! `run` and `rank` are in the names of the folders (`run=A/rank=3/`). DuckDB and Spark read the names of such folders
//! as columns.
//!
//! A second thread prepares the values of the columns. The calling thread encodes, compresses and writes the values.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use super::activity_columns::{ActivityRow, COLUMNS, Column, TextKey};
use super::callers::Callers;
use gpuflame_explain::events::JoinedRows;
use gpuflame_export::format::Format;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::IdMap;

/// Number of rows in each row group of the file.
const ROWS_PER_GROUP: usize = 1 << 17;
/// Maximum number of prepared columns that wait to be written. A column of a row group takes up to 4 MB of memory.
const MAX_READY_COLUMNS: usize = 2;

/// The Parquet format. The names of kernels and functions are taken from the profile.
pub(super) static PARQUET: Format = Format::of_events(
    "parquet",
    &[".parquet"],
    |profile, events, _, mut out| write(profile, events, &mut out),
    "A table for DuckDB and Spark (a folder, or .parquet)",
)
.binary();

fn write(profile: &Profile, events: &JoinedRows, out: &mut (impl Write + Send)) -> Result<()> {
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
        SerializedFileWriter::new(out, Arc::new(schema().map_err(io_error)?), Arc::new(properties))
            .map_err(io_error)?;
    thread::scope(|scope| {
        let (full, columns) = sync_channel(MAX_READY_COLUMNS);
        let preparing = scope.spawn(move || prepare_columns(profile, events, &full));
        let written = write_columns(&mut writer, &columns);
        // If writing failed, the receiver is dropped, so the second thread stops at the next column that it prepares.
        drop(columns);
        preparing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written
    })
    .and_then(|()| writer.close())
    .map(drop)
    .map_err(io_error)
}

/// Passes the values of each column to `full`, one row group after another. Stops before the last column if the
/// receiver has been dropped.
fn prepare_columns(profile: &Profile, events: &JoinedRows, full: &SyncSender<Values>) {
    let (callers, mut texts) = (Callers::new(profile), IdMap::default());
    let mut rows = events.activities().map(|event| ActivityRow::new(profile, &callers, events, event));
    loop {
        let group: Vec<_> = rows.by_ref().take(ROWS_PER_GROUP).collect();
        let mut columns = COLUMNS.iter().map(|(_, column)| Values::new(column, &group, &mut texts));
        if group.is_empty() || columns.any(|values| full.send(values).is_err()) {
            return;
        }
    }
}

/// Writes the columns that the other thread prepares, until that thread has sent all of them.
fn write_columns<W: Write + Send>(
    writer: &mut SerializedFileWriter<W>,
    columns: &Receiver<Values>,
) -> std::result::Result<(), ParquetError> {
    while let Ok(first) = columns.recv() {
        let mut group = writer.next_row_group()?;
        for values in [first].into_iter().chain(columns.iter()).take(COLUMNS.len()) {
            values.write(&mut group)?;
        }
        group.close()?;
    }
    Ok(())
}

fn io_error(error: ParquetError) -> Error {
    Error::new(ErrorKind::Io, error.to_string())
}

fn schema() -> std::result::Result<Type, ParquetError> {
    let column = |(name, column): &(&str, Column)| {
        let (physical, logical) = match column {
            Column::Int(_) => (Physical::INT32, None),
            Column::Long(_) => (Physical::INT64, None),
            Column::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let builder = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
        builder.with_logical_type(logical).build().map(Arc::new)
    };
    let columns = COLUMNS.iter().map(column).collect::<std::result::Result<Vec<_>, _>>()?;
    Type::group_type_builder("gpuflame").with_fields(columns).build()
}

/// Values of one column in a row group. Only values that are not null are stored. The definition levels mark the rows
/// that have a value.
enum Values {
    Int(Vec<i32>, Vec<i16>),
    Long(Vec<i64>, Vec<i16>),
    Text(Vec<ByteArray>, Vec<i16>),
}

impl Values {
    fn new(column: &Column, rows: &[ActivityRow<'_>], texts: &mut IdMap<TextKey, ByteArray>) -> Self {
        match column {
            Column::Int(get) => {
                let (values, levels) = split(rows.iter().map(get));
                Self::Int(values, levels)
            }
            Column::Long(get) => {
                let (values, levels) = split(rows.iter().map(get));
                Self::Long(values, levels)
            }
            Column::Text(get) => {
                let made = |row: &ActivityRow<'_>, key| ByteArray::from(row.text(key).as_str());
                let mut text = |row, key| texts.entry(key).or_insert_with(|| made(row, key)).clone();
                let (values, levels) = split(rows.iter().map(|row| get(row).map(|key| text(row, key))));
                Self::Text(values, levels)
            }
        }
    }

    fn write<W: Write + Send>(
        &self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> std::result::Result<(), ParquetError> {
        let mut writer = group.next_column()?.expect("there is a column for each of the schema");
        match self {
            Self::Int(values, levels) => {
                writer.typed::<Int32Type>().write_batch(values, Some(levels), None)?
            }
            Self::Long(values, levels) => {
                writer.typed::<Int64Type>().write_batch(values, Some(levels), None)?
            }
            Self::Text(values, levels) => {
                writer.typed::<ByteArrayType>().write_batch(values, Some(levels), None)?
            }
        };
        writer.close()
    }
}

fn split<T>(values: impl Iterator<Item = Option<T>>) -> (Vec<T>, Vec<i16>) {
    let (mut present, mut levels) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        present.extend(value);
    }
    (present, levels)
}

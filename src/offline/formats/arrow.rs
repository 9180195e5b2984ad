//! Writes the activity table as Arrow (a Feather file), for pandas, polars, R and `gpuflame.read`.
//! [`super::activity_columns`] lists the columns.
//!
//! An Arrow file has the same layout as Arrow data in memory, so readers need no copy. Text columns use dictionaries,
//! which store each text once. The schema's metadata contain the counts of dropped data, under the same keys as in the
//! Parquet format.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{ArrayRef, DictionaryArray, Int32Array, PrimitiveArray, RecordBatch, StringArray};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};

use super::activity_columns::{ActivityRow, COLUMNS, Column, TextKey};
use super::callers::Callers;
use gpuflame_explain::events::JoinedRows;
use gpuflame_export::format::Format;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::IdMap;

/// Number of rows in each record batch.
const ROWS_PER_BATCH: usize = 1 << 17;

/// The Arrow format. The names of kernels and functions are taken from the profile.
pub(super) static ARROW: Format = Format::of_events(
    "arrow",
    &[".arrow", ".feather"],
    |profile, events, _, mut out| write(profile, events, &mut out),
    "A table for pandas, polars and R, read without a copy (.arrow)",
)
.binary();

fn write(profile: &Profile, events: &JoinedRows, out: &mut impl Write) -> Result<()> {
    let callers = Callers::new(profile);
    let rows = || events.activities().map(|event| ActivityRow::new(profile, &callers, events, event));
    // The file has one dictionary per column. Each dictionary must be complete before the first row is written.
    let mut columns: Vec<_> = COLUMNS.iter().map(|(name, column)| ColumnBuilder::new(name, column)).collect();
    rows().for_each(|row| columns.iter_mut().for_each(|column| column.add_text(&row)));
    let metadata = metadata(profile, events);
    let schema =
        Schema::new(columns.iter().map(ColumnBuilder::field).collect::<Vec<_>>()).with_metadata(metadata);
    let schema = Arc::new(schema);
    columns.iter_mut().for_each(ColumnBuilder::complete_dictionary);
    let mut writer = FileWriter::try_new(out, &schema).map_err(io_error)?;
    let mut rows = rows();
    loop {
        let batch: Vec<_> = rows.by_ref().take(ROWS_PER_BATCH).collect();
        if batch.is_empty() {
            break;
        }
        let arrays = columns.iter().map(|column| column.array(&batch)).collect::<std::result::Result<_, _>>();
        let batch = RecordBatch::try_new(Arc::clone(&schema), arrays.map_err(io_error)?).map_err(io_error)?;
        writer.write(&batch).map_err(io_error)?;
    }
    writer.finish().map_err(io_error)
}

fn metadata(profile: &Profile, events: &JoinedRows) -> HashMap<String, String> {
    let pending = events.calls().iter().filter(|call| call.pending).count();
    let lost =
        profile.lost().map(|(loss, count)| (format!("gpuflame.lost.{}", loss.label()), count.to_string()));
    lost.chain([("gpuflame.launches.pending".to_owned(), pending.to_string())]).collect()
}

fn io_error(error: ArrowError) -> Error {
    Error::new(ErrorKind::Io, error.to_string())
}

/// A column of the Arrow file while it is being built.
struct ColumnBuilder<'a> {
    name: &'a str,
    column: &'a Column,
    /// Index of each key's text in the dictionary.
    places: IdMap<TextKey, i32>,
    /// Index of each text in the dictionary; empty after the dictionary was completed.
    known: HashMap<String, i32>,
    texts: Arc<StringArray>,
}

impl<'a> ColumnBuilder<'a> {
    fn new(name: &'a str, column: &'a Column) -> Self {
        let texts = Arc::new(StringArray::from(Vec::<String>::new()));
        Self { name, column, places: IdMap::default(), known: HashMap::new(), texts }
    }

    fn field(&self) -> Field {
        let kind = match self.column {
            Column::Int(_) => DataType::Int32,
            Column::Long(_) => DataType::Int64,
            Column::Text(_) => DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into()),
        };
        Field::new(self.name, kind, true)
    }

    /// Adds the row's text to the dictionary, if this is a text column.
    fn add_text(&mut self, row: &ActivityRow<'_>) {
        let Column::Text(get) = self.column else { return };
        let Some(key) = get(row) else { return };
        let Self { places, known, .. } = self;
        places.entry(key).or_insert_with(|| {
            let next = known.len() as i32;
            *known.entry(row.text(key)).or_insert(next)
        });
    }

    /// Completes the dictionary.
    fn complete_dictionary(&mut self) {
        let mut texts: Vec<_> = std::mem::take(&mut self.known).into_iter().collect();
        texts.sort_unstable_by_key(|(_, place)| *place);
        self.texts = Arc::new(StringArray::from_iter_values(texts.into_iter().map(|(text, _)| text)));
    }

    fn array(&self, rows: &[ActivityRow<'_>]) -> std::result::Result<ArrayRef, ArrowError> {
        Ok(match self.column {
            Column::Int(get) => Arc::new(rows.iter().map(get).collect::<PrimitiveArray<Int32Type>>()),
            Column::Long(get) => Arc::new(rows.iter().map(get).collect::<PrimitiveArray<Int64Type>>()),
            Column::Text(get) => {
                let place = |row| get(row).map(|key| self.places[&key]);
                let keys = rows.iter().map(place).collect::<Int32Array>();
                let texts = Arc::clone(&self.texts);
                Arc::new(DictionaryArray::<Int32Type>::try_new(keys, texts)?)
            }
        })
    }
}

//! Reads the operations of a pipeline from a Parquet file, and the layout of the job from the `meta` file in the same
//! folder.
//!
//! The columns are the same as in the files published by ByteDance's StragglerAnalysis: `dp_rank`, `stage`, `rank`,
//! `step`, `optype`, `start_ts` and `duration` (seconds), `seq_id`, `mc` and `gmc`.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader as _, RowGroupReader, SerializedFileReader};

use super::analysis::{PipelineKind, PipelineOp};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Maximum number of operations that are read from a file. Reading this number of operations takes about 2 GB of
/// memory.
const MAX_OPS: i64 = 16_000_000;
/// Maximum size of a `meta` file in bytes. A real `meta` file has only a few lines.
const MAX_META_BYTES: u64 = 65_536;
/// Number of values that each call to the Parquet reader reads.
const BATCH: usize = 65_536;

/// Layout of a job, read from its `meta` file. Numbers that are missing in the file are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobLayout {
    /// Number of data-parallel ranks.
    pub data_parallel: Option<u32>,
    /// Number of pipeline stages.
    pub stages: Option<u32>,
    /// Number of workers that process parts of the same sequence (sequence parallelism).
    pub sequence_parallel: Option<u32>,
}

/// Returns the path of the `meta` file that belongs to the Parquet file. For `trace-X.parquet`, this is `meta-X.yaml`
/// in the same folder. Returns `None` if this `meta` file does not exist.
pub fn layout_file(path: &Path) -> Option<PathBuf> {
    let name = path.file_stem()?.to_str()?;
    let meta = path.with_file_name(format!("meta-{}.yaml", name.strip_prefix("trace-")?));
    meta.is_file().then_some(meta)
}

/// Reads a `meta` file, which has lines of the form `key: value`. YAML syntax other than such lines is an error.
///
/// # Errors
/// Returns `Io` if the file cannot be read, or `Format` with the faulty line in the message.
pub fn read_layout(path: &Path) -> Result<JobLayout> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_META_BYTES).read_to_string(&mut text))
        .map_err(|error| Error::from(error).within(path.display()))?;
    parse_layout(&text).map_err(|error| error.within(path.display()))
}

fn parse_layout(text: &str) -> Result<JobLayout> {
    let mut layout = JobLayout::default();
    for (at, line) in text.lines().enumerate() {
        let line = line.split(" #").next().unwrap_or_default().trim_end();
        if line.is_empty() || line.starts_with('#') || line == "---" {
            continue;
        }
        let refused = |what: &str| Error::new(ErrorKind::Format, format!("line {}: {what}", at + 1));
        let (key, value) = line
            .split_once(':')
            .filter(|(key, _)| key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
            .ok_or_else(|| refused("expected `key: number`"))?;
        let field = match key {
            "dp_size" => &mut layout.data_parallel,
            "pp_size" => &mut layout.stages,
            "dsp_size" => &mut layout.sequence_parallel,
            _ => continue,
        };
        let number = value.trim().parse().ok().filter(|&number| number > 0);
        *field = Some(number.ok_or_else(|| refused("expected a number above 0"))?);
    }
    Ok(layout)
}

/// Reads all operations in a file.
///
/// # Errors
/// Returns `Io` if the file cannot be read, or `Format` with the faulty column or row in the message.
pub fn read_pipeline_ops(path: &Path) -> Result<Vec<PipelineOp>> {
    read_all(path).map_err(|error| error.within(path.display()))
}

fn read_all(path: &Path) -> Result<Vec<PipelineOp>> {
    if fs::metadata(path)?.is_dir() {
        return Err(Error::new(ErrorKind::Format, "is a folder; name a .parquet file"));
    }
    let reader = SerializedFileReader::new(File::open(path)?).map_err(broken)?;
    let rows = reader.metadata().file_metadata().num_rows();
    if !(0..=MAX_OPS).contains(&rows) {
        return Err(Error::new(ErrorKind::Format, format!("has {rows} rows; at most {MAX_OPS} can be read")));
    }
    let mut ops = Vec::new();
    for at in 0..reader.num_row_groups() {
        let group = reader.get_row_group(at).map_err(broken)?;
        read_group(&*group, &mut ops)?;
    }
    Ok(ops)
}

fn broken(error: ParquetError) -> Error {
    Error::new(ErrorKind::Format, format!("cannot be read as parquet: {error}"))
}

/// Values of a column, by type.
enum Column {
    Whole(Vec<i64>),
    Real(Vec<f64>),
    Text(Vec<Vec<u8>>),
}

fn read_group(group: &dyn RowGroupReader, ops: &mut Vec<PipelineOp>) -> Result<()> {
    let whole = |name| match read_column(group, name)? {
        Column::Whole(values) => Ok(values),
        _ => Err(wrong_type(name, "whole numbers")),
    };
    let real = |name| match read_column(group, name)? {
        Column::Real(values) => Ok(values),
        _ => Err(wrong_type(name, "floating-point numbers")),
    };
    let kinds = match read_column(group, "optype")? {
        Column::Text(values) => values,
        _ => return Err(wrong_type("optype", "text")),
    };
    let small = ["dp_rank", "stage", "rank", "seq_id", "mc", "gmc"];
    let numbers = small.map(whole).into_iter().collect::<Result<Vec<_>>>()?;
    let (steps, starts, durations) = (whole("step")?, real("start_ts")?, real("duration")?);
    for (row, kind) in kinds.iter().enumerate() {
        let wrong = |column: usize| {
            let what = format!("row {row}: {} is {}", small[column], numbers[column][row]);
            Error::new(ErrorKind::Format, what)
        };
        let number = |column: usize| u32::try_from(numbers[column][row]).map_err(|_| wrong(column));
        let part = |column: usize| i32::try_from(numbers[column][row]).map_err(|_| wrong(column));
        let name = String::from_utf8_lossy(kind);
        let kind = PipelineKind::from_word(&name).ok_or_else(|| {
            Error::new(ErrorKind::Format, format!("row {row}: unknown optype {:?}", &*name))
        })?;
        ops.push(PipelineOp {
            replica: number(0)?,
            stage: number(1)?,
            rank: number(2)?,
            step: steps[row],
            kind,
            sequence: number(3)?,
            chunk: part(4)?,
            global_chunk: part(5)?,
            start: starts[row],
            duration: durations[row],
        });
    }
    Ok(())
}

fn wrong_type(name: &str, expected: &str) -> Error {
    Error::new(ErrorKind::Format, format!("column {name} is not {expected}"))
}

fn read_column(group: &dyn RowGroupReader, name: &str) -> Result<Column> {
    let columns = group.metadata().columns();
    let at = columns.iter().position(|column| column.column_path().string() == name).ok_or_else(|| {
        let what = format!("has no column {name}, so it is not a file of pipeline operations");
        Error::new(ErrorKind::Format, what)
    })?;
    let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
    let column = match group.get_column_reader(at).map_err(broken)? {
        ColumnReader::Int32ColumnReader(reader) => {
            Column::Whole(values(reader, rows, name)?.into_iter().map(i64::from).collect())
        }
        ColumnReader::Int64ColumnReader(reader) => Column::Whole(values(reader, rows, name)?),
        ColumnReader::FloatColumnReader(reader) => {
            Column::Real(values(reader, rows, name)?.into_iter().map(f64::from).collect())
        }
        ColumnReader::DoubleColumnReader(reader) => Column::Real(values(reader, rows, name)?),
        ColumnReader::ByteArrayColumnReader(reader) => {
            Column::Text(values(reader, rows, name)?.iter().map(|value| value.data().to_vec()).collect())
        }
        _ => return Err(wrong_type(name, "a number or text")),
    };
    Ok(column)
}

/// Reads `rows` values. A missing value is an error, because an operation needs a value in every column.
fn values<T: DataType>(mut reader: ColumnReaderImpl<T>, rows: usize, name: &str) -> Result<Vec<T::T>> {
    let (mut values, mut present) = (Vec::new(), Vec::new());
    loop {
        present.clear();
        let (read, ..) = reader.read_records(BATCH, Some(&mut present), None, &mut values).map_err(broken)?;
        if read == 0 {
            break;
        }
    }
    match values.len() == rows {
        true => Ok(values),
        false => {
            let what = format!("column {name} has {} values for {rows} rows", values.len());
            Err(Error::new(ErrorKind::Format, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_read_and_other_yaml_is_refused() {
        let layout =
            parse_layout("# job\ntrial_name: ST: 4\ndp_size: 2\npp_size: 4 # stages\nworld_size: 8\n");
        let expected = JobLayout { data_parallel: Some(2), stages: Some(4), sequence_parallel: None };
        assert_eq!(layout.unwrap(), expected);
        for (text, reason) in [
            ("dp_size: many", "line 1: expected a number above 0"),
            ("a: 1\ndp_size: 0", "line 2: expected a number above 0"),
            ("- dp_size", "line 1: expected `key: number`"),
            ("{dp_size: 2}", "line 1: expected `key: number`"),
        ] {
            assert_eq!(parse_layout(text).unwrap_err().to_string(), reason);
        }
    }
}

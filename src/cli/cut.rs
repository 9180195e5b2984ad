//! Tests how verbs read truncated recordings. A process leaves a truncated recording if it is killed while writing.
//! Verbs must read all complete rows, and must print correct remarks about the missing rest of the file. The tests find
//! the complete rows by the rows' lengths, and not with the reader under test.
//!
//! `GPUFLAME_CUTS=1 cargo test -p gpuflame-cli --bins cut::` truncates a recording of 100 KB at every byte, which takes
//! a few minutes. In CI, the test truncates the recording at only a few hundred positions.

use std::fs::{self, File};
use std::path::Path;

use gpuflame_explain::{Definitions, Explain};
use gpuflame_model::record::testing::each_row_of_cycle;
use gpuflame_model::record::{CheckpointMark, Chunk, Nanos, SumsWriter, Writer};
use gpuflame_offline::run::{ReadOptions, read};

const MIN_RECORDING_BYTES: usize = 100 << 10;
const HEADER_BYTES: usize = 16;
/// Size in bytes of a row's header, which consists of the row's tag and the row's length. `CRC_BYTES` is the size of
/// the checksum at the start of a chunk.
const ROW_HEADER_BYTES: usize = 5;
const CRC_BYTES: usize = 4;
const TAG_CHUNK: u8 = 25;
const TAG_MARK: u8 = 27;

/// A recording, and the number of launches that a reader must have read at each checkpoint mark.
struct Recording {
    bytes: Vec<u8>,
    marked: Vec<ExpectedAtMark>,
}

struct ExpectedAtMark {
    mark: CheckpointMark,
    launches: u64,
}

fn mark(turn: u32) -> CheckpointMark {
    let time = Nanos(1_000_000_000 * u64::from(turn) + 500_000_000);
    CheckpointMark { began: Nanos(0), time, interval_ms: 1000 + turn, open: u64::from(turn) * 3 }
}

/// Returns a recording as written by a process that records sums instead of rows.
fn sums_recording() -> Recording {
    let mut explain = Explain::default();
    let (mut definitions, mut written) = (Definitions::default(), SumsWriter::default());
    let (mut bytes, mut marked) = (Chunk::file_header().to_vec(), Vec::new());
    while bytes.len() < MIN_RECORDING_BYTES {
        let turn = marked.len() as u32;
        each_row_of_cycle(turn, &mut |row| explain.push(row, &mut ()));
        let mut chunk = Chunk::default();
        explain.write_definitions(&mut definitions, &mut chunk, usize::MAX);
        explain.write_sums(&[], &mut written, &mut chunk);
        chunk.mark(&mark(turn));
        bytes.extend(chunk.take());
        marked.push(ExpectedAtMark { mark: mark(turn), launches: explain.tally().launches.seen });
    }
    Recording { bytes, marked }
}

/// Returns a recording as written by a process that records rows.
fn rows_recording() -> Recording {
    let (mut explain, mut marked) = (Explain::default(), Vec::new());
    let mut writer = Writer::new(Vec::new()).unwrap();
    for turn in 0..=(MIN_RECORDING_BYTES / 4000) as u32 {
        each_row_of_cycle(turn, &mut |row| {
            writer.row(row).unwrap();
            explain.push(row, &mut ());
        });
        writer.mark(&mark(turn)).unwrap();
        marked.push(ExpectedAtMark { mark: mark(turn), launches: explain.tally().launches.seen });
    }
    Recording { bytes: writer.finish().unwrap(), marked }
}

fn length(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes[1..ROW_HEADER_BYTES].try_into().unwrap()) as usize
}

/// The complete rows of a truncated recording.
#[derive(Debug, Default)]
struct ValidPrefix {
    /// Number of rows. In this list, a chunk counts as one row in addition to the rows inside the chunk.
    rows: usize,
    marks: usize,
    end: usize,
}

fn walk(bytes: &[u8]) -> ValidPrefix {
    let mut walked = ValidPrefix { end: HEADER_BYTES, ..ValidPrefix::default() };
    while let Some(row) = bytes.get(walked.end..).filter(|rest| rest.len() >= ROW_HEADER_BYTES)
        && row.len() >= ROW_HEADER_BYTES + length(row)
    {
        let end = walked.end + ROW_HEADER_BYTES + length(row);
        let mut inner =
            if row[0] == TAG_CHUNK { walked.end + ROW_HEADER_BYTES + CRC_BYTES } else { walked.end };
        walked.rows += usize::from(row[0] == TAG_CHUNK);
        while inner < end {
            walked.rows += 1;
            walked.marks += usize::from(bytes[inner] == TAG_MARK);
            inner += ROW_HEADER_BYTES + length(&bytes[inner..]);
        }
        walked.end = end;
    }
    walked
}

/// Returns the expected remarks of a verb that reads the truncated recording.
fn remarks(bytes: &[u8], walked: &ValidPrefix, mark: Option<&CheckpointMark>) -> Vec<String> {
    let rest = &bytes[walked.end..];
    let cut = (!rest.is_empty()).then(|| {
        let whole = if rest.len() < ROW_HEADER_BYTES { "5 or more".to_owned() } else { (ROW_HEADER_BYTES + length(rest)).to_string() };
        format!(
            "record {} at byte {:#x} is cut short: {} of its {whole} bytes are there; the records before it are good, \
             the rest is lost",
            walked.rows + 1,
            walked.end,
            rest.len()
        )
    });
    let ended = match mark {
        Some(CheckpointMark { time, interval_ms, open, .. }) => Some(format!(
            "its process ended without its exit hooks, or is still running elsewhere, after {:.1} s or later; at most the last \
             {} s, and {open} activities that CUPTI still held, are missing, unless it printed that checkpoints stop",
            time.0 as f64 / 1e9,
            f64::from(*interval_ms) / 1e3
        )),
        None if cut.is_some() => None,
        None => Some(
            "its process was killed, or is still running: launches of the last second, and activities that CUPTI had not \
             handed over, are missing"
                .to_owned(),
        ),
    };
    [cut, ended].into_iter().flatten().collect()
}

/// Truncates the recording to smaller and smaller sizes. Rows must be read up to the end of the truncated file. Sums
/// must be read up to the last checkpoint mark in the truncated file.
fn assert_all_cuts(name: &str, recording: &Recording, are_sums: bool) {
    let Recording { bytes, marked } = recording;
    assert!(bytes.len() >= MIN_RECORDING_BYTES, "{}", bytes.len());
    let step = if std::env::var_os("GPUFLAME_CUTS").is_some() { 1 } else { 499 };
    let path = std::env::temp_dir().join(format!("gpuflame-cut-{name}-{}.gfr", std::process::id()));
    fs::write(&path, bytes).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let mut ends = Vec::new();
    while ends.last() != Some(&HEADER_BYTES) {
        ends.push(walk(&bytes[..ends.last().map_or(bytes.len(), |end| end - 1)]).end);
    }
    let is_near_an_end = |cut: usize| are_sums && ends.iter().any(|end| end.abs_diff(cut) < 2);
    let is_looked_at =
        |cut: &usize| cut.is_multiple_of(step) || cut + 40 > bytes.len() || is_near_an_end(*cut);
    for cut in (HEADER_BYTES..bytes.len()).rev().filter(is_looked_at) {
        file.set_len(cut as u64).unwrap();
        let walked = walk(&bytes[..cut]);
        let last = walked.marks.checked_sub(1).map(|at| &marked[at]);
        let run = read(&path, &ReadOptions::default()).unwrap();
        let told: Vec<_> = run.remarks().iter().map(|remark| without(&path, remark)).collect();
        assert_eq!(told, remarks(&bytes[..cut], &walked, last.map(|last| &last.mark)), "cut at {cut}");
        let (launches, known) = (run.ledger().tally.launches.seen, last.map_or(0, |last| last.launches));
        let next = marked.get(walked.marks).map_or(known, |next| next.launches);
        let most = if are_sums { known } else { next };
        assert!((known..=most).contains(&launches), "cut at {cut}: {launches} of {known} to {most}");
    }
    fs::remove_file(path).unwrap();
}

fn without<'a>(path: &Path, remark: &'a str) -> &'a str {
    let prefix = format!("{}: ", path.display());
    remark.strip_prefix(&prefix).unwrap_or(remark)
}

#[test]
fn truncated_sums_report_the_missing_part() {
    assert_all_cuts("sums", &sums_recording(), true);
}

#[test]
fn truncated_rows_report_the_missing_part() {
    assert_all_cuts("rows", &rows_recording(), false);
}

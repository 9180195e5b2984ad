//! Tests files of pipeline operations: the job in `docs/stragglers.md`, and files that cannot be read.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, FloatType, Int32Type, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::command::gpuflame;
use super::{assert_near, number, row, scratch, stragglers};

/// An operation, as (stage, kind, sequence number, start and end in seconds). In every operation, the data-parallel
/// rank and the step are 0.
type Op = (i32, &'static str, i32, f32, f32);

/// A job with two stages and two microbatches. The last stage takes twice as long as the first stage.
const TWO_STAGES: [Op; 20] = [
    (0, "forward-compute", 0, 0.0, 1.0),
    (0, "forward-compute", 1, 1.0, 2.0),
    (0, "forward-send", 0, 1.0, 1.5),
    (0, "forward-send", 1, 2.0, 4.0),
    (0, "backward-recv", 0, 1.0, 8.0),
    (0, "backward-recv", 1, 10.0, 14.0),
    (0, "backward-compute", 0, 8.0, 10.0),
    (0, "backward-compute", 1, 14.0, 16.0),
    (0, "optimizer-clip-main-grad", 0, 16.0, 16.5),
    (0, "optimizer", 0, 16.5, 17.5),
    (1, "forward-recv", 0, 0.0, 1.5),
    (1, "forward-recv", 1, 3.5, 4.0),
    (1, "forward-compute", 0, 1.5, 3.5),
    (1, "forward-compute", 1, 7.5, 9.5),
    (1, "backward-compute", 0, 3.5, 7.5),
    (1, "backward-compute", 1, 9.5, 13.5),
    (1, "backward-send", 0, 7.5, 8.0),
    (1, "backward-send", 1, 13.5, 14.0),
    (1, "optimizer-clip-main-grad", 0, 13.5, 16.5),
    (1, "optimizer", 0, 16.5, 17.5),
];

/// Index of a column that contains whole numbers, and a function that returns its value for an operation.
type Whole<'a> = (usize, &'a dyn Fn(&Op) -> i32);

/// Writes operations with the columns of ByteDance's files. `kind_column` is the name of the column that contains the
/// kind.
fn write(path: &Path, ops: &[Op], kind_column: &str) {
    let schema = format!(
        "message schema {{ required int32 dp_rank; required int32 stage; required int32 rank; required int64 step; \
         required binary {kind_column} (UTF8); required float start_ts; required float duration; \
         required int32 seq_id; required int32 mc; required int32 gmc; }}"
    );
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let is_compute = |op: &Op| op.1.ends_with("-compute");
    let chunk = |op: &Op| if is_compute(op) { 0 } else { -1 };
    let global_chunk = |op: &Op| if is_compute(op) { op.0 } else { -1 };
    let wholes: [Whole<'_>; 6] =
        [(0, &|_| 0), (1, &|op| op.0), (2, &|op| op.0), (7, &|op| op.2), (8, &chunk), (9, &global_chunk)];
    for at in 0..10 {
        let mut column = group.next_column().unwrap().unwrap();
        match at {
            3 => column.typed::<Int64Type>().write_batch(&vec![0; ops.len()], None, None),
            4 => {
                let kinds: Vec<_> = ops.iter().map(|op| ByteArray::from(op.1)).collect();
                column.typed::<ByteArrayType>().write_batch(&kinds, None, None)
            }
            5 | 6 => {
                let time = |op: &Op| if at == 5 { op.3 } else { op.4 - op.3 };
                let times: Vec<f32> = ops.iter().map(time).collect();
                column.typed::<FloatType>().write_batch(&times, None, None)
            }
            _ => {
                let get = wholes.iter().find(|column| column.0 == at).unwrap().1;
                let values: Vec<i32> = ops.iter().map(get).collect();
                column.typed::<Int32Type>().write_batch(&values, None, None)
            }
        }
        .unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn the_figures_of_the_documented_job_are_those_computed_by_hand() {
    let folder = scratch("by-hand");
    write(&folder.join("trace-two.parquet"), &TWO_STAGES, "optype");
    fs::write(folder.join("meta-two.yaml"), "trial_name: two\ndp_size: 1\ndsp_size: 1\npp_size: 2\n")
        .unwrap();
    let output = stragglers(&folder, &["trace-two.parquet"]);
    let whole = &output["slowdown"][0];
    for (key, expected) in
        [("measured_ns", 17.5e9), ("simulated_ns", 17.5e9), ("ideal_ns", 16e9), ("error_percent", 0.0)]
    {
        assert_near(key, number(whole, key), expected, 1.0);
    }
    assert_near("S", number(whole, "slowdown"), 1.09375, 1e-6);
    let last = row(&output, "shares", "evened_out", "last stage (Ms)");
    assert_near("saved", number(last, "saved_ns"), 3e9, 1.0);
    assert_near("Ms", number(last, "share_percent"), 200.0, 1e-3);
    assert_eq!(last["members"], "1");
    let text = gpuflame(&folder, ["stragglers", "trace-two.parquet"]).ok().stdout;
    let answer = "2 workers, 1 step: a step takes 17.500 s; with even durations 16.000 s, so S = 1.094.";
    assert_eq!(text.lines().next(), Some(answer));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn files_without_a_pipeline_get_one_line_with_the_reason() {
    let folder = scratch("refused");
    let refused = |name: &str, words: &[&str]| gpuflame(&folder, ["stragglers", name]).fails(1, words);
    write(&folder.join("column.parquet"), &TWO_STAGES, "kind");
    fs::write(folder.join("text.parquet"), "not parquet").unwrap();
    fs::create_dir(folder.join("folder.parquet")).unwrap();
    write(&folder.join("trace-layout.parquet"), &TWO_STAGES, "optype");
    fs::write(folder.join("meta-layout.yaml"), "pp_size: 4\n").unwrap();
    write(&folder.join("trace-yaml.parquet"), &TWO_STAGES, "optype");
    fs::write(folder.join("meta-yaml.yaml"), "dp_size: {}\n").unwrap();
    refused("column.parquet", &["no column optype"]);
    refused("text.parquet", &["text.parquet: cannot be read as parquet"]);
    refused("folder.parquet", &["is a folder"]);
    refused("none.parquet", &["none.parquet", "No such file"]);
    refused("trace-layout.parquet", &["has 2 stages, its `meta` file says 4"]);
    refused("trace-yaml.parquet", &["meta-yaml.yaml: line 1: expected a number above 0"]);
    let two = ["stragglers", "text.parquet", "column.parquet"];
    gpuflame(&folder, two).fails(2, &["name one file"]);
    fs::remove_dir_all(folder).unwrap();
}

/// For a single worker, and for a job without a slowdown, some figures are unknown. The command prints the known
/// figures, and the reason for each unknown figure.
#[test]
fn answers_that_the_data_does_not_support_are_withheld_with_the_reason() {
    let folder = scratch("withheld");
    let one: [Op; 4] = [
        (0, "forward-compute", 0, 0.0, 1.0),
        (0, "backward-compute", 0, 1.0, 3.0),
        (0, "optimizer-clip-main-grad", 0, 3.0, 3.5),
        (0, "optimizer", 0, 3.5, 4.0),
    ];
    write(&folder.join("trace-one.parquet"), &one, "optype");
    let output = stragglers(&folder, &["trace-one.parquet"]);
    assert_eq!(
        output["shares"].as_array().unwrap().len() + output["evened_out"].as_array().unwrap().len(),
        0
    );
    assert_eq!(row(&output, "withheld", "answer", "Ms")["why"], "the job has one stage");
    assert_eq!(row(&output, "withheld", "answer", "Mw")["why"], "the job has one worker");
    let why = row(&output, "withheld", "answer", "savings by worker and kind")["why"].as_str().unwrap();
    assert!(why.starts_with("S is 1.000; up to 1.03"), "{why}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn damaged_files_never_panic() {
    let folder = scratch("damaged");
    let file = folder.join("in.parquet");
    write(&file, &TWO_STAGES, "optype");
    let whole = fs::read(&file).unwrap();
    // In each turn, the test changes one byte at a random place. The random numbers are a linear congruential sequence.
    let mut random = 7_u64;
    for turn in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..=turn % 3 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (random >> 33) as usize % bytes.len();
            bytes[at] = (random >> 24) as u8;
        }
        fs::write(&file, &bytes).unwrap();
        let ran = gpuflame(&folder, ["stragglers", "in.parquet"]);
        assert!(matches!(ran.code, 0 | 1) && !ran.stderr.contains("panicked"), "turn {turn}: {ran:?}");
    }
    fs::remove_dir_all(folder).unwrap();
}

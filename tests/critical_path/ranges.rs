//! Tests `--range`, which prints the part of the path that is inside the ranges that the program named. The trace is
//! the example in docs/critical-path.md.

use serde_json::{Value, json};

use super::by_hand::two_kernels;
use super::handmade::{activity, kernel};
use super::output::{Trace, gpuflame, parts, read_json, spans, tables};
use gpuflame_model::record::{
    ContextFlags, ContextId, CorrelationId, Frame, LabelId, Launch, NameId, Nanos, RangeId, Row, ThreadId,
    WindowEdge, Writer,
};

fn range(trace: Trace, name: &str, (from, to): (u32, u32)) -> Trace {
    trace.add(json!({
        "ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 5, "ts": from, "dur": to - from,
    }))
}

/// ```text
/// path     0-10 call, -15 launch, -75 gemm, -80 gap, -120 relu, -130 return
/// load     0-12
/// compute    12-----40      70-----100
/// outer     5------------------90
/// late                                     200-300
/// ```
fn trace() -> Trace {
    let named = [
        ("load", (0, 12)),
        ("compute", (12, 40)),
        ("compute", (70, 100)),
        ("outer", (5, 90)),
        ("late", (200, 300)),
    ];
    named.into_iter().fold(two_kernels(), |trace, (name, span)| range(trace, name, span))
}

/// Returns the ranges as (start, duration, GPU, host, latency, name). Times are in us.
fn ranges(tables: &Value) -> Vec<(u64, u64, u64, u64, u64, &str)> {
    let rows = tables["ranges"].as_array().unwrap().iter();
    rows.map(|row| {
        let us = |key: &str| row[key].as_u64().unwrap() / 1_000;
        assert_eq!((&row["thread"], &row["unexplained_ns"]), (&json!(5), &json!(0)));
        let name = row["range"].as_str().unwrap();
        (us("start_ns"), us("duration_ns"), us("gpu_ns"), us("host_ns"), us("latency_ns"), name)
    })
    .collect()
}

fn sum_of(tables: &Value, table: &str) -> u64 {
    tables[table].as_array().unwrap().iter().map(|row| row["time_ns"].as_u64().unwrap()).sum()
}

#[test]
fn all_occurrences_of_a_range_are_summed_and_each_has_its_own_parts() {
    let tables = tables(trace(), "ranges-twice", &["--range", "compute"]);
    assert_eq!(
        spans(&tables),
        [
            (12, 3, "launch", "gemm"),
            (15, 25, "kernel", "gemm"),
            (70, 5, "kernel", "gemm"),
            (75, 5, "gap", "relu"),
            (80, 20, "kernel", "relu"),
        ]
    );
    assert_eq!(ranges(&tables), [(12, 28, 25, 0, 3, "compute"), (70, 30, 25, 0, 5, "compute")]);
    assert_eq!([sum_of(&tables, "path_classes"), sum_of(&tables, "path_names")], [58_000, 58_000]);
}

#[test]
fn time_in_several_matching_ranges_counts_once() {
    let tables = tables(trace(), "ranges-overlap", &["--range", "^(out|comp)"]);
    assert_eq!(
        ranges(&tables),
        [(5, 85, 70, 5, 10, "outer"), (12, 28, 25, 0, 3, "compute"), (70, 30, 25, 0, 5, "compute"),]
    );
    assert_eq!(sum_of(&tables, "path_classes"), 95_000, "from 5 to 100");
}

#[test]
fn the_reason_of_the_first_part_names_the_part_before_it_on_the_whole_path() {
    let tables = tables(range(two_kernels(), "last", (122, 128)), "ranges-reason", &["--range", "last"]);
    assert_eq!(parts(&tables), [(122, 6, "return", 6, "cudaStreamSynchronize")]);
    assert_eq!(tables["path"][0]["reason"], "the call had waited for relu");
}

#[test]
fn an_exact_name_takes_precedence_over_an_expression() {
    let steps = range(range(two_kernels(), "step#1", (0, 20)), "step#10", (20, 40));
    let tables = tables(steps, "ranges-exact", &["--range", "step#1"]);
    assert_eq!(ranges(&tables), [(0, 20, 5, 10, 5, "step#1")]);
}

#[test]
fn a_name_that_no_range_has_is_an_error_with_the_names() {
    let file = trace().write("ranges-unknown");
    let file = file.to_str().unwrap();
    for verb in ["critical-path", "deps"] {
        for (name, words) in [
            ("kompute", "it has `compute`, `late`, `load`, `outer`"),
            ("(", "it has `compute`, `late`, `load`, `outer`"),
            ("late", "its only range is outside the time of the path"),
        ] {
            let output = gpuflame(&[verb, file, "--range", name]);
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            assert!(stderr.contains(words) && stderr.lines().count() == 1, "{stderr}");
        }
    }
    let file = two_kernels().write("ranges-none");
    let output = gpuflame(&["critical-path", file.to_str().unwrap(), "--range", "x"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("it has no named ranges; name a part by --from and --to"), "{stderr}");
}

#[test]
fn deps_writes_the_calls_and_work_of_the_ranges() {
    let file = trace().write("ranges-deps");
    let file = file.to_str().unwrap();
    let names = |range: &str| -> Vec<String> {
        let deps = read_json(&["deps", file, "--range", range]);
        let nodes = deps["nodes"].as_array().unwrap().iter();
        nodes.map(|node| node["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("load"), ["cudaLaunchKernel"], "the first call is over at 10, and gemm begins at 15");
    assert_eq!(names("compute").len(), 4, "a launch from 20 to 30, both kernels, and the wait");
}

fn micros(micros: u64) -> Nanos {
    Nanos(1_760_000_000_000_000_000 + micros * 1_000)
}

/// Returns a recording of three launches of 10 us, at 0, 20 and 40 us. The last launch is outside the range. The three
/// kernels run for 5 us each, and begin at 12, 32 and 52 us.
fn recording() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let mut row = |row: Row<'_>| writer.row(&row).unwrap();
    row(Row::Label { id: LabelId(1), text: "cudaLaunchKernel" });
    row(Row::Name { id: NameId(1), text: "add" });
    row(Row::Range { id: RangeId(1), domain: "", text: "decode" });
    row(Row::Window { edge: WindowEdge::Open, time: micros(0) });
    let (inner, call) = (Frame::range(RangeId(1)), Frame::label(LabelId(1)));
    for (id, frames) in [(2, &[inner, call][..]), (3, &[call][..])] {
        row(Row::Context { id: ContextId(id), thread: ThreadId(9), flags: ContextFlags(0), frames });
    }
    for (id, context, time) in [(1, 2, 0), (2, 2, 20), (3, 3, 40)] {
        let correlation = CorrelationId(id);
        let (time, context) = (micros(time), ContextId(context));
        row(Row::Launch(Launch { time, duration: 10_000, correlation, within: correlation, context }));
    }
    for (id, start) in [(1, 12), (2, 32), (3, 52)] {
        row(Row::Activity(activity(id, (0, 7), micros(start), micros(start + 5), kernel(1))));
    }
    row(Row::Window { edge: WindowEdge::Close, time: micros(100) });
    writer.finish().unwrap()
}

#[test]
fn a_range_of_a_recording_lasts_from_its_first_call_to_its_last() {
    let file = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ranges.gfr");
    std::fs::write(&file, recording()).unwrap();
    let args = ["critical-path", file.to_str().unwrap(), "--range", "decode"];
    let tables = read_json(&args);
    let row = &tables["ranges"][0];
    assert_eq!(
        (&row["start_ns"], &row["duration_ns"], &row["thread"], &row["range"]),
        (&json!(0), &json!(30_000), &json!(9), &json!("decode"))
    );
    assert_eq!(tables["ranges"].as_array().unwrap().len(), 1);
    assert_eq!(sum_of(&tables, "path_classes"), 30_000);
}

//! Checks that the time between two CUDA calls on a thread is divided among the stacks that the thread had during that
//! time, if the file contains these stacks.

use gpuflame_model::record::{
    ContextFlags, ContextId, CorrelationId, Frame, HostCallSpan, LabelId, Launch, NameId, Nanos, Row,
    ThreadId, WindowEdge, Writer,
};
use serde_json::{Value, json};

use super::handmade::{activity, kernel};
use super::job_by_hand::{GATHER, REDUCE, late_to_gather};
use super::output::{Trace, read_json, spans, tables};
use super::real_traces::files;

fn slice(category: &str, name: &str, (from, to): (u32, u32)) -> Value {
    json!({
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": 5, "ts": from, "dur": to - from, "args": {},
    })
}

/// Returns a trace in which the thread loads a batch and copies it before it launches `relu`:
///
/// ```text
/// 10            60               90     100
/// | load_batch   | aten::copy_    |      |
///   12..60            cudaMalloc 65..75
/// ```
fn trace() -> Trace {
    Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("gemm", 1, 7, (15, 20))
        .add(slice("python_function", "train.py(3): load_batch", (12, 60)))
        .add(slice("cpu_op", "aten::copy_", (60, 90)))
        .call("cudaMalloc", 2, 5, (65, 75))
        .call("cudaLaunchKernel", 3, 5, (100, 110))
        .kernel("relu", 3, 7, (115, 125))
        .call("cudaStreamSynchronize", 4, 5, (112, 135))
        .sync(4, 7, (113, 125))
}

const BETWEEN: &str = "from cudaLaunchKernel to cudaLaunchKernel";
const PARTS: [(i64, u64, &str, &str); 10] = [
    (0, 10, "call", "cudaLaunchKernel"),
    (10, 2, "host", BETWEEN),
    (12, 48, "host", "train.py(3): load_batch"),
    (60, 5, "host", "aten::copy_"),
    (65, 10, "call", "cudaMalloc"),
    (75, 15, "host", "aten::copy_"),
    (90, 10, "host", BETWEEN),
    (100, 10, "call", "cudaLaunchKernel"),
    (110, 5, "launch", "relu"),
    (115, 10, "kernel", "relu"),
];

#[test]
fn functions_operators_and_calls_between_two_launches_are_parts() {
    let tables = tables(trace(), "host-stacks", &[]);
    let spans = spans(&tables);
    assert_eq!(spans[..PARTS.len()], PARTS);
    assert_eq!(spans[PARTS.len()..], [(125, 10, "return", "cudaStreamSynchronize")]);
    let functions: Vec<&Value> =
        tables["path"].as_array().unwrap().iter().map(|part| &part["function"]).collect();
    assert_eq!(*functions[2], "train.py(3): load_batch");
}

/// Rank 1 waits for rank 0 in the gather, and is late to the reduce because it loads a batch. The clock of rank 1 is
/// ahead by 7 us.
#[test]
fn the_path_of_a_job_names_the_functions_of_the_late_rank() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("host-stacks-job");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    late_to_gather().write("host-stacks-job/rank0");
    let at = |from: u32, to: u32| (from + 7, to + 7);
    Trace::default()
        .call("cudaLaunchKernel", 1, 5, at(0, 5))
        .kernel(GATHER, 1, 7, at(10, 45))
        .add(slice("python_function", "train.py(3): load_batch", at(52, 100)))
        .call("cudaLaunchKernel", 2, 5, at(101, 105))
        .kernel(REDUCE, 2, 7, at(110, 130))
        .call("cudaStreamSynchronize", 3, 5, at(106, 140))
        .sync(3, 7, at(107, 130))
        .write("host-stacks-job/rank1");
    let tables = read_json(&["critical-path", folder.to_str().unwrap(), "--list"]);
    let expected = [
        (0, 5, "call", "cudaLaunchKernel"),
        (5, 47, "host", BETWEEN),
        (52, 48, "host", "train.py(3): load_batch"),
        (100, 1, "host", BETWEEN),
        (101, 4, "call", "cudaLaunchKernel"),
        (105, 5, "launch", REDUCE),
    ];
    assert_eq!(spans(&tables)[..expected.len()], expected);
}

/// If a function is made 10 % faster, this saves a tenth of the function's time on the path. The time of
/// `cudaLaunchKernel` on the path is the first call (10 us) and the two gaps for which the file contains no name (2 and
/// 10 us). If the second call were faster, this would save nothing, because `relu` begins 15 us after the begin of its
/// launch call, as `gemm` does.
#[test]
fn causal_makes_functions_operators_and_calls_faster() {
    let file = trace().write("host-stacks-causal");
    let tables = read_json(&["causal", file.to_str().unwrap()]);
    let rows = tables["causal"].as_array().unwrap().iter();
    let saved: Vec<_> =
        rows.map(|row| (row["saved_ns"].as_u64().unwrap(), row["name"].as_str().unwrap())).collect();
    assert_eq!(
        saved,
        [
            (4_800, "train.py(3): load_batch"),
            (2_200, "cudaLaunchKernel"),
            (2_000, "aten::copy_"),
            (1_000, "relu"),
            (1_000, "cudaMalloc"),
        ]
    );
}

/// In a thread that only waits, the range `load` gets the same time on the path as in a thread that launches. Steps,
/// and the time between two slices, do not become named parts of the path.
#[test]
fn named_ranges_are_parts_in_threads_that_launch_nothing() {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 6, (0, 5))
        .kernel("gemm", 1, 7, (10, 50))
        .call("cudaStreamSynchronize", 2, 5, (2, 55))
        .sync(2, 7, (3, 50))
        .add(slice("user_annotation", "ProfilerStep#4", (55, 200)))
        .add(slice("user_annotation", "load", (70, 170)))
        .add(slice("cpu_op", "aten::stack", (100, 110)))
        .call("cudaStreamSynchronize", 3, 5, (180, 210))
        .sync(3, 7, (181, 182));
    let tables = tables(trace, "host-stacks-ranges", &[]);
    let between = "from cudaStreamSynchronize to cudaStreamSynchronize";
    let expected = [
        (50, 5, "return", "cudaStreamSynchronize"),
        (55, 15, "host", between),
        (70, 30, "host", "load"),
        (100, 10, "host", "aten::stack"),
        (110, 60, "host", "load"),
        (170, 10, "host", between),
        (180, 30, "call", "cudaStreamSynchronize"),
    ];
    let spans = spans(&tables);
    assert_eq!(spans[spans.len() - expected.len()..], expected);
}

/// A gpuflame recording contains the calls that allocate and free memory.
#[test]
fn a_recording_names_the_calls_that_free_memory() {
    let micros = |micros: u64| Nanos(1_760_000_000_000_000_000 + micros * 1_000);
    let mut writer = Writer::new(Vec::new()).unwrap();
    let mut row = |row: Row<'_>| writer.row(&row).unwrap();
    row(Row::Label { id: LabelId(1), text: "cudaLaunchKernel" });
    row(Row::Label { id: LabelId(2), text: "cudaFree" });
    row(Row::Name { id: NameId(1), text: "add" });
    row(Row::Window { edge: WindowEdge::Open, time: micros(0) });
    for (id, label) in [(2, 1), (3, 2)] {
        let frames = &[Frame::label(LabelId(label))];
        row(Row::Context { id: ContextId(id), thread: ThreadId(9), flags: ContextFlags(0), frames });
    }
    for (id, time) in [(1, 0), (2, 100)] {
        let (correlation, context) = (CorrelationId(id), ContextId(2));
        let time = micros(time);
        row(Row::Launch(Launch { time, duration: 10_000, correlation, within: correlation, context }));
    }
    row(Row::HostCallSpan(HostCallSpan { ended: micros(70), duration: 30_000, context: ContextId(3) }));
    for (id, start) in [(1, 12), (2, 112)] {
        row(Row::Activity(activity(id, (0, 7), micros(start), micros(start + 5), kernel(1))));
    }
    row(Row::Window { edge: WindowEdge::Close, time: micros(200) });
    let file = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("host-stacks.gfr");
    std::fs::write(&file, writer.finish().unwrap()).unwrap();
    let tables = read_json(&["critical-path", file.to_str().unwrap(), "--list"]);
    let expected = [
        (0, 10, "call", "cudaLaunchKernel"),
        (10, 30, "host", BETWEEN),
        (40, 30, "call", "cudaFree"),
        (70, 30, "host", BETWEEN),
        (100, 10, "call", "cudaLaunchKernel"),
        (110, 2, "launch", "add"),
        (112, 5, "kernel", "add"),
    ];
    assert_eq!(spans(&tables), expected);
}

/// This program has one thread, and none of its calls overlaps any GPU work that could be on the path. Therefore the
/// time of each API function on the path is the total duration of its calls in the file.
#[test]
fn calls_of_a_real_trace_have_the_times_of_the_file() {
    let Some(all) = files::real_traces("host-stacks-of-real-traces") else { return };
    let file = all.iter().find(|file| file.ends_with("simple_add.json.gz")).unwrap();
    let tables = read_json(&["critical-path", file.to_str().unwrap(), "-n", "0"]);
    let groups = tables["path_names"].as_array().unwrap().iter();
    let nanos = |name: &str| -> u64 {
        let of_name = groups.clone().filter(|row| row["name"] == name && row["class"] == "call");
        of_name.map(|row| row["time_ns"].as_u64().unwrap()).sum()
    };
    // Sums of the field `dur` in the trace file, in ns.
    assert_eq!(nanos("cudaFree"), 8_309_773_000);
    assert_eq!(nanos("cudaStreamCreateWithFlags"), 475_365_000);
}

//! Tests `convert --to chrome` on a trace that already has Chrome's format, and on a recording together with the
//! operators of a torch.profiler trace.

use std::fs;
use std::path::Path;

use crate::support::command::gpuflame;
use crate::support::{handmade, scratch};
use serde_json::{Value, json};

/// Converts a trace and returns the converted trace.
fn converted(folder: &Path, trace: &str) -> Value {
    fs::write(folder.join("in.json"), trace).unwrap();
    gpuflame(folder, ["convert", "in.json", "--to", "chrome", "-o", "out.json"]).ok();
    serde_json::from_slice(&fs::read(folder.join("out.json")).unwrap()).unwrap()
}

/// A trace as torch.profiler writes it, with every kind of trace event.
const KINETO: &str = r#"{
  "schemaVersion": 1, "baseTimeNanoseconds": 1790857026000000000, "distributedInfo": {"rank": 3},
  "traceEvents": [
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#5", "pid": 9, "tid": 9, "ts": 1.001, "dur": 99.000, "args": {"External id": 1}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 2.001, "dur": 40,
    "args": {"External id": 17, "Record function id": 4, "Input Dims": [[2, 3], []], "Fwd thread id": 1, "Ev Idx": 7}},
  {"ph": "s", "id": 5, "pid": 9, "tid": 9, "ts": 2.001, "cat": "fwdbwd", "name": "fwdbwd"},
  {"ph": "X", "cat": "python_function", "name": "model.py(3): forward", "pid": 9, "tid": 9, "ts": 1.5, "dur": 60, "args": {"Python id": 2}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 3, "dur": 5,
    "args": {"External id": 17, "cbid": 211, "correlation": 4000000007, "a new argument": {"x": [1.50, "é"]}}},
  {"ph": "s", "id": 4000000007, "pid": 9, "tid": 9, "ts": 3, "cat": "ac2g", "name": "ac2g"},
  {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 4887683272408.615, "dur": 20.001,
    "args": {"External id": 17, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 4000000007, "priority": -3}},
  {"ph": "f", "id": 4000000007, "pid": 0, "tid": 7, "ts": 4887683272408.615, "cat": "ac2g", "name": "ac2g", "bp": "e"},
  {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#5", "pid": 0, "tid": 7, "ts": 10, "dur": 20},
  {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 7, "ts": 11, "dur": 2, "args": {"correlation": 12}},
  {"ph": "C", "name": "bytes", "pid": 9, "ts": 4, "args": {"n": 5}},
  {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 100},
  {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "args": {"name": "python"}}
  ], "traceName": "a/b.json"
}"#;

#[test]
fn every_event_and_property_of_a_kineto_trace_is_kept_as_it_is() {
    let folder = scratch("copy");
    assert_eq!(converted(&folder, KINETO), serde_json::from_str::<Value>(KINETO).unwrap());
    let text = fs::read_to_string(folder.join("out.json")).unwrap();
    // If some times of the trace were converted to f64 and back, they would lose digits or get extra digits.
    assert!(text.contains("4887683272408.615") && text.contains("99.000") && text.contains("[1.50, \"é\"]"));
}

#[test]
fn a_copy_from_standard_input_equals_a_copy_of_the_file() {
    let folder = scratch("copy");
    converted(&folder, KINETO);
    gpuflame(&folder, ["convert", "in.json", "--to", "chrome", "-o", "-"]).ok();
    let piped = crate::support::command::gpuflame_with(
        &folder,
        ["convert", "-", "--to", "chrome"],
        KINETO.as_bytes(),
    );
    assert_eq!(piped.ok().stdout, fs::read_to_string(folder.join("out.json")).unwrap());
}

#[test]
fn a_truncated_trace_is_copied_up_to_its_last_complete_event() {
    let folder = scratch("copy");
    let cut = KINETO.find(r#"{"ph": "X", "cat": "cuda_sync""#).unwrap() + 20;
    fs::write(folder.join("cut.json"), &KINETO[..cut]).unwrap();
    gpuflame(&folder, ["convert", "cut.json", "--to", "chrome"])
        .fails(1, &["truncated at byte", "--accept-cut"]);
    let copied = gpuflame(&folder, ["--accept-cut", "convert", "cut.json", "--to", "chrome"]).ok();
    let copied: Value = serde_json::from_str(&copied.stdout).unwrap();
    let whole: Value = serde_json::from_str(KINETO).unwrap();
    assert_eq!(copied["traceEvents"].as_array().unwrap()[..], whole["traceEvents"].as_array().unwrap()[..9]);
}

#[test]
fn events_of_other_dialects_get_the_words_of_kineto_and_keep_their_arguments() {
    let folder = scratch("copy");
    let events = json!([
        {"ph": "X", "cat": "CudaRuntime", "name": "cudaLaunchKernel", "pid": 1, "tid": "12(C++)", "ts": 3, "dur": 5,
         "args": {"correlation id": 8, "start_time": "3.250 us", "end_time": "8.500 us"}},
        {"ph": "X", "cat": "GPU_Kernel", "name": "k", "pid": 0, "tid": 7, "ts": 20, "dur": 4,
         "args": {"correlationId": 8, "deviceId": 0, "streamId": 7, "registers": 32}},
        {"ph": "X", "cat": "Kernel", "name": "p", "pid": 0, "tid": 7, "ts": 30, "dur": 4,
         "args": {"correlation id": 9, "start_time": "30.125 us", "end_time": "34.250 us"}},
        {"ph": "X", "cat": "Operator", "name": "matmul", "pid": 1, "tid": "12(C++)", "ts": 2, "dur": 9, "args": {"shape": [2]}},
    ]);
    let copy = converted(&folder, &events.to_string());
    let expected = json!([
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": "12(C++)", "ts": 3, "dur": 5,
         "args": {"correlation": 8, "start_time": "3.250 us", "end_time": "8.500 us"}},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 20, "dur": 4,
         "args": {"correlation": 8, "device": 0, "stream": 7, "registers": 32}},
        {"ph": "X", "cat": "kernel", "name": "p", "pid": 0, "tid": 7, "ts": 30.125, "dur": 4.125,
         "args": {"correlation": 9, "start_time": "30.125 us", "end_time": "34.250 us"}},
        {"ph": "X", "cat": "cpu_op", "name": "matmul", "pid": 1, "tid": "12(C++)", "ts": 2, "dur": 9, "args": {"shape": [2]}},
    ]);
    assert_eq!(copy["traceEvents"], expected);
}

#[test]
fn arguments_of_changed_events_are_json_and_none_is_lost() {
    let folder = scratch("copy");
    let copy = converted(
        &folder,
        r#"[{"ph":"X","cat":"Kernel","name":"k","pid":0,"tid":7,"ts":10,"dur":3,"args":{"correlation":5,
        "correlation id":6,"a":-Infinity,"b":[NaN,-2.5e3],"c":-NaN,"d":"x","e":true}}]"#,
    );
    let expected = json!({"correlation": 5, "correlation id": 6, "a": "-Infinity", "b": ["NaN", -2.5e3], "c": "-NaN",
        "d": "x", "e": true, "device": 0, "stream": 7});
    let args = copy["traceEvents"][0]["args"].as_object().unwrap();
    for (key, value) in args {
        assert_eq!(*value, expected[key], "{key}");
    }
    let text = fs::read_to_string(folder.join("out.json")).unwrap();
    assert_eq!((text.matches("\"correlation\"").count(), text.matches("\"correlation id\"").count()), (1, 1));
}

/// The trace has two pairs of overlapping kernels, and flows connect these kernels with their launches. In the first
/// pair, both kernels begin at the same time. The kernels of the second pair are on a stream that has a name.
#[test]
fn flows_of_overlapping_work_end_where_their_own_work_is() {
    let folder = scratch("copy");
    let kernel = |id: u64, tid: &Value, ts: f64| {
        json!({"ph": "X", "cat": "kernel", "name": "k", "pid": "gpu", "tid": tid, "ts": ts, "dur": 5,
            "args": {"device": 0, "stream": 7, "correlation": id}})
    };
    let flow = |id: u64, tid: &Value, ts: f64| json!({"ph": "f", "bp": "e", "id": id, "pid": "gpu", "tid": tid, "ts": ts, "cat": "ac2g", "name": "ac2g"});
    let (number, text) = (json!(7), json!("stream 7 of rank 3"));
    let mut events = Vec::new();
    for (id, tid, ts) in [(1, &number, 10.5), (2, &number, 10.5), (3, &text, 50.0), (4, &text, 52.0)] {
        events.extend([kernel(id, tid, ts), flow(id, tid, ts)]);
    }
    let copy = converted(&folder, &json!({"traceEvents": events}).to_string());
    let events = copy["traceEvents"].as_array().unwrap();
    let tracks: Vec<&Value> = events.iter().map(|event| &event["tid"]).collect();
    let is_moved = |at: usize| tracks[at] != &number && tracks[at] != &text;
    assert_eq!([0, 1, 4, 5].map(is_moved), [false; 4], "{tracks:?}");
    assert_eq!([2, 3, 6, 7].map(is_moved), [true; 4], "{tracks:?}");
    assert_eq!((tracks[2], tracks[6]), (tracks[3], tracks[7]));
    let names: Vec<&str> = events[8..].iter().map(|event| event["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["stream 7 (overlapping)", "stream 7 of rank 3 (overlapping)"]);
}

/// Writes operators around the CUDA calls of the hand-made recording. The CUDA calls begin at 12, 14 and 16 us on
/// thread 100, and each lasts 3 us.
fn operators(folder: &Path) {
    let operator = |name: &str, thread: u32, ts: f64, dur: f64, id: u32| {
        json!({"ph": "X", "cat": "cpu_op", "name": name, "pid": 100, "tid": thread, "ts": ts, "dur": dur,
            "args": {"External id": id, "Record function id": id + 100}})
    };
    // The base time of the trace with the operators is 1 ms earlier than that of the recording.
    let events = [
        operator("aten::linear", 100, 1010.0, 8.0, 1),
        operator("aten::addmm", 100, 1011.5, 5.0, 2),
        operator("of another thread", 101, 1000.0, 500.0, 3),
    ];
    let trace = json!({"baseTimeNanoseconds": handmade::BASE - 1_000_000, "traceEvents": events});
    fs::write(folder.join("cpu.json"), trace.to_string()).unwrap();
}

#[test]
fn calls_and_their_gpu_work_get_the_external_id_of_the_innermost_operator() {
    let folder = scratch("operators");
    handmade::recording(&folder);
    operators(&folder);
    let flags =
        ["convert", "hand.gfr", "--to", "chrome", "--no-stacks", "--operators", "cpu.json", "-o", "out.json"];
    gpuflame(&folder, flags).ok();
    let trace: Value = serde_json::from_slice(&fs::read(folder.join("out.json")).unwrap()).unwrap();
    assert_eq!(trace["baseTimeNanoseconds"], handmade::BASE - 1_000_000);
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |kind: &str, id: u64| -> Vec<&Value> {
        events.iter().filter(|event| event["cat"] == kind && event["args"]["correlation"] == id).collect()
    };
    let call = of("cuda_runtime", 10)[0];
    // The base time of the recording is 1 ms later than that of the operators, and the call begins 12 us after the
    // recording's base time. Therefore the call is at 1012 us.
    assert_eq!((&call["ts"], &call["args"]["External id"]), (&json!(1012.0), &json!(2)), "{call}");
    assert!(call["args"].get("stack").is_none());
    // In the middle of the calls, at 13.5, 15.5 and 17.5 us, the innermost operators are addmm, addmm and linear.
    for (kind, id, operator) in
        [("kernel", 10, 2), ("gpu_memcpy", 11, 2), ("kernel", 12, 1), ("kernel", 13, 3)]
    {
        assert_eq!(of(kind, id)[0]["args"]["External id"], operator, "{id}");
    }
    // At 70 us no operator is open on thread 100, so the call gets no external id.
    assert!(of("cuda_runtime", 16)[0]["args"].get("External id").is_none());
    let copied: Vec<&Value> = events.iter().filter(|event| event["cat"] == "cpu_op").collect();
    assert_eq!(copied.len(), 3);
    assert_eq!(copied[1]["args"], json!({"External id": 2, "Record function id": 102}));
}

/// Writes a trace with one operator of 100 us. The operator's time `ts`, which is relative to `base`, is such that the
/// operator covers the calls of the recording.
fn one_operator(folder: &Path, base: &str, process: &Value, ts: f64) {
    let operator = json!({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": process, "tid": 100, "ts": ts,
        "dur": 100.0, "args": {"External id": 9}});
    let trace = format!("{{\"baseTimeNanoseconds\":{base},\"traceEvents\":[{operator}],\"gpuflame\":1}}");
    fs::write(folder.join("one.json"), trace).unwrap();
}

fn merged(folder: &Path) -> (Value, String) {
    let flags = ["convert", "hand.gfr", "--to", "chrome", "--operators", "one.json", "-o", "out.json"];
    let ran = gpuflame(folder, flags).ok();
    (serde_json::from_slice(&fs::read(folder.join("out.json")).unwrap()).unwrap(), ran.stderr)
}

#[test]
fn calls_before_the_base_of_the_operators_have_negative_times() {
    let folder = scratch("operators");
    handmade::recording(&folder);
    one_operator(&folder, &(handmade::BASE + 1_000_000).to_string(), &json!(100), -1010.0);
    let (trace, stderr) = merged(&folder);
    let events = trace["traceEvents"].as_array().unwrap();
    let call = |id: u64| {
        events
            .iter()
            .find(|event| event["cat"] == "cuda_runtime" && event["args"]["correlation"] == id)
            .unwrap()
    };
    // The call begins 12 us after the recording's base time, which is 1000 us before the base time of the operators.
    // Therefore the call is at -988 us.
    assert_eq!((&call(10)["ts"], &call(10)["args"]["External id"]), (&json!(-988.0), &json!(9)));
    assert_eq!((&call(11)["ts"], &call(16)["ts"]), (&json!(-986.0), &json!(-930.0)));
    assert!(!stderr.contains("no call is in an operator"), "{stderr}");
    // The output states the losses and the provenance of the recording. The trace already had losses and provenance
    // from an earlier merge; these are not in the output.
    assert!(trace["gpuflame"]["provenance"].is_array() && trace["gpuflame"]["lost"].is_object());
}

#[test]
fn operators_of_another_run_or_process_are_named_in_a_remark() {
    let folder = scratch("operators");
    handmade::recording(&folder);
    let hour = 3_600_000_000_000;
    for (base, process) in [
        (handmade::BASE, json!(101)),
        (handmade::BASE, json!("python 100")),
        (handmade::BASE - hour, json!(100)),
    ] {
        one_operator(&folder, &base.to_string(), &process, -10.0);
        let (_, stderr) = merged(&folder);
        let line = "no call is in an operator of one.json: is it of another run or process?";
        assert_eq!(stderr.matches(line).count(), 1, "{base} {process}: {stderr}");
    }
}

#[test]
fn a_base_of_the_operators_is_a_number_of_ns_in_whatever_form() {
    let folder = scratch("operators");
    handmade::recording(&folder);
    for base in [format!("\"{}\"", handmade::BASE), format!("{}.0", handmade::BASE)] {
        one_operator(&folder, &base, &json!(100), -10.0);
        let (trace, _) = merged(&folder);
        let events = trace["traceEvents"].as_array().unwrap();
        let call = events.iter().find(|event| event["cat"] == "cuda_runtime").unwrap();
        assert_eq!(call["args"]["External id"], 9, "{base}");
    }
    one_operator(&folder, "\"today\"", &json!(100), -10.0);
    gpuflame(&folder, ["convert", "hand.gfr", "--to", "chrome", "--operators", "one.json"])
        .fails(1, &["one.json", "baseTimeNanoseconds is", "today", "record the operators again"]);
}

#[test]
fn a_window_has_the_calls_that_began_in_it_and_their_work() {
    let folder = scratch("window");
    handmade::recording(&folder);
    let at = |micros: u64| handmade::BASE + micros * 1000;
    let window = format!("--window={},{}", at(12), at(12));
    let text = gpuflame(&folder, ["convert", "hand.gfr", "--to", "chrome", &window]).ok().stdout;
    let trace: Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let ids = |kind: &str| -> Vec<u64> {
        let of_kind = events.iter().filter(|event| event["cat"] == kind);
        of_kind.map(|event| event["args"]["correlation"].as_u64().unwrap()).collect()
    };
    assert_eq!((ids("cuda_runtime"), ids("kernel")), (vec![10], vec![10]));
    assert!(ids("gpu_memcpy").is_empty());
}

#[test]
fn flags_of_chrome_name_what_they_need() {
    let folder = scratch("operators");
    handmade::recording(&folder);
    operators(&folder);
    fs::write(folder.join("gpu.json"), KINETO).unwrap();
    for (args, code, words) in [
        (&["hand.gfr", "--to", "csv", "--no-stacks"][..], 2, &["--no-stacks", "chrome", "csv"][..]),
        (
            &["gpu.json", "--to", "chrome", "--operators", "cpu.json"],
            2,
            &["--operators", "recording", "gpu.json"],
        ),
        (&["hand.gfr", "--to", "chrome", "--operators", "gpu.json"], 1, &["gpu.json", "GPU work of its own"]),
        (&["hand.gfr", "--to", "chrome", "--operators", "hand.gfr"], 1, &["hand.gfr", "torch.profiler"]),
        (&["hand.gfr", "--to", "chrome", "--operators", "none.json"], 1, &["none.json"]),
    ] {
        let args = [&["convert"], args].concat();
        gpuflame(&folder, args).fails(code, words);
    }
}

//! Tests culprits of idle time, and the tracks of states in Perfetto's format. The program is small enough that a
//! person can check it.

use std::process::{Command, Output};

use serde_json::{Value, json};

#[path = "../support/perfetto_slices.rs"]
mod perfetto_slices;
#[path = "../support/small_trace.rs"]
mod small_trace;
use perfetto_slices::{Slice, slices_of};
use small_trace::Trace;

fn gpuflame(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpuflame")).arg("-q").args(args).output().unwrap()
}

fn tables(args: &[&str]) -> Value {
    let output = gpuflame(&[args, &["--format", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn python(trace: Trace, name: &str, (from, to): (u32, u32)) -> Trace {
    trace.add(json!({
        "ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": 5, "ts": from, "dur": to - from,
    }))
}

/// Returns a trace in which `gemm` runs on stream 7 from 15 to 75 us. Stream 20 waits for the CUDA event after `gemm`
/// and runs `relu`. Stream 20 is idle while the host is in the function `load`.
fn two_streams() -> Trace {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("gemm", 1, 7, (15, 75))
        .call("cudaEventRecord", 2, 5, (20, 22))
        .call("cudaStreamWaitEvent", 3, 5, (24, 26))
        .add(json!({
            "ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 20, "ts": 24, "dur": 2,
            "args": {
                "correlation": 3, "device": 0, "context": 1, "stream": 20, "cuda_sync_kind": "Stream Wait Event",
                "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2, "wait_on_cuda_event_id": 3,
            },
        }))
        .call("cudaLaunchKernel", 4, 5, (30, 34))
        .kernel("relu", 4, 20, (78, 100))
        .call("cudaLaunchKernel", 5, 5, (130, 134))
        .kernel("add", 5, 20, (140, 150));
    python(python(trace, "train.py(1): main", (0, 200)), "train.py(9): load", (105, 125))
}

#[test]
fn idle_time_is_charged_to_the_function_in_which_the_thread_was_late() {
    let file = two_streams().write("states-culprits");
    let tables = tables(&["states", file.to_str().unwrap(), "--culprits", "--intervals", "-n", "0"]);
    let rows = tables["idle_culprits"].as_array().unwrap();
    let row = |row: &Value| {
        let number = |key: &str| row[key].as_u64().unwrap();
        (
            number("stream"),
            number("time_ns") / 1_000,
            number("gaps"),
            row["stack"].as_str().unwrap().to_owned(),
        )
    };
    let main = "train.py(1): main";
    assert_eq!(
        rows.iter().map(row).collect::<Vec<_>>(),
        [
            (20, 20, 1, format!("{main};train.py(9): load")),
            // From 15 to 30 us the GPU is busy but stream 20 is idle. Therefore the launch itself is the cause of the
            // stream's idle time.
            (20, 15, 1, format!("{main};cudaLaunchKernel")),
            // This row counts the times from 100 to 105 us and from 125 to 130 us.
            (20, 10, 0, main.to_owned()),
        ]
    );
    // The share is 20 of the 135 us from 15 to 150 us.
    assert_eq!((rows[0]["share_percent"].as_f64().unwrap() * 10.0).round(), 148.0);
    let intervals = tables["intervals"].as_array().unwrap();
    let late: Vec<_> =
        intervals.iter().filter(|one| !one["culprit"].is_null()).map(|one| one["culprit"].clone()).collect();
    assert_eq!(late, [rows[1]["stack"].clone(), rows[0]["stack"].clone()]);
}

#[test]
fn the_culprits_of_the_only_stream_are_those_of_its_gpu() {
    let trace = Trace::default()
        .call("cudaLaunchKernel", 1, 5, (0, 10))
        .kernel("gemm", 1, 7, (15, 75))
        .call("cudaMalloc", 2, 5, (80, 110))
        .call("cudaLaunchKernel", 3, 5, (130, 134))
        .kernel("relu", 3, 7, (140, 150));
    let file = python(python(trace, "train.py(1): main", (0, 200)), "train.py(9): load", (112, 125))
        .write("states-one-stream");
    let file = file.to_str().unwrap();
    let sums = |tables: &Value, table: &str, time: &str| {
        let rows = tables[table].as_array().unwrap().iter();
        let rows = rows.filter(|row| row["cause"].is_null() || row["cause"] == "host_late");
        let mut rows: Vec<_> = rows
            .map(|row| {
                (row[time].as_u64().unwrap(), row["stack"].as_str().unwrap().to_owned(), row["gaps"].clone())
            })
            .collect();
        rows.sort_by(|a, b| (b.0, &a.1).cmp(&(a.0, &b.1)));
        rows
    };
    let states = sums(&tables(&["states", file, "--culprits"]), "idle_culprits", "time_ns");
    assert_eq!(states[0], (30_000, "train.py(1): main;cudaMalloc".to_owned(), json!(1)));
    assert_eq!(states.iter().map(|row| row.0).sum::<u64>(), 55_000, "from 75 to 130 us");
    assert_eq!(states, sums(&tables(&["top", file, "--by", "idle", "-n", "0"]), "idle", "total_ns"));
}

/// Converts the trace to Perfetto's format, and returns the output.
fn converted(file: &std::path::Path, flags: &[&str]) -> Vec<u8> {
    let out = file.with_extension("pftrace");
    let output =
        gpuflame(&[&["convert", file.to_str().unwrap(), "-o", out.to_str().unwrap()], flags].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(out).unwrap()
}

#[test]
fn perfetto_has_a_track_of_states_per_stream_with_flows_for_events() {
    let file = two_streams().write("states-tracks");
    let (with, without) = (converted(&file, &["--states"]), converted(&file, &[]));
    assert_eq!(with[..without.len()], without[..], "the rest of the file is the same");
    assert!(slices_of(&without, "GPU 0 stream 7").is_empty());
    let [first, second] = ["GPU 0 stream 7", "GPU 0 stream 20"].map(|track| slices_of(&with, track));
    // The window begins with `gemm`, which begins 15 us after the first call.
    let zero = first[0].start - 15_000;
    let spans = |slices: &[Slice]| -> Vec<(u64, u64, String)> {
        let us = |time: u64| (time - zero) / 1_000;
        slices.iter().map(|slice| (us(slice.start), us(slice.end), slice.title.clone())).collect()
    };
    let expected = |spans: &[(u64, u64, &str)]| -> Vec<(u64, u64, String)> {
        spans.iter().map(|(from, to, title)| (*from, *to, (*title).to_owned())).collect()
    };
    assert_eq!(spans(&first), expected(&[(15, 75, "running"), (75, 150, "finished")]));
    assert_eq!(
        spans(&second),
        expected(&[
            (15, 30, "idle: host late"),
            (30, 75, "waiting for event 3"),
            (75, 78, "pending: launch latency"),
            (78, 100, "running"),
            (100, 130, "idle: host late"),
            (130, 140, "pending: launch latency"),
            (140, 150, "running"),
        ])
    );
    assert_eq!((&*second[1].notes["event"], &*second[1].notes["work"]), ("3", "relu"));
    assert_eq!(second[4].notes["culprit"], "train.py(1): main;train.py(9): load");
    // The flow leads from the work before the CUDA event to the work that waited for the event.
    assert_eq!((first[0].flows.len(), &first[0].flows), (1, &second[3].ending_flows));
    let others = [&first[1], &second[0], &second[1], &second[2], &second[4], &second[5], &second[6]];
    assert!(others.iter().all(|slice| slice.flows.is_empty() && slice.ending_flows.is_empty()));
}

#[test]
fn states_and_the_critical_path_are_tracks_of_one_file() {
    let file = two_streams().write("states-and-path");
    let both = converted(&file, &["--states", "--critical-path"]);
    assert!(!slices_of(&both, "critical path").is_empty());
    assert_eq!(slices_of(&both, "GPU 0 stream 20").len(), 7);
}

#[test]
fn formats_without_tracks_refuse_states() {
    let file = two_streams().write("states-refused");
    let output = gpuflame(&["convert", file.to_str().unwrap(), "--to", "chrome", "--states"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--states: chrome has no tracks for states"), "{stderr}");
}

//! Runs the verbs that need single activities on randomly damaged traces of other tools. No verb may panic, regardless
//! of the trace's contents.
//!
//! `GPUFLAME_MUTATIONS=10000 cargo test --release -p gpuflame-cli --bins mutated_traces` takes some minutes; CI runs
//! only a few mutations. If a file makes a verb panic, the file is not deleted, and the test lists all such files at
//! the end.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde_json::{Value, json};

use super::mutated::{mutate, run_verbs};
use gpuflame_model::record::testing::Rng;

const VERBS: [&str; 17] = [
    "states in.trace --intervals --culprits -n 0 -o out",
    "states in.trace --from 1ns --to 1s --step 1ms --format json -o out",
    "states in.trace --as-hta -o out",
    "timeline in.trace -o out",
    "instructions in.trace -n 0 -o out",
    "instructions in.trace --by start --format jsonl -o out",
    "critical-path in.trace --list -n 0 -o out --picture out-path.svg",
    "critical-path in.trace --as-hta -o out",
    "deps in.trace -o out.json",
    "replay in.trace --check -o out --schedule out-times.csv",
    "replay in.trace --model --format json -o out",
    "what-if in.trace --scale .=0.5 --launch-ns 100 --graphs --streams +1 -o out",
    "what-if in.trace --no-sync -o out",
    "causal in.trace -o out",
    "convert in.trace --to perfetto -o out",
    "convert in.trace --to perfetto --critical-path --states -o out",
    "convert in.trace --to sbt -o out",
];

/// Returns a trace event with a duration. The times of the event are in us.
fn slice(category: &str, name: &str, (pid, tid): (u32, u32), (from, to): (u32, u32), args: Value) -> Value {
    json!({ "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": from, "dur": to - from, "args": args })
}

fn call(name: &str, id: u32, thread: u32, times: (u32, u32)) -> Value {
    slice("cuda_runtime", name, (1, thread), times, json!({ "correlation": id, "External id": 1 }))
}

fn work(category: &str, name: &str, id: u32, (device, stream): (u32, u32), times: (u32, u32)) -> Value {
    let args = json!({ "correlation": id, "device": device, "context": 1, "stream": stream, "bytes": 4096 });
    slice(category, name, (device, stream), times, args)
}

fn wait(kind: &str, id: u32, stream: u32, times: (u32, u32), record: i32) -> Value {
    let args = json!({
        "correlation": id, "device": 0, "context": 1, "stream": stream, "cuda_sync_kind": kind,
        "wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": record, "wait_on_cuda_event_id": 3,
    });
    slice("cuda_sync", kind, (0, stream), times, args)
}

/// Returns the trace event of a node of the CUDA graph that the call with correlation id 9 launched.
fn node(category: &str, name: &str, id: u32, lane: u32, times: (u32, u32)) -> Value {
    let args = json!({
        "correlation": 9, "device": 0, "context": 1, "stream": lane, "original_stream": 7, "graph id": 3,
        "graph node id": id,
    });
    slice(category, name, (0, lane), times, args)
}

fn flow(phase: &str, id: u64, (pid, tid): (u32, u32), time: u32) -> Value {
    json!({ "ph": phase, "cat": "ac2g", "name": "ac2g", "id": id, "pid": pid, "tid": tid, "ts": time })
}

/// Returns the events of a trace with two threads, two GPUs, three streams, a CUDA event, a CUDA graph with an edge,
/// and waits of the host and of a stream.
fn trace() -> Vec<Value> {
    vec![
        slice("user_annotation", "ProfilerStep#1", (1, 5), (0, 300), json!({})),
        slice("python_function", "train.py(3): step", (1, 5), (0, 290), json!({ "Python id": 1 })),
        slice("cpu_op", "aten::mm", (1, 5), (2, 20), json!({ "External id": 1, "Record function id": 7 })),
        call("cudaLaunchKernel", 1, 5, (5, 10)),
        work("kernel", "gemm", 1, (0, 7), (15, 75)),
        flow("s", 1, (1, 5), 5),
        flow("f", 1, (0, 7), 15),
        call("cudaEventRecord", 2, 5, (20, 22)),
        call("cudaStreamWaitEvent", 3, 5, (24, 26)),
        wait("Stream Wait Event", 3, 20, (24, 26), 2),
        call("cudaMemcpyAsync", 4, 5, (30, 34)),
        work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 4, (0, 20), (76, 90)),
        call("cudaLaunchKernel", 5, 6, (30, 36)),
        work("kernel", "ncclDevKernel_AllReduce", 5, (1, 7), (40, 120)),
        call("cudaMemsetAsync", 6, 6, (50, 52)),
        work("gpu_memset", "Memset (Device)", 6, (1, 7), (121, 122)),
        call("cudaEventSynchronize", 7, 6, (60, 124)),
        wait("Event Sync", 7, 7, (61, 122), 2),
        call("cudaStreamSynchronize", 8, 5, (95, 140)),
        wait("Stream Sync", 8, 7, (96, 139), -1),
        call("cudaGraphLaunch", 9, 5, (150, 160)),
        node("kernel", "relu", 1, 501, (165, 185)),
        node("graph_host_node", "HostNode: log", 2, 502, (185, 195)),
        node("kernel", "last", 3, 503, (195, 215)),
        flow("s", 1 << 40, (0, 501), 185),
        flow("f", 1 << 40, (0, 502), 185),
        flow("s", (1 << 40) + 1, (0, 502), 195),
        flow("f", (1 << 40) + 1, (0, 503), 195),
        call("cudaDeviceSynchronize", 10, 5, (220, 280)),
        wait("Context Sync", 10, 7, (221, 279), -1),
    ]
}

/// Returns an unusual value, which replaces a number or text of the trace.
fn odd_value(rng: &mut Rng) -> Value {
    match rng.below(14) {
        0 => json!(-1),
        1 => json!(u32::MAX),
        2 => json!(u64::MAX),
        3 => json!(i64::MAX),
        4 => json!(i64::MIN),
        5 => json!(1e18),
        6 => json!("x"),
        7 => Value::Null,
        8 => json!(9_223_372_036_854_775.5),
        9 => json!(rng.below(12)),
        10 => json!(["Stream Wait Event", "cudaGraphLaunch", "cudaMalloc"][rng.below(3) as usize]),
        _ => json!(rng.below(400)),
    }
}

/// Damages trace events at random: changes or removes values, removes or repeats events, and changes the events' order.
fn damage(events: &mut Vec<Value>, rng: &mut Rng) {
    for _ in 0..=rng.below(8) {
        if events.is_empty() {
            return;
        }
        let at = rng.below(events.len() as u64) as usize;
        match rng.below(8) {
            0 => drop(events.remove(at)),
            1 => {
                let copy = events[at].clone();
                events.insert(rng.below(events.len() as u64) as usize, copy);
            }
            2 => {
                let other = rng.below(events.len() as u64) as usize;
                events.swap(at, other);
            }
            _ => {
                let in_args = rng.below(2) == 0;
                let event = &mut events[at];
                let object = match in_args && event["args"].is_object() {
                    true => event["args"].as_object_mut(),
                    false => event.as_object_mut(),
                };
                let Some(object) = object.filter(|object| !object.is_empty()) else { continue };
                let key = object.keys().nth(rng.below(object.len() as u64) as usize).cloned().unwrap();
                if rng.below(6) == 0 {
                    object.remove(&key);
                } else {
                    object.insert(key, odd_value(rng));
                }
            }
        }
    }
}

/// Returns the trace, converted to the format `word` by `gpuflame convert`.
fn converted(folder: &Path, word: &str) -> Vec<u8> {
    fs::write(folder.join("in.trace"), json!({ "traceEvents": trace() }).to_string()).unwrap();
    run_verbs(folder, &[&format!("convert in.trace --to {word} -o out")]);
    fs::read(folder.join("out")).unwrap()
}

#[test]
fn no_verb_panics_on_a_damaged_trace() {
    let turns = std::env::var("GPUFLAME_MUTATIONS").map_or(60, |text| text.parse().unwrap());
    let folder = std::env::temp_dir().join(format!("gpuflame-mutated-traces-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let seeds = [converted(&folder, "sbt"), converted(&folder, "cupti-text")];
    let mut panicked = Vec::new();
    for turn in 0..turns {
        let mut rng = Rng::new(turn + 1);
        let bytes = match (turn / 2) as usize % 4 {
            at @ (0 | 1) if turn % 2 == 1 => {
                let mut bytes = seeds[at].clone();
                mutate(&mut bytes, &mut rng);
                bytes
            }
            _ => {
                let mut events = trace();
                damage(&mut events, &mut rng);
                json!({ "traceEvents": events }).to_string().into_bytes()
            }
        };
        fs::write(folder.join("in.trace"), &bytes).unwrap();
        if catch_unwind(AssertUnwindSafe(|| run_verbs(&folder, &VERBS))).is_err() {
            panicked.push(folder.join(format!("turn-{turn}.trace")));
            fs::write(panicked.last().unwrap(), &bytes).unwrap();
        }
    }
    assert!(panicked.is_empty(), "{panicked:?}");
    fs::remove_dir_all(folder).unwrap();
}

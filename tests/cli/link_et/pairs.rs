//! Writes hand-made PyTorch execution traces and Kineto traces for the tests.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// Returns a node of an execution trace of version 1.1.0.
pub(crate) fn node(id: u64, name: &str, parent: u64, rf_id: u64, tid: u64, values: Value) -> Value {
    let attribute = |name: &str, value: Value| json!({ "name": name, "type": "uint64", "value": value });
    json!({
        "id": id, "name": name, "ctrl_deps": parent,
        "inputs": { "values": values, "shapes": [], "types": [] },
        "outputs": { "values": [], "shapes": [], "types": [] },
        "attrs": [
            attribute("rf_id", rf_id.into()), attribute("fw_parent", 0.into()), attribute("seq_id", (-1).into()),
            attribute("scope", 0.into()), attribute("tid", tid.into()), attribute("fw_tid", 0.into()),
            attribute("op_schema", "".into()),
        ],
    })
}

/// Returns an execution trace of process 77. The nodes 1, 2 and 3 of the execution trace are the roots of the process
/// and of two threads.
pub(crate) fn execution_trace(nodes: &[Value]) -> Value {
    let roots = [(1, "process", 1), (2, "thread", 1), (3, "thread", 1)];
    let roots = roots.map(|(id, name, parent)| {
        node(id, &format!("[pytorch|profiler|execution_trace|{name}]"), parent, 0, id - 1, json!([]))
    });
    let nodes = [&roots[..], nodes].concat();
    json!({
        "schema": "1.1.0-chakra.0.0.4", "pid": 77, "time": "2026-01-02 03:04:05", "start_ts": 5, "finish_ts": 9,
        "nodes": nodes,
    })
}

/// Returns a slice of a Kineto trace. The times of the slice are in us.
pub(crate) fn slice(category: &str, name: &str, tid: u64, ts: f64, dur: f64, args: Value) -> Value {
    json!({ "ph": "X", "cat": category, "name": name, "pid": 77, "tid": tid, "ts": ts, "dur": dur, "args": args })
}

/// Returns the trace event of an operator in a Kineto trace.
pub(crate) fn op(name: &str, rf_id: u64, tid: u64, ts: f64, dur: f64) -> Value {
    slice("cpu_op", name, tid, ts, dur, json!({ "External id": rf_id + 1000, "Record function id": rf_id }))
}

pub(crate) fn call(name: &str, correlation: u64, tid: u64, ts: f64, dur: f64) -> Value {
    slice("cuda_runtime", name, tid, ts, dur, json!({ "correlation": correlation, "cbid": 211 }))
}

/// Returns the trace event of a kernel, copy or fill.
pub(crate) fn work(category: &str, name: &str, correlation: u64, stream: u64, ts: f64, dur: f64) -> Value {
    let args = json!({ "correlation": correlation, "device": 0, "stream": stream });
    json!({ "ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args })
}

/// Writes the execution trace and the Kineto trace of a training step. The step has operators of two threads, a
/// collective on a separate stream that waits for the compute stream, a wait of the host for that separate stream, and
/// a launch outside of operators.
///
/// | node | name | time in us | launches |
/// |---|---|---|---|
/// | 10 | aten::linear | 100 to 150 | |
/// | 11 | aten::mm, in 10 | 110 to 140 | gemm, 30.5 us |
/// | 12 | aten::relu | 200 to 230 | relu, 4.501 us; a fill, 0.3 us |
/// | 20 | MmBackward0, on the second thread | 300 to 340 | mm_backward, 10 us |
/// | 13 | c10d::allreduce_ | 400 to 460 | |
/// | 14 | record_param_comms, in 13 | 410 to 450 | all-reduce on stream 20, 70 us |
/// | 15 | aten::item, after a wait for stream 20 | 520 to 530 | |
/// | | none | | raw, 1 us |
pub(crate) fn training_step(folder: &Path) {
    let tensor = json!([[[1, 2, 0, 1000, 4, "cuda:0"]], 151, "allreduce"]);
    let nodes = [
        node(11, "aten::mm", 10, 101, 1, json!([[5, 6, 0, 8, 4, "cuda:0"]])),
        node(10, "aten::linear", 2, 100, 1, json!([])),
        node(12, "aten::relu", 2, 102, 1, json!([])),
        node(20, "MmBackward0", 3, 103, 2, json!([])),
        node(13, "c10d::allreduce_", 2, 104, 1, json!([])),
        node(14, "record_param_comms", 13, 105, 1, tensor),
        node(15, "aten::item", 2, 106, 1, json!([])),
    ];
    let mut collective = work("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 7, 20, 430.0, 70.0);
    collective["args"]["Process Group Name"] = "default_pg".into();
    let wait = json!({
        "stream": 20, "correlation": 6, "device": 0, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 5
    });
    let host_wait = json!({ "stream": 20, "correlation": 8, "device": 0 });
    let events = [
        op("aten::linear", 100, 77, 100.0, 50.0),
        op("aten::mm", 101, 77, 110.0, 30.0),
        call("cudaLaunchKernel", 1, 77, 120.0, 5.0),
        op("aten::relu", 102, 77, 200.0, 30.0),
        call("cudaLaunchKernel", 2, 77, 210.0, 1.0),
        call("cudaMemsetAsync", 3, 77, 212.0, 1.0),
        op("MmBackward0", 103, 78, 300.0, 40.0),
        call("cudaLaunchKernel", 4, 78, 310.0, 1.0),
        op("c10d::allreduce_", 104, 77, 400.0, 60.0),
        op("record_param_comms", 105, 77, 410.0, 40.0),
        call("cudaEventRecord", 5, 77, 412.0, 1.0),
        call("cudaStreamWaitEvent", 6, 77, 414.0, 1.0),
        call("cudaLaunchKernelExC", 7, 77, 420.0, 1.0),
        call("cudaStreamSynchronize", 8, 77, 470.0, 40.0),
        op("aten::item", 106, 77, 520.0, 10.0),
        call("cudaLaunchKernel", 9, 77, 540.0, 1.0),
        work("kernel", "gemm", 1, 7, 130.25, 30.5),
        work("kernel", "relu", 2, 7, 220.5, 4.501),
        work("gpu_memset", "Memset (Device)", 3, 7, 226.0, 0.3),
        work("kernel", "mm_backward", 4, 7, 320.0, 10.0),
        collective,
        slice("cuda_sync", "Stream Wait Event", 20, 414.0, 1.0, wait),
        slice("cuda_sync", "Stream Synchronize", 20, 470.0, 40.0, host_wait),
        work("kernel", "raw", 9, 7, 545.0, 1.0),
    ];
    write(folder, "pytorch_et_step.json", &execution_trace(&nodes));
    write(folder, "kineto_step.json", &json!({ "traceEvents": events }));
}

pub(crate) fn write(folder: &Path, name: &str, value: &Value) {
    fs::write(folder.join(name), value.to_string()).unwrap();
}

//! Tests that the importers find the launch of GPU work even if correlation ids are missing, repeated or shared by
//! several processes. If the launch of GPU work is unknown, the GPU work is shown without a launch, and a remark
//! reports this. Expected stacks and times were worked out by hand.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::command::{Ran, gpuflame};
use crate::support::scratch;

/// Returns a complete event of `dur` us.
fn event(
    category: &str,
    name: &str,
    (process, thread): (Value, Value),
    ts: u64,
    dur: u64,
    args: Value,
) -> Value {
    json!({"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": ts, "dur": dur, "args": args})
}

fn operator(name: &str, process: impl Into<Value>, ts: u64, dur: u64) -> Value {
    event("cpu_op", name, (process.into(), json!(1)), ts, dur, json!({}))
}

fn launch(process: impl Into<Value>, ts: u64, args: Value) -> Value {
    event("cuda_runtime", "cudaLaunchKernel", (process.into(), json!(1)), ts, 2, args)
}

/// Returns a kernel of 10 us on stream 7.
fn kernel(process: impl Into<Value>, ts: u64, args: Value) -> Value {
    event("kernel", "k", (process.into(), json!(7)), ts, 10, args)
}

/// Returns an event that starts or ends a flow (an arrow between two slices).
fn flow(phase: &str, id: impl Into<Value>, process: impl Into<Value>, thread: u64, ts: u64) -> Value {
    json!({"ph": phase, "cat": "ac2g", "name": "ac2g", "id": id.into(), "pid": process.into(), "tid": thread,
        "ts": ts, "bp": "e"})
}

fn file(name: &str, events: &[Value]) -> (PathBuf, &'static str) {
    let folder = scratch(name);
    fs::write(folder.join("trace.json"), json!({ "traceEvents": events }).to_string()).unwrap();
    (folder, "trace.json")
}

fn folded(name: &str, events: &[Value]) -> Ran {
    let (folder, trace) = file(name, events);
    gpuflame(&folder, ["flamegraph", trace]).ok()
}

#[test]
fn ranks_merged_into_one_file_keep_their_own_launches_and_gpus() {
    for (call, gpu) in [
        (["[TP00] 83", "[TP01] 83"], ["[TP00] 0", "[TP01] 0"]),
        (["rank0: 83", "rank1: 83"], ["rank0: GPU 0", "rank1: GPU 0"]),
        (["83@r0", "84@r1"], ["0@r0", "0@r1"]),
        (["rank0", "rank1"], ["rank0", "rank1"]),
    ] {
        let mut events = Vec::new();
        for rank in 0..2 {
            events.push(operator(&format!("step{rank}"), call[rank], 0, 8));
            events.push(launch(call[rank], 2, json!({"correlation": 1})));
            events.push(kernel(gpu[rank], 10, json!({"correlation": 1, "device": 0, "stream": 7})));
        }
        let ran = folded("merged", &events);
        assert_eq!(
            ran.stdout,
            "step0;cudaLaunchKernel;[GPU0_Kernel]k 10000\nstep1;cudaLaunchKernel;[GPU1_Kernel]k 10000\n",
            "{call:?}"
        );
        assert!(ran.stderr.contains("GPU 1 is GPU 0 of"), "{}", ran.stderr);
    }
}

#[test]
fn launches_before_the_trace_are_known_by_the_ids_of_their_own_rank() {
    let mut events = Vec::new();
    for (rank, first) in [(0, 1), (1, 1000)] {
        let (process, gpu) = (format!("[TP{rank}] 83"), format!("[TP{rank}] 0"));
        let on_gpu = |id: u64| json!({"correlation": id, "device": 0, "stream": 7});
        events.push(launch(process, 2, json!({"correlation": first})));
        events.push(kernel(gpu.clone(), 10, on_gpu(first)));
        // The launch of this kernel is not in the trace. The kernel's correlation id is below all ids of rank 1, but
        // not below all ids of rank 0.
        events.push(kernel(gpu, 40, on_gpu(500)));
    }
    assert_eq!(
        folded("merged-before", &events).stdout,
        "[launched before recording];[GPU1_Kernel]k 10000\n\
         [no launch stack];[GPU0_Kernel]k 10000\n\
         cudaLaunchKernel;[GPU0_Kernel]k 10000\n\
         cudaLaunchKernel;[GPU1_Kernel]k 10000\n"
    );
}

/// Returns the events of two processes that use the same correlation id. Each process has one kernel on its own GPU.
fn two_processes() -> Vec<Value> {
    vec![
        operator("A", 11, 0, 8),
        launch(11, 2, json!({"correlation": 1})),
        operator("B", 22, 4, 8),
        launch(22, 6, json!({"correlation": 1})),
        kernel(0, 20, json!({"correlation": 1, "device": 0, "stream": 7})),
        kernel(1, 21, json!({"correlation": 1, "device": 1, "stream": 7})),
    ]
}

#[test]
fn an_id_of_two_processes_is_resolved_by_flows_and_is_ambiguous_without() {
    let mut events = two_processes();
    let ran = folded("ambiguous", &events);
    assert_eq!(
        ran.stdout,
        "[no launch stack];[GPU0_Kernel]k 10000\n[no launch stack];[GPU1_Kernel]k 10000\n"
    );
    assert!(
        ran.stderr.contains("2 GPU operations have correlation ids that several calls share"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("0 were launched before the trace began"), "{}", ran.stderr);
    let (folder, trace) = file("ambiguous", &events);
    let check = gpuflame(&folder, ["check", trace]).ok().stdout;
    let at_end = check.lines().find(|line| line.contains("the last kernel launch has an activity")).unwrap();
    assert!(at_end.starts_with("ok"), "the recording did not end too early: {at_end}");
    // Flows may come before their events in the file, and the ids of flows may be texts.
    for ids in [[json!(101), json!(102)], [json!("0x1f"), json!("launch 2")]] {
        let [a, b] = ids;
        let mut with_flows = vec![flow("s", a.clone(), 11, 1, 2), flow("f", a, 0, 7, 20)];
        with_flows.extend(two_processes());
        with_flows.extend([flow("s", b.clone(), 22, 1, 6), flow("f", b, 1, 7, 21)]);
        let ran = folded("flows", &with_flows);
        assert_eq!(
            ran.stdout,
            "A;cudaLaunchKernel;[GPU0_Kernel]k 10000\nB;cudaLaunchKernel;[GPU1_Kernel]k 10000\n"
        );
    }
    // A kernel that began before process B launched anything must belong to process A.
    events[4]["ts"] = json!(5);
    let stdout = folded("causal", &events).stdout;
    assert_eq!(stdout, "A;cudaLaunchKernel;[GPU0_Kernel]k 10000\n[no launch stack];[GPU1_Kernel]k 10000\n");
}

#[test]
fn an_id_shared_with_a_call_that_starts_no_work_belongs_to_the_launch() {
    for other in ["cudaEventRecord", "cudaDeviceGetAttribute", "hipStreamSynchronize", "cudaMemsetAsync"] {
        let events = [
            operator("aten::mm", 1, 0, 8),
            launch(1, 2, json!({"correlation": 5})),
            operator("record", 1, 9, 3),
            event("cuda_runtime", other, (json!(1), json!(1)), 10, 1, json!({"correlation": 5})),
            kernel(0, 20, json!({"correlation": 5, "device": 0, "stream": 7})),
        ];
        let stdout = folded("kinds", &events).stdout;
        assert_eq!(stdout, "aten::mm;cudaLaunchKernel;[GPU_Kernel]k 10000\n", "{other}");
    }
}

#[test]
fn a_runtime_call_and_the_driver_call_in_it_with_one_id_are_one_launch() {
    let mut outer = launch(1, 2, json!({"correlation": 5}));
    outer["dur"] = json!(6);
    let inner = event("cuda_driver", "cuLaunchKernel", (json!(1), json!(1)), 3, 4, json!({"correlation": 5}));
    let work = kernel(0, 20, json!({"correlation": 5, "device": 0, "stream": 7}));
    let stdout = folded("nested-calls", &[outer, inner, work]).stdout;
    assert_eq!(stdout, "cudaLaunchKernel;cuLaunchKernel;[GPU_Kernel]k 10000\n");
}

#[test]
fn work_without_a_correlation_id_is_joined_by_flows_and_external_ids() {
    let bound = |id: Value, key: &str, mut event: Value| {
        event["bind_id"] = id;
        event[key] = json!(true);
        event
    };
    let place = json!({"device": 0, "stream": 7});
    let stack = "aten::mm;cudaLaunchKernel;[GPU_Kernel]k 10000\n";
    let traces = [
        // A flow of category `ac2g` starts and ends exactly where the call and the kernel begin.
        vec![
            operator("aten::mm", 1, 0, 8),
            launch(1, 2, json!({})),
            flow("s", 9, 1, 1, 2),
            kernel(0, 20, place.clone()),
            flow("f", 9, 0, 7, 20),
        ],
        // The flow starts inside the call and ends inside the kernel. The launch that the other operator makes has no
        // flow.
        vec![
            flow("f", 9, 0, 7, 22),
            flow("s", 9, 1, 1, 3),
            operator("aten::mm", 1, 0, 8),
            launch(1, 2, json!({})),
            operator("other", 1, 10, 8),
            launch(1, 12, json!({})),
            kernel(0, 20, place.clone()),
        ],
        // The launch and the kernel have the same flow in `bind_id`.
        vec![
            operator("aten::mm", 1, 0, 8),
            bound(json!("0x1"), "flow_out", launch(1, 2, json!({}))),
            bound(json!("0x1"), "flow_in", kernel(0, 20, place.clone())),
        ],
        // The id of the flow equals the correlation id of the launch, and the kernel has no correlation id, or vice
        // versa.
        vec![
            operator("aten::mm", 1, 0, 8),
            launch(1, 2, json!({"correlation": 9})),
            flow("s", 9, 1, 1, 2),
            kernel(0, 20, place.clone()),
            flow("f", 9, 0, 7, 20),
        ],
        vec![
            operator("aten::mm", 1, 0, 8),
            launch(1, 2, json!({})),
            flow("s", 9, 1, 1, 2),
            kernel(0, 20, json!({"correlation": 9, "device": 0, "stream": 7})),
            flow("f", 9, 0, 7, 20),
        ],
        // Only the external id of the kernel links it with its launch.
        vec![
            operator("aten::mm", 1, 0, 8),
            launch(1, 2, json!({"External id": 25})),
            kernel(0, 20, json!({"External id": 25, "device": 0, "stream": 7})),
        ],
    ];
    for (at, events) in traces.iter().enumerate() {
        let ran = folded("no-ids", events);
        let linked: Vec<&str> = ran.stdout.lines().filter(|line| line.ends_with("10000")).collect();
        assert_eq!(format!("{}\n", linked.join("\n")), stack, "{at}: {}", ran.stdout);
    }
    // If a trace has no such link, the launch of a kernel is unknown, and gpuflame must not count it as a launch made
    // before the trace.
    let ran = folded("no-ids", &[launch(1, 2, json!({})), kernel(0, 20, place)]);
    assert!(ran.stdout.contains("[no launch stack];[GPU_Kernel]k 10000"), "{}", ran.stdout);
    assert!(
        ran.stderr.contains("1 GPU operations have neither a correlation id nor a flow"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_flow_between_two_kernels_is_no_launch() {
    let events = [
        operator("aten::mm", 1, 0, 8),
        launch(1, 2, json!({"correlation": 1})),
        kernel(0, 20, json!({"correlation": 1, "device": 0, "stream": 7})),
        flow("s", 1_u64 << 41, 0, 7, 20),
        kernel(0, 40, json!({"device": 0, "stream": 7})),
        flow("f", 1_u64 << 41, 0, 7, 40),
    ];
    let stdout = folded("dependency", &events).stdout;
    assert_eq!(
        stdout,
        "[no launch stack];[GPU_Kernel]k 10000\naten::mm;cudaLaunchKernel;[GPU_Kernel]k 10000\n"
    );
}

#[test]
fn ranks_merged_with_numbers_added_to_processes_keep_their_own_launches_and_gpus() {
    for with_first_flow in [true, false] {
        let mut events = Vec::new();
        for (rank, offset) in [(0, 0), (1, 100_000), (2, 200_000)] {
            events.push(operator(&format!("step{rank}"), offset + 83, 0, 8));
            events.push(launch(offset + 83, 2, json!({"correlation": 1})));
            events.push(kernel(offset, 10 + rank, json!({"correlation": 1, "device": 0, "stream": 7})));
            if rank > 0 || with_first_flow {
                events.push(flow("s", offset + 1, offset + 83, 1, 2));
                events.push(flow("f", offset + 1, offset, 7, 10 + rank));
            }
        }
        let ran = folded("merged-numbers", &events);
        let expected: Vec<_> =
            (0..3).map(|rank| format!("step{rank};cudaLaunchKernel;[GPU{rank}_Kernel]k 10000\n")).collect();
        assert_eq!(ran.stdout, expected.concat());
        assert!(ran.stderr.contains("GPU 1 is GPU 0 of `100000`"), "{}", ran.stderr);
    }
    // Two processes that share a GPU must not count as ranks of a merged trace.
    let mut events = Vec::new();
    for process in [83, 84] {
        events.push(launch(process, 2, json!({"correlation": process})));
        events.push(kernel(process, process, json!({"correlation": process, "device": 0, "stream": 7})));
    }
    assert_eq!(folded("shared-gpu", &events).stdout, "cudaLaunchKernel;[GPU_Kernel]k 20000\n");
}

#[test]
fn flows_of_a_critical_path_do_not_overrule_correlation_ids() {
    let path = |phase: &str, id: u64, process: u64, thread: u64, ts: u64| {
        let mut flow = flow(phase, id, process, thread, ts);
        flow["cat"] = json!("critical_path");
        flow
    };
    let events = [
        operator("aten::mm", 1, 0, 8),
        launch(1, 2, json!({"correlation": 1})),
        kernel(0, 20, json!({"correlation": 1, "device": 0, "stream": 7})),
        // This wait has a flow that ends inside the kernel. The id of the flow is the correlation id of the wait.
        // However, the flow is an edge of the critical path, and does not mark a launch.
        event(
            "cuda_runtime",
            "cudaStreamSynchronize",
            (json!(1), json!(1)),
            12,
            14,
            json!({"correlation": 2}),
        ),
        flow("f", 2, 0, 7, 25),
        operator("aten::add", 1, 30, 8),
        launch(1, 32, json!({"correlation": 3})),
        kernel(0, 40, json!({"correlation": 3, "device": 0, "stream": 7})),
        path("s", 2, 1, 1, 32),
        // The trace has no launch for this kernel.
        kernel(0, 60, json!({"correlation": 9, "device": 0, "stream": 7})),
        path("s", 4, 1, 1, 32),
        path("f", 4, 0, 7, 60),
    ];
    let stdout = folded("critical-path", &events).stdout;
    let expected = "[no launch stack];[GPU_Kernel]k 10000\n\
                    aten::add;cudaLaunchKernel;[GPU_Kernel]k 10000\n\
                    aten::mm;cudaLaunchKernel;[GPU_Kernel]k 10000\n";
    assert_eq!(stdout, expected);
}

#[test]
fn launches_of_one_thread_that_share_an_id_are_linked_in_order_within_seconds() {
    let mut events = Vec::new();
    for at in 0..60_000 {
        events.push(launch(1, 3 * at, json!({"correlation": 5})));
        let mut work = kernel(0, 3 * at + 1, json!({"correlation": 5, "device": 0, "stream": 7}));
        work["dur"] = json!(1);
        events.push(work);
    }
    let began = Instant::now();
    let ran = folded("one-id", &events);
    // On a busy machine, a debug build needs a few seconds. If every launch were compared with every kernel, the test
    // would take minutes.
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    assert_eq!(ran.stdout, "cudaLaunchKernel;[GPU_Kernel]k 60000000\n");
    assert!(
        ran.stderr.contains("60,000 GPU operations have correlation ids that several launches"),
        "{}",
        ran.stderr
    );
}

#[test]
fn devices_and_streams_are_read_from_the_lanes_of_work_without_them() {
    let call = |id: u64, ts| launch(900, ts, json!({"correlation": id}));
    let events = [
        call(1, 0),
        call(2, 3),
        kernel(2, 10, json!({"correlation": 1})),
        kernel(3, 10, json!({"correlation": 2})),
    ];
    let stdout = folded("lanes", &events).stdout;
    assert_eq!(stdout, "cudaLaunchKernel;[GPU2_Kernel]k 10000\ncudaLaunchKernel;[GPU3_Kernel]k 10000\n");
}

#[test]
fn functions_that_opened_a_range_are_not_parents_of_the_work_in_it() {
    let with_stack = |mut event: Value, stack: &str| {
        event["args"] = json!({ "Call stack": stack });
        event
    };
    let events = [
        with_stack(
            operator("ProfilerStep#1", 1, 0, 100),
            "profiler.py(614): __enter__;profiler.py(313): step;a.py(54): run",
        ),
        with_stack(operator("my range", 1, 5, 90), "profiler.py(450): __enter__;a.py(20): run"),
        with_stack(operator("aten::conv2d", 1, 10, 20), "conv.py(443): forward;a.py(20): run"),
        with_stack(operator("aten::cudnn", 1, 11, 10), "conv.py(443): forward;a.py(20): run"),
        launch(1, 12, json!({"correlation": 1})),
        with_stack(operator("aten::add_", 1, 40, 20), "sgd.py(180): sgd;a.py(51): run"),
        launch(1, 42, json!({"correlation": 2})),
        launch(1, 70, json!({"correlation": 3})),
        kernel(0, 110, json!({"correlation": 1, "device": 0, "stream": 7})),
        kernel(0, 130, json!({"correlation": 2, "device": 0, "stream": 7})),
        kernel(0, 150, json!({"correlation": 3, "device": 0, "stream": 7})),
    ];
    let lines = [
        "ProfilerStep#N;a.py(20): run;my range;conv.py(443): forward;aten::conv2d;aten::cudnn",
        "ProfilerStep#N;my range;a.py(51): run;sgd.py(180): sgd;aten::add_",
        "ProfilerStep#N;my range",
    ];
    let stdout = folded("ranges", &events).stdout;
    let found: BTreeSet<&str> = stdout.lines().collect();
    let expected = lines.map(|line| format!("{line};cudaLaunchKernel;[GPU_Kernel]k 10000"));
    assert_eq!(found, expected.iter().map(String::as_str).collect());
}

#[test]
fn slices_that_are_nested_by_the_thousand_make_truncated_stacks() {
    let (count, mut events) = (4000_u64, Vec::new());
    for at in 0..count {
        events.push(operator(&format!("f{at}"), 1, 3 * at, 6 * (count - at) + 3));
    }
    events.push(launch(1, 3 * count, json!({"correlation": 1})));
    events.push(kernel(0, 1_000_000, json!({"correlation": 1, "device": 0, "stream": 7})));
    let stdout = folded("nested", &events).stdout;
    // gpuflame keeps 2,048 frames per stack. One of the 2,048 frames is the API call.
    let first = format!("[stack truncated];f{};", count - 2047);
    assert!(stdout.starts_with(&first), "{}", &stdout[..80]);
    assert!(stdout.ends_with(";f3999;cudaLaunchKernel;[GPU_Kernel]k 10000\n"));
}

#[test]
fn thousands_of_slices_that_cross_are_left_out_and_counted() {
    let (count, mut events) = (4000_u64, Vec::new());
    for at in 0..count {
        events.push(operator(&format!("f{at}"), 1, 3 * at, 3 * count / 2));
        events.push(launch(1, 3 * at + 1, json!({"correlation": at + 1})));
        events.push(kernel(0, 1_000_000 + 10 * at, json!({"correlation": at + 1, "device": 0, "stream": 7})));
    }
    let began = Instant::now();
    let ran = folded("crossing", &events);
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    let sum: u64 =
        ran.stdout.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 10_000 * count);
    assert!(
        ran.stderr.contains("slices are in no stack, because each crosses more than 64 open slices"),
        "{}",
        ran.stderr
    );
}

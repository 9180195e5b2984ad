//! Tests three analyses on traces of a few lines: the backward pass under the forward pass, Python functions in
//! arguments of events, and communication that overlaps no computation.

use serde_json::{Value, json};

use crate::support::command::gpuflame;
use crate::support::scratch;
use crate::support::traces::Trace;

/// Sets the arguments of the trace event that was added last.
fn args(trace: &mut Trace, args: Value) {
    trace.0.last_mut().unwrap()["args"] = args;
}

/// Adds an operator of the forward or the backward pass to the trace.
fn operator(
    trace: &mut Trace,
    name: &str,
    thread: u32,
    times: (u64, u64),
    sequence: u64,
    forward_thread: u64,
) {
    trace.slice("cpu_op", name, thread, times.0, times.1);
    args(trace, json!({ "Sequence number": sequence, "Fwd thread id": forward_thread }));
}

/// Returns a trace of a model with two layers. The forward pass on thread 1 and the backward pass on thread 2 take 10,
/// 20, 30 and 40 us of GPU time. A kernel for a gradient, which belongs to no forward operator, takes 5 us.
fn training() -> Trace {
    let mut trace = Trace::default();
    trace.python("model.py(1): forward", 1, 0, 100).python("nn.Module: Linear_0", 1, 1, 40);
    operator(&mut trace, "aten::linear", 1, (2, 39), 7, 0);
    operator(&mut trace, "aten::addmm", 1, (3, 38), 7, 0);
    trace.launch(1, "gemm", 1, 4, 10, 20);
    trace.python("nn.Module: ReLU_0", 1, 50, 90);
    operator(&mut trace, "aten::relu", 1, (51, 89), 8, 0);
    trace.launch(2, "relu", 1, 52, 60, 80);
    operator(&mut trace, "autograd::engine::evaluate_function: ReluBackward0", 2, (200, 240), 8, 1);
    operator(&mut trace, "ReluBackward0", 2, (201, 239), 8, 1);
    trace.launch(3, "relu_back", 2, 202, 210, 240);
    operator(&mut trace, "autograd::engine::evaluate_function: AddmmBackward0", 2, (250, 340), 7, 1);
    operator(&mut trace, "AddmmBackward0", 2, (251, 339), 7, 1);
    trace.slice("cpu_op", "aten::mm", 2, 252, 338).launch(4, "gemm_back", 2, 253, 300, 340);
    trace.slice(
        "cpu_op",
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
        2,
        350,
        390,
    );
    trace.launch(5, "add", 2, 351, 360, 365);
    trace
}

const BACKWARD: [&str; 2] = ["--backward", "forward"];

#[test]
fn backward_kernels_are_placed_under_the_forward_operators_they_differentiate() {
    let folder = scratch("passes");
    training().write(&folder.join("a.json"));
    let ran = gpuflame(&folder, ["flamegraph", "a.json"].iter().chain(&BACKWARD)).ok();
    let expected = "\
autograd::engine::evaluate_function: torch::autograd::AccumulateGrad;cudaLaunchKernel;[GPU_Kernel]add 5000
model.py(1): forward;nn.Module: Linear_0;aten::linear;aten::addmm;[backward];\
autograd::engine::evaluate_function: AddmmBackward0;AddmmBackward0;aten::mm;cudaLaunchKernel;[GPU_Kernel]gemm_back 40000
model.py(1): forward;nn.Module: Linear_0;aten::linear;aten::addmm;cudaLaunchKernel;[GPU_Kernel]gemm 10000
model.py(1): forward;nn.Module: ReLU_0;aten::relu;[backward];\
autograd::engine::evaluate_function: ReluBackward0;ReluBackward0;cudaLaunchKernel;[GPU_Kernel]relu_back 30000
model.py(1): forward;nn.Module: ReLU_0;aten::relu;cudaLaunchKernel;[GPU_Kernel]relu 20000
";
    assert_eq!(ran.stdout, expected);
    // 70 of the 75 us of the backward pass (93.3 %) are under operators of a forward pass. The backward pass takes 75
    // of 105 us (71.4 %).
    assert!(ran.stderr.contains("93.3 %") && ran.stderr.contains("71.4 %"), "{}", ran.stderr);
    let autograd = gpuflame(&folder, ["flamegraph", "a.json"]).ok();
    assert!(!autograd.stdout.contains("[backward]") && autograd.stderr.is_empty(), "{autograd:?}");
    let top =
        gpuflame(&folder, ["top", "a.json", "--by", "stacks", "--format", "csv"].iter().chain(&BACKWARD))
            .ok();
    assert!(top.stdout.contains("[backward]"), "{}", top.stdout);
}

#[test]
fn the_forward_thread_is_identified_by_sequence_numbers_and_never_guessed() {
    let folder = scratch("passes");
    let back = |trace: &Trace| {
        trace.write(&folder.join("a.json"));
        let ran = gpuflame(&folder, ["flamegraph", "a.json"].iter().chain(&BACKWARD)).ok();
        ran.stdout.lines().filter(|line| line.contains("[backward]")).count()
    };
    // Thread 3 also has an operator 7, but no operator 8. Therefore the backward pass of thread 2, which needs the
    // operators 7 and 8, cannot belong to thread 3.
    let mut trace = training();
    operator(&mut trace, "aten::other", 3, (0, 10), 7, 0);
    assert_eq!(back(&trace), 2);
    // If another operator is added, thread 3 has both operators, 7 and 8, as thread 1 has.
    operator(&mut trace, "aten::other", 3, (20, 30), 8, 0);
    assert_eq!(back(&trace), 0, "nothing is guessed");
    // Flow arrows show whether the backward pass belongs to thread 1 or to thread 3.
    for (id, thread, time, phase) in [(1, 1, 51, "s"), (1, 2, 200, "f"), (2, 1, 3, "s"), (2, 2, 250, "f")] {
        trace.0.push(json!({
            "ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "id": id, "pid": 1, "tid": thread, "ts": time, "bp": "e"
        }));
    }
    assert_eq!(back(&trace), 2);
    // A later operator has the sequence number 7 again, but the backward pass does not belong to it.
    let mut trace = training();
    operator(&mut trace, "aten::later", 1, (500, 510), 7, 0);
    assert_eq!(back(&trace), 2);
    let drawn = gpuflame(&folder, ["flamegraph", "a.json"].iter().chain(&BACKWARD)).ok().stdout;
    assert!(!drawn.contains("aten::later"), "{drawn}");
}

#[test]
fn python_call_stacks_in_operator_arguments_become_frames() {
    let folder = scratch("passes");
    let mut trace = Trace::default();
    trace.slice("Operator", "aten::linear", 1, 0, 100);
    args(&mut trace, json!({ "Call stack": "model.py(7): forward;train.py(3): main" }));
    trace.slice("Operator", "aten::addmm", 1, 10, 90);
    args(&mut trace, json!({ "Call stack": "model.py(7): forward;train.py(3): main" }));
    trace.slice("Operator", "aten::custom", 1, 20, 80);
    args(&mut trace, json!({ "Call stack": "hook.py(1): hook;model.py(7): forward;train.py(3): main" }));
    trace.slice("Operator", "aten::mm", 1, 30, 70);
    args(&mut trace, json!({ "Call stack": "" }));
    trace.launch(1, "gemm", 1, 40, 50, 60);
    trace.write(&folder.join("a.json"));
    let drawn = gpuflame(&folder, ["flamegraph", "a.json"]).ok().stdout;
    let expected = "train.py(3): main;model.py(7): forward;aten::linear;aten::addmm;hook.py(1): hook;aten::custom;\
         aten::mm;cudaLaunchKernel;[GPU_Kernel]gemm 10000\n";
    assert_eq!(drawn, expected);
}

#[test]
fn communication_is_exposed_while_no_compute_kernel_runs() {
    let folder = scratch("passes");
    let mut trace = Trace::default();
    trace.slice("cpu_op", "a", 1, 0, 5).slice("cpu_op", "b", 1, 5, 10);
    for (id, call) in [(1, 1), (2, 2), (3, 6), (4, 7)] {
        trace.slice("cuda_runtime", "cudaLaunchKernel", 1, call, call + 1);
        args(&mut trace, json!({ "correlation": id }));
    }
    trace
        .work("kernel", 1, "ncclDevKernel_AllReduce", 20, 100, 200)
        .work("kernel", 2, "gemm", 7, 150, 170)
        .work("kernel", 3, "void vllm::cross_device_reduce_1stage<float>()", 21, 160, 230)
        .work("gpu_memcpy", 4, "Memcpy HtoD (Pinned -> Device)", 22, 100, 300);
    trace.write(&folder.join("a.json"));
    let comm = |flags: &[&str]| {
        let args = ["top", "a.json", "--by", "comm", "--format", "json"];
        let ran = gpuflame(&folder, args.iter().chain(flags)).ok();
        serde_json::from_str::<Value>(&ran.stdout).unwrap()
    };
    let found = comm(&[]);
    let device = &found["comm"][0];
    // Communication runs from 100 to 230 us. From 150 to 170 us, computation overlaps the communication.
    assert_eq!((&device["comm_ns"], &device["exposed_ns"]), (&json!(130_000), &json!(110_000)));
    assert_eq!((&device["overlapped_ns"], &device["compute_ns"]), (&json!(20_000), &json!(20_000)));
    let row = |at: usize, column: &str| found["comm_stacks"][at][column].clone();
    assert_eq!((row(0, "stack"), row(0, "exposed_ns")), (json!("a;cudaLaunchKernel"), json!(80_000)));
    assert_eq!((row(1, "stack"), row(1, "exposed_ns")), (json!("b;cudaLaunchKernel"), json!(30_000)));
    assert_eq!(row(1, "total_ns"), 70_000);
    // With the pattern `NCCL`, only kernels whose names contain `NCCL` are communication. The other kernel in the trace
    // counts as computation.
    let found = comm(&["--comm", "NCCL"]);
    assert_eq!(found["comm"][0]["exposed_ns"], 50_000);
    assert_eq!(found["comm"][0]["compute_ns"], 80_000);
    // If the trace marks a kernel as a collective, the kernel counts as communication.
    trace.0[6]["args"]["Collective name"] = json!("allreduce");
    trace.write(&folder.join("a.json"));
    assert_eq!(trace.0[6]["name"], "ncclDevKernel_AllReduce");
    trace.0[7]["args"]["Collective name"] = json!("odd");
    trace.write(&folder.join("a.json"));
    assert_eq!(comm(&[])["comm"][0]["compute_ns"], 0);
}

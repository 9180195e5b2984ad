//! Hand-made traces of two ranks that wait for each other in collectives.
#![allow(dead_code, unreachable_pub)] // Some test binaries use only a part of this module.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// Kernel names of the two collectives.
pub const GATHER: &str = "ncclDevKernel_AllGather";
pub const REDUCE: &str = "ncclDevKernel_AllReduce";

/// Writes a rank's trace in torch.profiler's format. Kernels are (name, start, end) and steps are (start, end), with
/// times in us.
pub fn write_rank(folder: &Path, rank: u32, steps: &[(u64, u64)], kernels: &[(&str, u64, u64)]) {
    let step = |(at, &(start, end)): (usize, &(u64, u64))| {
        json!({ "ph": "X", "cat": "user_annotation", "name": format!("ProfilerStep#{at}"), "pid": 1, "tid": 1,
            "ts": start, "dur": end - start })
    };
    let mut events: Vec<Value> = steps.iter().enumerate().map(step).collect();
    for (id, (name, start, end)) in kernels.iter().enumerate() {
        events
            .push(json!({ "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
            "ts": start - 1, "dur": 1, "args": { "correlation": id + 1 } }));
        events.push(json!({ "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start,
            "dur": end - start, "args": { "correlation": id + 1, "device": 0, "stream": 7 } }));
    }
    let trace = json!({ "traceEvents": events, "distributedInfo": { "rank": rank, "world_size": 2 } });
    fs::write(folder.join(format!("rank{rank}.json")), trace.to_string()).unwrap();
}

/// Writes the traces of two ranks whose clocks are 11.5 s apart, with three steps of 65 us. In each step, rank 0 first
/// works for 10 us, and rank 1 first works for 20 us and is idle for 10 us. After that, both ranks run a gather, which
/// takes 10 us. After the gather, rank 0 works for 20 us and rank 1 works for 10 us. The reduce at the end of the step
/// takes 5 us.
pub fn two_ranks(folder: &Path) {
    for rank in 0..2 {
        let (mut steps, mut kernels) = (Vec::new(), Vec::new());
        for step in 0..3 {
            let begin = 1_000 + 65 * step + 11_500_000 * u64::from(rank);
            let (gather, reduce) = if rank == 0 { (10, 60) } else { (30, 50) };
            steps.push((begin, begin + 65));
            kernels.extend([
                ("gemm", begin + 1, begin + gather.min(20) + 1),
                (GATHER, begin + gather + 1, begin + 41),
                ("relu", begin + 41, begin + reduce + 1),
                (REDUCE, begin + reduce + 1, begin + 66),
            ]);
        }
        write_rank(folder, rank, &steps, &kernels);
    }
}

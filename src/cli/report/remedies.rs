//! Defines the remedies for findings. Each remedy is a sentence on the page. `docs/findings.md` has the same advice in
//! shorter form.

/// Ids of findings, each with the sentence about its remedy.
const REMEDIES: [(&str, &str); 27] = [
    (
        "data_loader_late",
        "Load data in more worker processes, and fetch the next batch while the GPU works on this one.",
    ),
    (
        "sync_read",
        "Read the value every 100 steps instead of every step, or read that of an earlier step, which is already there.",
    ),
    (
        "sync_wait",
        "Remove the wait, or wait for an event of an earlier step, so that the GPU always has work queued.",
    ),
    (
        "tiny_kernels",
        "Fuse these kernels into one, for example with `torch.compile`, or record them once as a CUDA graph.",
    ),
    (
        "launch_bound",
        "Record the loop as a CUDA graph, fuse operators, or give each launch more work by a larger batch.",
    ),
    (
        "pageable_copies",
        "Allocate the host's memory with `cudaHostAlloc`, or `pin_memory=True` in PyTorch, and copy with `non_blocking=True`.",
    ),
    ("sync_copies", "Use `cudaMemcpyAsync` on pinned memory, and wait only before the data is used."),
    ("fragmented_copies", "Put the small buffers into one and copy that with a single call."),
    (
        "copies_not_overlapped",
        "Start these copies a step earlier on a stream of their own, so that they overlap with kernels.",
    ),
    (
        "default_stream",
        "Create the streams with `cudaStreamNonBlocking`, and launch nothing on the default stream.",
    ),
    (
        "allocation_in_loop",
        "Allocate before the loop and use the memory again, or allocate from a pool with `cudaMallocAsync`.",
    ),
    ("gc_pauses", "Call `gc.disable()` before the loop, and `gc.collect()` between epochs."),
    (
        "recompilation",
        "Use fewer different shapes, for example by padding, and run each shape once before the loop.",
    ),
    ("warm_up", "Leave these steps out of averages. A loop of many steps needs no change."),
    (
        "slow_steps",
        "Compare the input of a slow step with that of a usual step: longer sequences are the usual reason.",
    ),
    (
        "pauses",
        "Do this work less often, or on a thread that launches nothing. Code that CUDA loads at first use needs no change.",
    ),
    (
        "exposed_communication",
        "Start communication as soon as its input is ready, and compute something else meanwhile, as DDP does with its buckets.",
    ),
    (
        "straggler",
        "Look at this rank alone: compare its clock, temperature and processor load with those of another rank.",
    ),
    (
        "imbalance",
        "Give each rank the same number of tokens or rows, for example by sorting inputs by length.",
    ),
    ("idle_gpu", "Divide the work evenly between the GPUs."),
    ("lock_wait", "Hold the lock for less time, or move other Python threads to another process."),
    (
        "starved_thread",
        "Start fewer threads, for example with `OMP_NUM_THREADS`, or give the process more processors.",
    ),
    (
        "late_slowdown",
        "Watch the GPU's clock and temperature with `nvidia-smi dmon`. If they are steady, look for work that grows.",
    ),
    ("managed_memory", "Use less memory at a time, or plain device memory with explicit copies."),
    ("profiler_cost", "Subtract this time: without the profiler, the program does not lose it."),
    ("host_work", "Move this work out of the loop, or to a thread that launches nothing."),
    (
        "clocks_of_ranks",
        "Compare times between ranks only with `gpuflame merge-ranks`, `stragglers` and `critical-path`, which align the clocks.",
    ),
];

/// Returns the remedy for the finding with this id. Returns an empty text for findings about wrong data, which only a
/// better recording can correct.
pub(super) fn remedy(id: &str) -> &'static str {
    REMEDIES.iter().find(|(known, _)| *known == id).map_or("", |(_, sentence)| sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_finding_about_lost_time_has_a_remedy() {
        let page = include_str!("../../../docs/findings.md");
        let ids: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(id, _)| id))
            .collect();
        assert_eq!(ids.len(), REMEDIES.len(), "{ids:?}");
        for id in ids {
            let sentence = remedy(id);
            assert!(sentence.ends_with('.') && sentence.len() <= 140, "{id}: {sentence}");
        }
    }
}

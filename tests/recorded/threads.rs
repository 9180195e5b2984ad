//! Tests programs with many threads that run at the same time, or one after the other.

use std::collections::BTreeSet;

use crate::support::{Run, Way, compile, gpuflame};

#[test]
fn six_hundred_concurrent_threads_lose_no_launch() {
    let program = compile("tests/programs/threads.c", &["-O2"]);
    let done = Run::new(&program, Way::Injected).args(["600", "1"]).ok();
    done.assert_exact();
    assert_eq!(done.truth().count("count"), 1200);
}

#[test]
fn short_lived_threads_share_their_stacks() {
    let program = compile("tests/programs/threads.c", &["-O2"]);
    let done = Run::new(&program, Way::Injected).args(["4", "1000"]).ok();
    done.assert_exact();
    assert_eq!(done.truth().count("count"), 8000);
    assert_eq!(done.ledger("stacks "), ["2 distinct"], "4,000 threads launch from two call sites");
}

/// The thread opens an NVTX range before CUDA starts. At that time there are no buffers for records of threads, because
/// gpuflame creates the buffers when CUDA starts.
#[test]
fn a_thread_that_opens_a_range_before_cuda_starts_keeps_its_name() {
    let program = compile("tests/programs/named.c", &["-O2"]);
    let run = Run::new(&program, Way::Injected).env("NVTX_INJECTION64_PATH", gpuflame());
    let done = run.env("GPUFLAME_ROOT", "thread").ok();
    let threads = done.folded().into_iter().map(|(frames, _)| frames[..2].join(";"));
    let threads: BTreeSet<_> = threads.collect();
    let expected = ["[thread -b+ [3m t x];other", "[thread =m [3m t x];main"];
    assert_eq!(threads.into_iter().collect::<Vec<_>>(), expected);
}

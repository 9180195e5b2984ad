//! Tests programs that use several GPUs. The leaf frame of each stack names the GPU, and each GPU has its own sums.

use crate::support::{Run, Way, compile};

#[test]
fn two_gpus_and_copies_between_them_are_distinguished() {
    let program = compile("tests/programs/devices.c", &["-O2"]);
    let done = Run::new(&program, Way::Injected).env("GPUSIM_NDEV", "2").ok();
    let mut found: Vec<_> =
        done.folded().into_iter().map(|(frames, weight)| (frames.join(";"), weight)).collect();
    found.sort();
    // The copy between the GPUs is on a stream of GPU 1. On the simulated GPU, a copy of 1 MiB takes 2 us plus the time
    // for its bytes at 25 GB/s, which is 43,943 ns. A fill of 1 MiB takes 1 us plus the time for its bytes at 1 TB/s,
    // which is 2,048 ns (1,000 + 1,048.576).
    let expected = [
        ("main;exchange;cudaMemcpyPeerAsync;[GPU1_Memcpy PtoP]", 43_943),
        ("main;exchange;cudaMemsetAsync;[GPU1_Memset]", 2_048),
        ("main;work;cudaLaunchKernel;[GPU0_Kernel]step_d1500", 4_500),
        ("main;work;cudaLaunchKernel;[GPU1_Kernel]step_d1500", 7_500),
    ];
    assert_eq!(found, expected.map(|(stack, weight)| (stack.to_owned(), weight)), "{}", done.stderr);
    assert_eq!(done.ledger("GPU 0: ").len(), 1);
    assert_eq!(done.ledger("GPU 1: ").len(), 1);
}

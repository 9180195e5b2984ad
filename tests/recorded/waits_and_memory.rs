//! Tests what gpuflame records about the host in addition to launches. The durations of waits are compared with the
//! times that the program measures, and amounts of memory are exact to the byte.

use std::collections::BTreeMap;

use crate::support::{Done, Run, Way, command, compile};

fn host(formats: &str) -> Run {
    let program = compile("tests/programs/host.c", &["-O2"]);
    Run::new(&program, Way::Injected).env("GPUFLAME_FORMATS", formats).env("GPUSIM_CLOCK", "real")
}

fn stacks(done: &Done, file: &str) -> BTreeMap<String, u64> {
    done.folded_file(file).into_iter().map(|(frames, weight)| (frames.join(";"), weight)).collect()
}

/// Functions of the program that wait, and the CUDA call with which each of them waits.
const WAITS: [(&str, &str); 5] = [
    ("for_the_stream", "cudaStreamSynchronize"),
    ("for_the_device", "cudaDeviceSynchronize"),
    ("for_the_event", "cudaEventSynchronize"),
    ("for_the_context", "cuCtxSynchronize"),
    ("for_a_copy", "cudaMemcpy"),
];

#[test]
fn waiting_is_charged_to_the_stack_that_waits() {
    let done = host("wait").ok();
    let found = stacks(&done, "out.wait.folded");
    let mut own: BTreeMap<String, u64> = BTreeMap::new();
    for line in done.stdout.lines() {
        let (function, nanos) = line.split_once(' ').unwrap();
        *own.entry(function.to_owned()).or_default() += nanos.parse::<u64>().unwrap();
    }
    let expected: Vec<_> = WAITS.iter().map(|(function, call)| format!("main;{function};{call}")).collect();
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((function, _), stack) in WAITS.iter().zip(&expected) {
        // The program measures an interval around the CUDA call. If the thread loses its processor, this interval may
        // be longer than the call.
        let (ours, theirs) = (found[stack], own[*function]);
        assert!(ours <= theirs && 2 * ours >= theirs, "{function}: {ours} of {theirs}");
    }
    let total: u64 = found.values().sum();
    assert_eq!(done.ledger("host waited "), [format!("{total} ns in 10 calls")]);
    assert!(done.file("out.wait.svg").contains("for_a_copy"));
}

#[test]
fn allocated_and_freed_bytes_are_exact_for_any_freeing_thread() {
    let done = host("alloc,gfr").ok();
    let again = command::gpuflame(&done.folder, ["flamegraph", "out.gfr", "--alloc", "--format", "folded"]);
    assert_eq!(again.ok().stdout, done.file("out.alloc.folded"));
    let found = stacks(&done, "out.alloc.folded");
    // Each of four threads allocates memory 500 times; the sizes repeat seven values, from 100 to 106 bytes.
    let churned: u64 = 4 * (0..500).map(|i| 100 + i % 7).sum::<u64>();
    let expected = [
        ("churn;grow;cudaMalloc;[Alloc device]", churned),
        ("churn;shrink;cudaFree;[Free device]", churned),
        ("main;by_the_driver;cuMemAlloc;[Alloc device]", 11_000),
        ("main;by_the_driver;cuMemFree;[Free device]", 11_000),
        ("main;grow;cudaMalloc;[Alloc device]", 1_003_000),
        ("main;in_order;cudaFreeAsync;[Free device]", 9_000),
        ("main;in_order;cudaMallocAsync;[Alloc device]", 9_000),
        ("main;managed;cudaFree;[Free managed]", 7_000),
        ("main;managed;cudaMallocManaged;[Alloc managed]", 7_000),
        ("main;pinned;cudaFreeHost;[Free pinned]", 5_000),
        ("main;pinned;cudaMallocHost;[Alloc pinned]", 5_000),
        ("main;shrink;cudaFree;[Free device]", 3_000),
    ];
    let expected = expected.map(|(stack, bytes)| (stack.to_owned(), bytes));
    assert_eq!(found, BTreeMap::from(expected), "{}", done.stderr);
    let (allocated, parts) = done.sum("allocated_bytes");
    assert_eq!(allocated, churned + 1_003_000 + 11_000 + 9_000 + 7_000 + 5_000);
    assert_eq!((parts["held"], parts["free_not_seen"]), (1_000_000, 0));
    assert!(done.file("out.alloc.svg").contains("bytes"));
}

#[test]
fn waits_and_allocations_are_counted_if_the_unit_is_count() {
    let done = host("wait,alloc").env("GPUFLAME_UNIT", "count").ok();
    let waits = stacks(&done, "out.wait.folded");
    assert!(waits.len() == 5 && waits.values().all(|count| *count == 2), "{waits:?}");
    let memory = stacks(&done, "out.alloc.folded");
    assert_eq!(memory["churn;grow;cudaMalloc;[Alloc device]"], 2000);
    assert_eq!(memory["main;grow;cudaMalloc;[Alloc device]"], 2);
}

#[test]
fn calls_for_outputs_that_were_not_requested_are_not_inspected() {
    let done = host("folded").ok();
    assert_eq!(done.ledger("host waited"), Vec::<&str>::new());
    // The program launches ten kernels and two copies. gpuflame counts no other call as a launch.
    assert_eq!(done.sum("launches").0, 12);
}

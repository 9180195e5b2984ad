//! Tests of programs with several devices, CUDA contexts and streams.

use gpusim_selftest::{Line, Outcome, Run};

fn devices() -> Run {
    Run::new("devices", &[]).client("10,1,2,22", "2:211,2:214,3:1").env("GPUSIM_NDEV", "2")
}

fn at_site<'a>(outcome: &'a Outcome, site: &str) -> Vec<&'a Line> {
    let of_site = outcome.truth.iter().filter(|t| t["site"] == site).map(|t| t["corr"].to_string());
    of_site.map(|corr| outcome.lines("record").into_iter().find(|r| r.str("corr") == corr).unwrap()).collect()
}

#[test]
fn each_device_has_a_context_and_default_stream_7() {
    let outcome = devices().outcome().expect_success();
    let one = at_site(&outcome, "device 1")[0];
    assert_eq!((one.number("device"), one.number("context"), one.number("stream")), (1, 1, 7));
    let zero = at_site(&outcome, "device 0")[0];
    assert_eq!((zero.number("device"), zero.number("context")), (0, 2));
    assert_eq!(outcome.lines("resource").len(), 2);
}

#[test]
fn kernels_on_different_streams_overlap() {
    let outcome = devices().outcome().expect_success();
    let pair = at_site(&outcome, "device 0");
    assert_ne!(pair[0].number("stream"), pair[1].number("stream"));
    let overlap =
        |a: &Line, b: &Line| a.number("start") < b.number("end") && b.number("start") < a.number("end");
    assert!(overlap(pair[0], pair[1]));
}

#[test]
fn a_copy_between_devices_is_kind_22_with_both_devices() {
    let outcome = devices().outcome().expect_success();
    let peer = outcome.records(22)[0];
    assert_eq!((peer.number("copy"), peer.str("peers"), peer.number("bytes")), (10, "0:1", 5000));
    let kernel = at_site(&outcome, "device 0")[0];
    assert!(peer.number("start") >= kernel.number("end"), "it waits for its stream");
}

#[test]
fn each_thread_has_its_own_default_stream() {
    let outcome = devices().outcome().expect_success();
    let streams: Vec<u64> = at_site(&outcome, "thread").iter().map(|r| r.number("stream")).collect();
    assert_eq!(streams.len(), 2);
    assert!(streams[0] != streams[1] && !streams.contains(&7));
    assert_eq!(outcome.lines("callback").iter().filter(|l| l.number("id") == 214).count(), 4);
}

#[test]
fn both_stream_id_functions_return_the_id_in_the_records() {
    let outcome = devices().env("CLIENT_CALLBACKS", "3:3").outcome().expect_success();
    let told = outcome.lines("stream");
    let ids = |key: &str| told.iter().map(|l| l.number(key)).collect::<Vec<_>>();
    let recorded: Vec<u64> = at_site(&outcome, "device 0").iter().map(|r| r.number("stream")).collect();
    // Compare only the first two streams, which the program creates; the other streams are per-thread default streams.
    assert_eq!(ids("id")[..2], recorded);
    assert_eq!(ids("id"), ids("ex"));
    let all = |key: &str, value| told.iter().all(|l| l.number(key) == value);
    assert!(all("result", 0) && all("own", 7) && all("bad", 20) && all("nowhere", 1), "{told:?}");
}

/// The program runs one kernel in context 1, and four kernels and a copy in context 2.
#[test]
fn records_can_be_enabled_for_one_context() {
    let of_context = |kinds: &str, said: &str| {
        let run = devices().env("CLIENT_KINDS", kinds).env("CLIENT_OF_CONTEXT", said);
        let outcome = run.outcome().expect_success();
        let told = outcome.lines("OfContext");
        assert!(told.iter().all(|l| l.number("result") == 0 && l.number("of_nothing") == 3), "{told:?}");
        let count =
            |kind, context| outcome.records(kind).iter().filter(|r| r.number("context") == context).count();
        let counts = [count(10, 1), count(10, 2), count(22, 2)];
        assert_eq!(outcome.lines("record").len(), counts.iter().sum::<usize>());
        assert_eq!(outcome.total("delivered") as usize, counts.iter().sum::<usize>());
        assert_eq!(outcome.total("untraced") as usize, 6 - counts.iter().sum::<usize>());
        counts
    };
    assert_eq!(of_context("10,1,2,22", ""), [1, 4, 1]);
    assert_eq!(of_context("", "2:+10"), [0, 4, 0]);
    assert_eq!(of_context("", "1:+10,2:+22"), [1, 0, 1]);
    assert_eq!(of_context("10,1,2,22", "2:-10"), [1, 0, 1]);
    assert_eq!(of_context("10,22", "1:-10,2:-22"), [0, 4, 0]);
    // If the client enables and disables an activity kind several times, the last of these calls decides.
    assert_eq!(of_context("10,22", "2:-10,2:+10,1:+10,1:-10"), [0, 4, 1]);
}

#[test]
fn record_kinds_without_a_context_are_rejected_by_per_context_calls() {
    for kind in ["4", "5", "25", "39", "51"] {
        let said = format!("1:+{kind},1:-{kind}");
        let outcome = devices().env("CLIENT_OF_CONTEXT", said).outcome().expect_success();
        assert!(outcome.lines("OfContext").iter().all(|l| l.number("result") == 21), "{kind}");
        assert_eq!(outcome.lines("OfContext").len(), 2);
    }
    let outcome = devices().env("CLIENT_OF_CONTEXT", "1:+10,1:+99").env("GPUSIM_FAULTS", "enable:10=35");
    let outcome = outcome.outcome().expect_success();
    let results: Vec<u64> = outcome.lines("OfContext").iter().map(|l| l.number("result")).collect();
    assert_eq!(results, [35, 21]);
}

#[test]
fn a_launch_takes_at_least_the_configured_time() {
    let outcome = devices().env("GPUSIM_LAUNCH_NS", "300000").outcome().expect_success();
    let mut enters: Vec<u64> = outcome.truth.iter().map(|t| t["enter"].as_u64().unwrap()).collect();
    enters.sort();
    // In the log, the launches of the program's threads are interleaved.
    assert!(enters.len() > 4);
    assert!(enters.windows(2).all(|two| two[1] - two[0] >= 300_000), "{enters:?}");
}

#[test]
fn a_device_can_have_a_skewed_clock() {
    let outcome = devices().env("GPUSIM_SKEW_NS", "-50000000").outcome().expect_success();
    let before_enter = |t: &serde_json::Value| t["start"].as_u64().unwrap() < t["enter"].as_u64().unwrap();
    let skewed = outcome.truth.iter().filter(|t| before_enter(t));
    assert!(skewed.clone().count() > 0 && skewed.clone().all(|t| t["device"] == 1));
}

#[test]
fn a_missing_device_is_rejected() {
    assert_eq!(devices().env("GPUSIM_NDEV", "1").outcome().code, Some(2));
}

/// Number of each attribute in `CUdevice_attribute` (`cudaDeviceAttr` has the same numbers), and the attribute's value.
/// The values are from NVIDIA's CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", column
/// 9.0, and its Hopper Tuning Guide, "Occupancy" and "Shared Memory"; the last four are from the whitepaper "NVIDIA
/// H100 Tensor Core GPU Architecture", column H100 SXM5.
const H100: [(u32, i32); 25] = [
    (1, 1024),          // threads per block
    (2, 1024),          // maximum size of a block: x
    (3, 1024),          // y
    (4, 64),            // z
    (5, 2_147_483_647), // maximum size of the grid: x
    (6, 65_535),        // y
    (7, 65_535),        // z
    (8, 49_152),        // shared memory per block: 48 KB
    (9, 65_536),        // constant memory: 64 KB
    (10, 32),           // warp
    (12, 65_536),       // registers per block
    (39, 2048),         // threads per multiprocessor: 64 warps
    (41, 1),            // unified addressing
    (75, 9),            // compute capability
    (76, 0),
    (81, 233_472),    // shared memory per multiprocessor: 228 KB
    (82, 65_536),     // registers per multiprocessor
    (95, 1),          // cooperative launches
    (97, 232_448),    // shared memory per block, on request: 227 KB
    (106, 32),        // blocks per multiprocessor
    (111, 1024),      // shared memory reserved per block: 1 KB
    (16, 132),        // multiprocessors
    (37, 5120),       // width of the memory bus in bits
    (38, 52_428_800), // L2 cache: 50 MB
    (32, 1),          // memory with error correction
];

#[test]
fn device_attributes_equal_those_of_an_h100() {
    let numbers = H100.map(|(number, _)| number.to_string());
    let outcome = Run::new("h100", &numbers.each_ref().map(String::as_str)).env("GPUSIM_NDEV", "2");
    let outcome = outcome.outcome().expect_success();
    let said: Vec<&str> = outcome.stdout.lines().collect();
    let attributes = H100.map(|(number, value)| format!("{number}: {value} {value}"));
    // The device has 80 GB of memory.
    let device: Vec<&str> = attributes.iter().map(String::as_str).chain(["81920 MiB"]).collect();
    assert_eq!(said, [&device[..], &device[..]].concat());
}

#[test]
fn memory_pools_are_shared_between_processes_and_code_is_linked() {
    let outcome = Run::new("shared", &[]).outcome().expect_success();
    // Each process makes a memset of 3,000 bytes, which takes 1 us and 3 ns. Both processes write the same truth file.
    // The parent ends last, so the file contains the parent's memset.
    assert_eq!((outcome.total("count"), outcome.total("total_ns")), (1, 1_003));
}

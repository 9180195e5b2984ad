//! Tests the delivery of activity records to the client: the thread, the order, the buffers, and the records that a
//! flush delivers.

use gpusim_selftest::{Outcome, Run};

fn basic() -> Run {
    Run::new("basic", &[]).client("10,1,2,22", "2:211").env("GPUSIM_KERNELS", "gemm=120us")
}

fn durations(outcome: &Outcome, kind: u32) -> Vec<u64> {
    outcome.records(kind).iter().map(|r| r.number("end") - r.number("start")).collect()
}

#[test]
fn durations_come_from_the_table_the_name_suffix_and_the_formulas() {
    let outcome = basic().outcome().expect_success();
    assert_eq!(durations(&outcome, 10), [120_000, 301]);
    // Copies take 2 us + bytes / 25 GB/s; these copy 1000, 5000 and 50 x 100 bytes. Memsets take 1 us + bytes / 1 TB/s;
    // this one sets 1 MB.
    assert_eq!(durations(&outcome, 1), [2_040, 2_200, 2_200]);
    assert_eq!(durations(&outcome, 2), [2_000]);
}

#[test]
fn records_and_truth_agree_field_by_field() {
    let outcome = basic().outcome().expect_success();
    assert_eq!(outcome.truth.len(), 6);
    for truth in &outcome.truth {
        let corr = truth["corr"].to_string();
        let record = outcome.lines("record").into_iter().find(|r| r.str("corr") == corr).unwrap();
        for key in ["start", "end", "device", "context", "stream"] {
            assert_eq!(truth[key].to_string(), record.str(key), "{key} of {truth}");
        }
        assert_eq!(truth["delivered"], "delivered");
    }
    assert_eq!((outcome.total("count"), outcome.total("delivered")), (6, 6));
    assert_eq!(outcome.total("delivered_ns"), 120_000 + 301 + 2_040 + 2_200 + 2_200 + 2_000);
}

#[test]
fn the_truth_file_has_the_call_sites_that_the_program_set() {
    let outcome = basic().outcome().expect_success();
    let site = |name: &str| outcome.truth.iter().find(|t| t["name"] == name).unwrap()["site"].clone();
    assert_eq!(site("_Z9tiny_d301v"), "main;forward");
    let rows: Vec<&str> = outcome.summary.iter().filter_map(|row| row["site"].as_str()).collect();
    assert_eq!(rows, ["main;copies", "main;copies", "main;copies", "main;forward", "main;forward"]);
}

#[test]
fn copy_records_have_the_memory_kinds_of_source_and_destination() {
    let outcome = basic().outcome().expect_success();
    let ends: Vec<String> = outcome
        .records(1)
        .iter()
        .map(|r| format!("{} {}->{}", r.str("copy"), r.str("from"), r.str("to")))
        .collect();
    assert_eq!(ends, ["1 1->3", "2 3->2", "1 2->3"]);
}

#[test]
fn cuptis_own_worker_thread_delivers_buffers() {
    let outcome = basic().outcome().expect_success();
    let buffer = outcome.lines("buffer")[0];
    assert_eq!(buffer.str("thread"), "cupti-worker");
    assert_ne!(buffer.number("tid"), outcome.lines("injected")[0].number("tid"));
}

#[test]
fn a_record_can_be_delivered_before_its_calls_exit() {
    let outcome = basic().env("GPUSIM_EARLY", "1").outcome().expect_success();
    let position = |text: &str| outcome.log.iter().position(|l| l.text.contains(text)).unwrap();
    assert!(position("record kind=10") < position("site=exit"));
    assert_eq!(outcome.lines("buffer").len(), 6);
}

#[test]
fn a_shuffle_seed_reorders_records_without_losing_any() {
    let order = |seed: &str| -> Vec<u64> {
        let run = Run::new("launches", &["2", "3000"]).client("10", "2:211").env("CLIENT_BUFFER", "21600");
        let outcome = run.env("GPUSIM_SHUFFLE", seed).outcome().expect_success();
        outcome.records(10).iter().map(|r| r.number("corr")).collect()
    };
    let shuffled = order("7");
    let mut sorted = shuffled.clone();
    sorted.sort_unstable();
    assert_ne!(shuffled, sorted);
    sorted.dedup();
    assert_eq!(sorted.len(), 6000);
}

#[test]
fn threads_use_one_shared_buffer_or_per_thread_buffers() {
    let buffers = |threads: &str| {
        let run = Run::new("launches", &["4", "10"]).client("10", "2:211").env("CLIENT_THREADS", threads);
        run.env("GPUSIM_CUPTI_VERSION", "13.0").outcome().expect_success().lines("buffer").len()
    };
    assert_eq!(buffers("0"), 1);
    assert!(
        (1..=4).contains(&buffers("1")),
        "a thread that starts after another's end takes its buffer over"
    );
}

#[test]
fn a_flush_withholds_running_kernels_and_a_forced_flush_delivers_them_without_times() {
    let real = |flush: &str| {
        let run = Run::new("real", &["leave"]).client("10", "2:211").env("GPUSIM_CLOCK", "real");
        run.env("CLIENT_FLUSH", flush).outcome().expect_success()
    };
    let unforced = real("0");
    assert_eq!(unforced.records(10).len(), 0, "one buffer holds the short and the long kernel");
    assert_eq!(unforced.total("pending"), 2);
    let forced = real("1");
    let long = forced.records(10).into_iter().find(|r| r.str("name").contains("long_one")).unwrap();
    assert_eq!((long.number("start"), long.number("end")), (0, 0));
    assert!(forced.total("pending") >= 1);
}

#[test]
fn with_the_real_clock_synchronize_waits_and_queries_report_progress() {
    let outcome =
        Run::new("real", &[]).client("10", "2:211").env("GPUSIM_CLOCK", "real").outcome().expect_success();
    let line = format!("x {}", outcome.stdout.trim());
    let field = |key: &str| -> u64 {
        line.split(' ').find_map(|w| w.strip_prefix(&format!("{key}="))).unwrap().parse().unwrap()
    };
    assert_eq!((field("query"), field("again"), field("event")), (600, 0, 100));
    assert!(field("waited") >= 100, "the kernel takes 100 ms: {line}");
}

#[test]
fn flushing_is_allowed_in_api_callbacks_and_aborts_in_other_callbacks() {
    basic().env("CLIENT_FLUSH", "now").outcome().expect_success();
    let inside = |place: &str| basic().env("CLIENT_CALLBACKS", "2:211,3:0").env("CLIENT_IN", place).outcome();
    inside("completed:flush").expect_abort("cuptiActivityFlushAll inside the client's BufferCompleted");
    inside("resource:flush").expect_abort("cuptiActivityFlushAll inside the client's ResourceCallback");
    inside("requested:flush").expect_abort("cuptiActivityFlushAll inside the client's BufferRequested");
}

#[test]
fn the_watchdog_detects_locks_taken_in_opposite_orders() {
    let run = basic().env("CLIENT_IN", "requested:lock").env("GPUSIM_WATCHDOG_MS", "500");
    run.outcome().expect_abort("deadlock: thread");
}

#[test]
fn the_watchdog_detects_a_buffer_callback_that_does_not_return() {
    let run = basic().env("CLIENT_IN", "completed:sleep").env("GPUSIM_WATCHDOG_MS", "500");
    run.outcome().expect_abort("waits for bufferCompleted");
}

#[test]
fn a_null_buffer_aborts_before_12_9_and_drops_records_since() {
    let null =
        |version: &str| basic().env("CLIENT_BUFFER", "0").env("GPUSIM_CUPTI_VERSION", version).outcome();
    null("12.0").expect_abort("bufferRequested gave no usable buffer");
    let outcome = null("12.9").expect_success();
    let counts: Vec<u64> = outcome.lines("dropped").iter().map(|l| l.number("n")).collect();
    assert_eq!(counts, [6, 0], "asking resets the count");
    assert_eq!(outcome.total("dropped"), 6);
}

#[test]
fn a_buffer_not_aligned_to_eight_bytes_aborts() {
    basic().env("CLIENT_BUFFER", "4097").outcome().expect_abort("does not lie on 8 bytes");
}

#[test]
fn too_few_buffers_drop_records() {
    // A buffer of 1080 bytes holds 5 kernel records of 216 bytes. The kernels take 20 ms. CUPTI returns the buffer only
    // after these kernels end; by then the program has made all its launches.
    let run = Run::new("launches", &["1", "100"]).client("10", "2:211").env("GPUSIM_CLOCK", "real");
    let run = run.env("GPUSIM_KERNELS", "even_d100=20ms,odd_d250=20ms").env("CLIENT_BUFFER", "1080");
    let outcome = run.env("GPUSIM_MAX_BUFFERS", "3").outcome().expect_success();
    assert_eq!((outcome.total("delivered"), outcome.total("dropped")), (15, 85));
    assert_eq!(outcome.lines("dropped")[0].number("n"), 85);
}

#[test]
fn the_clients_record_limit_per_buffer_is_respected() {
    let outcome = basic().env("CLIENT_RECORDS", "2").outcome().expect_success();
    assert_eq!(outcome.lines("record").len(), 6);
    assert!(outcome.lines("buffer").len() >= 3);
}

#[test]
fn buffers_can_be_empty_and_of_an_odd_size() {
    let outcome =
        basic().env("GPUSIM_EMPTY_BUFFERS", "1").env("GPUSIM_ODD_SIZE", "1").outcome().expect_success();
    let buffers = outcome.lines("buffer");
    assert!(buffers.iter().any(|b| b.number("valid") == 0));
    assert!(buffers.iter().all(|b| b.number("size") == 65528));
    assert_eq!(outcome.lines("out")[0].number("n"), 0);
}

#[test]
fn the_clients_own_clock_stamps_the_records() {
    let outcome = basic().env("CLIENT_CLOCK", "1").outcome().expect_success();
    // The client's timestamps count from boot and not from 1970, so they are smaller by more than a billion seconds.
    assert!(outcome.records(10).iter().all(|r| r.number("start") < 1_000_000_000_000_000_000));
    assert_eq!(durations(&outcome, 10), [120_000, 301]);
}

#[test]
fn a_tick_counting_client_gets_all_times_in_ticks() {
    let outcome = basic().env("CLIENT_CLOCK", "ticks").env("CLIENT_KINDS", "5,10").outcome().expect_success();
    // The client's clock has 2.6 ticks per nanosecond. The simulation measures this rate, at first over a millisecond.
    for (found, wanted) in durations(&outcome, 10).into_iter().zip([312_000, 783]) {
        assert!(found.abs_diff(wanted) <= wanted / 50 + 1, "{found} for {wanted}");
    }
    let first = |kind| outcome.records(kind).into_iter().map(|r| r.number("start")).min().unwrap();
    // The times of API calls and of kernels are both ticks since boot, not nanoseconds since 1970.
    let calls = outcome.records(5).into_iter().filter(|r| r.number("cbid") == 211);
    let launched = calls.map(|r| r.number("start")).min().unwrap();
    assert!(launched < first(10) && first(10) - launched < 2_600_000_000, "{launched} {}", first(10));
}

#[test]
fn outermost_api_calls_are_recorded_if_their_kinds_are_enabled() {
    let outcome = basic().env("CLIENT_KINDS", "4,5,10").outcome().expect_success();
    let kernels: Vec<u64> = outcome.records(10).iter().map(|r| r.number("corr")).collect();
    let launches: Vec<u64> =
        outcome.records(5).iter().filter(|r| r.number("cbid") == 211).map(|r| r.number("corr")).collect();
    assert_eq!(launches, kernels);
    assert!(outcome.records(4).is_empty(), "each call of the driver was one of the runtime's");
}

#[test]
fn external_ids_precede_every_api_record_of_their_thread() {
    let run = basic().env("CLIENT_KINDS", "5,39").env("CLIENT_EXTERNAL", "3:42,5:43,3:44");
    let outcome = run.outcome().expect_success();
    let calls: Vec<u64> = outcome.records(5).iter().map(|r| r.number("corr")).collect();
    let ids = |external: u64| {
        let of_kind = outcome.records(39).into_iter().filter(move |r| r.number("external") == external);
        of_kind.map(|r| (r.number("corr"), r.number("id"))).collect::<Vec<_>>()
    };
    assert!(calls.len() > 5);
    // For each kind of external id, a record contains the id that was pushed last.
    assert_eq!(ids(3), calls.iter().map(|corr| (*corr, 44)).collect::<Vec<_>>());
    assert_eq!(ids(5), calls.iter().map(|corr| (*corr, 43)).collect::<Vec<_>>());
}

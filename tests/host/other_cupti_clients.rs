//! Tests a process that contains another CUPTI client. The other client must get its records, the program must survive,
//! and gpuflame must report the records that it misses.

use std::path::{Path, PathBuf};

use crate::support::{Done, Run, Way, compile};

/// Builds `tests/programs/passing.c` (exit code 7) and two plugins. Each of the two plugins contains the CUPTI client
/// that the program uses.
fn passing() -> [PathBuf; 3] {
    let plugin = || compile("tests/programs/passing_client.c", &["-O2", "-shared", "-fPIC"]);
    [compile("tests/programs/passing.c", &["-O2"]), plugin(), plugin()]
}

/// Returns the GPU time in ns of the stacks with this leaf frame, or `None` if no stack has it.
fn nanos_under(done: &Done, tip: &str) -> Option<u64> {
    let folded = done.folded();
    let under = folded.iter().filter(|(frames, _)| frames.last().is_some_and(|frame| frame.starts_with(tip)));
    under.map(|(_, nanos)| *nanos).reduce(|a, b| a + b)
}

/// The other client frees every buffer that it gets, including some buffers of gpuflame.
#[test]
fn a_client_may_free_buffers_it_took_over_and_the_exit_reports_it() {
    let program = compile("tests/programs/rival.c", &["-O2"]);
    for way in [Way::Injected, Way::Preloaded] {
        let done = Run::new(&program, way).arg("100").ok();
        assert!(done.stdout.starts_with("handed"), "{}", done.stderr);
        assert_eq!(done.ledger("another CUPTI client").len(), 2, "{}", done.stderr);
        assert_eq!(nanos_under(&done, "[GPU_Kernel]taken"), None);
        assert_eq!(nanos_under(&done, "[GPU_Launch_Pending]"), Some(0));
    }
}

/// The program prints a line when it takes over the records, before CUPTI flushes any record. This line and gpuflame's
/// line go to the same pipe, so the test sees which line was printed first.
#[test]
fn a_takeover_of_the_records_is_reported_when_it_happens() {
    let program = compile("tests/programs/rival.c", &["-O2"]);
    let done = Run::new(&program, Way::Injected).arg("5500").ok();
    let said = done.stderr.find("took over the activity records: launches are recorded").expect(&done.stderr);
    assert!(said < done.stderr.find("rival: flushes").unwrap(), "{}", done.stderr);
}

/// The other client reads a CUPTI attribute that gpuflame sets. The other client reads this attribute before it takes
/// over the records, and again after gpuflame has noticed the takeover.
#[test]
fn a_client_that_took_the_records_sees_none_of_our_cupti_settings() {
    let program = compile("tests/programs/rival.c", &["-O2"]);
    let done = Run::new(&program, Way::Injected).arg("5500").ok();
    assert_eq!(done.stdout, "handed, zeroed 1 then 0\n", "{}", done.stderr);
}

#[test]
fn a_reopened_window_reclaims_the_records() {
    let program = compile("tests/programs/rival.c", &["-O2"]);
    for how in ["returns", "profiler"] {
        let done = Run::new(&program, Way::Injected).args(["5500", how]).ok();
        assert!(done.stdout.starts_with("handed"), "{}", done.stderr);
        assert_eq!(done.ledger("activity records arrive again").len(), 1, "{}", done.stderr);
        assert_eq!(nanos_under(&done, "[GPU_Kernel]after"), Some(70 * 1000), "{}", done.stderr);
    }
}

/// Returns a run with CUPTI 13.3 or later and a driver that supports several CUPTI subscribers.
fn sharing(program: &Path, when: &str) -> Run {
    let run = Run::new(program, Way::Injected).arg(when);
    run.env("GPUSIM_CUPTI_VERSION", "13.4").env("GPUSIM_DRIVER", "13030")
}

/// The program launches 50 kernels of 1,000 ns, then 5,000 kernels of 2,000 ns.
#[test]
fn two_sharing_clients_each_get_all_records_in_either_order() {
    let program = compile("tests/programs/rival_v2.c", &["-O2"]);
    let both = [("first", 5050, 10_050_000), ("second", 5000, 10_000_000)];
    for (when, launches, nanos) in both {
        let done = sharing(&program, when).ok();
        let has = format!("calls {launches} kept {launches} records {launches} nanos {nanos} dropped 0\n");
        assert_eq!(done.stdout, has, "{when}\n{}", done.stderr);
        assert_eq!(done.truth().count("total_ns"), 10_050_000);
        assert!(!done.stderr.contains("took over the activity records"), "{}", done.stderr);
        done.assert_exact();
    }
}

/// If a client uses CUPTI's old interface, it gets two error codes:
/// - 39: the client cannot subscribe;
/// - 14: a process cannot mix CUPTI calls that pass a subscriber with CUPTI calls that pass no subscriber.
#[test]
fn an_old_interface_client_gets_error_codes_and_takes_no_records() {
    let program = compile("tests/programs/rival_v2.c", &["-O2"]);
    let done = sharing(&program, "v1").ok();
    assert_eq!(done.stdout, "subscribe 39 register 14 enable 14\n", "{}", done.stderr);
    done.assert_exact();
}

/// The client that subscribed first keeps its records, and a line on stderr explains why gpuflame gets no records.
#[test]
fn an_old_interface_client_that_came_first_keeps_its_records() {
    let program = compile("tests/programs/rival_v2.c", &["-O2"]);
    let done = sharing(&program, "v1-first").ok();
    assert_eq!(done.stdout, "register 0 enable 0 records 5050 nanos 10050000\n", "{}", done.stderr);
    assert!(done.stderr.contains("in a way that excludes gpuflame"), "{}", done.stderr);
}

/// A driver without support for several CUPTI subscribers allows only one subscriber, even if CUPTI is newer than the
/// driver.
#[test]
fn with_an_older_driver_the_second_client_is_refused() {
    let program = compile("tests/programs/rival_v2.c", &["-O2"]);
    let run = Run::new(&program, Way::Injected).arg("second").env("GPUSIM_CUPTI_VERSION", "13.4");
    let done = run.done();
    assert_eq!(done.code, Some(21), "{}", done.stderr);
}

/// Builds two clients. One client is linked to CUPTI, so the dynamic linker resolves its calls before gpuflame is
/// loaded. The second client looks up CUPTI's functions later.
fn clients() -> [PathBuf; 2] {
    let linked = ["-O2", "-DTO_CUPTI", "-Wl,--no-as-needed", "-l:libcupti.so.13"];
    [compile("tests/programs/client.c", &["-O2"]), compile("tests/programs/client.c", &linked)]
}

/// Asserts that the outputs contain the 50 launches before the other client is active and the 70 launches after it is
/// done. The outputs may lack the 40 launches between these two groups.
fn assert_before_and_after(done: &Done, afters: u64) {
    assert_eq!(nanos_under(done, "[GPU_Kernel]before"), Some(50 * 1000), "{}", done.stderr);
    assert_eq!(nanos_under(done, "[GPU_Kernel]theirs"), None, "{}", done.stderr);
    assert_eq!(nanos_under(done, "[GPU_Kernel]after"), Some(afters * 70 * 1000), "{}", done.stderr);
}

/// The other client gets exactly its own records and sees no setting of gpuflame. When the other client is done,
/// gpuflame gets the records again.
#[test]
fn a_client_gets_all_its_records_and_gpuflame_reclaims_them_afterwards() {
    for program in clients() {
        for way in [Way::Injected, Way::Preloaded] {
            let done = Run::new(&program, way).arg("records").ok();
            assert_eq!(
                done.stdout, "zeroed 0; kernels 40 of 40, calls 0, at another time 0\n",
                "{}",
                done.stderr
            );
            assert_before_and_after(&done, 1);
            let taken = done
                .stderr
                .find("took over the activity records: launches are recorded")
                .expect(&done.stderr);
            let back = done.stderr.find("activity records arrive again").expect(&done.stderr);
            assert!(taken < back, "{}", done.stderr);
            assert_eq!(nanos_under(&done, "[no launch stack]"), None, "{}", done.stderr);
        }
    }
}

/// The thread that opens a recording window does not know that the other client is active.
#[test]
fn an_opening_window_leaves_the_records_to_an_active_client() {
    let [program, _] = clients();
    let done = Run::new(&program, Way::Injected).arg("window").ok();
    assert_eq!(done.stdout, "zeroed 0; kernels 40 of 40, calls 0, at another time 0\n", "{}", done.stderr);
    assert_before_and_after(&done, 1);
    assert_eq!(done.ledger("activity records arrive again").len(), 1, "{}", done.stderr);
}

/// gpuflame cannot intercept calls that a client made before gpuflame was loaded. Therefore gpuflame detects the client
/// by the record kinds that the client has enabled.
#[test]
fn a_client_that_registered_before_gpuflame_and_gets_no_records_is_reported() {
    let [program, _] = clients();
    let done = Run::new(&program, Way::Injected).arg("early").ok();
    assert_eq!(done.stdout, "zeroed 0; kernels 0 of 40, calls 0, at another time 0\n", "{}", done.stderr);
    assert_eq!(
        done.ledger("CUPTI delivers records to gpuflame that another client requested first").len(),
        1,
        "{}",
        done.stderr
    );
    assert_eq!(nanos_under(&done, "[GPU_Kernel]before"), Some(50 * 1000), "{}", done.stderr);
    // When the client ends, it disables its record kinds. CUPTI disables a record kind for all clients together, but
    // gpuflame must get the later records nevertheless.
    assert_eq!(nanos_under(&done, "[GPU_Kernel]after"), Some(70 * 1000), "{}", done.stderr);
}

/// When the client starts again, it does not register its buffer functions again, because it does not know that
/// gpuflame has registered other functions in the meantime.
#[test]
fn a_client_that_restarts_gets_its_records_and_gpuflame_reclaims_them_twice() {
    for program in clients() {
        let done = Run::new(&program, Way::Injected).arg("again").ok();
        assert_eq!(
            done.stdout, "zeroed 0; kernels 80 of 80, calls 0, at another time 0\n",
            "{}",
            done.stderr
        );
        assert_before_and_after(&done, 2);
        assert_eq!(done.ledger("activity records arrive again").len(), 2, "{}", done.stderr);
    }
}

/// CUPTI reports all times on the clock that the client registered. When the client is done, gpuflame must get times in
/// nanoseconds again.
#[test]
fn a_clients_clock_is_removed_when_the_client_is_done() {
    for program in clients() {
        let done = Run::new(&program, Way::Injected).arg("clock").ok();
        assert_eq!(
            done.stdout, "zeroed 0; zeroed 0; kernels 80 of 80, calls 0, at another time 0\n",
            "{}",
            done.stderr
        );
        assert_before_and_after(&done, 2);
    }
}

/// Tests four kinds of CUPTI clients:
/// - A client that flushes its records late.
/// - A client with slow buffer functions.
/// - A client that switches an activity kind on and off before it registers its buffer functions.
/// - A client that also subscribes to CUPTI's callbacks.
#[test]
fn late_slow_and_subscribing_clients_get_all_their_records() {
    let [program, _] = clients();
    for (how, subscribes) in [("late", false), ("slow", false), ("switch", false), ("both", true)] {
        let done = Run::new(&program, Way::Injected).arg(how).env("GPUFLAME_YIELD", "1").ok();
        let (_, rest) = done.stdout.split_once("zeroed 0; kernels 40 of 40, calls ").expect(&done.stdout);
        assert!(rest.ends_with(", at another time 0\n"), "{how}: {}", done.stdout);
        assert_eq!(done.stdout.starts_with("subscribe 0"), subscribes, "{how}: {}", done.stdout);
        // If a client flushes its records late, it counts as active until it has flushed.
        let afters = if how == "late" { "[GPU_Kernel]after" } else { "[GPU_Kernel]" };
        assert!(nanos_under(&done, afters) >= Some(70 * 1000), "{how}\n{}", done.stderr);
        assert_before_and_after(&done, 1);
    }
}

/// If gpuflame cannot know when a client is done, it leaves the records to that client, even if another client
/// subscribes in the meantime.
#[test]
fn no_record_is_taken_from_a_client_that_may_be_active() {
    let [program, _] = clients();
    for how in ["context", "two"] {
        let done = Run::new(&program, Way::Injected).arg(how).env("GPUFLAME_YIELD", "1").ok();
        let numbers: Vec<u64> =
            done.stdout.split("kernels ").nth(1).unwrap().split([' ', ',']).flat_map(str::parse).collect();
        assert!(numbers[0] == numbers[1] && numbers[0] > 40 + 100, "{how}: {}\n{}", done.stdout, done.stderr);
        assert_eq!(nanos_under(&done, "[GPU_Kernel]theirs"), None, "{how}\n{}", done.stderr);
    }
}

#[test]
fn a_client_can_borrow_the_subscription_on_request_until_it_is_done() {
    let [asking, linked] = clients();
    for (program, yields) in [(&asking, "records"), (&linked, "0")] {
        let done = Run::new(program, Way::Injected).arg("subscription").env("GPUFLAME_YIELD", yields).ok();
        assert_eq!(
            done.stdout, "subscribe 39, then 39; kernels 0 of 0, calls 0, at another time 0\n",
            "{}",
            done.stderr
        );
        done.assert_exact();
    }
    // In the last of the four runs, CUPTI and the driver support several subscribers at the same time.
    let ways = [
        (&asking, Way::Injected, "13.0"),
        (&linked, Way::Preloaded, "13.0"),
        (&linked, Way::Injected, "12.9"),
        (&asking, Way::Injected, "13.4"),
    ];
    for (program, way, version) in ways {
        let run = Run::new(program, way).arg("subscription").env("GPUFLAME_YIELD", "1");
        let done = run.env("GPUSIM_CUPTI_VERSION", version).env("GPUSIM_DRIVER", "13030").ok();
        // The client gets callbacks for at least 40 launches and a wait. Each launch call and each wait has an enter
        // callback and an exit callback.
        let (said, calls) = done.stdout.trim().split_once(", calls ").unwrap();
        let calls = calls.split(',').next().unwrap();
        assert_eq!(said, "subscribe 0, then 0; kernels 0 of 0", "{}", done.stderr);
        assert!(calls.parse::<u32>().unwrap() >= 82, "{calls}");
        assert_before_and_after(&done, 1);
        for said in
            ["another CUPTI client took the subscription", "gpuflame has the CUPTI subscription again"]
        {
            assert_eq!(done.ledger(said).len(), 1, "{}", done.stderr);
        }
        let (launches, parts) = done.sum("launches");
        assert_eq!(parts["matched"], launches - parts["outside"], "{}", done.stderr);
    }
}

/// Another thread launches kernels all the time: while the client starts, while it is active and while it ends. For
/// each launch, gpuflame must see both callbacks (enter and exit) or neither of them. No kernel may be attributed to
/// the wrong launch.
#[test]
fn launches_during_a_client_switch_are_recorded_completely_or_not_at_all() {
    for program in clients() {
        for how in ["records", "subscription", "finalize"] {
            let run = Run::new(&program, Way::Injected).args([how, "busy"]).env("GPUFLAME_YIELD", "1");
            // Each launch call is slow, so the thread is inside a launch call nearly all the time.
            let done = run.env("GPUSIM_LAUNCH_NS", "100000").ok();
            let (launches, parts) = done.sum("launches");
            let (activities, all) = done.sum("activities");
            assert_eq!(all["matched"] + all["outside"], activities, "{how}\n{}", done.stderr);
            assert_eq!(parts["dropped"], 0, "{how}\n{}", done.stderr);
            if how != "records" {
                assert_eq!(parts["matched"] + parts["outside"], launches, "{how}\n{}", done.stderr);
            }
            let folded: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
            assert_eq!(folded, 1000 * all["matched"], "{how}\n{}", done.stderr);
            let busy = nanos_under(&done, "[GPU_Kernel]busy");
            assert!(busy.is_some_and(|nanos| nanos > 0), "{how}: {busy:?}");
        }
    }
}

#[test]
fn gpuflame_subscribes_again_after_a_client_finalizes_cupti() {
    for program in clients() {
        let done = Run::new(&program, Way::Injected).arg("finalize").ok();
        assert_eq!(
            done.stdout, "finalize 0; kernels 0 of 0, calls 0, at another time 0\n",
            "{}",
            done.stderr
        );
        assert_before_and_after(&done, 1);
        assert_eq!(done.ledger("another CUPTI client called cuptiFinalize").len(), 1, "{}", done.stderr);
    }
}

/// Even with `GPUFLAME_YIELD=0`, gpuflame detects the client. Therefore the client does not see gpuflame's settings and
/// record kinds.
#[test]
fn with_yield_0_a_client_keeps_the_records_that_it_took() {
    let [program, _] = clients();
    let done = Run::new(&program, Way::Injected).arg("records").env("GPUFLAME_YIELD", "0").ok();
    assert_eq!(done.stdout, "zeroed 0; kernels 40 of 40, calls 0, at another time 0\n", "{}", done.stderr);
    assert!(done.stderr.contains("until the next window opens"), "{}", done.stderr);
    assert!(done.stderr.contains("another CUPTI client took over the activity records"), "{}", done.stderr);
    assert_eq!(nanos_under(&done, "[GPU_Kernel]after"), None);
}

/// Returns how often each case runs: once in CI, and more often in acceptance runs.
fn repeats() -> usize {
    std::env::var("GPUFLAME_REPEATS").map_or(1, |count| count.parse().unwrap())
}

/// When a client is done, it may free its state and be unloaded, but CUPTI still has pointers to the client's
/// functions. CUPTI would call these functions if gpuflame enabled record kinds, flushed or queried timestamps.
#[test]
fn a_client_that_is_done_is_not_called_again() {
    let [program, plugin, _] = passing();
    let run = |how: &str, way, yields: &str| {
        let run = Run::new(&program, way).arg(how).arg(&plugin);
        run.env("GPUFLAME_YIELD", yields).done()
    };
    std::thread::scope(|scope| {
        for how in ["unloaded", "freed", "unflushed", "clock"] {
            let run = &run;
            scope.spawn(move || {
                let without = run(how, Way::None, "records");
                let flushed = if how == "unflushed" || how == "clock" { "0\n" } else { "40\n" };
                assert_eq!((without.code, &*without.stdout), (Some(7), flushed), "{how}");
                for yields in ["records", "1", "0"].repeat(repeats()) {
                    let done = run(how, Way::Injected, yields);
                    let ended = (done.code, done.signal, &*done.stdout);
                    assert_eq!(ended, (Some(7), None, flushed), "{how}, {yields}\n{}", done.stderr);
                    assert_eq!(nanos_under(&done, "[GPU_Kernel]before"), Some(50 * 1000), "{}", done.stderr);
                    let afters = (yields != "0" || how == "clock").then_some(70 * 1000);
                    assert_eq!(nanos_under(&done, "[GPU_Kernel]after"), afters, "{how}\n{}", done.stderr);
                }
            });
        }
    });
}

/// The second client enables a record kind before it registers its buffer functions, as CUPTI's samples do. Another
/// thread launches kernels all the time.
#[test]
fn functions_of_an_unloaded_client_are_not_registered_again() {
    let [program, plugin, other] = passing();
    let run = |way, yields: &str| {
        let run = Run::new(&program, way).arg("next").arg(&plugin).arg(&other);
        run.env("GPUFLAME_YIELD", yields).done()
    };
    let without = run(Way::None, "records");
    assert_eq!((without.code, &*without.stdout), (Some(7), "40\n5\n"), "{}", without.stderr);
    for yields in ["records", "1", "0"].repeat(repeats()) {
        let done = run(Way::Injected, yields);
        let ended = (done.code, done.signal, &*done.stdout);
        assert_eq!(ended, (Some(7), None, "40\n5\n"), "{yields}\n{}", done.stderr);
    }
}

/// While a client registers its clock function, CUPTI calls this function. The client's clock function may leave that
/// call by longjmp.
#[test]
fn the_end_of_a_client_that_left_a_call_by_longjmp_is_detected() {
    let [program, _] = clients();
    let done = Run::new(&program, Way::Injected).arg("jumps").ok();
    assert_eq!(done.stdout, "zeroed 0; kernels 40 of 40, calls 0, at another time 0\n", "{}", done.stderr);
    assert_before_and_after(&done, 1);
}

/// The simulated CUPTI aborts the process if it is finalized during a flush.
#[test]
fn no_flush_is_in_flight_while_a_client_finalizes_cupti() {
    let [program, _] = clients();
    for how in ["finalize", "ended"].repeat(repeats()) {
        let run = Run::new(&program, Way::Injected).args([how, "flushes"]).env("GPUFLAME_YIELD", "1");
        let done = run.env("GPUSIM_FLUSH_NS", "20000000").ok();
        assert!(done.stdout.contains("finalize 0; "), "{how}: {}", done.stdout);
        assert_before_and_after(&done, 1);
    }
}

/// gpuflame reads the tables of the dynamic linker while CUDA starts. The program may have removed read access from
/// pages that these tables refer to.
#[test]
fn a_relocated_word_in_an_unreadable_page_is_replaced() {
    let program = compile("tests/programs/protected.c", &["-O2", "-Wl,--no-as-needed", "-l:libcupti.so.13"]);
    for way in [Way::None, Way::Injected] {
        for _ in 0..repeats() {
            let done = Run::new(&program, way).done();
            assert_eq!((done.code, &*done.stdout), (Some(7), "1\n"), "{way:?}\n{}", done.stderr);
        }
    }
}

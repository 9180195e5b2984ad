//! Compares the CPU time of launching threads, as the Linux kernel samples it, with the CPU time that the program
//! itself measures.
//!
//! If the Linux kernel does not allow sampling, these tests print this and are skipped. In CI, the Linux kernel must
//! allow sampling.

use crate::support::{Done, Run, Way, compile, skip};

fn sampled(what: &str, hertz: &str) -> Run {
    let program = compile("tests/programs/sampled.c", &["-O2", "-pthread"]);
    Run::new(&program, Way::Injected).arg(what).env("GPUFLAME_CPU_SAMPLES", hertz)
}

/// Returns the results of a run, or `None` if the Linux kernel refused to sample.
fn seen(done: Done) -> Option<Done> {
    let refused = done.ledger("GPUFLAME_CPU_SAMPLES: perf_event_open: ");
    let Some(why) = refused.first() else { return Some(done) };
    skip(&format!("the kernel refuses CPU samples: {why}"));
    None
}

/// Returns two totals of sampled nanoseconds: those of stacks that contain `frame`, and those of all stacks.
fn found(done: &Done, frame: &str) -> (u64, u64) {
    let all = done.folded_file("out.cpu.folded");
    let has = |frames: &[String]| frames.iter().any(|one| one == frame);
    let found = all.iter().filter(|(frames, _)| has(frames)).map(|(_, nanos)| nanos).sum();
    (found, all.iter().map(|(_, nanos)| nanos).sum())
}

/// Returns from the ledger: the number of samples, the number of dropped samples, the rate in Hz, and the number of
/// sampled threads.
fn line(done: &Done) -> (u64, u64, f64, u64) {
    let [line] = done.ledger("cpu samples")[..] else { panic!("one line of samples\n{}", done.stderr) };
    let numbers: Vec<f64> =
        line.split(|c: char| !c.is_ascii_digit() && c != '.').filter_map(|word| word.parse().ok()).collect();
    let [samples, dropped, _cut, _asked, got, _seconds, threads, ..] = numbers[..] else { panic!("{line}") };
    (samples as u64, dropped as u64, got, threads as u64)
}

#[test]
fn cpu_shares_of_60_30_and_10_percent_are_measured_within_2_points() {
    let Some(done) = seen(sampled("shares", "999").ok()) else { return };
    let all = done.folded_file("out.cpu.folded");
    let spun: u64 = ["sixty", "thirty", "ten"].map(|frame| found(&done, frame).0).iter().sum();
    for (frame, share) in [("sixty", 60.0), ("thirty", 30.0), ("ten", 10.0)] {
        let percent = 100.0 * found(&done, frame).0 as f64 / spun as f64;
        assert!((percent - share).abs() < 2.0, "{frame}: {percent:.2} %\n{}", done.stderr);
    }
    // If a stack begins at `main`, it is complete.
    let from_main: u64 =
        all.iter().filter(|(frames, _)| frames.iter().take(2).eq(["main", "work"])).map(|(_, n)| n).sum();
    assert!(from_main * 100 > spun * 98, "{from_main} of {spun}");
    // The program prints the CPU time that it used from its start; gpuflame samples a thread only after the collector
    // has seen a launch by that thread.
    let taken: u64 = done.stdout.trim().parse().unwrap();
    let (samples, dropped, got, threads) = line(&done);
    assert!(spun * 100 > taken * 90 && spun < taken + taken / 50, "{spun} of {taken} ns\n{}", done.stderr);
    assert_eq!(threads, 1, "{}", done.stderr);
    // On a busy machine, gpuflame's own threads may get no processor.
    assert!(dropped * 50 < samples && (got - 999.0).abs() < 50.0, "{dropped} dropped, {got} Hz");
    assert_eq!(samples, all.iter().map(|(_, nanos)| nanos).sum::<u64>() / (1_000_000_000 / 999));
}

#[test]
fn eight_threads_and_twenty_short_lived_threads_are_sampled() {
    for what in ["threads", "ends"] {
        let Some(done) = seen(sampled(what, "499").ok()) else { return };
        let (of_threads, all) = found(&done, "in_a_thread");
        let (_, dropped, _, threads) = line(&done);
        let made = if what == "threads" { 8 } else { 20 };
        assert_eq!(threads, made, "{}", done.stderr);
        // Each of the program's threads runs for 300 ms. The sampling of a thread starts about 20 ms after the thread's
        // first launch, or later on a busy machine.
        assert!(of_threads > made * 150_000_000, "{of_threads} ns\n{}", done.stderr);
        assert!(of_threads < made * 310_000_000, "{of_threads} ns\n{}", done.stderr);
        assert!(of_threads * 10 > all * 9 && dropped < 50, "{of_threads} of {all}\n{}", done.stderr);
    }
}

#[test]
fn sampling_survives_a_host_that_closes_all_descriptors() {
    let Some(done) = seen(sampled("closes", "999").ok()) else { return };
    for number in 0..20 {
        assert_eq!(done.file(&format!("mine{number}")), "mine\nmine\n", "mine{number}");
    }
    let (of_main, _) = found(&done, "in_main");
    assert!((600_000_000..820_000_000).contains(&of_main), "{of_main} ns\n{}", done.stderr);
    assert!(found(&done, "in_a_thread").0 > 4 * 150_000_000, "threads that launch afterwards are sampled");
}

#[test]
fn a_forked_child_is_not_sampled_and_its_parent_is() {
    let Some(done) = seen(sampled("forks", "999").ok()) else { return };
    let (of_main, _) = found(&done, "in_main");
    assert!((600_000_000..820_000_000).contains(&of_main), "{of_main} ns\n{}", done.stderr);
    assert_eq!(found(&done, "in_a_child").0, 0);
}

#[test]
fn no_call_is_interrupted_and_neither_errno_nor_the_exit_code_changes() {
    for hertz in ["99", "999"] {
        let done = sampled("calls", hertz).done();
        assert_eq!((done.code, done.stdout.trim()), (Some(3), "0 interrupted, 0 changed"), "{}", done.stderr);
        let Some(done) = seen(done) else { return };
        assert!(line(&done).0 > 20, "{}", done.stderr);
    }
}

#[test]
fn the_function_that_kept_the_gpu_waiting_is_the_top_idle_stack() {
    let Some(done) = seen(sampled("late", "999").ok()) else { return };
    let idle = done.folded_file("out.idle.folded");
    let late: u64 = idle.iter().map(|(_, nanos)| nanos).sum();
    // While other programs use the processor, the time belongs to no function of this program. Time without a processor
    // is shown under `[after`, a frame that names the calls before and after the gap.
    let is_pause = |frames: &[String]| frames.iter().any(|frame| frame.starts_with("[after"));
    let sampled = idle.iter().filter(|(frames, _)| !is_pause(frames));
    let (first, _) = sampled.max_by_key(|(_, nanos)| *nanos).unwrap();
    assert_eq!(first.join(";"), "main;work;before_the_second;[GPU_Idle host late]", "{}", done.stderr);
    let has = |frames: &[String]| frames.iter().any(|frame| frame == "before_the_second");
    let named: u64 = idle.iter().filter(|(frames, _)| has(frames)).map(|(_, nanos)| nanos).sum();
    let taken: u64 = done.stdout.trim().parse().unwrap();
    assert!(named * 100 > taken * 85 && named < taken + taken / 20, "{named} of {taken} ns\n{}", done.stderr);
    // Samples split the idle time into parts, and the sum of these parts is still the whole idle time.
    let (sum, _) = done.sum("GPU 0 idle_ns");
    assert_eq!(sum, late);
}

/// Runs a program that waits between two launches. `what` is the way in which the program waits. Returns `None` if this
/// machine does not allow gpuflame to observe waits.
fn waiting(what: &str) -> Option<Done> {
    let done = sampled(what, "999").env("GPUFLAME_OFF_CPU", "1").ok();
    let refused = done.ledger("GPUFLAME_OFF_CPU: perf_event_open: ");
    let Some(why) = refused.first() else { return seen(done) };
    skip(&format!("the kernel refuses samples of waits: {why}"));
    None
}

#[test]
fn sleeping_locking_reading_and_page_faulting_functions_are_the_top_idle_stack() {
    for (what, culprit) in
        [("sleeps", "naps"), ("locks", "wants_the_lock"), ("reads", "reads_a_pipe"), ("faults", "touches")]
    {
        let Some(done) = waiting(what) else { return };
        let idle = done.folded_file("out.idle.folded");
        // Time in which other programs used the processor is shown under `[after`, a frame that names the calls before
        // and after the gap.
        let is_pause = |frames: &[String]| frames.iter().any(|frame| frame.starts_with("[after"));
        let (first, _) =
            idle.iter().filter(|(frames, _)| !is_pause(frames)).max_by_key(|(_, nanos)| *nanos).unwrap();
        assert_eq!(first[..3], ["main", "waits", culprit], "{what}\n{}", done.stderr);
        let has = |frames: &[String]| frames.iter().any(|frame| frame == culprit);
        let named: u64 = idle.iter().filter(|(frames, _)| has(frames)).map(|(_, nanos)| nanos).sum();
        let taken: u64 = done.stdout.trim().parse().unwrap();
        assert!(named * 100 > taken * 80 && named < taken + taken / 20, "{what}: {named} of {taken} ns");
        let (sum, _) = done.sum("GPU 0 idle_ns");
        assert_eq!(sum, idle.iter().map(|(_, nanos)| nanos).sum::<u64>());
    }
}

#[test]
fn off_cpu_time_equals_the_sleep_and_includes_the_caller() {
    let Some(done) = waiting("sleeps") else { return };
    let all = done.folded_file("out.off-cpu.folded");
    let (mut slept, taken) = (0, done.stdout.trim().parse::<u64>().unwrap());
    for (frames, nanos) in &all {
        if frames.iter().any(|frame| frame == "naps") {
            // If gpuflame unwound by frame pointers, it would miss the frame `naps`, because the function of the C
            // library that `naps` calls has no frame pointer.
            assert_eq!(frames[..3], ["main", "waits", "naps"], "{}", done.stderr);
            slept += nanos;
        }
    }
    // After its sleep, the thread waits for a processor. The wait for a processor does not count as sleep.
    assert!(slept * 100 > taken * 95 && slept <= taken, "{slept} of {taken} ns\n{}", done.stderr);
    let [line] = done.ledger("off cpu")[..] else { panic!("one line of waits\n{}", done.stderr) };
    assert!(line.contains("dropped 0,") && line.ends_with("on 1 threads"), "{line}");
    // When the program exits, it waits until gpuflame has finished. The samples do not include the time that the
    // program waits for gpuflame.
    assert!(all.iter().all(|(frames, _)| frames[0] == "main"), "{all:?}");
}

#[test]
fn samples_in_the_recording_give_the_same_pictures() {
    let wanted = [("GPUFLAME_FORMATS", "folded,idle,gfr"), ("GPUFLAME_OFF_CPU", "1")];
    let run = wanted.into_iter().fold(sampled("sleeps", "999"), |run, (name, value)| run.env(name, value));
    let Some(done) = seen(run.ok()) else { return };
    for (view, file) in
        ["cpu", "off-cpu", "together", "idle"].map(|view| (view, format!("out.{view}.folded")))
    {
        let again = ["-q", "flamegraph", "out.gfr", "--view", view, "-o", "-", "--format", "folded"];
        let ran = crate::support::command::gpuflame(&done.folder, again).ok();
        assert_eq!(ran.stdout, done.file(&file), "{view}");
    }
}

#[test]
fn a_kernel_that_refuses_perf_events_is_reported_and_the_program_continues() {
    let done = sampled("refused", "99,perf").ok();
    let refused = done.ledger("GPUFLAME_CPU_SAMPLES: ");
    let expected = "perf_event_open: Operation not permitted, errno 1; to allow it, set sysctl \
                    kernel.perf_event_paranoid=2; in a container, add CAP_PERFMON or allow perf_event_open \
                    in the seccomp profile; or omit `,perf` to sample with timer signals; continuing without \
                    samples";
    assert_eq!(refused, [expected], "one message, whatever the number of threads");
    assert!(
        done.ledger("cpu samples 0 of ")[0].ends_with("on 0 threads, 2 threads were refused"),
        "{}",
        done.stderr
    );
    assert_eq!(done.sum("launches").1["matched"], 2);
}

#[test]
fn without_the_setting_no_thread_is_sampled() {
    let done = sampled("calls", "0").done();
    assert_eq!(done.ledger("cpu samples"), [""; 0]);
    assert!(!done.folder.join("out.cpu.folded").exists());
}

#[test]
fn the_together_view_sums_gpu_cpu_and_waiting_time() {
    let Some(done) = waiting("sleeps") else { return };
    let together = done.folded_file("out.together.folded");
    let sum = |all: &[(Vec<String>, u64)], has: &dyn Fn(&[String]) -> bool| -> u64 {
        all.iter().filter(|(frames, _)| has(frames)).map(|(_, nanos)| nanos).sum()
    };
    let ends = |tip: &'static str| move |frames: &[String]| frames.last().is_some_and(|last| last == tip);
    for (view, tip) in [("cpu", "[on CPU]"), ("off-cpu", "[waiting]")] {
        let own = done.folded_file(&format!("out.{view}.folded"));
        assert_eq!(sum(&together, &ends(tip)), sum(&own, &|_| true), "{view}");
    }
    // The program launches 51 kernels of 1 us each.
    assert_eq!(sum(&together, &|frames| frames.last().unwrap().contains("step_d1000")), 51_000);

    {
        let run = sampled("sleeps", "999").env("GPUFLAME_OFF_CPU", "1").env("GPUFLAME_FORMATS", "folded,gfr");
        let done = run.ok();
        let table = ["-q", "top", "out.gfr", "--by", "function", "-n", "0", "--format", "csv"];
        let ran = crate::support::command::gpuflame(&done.folder, table).ok();
        for name in ["naps", "launch", "waits"] {
            let has = |frames: &[String]| frames.iter().any(|frame| frame == name);
            let times = ["out.folded", "out.cpu.folded", "out.off-cpu.folded"]
                .map(|file| sum(&done.folded_file(file), &has).to_string());
            let row = format!("{},{name}", times.join(","));
            assert!(ran.stdout.lines().any(|line| line == row), "{row} is not in\n{}", ran.stdout);
        }
    }
}

/// Prepares a run in which the Linux kernel refuses to sample, so that gpuflame samples with a timer instead.
fn by_timer(what: &str) -> Run {
    sampled(what, "999").arg("refused")
}

#[test]
fn a_sampling_timer_measures_cpu_shares_without_perf_events() {
    let done = by_timer("shares").ok();
    let spun: u64 = ["sixty", "thirty", "ten"].map(|frame| found(&done, frame).0).iter().sum();
    for (frame, share) in [("sixty", 60.0), ("thirty", 30.0), ("ten", 10.0)] {
        let percent = 100.0 * found(&done, frame).0 as f64 / spun as f64;
        // At 100 Hz, 3 s give 300 samples. Therefore a share of 60 % has a standard deviation of 2.8 percentage points.
        assert!((percent - share).abs() < 8.0, "{frame}: {percent:.2} %\n{}", done.stderr);
    }
    // The weight of a timer sample is the number of sampling periods since the previous tick of the timer.
    let taken: u64 = done.stdout.trim().parse().unwrap();
    let (_, dropped, got, threads) = line(&done);
    assert!(spun * 100 > taken * 90 && spun < taken + taken / 50, "{spun} of {taken} ns\n{}", done.stderr);
    assert!(threads == 1 && dropped == 0 && got > 90.0 && got < 1010.0, "{}", done.stderr);
    assert!(done.ledger("cpu samples")[0].contains("taken by timer signals"), "{}", done.stderr);
    let (from_main, all) = found(&done, "main");
    assert!(from_main * 100 > all * 98, "{from_main} of {all} ns have a whole stack");
}

#[test]
fn a_sampling_timer_preserves_errno_and_counts_interrupted_calls() {
    let done = by_timer("calls").done();
    let (interrupted, rest) = done.stdout.trim().split_once(' ').unwrap();
    assert_eq!((done.code, rest), (Some(3), "interrupted, 0 changed"), "{}", done.stderr);
    let line = done.ledger("cpu samples")[0];
    let (_, counted) = line.split_once("which interrupted ").unwrap();
    let counted: u32 = counted.split_once(' ').unwrap().0.parse().unwrap();
    assert!(interrupted.parse::<u32>().unwrap() <= counted, "{}{}", done.stdout, done.stderr);
}

#[test]
fn a_sampling_timer_follows_short_lived_threads_and_no_forked_child() {
    for (what, frame) in [("ends", "in_a_thread"), ("forks", "in_main")] {
        let done = by_timer(what).ok();
        let (of_frame, _) = found(&done, frame);
        let expected = if what == "ends" { 20 * 300_000_000 } else { 800_000_000 };
        assert!(
            of_frame * 2 > expected && of_frame < expected + expected / 20,
            "{of_frame}\n{}",
            done.stderr
        );
        assert_eq!(found(&done, "in_a_child").0, 0);
    }
}

#[test]
fn a_timer_signal_that_the_program_handles_is_left_to_the_program() {
    let done = by_timer("takes").ok();
    assert_eq!(
        done.stdout.trim(),
        "0",
        "signals that arrived after the program's own action was noticed\n{}",
        done.stderr
    );
    assert_eq!(
        done.ledger("GPUFLAME_CPU_SAMPLES: the program has set its own action for the timer's signal").len(),
        1
    );

    let done = by_timer("takes_all").ok();
    assert_eq!(done.stdout.trim(), "0");
    let refused = done.ledger(
        "GPUFLAME_CPU_SAMPLES: cannot sample with a timer either: the program has set an action for every",
    );
    assert_eq!(refused.len(), 1, "{}", done.stderr);
}

/// In each of 20 gaps, the host computes for 10 ms and sleeps for 30 ms. Samples divide the gaps between computing and
/// sleeping, so the time that the host computes does not count as a pause, although no gap is counted at the place
/// where it computes.
#[test]
fn time_in_every_gap_is_no_pause() {
    let program = compile("tests/programs/two_places.c", &["-O2"]);
    let run =
        Run::new(&program, Way::Injected).env("GPUFLAME_CPU_SAMPLES", "999").env("GPUFLAME_OFF_CPU", "1");
    let done = run.env("GPUFLAME_OUTPUT", "out").ok();
    let found =
        crate::support::command::gpuflame(&done.folder, ["summary", "out.gfr", "--format", "json"]).ok();
    let found: serde_json::Value = serde_json::from_str(&found.stdout).unwrap();
    let findings = found["findings"].as_array().unwrap();
    let of = |place: &str| -> Vec<&str> {
        // On a busy machine, the thread may also have waited for a processor. The time that a thread waited for a
        // processor is reported by a separate finding, which does not blame the thread's own code.
        let is_here = |row: &&serde_json::Value| {
            row["culprit"].as_str().unwrap().contains(place) && row["id"] != "starved_thread"
        };
        findings.iter().filter(is_here).map(|row| row["id"].as_str().unwrap()).collect()
    };
    assert_eq!((of("compute"), of("rest")), (vec!["host_work"], vec!["host_work"]), "{found}");
}

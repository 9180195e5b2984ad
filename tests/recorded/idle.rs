//! Compares the idle GPU time that gpuflame reports, and its causes, with the gaps between the kernels, copies and
//! fills in the truth file of the simulated CUDA stack.

use std::collections::BTreeMap;

use crate::support::{Done, Run, Way, compile};
use serde_json::Value;

/// Idle time, keyed by GPU and by the function that launched the first GPU work after the idle time. The time before a
/// GPU's first work is not a gap.
type Gaps = BTreeMap<(u64, String), u64>;

fn stall(args: &[&str]) -> Run {
    let program = compile("tests/programs/stall.c", &["-O2"]);
    let truth = "lines.jsonl,summary:truth.json";
    Run::new(&program, Way::Injected).args(args.iter().copied()).env("GPUSIM_TRUTH", truth)
}

/// Returns, for each GPU, the gaps: the times in which the GPU ran nothing.
fn true_gaps(done: &Done) -> Gaps {
    let rows = done.file("lines.jsonl");
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
    let mut work: Vec<_> = rows
        .map(|row| {
            let site = row["site"].as_str().unwrap().rsplit(';').next().unwrap().to_owned();
            (number(&row, "device"), number(&row, "start"), number(&row, "end"), site)
        })
        .collect();
    work.sort();
    let (mut gaps, mut free) = (Gaps::new(), BTreeMap::<u64, u64>::new());
    for (device, start, end, site) in work {
        let free = free.entry(device).or_insert(start);
        if start > *free {
            *gaps.entry((device, site)).or_default() += start - *free;
        }
        *free = end.max(*free);
    }
    gaps
}

/// Returns two tables from the idle profile: all gaps, whatever their cause, and the part of each gap that is charged
/// to a single call. This single call is usually the last call before the launch that ended the gap.
fn found_gaps(done: &Done) -> (Gaps, Gaps) {
    let (mut ended, mut alone) = (Gaps::new(), Gaps::new());
    for (frames, nanos) in idle(done).filter(|(frames, _)| !frames[0].starts_with('[')) {
        let (leaf, site) = (frames.last().unwrap(), ended_by(&frames).to_owned());
        let device = leaf.strip_prefix("[GPU").unwrap().split('_').next().unwrap().parse().unwrap_or(0);
        let is_pair = frames.iter().any(|frame| frame.starts_with("[after"));
        let gaps = if is_pair || !leaf.ends_with("host late]") { &mut ended } else { &mut alone };
        *gaps.entry((device, site)).or_default() += nanos;
    }
    (ended, alone)
}

/// Asserts that each gap is under the function whose launch ended the gap, except for the part of the gap that is
/// charged to a single call.
fn assert_same_gaps(done: &Done) {
    let ((ended, alone), true_gaps) = (found_gaps(done), true_gaps(done));
    let sums = |all: &[&Gaps]| {
        let mut sums = BTreeMap::<u64, u64>::new();
        all.iter()
            .flat_map(|gaps| *gaps)
            .for_each(|((device, _), nanos)| *sums.entry(*device).or_default() += nanos);
        sums
    };
    assert_eq!(sums(&[&ended, &alone]), sums(&[&true_gaps]));
    assert!(ended.keys().all(|site| true_gaps.contains_key(site)), "{ended:?}");
    let calls: u64 = alone.values().sum();
    for (site, nanos) in &true_gaps {
        let found = ended.get(site).copied().unwrap_or(0);
        assert!(
            (found..=found + calls).contains(nanos),
            "{site:?}: {found} of {nanos} ns, and {calls} of calls"
        );
    }
    assert!(calls < true_gaps.values().sum::<u64>() / 2, "{calls} ns are charged to one call alone");
}

/// Returns the function whose launch ended a gap.
fn ended_by(frames: &[String]) -> &str {
    let functions = &frames[..frames.len() - 2];
    let before = functions.iter().rev().find_map(|frame| frame.strip_prefix("[before] "));
    let Some(after) = frames.iter().position(|frame| frame.starts_with("[after")) else {
        return functions.last().unwrap();
    };
    // If the same function made the call before the gap and the call after it, only API calls follow the marks
    // `[before]` and `[after`. In that case the function is the frame before the marks.
    let shared = frames[..after].last().unwrap();
    before.unwrap_or(possibly_running(shared).unwrap_or(shared))
}

/// Returns the function's name in a frame `[in NAME, or after it returned]`.
fn possibly_running(frame: &str) -> Option<&str> {
    frame.strip_prefix("[in ")?.strip_suffix(", or after it returned]")
}

fn idle(done: &Done) -> impl Iterator<Item = (Vec<String>, u64)> {
    done.folded_file("out.idle.folded").into_iter()
}

/// Returns the duration of the window, the busy time and the idle time of a GPU from the ledger, and checks the idle
/// time against the idle profile.
fn account(done: &Done, gpu: u64) -> (u64, u64, u64) {
    let (window, parts) = done.sum(&format!("GPU {gpu} window_ns"));
    let (idle, causes) = done.sum(&format!("GPU {gpu} idle_ns"));
    assert_eq!(idle, parts["idle"]);
    assert_eq!(causes["unknown"], 0, "{}", done.stderr);
    assert_eq!(done.ledger(&format!("GPU {gpu} late")), [""; 0]);
    (window, parts["busy"], idle)
}

#[test]
fn idle_time_names_the_stalling_function_and_its_lost_time() {
    for clock in ["virtual", "real"] {
        let done = stall(&["--steps", "40"]).env("GPUSIM_CLOCK", clock).ok();
        let planted: u64 = done.stdout.trim().parse().unwrap();
        let blamed: u64 = idle(&done)
            .filter(|(frames, _)| {
                frames.join(";")
                    == "main;[in step, or after it returned];[after] forward;cudaLaunchKernel;[before] load_batch;cudaMemcpyAsync;\
                        [GPU_Idle host late]"
            })
            .map(|(_, nanos)| nanos)
            .sum();
        let true_gaps = true_gaps(&done);
        let gap = true_gaps[&(0, "load_batch".to_owned())];
        // On a busy machine, the gap on the GPU may be longer than the pause that the program measured.
        assert!((planted - planted / 100..=gap).contains(&blamed), "{blamed} of {planted} ns, {clock} clock");
        assert_same_gaps(&done);
        let (_, busy, idle_time) = account(&done, 0);
        // Each step has four kernels and a copy of 1,000 bytes.
        assert_eq!(busy, 40 * (2 * 2000 + 2 * 1000 + 2000 + 1000 / 25));
        assert_eq!(idle(&done).map(|(_, nanos)| nanos).sum::<u64>(), idle_time);
    }
}

/// Runs a program that makes the GPU idle in one place of its code. Returns the stack with the most GPU idle time, and
/// the amount of this idle time in ns. Also returns two times that the program prints: the total time of the pauses in
/// that place, and how long the program waited for a processor.
fn culprit(what: &str) -> (String, u64, [u64; 2]) {
    let program = compile("tests/programs/culprits.c", &["-O2", "-pthread"]);
    let run = Run::new(&program, Way::Injected)
        .args([what, "10"])
        .env("GPUSIM_TRUTH", "lines.jsonl,summary:truth.json");
    let done = run.ok();
    let true_idle: u64 = true_gaps(&done).values().sum();
    let all: u64 = idle(&done).map(|(_, nanos)| nanos).sum();
    let (_, parts) = done.sum("GPU 0 idle_ns");
    // The program repeats the same work from beginning to end, so no gap counts as part of start-up or shutdown.
    let edges: u64 = ["opening", "closing", "start_up", "shutdown"].map(|part| parts[part]).iter().sum();
    assert_eq!(all - edges, true_idle, "{}", done.stderr);
    let (frames, nanos) = idle(&done).max_by_key(|(_, nanos)| *nanos).unwrap();
    let (lost, waited) = done.stdout.trim().split_once(' ').unwrap();
    (frames.join(";"), nanos, [lost, waited].map(|nanos| nanos.parse().unwrap()))
}

#[test]
fn the_top_idle_stack_names_the_calls_before_and_after_the_pause() {
    for (what, expected) in [
        (
            "sleep",
            "main;[in train, or after it returned];[after] cudaDeviceSynchronize;[before] compute;cudaLaunchKernel",
        ),
        (
            "function",
            "main;[in train, or after it returned];[after] slow_checkpoint;cudaDeviceSynchronize;[before] compute;cudaLaunchKernel",
        ),
        (
            "lock",
            "main;[in train, or after it returned];[after] locked;cudaDeviceSynchronize;[before] compute;cudaLaunchKernel",
        ),
        (
            "file",
            "main;[in train, or after it returned];[after] compute;cudaLaunchKernel;[before] read_file;cudaMemcpyAsync",
        ),
        ("allocation", "main;[in grow, or after it returned];[after] cudaMalloc;[before] cudaFree"),
        ("thread", "[after, thread autograd] backward;cudaLaunchKernel;[before] main;cudaLaunchKernel"),
    ] {
        let (top, nanos, [lost, waited]) = culprit(what);
        assert_eq!(top, format!("{expected};[GPU_Idle host late]"), "{what}");
        // The pauses are inside the GPU's idle time, except for the first microseconds of a pause, in which the GPU was
        // still busy. On a busy machine, the program may have to wait for a processor just before and just after a
        // pause.
        let most = lost + 100_000_000 + waited;
        assert!(
            (lost - lost / 20..most).contains(&nanos),
            "{what}: {nanos} of {lost} ns, {waited} ns waited"
        );
    }
}

#[test]
fn a_pause_is_split_at_calls_made_during_it() {
    let program = compile("tests/programs/culprits.c", &["-O2", "-pthread"]);
    let done = Run::new(&program, Way::Injected).args(["calls", "10"]).ok();
    let late = |pair: &str| {
        let line = format!("main;[in train, or after it returned];{pair};[GPU_Idle host late]");
        idle(&done).filter(|(frames, _)| frames.join(";") == line).map(|(_, nanos)| nanos).sum::<u64>()
    };
    let halves = [
        "[after] compute;cudaLaunchKernel;[before] cudaMalloc",
        "[after] cudaMalloc;[before] compute;cudaLaunchKernel",
    ];
    for half in halves.map(late) {
        // The program makes ten pauses, and each half of a pause lasts at least 5 ms.
        assert!(half > 47_500_000, "{half} ns");
    }
}

#[test]
fn each_of_two_gpus_with_two_streams_has_its_own_idle_time() {
    let run = stall(&["--steps", "20", "--devices", "2", "--streams", "2"]);
    let done = run.env("GPUSIM_NDEV", "2").env("GPUSIM_SHUFFLE", "3").ok();
    assert_same_gaps(&done);
    let (first, second) = (account(&done, 0), account(&done, 1));
    assert_eq!(first.0, second.0, "both GPUs have the same window");
    let line = "GPU 1 streams: ";
    assert!(done.ledger(line)[0].starts_with("2; stream "), "{}", done.stderr);
    // The second GPU ran nothing until the work on the first GPU was done.
    let opening: u64 = idle(&done)
        .filter(|(frames, _)| frames[0] == "[since the window opened]")
        .filter(|(frames, _)| frames.last().unwrap().starts_with("[GPU1_Idle"))
        .map(|(_, nanos)| nanos)
        .sum();
    assert!(opening > 20 * 5_000_000, "{opening}");
}

#[test]
fn a_window_filled_with_work_launched_earlier_is_not_idle() {
    let program = compile("tests/programs/window.c", &["-O2", "-DLINKED"]);
    let run = Run::new(&program, Way::Injected).env("GPUFLAME_ENABLED", "0");
    let done = run.env("GPUSIM_KERNELS", "step_d200000=20ms").ok();
    // With virtual time, 300 kernels of 20 ms run one after another. The first hundred kernels are launched before the
    // window opens, and still run when the window closes. The second hundred kernels are launched while the window is
    // open, and run after it has closed.
    let (window, busy, idle) = account(&done, 0);
    assert_eq!((window - busy, idle), (0, 0), "{}", done.stderr);
    assert!(busy > 100 * 20_000_000, "{}", done.stderr);
}

#[test]
fn idle_files_are_written_only_on_request() {
    let done = stall(&["--steps", "1"]).env("GPUFLAME_FORMATS", "folded").ok();
    assert_eq!(done.ledger("wrote").len(), 1);
    let done = stall(&["--steps", "1"]).env("GPUFLAME_FORMATS", "idle").ok();
    let wrote = done.ledger("wrote");
    assert!(wrote[0].ends_with("out.idle.folded") && wrote[1].ends_with("out.idle.svg"), "{wrote:?}");
    assert_eq!(wrote.len(), 2);
}

#[test]
fn a_gpu_clock_that_lags_is_reported() {
    let run = stall(&["--steps", "3", "--devices", "2"]).env("GPUSIM_NDEV", "2");
    let done = run.env("GPUSIM_SKEW_NS", "-50000000").ok();
    assert_eq!(done.ledger("GPU 0 clock"), [""; 0]);
    let line = done.ledger("GPU 1 clock: ");
    let [line] = line[..] else { panic!("{}", done.stderr) };
    let words: Vec<_> = line.split(' ').collect();
    assert_eq!(words[0], "15", "all work that ran there: {line}");
    // All GPU work begins 5 us or more after its launch. Because GPU 1's clock is wrong by 50 ms, GPU work seems to
    // begin nearly 50 ms before its launch.
    let at = words.iter().position(|word| *word == "ns;").unwrap();
    let behind: u64 = words[at - 1].parse().unwrap();
    assert!((49_000_000..50_000_000).contains(&behind), "{line}");
}

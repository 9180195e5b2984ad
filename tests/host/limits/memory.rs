//! Memory that gpuflame holds depends on the number of distinct stacks, not on the number of launches. The tests
//! measure this memory in two ways: by the ledger, and by Linux's figures for the process, minus the figures of a run
//! without gpuflame.

use std::path::Path;
use std::sync::OnceLock;

use crate::support::{Run, Way, compile};

const MIB: f64 = 1024.0 * 1024.0;
/// Maximum memory in bytes that gpuflame may hold in any program, and the additional memory that it may hold for each
/// distinct combination of launch context, name and device.
const MOST: f64 = 64.0 * MIB;
const MOST_PER_CELL: f64 = 256.0;
/// Maximum growth of memory, in bytes, after more launches of the same kind.
const MOST_GROWTH: f64 = 2.0 * MIB;

/// Duration of a cudaLaunchKernel call with a CUPTI client, in ns, as published for a measurement on hardware.
const TRACED_DRIVER: u32 = 4_000;
/// Number of threads of the program `load`.
const THREADS: u64 = 8;

/// Memory that gpuflame holds at the end of `main`, in bytes.
#[derive(Clone, Copy, Debug)]
struct Held {
    by_ledger: f64,
    /// Anonymous memory of the process with gpuflame, minus that of the same program without gpuflame.
    by_kernel: f64,
}

fn program() -> &'static Path {
    static PROGRAM: OnceLock<std::path::PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/load.c", &["-O2"]))
}

fn resident(stdout: &str) -> f64 {
    let line = stdout.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect(stdout);
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}

/// Runs `load` with `args`. gpuflame keeps up with the launches, because the program waits for gpuflame after every
/// 4,096 launches.
fn held(args: &str) -> Held {
    held_at(&format!("{args} --flush 4096"), 0)
}

/// Turns off the simulation's truth file, which would also use memory.
fn quiet(run: Run) -> Run {
    run.env("GPUSIM_TRUTH", "")
}

/// Returns the anonymous memory of the program, in bytes, in a run without gpuflame.
fn without() -> f64 {
    static WITHOUT: OnceLock<f64> = OnceLock::new();
    *WITHOUT.get_or_init(|| resident(&quiet(Run::new(program(), Way::None)).ok().stdout))
}

/// Runs `load` with `args`. Each launch call takes `launch_ns` or longer.
fn load(args: &str, launch_ns: u32) -> crate::support::Done {
    let run = Run::new(program(), Way::Injected).args(args.split(' '));
    // A checkpoint copies the sums, and the allocator keeps the memory of this copy. Therefore even the short runs make
    // a checkpoint, so that they can be compared with the long runs.
    let run = quiet(run).env("GPUFLAME_CHECKPOINT", "0.1");
    run.env("GPUSIM_LAUNCH_NS", launch_ns.to_string()).ok()
}

/// Returns, in bytes, the value that the ledger prints in MiB with the label `what`.
fn by_ledger(done: &crate::support::Done, what: &str) -> f64 {
    let cost = done.ledger("own cost:")[0];
    let mib = cost.split(", ").find_map(|part| part.strip_suffix(what)).expect(cost);
    mib.trim_end_matches(" MiB").parse::<f64>().unwrap() * MIB
}

/// Runs `load` twice, and returns the smaller result. The results of two runs differ by up to 1 MiB: if the collector
/// has to wait for a processor, its tables grow further before it empties them. The smaller result is enough to find a
/// leak: if memory grows with the number of launches, this is visible in both runs.
fn held_at(args: &str, launch_ns: u32) -> Held {
    let run = |_| {
        let done = load(args, launch_ns);
        let (launches, parts) = done.sum("launches");
        assert_eq!(parts["matched"], launches, "{}", done.stderr);
        Held { by_ledger: by_ledger(&done, " MiB held"), by_kernel: resident(&done.stdout) - without() }
    };
    let least = |one: Held, other: Held| Held {
        by_ledger: one.by_ledger.min(other.by_ledger),
        by_kernel: one.by_kernel.min(other.by_kernel),
    };
    (0..2).map(run).reduce(least).expect("two runs")
}

fn assert_bounded(held: Held, cells: u32) {
    let most = MOST + MOST_PER_CELL * f64::from(cells);
    assert!(held.by_ledger > MIB, "gpuflame does not count: {held:?}");
    assert!(held.by_ledger <= most && held.by_kernel <= most, "{held:?} with {cells} cells");
}

/// Checks that gpuflame holds about as much memory after many launches as after a few launches.
fn stays(few: Held, many: Held) -> Result<(), String> {
    for (who, growth) in
        [("ledger", many.by_ledger - few.by_ledger), ("kernel", many.by_kernel - few.by_kernel)]
    {
        if growth.abs() > MOST_GROWTH {
            return Err(format!("{:.1} MiB more by the {who}: {few:?}, {many:?}", growth / MIB));
        }
    }
    Ok(())
}

#[test]
fn held_memory_does_not_grow_with_the_number_of_launches() {
    let few = held("--launches 1000000");
    // Each of the eight threads launches from about ten call paths.
    assert_bounded(few, 80);
    stays(few, held("--launches 4000000")).unwrap();
}

#[test]
#[ignore = "takes minutes; .ci/long runs it"]
fn fifty_million_launches_hold_as_little_memory_as_one_million() {
    let few = held("--launches 1000000");
    let many = held("--launches 50000000");
    eprintln!("1 M: {few:?}, 50 M: {many:?}");
    assert_bounded(many, 80);
    stays(few, many).unwrap();
}

#[test]
#[ignore = "wants a second core for itself; .ci/long runs it"]
fn one_thread_launching_flat_out_holds_constant_memory_for_20_million_launches() {
    let few = held_at("--threads 1 --launches 1000000", 0);
    let many = held_at("--threads 1 --launches 20000000", 0);
    eprintln!("1 M: {few:?}, 20 M: {many:?}");
    assert_bounded(many, 10);
    stays(few, many).unwrap();
}

#[test]
#[ignore = "wants the machine for itself; .ci/long runs it"]
fn eight_threads_launching_flat_out_hold_at_most_64_mib() {
    let few = held_at("--launches 1000000", TRACED_DRIVER);
    let many = held_at("--launches 20000000", TRACED_DRIVER);
    eprintln!("1 M: {few:?}, 20 M: {many:?}");
    // The amounts of memory in the two runs may differ. If the collector has to wait for a processor, more launches are
    // pending at the same time, and the join's table of pending launches grows by up to 17 MiB.
    assert!(few.by_ledger <= MOST && many.by_ledger <= MOST, "{few:?}, {many:?}");
}

/// Maximum memory that gpuflame does not count as its own: relocated pages of the debug build, stacks of threads, and
/// the simulation's lists of records. In these tests, the memory that gpuflame does not count is 2 to 8 MiB.
const MOST_UNCOUNTED: f64 = 10.0 * MIB;

/// Runs `load` with the memory limit `ceiling` and eight threads, which launch kernels faster than the collector can
/// read the launches. Checks that memory stays below the limit, that the sums are right, and that losses are reported.
/// Returns the share of launches that were matched with their activities.
fn assert_behind_below(ceiling: usize, asked: u64) -> f64 {
    let most = |run: Run| {
        let args = format!("--watch 1 --launches {asked}");
        let done = quiet(run).args(args.split(' ')).ok();
        let line =
            done.stdout.lines().find_map(|line| line.strip_prefix("most RssAnon:")).expect(&done.stdout);
        (line.trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0, done)
    };
    let (without, _) = most(Run::new(program(), Way::None));
    let limit = format!("{}M", ceiling >> 20);
    let run =
        Run::new(program(), Way::Injected).env("GPUFLAME_MAX_MEM", &limit).env("GPUFLAME_FORMATS", "idle");
    let (with, done) = most(run);
    // The function `sum` checks that the parts of a total add up to it.
    let (launches, parts) = done.sum("launches");
    let (activities, of_activities) = done.sum("activities");
    // Every 64th launch of a thread is followed by a copy and a fill, and every 1,024th launch by another copy.
    let of_thread = asked / THREADS;
    let all = asked + THREADS * (2 * of_thread.div_ceil(64) + of_thread.div_ceil(1024));
    assert_eq!((launches, activities), (all, all), "{}", done.stderr);
    let (by_ledger, by_kernel) = (by_ledger(&done, " at most"), with - without);
    let share = parts["matched"] as f64 / launches as f64;
    eprintln!(
        "{limit}: {:.1} MiB, ledger {:.1}, {:.1} % matched",
        by_kernel / MIB,
        by_ledger / MIB,
        100.0 * share
    );
    let ceiling = ceiling as f64;
    assert!(
        by_ledger <= ceiling && by_kernel <= ceiling + MOST_UNCOUNTED,
        "{by_ledger} {by_kernel}: {}",
        done.stderr
    );
    let is_lost = of_activities["dropped"] > 0;
    assert_eq!(!done.ledger("incomplete: activities were dropped").is_empty(), is_lost, "{}", done.stderr);
    share
}

#[test]
fn launches_faster_than_the_collector_stay_below_the_memory_limit() {
    assert!(assert_behind_below(24 << 20, 2_000_000) > 0.0);
}

#[test]
#[ignore = "takes minutes; .ci/long runs it"]
fn twenty_million_launches_faster_than_the_collector_stay_below_every_memory_limit() {
    for mib in [24, 64, 256] {
        assert!(assert_behind_below(mib << 20, 20_000_000) > 0.0);
    }
}

/// With the real driver, a launch under a profiler takes at least 4 us.
#[test]
#[ignore = "wants the machine for itself; .ci/long runs it"]
fn launches_of_a_traced_driver_are_all_matched_below_the_lowest_memory_limit() {
    let run = quiet(Run::new(program(), Way::Injected)).args("--threads 4 --launches 2000000".split(' '));
    let run = run.env("GPUFLAME_MAX_MEM", "24M").env("GPUSIM_LAUNCH_NS", TRACED_DRIVER.to_string());
    let done = run.ok();
    let (launches, parts) = done.sum("launches");
    assert_eq!(parts["matched"], launches, "{}", done.stderr);
}

#[test]
fn a_leak_of_100_bytes_per_launch_is_detected() {
    let few = held("--launches 500000 --leak 100");
    let error = stays(few, held("--launches 1000000 --leak 100")).unwrap_err();
    assert!(error.contains("by the kernel"), "{error}");
}

#[test]
fn each_of_65536_stacks_costs_at_most_256_bytes() {
    assert_bounded(held("--contexts 16"), 1 << 16);
}

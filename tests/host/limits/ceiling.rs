//! Tests programs with far more stacks, kernels and threads than fit into memory: gpuflame stays below the memory
//! ceiling that the user has set. The sums equal those of the truth file to the nanosecond, and the flame graph still
//! shows the stacks that have the most GPU time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use gpuflame_model::record::Reader;

use crate::running::{FILE, Running, starved_for};
use crate::support::{Done, Run, Way, compile, plugin, skip};

const CEILING_MIB: f64 = 24.0;
/// Number of launches that each of the functions `before` and `after` makes.
const PLANTED: u64 = 1000;
/// After this number of new stacks, kernels or threads, the program launches `between` once.
const BETWEEN: u64 = 64;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("tests/programs/flood.c", &["-O2"]))
}

fn flood(what: &str, count: u64, settings: &[(&str, &str)]) -> Done {
    let run = Run::new(program(), Way::Injected).args([what, &count.to_string()]);
    let run = run.env("GPUFLAME_MAX_MEM", "24M");
    settings.iter().fold(run, |run, (name, value)| run.env(name, value)).ok()
}

/// Returns gpuflame's peak memory in MiB, as the ledger reports it.
fn most_held(done: &Done) -> f64 {
    let cost = done.ledger("own cost:")[0];
    cost.rsplit(", ").next().unwrap().trim_end_matches(" at most").parse().expect(cost)
}

/// Returns the GPU time for each leaf frame.
fn by_leaf<'a>(sums: impl IntoIterator<Item = (&'a (String, String), &'a u64)>) -> BTreeMap<&'a str, u64> {
    let mut leaves = BTreeMap::new();
    for ((_, leaf), nanos) in sums {
        *leaves.entry(leaf.as_str()).or_default() += nanos;
    }
    leaves
}

/// Checks three things that must hold in each test of this file: memory stays below the ceiling, the ledger and the
/// sums are right, and the planted launches (`before`, `between`, `after`) have exactly their GPU time. Returns the GPU
/// time for each call site and leaf frame.
fn assert_held_and_exact(done: &Done, count: u64) -> BTreeMap<(String, String), u64> {
    // The function `second` makes one launch more than each of the functions `before`, `between` and `after`.
    let all = count + count / BETWEEN + 3 * PLANTED + 1;
    eprintln!("{:.1} MiB at most; {}", most_held(done), done.stderr);
    assert!(most_held(done) <= CEILING_MIB, "{}", done.stderr);
    for sum in ["launches", "activities"] {
        let (seen, parts) = done.sum(sum);
        assert_eq!((seen, parts["matched"]), (all, all), "{}", done.stderr);
    }
    let found = done.by_site();
    assert_eq!(found.values().sum::<u64>(), done.truth().sums.values().sum::<u64>());
    let planted = [("before", "early_d2003", PLANTED * 2003), ("after", "late_d4007", PLANTED * 4007)];
    for (site, kernel, nanos) in planted {
        let key = (format!("main;{site}"), format!("[GPU_Kernel]{kernel}"));
        assert_eq!(found.get(&key), Some(&nanos), "{key:?}\n{}", done.stderr);
    }
    // gpuflame may forget the launch that `second` made before the flood of new stacks, but not the launches that it
    // made after the flood.
    let second = ("other_thread;second".to_owned(), "[GPU_Kernel]second_d51".to_owned());
    let nanos = found.get(&second).copied().unwrap_or(0);
    assert!((PLANTED * 51..=(PLANTED + 1) * 51).contains(&nanos), "{nanos}\n{}", done.stderr);
    let (window, parts) = done.sum("GPU 0 window_ns");
    let idle: u64 = done.folded_file("out.idle.folded").iter().map(|(_, nanos)| nanos).sum();
    assert_eq!(parts["idle"], idle, "of {window}");
    found
}

fn assert_between(found: &BTreeMap<(String, String), u64>, by: &str, count: u64) {
    let between = (format!("main;{by};between"), "[GPU_Kernel]middle_d3001".to_owned());
    assert_eq!(found.get(&between), Some(&(count / BETWEEN * 3001)));
}

fn assert_many_stacks(count: u64, settings: &[(&str, &str)]) {
    let done = flood("stacks", count, settings);
    let found = assert_held_and_exact(&done, count);
    let truth = done.truth();
    assert_eq!(by_leaf(&found), by_leaf(&truth.sums), "stacks are merged, but kernels are not");
    assert_between(&found, "flood_stacks", count);
    let others = ("[other stacks]".to_owned(), "[GPU_Kernel]junk_d101".to_owned());
    let shown = found.iter().filter(|((_, leaf), _)| *leaf == others.1).count() as u64;
    // The folded file has one line for each stack that is still listed separately, and one line for all other stacks.
    assert!(shown > 1000, "{shown} lines");
    assert_eq!(found[&others], (count + 1 - shown) * 101);
    // gpuflame may have forgotten a thread's stack before that thread launched again. In that case a part of the
    // stack's time is under `[other stacks]`.
    let second = found.get(&("[other stacks]".to_owned(), "[GPU_Kernel]second_d51".to_owned())).unwrap_or(&0);
    let (activities, nanos) = (count + 1 - shown + second / 51, found[&others] + second);
    let line = done.ledger("merged:")[0];
    assert!(
        line.ends_with(&format!(" stacks into [other stacks], with {activities} activities, {nanos} ns")),
        "{line}"
    );
}

#[test]
fn half_a_million_stacks_fit_in_24_mib_and_heavy_stacks_stay_listed() {
    assert_many_stacks(500_000, &[]);
}

#[test]
#[ignore = "takes minutes; .ci/long runs it"]
fn ten_million_stacks_fit_in_24_mib_and_heavy_stacks_stay_listed() {
    assert_many_stacks(5_000_000, &[]);
    assert_many_stacks(10_000_000, &[]);
}

/// The checkpoint of a killed process covers everything up to one second before the kill, or reports how much is
/// missing.
#[test]
fn a_checkpoint_under_memory_pressure_is_recent_or_marked_late() {
    let run = Run::new(program(), Way::Injected).args(["stacks", "10000000"]);
    let mut running = Running::of(run.env("GPUFLAME_MAX_MEM", "24M").env("GPUFLAME_CHECKPOINT", "0.05"));
    running.wait_for(|running| (running.folder.join(FILE).exists(), "no file".to_owned()));
    for pause in [0, 1, 3] {
        std::thread::sleep(Duration::from_secs(pause));
        let file = BufReader::new(File::open(running.folder.join(FILE)).unwrap());
        let mut reader = Reader::new(file).unwrap();
        while !matches!(reader.next_row(), Ok(None)) {}
        let now = UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let mark = reader.mark().unwrap();
        // If gpuflame's threads waited for a processor, this time does not count, because they could not write during
        // that time.
        let missing_ms = now.saturating_sub(mark.time.0 + starved_for(running.process())) / 1_000_000;
        let said = u64::from(mark.interval_ms);
        eprintln!("{missing_ms} ms, said {said}, late {}: {}", reader.state().missed_mark, running.stderr());
        assert!(
            reader.state().missed_mark || missing_ms <= said + 1000,
            "{missing_ms} ms, and the file states {said}"
        );
    }
    running.signalled(libc::SIGKILL);
}

/// A control group inside the control group of this process. On drop, the control group is removed.
struct Group(PathBuf);

impl Group {
    /// Creates a control group that is limited to `bytes` of memory. If this machine does not allow this, prints a
    /// sentence and returns `None`.
    fn new(bytes: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let places = own.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let (root, limit) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                _ => return None,
            };
            // In a container, the listed path of the control group is often its path on the host, but only the root of
            // the hierarchy is mounted.
            let around = [Path::new(root).join(path.trim_start_matches('/')), root.into()];
            Some((around.into_iter().find(|folder| folder.is_dir())?, limit))
        });
        for (around, limit) in places {
            let group = Self(around.join(format!("gpuflame-test-{}-{bytes}", std::process::id())));
            let is_there = fs::create_dir(&group.0).is_ok();
            if is_there
                && group.0.join(limit).exists()
                && fs::write(group.0.join(limit), bytes.to_string()).is_ok()
            {
                return Some(group);
            }
        }
        // SAFETY: geteuid has no precondition.
        let is_root = unsafe { libc::geteuid() } == 0;
        skip(match is_root {
            true => "root can make no control group with a memory limit here",
            false => "only root can make a control group with a memory limit",
        });
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Linux kills a process that exceeds the memory limit of its control group.
#[test]
fn a_20_mib_program_in_a_96_mib_cgroup_survives_with_exact_sums() {
    let Some(group) = Group::new(96 << 20) else { return };
    let count = 300_000;
    let script = r#"echo $$ >"$0/cgroup.procs" && exec "$@""#;
    let run = Run::new(Path::new("/bin/sh"), Way::Injected).args(["-c", script]).arg(&group.0).arg(program());
    let done = run.args(["stacks", &count.to_string()]).env("FLOOD_MIB", "20").ok();
    // Reads the peak memory usage of the control group. Not every version of Linux has such a file.
    let most =
        ["memory.max_usage_in_bytes", "memory.peak"].map(|name| fs::read_to_string(group.0.join(name)).ok());
    let most: u64 = most.into_iter().flatten().next().map_or(20 << 20, |text| text.trim().parse().unwrap());
    eprintln!("{} MiB at most", most >> 20);
    assert!(((20 << 20)..=(96 << 20)).contains(&most), "{most}");
    assert_held_and_exact(&done, count);
    assert_eq!(done.ledger("merged:").len(), 1, "{}", done.stderr);
}

#[test]
fn a_hundred_thousand_kernels_fit_in_24_mib_and_heavy_kernels_stay_listed() {
    assert_many_kernels(100_000);
}

#[test]
#[ignore = "takes minutes; .ci/long runs it"]
fn a_million_kernels_fit_in_24_mib_and_heavy_kernels_stay_listed() {
    assert_many_kernels(1_000_000);
}

fn assert_many_kernels(count: u64) {
    let done = flood("kernels", count, &[]);
    let found = assert_held_and_exact(&done, count);
    let others = ("main;flood_kernels;many".to_owned(), "[GPU_Kernel][other kernels]".to_owned());
    let shown = found.keys().filter(|(site, _)| *site == others.0).count() as u64;
    assert!(shown > 1000, "{shown} lines");
    assert_eq!(found[&others], (count + 1 - shown) * 101);
    assert_between(&found, "flood_kernels", count);
    assert!(done.ledger("merged:")[0].contains("kernels into [other kernels]"), "{}", done.stderr);
    let table = done.file("out.csv");
    assert!(table.lines().any(|line| line.starts_with("kernel,[other kernels],0,")), "{table}");
}

#[test]
fn fifty_thousand_successive_threads_fit_in_24_mib() {
    assert_many_threads(50_000, &[]);
}

#[test]
#[ignore = "takes minutes; .ci/long runs it"]
fn a_million_successive_threads_fit_in_24_mib() {
    assert_many_threads(1_000_000, &[]);
}

fn assert_many_threads(count: u64, settings: &[(&str, &str)]) {
    let done = flood("threads", count, settings);
    let found = assert_held_and_exact(&done, count);
    assert_eq!(found, done.truth().sums, "the number of stacks does not depend on the number of threads");
}

#[test]
fn unloading_a_plugin_does_not_duplicate_stacks_outside_the_plugin() {
    assert_many_unloads(100);
}

#[test]
#[ignore = "takes minutes; .ci/long runs it"]
fn two_thousand_unloads_do_not_duplicate_five_hundred_stacks() {
    assert_many_unloads(2_000);
}

fn assert_many_unloads(count: u64) {
    let plugin = plugin("one");
    let run = Run::new(program(), Way::Injected).args(["unloads", &count.to_string()]).arg(&plugin);
    let done = run.env("GPUFLAME_MAX_MEM", "24M").ok();
    let all = 500 * count + count / BETWEEN + 3 * PLANTED + 1;
    assert_eq!(done.sum("launches").1["matched"], all, "{}", done.stderr);
    assert!(most_held(&done) <= CEILING_MIB, "{}", done.stderr);
    assert!(done.ledger("merged:").is_empty(), "{}", done.stderr);
    // 500 of the 507 stacks are from the calls that the program makes to the plugin. The other seven of the 507 stacks
    // are those of `before`, `between`, `after`, `second` (called from two places), a free and a wait.
    assert_eq!(done.ledger("stacks")[0], "507 distinct");
}

/// gpuflame needs 384 KiB per launching thread, so the ceiling leaves room for 64 such threads at the same time. Linux
/// kills a process that exceeds the memory limit of its control group.
#[test]
fn launches_of_more_threads_than_fit_below_the_ceiling_are_counted() {
    let program = compile("tests/programs/threads.c", &["-O2"]);
    let group = Group::new(192 << 20);
    let script = r#"[ -z "$0" ] || echo $$ >"$0/cgroup.procs"; exec "$@""#;
    let run = Run::new(Path::new("/bin/sh"), Way::Injected).args(["-c", script]);
    let run = run.arg(group.as_ref().map_or(Path::new(""), |group| &group.0)).arg(program);
    let done = run.args(["2000", "2"]).env("GPUFLAME_MAX_MEM", "24M").ok();
    let (launches, parts) = done.sum("launches");
    assert_eq!((launches, done.truth().count("count")), (8000, 8000), "{}", done.stderr);
    // All threads of a round make their first launch before the first of these threads ends.
    assert!(parts["dropped"] >= 2 * (2000 - 64), "{}", done.stderr);
    assert!(parts["dropped"] < launches && most_held(&done) < 4.0 * CEILING_MIB, "{}", done.stderr);
}

#[test]
fn threads_above_the_memory_ceiling_share_one_root() {
    let done = flood("threads", 50_000, &[("GPUFLAME_ROOT", "thread")]);
    eprintln!("{:.1} MiB at most; {}", most_held(&done), done.stderr);
    assert!(most_held(&done) <= CEILING_MIB, "{}", done.stderr);
    let folded = done.folded();
    assert_eq!(folded.iter().map(|(_, nanos)| nanos).sum::<u64>(), done.truth().sums.values().sum::<u64>());
    let is_junk = |frames: &[String]| frames.last().is_some_and(|leaf| leaf == "[GPU_Kernel]junk_d101");
    let others = folded.iter().filter(|(frames, _)| frames[0] == "[other threads]" && is_junk(frames));
    let others: Vec<_> = others.collect();
    let [(frames, nanos)] = others[..] else { panic!("{others:?}") };
    assert_eq!(frames[1..], ["[other stacks]", "cudaLaunchKernel", "[GPU_Kernel]junk_d101"]);
    // Two threads may have had the same id, because Linux may reuse thread ids. If the name of a thread was dropped to
    // save memory, the root frame shows the thread's id.
    let single = folded.iter().filter(|(frames, _)| frames[0].starts_with("[thread ") && is_junk(frames));
    let (count, single) = single.fold((0, 0), |(count, sum), (_, nanos)| (count + 1, sum + nanos));
    assert!(count > 100, "{count}");
    assert_eq!(nanos + single, 50_000 * 101);
}

#[test]
fn stacks_below_the_memory_ceiling_are_all_listed_separately() {
    let run = |ceiling| {
        let done = flood("stacks", 2000, &[("GPUFLAME_MAX_MEM", ceiling)]);
        assert!(done.ledger("merged:").is_empty(), "{}", done.stderr);
        done.file("out.folded")
    };
    let (small, large) = (run("24M"), run("100G"));
    assert_eq!(small, large);
    assert!(small.lines().count() > 2000 && !small.contains("[other"));
}

/// Runs the `gpuflame` command with `args` on the recording, under this memory ceiling, and returns the command's
/// output.
fn read_again(done: &Done, ceiling: &str, args: &[&str]) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gpuflame"));
    command.args(args).arg("out.gfr").current_dir(&done.folder).env("GPUFLAME_MAX_MEM", ceiling);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_recording_is_read_within_the_readers_memory_ceiling() {
    let done = flood("stacks", 20_000, &[("GPUFLAME_FORMATS", "folded,idle,gfr")]);
    assert_held_and_exact(&done, 20_000);
    assert!(!done.ledger("merged:").is_empty(), "{}", done.stderr);
    let folded = |ceiling| read_again(&done, ceiling, &["flamegraph", "--format", "folded"]);
    let nanos = |folded: &str| -> u64 {
        let lines = folded.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    let (small, large) = (folded("24M"), folded("4G"));
    let all = done.truth().sums.values().sum::<u64>();
    assert_eq!([nanos(&small), nanos(&large)], [all, all]);
    assert!(small.contains("[other stacks]") && small.contains(" stacks_not_kept_apart\n"));
    assert!(large.lines().count() > 20_000 && !large.contains("other stacks") && !large.contains("not_kept"));
    let info = |ceiling| read_again(&done, ceiling, &["info", "--format", "json"]);
    assert!(info("24M").contains("stacks_not_kept_apart") && !info("4G").contains("not_kept"));
}

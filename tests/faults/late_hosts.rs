//! Tests jobs whose hosts begin to launch late after a wait. The traces are written event by event, so that each
//! expected time can be calculated by hand.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::command::gpuflame;
use crate::support::scratch;

const STEPS: u64 = 20;
/// Time in us for which a late host works after its wait and before it launches.
const LATE_US: u64 = 1500;

/// Writes the traces of a job on four GPUs, and returns the file names. In each step, the host of each rank launches a
/// kernel and a collective. The kernel starts 10 us after its launch and takes 1,000 us. The collective starts 1 us
/// after the end of the kernel on the same GPU, and ends on all GPUs 200 us after its last start. The host's wait ends
/// 3 us after the collective, and the next step begins 2 us later. If `is_late(rank, step)`, the host first works for
/// 1,500 us in `tokenize`. The rank's entry in `clocks` is added to all times of that rank.
fn job(folder: &Path, is_late: impl Fn(u64, u64) -> bool, clocks: [u64; 4]) -> Vec<String> {
    let mut events = vec![Vec::new(); 4];
    let mut begin = 100_000;
    for step in 0..STEPS {
        let late = [0, 1, 2, 3].map(|rank| if is_late(rank, step) { LATE_US } else { 0 });
        let end = begin + late.iter().max().unwrap() + 10 + 1000 + 1 + 200;
        for (rank, late) in (0..).zip(late) {
            let mut event = |cat: &str, name: &str, (tid, ts, dur): (u64, u64, u64), args: &str| {
                let (pid, ts) = (u64::from(cat != "kernel"), ts + clocks[rank]);
                events[rank].push(format!(
                    r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":{pid},"tid":{tid},"ts":{ts},"dur":{dur},"args":{{{args}}}}}"#
                ));
            };
            let launch = begin + late;
            event("user_annotation", &format!("ProfilerStep#{step}"), (1, begin, end + 4 - begin), "");
            if late > 0 {
                event("python_function", "train.py(77): tokenize", (1, begin, late), "");
            }
            event("python_function", "train.py(30): forward", (1, launch, end + 3 - launch), "");
            for (at, (name, start, stop)) in (0..).zip([
                ("gemm", launch + 10, launch + 1010),
                ("ncclDevKernel_AllReduce_Sum_f32", launch + 1011, end),
            ]) {
                let id = 2 * step + at + 1;
                let call = format!(r#""correlation":{id}"#);
                event("cuda_runtime", "cudaLaunchKernel", (1, launch + 6 * at, 5), &call);
                event("kernel", name, (7, start, stop - start), &format!(r#"{call},"device":0,"stream":7"#));
            }
            let wait = (1, launch + 20, end + 3 - launch - 20);
            event("cuda_runtime", "cudaDeviceSynchronize", wait, r#""correlation":9999"#);
        }
        begin = end + 5;
    }
    let write = |(rank, events): (usize, &Vec<String>)| {
        let name = format!("rank{rank}.json");
        let text = format!(r#"{{"distributedInfo":{{"rank":{rank}}},"traceEvents":[{}]}}"#, events.join(","));
        fs::write(folder.join(&name), text).unwrap();
        name
    };
    events.iter().enumerate().map(write).collect()
}

/// Returns the findings that `summary` prints, in the printed order.
fn findings(folder: &Path, files: &[String]) -> Vec<Value> {
    let args = ["summary"].into_iter().chain(files.iter().map(String::as_str)).chain(["--format", "json"]);
    let summary: Value = serde_json::from_str(&gpuflame(folder, args).ok().stdout).unwrap();
    summary["findings"].as_array().unwrap().clone()
}

fn of<'a>(found: &'a [Value], id: &str) -> &'a Value {
    found.iter().find(|one| one["id"] == id).unwrap_or_else(|| panic!("no {id} in {found:?}"))
}

fn has(finding: &Value, column: &str, text: &str) -> bool {
    finding[column].as_str().unwrap().contains(text)
}

#[test]
fn work_of_the_host_after_a_wait_is_no_cost_of_the_wait() {
    let folder = scratch("late_hosts");
    let files = job(&folder, |rank, _| rank == 3, [0; 4]);
    // Before each step except the first, the GPU of the rank whose host is late is idle for 1,500 us. The other ranks
    // wait for the late rank 20 times.
    let worked = (STEPS - 1) * LATE_US * 1000;
    for found in [findings(&folder, &files), findings(&folder, &files[3..])] {
        let host = of(&found, "host_work");
        assert_eq!(host["cost_ns"], worked, "{host}");
        assert!(has(host, "culprit", "tokenize"), "{host}");
        assert!(found.iter().all(|one| one["id"] != "sync_wait"), "{found:?}");
    }
    let found = findings(&folder, &files);
    let straggler = of(&found, "straggler");
    assert_eq!(straggler["cost_ns"], STEPS * LATE_US * 1000, "{straggler}");
    assert!(has(straggler, "why", "its host is late in train.py(77): tokenize"), "{straggler}");
    assert!(has(of(&found, "host_work"), "culprit", "on rank 3"), "{found:?}");
    fs::remove_dir_all(folder).unwrap();
}

/// If a trace has no Python frames, the lost time can only be placed between two CUDA calls.
#[test]
fn time_after_a_wait_whose_function_is_unknown_is_no_cost_of_the_wait() {
    let folder = scratch("late_hosts");
    let files = job(&folder, |rank, _| rank == 3, [0; 4]);
    let text = fs::read_to_string(folder.join(&files[3])).unwrap();
    let text = text.replace("python_function", "unknown_category");
    fs::write(folder.join(&files[3]), text).unwrap();
    let found = findings(&folder, &files[3..]);
    let host = of(&found, "host_work");
    // The time between the wait and the launch also includes the 2 us between two steps.
    let between = (STEPS - 1) * LATE_US * 1000..=(STEPS - 1) * (LATE_US + 2) * 1000;
    assert!(between.contains(&host["cost_ns"].as_u64().unwrap()), "{host}");
    assert!(found.iter().all(|one| one["id"] != "sync_wait"), "{found:?}");
    fs::remove_dir_all(folder).unwrap();
}

/// The clocks of ranks 1 and 2 differ most, by 52 ms. Neither rank 1 nor rank 2 is the first rank in the list.
#[test]
fn the_two_ranks_whose_clocks_differ_most_come_first() {
    let folder = scratch("late_hosts");
    let files = job(&folder, |rank, _| rank == 3, [12_000, 52_000, 0, 19_000]);
    let found = findings(&folder, &files);
    let (clocks, why) = (&found[0], "52.000 ms apart: the clock of rank 1 is ahead of that of rank 2");
    assert!(clocks["id"] == "clocks_of_ranks" && has(clocks, "why", why), "{found:?}");
    fs::remove_dir_all(folder).unwrap();
}

/// The trace contains all kernels, but without correlation ids.
#[test]
fn work_without_ids_is_not_missing() {
    let folder = scratch("late_hosts");
    let files = job(&folder, |_, _| false, [0; 4]);
    let text = fs::read_to_string(folder.join(&files[0])).unwrap();
    let without_ids = text.split(r#"{"ph""#).map(|event| match event.contains(r#""cat":"kernel""#) {
        true => event.replace(r#""correlation":"#, r#""number":"#),
        false => event.to_owned(),
    });
    fs::write(folder.join(&files[0]), without_ids.collect::<Vec<_>>().join(r#"{"ph""#)).unwrap();
    let coverage = findings(&folder, &files[..1]).swap_remove(0);
    let why = "launches and GPU work are not linked, because ids are missing";
    assert_eq!((&coverage["id"], &coverage["why"]), (&"launch_coverage".into(), &why.into()));
    fs::remove_dir_all(folder).unwrap();
}

/// Each rank's host is late in 5 of 20 steps, so in the other 15 steps the rank waits for 1,500 us. Each collective
/// ends 200 us after the last rank has entered it. If the ranks' clocks differ, this must not affect the findings.
#[test]
fn the_time_until_the_last_rank_enters_is_waiting_and_the_rest_is_communication() {
    for clocks in [[0; 4], [12_000, 52_000, 0, 19_000]] {
        let folder = scratch("late_hosts");
        let files = job(&folder, |rank, step| step % 4 == rank, clocks);
        let found = findings(&folder, &files);
        let (waited, moved) = (of(&found, "imbalance"), of(&found, "exposed_communication"));
        assert_eq!(waited["cost_ns"], 15 * LATE_US * 1000, "{waited}");
        assert!(has(waited, "why", "in all 22.500 ms"), "{waited}");
        assert_eq!(moved["cost_ns"], STEPS * 200_000 + 15 * LATE_US * 1000, "{moved}");
        assert!(has(moved, "why", "22.500 ms of which were waiting for the last rank"), "{moved}");
        fs::remove_dir_all(folder).unwrap();
    }
}

/// The collectives in the first rank's trace have other names, so they cannot be matched with the collectives of the
/// other ranks.
#[test]
fn communication_that_cannot_be_matched_is_said_to_include_waiting() {
    let folder = scratch("late_hosts");
    let files = job(&folder, |rank, step| step % 4 == rank, [0; 4]);
    let text = fs::read_to_string(folder.join(&files[0])).unwrap();
    fs::write(folder.join(&files[0]), text.replace("AllReduce_Sum_f32", "AllReduce_Sum_f16")).unwrap();
    let found = findings(&folder, &files);
    let moved = of(&found, "exposed_communication");
    assert_eq!(moved["cost_ns"], STEPS * 200_000 + 15 * LATE_US * 1000, "{moved}");
    assert!(has(moved, "why", "which includes waiting for late ranks"), "{moved}");
    fs::remove_dir_all(folder).unwrap();
}

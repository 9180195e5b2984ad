//! Tests programs that consist of two cooperating processes. In `ddp.py` each process has its own GPU, and the
//! processes call NCCL's collectives. In `share.py` both processes use the same GPU and share its memory.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::installed::{folder, run};
use crate::programs::{ONE, OTHER, assert_nothing_is_missing, assert_verified, ran_by, told_by};
use crate::support::{Done, Way};

/// Returns the process id of each rank, from the description file next to its outputs.
fn processes(done: &Done) -> BTreeMap<u32, u64> {
    let of_rank = |rank: u32| {
        let about: Value = serde_json::from_str(&done.file(&format!("rank{rank}.set.json"))).unwrap();
        assert_eq!(about["rank"].as_str(), Some(&*rank.to_string()));
        (rank, about["process"].as_u64().unwrap())
    };
    (0..2).map(of_rank).collect()
}

/// Returns name, start and end of each collective that a process ran, sorted by start.
fn collectives(done: &Done, process: u64) -> Vec<(String, u64, u64)> {
    let rows = done.file(&format!("truth-{process}.json"));
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut all: Vec<_> = rows
        .filter_map(|row| {
            let name = row["name"].as_str().filter(|name| name.contains("ncclDevKernel"))?;
            Some((name.to_owned(), row["start"].as_u64()?, row["end"].as_u64()?))
        })
        .collect();
    all.sort_by_key(|(_, start, _)| *start);
    all
}

/// Asserts how long these collectives take on the rank that arrives last. A collective takes 5 us, plus the time for
/// the bytes that move between the two ranks at 200 GB/s.
fn assert_last_takes(first: &[(String, u64, u64)], second: &[(String, u64, u64)]) {
    let nanos = |(_, start, end): &(String, u64, u64)| end - start;
    let last = |word: &str| {
        let both = first.iter().zip(second).filter(|(one, _)| one.0.contains(word));
        both.map(|(one, other)| nanos(one).min(nanos(other))).next_back()
    };
    // The collectives move these amounts of data:
    // - a million floats;
    // - half a million floats, because each rank needs one half;
    // - 1,000 floats in each direction at the same time.
    assert_eq!(last("Broadcast"), Some(5_000 + 4_000_000 / 200));
    assert_eq!(last("ReduceScatter"), Some(5_000 + 1_000_000 / 200));
    assert_eq!(last("SendRecv"), Some(5_000 + 2 * 4_000 / 200));
}

/// Each rank must be profiled completely, and gpuflame's times for which ranks wait for each other must equal those of
/// the truth files.
#[test]
fn two_ranks_and_their_waits_in_collectives_are_recorded_completely() {
    check_ranks(&ONE);
}

#[test]
#[ignore = "takes a minute; .ci/long runs it"]
fn two_ranks_are_recorded_completely_by_each_entry_with_each_cupti_version() {
    check_ranks(&OTHER);
    check_share(&OTHER);
}

/// Asserts for the ledger of each process that all GPU work is matched with launches, and that no stack differs from
/// the stack that libgcc finds.
fn assert_whole(done: &Done) {
    for what in ["launches ", "activities "] {
        let ledgers = done.ledger(what);
        assert_eq!(ledgers.len(), 2, "{}", done.stderr);
        for ledger in ledgers {
            let (total, parts) = ledger.split_once(" = ").unwrap();
            let matched = format!("matched {total} + ");
            assert!(parts.starts_with(&matched) && total != "0", "{what}{ledger}");
        }
    }
    let lost = done.ledger("lost: ");
    let nothing = [" stacks_guessed 0, stacks_cut 0, ", " python_dropped 0, python_unsure 0"];
    let is_whole = |ledger: &&str| nothing.iter().all(|word| ledger.contains(word));
    assert!(lost.len() == 2 && lost.iter().all(is_whole), "{lost:?}");
}

fn check_ranks(runs: &[(Way, &str)]) {
    let Some(python) = folder() else { return };
    let run = |way| run(python, "ddp.py", way).env("GPUSIM_NDEV", "2");
    let sorted = |done: &Done| {
        let mut lines: Vec<_> = done.stdout.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let alone = run(Way::None).env("GPUSIM_TRUTH", "").env("GPUSIM_LOG", "missing").ok();
    assert_nothing_is_missing(&alone);
    for &(way, version) in runs {
        let run = run(way).env("GPUSIM_TRUTH", "summary:sums-%p.json,truth-%p.json");
        let run = run.env("GPUFLAME_OUTPUT", "rank%r").env("GPUFLAME_FORMATS", "folded,csv,gfr");
        let done = run.env("GPUFLAME_VERIFY", "1").env("GPUSIM_CUPTI_VERSION", version).ok();
        assert_eq!(sorted(&done), sorted(&alone));
        let processes = processes(&done);
        let [first, second] = [0, 1].map(|rank| collectives(&done, processes[&rank]));
        assert!(first.len() >= 10, "{first:?}");
        for (one, other) in first.iter().zip(&second) {
            assert_eq!((&one.0, one.2), (&other.0, other.2), "a collective ends on all ranks at once");
        }
        assert_last_takes(&first, &second);
        for (rank, process) in &processes {
            let ran = ran_by(&done, &format!("sums-{process}.json"));
            assert_eq!(told_by(&done, &format!("rank{rank}.csv")), ran, "rank {rank}");
        }
        assert_verified(&done, 2);
        assert_whole(&done);
        let recordings = [0, 1].map(|rank| format!("rank{rank}.gfr"));
        let flags = ["--format", "json"].map(str::to_owned);
        let args = ["merge-ranks".to_owned()].into_iter().chain(recordings).chain(flags);
        let merged = crate::support::command::gpuflame(&done.folder, args).ok();
        let merged: Value = serde_json::from_str(&merged.stdout).unwrap();
        for (row, collectives) in merged["ranks"].as_array().unwrap().iter().zip([first, second]) {
            // The collectives run one after the other, so their durations can be added up.
            let waited: u64 = collectives.iter().map(|(_, start, end)| end - start).sum();
            assert_eq!(row["communication_ns"].as_u64(), Some(waited), "{row}");
        }
    }
}

#[test]
fn work_on_memory_shared_by_two_processes_is_recorded_in_both() {
    check_share(&ONE);
}

fn check_share(runs: &[(Way, &str)]) {
    let Some(python) = folder() else { return };
    let alone = run(python, "share.py", Way::None).env("GPUSIM_TRUTH", "").env("GPUSIM_LOG", "missing").ok();
    assert_nothing_is_missing(&alone);
    for &(way, version) in runs {
        let run = run(python, "share.py", way).env("GPUSIM_TRUTH", "summary:truth-%p.json");
        let run = run.env("GPUFLAME_OUTPUT", "out-%p").env("GPUFLAME_VERIFY", "1");
        let done = run.env("GPUSIM_CUPTI_VERSION", version).ok();
        assert_verified(&done, 2);
        assert_whole(&done);
        assert_eq!(done.stdout, alone.stdout);
        let names =
            fs::read_dir(&done.folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut kernels = Vec::new();
        for truth in names.filter(|name| name.starts_with("truth-")) {
            let ran = ran_by(&done, &truth);
            assert_eq!(told_by(&done, &truth.replace("truth-", "out-").replace(".json", ".csv")), ran);
            let of_kernels = ran.iter().filter(|((kind, _), _)| kind == "kernel");
            kernels.push(of_kernels.map(|(_, (count, _))| count).sum::<u64>());
        }
        kernels.sort_unstable();
        // The kernels of mul_ and add_ run 30 times each in one process, and 50 times each in the second process.
        assert_eq!(kernels, [60, 100]);
    }
}

/// A rank exits without notice. The second rank waits for the rank that has exited, in a collective, inside a launch
/// call. The wait ends with an error, or the process that started both ranks ends the waiting rank by a signal. In both
/// cases, the flame graph must contain all GPU work that ended before the wait ended.
#[test]
#[ignore = "takes a third of a minute; .ci/long runs it"]
fn a_rank_abandoned_in_a_collective_still_writes_its_profile() {
    let Some(python) = folder() else { return };
    for is_patient in [true, false] {
        let run = run(python, "ddp.py", Way::Injected).env("GPUSIM_NDEV", "2").env("GPUSIM_TRUTH", "");
        let run = run.env("GPUFLAME_OUTPUT", "rank%r").env("LEAVES", "1");
        let done = match is_patient {
            true => run.env("PATIENT", "1").env("GPUSIM_NCCL_TIMEOUT", "2").done(),
            false => run.done(),
        };
        assert_ne!(done.code, Some(0), "{}", done.stderr);
        let gave_up = done.stderr.contains("gpusim: NCCL: another rank did not come (rank 0)");
        assert_eq!(gave_up, is_patient, "{}", done.stderr);
        let is_all_reduce = |frames: &[String]| frames.last().unwrap().contains("ncclDevKernel_AllReduce");
        assert!(done.folded_file("rank0.folded").iter().any(|(frames, _)| is_all_reduce(frames)));
    }
}

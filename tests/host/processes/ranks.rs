//! Tests the processes of one job: each process writes a set of files and a description of this set. gpuflame reads a
//! folder of such sets as one profile.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::command::gpuflame as command;
use crate::support::{Run, Way, compile, scratch, skip};

const PROCESSES: u64 = 8;

/// Runs eight processes at the same time in one folder. The first process runs 1 step, and the last process runs 8
/// steps. In step I of its steps, a process launches I kernels of 20,000 ns. Returns the time until all processes had
/// ended.
fn run_all(folder: &Path, formats: &str, ranked: impl Fn(Run, u64) -> Run) -> u64 {
    let program = compile("tests/programs/timed.c", &["-O2"]);
    let start = |process: u64| {
        let run = Run::new(&program, Way::Injected).in_folder(folder).args(["steps", &process.to_string()]);
        let run = run.env("GPUFLAME_OUTPUT", "%e.%p").env("GPUFLAME_FORMATS", formats);
        let (mut command, _) = ranked(run, process - 1).into_command();
        // The folder may contain only gpuflame's files, so the test does not request a truth file.
        command.env_remove("GPUSIM_TRUTH").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let all: Vec<_> = (1..=PROCESSES).map(start).collect();
    all.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
    (1..=PROCESSES).map(|steps| steps * (steps + 1) / 2 * 20_000).sum()
}

/// Returns the descriptions (`.set.json`) of the sets in `folder`.
fn sets(folder: &Path) -> Vec<Value> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let sets = paths.filter(|path| path.to_str().unwrap().ends_with(".set.json"));
    sets.map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap()).collect()
}

fn merged(folder: &Path) -> Vec<(String, u64)> {
    command(folder, ["merge-ranks", ".", "-o", "all.folded"]).ok();
    let text = fs::read_to_string(folder.join("all.folded")).unwrap();
    let lines = text.lines().map(|line| line.rsplit_once(' ').unwrap());
    lines.map(|(stack, nanos)| (stack.to_owned(), nanos.parse().unwrap())).collect()
}

#[test]
fn eight_processes_with_ranks_merge_into_one_profile_by_rank() {
    let folder = scratch("ranks");
    let all = run_all(&folder, "folded,gfr", |run, rank| {
        run.env("OMPI_COMM_WORLD_RANK", (7 - rank).to_string()).env("OMPI_COMM_WORLD_SIZE", "10")
    });
    let mut sets = sets(&folder);
    sets.sort_by_key(|set| set["rank"].as_str().unwrap().to_owned());
    assert_eq!(sets.len(), 8);
    for (rank, set) in (0..).zip(&sets) {
        let steps = 8 - rank;
        let process = set["process"].as_u64().unwrap();
        assert_eq!(
            (set["rank"].as_str(), set["program"].as_str()),
            (Some(&*rank.to_string()), Some("timed"))
        );
        assert_eq!(set["launches"], steps * (steps + 1) / 2);
        assert_eq!(
            set["files"],
            serde_json::json!([format!("timed.{process}.folded"), format!("timed.{process}.gfr")])
        );
        assert_eq!((set["window"].is_null(), set["windows"].as_array().unwrap().len()), (true, 1));
        assert_eq!(set["gpus"][0]["gpu"], 0);
        assert!(!set["host"].as_str().unwrap().is_empty());
    }
    let remarks = command(&folder, ["merge-ranks", "."]).ok().stderr;
    assert!(remarks.contains("2 of 10 ranks are missing: 8, 9"), "{remarks}");
    let merged = merged(&folder);
    assert_eq!(merged.iter().map(|(_, nanos)| nanos).sum::<u64>(), all);
    let of_rank = |rank: u64| {
        let under = format!("rank {rank};");
        merged.iter().filter(|(stack, _)| stack.starts_with(&under)).map(|(_, nanos)| nanos).sum::<u64>()
    };
    for rank in 0..8 {
        let steps = 8 - rank;
        assert_eq!(of_rank(rank), steps * (steps + 1) / 2 * 20_000, "{merged:?}");
    }
}

/// The test uses the real `mpirun`, which assigns a rank to each process and reads the standard error of each process.
#[test]
fn eight_mpirun_processes_merge_into_one_profile_by_rank() {
    let version = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status();
    if version.is_err() {
        return skip("there is no mpirun; .ci/install installs one");
    }
    let (program, folder) = (compile("tests/programs/timed.c", &["-O2"]), scratch("mpirun"));
    let mut run = Run::new(Path::new("mpirun"), Way::Injected).in_folder(&folder);
    run = run.args(["--allow-run-as-root", "--oversubscribe", "-np", "8"]).arg(&program).args(["steps", "3"]);
    let run = run.env("GPUFLAME_OUTPUT", "%e.%r").env("GPUFLAME_FORMATS", "gfr");
    let (mut command, _) = run.into_command();
    let ran = command.env_remove("GPUSIM_TRUTH").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let mut ranks: Vec<_> =
        sets(&folder).iter().map(|set| set["rank"].as_str().unwrap().to_owned()).collect();
    ranks.sort();
    assert_eq!(ranks, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(said.matches("gpuflame: launches 6 = matched 6 ").count(), 8, "{said}");
    let merged = merged(&folder);
    // In step I of its steps, a process launches I kernels of 20,000 ns.
    for rank in 0..8 {
        let under = format!("rank {rank};");
        let of_rank = merged.iter().filter(|(stack, _)| stack.starts_with(&under));
        assert_eq!(of_rank.map(|(_, nanos)| nanos).sum::<u64>(), 6 * 20_000, "{merged:?}");
    }
}

#[test]
fn eight_processes_without_ranks_still_merge_into_one_profile() {
    let folder = scratch("loop");
    let all = run_all(&folder, "gfr", |run, _| run);
    assert!(sets(&folder).iter().all(|set| set["rank"].is_null()));
    let merged = merged(&folder);
    assert_eq!(merged.iter().map(|(_, nanos)| nanos).sum::<u64>(), all);
    let ranks: std::collections::BTreeSet<_> =
        merged.iter().map(|(stack, _)| stack.split(';').next().unwrap()).collect();
    assert_eq!(ranks.len(), 8, "{ranks:?}");
}

#[test]
fn merge_ranks_reports_output_sets_without_recordings() {
    let folder = scratch("no-recordings");
    run_all(&folder, "folded", |run, _| run);
    let ran = command(&folder, ["merge-ranks", "."]);
    assert!(
        ran.stderr.contains("contains 8 sets of files but no recording; record with `gfr`"),
        "{}",
        ran.stderr
    );
}

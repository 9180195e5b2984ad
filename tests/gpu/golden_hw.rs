//! Compares the simulated stack with recordings of real CUPTI, which `tests/gpu/run.sh` has written into
//! `tests/golden/hw/GPU-DRIVER/`. The order, ids and fields that a CUPTI client received must be equal; the test lists
//! every difference. Other tests run only on the simulated stack: they check the recorder, the replay and the
//! comparison.

#[path = "../support/recordings.rs"]
mod recordings;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use recordings::Recording;
use serde_json::Value;
use support::{Run, Way, command, compile, root, scratch, skip};

/// A program to record: its source, its argument, and its expected numbers of launches, of kernels, and of copies and
/// fills.
struct Program {
    name: &'static str,
    source: &'static str,
    argument: &'static str,
    launches: u64,
    kernels: u64,
    others: u64,
}

const PROGRAMS: [Program; 10] = [
    Program { name: "runtime", source: "tiny.cu", argument: "runtime", launches: 2, kernels: 2, others: 0 },
    Program { name: "copies", source: "tiny.cu", argument: "copies", launches: 6, kernels: 0, others: 6 },
    Program { name: "streams", source: "tiny.cu", argument: "streams", launches: 4, kernels: 4, others: 0 },
    Program { name: "exit", source: "tiny.cu", argument: "exit", launches: 4, kernels: 4, others: 0 },
    Program { name: "driver", source: "driver.c", argument: "2", launches: 14, kernels: 4, others: 10 },
    // The program launches a graph of two kernels three times. The program launches another graph twice, and updates
    // that graph between the two launches.
    Program {
        name: "capture",
        source: "tiny_graph.cu",
        argument: "capture",
        launches: 3,
        kernels: 6,
        others: 0,
    },
    Program {
        name: "explicit",
        source: "tiny_graph.cu",
        argument: "explicit",
        launches: 3,
        kernels: 6,
        others: 0,
    },
    Program {
        name: "update",
        source: "tiny_graph.cu",
        argument: "update",
        launches: 2,
        kernels: 4,
        others: 0,
    },
    // The program launches a graph three times. The graph has two kernels and a child graph. The child graph has two
    // kernels and another child graph of two kernels.
    Program {
        name: "child",
        source: "tiny_graph.cu",
        argument: "child",
        launches: 3,
        kernels: 18,
        others: 0,
    },
    Program { name: "clone", source: "tiny_graph.cu", argument: "clone", launches: 3, kernels: 6, others: 0 },
];

fn probe() -> &'static Path {
    static PROBE: OnceLock<PathBuf> = OnceLock::new();
    PROBE.get_or_init(|| {
        let library = scratch("probe").join("probe.so");
        let sources = root().join("tests/gpu/probe").read_dir().unwrap().map(|entry| entry.unwrap().path());
        let mut command = Command::new("gcc");
        command
            .args(["-shared", "-fPIC", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&library);
        command.args(sources.filter(|path| path.extension().is_some_and(|extension| extension == "c")));
        let output = command.args(["-ldl", "-lpthread"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        library
    })
}

fn program(source: &str) -> PathBuf {
    compile(&format!("tests/gpu/programs/{source}"), &["-O2", "-x", "c", "-std=gnu11"])
}

/// Runs a program under the recorder and returns the path of the recording.
fn record(run: Run) -> PathBuf {
    let folder = scratch("recording");
    let path = folder.join("recording.jsonl");
    let run = run.env("CUDA_INJECTION64_PATH", probe()).env("PROBE", "record").env("PROBE_OUT", &path);
    run.env("PROBE_BUFFER", "65536").ok();
    path
}

fn simulated(source: &str, argument: &str, cupti: &str) -> PathBuf {
    record(Run::new(&program(source), Way::None).arg(argument).env("GPUSIM_CUPTI_VERSION", cupti))
}

fn replay(recording: &Path) -> Run {
    Run::new(&compile("tests/gpu/programs/replay.c", &["-O2"]), Way::None).arg(recording)
}

fn rows(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn replaying_a_recording_reproduces_it() {
    for Program { name, source, argument, .. } in PROGRAMS {
        let first = simulated(source, argument, "13.0");
        let recording = Recording::read(&first);
        let again = Recording::read(&record(replay(&first)));
        // The replay creates no streams. Therefore CUPTI cannot give the recorder the ids of the recorded streams.
        let plain = |lines: &[String]| -> Vec<String> {
            lines.iter().map(|line| without(line, " stream ")).collect()
        };
        assert_eq!(plain(&again.callbacks), plain(&recording.callbacks), "{name}");
        let sorted = |lines: &[String]| -> BTreeSet<String> { plain(lines).into_iter().collect() };
        assert_eq!(again.records.len(), recording.records.len(), "{name}");
        assert_eq!(sorted(&again.records), sorted(&recording.records), "{name}");
    }
}

/// Returns `line` without the field `field` and its value.
fn without(line: &str, field: &str) -> String {
    match line.split_once(field) {
        Some((before, after)) => format!("{before}{}", after.find(' ').map_or("", |end| &after[end..])),
        None => line.to_owned(),
    }
}

#[test]
fn gpuflame_counts_the_same_work_in_a_replay_as_in_the_program() {
    for Program { name, source, argument, launches, kernels, others } in PROGRAMS {
        let recording = simulated(source, argument, "13.0");
        let done = replay(&recording).env("CUDA_INJECTION64_PATH", support::gpuflame()).ok();
        for (side, expected) in [("launches", launches), ("activities", kernels + others)] {
            let (total, parts) = done.sum(side);
            assert_eq!((total, parts["matched"]), (expected, expected), "{name}\n{}", done.stderr);
        }
        let table = done.file("out.csv");
        let counted: u64 = table.lines().filter(|line| line.starts_with("kernel,")).map(count).sum();
        assert_eq!(counted, kernels, "{name}\n{table}");
        // A graph node is also listed under the call that created it. The ids in the recording identify this call.
        let made_by = match name {
            "capture" | "update" => "cudaLaunchKernel",
            "explicit" | "child" | "clone" => "cudaGraphAddKernelNode",
            _ => continue,
        };
        for (frames, _) in done.folded() {
            assert!(frames.contains(&"[graph]".to_owned()), "{name}: {frames:?}");
            assert_eq!(frames[frames.len() - 2], made_by, "{name}: {frames:?}");
        }
    }
}

/// The count in a line `kernel,NAME,DEVICE,COUNT,..` of the CSV table.
fn count(line: &str) -> u64 {
    line.split(',').nth(3).unwrap().parse().unwrap()
}

#[test]
fn two_runs_of_a_program_give_equal_recordings() {
    for Program { name, source, argument, .. } in PROGRAMS {
        let [one, two] = [0, 1].map(|_| Recording::read(&simulated(source, argument, "13.0")));
        assert!(!one.callbacks.is_empty() && !one.records.is_empty(), "{name}");
        assert_eq!(one.differences(&two), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn every_difference_between_recordings_is_listed() {
    let path = simulated("tiny.cu", "runtime", "13.0");
    let whole = Recording::read(&path);
    let changed = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut rows = rows(&path);
        change(&mut rows);
        whole.differences(&Recording::from_rows(&rows))
    };
    let find = |rows: &[Value], wanted: &dyn Fn(&Value) -> bool| rows.iter().position(wanted).unwrap();

    let lost_exit = changed(&|rows| {
        let at = find(rows, &|row| row["call"] == "exit");
        rows.remove(at);
    });
    assert_eq!(lost_exit.len(), 1, "{lost_exit:#?}");
    assert!(
        lost_exit[0].starts_with("- callback 4: exit 1:307 cuLaunchKernel correlation 1"),
        "{lost_exit:#?}"
    );

    // Gives the nested call a separate correlation id, as with GPUSIM_CORR=distinct. Therefore the id in the call's
    // ENTER callback and all later ids change.
    let other_id = changed(&|rows| {
        let at = find(rows, &|row| row["domain"] == 1 && row["call"] == "enter");
        rows[at]["corr"] = 77.into();
    });
    assert!(
        other_id
            .iter()
            .any(|line| line.starts_with("+ callback 3: enter 1:307 cuLaunchKernel correlation 2"))
    );

    let other_order = changed(&|rows| rows.swap(1, 2));
    assert!(!other_order.is_empty());

    let other_field = changed(&|rows| {
        let at = find(rows, &|row| row.get("buffer").is_some());
        let hex = rows[at]["hex"].as_str().unwrap();
        // Changes the first kernel's field gridX, which is at byte 52 of the record.
        rows[at]["hex"] = format!("{}02{}", &hex[..104], &hex[106..]).into();
    });
    assert_eq!(other_field.len(), 2, "{other_field:#?}");
    assert!(other_field[0].contains("gridX 1") && other_field[1].contains("gridX 2"), "{other_field:#?}");

    let lost_record = changed(&|rows| {
        let at = find(rows, &|row| row.get("buffer").is_some());
        rows[at]["at"].as_array_mut().unwrap().pop();
    });
    assert_eq!(lost_record.len(), 1, "{lost_record:#?}");
    assert!(lost_record[0].starts_with("- record 2: kernel \"b_d20000\""), "{lost_record:#?}");
}

#[test]
fn a_cuda_stack_that_behaves_differently_is_detected() {
    let one = Recording::read(&simulated("tiny.cu", "runtime", "13.0"));
    let run = Run::new(&program("tiny.cu"), Way::None).arg("runtime").env("GPUSIM_CORR", "distinct");
    let other = Recording::read(&record(run));
    assert_ne!(one.differences(&other), Vec::<String>::new());
}

#[test]
fn a_broken_recording_is_rejected_in_one_line() {
    for (text, reason) in [
        ("", "does not say that this is a recording"),
        ("{\"n\":0,\"recording\":1}\n{\"n\":1,", "line 2"),
        ("{\"recording\":1}\n{\"buffer\":1,\"at\":[0],\"names\":[\"k\"],\"hex\":\"0a0000\"}", "cut short"),
        ("{\"recording\":1}\n{\"buffer\":1,\"at\":[0],\"names\":[\"k\"],\"hex\":\"0z\"}", "not hexadecimal"),
    ] {
        let path = scratch("broken").join("recording.jsonl");
        fs::write(&path, text).unwrap();
        let done = replay(&path).env("CUDA_INJECTION64_PATH", support::gpuflame()).done();
        assert_eq!(done.code, Some(1), "{text}: {}", done.stderr);
        let told: Vec<_> = done.stderr.lines().filter(|line| line.starts_with("gpusim: ")).collect();
        assert!(told.len() == 1 && told[0].contains(reason), "{text}: {}", done.stderr);
    }
}

/// CUPTI release that the simulated stack imitates for a recording with this CUPTI version number.
fn played(version: u64) -> &'static str {
    match version {
        ..=17 => "11.8",
        18..=21 => "12.0",
        22..=129_999 => "12.9",
        130_000..=130_300 => "13.0",
        _ => "13.4",
    }
}

/// Returns all differences between the recordings in `folder` and runs of the same programs on the simulated stack.
fn differences_from(folder: &Path, is_simulated: bool) -> Vec<String> {
    let metadata: Value =
        serde_json::from_str(&fs::read_to_string(folder.join("metadata.json")).unwrap()).unwrap();
    assert_eq!(metadata["simulated"], is_simulated, "{}: whose recording is it?", folder.display());
    let mut found = Vec::new();
    for Program { name, source, argument, .. } in PROGRAMS {
        let path = folder.join(format!("{name}.jsonl"));
        if !path.exists() {
            found.push(format!("{name}: there is no recording of it"));
            continue;
        }
        let cupti = played(metadata["cupti"].as_u64().unwrap());
        let mut here = Recording::read(&simulated(source, argument, cupti));
        let mut there = Recording::read(&path);
        // The real driver runs a graph's independent branches on internal streams; the simulated stack runs them on the
        // launch's stream.
        if name == "child" {
            for recording in [&mut here, &mut there] {
                recording.records.iter_mut().for_each(|line| *line = without(line, " stream "));
                recording.records.sort();
            }
        }
        let lines = there.differences(&here);
        found.extend(lines.into_iter().map(|line| format!("{name}: {line}")));
    }
    found
}

#[test]
fn the_simulated_cuda_stack_matches_recordings_from_hardware() {
    let golden = root().join("tests/golden/hw");
    let entries = golden.read_dir().into_iter().flatten().map(|entry| entry.unwrap().path());
    let folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    if folders.is_empty() {
        skip("there is no recording from hardware in tests/golden/hw");
    }
    let mut found = Vec::new();
    for folder in folders {
        let lines = differences_from(&folder, false);
        found.extend(lines.into_iter().map(|line| format!("{}: {line}", folder.display())));
    }
    assert!(found.is_empty(), "- recorded, + simulated:\n{}", found.join("\n"));
}

/// Writes recordings of the simulated stack in the kit's layout: a file per program, and the metadata. The version
/// number 130000 stands for CUPTI 13.0.
fn golden_folder() -> PathBuf {
    let folder = scratch("golden");
    for Program { name, source, argument, .. } in PROGRAMS {
        fs::copy(simulated(source, argument, "13.0"), folder.join(format!("{name}.jsonl"))).unwrap();
    }
    let metadata =
        r#"{"gpu": "simulated", "driver": "13.0", "cupti": 130000, "date": "2026-11-21", "simulated": true}"#;
    fs::write(folder.join("metadata.json"), metadata).unwrap();
    folder
}

#[test]
fn a_folder_of_recordings_is_compared_program_by_program() {
    let folder = golden_folder();
    assert_eq!(differences_from(&folder, true), Vec::<String>::new());

    // Move the second kernel of `streams` to the default stream, and remove the recording of `explicit`.
    let path = folder.join("streams.jsonl");
    let mut changed = rows(&path);
    let at = changed.iter().position(|row| row.get("buffer").is_some()).unwrap();
    let first = changed[at]["at"][1].as_u64().unwrap() as usize * 2;
    let hex = changed[at]["hex"].as_str().unwrap();
    // Changes the kernel's field streamId, which is at byte 48 of the record.
    changed[at]["hex"] = format!("{}07000000{}", &hex[..first + 96], &hex[first + 104..]).into();
    fs::write(&path, changed.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
    fs::remove_file(folder.join("explicit.jsonl")).unwrap();

    let found = differences_from(&folder, true);
    assert_eq!(found.last().unwrap(), "explicit: there is no recording of it");
    let records: Vec<_> = found.iter().filter(|line| line.starts_with("streams: ")).collect();
    assert_eq!((records.len(), found.len()), (2, 3), "{found:#?}");
    assert!(
        records[0].starts_with("streams: - record") && records[0].contains(" stream default "),
        "{found:#?}"
    );
    assert!(records[1].starts_with("streams: + record"), "{found:#?}");
}

/// Rows that `gpuflame top --by kernels` prints for a variant's recording.
fn kernels(recording: &str) -> Vec<Value> {
    let folder = root().join("tests/golden/hw/NVIDIA_H100_80GB_HBM3-580.159.04/variants");
    let args = ["top", recording, "--by", "kernels", "-n", "0", "-f", "json"];
    let tables: Value = serde_json::from_str(&command::gpuflame(&folder, args).ok().stdout).unwrap();
    tables["kernels"].as_array().unwrap().clone()
}

/// Number of runs, and total nanoseconds, of the kernels whose names contain `word`.
fn sum_of(rows: &[Value], word: &str) -> (u64, u64) {
    let rows = rows.iter().filter(|row| row["name"].as_str().unwrap().contains(word));
    rows.fold((0, 0), |(count, nanos), row| {
        (count + row["count"].as_u64().unwrap(), nanos + row["total_ns"].as_u64().unwrap())
    })
}

#[test]
fn recordings_from_hardware_stay_readable_and_healthy() {
    for size in ["small", "large"] {
        let runs = |variant: &str| {
            let recording = format!("{size}-{variant}.gfr.gz");
            let folder = root().join("tests/golden/hw/NVIDIA_H100_80GB_HBM3-580.159.04/variants");
            command::gpuflame(&folder, ["check", "--strict", &recording]).ok();
            let rows = kernels(&recording);
            (sum_of(&rows, "spin_kernel"), sum_of(&rows, "layer_norm"))
        };
        // Each variant ran 17 steps of 4 layers. In each layer, one kernel spins and two kernels normalise. The graph
        // variant ran 3 additional steps before its capture.
        let (eager, norms) = runs("eager");
        assert_eq!((eager.0, norms.0), (17 * 4, 17 * 8), "{size}");
        for variant in ["double", "stream", "sync"] {
            let (spins, norms) = runs(variant);
            assert_eq!((spins.0, norms.0), (17 * 4, 17 * 8), "{size} {variant}");
            // In the variant `double` the kernel spins twice as long as in `eager`, and in all variants except `double`
            // it spins equally long. The comparison has a tolerance, because the GPU's clock rate changes.
            let factor = spins.1 as f64 / eager.1 as f64;
            let expected = if variant == "double" { 2.0 } else { 1.0 };
            assert!((factor - expected).abs() < 0.1, "{size} {variant}: {factor}");
        }
        let (spins, norms) = runs("graph");
        assert_eq!((spins.0, norms.0), (20 * 4, 20 * 8), "{size}");
    }
}

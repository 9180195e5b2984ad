//! Tests the verbs `check`, `diff`, `view` and `merge-ranks`, and differential flame graphs, on the hand-made
//! recording.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::command::gpuflame;
use crate::support::traces::Trace;
use crate::support::{handmade, root, scratch, skip};
use serde_json::Value;

fn folder() -> PathBuf {
    let folder = scratch("verbs");
    handmade::recording(&folder);
    folder
}

fn json(folder: &Path, args: &[&str]) -> Value {
    let ran = gpuflame(folder, args.iter().chain(&["--format", "json"])).ok();
    serde_json::from_str(&ran.stdout).unwrap()
}

fn row<'a>(table: &'a Value, key: &str, value: &str) -> &'a Value {
    let rows = table.as_array().unwrap();
    rows.iter().find(|row| row[key] == value).unwrap_or_else(|| panic!("no {value} in {table}"))
}

#[test]
fn check_counts_doubtful_activities_and_lists_the_worst_finding_first() {
    let folder = folder();
    let found = json(&folder, &["check", "hand.gfr"]);
    let count = |what: &str| row(&found["findings"], "what", what)["count"].as_u64().unwrap();
    assert_eq!(count("activities launched before recording"), 1);
    assert_eq!(count("activities without a launch"), 1);
    assert_eq!(count("times not collected"), 1);
    assert_eq!(count("launches at the end without an activity"), 1);
    assert_eq!(count("overlaps on a stream"), 0);
    assert_eq!(row(&found["findings"], "what", "times are in nanoseconds")["result"], "ok");
    assert_eq!(row(&found["findings"], "what", "times not collected")["result"], "BAD");
    assert_eq!(row(&found["findings"], "what", "overlaps on a stream")["result"], "none");
    let results: Vec<_> = found["findings"].as_array().unwrap().iter().map(|row| &row["result"]).collect();
    assert_eq!(results[0], "BAD", "the worst result is first");
    assert_eq!(gpuflame(&folder, ["check", "hand.gfr", "--strict"]).code, 1);
}

#[test]
fn check_reports_clock_jumps_and_synchronizations_without_a_wait_record() {
    let folder = scratch("verbs");
    let event = |cat: &str, name: &str, ts: u64, dur: u64, id: u32| {
        format!(
            "{{\"ph\":\"X\",\"cat\":\"{cat}\",\"name\":\"{name}\",\"pid\":0,\"tid\":7,\"ts\":{ts},\"dur\":{dur},\
             \"args\":{{\"correlation\":{id},\"device\":0,\"stream\":{id}}}}}"
        )
    };
    let (day, minute) = (86_400_000_000, 60_000_000);
    let events = [
        event("cuda_runtime", "cudaLaunchKernel", day, 2, 1),
        event("kernel", "k", 0, 5, 1),
        event("kernel", "k", day + 10, minute + 1, 2),
        event("cuda_runtime", "cudaStreamSynchronize", day + 30, 2, 3),
    ];
    let write = |more: &str| {
        fs::write(folder.join("a.json"), format!("{{\"traceEvents\":[{}{more}]}}", events.join(",")))
            .unwrap();
        let found = json(&folder, &["check", "a.json"]);
        ["times not collected", "activities of more than a minute", "waits not recorded"]
            .map(|what| row(&found["findings"], "what", what)["count"].as_u64().unwrap())
    };
    assert_eq!(write(""), [1, 1, 1]);
    let sync = event("cuda_sync", "Stream Sync", day + 30, 2, 3);
    assert_eq!(write(&format!(",{sync}")), [1, 1, 0]);
}

#[test]
fn check_passes_a_sound_trace_and_fails_a_faulty_one() {
    let folder = scratch("verbs");
    let call = |id: u32, ts: u32| {
        format!(
            "{{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"cudaLaunchKernel\",\"pid\":1,\"tid\":1,\"ts\":{ts},\"dur\":2,\"args\":{{\"correlation\":{id}}}}}"
        )
    };
    let kernel = |id: u32, ts: u32, dur: i32| {
        format!(
            "{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"pid\":0,\"tid\":7,\"ts\":{ts},\"dur\":{dur},\"args\":{{\"correlation\":{id},\"device\":0,\"stream\":7}}}}"
        )
    };
    let write = |name: &str, events: &[String]| {
        fs::write(folder.join(name), format!("{{\"traceEvents\":[{}]}}", events.join(","))).unwrap();
    };
    write("sound.json", &[call(1, 10), kernel(1, 20, 5), call(2, 30), kernel(2, 40, 5)]);
    assert_eq!(gpuflame(&folder, ["check", "sound.json", "--strict"]).code, 0);
    let found = json(&folder, &["check", "sound.json"]);
    assert_eq!(row(&found["findings"], "what", "times are in whole microseconds")["result"], "note");
    // The second launch has two kernels, and one of them begins before the launch. The kernel of the third launch
    // begins while the kernel of the first launch runs. Overlap with kernels of the second launch is not an error,
    // because a launch with several kernels is a CUDA graph, and the nodes of a graph may run at the same time.
    let graph = [call(2, 30), kernel(2, 25, 5), kernel(2, 50, 5)];
    let rest = [call(1, 10), kernel(1, 20, 15), call(3, 12), kernel(3, 33, 1)];
    write("sick.json", &[&graph[..], &rest[..]].concat());
    assert_eq!(gpuflame(&folder, ["check", "sick.json", "--strict"]).code, 1);
    let found = json(&folder, &["check", "sick.json"]);
    let count = |what: &str| row(&found["findings"], "what", what)["count"].as_u64().unwrap();
    assert_eq!(count("overlaps on a stream"), 1);
    assert_eq!(count("activities that begin before their launch"), 1);
    assert_eq!(count("launches with several activities"), 1);
    write("cpu.json", &[call(1, 10)]);
    assert_eq!(gpuflame(&folder, ["check", "cpu.json", "--strict"]).code, 1, "nothing ran on a GPU");
}

#[test]
fn diff_lists_changes_by_kernel_and_by_stack() {
    let folder = scratch("verbs");
    let run = |name: &str, gemm: u32, more: &str| {
        let mut events = Vec::new();
        for at in 0..20 {
            let (launch, start, dur) = (1000 * at + 10, 1000 * at + 20, gemm + at % 3);
            events.push(format!("{{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"cudaLaunchKernel\",\"pid\":1,\"tid\":1,\"ts\":{launch},\"dur\":2,\"args\":{{\"correlation\":{}}}}}", at + 1));
            events.push(format!("{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"gemm\",\"pid\":0,\"tid\":7,\"ts\":{start},\"dur\":{dur},\"args\":{{\"correlation\":{},\"device\":0,\"stream\":7}}}}", at + 1));
        }
        events.push(format!("{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"{more}\",\"pid\":0,\"tid\":7,\"ts\":90000,\"dur\":3,\"args\":{{\"correlation\":99,\"device\":0,\"stream\":7}}}}"));
        fs::write(folder.join(name), format!("{{\"traceEvents\":[{}]}}", events.join(","))).unwrap();
    };
    run("a.json", 100, "old");
    run("b.json", 150, "new");
    let diff = json(&folder, &["diff", "a.json", "b.json"]);
    assert_eq!(diff["total"][0]["change_ns"], 20 * 50 * 1000);
    let gemm = &diff["kernels"][0];
    assert_eq!(
        (&gemm["name"], &gemm["sure"], &gemm["change_ns"]),
        (&"gemm".into(), &"yes".into(), &1_000_000.into())
    );
    assert_eq!(row(&diff["kernels"], "name", "old")["sure"], "gone");
    assert_eq!(row(&diff["kernels"], "name", "new")["sure"], "new");
    assert_eq!(row(&diff["stacks"], "name", "cudaLaunchKernel")["change_ns"], 1_000_000);
    let same = json(&folder, &["diff", "a.json", "a.json"]);
    assert_eq!((&same["kernels"][0]["change_ns"], &same["kernels"][0]["sure"]), (&0.into(), &"no".into()));
    let folded = gpuflame(&folder, ["flamegraph", "--diff", "a.json", "b.json"]).ok().stdout;
    assert!(folded.contains("cudaLaunchKernel;[GPU_Kernel]gemm 2019000 3019000\n"), "{folded}");
    assert!(folded.contains("[GPU_Kernel]old 3000 0\n"), "{folded}");
    gpuflame(&folder, ["flamegraph", "--diff", "a.json", "b.json", "-o", "diff.svg"]).ok();
    let svg = fs::read_to_string(folder.join("diff.svg")).unwrap();
    assert!(
        svg.contains("gemm [GPU_Kernel] (3.019 ms, 99.90 %; before 2.019 ms)"),
        "a picture with the change of each frame: {svg}"
    );
}

#[test]
fn view_lists_filters_and_draws_single_activities_as_text() {
    let folder = folder();
    let all = json(&folder, &["view", "hand.gfr"]);
    assert_eq!(all["activities"].as_array().unwrap().len(), 8);
    let copy = json(&folder, &["view", "hand.gfr", "--kind", "copy"]);
    assert_eq!(copy["activities"].as_array().unwrap().len(), 1);
    assert_eq!(copy["activities"][0]["launched_by"], "main;load;cudaMemcpyAsync");
    // Times in `view` are relative to the first activity. In the diagram of the hand-made recording, the first activity
    // begins at 0.
    assert_eq!(copy["activities"][0]["start_ns"], 20_000);
    let late = json(&folder, &["view", "hand.gfr", "--from", "50", "--to", "60", "--device", "1"]);
    assert_eq!(late["activities"].as_array().unwrap().len(), 2);
    let stats = json(&folder, &["view", "hand.gfr", "--stats", "--name", "gemm"]);
    assert_eq!((&stats["stats"][0]["total_ns"], &stats["stats"][0]["count"]), (&20_001.into(), &2.into()));
    let text = gpuflame(&folder, ["timeline", "hand.gfr"]).ok().stdout;
    assert_eq!(gpuflame(&folder, ["view", "hand.gfr", "--timeline"]).ok().stdout, text);
    gpuflame(&folder, ["timeline", "hand.gfr", "--stream", "99"]).fails(1, &["hand.gfr", "GPU 0 stream 7"]);
    gpuflame(&folder, ["states", "hand.gfr", "--as-hta", "--stream", "99"])
        .fails(1, &["hand.gfr", "no work"]);
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("GPU ")).collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("GPU 0 stream    7 ########.."), "{text}");
    // The printed line shows a window of 100 us, so each character stands for 1.25 us. The copy runs from 20 to 32 us,
    // which is 9.6 characters after the first 16.
    let copy = lines[1].rsplit(' ').next().unwrap();
    assert!(copy.ends_with("p#########*") && copy.len() == 26, "{text}");
    // If a window of 100 us is divided into cells of 0.5 us, it has 200 cells, which fill three lines.
    let steps = gpuflame(&folder, ["timeline", "hand.gfr", "--step", "500ns", "--stream", "8"]).ok().stdout;
    assert_eq!(steps.lines().filter(|line| line.starts_with("GPU 0 stream    8")).count(), 3, "{steps}");
    let before = gpuflame(&folder, ["timeline", "hand.gfr", "--to", "20us", "--stream", "8"]).ok().stdout;
    assert!(!before.lines().last().unwrap().contains('#'), "{before}");
    gpuflame(&folder, ["view", "hand.gfr", "--from", "5", "--to", "5"]).fails(2, &["--from 5", "--to 5"]);
}

#[test]
fn a_view_without_activities_fails_with_the_values_that_exist() {
    let folder = folder();
    for options in [&[][..], &["--stats"], &["--format", "json"]] {
        let view = |filter: &[&str]| gpuflame(&folder, [&["view", "hand.gfr"], filter, options].concat());
        view(&["--device", "7"]).fails(1, &["hand.gfr", "on GPU 7", "those with activities: 0, 1"]);
        view(&["--stream", "99"]).fails(1, &["hand.gfr", "on stream 99", "those with activities: 7"]);
        view(&["--name", "no such kernel"]).fails(1, &["hand.gfr", "none of its 8 activities", "--name"]);
    }
}

#[test]
fn a_recording_that_breaks_off_before_gpu_work_is_not_drawn() {
    let folder = folder();
    let whole = fs::read(folder.join("hand.gfr")).unwrap();
    let drawn = |length: usize| {
        fs::write(folder.join("cut.gfr"), &whole[..length]).unwrap();
        gpuflame(&folder, ["-q", "flamegraph", "cut.gfr"])
    };
    let (mut empty, mut some) = (0, 0);
    for length in (20..whole.len()).step_by(23) {
        let ran = drawn(length);
        if ran.stdout.is_empty() {
            ran.fails(1, &["cut.gfr", "breaks off before any GPU work"]);
            empty += 1;
        } else {
            ran.ok();
            some += 1;
        }
    }
    assert!(empty > 3 && some > 3, "{empty} and {some}");
    fs::write(folder.join("cut.gfr"), &whole[..60]).unwrap();
    let verbs = [
        &["convert", "cut.gfr", "--to", "folded"][..],
        &["flamegraph", "cut.gfr", "-o", "cut.svg"],
        &["top", "cut.gfr"],
    ];
    for verb in verbs {
        gpuflame(&folder, [&["-q"], verb].concat()).fails(1, &["cut.gfr", "copy the complete file"]);
    }
    assert!(!folder.join("cut.svg").exists());
}

#[test]
fn extract_accepts_any_end_time() {
    let folder = folder();
    let all = gpuflame(&folder, ["extract", "hand.gfr", "-", "0,9223372036854775"]).ok().stdout;
    assert!(all.lines().count() > 5, "{all}");
    for range in ["0,1e300", "0,99999999999999999999", "0,inf", "0,", ",", "-1e300,"] {
        assert_eq!(gpuflame(&folder, ["extract", "hand.gfr", "-", range]).ok().stdout, all, "{range}");
    }
}

/// Writes the trace of a rank with ten steps of 1,000 us. In each step the host loads a batch for `load` us. After
/// that, the rank computes for 40 us, and waits in a collective until 600 us after the step began. With `has_lines`,
/// the trace contains Python functions with their lines.
fn write_rank(folder: &Path, rank: u32, load: u64, has_lines: bool) {
    let mut trace = Trace::default();
    for step in 0..10 {
        let (start, id) = (1000 * step, 2 * step as u32 + 1);
        trace.slice("user_annotation", &format!("ProfilerStep#{step}"), 1, start, start + 900);
        if has_lines {
            trace.python("train.py(5): train", 1, start, start + 900);
            trace.python("train.py(9): load_batch", 1, start, start + load);
        }
        let work = start + load + 20;
        trace.launch(id, "gemm", 1, start + load + 10, work, work + 40);
        trace.launch(id + 1, "ncclDevKernel_AllReduce", 1, start + load + 15, work + 40, start + 600);
    }
    trace.write(&folder.join(format!("rank{rank}.json")));
}

#[test]
fn merge_ranks_names_the_line_in_which_the_stragglers_host_was_late() {
    let folder = scratch("verbs");
    let ranks = |loads: [u64; 3], has_lines| {
        (0..).zip(loads).for_each(|(rank, load)| write_rank(&folder, rank, load, has_lines));
        let ran = gpuflame(&folder, ["merge-ranks", ".", "--format", "json"]).ok();
        (serde_json::from_str::<Value>(&ran.stdout).unwrap()["ranks"].clone(), ran.stderr)
    };
    let (found, _) = ranks([100, 500, 100], true);
    let of_all = |column: &str| (0..3).map(|rank| found[rank][column].clone()).collect::<Vec<_>>();
    assert_eq!(of_all("host_line"), [Value::Null, "train.py:9 (load_batch)".into(), Value::Null]);
    assert_eq!(of_all("steps"), [10, 10, 10]);
    let (found, stderr) = ranks([100, 500, 100], false);
    assert_eq!(
        (&found[1]["straggler"], &found[1]["host_line"]),
        (&"<- others wait for it in ncclDevKernel_AllReduce".into(), &Value::Null)
    );
    let reason = "rank 1: the line that its host was in is unknown: the trace has no lines of the host; record it with `with_stack=True`";
    assert!(stderr.contains(reason), "{stderr}");
}

#[test]
fn merge_ranks_makes_ranks_frames_and_names_the_straggler_and_its_collective() {
    let folder = scratch("verbs");
    // Each of ten steps takes 100 us. Rank 1 works for 90 us of each step, and rank 0 works for 40 us. For the rest of
    // the step, each rank is first in a short collective and then in a long collective.
    let write = |steps: u64, rank: u64| {
        let mut events = Vec::new();
        for step in 0..steps {
            let (begin, work) = (1000 * step, if rank == 1 { 90 } else { 40 });
            events.push(format!(
                "{{\"ph\":\"X\",\"cat\":\"user_annotation\",\"name\":\"ProfilerStep#{step}\",\"pid\":1,\"tid\":1,\"ts\":{begin},\
                 \"dur\":900}}"
            ));
            for (name, stream, from, to) in [
                ("gemm", 7, 0, work),
                ("ncclDevKernel_AllGather", 8, work, work + 2),
                ("ncclDevKernel_AllReduce", 8, work + 2, 100),
            ] {
                events.push(format!(
                    "{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"{name}\",\"pid\":0,\"tid\":{stream},\"ts\":{},\"dur\":{},\
                     \"args\":{{\"device\":0,\"stream\":{stream}}}}}",
                    begin + from,
                    to - from
                ));
            }
        }
        let text = format!("{{\"traceEvents\":[{}]}}", events.join(","));
        fs::write(folder.join(format!("rank{rank}.json")), text).unwrap();
    };
    // Both runs have nine steps. Nine steps are too few to call a rank a straggler.
    [0, 1].into_iter().for_each(|rank| write(9, rank));
    let few = gpuflame(&folder, ["merge-ranks", ".", "--format", "json"]).ok();
    assert!(!few.stdout.contains("others wait"), "{}", few.stdout);
    assert!(few.stderr.contains("no straggler is named"), "{}", few.stderr);
    [0, 1].into_iter().for_each(|rank| write(10, rank));
    let merged = json(&folder, &["merge-ranks", ".", "-o", "all.folded"]);
    let ranks = &merged["ranks"];
    assert_eq!((&ranks[0]["work_ns"], &ranks[1]["work_ns"]), (&400_000.into(), &900_000.into()));
    assert_eq!(
        (&ranks[0]["straggler"], &ranks[1]["straggler"]),
        (&"".into(), &"<- others wait for it in ncclDevKernel_AllReduce".into())
    );
    assert_eq!(ranks[0]["busy_ns"], 1_000_000);
    let folded = fs::read_to_string(folder.join("all.folded")).unwrap();
    let sum: u64 = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 2_000_000);
    assert!(
        folded.lines().all(|line| line.starts_with("rank 0;") || line.starts_with("rank 1;")),
        "{folded}"
    );
    gpuflame(&folder, ["merge-ranks", ".", "-o", "all.svg"]).ok();
    assert!(fs::read_to_string(folder.join("all.svg")).unwrap().contains("rank 1"));
    fs::create_dir(folder.join("empty")).unwrap();
    gpuflame(&folder, ["merge-ranks", "empty"]).fails(1, &["empty", "no recording or trace"]);
}

#[test]
fn a_rank_stated_in_the_trace_overrides_the_one_in_the_file_name() {
    let folder = scratch("verbs");
    let write = |name: &str, info: &str| {
        let kernel = "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"gemm\",\"ts\":0,\"dur\":1,\"args\":{}}";
        fs::write(folder.join(name), format!("{{{info}\"traceEvents\":[{kernel}]}}")).unwrap();
    };
    let names = || -> Vec<_> {
        let merged = json(&folder, &["merge-ranks", "rank0.json", "rank1.json"]);
        merged["ranks"].as_array().unwrap().iter().map(|rank| rank["source"].clone()).collect()
    };
    write("rank0.json", "\"distributedInfo\": {\"backend\": \"nccl\", \"rank\": 34, \"world_size\": 300}, ");
    write("rank1.json", "\"distributedInfo\": {\"rank\": 7}, ");
    assert_eq!(names(), ["rank1.json", "rank0.json"], "7 comes before 34");
    // If even one file does not contain a rank number, every rank is named after its file.
    write("rank1.json", "");
    assert_eq!(names(), ["rank0.json", "rank1.json"]);
}

/// Returns a folder with a job of two ranks. Rank 0 is the hand-made recording, and rank 1 is the same recording, but
/// its activities are in reverse order.
fn two_ranks() -> PathBuf {
    let folder = folder();
    fs::rename(folder.join("hand.gfr"), folder.join("rank0.gfr")).unwrap();
    fs::write(folder.join("rank1.gfr"), handmade::backwards()).unwrap();
    folder
}

/// Runs the queries of `examples/ranks` on Parquet files, and compares the answers with those of `merge-ranks`.
fn agrees_with_merge_ranks(folder: &Path, engine: &str) -> Value {
    let python = viewers().join("venv/bin/python");
    gpuflame(folder, ["convert", ".", "--to", "parquet", "-o", "data"]).ok();
    // The names in the Parquet rows keep their numbers, so `merge-ranks` must keep the numbers too.
    let merged = json(folder, &["merge-ranks", ".", "-n", "10", "--keep-numbers"]);
    let script = root().join(format!("examples/ranks/{engine}_ranks.py"));
    let output = Command::new(&python).arg(script).arg(folder.join("data")).output().unwrap();
    assert!(output.status.success(), "{engine}: {}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = |table: &Value| table.as_array().unwrap().clone();
    let (theirs, ours) = (rows(&answer["ranks"]), rows(&merged["ranks"]));
    assert_eq!(theirs.len(), ours.len(), "{engine}");
    for (theirs, ours) in theirs.iter().zip(&ours) {
        assert_eq!(theirs["rank"], ours["rank"], "{engine}");
        for column in ["busy_ns", "work_ns", "communication_ns"] {
            assert_eq!(theirs[column], ours[column], "{engine}: {column} of {ours}");
        }
    }
    let straggler = ours.iter().find(|rank| rank["straggler"] != "");
    // The queries of `examples/ranks` always name a straggler. `merge-ranks` names a straggler only if the steps of the
    // ranks differ by more than chance.
    if let Some(straggler) = straggler {
        assert_eq!(answer["straggler"], straggler["rank"], "{engine}");
    }
    let stacks = |table: &Value| -> Vec<(String, u64, u64)> {
        let number = |row: &Value, column: &str| row[column].as_u64().unwrap();
        let row = |row: &Value| {
            (row["stack"].as_str().unwrap().to_owned(), number(row, "total_ns"), number(row, "ranks"))
        };
        rows(table).iter().map(row).collect()
    };
    assert_eq!(stacks(&answer["stacks"]), stacks(&merged["stacks"]), "{engine}");
    let causes = |table: &Value| -> Vec<(String, u64, u64)> {
        let row = |row: &Value| {
            let cause = row["cause"].as_str().unwrap().to_owned();
            (cause, row["total_ns"].as_u64().unwrap(), row["gaps"].as_u64().unwrap())
        };
        // The Parquet table does not contain recording windows. Therefore only gaps between two activities are
        // compared.
        rows(table).iter().map(row).filter(|(cause, ..)| !cause.contains("_the_")).collect()
    };
    assert_eq!(causes(&answer["idle"]), causes(&merged["idle"]), "{engine}");
    answer
}

fn viewers() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("viewers")
}

/// Returns whether Python has the module `module`. If Python does not have the module, prints how to install it. In CI,
/// a missing module makes the test fail.
fn has(module: &str, install: &str) -> bool {
    let python = viewers().join("venv/bin/python");
    let import = format!("import {module}");
    let has = python.exists() && Command::new(python).args(["-c", &import]).status().unwrap().success();
    if !has {
        skip(&format!("{module} is not installed; run `{install}`"));
    }
    has
}

#[test]
fn duckdb_over_many_ranks_agrees_with_merge_ranks() {
    if !has("duckdb", "tests/viewers/install") {
        return;
    }
    let answer = agrees_with_merge_ranks(&two_ranks(), "duckdb");
    // The kernels under `decode` take 20,001 ns on each of the two ranks.
    let decode = serde_json::json!({"stack": "main;decode;cudaLaunchKernel", "total_ns": 40_002, "ranks": 2});
    assert_eq!(answer["stacks"][0], decode);
    // On GPU 0, the kernel gemm was launched at 12 us, in the idle gap from 10 to 20 us. The launch of the kernel
    // `lone` is unknown.
    let idle = |cause: &str| row(&answer["idle"], "cause", cause)["total_ns"].as_u64().unwrap();
    assert_eq!((idle("host_late"), idle("launch_latency"), idle("unknown")), (4_000, 16_000, 40_000));
}

/// The test is ignored by default, because PySpark is 300 MB. The script `.ci/long` runs it.
#[test]
#[ignore = "needs PySpark, 300 MB; .ci/long installs it and runs this"]
fn spark_over_many_ranks_agrees_with_merge_ranks() {
    if has("pyspark", "tests/viewers/install spark") {
        agrees_with_merge_ranks(&two_ranks(), "spark");
    }
}

/// The test reads the eight ranks of a public DLRM run, in which rank 7 arrives last at collectives.
#[test]
fn duckdb_agrees_with_merge_ranks_on_a_real_eight_rank_job() {
    let beside = root().join("../shared/traces");
    let traces = std::env::var_os("GPUFLAME_TRACES").map_or(beside, PathBuf::from);
    let archive = traces.join("dlrm-8-ranks/dlrm_kineto.tar.gz");
    if !archive.exists() {
        return skip("there is no folder of real traces (GPUFLAME_TRACES names one)");
    }
    if !has("duckdb", "tests/viewers/install") {
        return;
    }
    let folder = scratch("verbs");
    let mut tar = Command::new("tar");
    tar.arg("xzf").arg(archive).args(["--strip-components=1", "-C"]).arg(&folder);
    assert!(tar.status().unwrap().success());
    let answer = agrees_with_merge_ranks(&folder, "duckdb");
    assert_eq!(answer["ranks"].as_array().unwrap().len(), 8);
    // The 262 operations in the trace take 2.825 ms in total (see tests/import/real_traces.rs). Of this time, 1.746 ms
    // are in NCCL, as summed with Python's json module.
    let last = &answer["ranks"][7];
    assert_eq!((&answer["straggler"], &last["communication_ns"]), (&7.into(), &1_746_000.into()));
    assert_eq!(last["work_ns"], 2_825_000 - 1_746_000);
}

#[test]
fn folded_stacks_are_drawn_and_compared_unchanged() {
    let folder = scratch("verbs");
    fs::write(folder.join("a.folded"), "main;f;gemm 30\nmain;g 5\nmain;f;gemm 10\n").unwrap();
    fs::write(folder.join("b.folded"), "main;f;gemm 50\n").unwrap();
    fs::write(folder.join("c.txt"), "17 app 1 2 0 main;f\n18 app 1 2 0 main;f\n").unwrap();
    assert_eq!(gpuflame(&folder, ["flamegraph", "a.folded"]).ok().stdout, "main;f;gemm 40\nmain;g 5\n");
    assert_eq!(gpuflame(&folder, ["flamegraph", "c.txt"]).ok().stdout, "main;f 2\n");
    let diff = gpuflame(&folder, ["flamegraph", "--diff", "a.folded", "b.folded"]).ok().stdout;
    assert_eq!(diff, "main;f;gemm 40 50\nmain;g 5 0\n");
    gpuflame(&folder, ["flamegraph", "a.folded", "-o", "a.svg"]).ok();
    assert!(fs::read_to_string(folder.join("a.svg")).unwrap().contains("gemm (40 ns"));
    gpuflame(&folder, ["flamegraph", "--diff", "a.folded", "b.folded", "-o", "d.svg"]).ok();
    let svg = fs::read_to_string(folder.join("d.svg")).unwrap();
    assert!(svg.contains("45 ns before, 50 ns after (+11.1 %)"), "the subtitle sums up");
    assert!(svg.contains("not shown: 1 stacks that are gone (5 ns)"), "stacks without a width are reported");
    gpuflame(&folder, ["flamegraph", "a.folded", "--idle"]).fails(2, &["a.folded", "idle"]);
}

/// The two files were folded with different flags, and have no function name in common. Therefore it looks as if all
/// stacks had changed.
#[test]
fn comparing_stacks_folded_with_different_flags_prints_a_warning() {
    let folder = scratch("misfit");
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    let (whole, short) = ("void at::add<int, 4>(int*)", "add");
    write(
        "whole.folded",
        &format!("main;cudaLaunchKernel;[GPU_Kernel]{whole} 30\nmain;[GPU_Kernel]plain 4\n"),
    );
    write(
        "short.folded",
        &format!("main;cudaLaunchKernel;[GPU_Kernel]{short} 50\nmain;[GPU_Kernel]plain 4\n"),
    );
    write("gpu.folded", &format!("main;cudaLaunchKernel;[GPU0_Kernel]{short} 50\n"));
    write("all.folded", "_start;main;cudaLaunchKernel;[GPU_Kernel]plain 4\n");
    write("new.folded", "main;cudaLaunchKernel;[GPU_Kernel]other<int> 4\n");
    let said =
        |before: &str, after: &str| gpuflame(&folder, ["flamegraph", "--diff", before, after]).ok().stderr;
    let shortened = said("short.folded", "whole.folded");
    assert!(
        shortened.starts_with("gpuflame: 1 kernels have short names before and full names after, "),
        "{shortened}"
    );
    assert_eq!(shortened.lines().count(), 1, "{shortened}");
    let other_way = said("whole.folded", "gpu.folded");
    assert!(other_way.contains("1 kernels have short names after and full names before, "), "{other_way}");
    let frames = said("whole.folded", "all.folded");
    assert!(frames.starts_with("gpuflame: the files share 1 kernels but no stack: "), "{frames}");
    // No warning is printed in two cases: the function names of the two files match, or the two programs have no
    // function name in common.
    for (before, after) in
        [("short.folded", "short.folded"), ("whole.folded", "whole.folded"), ("whole.folded", "new.folded")]
    {
        assert_eq!(said(before, after), "", "{before} {after}");
    }
    assert_eq!(
        gpuflame(&folder, ["-q", "flamegraph", "--diff", "short.folded", "whole.folded"]).ok().stderr,
        ""
    );
}

/// Runs each verb with a mistake in its arguments. The verb must print one line, return the right exit code, and write
/// no file.
#[test]
fn each_verb_reports_a_mistake_in_one_line_and_writes_nothing() {
    let folder = folder();
    fs::write(folder.join("a.folded"), "main;f 1\n").unwrap();
    fs::write(folder.join("other.json"), "{\"hello\": 1}").unwrap();
    fs::write(folder.join("trace.json"), "[{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 1}]")
        .unwrap();
    let before = names(&folder);
    let mistakes: [(&[&str], i32, &[&str]); 16] = [
        (&["check", "nowhere.json"], 1, &["nowhere.json", "no such file"]),
        (&["check", "other.json"], 1, &["other.json"]),
        (&["convert", "hand.gfr", "-o", "x.docx"], 2, &["x.docx", "--format chrome"]),
        (&["convert", "hand.gfr", "hand.gfr", "-o", "x.json"], 2, &["merge-ranks"]),
        (&["convert", "hand.gfr", "--to", "parquet", "-o", "data", "--run", "a/b"], 2, &["a folder name"]),
        (&["convert", "hand.gfr", "other.json", "--to", "parquet", "-o", "data"], 1, &["other.json"]),
        (&["decode-steps", "vllm", "trace.json"], 1, &["trace.json"]),
        (&["diff", "hand.gfr", "a.folded"], 1, &["a.folded", "no GPU operations", "gpuflame run --rows"]),
        (&["extract", "trace.json", "x.csv", "5"], 2, &["5"]),
        (&["flamegraph", "other.json", "-o", "x.svg"], 1, &["other.json"]),
        (&["info", "."], 1, &["is a folder", "name a file"]),
        (&["merge", "-c", "hand.gfr", "-o", "x.folded"], 1, &["hand.gfr", "not CPU stacks"]),
        (&["merge-ranks", "hand.gfr", "-o", "x.png"], 2, &[".png", ".svg"]),
        (&["stats", "trace.json", "x.csv"], 1, &["trace.json", "ProfileStep"]),
        (&["top", "hand.gfr", "-o", "no/top.csv"], 1, &["no/top.csv", "create it first"]),
        (&["view", "hand.gfr", "--from", "9", "--to", "1"], 2, &["--from 9", "--to 1"]),
    ];
    for (args, code, words) in mistakes {
        let ran = gpuflame(&folder, args);
        match ran.stderr.contains("error: ") {
            // When the parser of the command line refuses the arguments, it prints several lines, including the usage.
            true => assert_eq!((ran.code, code), (2, 2), "{args:?}: {}", ran.stderr),
            false => ran.fails(code, words),
        }
        assert_eq!(names(&folder), before, "{args:?} left something");
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns a trace of 1,000 consecutive kernels of 1 us on one stream. The first kernel ends `overlap_ns` after the
/// second kernel begins.
fn in_a_row(overlap_ns: u64, with_launches: u64) -> String {
    let mut events = Vec::new();
    for at in 0..1000 {
        let length = 1000 + if at == 0 { overlap_ns } else { 0 };
        let micros = |nanos: u64| format!("{}.{:03}", nanos / 1000, nanos % 1000);
        events.push(format!(
            r#"{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": {}, "dur": {}, "args": {{"correlation": {}, "device": 0, "stream": 7}}}}"#,
            micros(10_000_000 + at * 1000), micros(length), at + 1
        ));
        if at < with_launches {
            events.push(format!(
                r#"{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": {}, "dur": 1.000, "args": {{"correlation": {}}}}}"#,
                micros(at * 2000), at + 1
            ));
        }
    }
    format!(r#"{{"traceEvents": [{}]}}"#, events.join(","))
}

#[test]
fn findings_of_up_to_a_thousandth_are_notes_and_larger_ones_are_bad() {
    let folder = scratch("proportion");
    let result = |overlap_ns: u64, with_launches: u64, what: &str| {
        std::fs::write(folder.join("t.json"), in_a_row(overlap_ns, with_launches)).unwrap();
        let ran = gpuflame(&folder, ["check", "--strict", "t.json", "--format", "json"]);
        let found: Value = serde_json::from_str(&ran.stdout).unwrap();
        (row(&found["findings"], "what", what)["result"].as_str().unwrap().to_owned(), ran.code)
    };
    // One of 1,000 operations overlaps the next operation, first for 0.05 % of the time, and in a second trace for 0.2
    // %.
    assert_eq!(result(500, 1000, "overlaps on a stream"), ("note".to_owned(), 0));
    assert_eq!(result(2000, 1000, "overlaps on a stream"), ("BAD".to_owned(), 1));
    // One activity without a launch is a thousandth of all activities and of their time. Two such activities are more
    // than a thousandth.
    assert_eq!(result(0, 999, "activities without a launch"), ("note".to_owned(), 0));
    assert_eq!(result(0, 998, "activities without a launch"), ("BAD".to_owned(), 1));
}

//! `check`, `diff`, `view`, `merge-ranks` and differential flame graphs, on the recording by hand.
#![cfg(feature = "cli")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::command::gpuflame;
use support::{hand, is_ci, root, scratch};

fn folder() -> PathBuf {
    let folder = scratch("verbs");
    hand::recording(&folder);
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
fn the_doctor_counts_what_is_to_be_doubted() {
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
    assert_eq!(gpuflame(&folder, ["check", "hand.gfr", "--strict"]).code, 1);
}

#[test]
fn a_sound_trace_passes_and_a_sick_one_does_not() {
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
    // The second begins while the first runs, and before it was launched; one id has two kernels.
    write("sick.json", &[call(1, 10), kernel(1, 20, 15), call(2, 30), kernel(2, 25, 5), kernel(2, 50, 5)]);
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
fn two_runs_differ_by_kernel_and_by_stack() {
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
    let folded =
        gpuflame(&folder, ["flamegraph", "--diff", "a.json", "b.json", "--format", "folded"]).ok().stdout;
    assert!(folded.contains("cudaLaunchKernel;[GPU_Kernel]gemm 2019000 3019000\n"), "{folded}");
    assert!(folded.contains("[GPU_Kernel]old 3000 0\n"), "{folded}");
    gpuflame(&folder, ["flamegraph", "--diff", "a.json", "b.json", "-o", "diff.svg"]).ok();
    let svg = fs::read_to_string(folder.join("diff.svg")).unwrap();
    assert!(
        svg.contains("gemm (3,019,000 ns") && svg.contains("+"),
        "a picture with the change of each frame"
    );
}

#[test]
fn single_activities_are_listed_filtered_and_drawn_in_letters() {
    let folder = folder();
    let all = json(&folder, &["view", "hand.gfr"]);
    assert_eq!(all["activities"].as_array().unwrap().len(), 8);
    let copy = json(&folder, &["view", "hand.gfr", "--kind", "copy"]);
    assert_eq!(copy["activities"].as_array().unwrap().len(), 1);
    assert_eq!(copy["activities"][0]["launched_by"], "main;load;cudaMemcpyAsync");
    // From the first activity, which begins at 0 in the picture.
    assert_eq!(copy["activities"][0]["start_ns"], 20_000);
    let late = json(&folder, &["view", "hand.gfr", "--from", "50", "--to", "60", "--device", "1"]);
    assert_eq!(late["activities"].as_array().unwrap().len(), 2);
    let stats = json(&folder, &["view", "hand.gfr", "--stats", "--name", "gemm"]);
    assert_eq!((&stats["stats"][0]["total_ns"], &stats["stats"][0]["count"]), (&20_001.into(), &2.into()));
    let text = gpuflame(&folder, ["view", "hand.gfr", "--timeline"]).ok().stdout;
    let lines: Vec<_> = text.lines().skip(1).collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("GPU 0 stream    7 ####"), "{text}");
    // 85 us in 80 letters: the copy runs from 20 to 32.
    let copy = lines[1].rsplit(' ').next().unwrap();
    assert_eq!((copy.find(|c| c != '.'), copy.rfind(|c| c != '.')), (Some(18), Some(30)), "{text}");
    gpuflame(&folder, ["view", "hand.gfr", "--from", "5", "--to", "5"]).fails(2, &["--from 5", "--to 5"]);
}

#[test]
fn ranks_become_frames_and_the_one_with_most_work_is_named() {
    let folder = scratch("verbs");
    for rank in [0, 1] {
        let work = if rank == 1 { 900 } else { 400 };
        let text = format!(
            "{{\"traceEvents\":[{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"gemm\",\"pid\":0,\"tid\":7,\"ts\":0,\"dur\":{work},\
             \"args\":{{\"correlation\":1,\"device\":0,\"stream\":7}}}},{{\"ph\":\"X\",\"cat\":\"kernel\",\
             \"name\":\"ncclDevKernel_AllReduce\",\"pid\":0,\"tid\":8,\"ts\":{work},\"dur\":{},\
             \"args\":{{\"correlation\":2,\"device\":0,\"stream\":8}}}}]}}",
            1000 - work
        );
        fs::write(folder.join(format!("rank{rank}.json")), text).unwrap();
    }
    let merged = json(&folder, &["merge-ranks", ".", "-o", "all.folded"]);
    let ranks = &merged["ranks"];
    assert_eq!((&ranks[0]["work_ns"], &ranks[1]["work_ns"]), (&400_000.into(), &900_000.into()));
    assert_eq!((&ranks[0]["straggler"], &ranks[1]["straggler"]), (&"".into(), &"<- most work".into()));
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

/// DuckDB and Spark over Parquet say what `merge-ranks` says.
#[test]
fn duckdb_and_spark_over_many_ranks_agree_with_merge_ranks() {
    let viewers = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("viewers/venv/bin/python");
    if !viewers.exists() {
        assert!(!is_ci(), "DuckDB is missing in CI: .ci/install should have run tests/viewers/install");
        eprintln!("skipped: DuckDB is not installed; run tests/viewers/install");
        return;
    }
    let folder = folder();
    fs::rename(folder.join("hand.gfr"), folder.join("rank0.gfr")).unwrap();
    fs::write(folder.join("rank1.gfr"), hand::backwards()).unwrap();
    gpuflame(&folder, ["convert", ".", "--to", "parquet", "-o", "data"]).ok();
    let merged = json(&folder, &["merge-ranks", "."]);
    let mut engines = vec!["duckdb"];
    let has_spark = std::process::Command::new(&viewers)
        .args(["-c", "import pyspark"])
        .output()
        .unwrap()
        .status
        .success();
    match has_spark {
        true => engines.push("spark"),
        false => eprintln!("skipped for Spark: PySpark is not installed; run `tests/viewers/install spark`"),
    }
    for engine in engines {
        let script = root().join(format!("examples/ranks/{engine}_ranks.py"));
        let output =
            std::process::Command::new(&viewers).arg(script).arg(folder.join("data")).output().unwrap();
        assert!(output.status.success(), "{engine}: {}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        for (theirs, ours) in
            answer["ranks"].as_array().unwrap().iter().zip(merged["ranks"].as_array().unwrap())
        {
            assert_eq!(theirs["rank"].to_string(), ours["rank"].as_str().unwrap(), "{engine}");
            for column in ["busy_ns", "work_ns", "communication_ns"] {
                assert_eq!(theirs[column], ours[column], "{engine}: {column} of {ours}");
            }
        }
        assert_eq!(answer["straggler"], 0, "{engine}: the first of equals");
        // 2 x 20,001 ns under decode, of two ranks.
        assert_eq!(answer["stacks"][0]["stack"], "main;decode;cudaLaunchKernel", "{engine}");
        assert_eq!(answer["stacks"][0]["total_ns"], 40_002, "{engine}");
    }
}

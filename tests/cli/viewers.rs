//! Opens the output of `gpuflame convert` in the viewers for each format. The script `tests/viewers/install` installs
//! the viewers. If the viewers are missing, these tests are skipped, except in CI.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::command::gpuflame;
use crate::support::{handmade, root, scratch, skip};
use serde_json::Value;

/// Returns the folder that `tests/viewers/install` fills. If that script was not run, prints a sentence and returns
/// `None`.
fn viewers(needed: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("viewers");
    if folder.join(needed).exists() {
        return Some(folder);
    }
    skip(&format!("{needed} is not installed; run `tests/viewers/install`"));
    None
}

fn has(program: &str) -> bool {
    let there =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success();
    if !there {
        skip(&format!("{program} is not installed; run `tests/viewers/install`"));
    }
    there
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

fn script(name: &str) -> PathBuf {
    root().join("tests/viewers").join(name)
}

/// Converts the hand-made recording to files with these names.
fn converted(names: &[&str]) -> PathBuf {
    let folder = scratch("viewers");
    handmade::recording(&folder);
    for name in names {
        gpuflame(&folder, ["convert", "hand.gfr", "-o", name]).ok();
    }
    folder
}

#[test]
fn speedscope_opens_speedscope_folded_pprof_and_chrome_outputs() {
    let Some(viewers) = viewers("node/node_modules/speedscope") else { return };
    let files = ["out.speedscope.json", "out.folded", "out.pprof", "out.json"];
    let folder = converted(&files);
    let mut command = Command::new("node");
    command.arg(script("speedscope.mjs")).arg(viewers.join("node/node_modules"));
    let titles = run(command.args(files.map(|file| folder.join(file))));
    for (title, file) in titles.lines().zip(files) {
        assert!(title.contains(file), "the title of {file} is {title}");
    }
    assert_eq!(titles.lines().count(), files.len());
}

#[test]
fn the_flame_graph_zooms_and_searches() {
    let Some(viewers) = viewers("node/node_modules/playwright-core") else { return };
    let folder = converted(&["out.svg"]);
    let mut command = Command::new("node");
    command.arg(script("svg.mjs")).arg(viewers.join("node/node_modules")).arg(folder.join("out.svg"));
    let seen: Value = serde_json::from_str(&run(command.args(["load", "gemm"]))).unwrap();
    let width = |when: &str| seen[when]["width"].as_f64().unwrap();
    assert!(width("zoomed") > 1100.0 && width("zoomed") > 3.0 * width("before"), "{seen}");
    assert!((width("unzoomed") - width("before")).abs() < 1.0, "{seen}");
    assert!(seen["zoomed"]["shown"].as_u64() < seen["before"]["shown"].as_u64(), "{seen}");
    // The search in the flame graph matches 20,001 of 57,001 ns.
    assert!(seen["matched"].as_str().unwrap().contains("35.1"), "{seen}");
    // The script in the SVG draws the short name before and after zooming. One of the two frames is too narrow for the
    // short name.
    for when in ["before", "unzoomed"] {
        let drawn: Vec<[String; 2]> = serde_json::from_value(seen[when]["drawn"].clone()).unwrap();
        let is_short = |[title, text]: &[String; 2]| {
            title.starts_with("gemm<float> [GPU0_Kernel] (") && text.trim_end() == "gemm [GPU0_Kernel]"
        };
        assert!(drawn.iter().any(is_short) && drawn.iter().all(|[_, text]| !text.contains('<')), "{seen}");
    }
    assert_eq!(seen["errors"], serde_json::json!([]));
}

#[test]
fn the_difference_flame_graph_zooms_and_searches() {
    let Some(viewers) = viewers("node/node_modules/playwright-core") else { return };
    let folder = converted(&[]);
    fs::write(folder.join("before.folded"), "main;load;copy 10\nmain;decode;gemm 30\n").unwrap();
    fs::write(folder.join("after.folded"), "main;load;copy 10\nmain;decode;gemm 50\n").unwrap();
    gpuflame(&folder, ["flamegraph", "--diff", "before.folded", "after.folded", "-o", "out.svg"]).ok();
    let mut command = Command::new("node");
    command.arg(script("svg.mjs")).arg(viewers.join("node/node_modules")).arg(folder.join("out.svg"));
    let seen: Value = serde_json::from_str(&run(command.args(["load", "gemm"]))).unwrap();
    assert!(seen["zoomed"]["width"].as_f64() > seen["before"]["width"].as_f64(), "{seen}");
    // The search in the second flame graph matches 50 of 60 ns.
    assert!(seen["matched"].as_str().unwrap().contains("83.3"), "{seen}");
    assert_eq!(seen["errors"], serde_json::json!([]));
}

#[test]
fn go_tool_pprof_reads_all_three_values() {
    if !has("go") {
        return;
    }
    let folder = converted(&["out.pb.gz"]);
    let top = |value: &str| {
        let mut command = Command::new("go");
        command.current_dir(&folder).env("HOME", &folder).args([
            "tool",
            "pprof",
            "-top",
            "-unit=ns",
            "-symbolize=none",
        ]);
        run(command.args([&format!("-sample_index={value}"), "out.pb.gz"]))
    };
    let line = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.ends_with(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}"))
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let time = top("gpu_time");
    assert_eq!(line(&time, "[GPU0_Kernel]gemm<float>")[0], "20001ns");
    assert_eq!(line(&time, " decode")[3], "20001ns", "all time of the kernel is below decode");
    assert!(time.contains("57001ns total"), "{time}");
    let launches = top("launches");
    // The recording has eight activities, one of which has no time.
    assert!(launches.contains("of 8ns total"), "{launches}");
    let pending = top("pending");
    assert!(pending.contains("of 1ns total"), "{pending}");
    let raw = run(Command::new("go").current_dir(&folder).env("HOME", &folder).args([
        "tool",
        "pprof",
        "-raw",
        "out.pb.gz",
    ]));
    assert!(raw.contains("gpu_time/nanoseconds[dflt] launches/count bytes/bytes pending/count"), "{raw}");
    assert!(raw.contains("12000          1       4096"), "{raw}");
    assert!(raw.contains("gpu:[1]"), "{raw}");
}

#[test]
fn perfettos_own_classes_read_the_gpu_events_and_their_launching_calls() {
    let Some(viewers) = viewers("venv/bin/python") else { return };
    let folder = converted(&["out.pftrace"]);
    let mut command = Command::new(viewers.join("venv/bin/python"));
    let seen: Value =
        serde_json::from_str(&run(command.arg(script("read_perfetto.py")).arg(folder.join("out.pftrace"))))
            .unwrap();
    assert_eq!(seen["api"], "CUDA");
    let calls: BTreeMap<String, u64> = serde_json::from_value(seen["calls"].clone()).unwrap();
    let expected = [("cudaLaunchKernel", 5), ("cudaMemcpyAsync", 1), ("cudaMemsetAsync", 1)];
    assert_eq!(calls, expected.map(|(name, count)| (name.to_owned(), count)).into());
    assert_eq!(seen["threads"]["100"], "python3 -m x");
    let gpu = seen["gpu"].as_array().unwrap();
    assert_eq!(gpu.len(), 7, "all activities except the one without times");
    assert_eq!(gpu.iter().map(|event| event["duration"].as_u64().unwrap()).sum::<u64>(), 57_001);
    let gemm: Vec<_> = gpu.iter().filter(|event| event["kernel"][0] == "_Z4gemmIfEvPT_").collect();
    assert_eq!(gemm.len(), 2);
    assert_eq!((&gemm[1]["kernel"][1], &gemm[1]["stage"]), (&"gemm<float>".into(), &"gemm<float>".into()));
    assert_eq!(gemm[1]["start"], handmade::BASE + 30_000);
    assert_eq!(gemm[1]["duration"], 10_001);
    assert_eq!(gemm[1]["launched_by"], "main;decode;cudaLaunchKernel");
    assert_eq!(gemm[1]["grid"], serde_json::json!([4, 2, 1]));
    assert_eq!(gemm[1]["block"], serde_json::json!([128, 1, 1]));
    let copy = gpu.iter().find(|event| event["stage"] == "Memcpy HtoD").unwrap();
    assert_eq!(
        (&copy["queue"], &copy["launched_by"]),
        (&"stream 8".into(), &"main;load;cudaMemcpyAsync".into())
    );
    let unlinked: Vec<_> = gpu.iter().filter(|event| event["launched_by"].is_null()).collect();
    assert_eq!(unlinked.len(), 2, "early and lone");
    assert_eq!(gpu.iter().filter(|event| event["gpu"] == 1).count(), 3);
}

#[test]
fn duckdb_reads_the_parquet_table_and_its_run_and_rank_partitions() {
    let Some(viewers) = viewers("venv/bin/python") else { return };
    let folder = scratch("viewers");
    handmade::recording(&folder);
    fs::copy(folder.join("hand.gfr"), folder.join("rank3.gfr")).unwrap();
    fs::copy(folder.join("hand.gfr"), folder.join("rank12.gfr")).unwrap();
    gpuflame(&folder, ["convert", "rank3.gfr", "rank12.gfr", "--to", "parquet", "-o", "data", "--run", "A"])
        .ok();
    let ask = |question: &str| -> Value {
        let python =
            "import duckdb, json, sys; print(json.dumps(duckdb.sql(sys.argv[1]).fetchall(), default=str))";
        let mut command = Command::new(viewers.join("venv/bin/python"));
        let answer = run(command.current_dir(&folder).args(["-c", python, question]));
        serde_json::from_str(&answer).unwrap()
    };
    let table = "read_parquet('data/**/*.parquet', hive_partitioning=true)";
    let answer = ask(&format!(
        "SELECT run, rank, count(*), sum(duration_ns)::BIGINT FROM {table} GROUP BY ALL ORDER BY rank"
    ));
    assert_eq!(answer, serde_json::json!([["A", 3, 8, 57_001], ["A", 12, 8, 57_001]]));
    let answer = ask(&format!(
        "SELECT kind, name, device, stream, start_ns, end_ns, stack, launch_ns, thread_name, grid_y, reason \
         FROM {table} WHERE correlation = 12 AND rank = 3"
    ));
    let base = handmade::BASE;
    let (from, launched) = (base + 30_000, base + 16_000);
    let expected = serde_json::json!([[
        "kernel",
        "gemm<float>",
        0,
        7,
        from,
        from + 10_001,
        "main;decode;cudaLaunchKernel",
        launched,
        "python3 -m x",
        2,
        null
    ]]);
    assert_eq!(answer, expected);
    let answer = ask(&format!(
        "SELECT kind, reason FROM {table} WHERE reason IS NOT NULL AND rank = 3 ORDER BY reason"
    ));
    let expected = serde_json::json!([
        ["kernel", "launched_before_recording"],
        ["kernel", "no_launch_stack"],
        ["kernel", "timestamp_not_collected"]
    ]);
    assert_eq!(answer, expected);
}

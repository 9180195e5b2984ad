//! Tests how the names in one run are matched with the names in another run. If a number in a name differs between
//! runs, it is replaced only in the output of a view, not in the recording.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::command::gpuflame;
use crate::support::harmless::{assert_harmless, assert_harmless_tables};
use crate::support::scratch;
use crate::support::traces::Trace;
use crate::tables::at_terminal;

/// Writes the trace of two steps of a program. The names in the trace contain every kind of number that differs from
/// run to run.
fn run(path: &Path, first_step: u32, address: &str, operation: u32, us: u64) {
    let mut trace = Trace::default();
    for at in 0..2 {
        let start = 1000 * u64::from(at);
        let step = format!("ProfilerStep#{}", first_step + at);
        let marked = format!("aten::mm, seq = {}, op_id = {operation}", operation + at);
        let object = format!("<built-in method mm of Tensor object at {address}{at}>");
        trace
            .slice("user_annotation", &step, 9, start, start + 900)
            .python("train_12345.py(17): step_3", 9, start + 1, start + 899)
            .python("nn.Module: Layer_17", 9, start + 2, start + 898)
            .python(&object, 9, start + 3, start + 897)
            .slice("user_annotation", &marked, 9, start + 4, start + 896)
            .slice("cpu_op", "AddBackward0", 9, start + 5, start + 895)
            .launch(1 + at, "gemm_12345_step_7#5", 9, start + 10, start + 20, start + 20 + us);
    }
    trace.write(path);
}

const FOLDED: &str = "ProfilerStep#N;train_12345.py(17): step_3;nn.Module: Layer_17;\
     <built-in method mm of Tensor object at 0xN>;aten::mm, seq = N, op_id = N;AddBackward0;cudaLaunchKernel";

fn json(folder: &Path, args: &[&str]) -> Value {
    let ran = gpuflame(folder, args.iter().chain(&["--format", "json"])).ok();
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn frames_that_differ_only_in_numbers_are_merged_in_aggregated_outputs() {
    let folder = scratch("names");
    run(&folder.join("a.json"), 5, "0x7f19a0c3d2e", 995_009, 100);
    let drawn = gpuflame(&folder, ["flamegraph", "a.json"]).ok().stdout;
    assert_eq!(drawn, format!("{FOLDED};[GPU_Kernel]gemm_12345_step_7#5 200000\n"));
    let top = json(&folder, &["top", "a.json", "--by", "stacks"]);
    assert_eq!(top["stacks"][0]["stack"], FOLDED);
    let kept = gpuflame(&folder, ["flamegraph", "a.json", "--keep-numbers"]).ok().stdout;
    assert_eq!(kept.lines().count(), 2, "{kept}");
    assert!(kept.contains("ProfilerStep#5;") && kept.contains("object at 0x7f19a0c3d2e1>"), "{kept}");
    let modules = gpuflame(&folder, ["flamegraph", "a.json", "--fold", "modules"]).ok().stdout;
    assert_eq!(modules, drawn.replace("Layer_17", "Layer_N"));
    let rows = json(&folder, &["view", "a.json"]);
    let stack = rows["activities"][1]["launched_by"].as_str().unwrap();
    assert!(stack.starts_with("ProfilerStep#6;"), "single activities keep their names: {stack}");
    gpuflame(&folder, ["convert", "a.json", "-o", "a.speedscope.json"]).ok();
    let speedscope = std::fs::read_to_string(folder.join("a.speedscope.json")).unwrap();
    assert!(speedscope.contains("\"ProfilerStep#N\"") && !speedscope.contains("ProfilerStep#5"));
    let both = gpuflame(&folder, ["flamegraph", "a.json", "--keep-numbers", "--fold", "modules"]);
    assert_eq!(both.code, 2, "{}", both.stderr);
}

#[test]
fn diff_matches_two_runs_of_the_same_code_despite_numbers_in_names() {
    let folder = scratch("names");
    run(&folder.join("a.json"), 5, "0x7f19a0c3d2e", 995_009, 100);
    run(&folder.join("b.json"), 12, "0x55e3abcdef0", 17, 130);
    let diff = json(&folder, &["diff", "a.json", "b.json"]);
    let by = |table: &str, key: &str, name: &str| {
        let rows = diff[table].as_array().unwrap();
        rows.iter().find(|row| row[key] == name).unwrap_or_else(|| panic!("no {name} in {diff:#}")).clone()
    };
    assert_eq!(by("matched", "by", "stacks")["before_percent"], 100.0);
    assert_eq!(by("matched", "by", "modules")["after_percent"], 100.0);
    assert_eq!(by("stacks", "name", FOLDED)["change_ns"], 60_000);
    assert_eq!(by("modules", "name", "Layer_17")["change_ns"], 60_000);
    // The first kernel begins at 20 us. The last kernel ends at 1120 us in the first run and at 1150 us in the second
    // run.
    assert_eq!(by("run", "what", "wall")["before_ns"], 1_100_000);
    assert_eq!(by("run", "what", "busy")["after_ns"], 260_000);
    assert_eq!(by("run", "what", "idle")["change_ns"], -30_000);
    // Until the second launch call, at 1010 us, the GPU waits for the host. The kernel that this call launches begins
    // 10 us later.
    assert_eq!(by("run", "what", "idle: host late")["before_ns"], 1_010_000 - 120_000);
    assert_eq!(by("run", "what", "idle: launch latency")["before_ns"], 10_000);
    assert_eq!(by("run", "what", "busy of a step")["before_ns"], 100_000);
    let kept = json(&folder, &["diff", "a.json", "b.json", "--keep-numbers"]);
    assert_eq!(kept["matched"][1]["before_percent"], 0.0, "{kept:#}");
    let same = gpuflame(&folder, ["diff", "a.json", "a.json"]).ok();
    assert!(!same.stdout.contains("gemm"), "unchanged rows are left out: {}", same.stdout);
    assert!(same.stderr.contains("3 rows that did not change"), "{}", same.stderr);
}

#[test]
fn root_thread_names_threads_without_their_numbers() {
    let folder = scratch("names");
    let mut trace = Trace::default();
    for (at, thread) in (0..).zip([14508, 14509, 77]) {
        trace.launch(
            1 + at,
            "k",
            thread,
            10 + u64::from(at),
            100 * u64::from(at) + 20,
            100 * u64::from(at) + 30,
        );
        let name = if thread == 77 { "loader 14510" } else { "llm" };
        trace.0.push(serde_json::json!({
            "ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": { "name": name }
        }));
    }
    trace.write(&folder.join("a.json"));
    let drawn = gpuflame(&folder, ["flamegraph", "a.json", "--root", "thread"]).ok().stdout;
    let expected = "[thread llm];cudaLaunchKernel;[GPU_Kernel]k 20000\n\
                    [thread loader N];cudaLaunchKernel;[GPU_Kernel]k 10000\n";
    assert_eq!(drawn, expected);
    let kept = gpuflame(&folder, ["flamegraph", "a.json", "--root", "thread", "--keep-numbers"]).ok().stdout;
    assert!(kept.contains("[thread llm 14508];") && kept.contains("[thread loader 14510];"), "{kept}");
}

/// Returns a name that controls a terminal, reverses the direction of the text after it, and contains line breaks.
fn odd(name: &str) -> String {
    format!("{name}\x1b[31mred\rover\u{202e}turned\u{2066}x\u{2028}y\nz")
}

fn odd_trace(folder: &Path, file: &str, kernels: [&str; 2]) {
    let mut trace = Trace::default();
    trace.slice("user_annotation", "ProfilerStep#1", 1, 0, 600);
    for id in 0..6 {
        let at = u64::from(id) * 100;
        trace.python(&odd("python"), 1, at, at + 60).slice("cpu_op", &odd("op"), 1, at + 1, at + 50);
        trace.launch(id, &odd(kernels[id as usize % 2]), 1, at + 5, at + 20, at + 50);
    }
    let thread = serde_json::json!({
        "ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": { "name": odd("thread") }
    });
    trace.0.push(thread);
    trace.write(&folder.join(file));
}

/// Asserts that no name that `odd` returned still contains a line break.
fn assert_one_line_each(text: &str, by: &str) {
    assert_harmless(text, by);
    assert!(text.lines().all(|line| !line.starts_with(['y', 'z'])), "{by}: {text}");
}

/// Asserts that all files that the command wrote into `folder` can be shown on a terminal without harm. Each of these
/// files contains one of the odd names.
fn assert_files_are_harmless(folder: &Path) {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let ends = [".csv", ".svg", ".folded", ".speedscope", ".chrome", ".txt", ".extended"];
    let files: Vec<_> =
        files.filter(|name| name != "cpu.txt" && ends.iter().any(|end| name.ends_with(end))).collect();
    assert!(files.len() >= 12, "{files:?}");
    for name in &files {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        assert!(text.contains("[31mred over turned"), "{name}: {text}");
        assert_one_line_each(&text, name);
        if name.ends_with(".csv") {
            assert_harmless_tables(&text, name);
        }
    }
}

/// A terminal gets the same names as a pipe, but they are cut to the terminal's width.
#[test]
fn names_with_terminal_control_characters_are_escaped_in_all_output() {
    let folder = scratch("odd_names");
    odd_trace(&folder, "odd.json", ["first", "second"]);
    odd_trace(&folder, "odd2.json", ["first", "third"]);
    odd_trace(&folder, &odd("file"), ["first", "second"]);
    let stack = format!("{};{};cudaLaunchKernel", odd("main"), odd("work")).replace('\n', " ");
    fs::write(folder.join("cpu.txt"), format!("205000 {} 1 1 0 {stack}\n", "comm\x1b[31m\u{202e}")).unwrap();
    let (file, missing) = (odd("file"), odd("missing"));
    let by = ["kernels", "stacks", "line", "function", "delay", "idle", "comm", "slack"];
    let top = by.map(|by| vec!["top", "odd.json", "--by", by]);
    let others = [
        vec!["info", "odd.json"],
        vec!["check", "odd.json"],
        vec!["diff", "odd.json", "odd2.json"],
        vec!["view", "odd.json"],
        vec!["view", "odd.json", "--stats"],
        vec!["timeline", "odd.json"],
        vec!["extract", "odd.json", "extracted.csv", "0,1000"],
        vec!["stats", "odd.json", "steps.csv", "none", "1000"],
        vec!["merge", "-c", "cpu.txt", "-g", "odd.json", "-s"],
        vec!["merge-ranks", "odd.json", "odd2.json", "--assume-order", "-o", "ranks.svg"],
        vec!["flamegraph", "odd.json", "--format", "folded"],
        vec!["flamegraph", "odd.json", "-o", "drawn.svg"],
        vec!["flamegraph", "--diff", "odd.json", "odd2.json", "-o", "diff.svg"],
        vec!["convert", "odd.json", "-o", "converted.folded"],
        vec!["convert", "odd.json", "-o", "converted.csv"],
        vec!["convert", "odd.json", "--to", "speedscope", "-o", "converted.speedscope"],
        vec!["convert", "odd.json", "--to", "chrome", "-o", "converted.chrome"],
        vec!["convert", "odd.json", "--to", "cupti-text", "-o", "converted.txt"],
        vec!["convert", "odd.json", "--to", "extended-folded", "-o", "converted.extended"],
        vec!["info", &file],
    ];
    let mut shown = 0;
    for args in top.iter().chain(&others) {
        for format in [None, Some(["--format", "csv"]), Some(["--format", "json"])] {
            let is_report = matches!(args[0], "top" | "info" | "check" | "diff" | "view" | "merge-ranks");
            if format.is_some() && !is_report {
                continue;
            }
            let ran = gpuflame(&folder, args.iter().chain(format.iter().flatten()));
            // The command `check` exits with 1 if it finds a problem.
            assert!(ran.code == 0 || (args[0], ran.code) == ("check", 1), "{args:?} {}", ran.stderr);
            assert_one_line_each(&ran.stderr, args[0]);
            assert_one_line_each(&ran.stdout, args[0]);
            if format == Some(["--format", "csv"]) {
                assert_harmless_tables(&ran.stdout, args[0]);
            }
            shown += usize::from(ran.stdout.contains("first [31mred over turned"));
            if format.is_none() && is_report {
                let args: Vec<&str> = args.iter().map(|arg| &**arg).collect();
                let drawn = at_terminal(&folder, &args, &[("NO_COLOR", "1"), ("COLUMNS", "60")]);
                assert_harmless(&drawn, args[0]);
            }
        }
    }
    assert!(shown >= 15, "{shown} outputs show the kernel");
    assert_files_are_harmless(&folder);
    let refused = gpuflame(&folder, ["top", &missing]);
    assert_one_line_each(&refused.stderr, "top");
    refused.fails(1, &["missing [31mred over turned"]);
}

#[test]
fn a_kernel_with_an_empty_name_has_a_name_in_brackets() {
    let folder = scratch("empty-name");
    let mut trace = Trace::default();
    trace.launch(1, "", 9, 10, 20, 40).launch(2, "gemm", 9, 50, 60, 70);
    trace.write(&folder.join("x.json"));
    // The kernel without a name takes 20 of the 30 us.
    let shown = gpuflame(&folder, ["top", "x.json", "--by", "kernel", "--format", "csv"]).ok().stdout;
    assert!(shown.contains("[kernel without a name]"), "{shown}");
    let folded = gpuflame(&folder, ["flamegraph", "x.json", "-o", "-", "--format", "folded"]).ok().stdout;
    assert!(folded.contains("[GPU_Kernel][kernel without a name] 20000\n"), "{folded}");
}

//! Tests `diff --new`, which compares several runs before a change with several runs after the change. In these tests
//! the size of the change is known.

use std::fs;
use std::path::{Path, PathBuf};

use gpuflame_explain::symbolize::{SymbolizeOptions, Symbolizer};
use gpuflame_explain::{Explain, FinishedSums, Options, Snapshot};
use gpuflame_model::record::{Nanos, Reader, Row};
use serde_json::Value;

use crate::support::command::{Ran, gpuflame};
use crate::support::traces::Trace;
use crate::support::{handmade, scratch};

/// Noise, in thousandths, of 7 pairs of runs, in the order in which the runs ran. The noise has a standard deviation of
/// about 10 and a mean of 0.
const NOISE: [i64; 14] = [4, -9, 12, -3, -14, 8, 1, 15, -6, -11, 10, 3, -17, 7];

/// A kernel whose name has characters that are special in Markdown and tables.
const ODD: &str = "void a|`b`<float>(int*)";

/// Writes a trace of 4 steps. Each step has a kernel of 10 ms and a kernel of 5 ms. `permille` is the factor for every
/// duration, in thousandths.
fn run(path: &Path, permille: i64) {
    let mut trace = Trace::default();
    let (mut time, mut id) = (1_000, 0);
    for step in 0..4 {
        let begin = time;
        for (kernel, micros) in [("gemm", 10_000), (ODD, 5_000)] {
            id += 1;
            let micros = u64::try_from(micros * permille / 1000).unwrap();
            trace.launch(id, kernel, 1, time, time + 10, time + 10 + micros);
            time += 20 + micros;
        }
        trace.slice("user_annotation", &format!("ProfilerStep#{step}"), 1, begin, time);
    }
    trace.write(path);
}

/// Writes `pairs` pairs of runs, `NAME-before-N.json` and `NAME-after-N.json`. `noise` is a factor for the values of
/// [`NOISE`]. `change` is the change in thousandths. Returns the command-line arguments that name the runs.
fn runs(folder: &Path, name: &str, pairs: usize, noise: i64, change: i64) -> Vec<String> {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        // With each run, the simulated machine becomes slower by 2 thousandths.
        let factor = |run: usize| 1000 + noise * NOISE[run] + 2 * i64::try_from(run).unwrap();
        before.push(format!("{name}-before-{pair}.json"));
        run(&folder.join(before.last().unwrap()), factor(2 * pair));
        after.push(format!("{name}-after-{pair}.json"));
        run(&folder.join(after.last().unwrap()), factor(2 * pair + 1) * (1000 + change) / 1000);
    }
    [&before[..], &["--new".to_owned()], &after].concat()
}

fn gate(folder: &Path, runs: &[String], more: &[&str]) -> Ran {
    let args = ["diff"].into_iter().chain(runs.iter().map(String::as_str)).chain(more.iter().copied());
    gpuflame(folder, args)
}

fn verdict(ran: &Ran) -> Value {
    let output: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    output["verdict"][0].clone()
}

#[test]
fn every_verdict_has_its_exit_code() {
    let folder = scratch("gate-verdicts");
    for (name, noise, change, code, words) in [
        ("same", 1, 0, 0, "same: GPU work per run"),
        ("slower", 1, 80, 11, "--fail-above is 5 %: the gate fails"),
        ("within", 1, 30, 14, "below --fail-above 5 %: the gate passes"),
        ("faster", 1, -80, 10, "the gate passes"),
        ("open", 5, 0, 12, "pairs would find or exclude a change of 5 %"),
    ] {
        let runs = runs(&folder, name, 7, noise, change);
        let ran = gate(&folder, &runs, &[]);
        assert_eq!(ran.code, code, "{name}: {}{}", ran.stdout, ran.stderr);
        let first = ran.stdout.lines().next().unwrap();
        assert!(first.contains(words), "{first}");
        let json = gate(&folder, &runs, &["--format", "json", "-n", "0"]);
        let found = verdict(&json);
        assert_eq!(found["exit_code"], code);
        assert!(first.starts_with(&format!("{}: ", found["verdict"].as_str().unwrap())), "{first}");
        let passes = matches!(code, 0 | 10 | 14);
        assert_eq!(found["passes"], if passes { "yes" } else { "no" });
        let zero = gate(&folder, &runs, &["--zero-on-pass"]).code;
        assert_eq!(zero, if passes { 0 } else { code });
    }
    // The change of 3 % is above the limit of 1 %.
    let runs = runs(&folder, "limit", 7, 1, 30);
    assert_eq!(gate(&folder, &runs, &["--fail-above", "1%"]).code, 11);
    assert_eq!(gate(&folder, &runs, &["--fail-above", "1"]).code, 11, "the percent sign is optional");
    for wrong in ["0", "-1%", "x", "nan", "inf%"] {
        assert_eq!(gate(&folder, &runs, &[&format!("--fail-above={wrong}")]).code, 2, "{wrong}");
    }
}

#[test]
fn changes_are_listed_by_total_step_kernel_and_stack_in_ns_per_run() {
    let folder = scratch("gate-rows");
    let runs = runs(&folder, "exact", 3, 0, 100);
    let ran = gate(&folder, &runs, &["--format", "json", "-n", "0"]);
    assert_eq!(ran.code, 11, "{ran:?}");
    let output: Value = serde_json::from_str(&ran.stdout).unwrap();
    let rows = output["changes"].as_array().unwrap();
    let row = |by: &str, name: &str| {
        let found = rows.iter().find(|row| row["by"] == by && row["name"] == name);
        found.unwrap_or_else(|| panic!("no {by} {name} in {rows:#?}"))
    };
    assert_eq!((&rows[0]["by"], &rows[1]["by"]), (&"total".into(), &"step".into()));
    // The kernels in the runs before the change take 1,000, 1,004 and 1,008 thousandths of 4 x 15 ms. The kernels in
    // the runs after the change take 1.1 times 1,002, 1,006 and 1,010 thousandths of 4 x 15 ms, rounded down. If the
    // drift of the machine is removed, the change is 10 %.
    let total = row("total", "GPU work");
    assert_eq!(total["before_ns"], 60_240_000);
    let near = |value: &Value, expected: f64, within: f64| {
        let found = value.as_f64().unwrap();
        assert!((found - expected).abs() < within, "{found}, not {expected}");
    };
    near(&total["change_percent"], 10.0, 0.1);
    near(&total["change_ns"], 6_024_000.0, 60_000.0);
    near(&row("kernel", "gemm")["change_ns"], 4_016_000.0, 40_000.0);
    near(&row("kernel", ODD)["change_ns"], 2_008_000.0, 20_000.0);
    near(&row("stack", "ProfilerStep#N;cudaLaunchKernel")["change_percent"], 10.0, 0.1);
    // A step also has 2 x 20 us outside of kernels, and this time does not change.
    near(&row("step", "mean step")["change_ns"], 1_506_000.0, 15_000.0);
    assert!(rows.iter().any(|row| row["by"] == "idle" && row["share_of"] == "wall"), "{rows:#?}");
}

#[test]
fn markdown_and_few_rows_are_for_a_pull_request() {
    let folder = scratch("gate-markdown");
    let runs = runs(&folder, "slower", 7, 1, 80);
    let ran = gate(&folder, &runs, &["-o", "comment.md"]);
    assert_eq!(ran.code, 11, "{ran:?}");
    let text = fs::read_to_string(folder.join("comment.md")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("**gpuflame: slower** - GPU work per run +"), "{text}");
    assert_eq!(lines[1], "", "a table begins after an empty line");
    let columns = |line: &str| line.replace("\\|", "").matches('|').count();
    assert!(lines[2..].iter().all(|line| columns(line) == columns(lines[2])), "{text}");
    assert!(lines[3].starts_with("| ---: |"), "{text}");
    assert!(text.contains("``void a\\|`b`<float>(int*)``"), "{text}");
    assert!(gate(&folder, &runs, &[]).stdout.lines().count() <= 24, "a screen");
    // The table has 5 rows: total, step, busy, wall and one more.
    assert_eq!(gate(&folder, &runs, &["-n", "1", "--format", "markdown"]).stdout.lines().count(), 2 + 2 + 5);
}

#[test]
fn runs_that_cannot_be_compared_are_invalid_with_the_reason() {
    let folder = scratch("gate-invalid");
    let good = runs(&folder, "good", 3, 1, 0);
    let replaced = |file: &str| -> Vec<String> {
        let mut runs = good.clone();
        *runs.last_mut().unwrap() = file.to_owned();
        runs
    };
    let whole = fs::read(folder.join("good-after-2.json")).unwrap();
    fs::write(folder.join("cut.json"), &whole[..whole.len() / 2]).unwrap();
    let recording = fs::read(handmade::recording(&folder)).unwrap();
    fs::write(folder.join("cut.gfr"), &recording[..recording.len() - 40]).unwrap();
    let mut cpu = Trace::default();
    cpu.slice("cpu_op", "aten::mm", 1, 0, 10).write(&folder.join("cpu.json"));
    let mut uncovered = Trace::default();
    for id in 0..20 {
        let time = u64::from(id) * 100;
        uncovered.launch(id + 1, "gemm", 1, time, time + 10, time + 50);
        if id % 4 == 0 {
            uncovered.0.pop();
        }
    }
    uncovered.write(&folder.join("uncovered.json"));
    let mut longer = Trace::default();
    for id in 0..30 {
        let time = u64::from(id) * 30_000;
        longer.launch(id + 1, "gemm", 1, time, time + 10, time + 10_000);
    }
    longer.write(&folder.join("longer.json"));
    std::os::unix::fs::symlink("good-after-1.json", folder.join("link.json")).unwrap();
    for (file, reason) in [
        ("cut.json", "cut.json"),
        ("cut.gfr", "cut.gfr: the recording breaks off"),
        ("cpu.json", "cpu.json: contains no GPU work"),
        ("uncovered.json", "uncovered.json: 5 of 20 launches have no GPU work"),
        ("longer.json", "longer.json: 30 GPU operations per run, 8 in other runs of its side"),
        ("good-before-0.json", "good-before-0.json is named twice"),
        ("link.json", "link.json is named twice"),
    ] {
        let ran = gate(&folder, &replaced(file), &[]);
        assert_eq!(ran.code, 13, "{file}: {ran:?}");
        assert!(ran.stdout.starts_with("invalid: ") && ran.stdout.contains(reason), "{file}: {}", ran.stdout);
        assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
        let json = verdict(&gate(&folder, &replaced(file), &["--format", "json"]));
        assert_eq!((&json["verdict"], &json["passes"]), (&"invalid".into(), &"no".into()));
        assert!(json["reason"].as_str().unwrap().contains(reason), "{json}");
    }
    let ran = gate(&folder, &replaced("nowhere.json"), &[]);
    ran.fails(1, &["nowhere.json: no such file"]);
}

#[test]
fn fewer_than_three_runs_per_side_are_inconclusive() {
    let folder = scratch("gate-few");
    let few = runs(&folder, "few", 2, 1, 80);
    let ran = gate(&folder, &few, &[]);
    assert_eq!(ran.code, 12, "{ran:?}");
    assert!(ran.stdout.contains("2 and 2 runs; at least 3 of each side are needed"), "{}", ran.stdout);
    assert_eq!(verdict(&gate(&folder, &few, &["--format", "json"]))["pairs_needed"], 3);
}

#[test]
fn the_order_of_the_files_pairs_the_runs() {
    let folder = scratch("gate-order");
    let runs = runs(&folder, "drift", 7, 0, 0);
    let percent = |runs: &[String]| {
        verdict(&gate(&folder, runs, &["--format", "json"]))["change_percent"].as_f64().unwrap()
    };
    // If the runs are given in the order in which they ran, the drift of 2 thousandths per run is removed.
    assert!(percent(&runs).abs() < 0.02, "{}", percent(&runs));
    // If the runs are given in another order, the line that is fitted through all values does not have the slope of the
    // drift. Therefore a part of the drift remains, and looks like a change.
    let mut shuffled = runs.clone();
    shuffled.swap(0, 3);
    shuffled.swap(2, 5);
    assert!(percent(&shuffled).abs() > 0.05, "{}", percent(&shuffled));
}

#[test]
fn a_baseline_replaces_the_recordings_before_the_change() {
    let folder = scratch("gate-baseline");
    let runs = runs(&folder, "slower", 7, 1, 80);
    let at = runs.iter().position(|word| word == "--new").unwrap();
    let (before, after) = runs.split_at(at);
    let saved = gate(&folder, before, &["--save-baseline", "main.json"]);
    assert_eq!((saved.code, saved.stdout.as_str()), (0, ""), "{saved:?}");
    for file in before {
        fs::remove_file(folder.join(file)).unwrap();
    }
    let with = |file: &str| -> Vec<String> { [&[file.to_owned()][..], after].concat() };
    let ran = gate(&folder, &with("main.json"), &["--format", "json", "-n", "0"]);
    let found = verdict(&ran);
    assert_eq!((ran.code, &found["verdict"]), (11, &"slower".into()), "{ran:?}");
    let output: Value = serde_json::from_str(&ran.stdout).unwrap();
    let by =
        |kind: &str| output["changes"].as_array().unwrap().iter().filter(|row| row["by"] == kind).count();
    assert_eq!((by("kernel"), by("stack")), (2, 1), "{output:#}");
    assert!(ran.stderr.contains("the runs of a baseline were recorded earlier"), "{}", ran.stderr);

    let text = fs::read_to_string(folder.join("main.json")).unwrap();
    let change = |name: &str, from: &str, to: &str| -> PathBuf {
        assert!(text.contains(from), "{text}");
        let path = folder.join(name);
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        path
    };
    change("newer.json", "\"gpuflame_baseline\": 1", "\"gpuflame_baseline\": 2");
    change("typed.json", "\"work_ns\":", "\"work\":");
    change("short.json", "\"gemm\": [", "\"gemm\": [1,");
    fs::write(folder.join("cut.json"), &text[..text.len() / 2]).unwrap();
    for (file, words) in [
        ("newer.json", &["newer.json: a baseline of version 2", "update gpuflame"][..]),
        ("typed.json", &["typed.json: the baseline lacks values", "--save-baseline"]),
        ("short.json", &["short.json: the baseline lacks values", "--save-baseline"]),
        ("cut.json", &["cut.json: the baseline is damaged", "--save-baseline"]),
    ] {
        gate(&folder, &with(file), &[]).fails(1, words);
    }
    gate(&folder, &with("main.json"), &["--keep-numbers"]).fails(1, &["--keep-numbers", "main.json"]);
    let reversed: Vec<String> = [&after[1..], &["--new".to_owned(), "main.json".to_owned()]].concat();
    gate(&folder, &reversed, &[]).fails(2, &["main.json is a baseline; name it before --new"]);
}

/// Writes the file of sums that gpuflame writes by default, for the hand-made recording without the launch that has no
/// GPU work. `permille` is the factor for all durations, in thousandths.
fn sums(path: &Path, permille: u64) {
    let rows = handmade::bytes();
    let mut explain = Explain::new(Options { has_squares: true, merge_threads: true, ..Options::default() });
    let mut reader = Reader::new(&rows[..]).unwrap();
    while let Some(row) = reader.next_row().unwrap() {
        match row {
            Row::Launch(launch) if launch.correlation.0 == 16 => {}
            Row::Activity(mut activity) => {
                let nanos = activity.end.0.saturating_sub(activity.start.0);
                activity.end = Nanos(activity.start.0 + nanos * permille / 1000);
                explain.push(&Row::Activity(activity), &mut ());
            }
            row => explain.push(&row, &mut ()),
        }
    }
    let Snapshot { profile, ledger } = explain.finish(&[], &mut ());
    let mut symbolizer = Symbolizer::with_rows(SymbolizeOptions::default());
    symbolizer.name(profile);
    let functions = symbolizer.take_rows();
    let (ledger, functions) = (&ledger, &functions[..]);
    let sums = FinishedSums {
        profile,
        ledger,
        functions,
        are_threads_merged: true,
        outputs_failed: false,
        time: Nanos(1),
    };
    let mut file = Vec::new();
    sums.write(&mut file).unwrap();
    fs::write(path, file).unwrap();
}

#[test]
fn the_files_that_runs_leave_by_default_can_be_compared() {
    let folder = scratch("gate-sums");
    for number in 0..3 {
        sums(&folder.join(format!("base{number}.gfr")), 1000);
        sums(&folder.join(format!("new{number}.gfr")), 1200);
    }
    let names = ["base0.gfr", "base1.gfr", "base2.gfr", "--new", "new0.gfr", "new1.gfr", "new2.gfr"];
    let names = names.map(str::to_owned);
    let ran = gate(&folder, &names, &["--format", "json", "-n", "0"]);
    assert_eq!(ran.code, 11, "{ran:?}");
    let output: Value = serde_json::from_str(&ran.stdout).unwrap();
    // The durations in the table of `handmade.rs` add up to 57,001 ns.
    assert_eq!(output["changes"][0]["before_ns"], 57_001);
    let row =
        |name: &str| output["changes"].as_array().unwrap().iter().find(|row| row["name"] == name).cloned();
    let stack = row("main;decode;cudaLaunchKernel").unwrap();
    assert_eq!((&stack["before_ns"], &stack["verdict"]), (&20_001.into(), &"slower".into()));
    assert_eq!(row("early").unwrap()["change_percent"], 20.0);
}

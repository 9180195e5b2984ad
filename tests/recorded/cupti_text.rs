//! Tests the text output that has the format of the eBPF tutorial's CUPTI tracer, as the tutorial's `gpuperf.py`
//! requests it. gpuflame writes the text while the program runs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::{Done, Run, Way, compile};
use serde_json::Value;

const VARIABLE: &str = "CUPTI_TRACE_OUTPUT_FILE";

fn load(args: &[&str]) -> Run {
    let program = compile("tests/programs/load.c", &["-O2"]);
    let run = Run::new(&program, Way::Injected).args(args.iter().copied());
    run.env("GPUSIM_TRUTH", "detail.json,summary:truth.json").env("GPUFLAME_FORMATS", "folded")
}

/// Returns the number after `word` in a line. The number ends at a blank, a comma or the end of the line.
fn number(line: &str, word: &str) -> u64 {
    let (_, rest) = line.split_once(&format!("{word} ")).unwrap_or_else(|| panic!("{word} in {line}"));
    rest.split([' ', ',']).next().unwrap().parse().unwrap()
}

/// Returns (kind, name, start, end, thread) for each kernel, copy and fill in the text, keyed by correlation id. The
/// thread is the one that made the CUDA call with the same correlation id.
fn told(text: &str) -> BTreeMap<u64, (String, String, u64, u64, u64)> {
    let mut threads = BTreeMap::new();
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let kind = line.split(' ').next().unwrap();
        match kind {
            "RUNTIME" => {
                let is_new =
                    threads.insert(number(line, "correlationId"), number(line, "threadId")).is_none();
                assert!(is_new, "a call appears once: {line}");
                assert!(line.contains("\"cuda"), "{line}");
            }
            "CONCURRENT_KERNEL" | "MEMCPY" | "MEMSET" => {
                let id = number(line, "correlationId");
                let name = line.split('"').nth(1).unwrap_or("memset").to_owned();
                let (times, _) = line.split_once("[ ").unwrap().1.split_once(" ]").unwrap();
                let (start, end) = times.split_once(", ").unwrap();
                let times = [start, end].map(|time| time.parse().unwrap());
                let before = all.insert(id, (kind.to_owned(), name, times[0], times[1], threads[&id]));
                assert!(before.is_none(), "{line}");
            }
            _ => assert!(
                line.starts_with('\t') || line.starts_with("# lost: 0 ") || !line.contains("lost"),
                "{line}"
            ),
        }
    }
    all
}

/// Computes the same table as `told`, but from the truth file of the simulated CUDA stack.
fn true_work(done: &Done) -> BTreeMap<u64, (String, String, u64, u64, u64)> {
    let rows = done.file("detail.json");
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.map(|row| {
        let number = |field: &str| row[field].as_u64().unwrap();
        let (kind, name) = match row["kind"].as_str().unwrap() {
            "kernel" => ("CONCURRENT_KERNEL", row["name"].as_str().unwrap()),
            "memset" => ("MEMSET", "memset"),
            _ => ("MEMCPY", row["copy"].as_str().unwrap()),
        };
        let times = (number("start"), number("end"), number("tid"));
        (number("corr"), (kind.to_owned(), name.to_owned(), times.0, times.1, times.2))
    })
    .collect()
}

#[test]
fn the_trace_output_variable_names_the_file_that_gets_the_text() {
    let run = load(&["--threads", "3", "--launches", "3000"]);
    // The output file already exists and is empty, as after a call to mkstemp.
    let done = run.env(VARIABLE, "trace.txt").ok();
    let (found, expected) = (told(&done.file("trace.txt")), true_work(&done));
    assert!(expected.len() > 3000);
    assert_eq!(found, expected);
    assert!(!done.folder.join("out.cupti.txt").exists(), "the default file was not requested");
}

#[test]
fn cupti_text_is_a_selectable_output_format() {
    let done = load(&["--threads", "2", "--launches", "300"]).env("GPUFLAME_FORMATS", "cupti-text").ok();
    assert_eq!(told(&done.file("out.cupti.txt")), true_work(&done));
    assert!(!done.folder.join("out.folded").exists());
}

#[test]
fn cupti_text_on_stdout_is_interleaved_with_the_programs_output() {
    let done = load(&["--threads", "2", "--launches", "2000"]).env(VARIABLE, "stdout").ok();
    let plain = load(&["--threads", "2", "--launches", "2000"]).ok();
    assert_eq!(told(&done.stdout), true_work(&done));
    let own = |text: &str| text.lines().filter(|line| !is_trace(line)).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(own(&done.stdout).len(), plain.stdout.lines().count());
}

fn is_trace(line: &str) -> bool {
    ["RUNTIME ", "CONCURRENT_KERNEL ", "MEMCPY ", "MEMSET ", "\t", "# lost: "]
        .iter()
        .any(|word| line.starts_with(word))
}

#[test]
fn an_unread_stdout_does_not_block_the_program_and_lost_lines_are_counted() {
    let run = load(&["--threads", "2", "--launches", "60000"]).env(VARIABLE, "stdout");
    let (mut command, folder) = run.into_command();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The test holds the pipe open, and reads it only after the program has ended.
    let stdout = child.stdout.take().unwrap();
    let stderr = child.stderr.take().unwrap();
    let said: Vec<String> = BufReader::new(stderr).lines().map(|line| line.unwrap()).collect();
    assert!(child.wait().unwrap().success(), "{said:#?}");
    let lost =
        said.iter().find(|line| line.contains("standard output")).unwrap_or_else(|| panic!("{said:#?}"));
    let lost: usize =
        lost.split("standard output: ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let written = BufReader::new(stdout).lines().filter(|line| is_trace(line.as_ref().unwrap())).count();
    assert!(lost > 0 && written > 0, "{lost} lost, {written} written");
    assert!(folder.join("out.folded").exists());
}

#[test]
fn an_unwritable_trace_file_is_reported_and_the_recording_stays_exact() {
    let done = load(&["--launches", "30"]).env(VARIABLE, "/proc/none/trace.txt").ok();
    assert!(done.stderr.contains("cannot write /proc/none/trace.txt: "), "{}", done.stderr);
    done.assert_exact();
}

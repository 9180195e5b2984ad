//! Tests `gpuflame causal` on programs whose functions and kernels take known times. After that, each function or
//! kernel is really made faster, and the program runs again. The time that this faster run saves must be the time that
//! `causal` predicted.

#[path = "../support/mod.rs"]
mod support;

mod programs;
mod recorded;

use serde_json::Value;
use support::command;

use programs::{Change, Program, SHAPES, Shape};

/// Row about a function or kernel in the output of `causal`.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    saved_ns: u64,
    percent: f64,
    holds_to: u64,
}

/// Returns the name in a row: a Python frame without its file, or a kernel without its parameters.
fn name(row: &Value) -> &str {
    row["name"].as_str().unwrap().trim_start_matches("planted.py(2): ").trim_end_matches("()")
}

/// Returns the row about a planted function or kernel. If a function or kernel is not on the critical path, it has no
/// row, and its predicted saving is 0.
fn said(table: &Value, planted: &str) -> Said {
    let rows = table["causal"].as_array().unwrap();
    rows.iter().find(|row| name(row) == planted).map_or_else(Said::default, |row| Said {
        saved_ns: row["saved_ns"].as_u64().unwrap(),
        percent: row["saved_percent"].as_f64().unwrap(),
        holds_to: row["holds_to_percent"].as_u64().unwrap(),
    })
}

fn causal(folder: &std::path::Path, file: &str) -> Value {
    let ran = command::gpuflame(folder, ["-q", "causal", file, "-n", "0", "--format", "json"]).ok();
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Returns the names of the functions and kernels in a program shape. Each name is returned with the change that makes
/// the function or kernel faster.
fn planted(shape: &'static Shape) -> impl Iterator<Item = (&'static str, impl Fn(u64) -> Change)> {
    let functions = shape.functions.iter().map(|(name, ..)| (*name, true));
    let kernels = shape.kernels.iter().map(|(name, _)| (*name, false));
    functions.chain(kernels).map(|(name, is_function)| {
        let change = move |percent| match is_function {
            true => Change::Function(name, percent),
            false => Change::Kernel(name, percent),
        };
        (name, change)
    })
}

/// If a function or kernel is made 10 % faster, the program saves the predicted time. The saved time grows linearly up
/// to the speed-up that `causal` prints, and does not grow beyond that.
#[test]
fn reruns_with_faster_functions_and_kernels_save_the_predicted_time() {
    let (mut count, mut saving) = (0, 0);
    for shape in &SHAPES {
        let program = Program { shape, steps: 10, scale: 1 };
        let base = program.run(Change::None);
        let table = causal(base.folder(), base.trace());
        let total = base.length_ns();
        for (name, change) in planted(shape) {
            let said = said(&table, name);
            let saved = |speed_up: u64| total as i64 - program.run(change(100 - speed_up)).length_ns() as i64;
            let real = saved(10);
            let what = format!("{}, {name}: {said:?}, really {real} of {total} ns", shape.name);
            assert_eq!(said.saved_ns as i64, real, "{what}");
            assert!((said.percent - 100.0 * real as f64 / total as f64).abs() < 0.01, "{what}");
            count += 1;
            if real == 0 {
                continue;
            }
            saving += 1;
            // The tolerance of 2 % is the one in docs/what-if.md.
            let is_even = |speed_up: u64| {
                let even = real as f64 * speed_up as f64 / 10.0;
                (saved(speed_up) as f64 - even).abs() <= 0.02 * even
            };
            for speed_up in (20..=said.holds_to).step_by(10) {
                assert!(is_even(speed_up), "{what}: {speed_up} % faster saves {}", saved(speed_up));
            }
            let beyond = said.holds_to + 10;
            assert!(beyond > 100 || !is_even(beyond), "{what}: it holds at {beyond} %");
        }
    }
    // The page docs/accuracy.md contains these two numbers. If the numbers change, change them in both places.
    assert_eq!((count, saving), (31, 24));
}

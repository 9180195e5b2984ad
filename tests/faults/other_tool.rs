//! Compares the figures of `gpuflame` with those that HolisticTraceAnalysis computes for the same traces. The figures
//! of HolisticTraceAnalysis are in `tests/golden/findings/hta.json`, which `analyse_with_hta.py` writes. If the two
//! tools define a figure differently, the test computes the figure of HolisticTraceAnalysis from the trace, by the rule
//! in docs/compared-with-other-tools.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cases::{Case, cases, healthy};
use crate::measure::{Slice, calls, is_gpu_work, slices, union_ns};
use crate::support::command::gpuflame;
use crate::support::{root, scratch};

/// Maximum difference, in ns, between the figures of the two tools if the figures depend on points in time.
/// HolisticTraceAnalysis stores times as microseconds since 1970 in a 64-bit float, with a precision of 250 ns. The
/// compared figures are sums and differences of these imprecise times.
const TIME_ERROR_NS: f64 = 2_000.0;
/// Maximum difference between the two tools' sums of durations, in ns. Durations are more precise than the points in
/// time that HolisticTraceAnalysis stores.
const SUM_ERROR_NS: f64 = 1.0;

fn json(folder: &Path, args: &[&str]) -> Value {
    let args = args.iter().chain(&["--format", "json"]);
    serde_json::from_str(&gpuflame(folder, args).ok().stdout).unwrap()
}

fn rows<'a>(tables: &'a Value, table: &str) -> &'a [Value] {
    tables[table].as_array().map_or(&[], Vec::as_slice)
}

fn sum(rows: &[Value], column: &str) -> f64 {
    rows.iter().map(|row| row[column].as_f64().unwrap()).sum()
}

fn is_computation(slice: &Slice) -> bool {
    slice.category == "kernel" && !slice.name.starts_with("nccl")
}

/// Compares the figures of both tools for one trace.
struct Compared<'a> {
    name: &'a str,
    wrong: Vec<String>,
}

impl Compared<'_> {
    fn times(&mut self, what: &str, ours: f64, theirs_us: &Value, error: f64) {
        let theirs = theirs_us.as_f64().unwrap() * 1_000.0;
        if (ours - theirs).abs() > error {
            self.wrong.push(format!("{}: {what} is {ours} ns here and {theirs} ns there", self.name));
        }
    }

    /// Compares busy, idle and computing time. HolisticTraceAnalysis treats all GPUs of a process as one GPU.
    fn gpu_time(&mut self, folder: &Path, file: &str, slices: &[Slice], theirs: &Value) {
        let info = json(folder, &["info", file]);
        let devices = rows(&info, "devices");
        let comm = json(folder, &["top", file, "--by", "comm"]);
        let (idle, window, computing) = match devices.len() {
            1 => (sum(devices, "idle_ns"), sum(devices, "window_ns"), sum(rows(&comm, "comm"), "compute_ns")),
            _ => {
                let work = || slices.iter().filter(|slice| is_gpu_work(slice));
                let span = work().map(|slice| slice.end).max().unwrap()
                    - work().map(|slice| slice.start).min().unwrap();
                (
                    span as f64 - union_ns(slices, |_| true) as f64,
                    span as f64,
                    union_ns(slices, is_computation) as f64,
                )
            }
        };
        self.times("the time of the GPUs", window, &theirs["window_us"], TIME_ERROR_NS);
        self.times("idle time", idle, &theirs["idle_us"], TIME_ERROR_NS);
        self.times("the time with computation", computing, &theirs["compute_us"], TIME_ERROR_NS);
        let other = window - idle - computing;
        self.times("the time with other work only", other, &theirs["other_us"], TIME_ERROR_NS);
        if let Some(overlap) = theirs["overlap_percent"].as_f64() {
            let ours = comm["comm"][0]["overlap_percent"].as_f64().unwrap();
            if (ours - overlap).abs() > 0.01 {
                self.wrong.push(format!("{}: {ours} % overlap here and {overlap} % there", self.name));
            }
        }
    }

    /// Compares the number and the total time of the kernels with each name, as `gpuflame top` and `gpuflame summary`
    /// print them.
    fn kernels(&mut self, folder: &Path, file: &str, theirs: &Value) {
        let mut ours: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        let top = json(folder, &["top", file, "--by", "kernels", "-n", "0"]);
        for row in rows(&top, "kernels") {
            let (nanos, count) = ours.entry(row["name"].as_str().unwrap().to_owned()).or_default();
            *nanos += row["total_ns"].as_f64().unwrap();
            *count += row["count"].as_f64().unwrap();
        }
        let kernels = theirs["kernels"].as_object().unwrap();
        for (name, row) in kernels.iter().filter(|(name, _)| !name.starts_with("Mem")) {
            let Some(&(nanos, count)) = ours.get(name) else {
                self.wrong.push(format!("{}: {name} is missing", self.name));
                continue;
            };
            self.times(name, nanos, &row[0], SUM_ERROR_NS);
            let theirs = row[0].as_f64().unwrap() / row[1].as_f64().unwrap();
            if (theirs - count).abs() > 0.01 {
                self.wrong.push(format!("{}: {count} of {name} here and {theirs} there", self.name));
            }
        }
        for row in rows(&json(folder, &["summary", file]), "work") {
            let name = row["name"].as_str().unwrap();
            if let Some(theirs) = kernels.get(name) {
                self.times(name, row["total_ns"].as_f64().unwrap(), &theirs[0], SUM_ERROR_NS);
            }
        }
    }

    /// Compares launches. HolisticTraceAnalysis omits calls that launch several kernels. HolisticTraceAnalysis measures
    /// the launch delay from the time at which the call returns.
    fn launches(&mut self, folder: &Path, file: &str, slices: &[Slice], theirs: &Value) {
        let calls = calls(slices);
        let mut works: BTreeMap<u64, Vec<&Slice>> = BTreeMap::new();
        for slice in slices.iter().filter(|slice| is_gpu_work(slice)) {
            works.entry(slice.correlation.unwrap()).or_default().push(slice);
        }
        let from_call: i64 =
            works.iter().flat_map(|(id, works)| works.iter().map(|work| work.start - calls[id].1)).sum();
        works.retain(|_, works| works.len() == 1);
        let single = || works.iter().map(|(id, works)| (works[0], calls[id]));
        let from_return: i64 = single().map(|(work, (_, _, returns))| (work.start - returns).max(0)).sum();
        let gpu: i64 = single().map(|(work, _)| work.end - work.start).sum();
        assert_eq!(theirs["launches"][0], works.len(), "{}", self.name);
        self.times("GPU time of launches", gpu as f64, &theirs["launches"][1], 1_000.0);
        let error = TIME_ERROR_NS * works.len() as f64;
        self.times("the delay of launches", from_return as f64, &theirs["launches"][2], error);
        let top = json(folder, &["top", file, "--by", "delay", "-n", "0"]);
        let of_row = |row: &Value| row["avg_ns"].as_f64().unwrap() * row["count"].as_f64().unwrap();
        let ours: f64 = rows(&top, "delay").iter().map(of_row).sum();
        // Each mean delay is rounded to whole nanoseconds, so the sum may differ by one ns per launch.
        if (ours - from_call as f64).abs() > sum(rows(&top, "delay"), "count") {
            self.wrong.push(format!("{}: delays of {ours} ns and not {from_call} ns", self.name));
        }
    }
}

#[test]
fn figures_equal_those_of_holistic_trace_analysis() {
    let golden = fs::read_to_string(root().join("tests/golden/findings/hta.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let healthy = healthy();
    let mut wrong = Vec::new();
    for (name, theirs) in golden.as_object().unwrap() {
        let case: &Case = cases().iter().chain(&healthy).find(|case| case.name == *name).unwrap();
        let folder = scratch("other-tool");
        let file = &case.write(&folder)[0];
        let slices = slices(&fs::read_to_string(folder.join(file)).unwrap());
        let mut compared = Compared { name, wrong: Vec::new() };
        compared.gpu_time(&folder, file, &slices, theirs);
        compared.kernels(&folder, file, theirs);
        compared.launches(&folder, file, &slices, theirs);
        wrong.extend(compared.wrong);
        fs::remove_dir_all(folder).unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! Compares `extract` and `stats` with an independent implementation of the tool `kernel_extractor` for Paddle's
//! traces. The independent implementation uses `serde_json` for the JSON, `f64` microseconds for all times, and the
//! `csv` crate for the table. With `compat`, gpuflame's output equals that of the independent implementation byte by
//! byte. Without `compat`, gpuflame's output differs only in places where `kernel_extractor` rounds or is wrong.

use std::collections::BTreeMap;

use gpuflame_traces::import::json::{JsonOptions, read};
use gpuflame_traces::steps::{Bubbles, Extract, Ops, Stats, StatsOptions};
use serde_json::{Value, json};

const READING: JsonOptions = JsonOptions { buffer: 1 << 16, accept_cut: false };

/// A generator of pseudo-random numbers, each below a given bound.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Returns a trace event in Paddle's format. The times `from` and `to` are in nanoseconds.
fn event(category: &str, name: String, from: u64, to: u64) -> Value {
    let micros = |nanos: u64| format!("{}.{:03} us", nanos / 1000, nanos % 1000);
    json!({
        "name": name, "pid": 0, "tid": "7(C++)", "ts": from / 1000, "dur": (to - from) as f64 / 1000.0, "ph": "X",
        "cat": category, "args": {"start_time": micros(from), "end_time": micros(to), "correlation id": from},
    })
}

/// Returns a trace of the steps of an inference server. Most steps have the same operations. Some steps are longer,
/// some lack the operation to which steps are trimmed, and some have an extra operation. Some operations cross the
/// boundary between two steps. With `overlap`, the operations are on two streams.
fn trace(random: &mut Random, overlap: bool) -> Value {
    const NAMES: [&str; 5] =
        ["gemm<float, [4]>", "MEMCPY_DtoH", "say \"hi\", you", "softmax [fast]", "x[3 cm]"];
    let (mut events, mut at) = (Vec::new(), 2_684_054_000_000 + random.below(1_000_000));
    for number in 0..8 + random.below(8) {
        let kind = random.below(10);
        let start = at;
        at += random.below(2_000);
        for op in 0..12 + u64::from(kind == 0) {
            let name = match op {
                3 if kind != 1 => "phi::recover_decode_task",
                op => NAMES[op as usize % 5],
            };
            let length = 1 + random.below(40_000);
            let unit = if op % 2 == 0 { "us" } else { "ms" };
            let category = ["Kernel", "Memcpy", "Memset"][op as usize % 3];
            events.push(event(category, format!("{name}[{length}.5 {unit}]"), at, at + length));
            at += if overlap { 1 + random.below(length + 1_000) } else { length + random.below(9_000) };
        }
        at += 50_000;
        let end = if kind == 2 { start + 30_000_001 } else { at };
        events.push(event("ProfileStep", format!("ProfileStep#{number}[1.5 ms]"), start, end));
        events.push(event("Kernel", "over the edge".to_owned(), end - 5, end + 5));
        events.push(event("Operator", "matmul".to_owned(), start, start + 9));
        at = end + 1_000;
    }
    // Paddle's logger writes events in the order in which its threads reach the file, so this function shuffles the
    // events.
    for from in (1..events.len()).rev() {
        events.swap(from, random.below(from as u64 + 1) as usize);
    }
    json!({"schemaVersion": "1.0.2", "traceEvents": events, "span_indx": "0"})
}

/// Returns name, start and end of all events in these categories that have both a start and an end, sorted by start.
fn found(trace: &Value, categories: &[&str]) -> Vec<(String, f64, f64)> {
    let time = |event: &Value, key: &str| -> Option<f64> {
        event["args"][key].as_str()?.split_whitespace().next()?.parse().ok()
    };
    let mut all: Vec<(String, f64, f64)> = trace["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["ph"] == "X" && categories.contains(&event["cat"].as_str().unwrap()))
        .filter_map(|event| {
            let name = event["name"].as_str()?.to_owned();
            Some((name, time(event, "start_time")?, time(event, "end_time")?))
        })
        .collect();
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    all
}

const OPS: [&str; 3] = ["Kernel", "Memcpy", "Memset"];

fn table(header: &str, rows: impl IntoIterator<Item = (String, Vec<f64>)>) -> String {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(header.split(',')).unwrap();
    rows.into_iter().for_each(|row| out.serialize(row).unwrap());
    String::from_utf8(out.into_inner().unwrap()).unwrap()
}

fn their_extract(trace: &Value, first: f64, last: f64) -> String {
    let ops = found(trace, &OPS).into_iter().filter(|op| op.1 >= first && op.2 <= last);
    table(
        "kernel_name,start_time_us,end_time_us,duration_us",
        ops.map(|(name, start, end)| (name, vec![start, end, end - start])),
    )
}

/// Returns the output of `kernel_extractor stats`. Returns `None` if two numbers of operations per step are equally
/// frequent, because the tool may then choose either of them.
fn their_stats(trace: &Value, trim: Option<&str>, max_ms: f64) -> Option<String> {
    let steps = found(trace, &["ProfileStep"]).into_iter().filter(|step| step.2 - step.1 <= max_ms * 1000.0);
    let ops = found(trace, &OPS);
    let bare = |name: &str| match name.rfind('[') {
        Some(at) if name.ends_with(" us]") || name.ends_with(" ms]") => name[..at].to_owned(),
        _ => name.to_owned(),
    };
    let all: Vec<Vec<(String, [f64; 3])>> = steps
        .map(|(_, begin, until)| {
            let within = ops.iter().filter(|op| op.1 >= begin && op.2 <= until);
            let mut step: Vec<_> =
                within.map(|(name, from, to)| (bare(name), [from - begin, to - begin, to - from])).collect();
            if let Some(at) = trim.and_then(|trim| step.iter().position(|op| op.0.contains(trim))) {
                step.drain(..at);
                let base = step[0].1[0];
                step.iter_mut().for_each(|op| (op.1[0], op.1[1]) = (op.1[0] - base, op.1[1] - base));
            }
            step
        })
        .collect();
    let mut counts = BTreeMap::new();
    all.iter().filter(|step| !step.is_empty()).for_each(|step| *counts.entry(step.len()).or_insert(0) += 1);
    let most = *counts.values().max()?;
    if counts.values().filter(|&&count| count == most).count() > 1 {
        return None;
    }
    let reference = all.iter().find(|step| counts.get(&step.len()) == Some(&most))?;
    let names = |step: &[(String, [f64; 3])]| step.iter().map(|op| op.0.clone()).collect::<Vec<_>>();
    let alike: Vec<_> = all.iter().filter(|step| names(step) == names(reference)).collect();
    let mut sums = vec![vec![0.0; 4]; reference.len()];
    for step in &alike {
        let mut before = 0.0;
        for (sum, (_, [start, end, duration])) in sums.iter_mut().zip(*step) {
            for (sum, value) in sum.iter_mut().zip([*start, *end, *duration, (start - before).max(0.0)]) {
                *sum += value;
            }
            before = *end;
        }
    }
    let averages = sums.into_iter().map(|sum| sum.iter().map(|sum| sum / alike.len() as f64).collect());
    let header = "operation_name,avg_start_time_us,avg_end_time_us,avg_duration_us,bubble_time_us";
    Some(table(header, names(reference).into_iter().zip(averages)))
}

fn our_extract(text: &str, first: i64, last: i64, compat: bool) -> String {
    let mut ops = Ops::within(first, last);
    read(text.as_bytes(), READING, &mut ops).unwrap();
    let mut out = Vec::new();
    Extract::new(ops).write(compat, str::to_owned, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn our_stats(text: &str, options: &StatsOptions) -> String {
    let mut ops = Ops::with_steps();
    read(text.as_bytes(), READING, &mut ops).unwrap();
    let mut out = Vec::new();
    Stats::new(ops, options).unwrap().write(str::to_owned, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Returns the numbers in the rows of a table, without the names.
fn numbers(table: &str) -> Vec<Vec<f64>> {
    let mut rows = csv::Reader::from_reader(table.as_bytes());
    rows.records()
        .map(|row| row.unwrap().iter().skip(1).map(|field| field.parse().unwrap()).collect())
        .collect()
}

#[test]
fn extract_equals_kernel_extractor_up_to_rounding_of_durations() {
    let mut random = Random(5);
    for round in 0..60 {
        let trace = trace(&mut random, round % 2 == 0);
        let text = serde_json::to_string_pretty(&trace).unwrap();
        let (first, last) =
            (2_684_054_000_000 + random.below(200_000), 2_684_120_000_000 + random.below(9_000_000));
        let theirs = their_extract(&trace, first as f64 / 1000.0, last as f64 / 1000.0);
        assert!(theirs.lines().count() > 10, "too little to say anything: {theirs}");
        assert_eq!(our_extract(&text, first as i64, last as i64, true), theirs);
        let exact = our_extract(&text, first as i64, last as i64, false);
        let without_duration = |table: &str| -> Vec<String> {
            table.lines().map(|line| line.rsplit_once(',').unwrap().0.to_owned()).collect()
        };
        assert_eq!(without_duration(&exact), without_duration(&theirs));
        for (ours, theirs) in numbers(&exact).iter().zip(numbers(&theirs)) {
            assert_eq!(ours[2], (theirs[2] * 1000.0).round() / 1000.0);
        }
    }
}

#[test]
fn stats_with_compat_equal_kernel_extractor_byte_for_byte() {
    let mut random = Random(6);
    let mut compared = 0;
    for round in 0..120 {
        let trace = trace(&mut random, round % 2 == 0);
        let trim = [Some("recover_decode_task"), None, Some("softmax")][round % 3];
        let Some(theirs) = their_stats(&trace, trim, 30.0) else { continue };
        let options = StatsOptions { trim: trim.map(str::to_owned), compat: true, ..StatsOptions::default() };
        assert_eq!(our_stats(&trace.to_string(), &options), theirs, "round {round}");
        compared += 1;
    }
    assert!(compared > 60, "only {compared} compared");
}

#[test]
fn stats_equal_kernel_extractor_up_to_rounding_on_traces_it_handles() {
    let mut random = Random(7);
    let mut compared = 0;
    for _ in 0..60 {
        let trace = trace(&mut random, false);
        let Some(theirs) = their_stats(&trace, None, 30.0) else { continue };
        for bubbles in [Bubbles::Union, Bubbles::Order] {
            let options = StatsOptions { trim: None, bubbles, ..StatsOptions::default() };
            let ours = our_stats(&trace.to_string(), &options);
            for (ours, theirs) in numbers(&ours).iter().zip(numbers(&theirs)) {
                let off = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(off < 1e-6, "{ours:?} {theirs:?}");
            }
            compared += 1;
        }
    }
    assert!(compared > 60, "only {compared} compared");
}

//! Tests the Chrome trace events that gpuflame writes while the program runs.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::command::gpuflame;
use crate::support::{Done, Run, Way, compile};

fn run(program: &str, args: &[&str]) -> Run {
    let program = compile(program, &["-O2"]);
    let run = Run::new(&program, Way::Injected).args(args.iter().copied());
    run.env("GPUSIM_TRUTH", "detail.json,summary:truth.json").env("GPUFLAME_FORMATS", "folded,chrome")
}

fn events(done: &Done) -> (u64, Vec<Value>) {
    let mut trace: Value = serde_json::from_str(&done.file("out.json")).unwrap();
    let Value::Array(events) = trace["traceEvents"].take() else { panic!("no events") };
    (trace["baseTimeNanoseconds"].as_u64().unwrap(), events)
}

/// Converts microseconds with three decimals to nanoseconds.
fn nanos(micros: &Value) -> u64 {
    (micros.as_f64().unwrap() * 1e3).round() as u64
}

type Work = (String, String, u64, u64, u64);

/// Returns kind, name, start, end and launching thread of each kernel, copy and fill in the trace, keyed by correlation
/// id. Checks that the flows in the trace connect launches with their GPU work.
fn told(done: &Done) -> BTreeMap<u64, Work> {
    let (base, events) = events(done);
    let of = |phase: &str, categories: &[&str]| -> Vec<Value> {
        let has = |event: &&Value| {
            event["ph"] == phase && categories.iter().any(|category| event["cat"] == **category)
        };
        events.iter().filter(has).cloned().collect()
    };
    let id = |event: &Value| event["args"]["correlation"].as_u64().unwrap();
    let mut threads = BTreeMap::new();
    for call in of("X", &["cuda_runtime", "cuda_driver"]) {
        let before = threads.insert(id(&call), (call["tid"].as_u64().unwrap(), call["ts"].clone()));
        assert_eq!(before, None, "a call appears once: {call}");
    }
    for flow in of("s", &["ac2g"]) {
        let (thread, time) = &threads[&flow["id"].as_u64().unwrap()];
        assert_eq!((flow["tid"].as_u64(), &flow["ts"]), (Some(*thread), time));
    }
    let work = of("X", &["kernel", "gpu_memcpy", "gpu_memset"]);
    let mut arrivals = of("f", &["ac2g"]).into_iter();
    let told = work.iter().map(|event| {
        let flow = arrivals.next().unwrap();
        assert_eq!((flow["id"].as_u64(), &flow["ts"]), (Some(id(event)), &event["ts"]));
        let (name, start) = (event["name"].as_str().unwrap(), base + nanos(&event["ts"]));
        let name = name.trim_start_matches("Memcpy ").to_owned();
        let kind = event["cat"].as_str().unwrap().to_owned();
        (id(event), (kind, name, start, start + nanos(&event["dur"]), threads[&id(event)].0))
    });
    told.collect()
}

/// Computes the same table as `told`, but from the truth file of the simulated CUDA stack.
fn true_work(done: &Done) -> BTreeMap<u64, Work> {
    let rows = done.file("detail.json");
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.map(|row| {
        let number = |field: &str| row[field].as_u64().unwrap();
        let (kind, name) = match row["kind"].as_str().unwrap() {
            "kernel" => ("kernel", row["name"].as_str().unwrap()),
            "memset" => ("gpu_memset", "Memset"),
            _ => ("gpu_memcpy", row["copy"].as_str().unwrap()),
        };
        let times = (number("start"), number("end"), number("tid"));
        (number("corr"), (kind.to_owned(), name.to_owned(), times.0, times.1, times.2))
    })
    .collect()
}

/// Returns the folded stacks, with their weights, that `gpuflame flamegraph` prints for a file.
fn drawn(done: &Done, file: &str) -> Vec<String> {
    let text = gpuflame(&done.folder, ["-q", "flamegraph", file]).ok().stdout;
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn chrome_traces_contain_all_gpu_work_with_times_and_launches() {
    let done = run("tests/programs/load.c", &["--threads", "3", "--launches", "3000"]).ok();
    let expected = true_work(&done);
    assert!(expected.len() > 3000);
    assert_eq!(told(&done), expected);
}

#[test]
fn chrome_traces_read_back_give_the_same_stacks() {
    for (program, args) in [
        ("tests/programs/load.c", &["--threads", "2", "--launches", "300"][..]),
        ("tests/programs/graphs.c", &["captured", "10"]),
        ("tests/programs/graphs.c", &["explicitly", "10"]),
        ("tests/programs/ranges.c", &["--steps", "50"]),
    ] {
        let done = run(program, args).env("NVTX_INJECTION64_PATH", crate::support::gpuflame()).ok();
        let (own, again) = (drawn(&done, "out.folded"), drawn(&done, "out.json"));
        assert!(own.len() >= 3, "{own:?}");
        assert_eq!(again, own, "{program}");
    }
}

#[test]
fn chrome_traces_are_written_completely_under_a_24_mib_ceiling() {
    let done = run("tests/programs/load.c", &["--launches", "200000", "--flush", "512"])
        .env("GPUFLAME_MAX_MEM", "24M")
        .ok();
    let (total, parts) = done.sum("activities");
    assert_eq!(parts["matched"], total, "{}", done.stderr);
    assert_eq!(told(&done).len() as u64, total);
}

//! A replay without changes must equal the truth file of the simulated CUDA stack: each piece of PyTorch's GPU work
//! begins and ends at the same nanosecond. The decode loop first runs eagerly, and then uses CUDA graphs.

use serde_json::Value;

use crate::installed::{folder, run};
use crate::support::{Done, Way, command};

/// Start and end of each kernel, copy or fill, relative to the start of the first of them, sorted.
type Times = Vec<(u64, u64)>;

fn from_first(mut times: Times) -> Times {
    times.sort_unstable();
    let first = times.first().map_or(0, |(start, _)| *start);
    times.into_iter().map(|(start, end)| (start - first, end - first)).collect()
}

/// Returns the times of the GPU work that really ran, and the number of graph nodes in it.
fn truth(done: &Done) -> (Times, usize) {
    let rows = done.file("truth.json");
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rows: Vec<Value> = rows.filter(|row| row["kind"] != "graph").collect();
    let time = |row: &Value| (row["start"].as_u64().unwrap(), row["end"].as_u64().unwrap());
    let nodes = rows.iter().filter(|row| row["graph_node"].is_u64()).count();
    (from_first(rows.iter().map(time).collect()), nodes)
}

/// Replays a run, and compares the replay with the truth file. Returns the number of kernels, copies and fills, and how
/// many of them are graph nodes.
fn check(program: &str) -> Option<(usize, usize)> {
    let done = run(folder()?, program, Way::Injected).env("STEPS", "2").env("GPUSIM_CLOCK", "real");
    let done =
        done.env("GPUFLAME_FORMATS", "gfr").env("GPUFLAME_DEPS", "1").env("GPUSIM_TRUTH", "truth.json");
    // Since version 13.2, CUPTI reports on which stream a graph node ran.
    let done = done.env("GPUSIM_CUPTI_VERSION", "13.2").ok();
    let args = ["-q", "replay", "out.gfr", "--check", "--schedule", "times.csv", "--format", "json"];
    let said: Value = serde_json::from_str(&command::gpuflame(&done.folder, args).ok().stdout).unwrap();
    let replay = &said["replay"][0];
    assert_eq!(replay["difference_ns"], 0, "{program}: {replay}");
    for row in said["checks"].as_array().unwrap() {
        assert_eq!(row["holds"], "yes", "{program}: {row}");
    }
    let rows = csv::Reader::from_reader(done.file("times.csv").as_bytes())
        .into_deserialize::<std::collections::BTreeMap<String, String>>()
        .map(|row| row.map(|row| (row["start_ns"].parse().unwrap(), row["end_ns"].parse().unwrap())))
        .collect::<Result<Times, _>>();
    let (times, nodes) = truth(&done);
    assert_eq!(from_first(rows.unwrap()), times, "{program}");
    Some((times.len(), nodes))
}

#[test]
fn a_replayed_training_step_equals_the_truth_file() {
    let Some((works, _)) = check("train.py") else { return };
    assert!(works > 2_000, "{works}");
}

#[test]
fn a_replayed_decode_loop_with_graphs_equals_the_truth_file() {
    let Some((works, nodes)) = check("decode.py") else { return };
    assert!(works - nodes > 200 && nodes > 200, "{works} pieces of work and {nodes} nodes");
}

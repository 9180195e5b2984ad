//! Tests the edges between the nodes of graphs in recordings with `GPUFLAME_DEPS=1`. The simulator's schedule is the
//! reference: in the recording, each node must wait for exactly the nodes for which the simulator made it wait.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::OnceLock;

use crate::support::{Run, Way, command, compile};
use serde_json::Value;

/// Bits in the second argument of `random.c`, the random program. Each bit makes the random program leave out one
/// feature: programmatic launches, the legacy default stream, threads other than the main thread, or host functions in
/// graphs.
const PROGRAMMATIC: u32 = 2;
const LEGACY: u32 = 8;
const THREADS: u32 = 16;
const HOST_NODES: u32 = 32;

/// A node of a graph launch: the correlation id of the launch, and the id of the node.
type Node = (u64, u64);

fn program() -> &'static Path {
    static PROGRAM: OnceLock<std::path::PathBuf> = OnceLock::new();
    let source = "tests/gpusim/selftest/programs/random.c";
    PROGRAM.get_or_init(|| compile(source, &["-O1", "-Wno-error"]))
}

/// Runs a random program. Returns the rows of the simulator's schedule, and the rows that `gpuflame instructions`
/// prints.
fn record(seed: u32, without: u32) -> (Vec<Value>, Vec<Value>) {
    let (seed, without) = (seed.to_string(), without.to_string());
    let run = Run::new(program(), Way::Injected).args([seed.as_str(), "60", without.as_str()]);
    let run = run.env("GPUFLAME_FORMATS", "gfr").env("GPUFLAME_DEPS", "1").env("GPUSIM_NDEV", "2");
    let run = run.env("GPUSIM_CLOCK", "stepped").env("GPUSIM_TRUTH", "schedule:schedule.json");
    let done = run.ok();
    let listed = command::gpuflame(&done.folder, ["instructions", "out.gfr", "--format", "jsonl"]).ok();
    let rows = |text: &str| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (rows(&done.file("schedule.json")), rows(&listed.stdout))
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

/// Returns, for each node, the nodes that it waits for according to the simulator's schedule. Host functions have no
/// activity records, so nodes that wait for a host function are left out.
fn true_edges(schedule: &[Value]) -> BTreeMap<Node, BTreeSet<Node>> {
    let ops = || schedule.iter().filter(|row| row["what"] == "op");
    let node = |op: &Value| (number(op, "corr"), number(op, "node"));
    let by_op: BTreeMap<u64, &Value> = ops().map(|op| (number(op, "op"), op)).collect();
    let nodes = ops().filter(|op| number(op, "graph") != 0 && op["kind"] != "host");
    let edges = nodes.filter_map(|op| {
        let waits = op["waits"].as_array().unwrap().iter();
        let waits = waits.filter(|wait| wait["why"] == "edge" || wait["why"] == "programmatic");
        let before = waits.map(|wait| by_op[&number(wait, "op")]).filter(|other| other["corr"] == op["corr"]);
        let before: Vec<&Value> = before.collect();
        let is_known = before.iter().all(|other| other["kind"] != "host");
        is_known.then(|| (node(op), before.into_iter().map(node).collect()))
    });
    edges.collect()
}

/// Returns, for each node, the nodes that it waits for according to the recording.
fn recorded_edges(instructions: &[Value]) -> BTreeMap<Node, BTreeSet<Node>> {
    let rows: BTreeMap<u64, &Value> =
        instructions.iter().filter_map(|row| Some((row["number"].as_u64()?, row))).collect();
    let node = |row: &Value| Some((row["correlation"].as_u64()?, row["node"].as_u64()?));
    let edges = rows.values().filter_map(|row| {
        let after = row["after"].as_array().into_iter().flatten();
        let after = after.filter(|after| after["reason"] == "graph_edge");
        let before = after.map(|after| node(rows[&number(after, "number")]).unwrap());
        Some((node(row)?, before.collect()))
    });
    edges.collect()
}

#[test]
fn launches_with_attributes_are_recorded_as_programmatic_or_not() {
    let (mut count, mut programmatic) = (0, 0);
    for seed in 0..6 {
        let (schedule, instructions) = record(seed, LEGACY | THREADS | HOST_NODES);
        // A kernel launch that is captured into a graph runs no GPU work at the time of the capture.
        let has_work: BTreeSet<u64> =
            schedule.iter().filter(|row| row["what"] == "op").map(|row| number(row, "corr")).collect();
        let calls = schedule.iter().filter(|row| row["what"] == "call");
        let calls = calls.filter_map(|row| Some((number(row, "corr"), row["programmatic"].as_bool()?)));
        let expected: BTreeMap<u64, bool> = calls.filter(|(id, _)| has_work.contains(id)).collect();
        let kernels = instructions.iter().filter(|row| row["kind"] == "kernel");
        let recorded: BTreeMap<u64, bool> = kernels
            .filter_map(|row| Some((number(row, "correlation"), row["programmatic"].as_bool()?)))
            .collect();
        assert_eq!(recorded, expected, "seed {seed}");
        count += expected.len();
        programmatic += expected.values().filter(|is_set| **is_set).count();
    }
    assert!(programmatic > 10 && count - programmatic > 10, "{programmatic} of {count}");
}

#[test]
fn each_node_waits_for_the_nodes_that_its_graph_names() {
    let (mut nodes, mut edges) = (0, 0);
    for seed in 0..12 {
        let (schedule, instructions) = record(seed, PROGRAMMATIC | LEGACY | THREADS | HOST_NODES);
        let (expected, recorded) = (true_edges(&schedule), recorded_edges(&instructions));
        assert_eq!(expected.keys().collect::<Vec<_>>(), recorded.keys().collect::<Vec<_>>(), "{seed}");
        for (node, before) in &expected {
            assert_eq!(&recorded[node], before, "seed {seed}, node {node:?}");
            nodes += 1;
            edges += before.len();
        }
    }
    // On average, each program launches 8 graphs, and each graph has 2 to 7 nodes.
    assert!(nodes > 100 && edges > 60, "{nodes} nodes, {edges} edges");
}

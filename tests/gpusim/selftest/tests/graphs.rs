//! Tests CUDA graphs: the resource callbacks and their order, the fields of node records, and the launch site and
//! creation site in the truth file.

use gpusim_selftest::{Line, Outcome, Run};

fn graphs(kinds: &str, callbacks: &str) -> Run {
    Run::new("graphs", &[]).client(kinds, callbacks)
}

/// Id of the graph node that was added after `before` other nodes.
fn id(graph: u64, before: u64) -> u64 {
    graph << 32 | before
}

fn nodes(outcome: &Outcome) -> Vec<&Line> {
    outcome.lines("node")
}

#[test]
fn a_capture_makes_nodes_between_enter_and_exit_and_no_record() {
    let outcome = graphs("10,1,2", "2:211,3:13,3:20").outcome().expect_success();
    let first: Vec<&str> = outcome
        .log
        .iter()
        .filter(|line| line.what == "callback" || line.what == "graph")
        .take(3)
        .map(|line| line.what.as_str())
        .collect();
    assert_eq!(first, ["callback", "graph", "callback"]);
    // There are three graph launches with three nodes each. The API calls that were captured do no GPU work when they
    // are captured.
    assert_eq!((outcome.total("count"), outcome.total("delivered")), (9, 9));
    assert_eq!((outcome.total("graph_launches"), outcome.total("launch_calls")), (3, 0));
}

#[test]
fn an_instantiation_announces_each_node_as_created_and_as_cloned() {
    let outcome = graphs("10", "3:11,3:13,3:17,3:18,3:20").outcome().expect_success();
    let events: Vec<(u64, u64, u64, u64)> = outcome
        .lines("graph")
        .iter()
        .map(|l| (l.number("id"), l.number("graph"), l.number("node"), l.number("original")))
        .collect();
    // Graph 1 is captured, graph 2 is empty, and graph 3 is created by the first instantiation.
    let expected = [
        (13, 1, id(1, 0), 0),
        (13, 1, id(1, 1), 0),
        (13, 1, id(1, 2), 0),
        (13, 3, id(3, 0), 0),
        (20, 3, id(3, 0), id(1, 0)),
        (13, 3, id(3, 1), 0),
        (20, 3, id(3, 1), id(1, 1)),
        (13, 3, id(3, 2), 0),
        (20, 3, id(3, 2), id(1, 2)),
        (17, 1, 0, 0),
        (18, 1, 0, 0),
    ];
    assert_eq!(events[..11], expected);
    let types: Vec<u64> = outcome.lines("graph")[..3].iter().map(|l| l.number("type")).collect();
    assert_eq!(types, [0, 1, 2], "a kernel, a copy, a fill");
}

#[test]
fn node_records_carry_the_launch_id_the_instantiation_and_the_node() {
    let outcome = graphs("10,1,2", "2:311").outcome().expect_success();
    let launches: Vec<u64> = outcome.lines("callback").iter().map(|l| l.number("corr")).collect();
    for kind in [10, 1, 2] {
        let of_records: Vec<u64> = outcome.records(kind).iter().map(|r| r.number("corr")).collect();
        assert_eq!(of_records, [launches[0], launches[2], launches[4]], "{kind}");
    }
    let ids: Vec<(u64, u64)> =
        nodes(&outcome).iter().map(|n| (n.number("graph"), n.number("node"))).collect();
    // Graph 4 is the second copy that the driver makes for the first instantiation.
    let expected = [3, 5, 3].iter().flat_map(|&graph| (0..3).map(move |node| (graph, id(graph, node))));
    assert_eq!(ids, expected.collect::<Vec<_>>());
}

#[test]
fn records_since_13_4_carry_the_source_node() {
    // Before the third launch, the first instantiated graph is updated from graph 7.
    let known = [1, 1, 7].iter().flat_map(|&graph| (0..3).map(move |n| format!("{graph}:{}", id(graph, n))));
    let (known, unknown) = (known.collect::<Vec<_>>(), vec!["0:0".to_owned(); 9]);
    for (version, sources) in [("13.0", unknown), ("13.4", known)] {
        let run = graphs("10,1,2", "2:311").env("GPUSIM_CUPTI_VERSION", version);
        let outcome = run.outcome().expect_success();
        let found: Vec<&str> = nodes(&outcome).iter().map(|n| n.str("source")).collect();
        assert_eq!(found, sources, "{version}");
    }
}

#[test]
fn the_truth_file_has_the_creation_and_launch_site_of_each_node() {
    let outcome = graphs("10,1,2", "2:311").outcome().expect_success();
    let sites: Vec<(&str, &str)> =
        outcome.truth.iter().map(|t| (t["site"].as_str().unwrap(), t["created"].as_str().unwrap())).collect();
    let before = ("main;replay", "main;capture");
    let after = ("main;replay", "main;recapture");
    assert_eq!(sites, [before, before, before, before, before, before, after, after, after]);
}

#[test]
fn graph_level_tracing_gives_one_record_per_launch() {
    for version in ["11.8", "12.0", "12.9", "13.0", "13.4"] {
        let run = graphs("10,1,2,51", "2:311").env("GPUSIM_CUPTI_VERSION", version);
        let outcome = run.outcome().expect_success();
        assert_eq!((nodes(&outcome).len(), outcome.records(51).len()), (0, 3), "{version}");
        let record = outcome.records(51)[0];
        // The kernel takes 3 us, the copy 2 us and 100 ns, the memset 1 us and 1 ns.
        assert_eq!(record.number("end") - record.number("start"), 3_000 + 2_100 + 1_001);
        assert_eq!((record.number("graph"), record.number("stream")), (3, 13));
        assert_eq!((outcome.total("untraced"), outcome.total("delivered")), (9, 3));
    }
}

/// Counts the kernel nodes that were created at a call site and have run, separately for each of two kernel names.
fn made_at(outcome: &Outcome, site: &str) -> (usize, usize) {
    let count = |name: &str| {
        let is_it = |t: &&serde_json::Value| t["created"] == site && t["name"] == name;
        outcome.truth.iter().filter(is_it).count()
    };
    (count("_Z10gemm_d3000v"), count("_Z10relu_d7000v"))
}

#[test]
fn memory_conditional_and_updated_graph_nodes_are_simulated() {
    let outcome = Run::new("nodes", &[]).client("10,1,2", "").outcome().expect_success();
    assert_eq!(made_at(&outcome, "main;memory"), (2, 0), "each launch once");
    assert_eq!(made_at(&outcome, "main;captured;relu"), (0, 1));
    assert_eq!(
        made_at(&outcome, "main;changed"),
        (2, 1),
        "of an instantiation, that one changed, and another"
    );
    // Four bodies run: the `if` body has 1 kernel, the `else` body 2, the loop's body 1 (it runs once), and the
    // switch's third body 3. The last kernel in each body was captured.
    assert_eq!(made_at(&outcome, "main;condition"), (1 + 2, 0));
    assert_eq!(made_at(&outcome, "main;condition;gemm"), (4, 0));
    assert_eq!(outcome.total("count"), 2 + 1 + 3 + 7);
    assert_eq!(outcome.total("total_ns"), (2 + 2 + 7) * 3_000 + 2 * 7_000);
}

//! Tests `Graphs` with hand-made graphs that are copied, copied again, updated, or destroyed, or whose ids interleave.

use super::*;
use gpuflame_model::record::ContextId;
use gpuflame_model::record::testing::kernel;

fn node(graphs: &mut Graphs, graph: u32, node: u64, context: u32) {
    let (graph, node, context) = (GraphId(graph), GraphNodeId(node), ContextId(context));
    graphs.push(&Row::GraphNode { graph, node, context });
}

fn copy(graphs: &mut Graphs, graph: u32, node: u64, original: u64) {
    let (graph, node, original) = (GraphId(graph), GraphNodeId(node), GraphNodeId(original));
    graphs.push(&Row::GraphClone { graph, node, original });
}

fn end(graphs: &mut Graphs, graph: u32) {
    graphs.push(&Row::GraphEnd { graph: GraphId(graph) });
}

/// Updates the instantiation `graph` from the graph `source`. `call` is the correlation id of the call that updates the
/// instantiation. The test function `created` looks up nodes for a launch with the id 100.
fn update(graphs: &mut Graphs, graph: u32, source: u32, call: u32) {
    let (graph, source, correlation) = (GraphId(graph), GraphId(source), CorrelationId(call));
    graphs.push(&Row::GraphUpdate { graph, source, correlation });
}

/// Creates a graph with the nodes `first..first + contexts.len()`.
fn graph(graphs: &mut Graphs, id: u32, first: u64, contexts: &[u32]) {
    (first..).zip(contexts).for_each(|(at, &context)| node(graphs, id, at, context));
}

/// Copies `count` nodes with consecutive ids into the graph `id`.
fn copies(graphs: &mut Graphs, id: u32, first: u64, originals: u64, count: u64) {
    (0..count).for_each(|at| copy(graphs, id, first + at, originals + at));
}

fn created(graphs: &mut Graphs, graph: u32, node: u64) -> Created {
    at(graphs, graph, node, 100)
}

/// Returns the creator that a node had when the launch with id `launch` was made.
fn at(graphs: &mut Graphs, graph: u32, node: u64, launch: u32) -> Created {
    let mut activity =
        Activity { graph: GraphId(graph), graph_node: GraphNodeId(node), ..kernel(launch, 10, 20) };
    graphs.resolve(&mut activity);
    activity.created.unwrap()
}

/// Returns the creator of a node that, according to CUPTI, was updated from the node `source`.
fn from(graphs: &mut Graphs, graph: u32, node: u64, source: u64) -> Created {
    let mut activity = Activity {
        graph: GraphId(graph),
        graph_node: GraphNodeId(node),
        source_node: GraphNodeId(source),
        ..kernel(100, 10, 20)
    };
    graphs.resolve(&mut activity);
    activity.created.unwrap()
}

fn on(context: u32) -> Created {
    Created::Context(ContextId(context))
}

#[test]
fn a_cloned_graph_has_the_contexts_of_its_original() {
    let mut graphs = Graphs::default();
    graph(&mut graphs, 1, 10, &[2, 3, 4]);
    copies(&mut graphs, 2, 13, 10, 3);
    copies(&mut graphs, 3, 16, 10, 3);
    copies(&mut graphs, 4, 19, 16, 3);
    for (id, first) in [(1, 10), (2, 13), (3, 16), (4, 19)] {
        let found: Vec<_> = (first..first + 3).map(|n| created(&mut graphs, id, n)).collect();
        assert_eq!(found, [on(2), on(3), on(4)], "graph {id}");
    }
    assert_eq!(graphs.tally(), NodeTally { created: 12, ..NodeTally::default() });
}

#[test]
fn a_node_is_found_even_if_its_record_names_another_graph() {
    let mut graphs = Graphs::default();
    graph(&mut graphs, 1, 10, &[2, 3]);
    copies(&mut graphs, 2, 20, 10, 2);
    assert_eq!(created(&mut graphs, 77, 21), on(3));
    assert_eq!(created(&mut graphs, 0, 20), on(2));
}

#[test]
fn nodes_of_graphs_with_interleaved_ids_are_found() {
    let mut graphs = Graphs::default();
    for at in 0..1000 {
        node(&mut graphs, 1, 100 + 2 * at, 2);
        node(&mut graphs, 2, 101 + 2 * at, 3);
    }
    // Make copies of the copied nodes, with different gaps between the node ids.
    let mut next = 5000;
    for at in 0..1000 {
        copy(&mut graphs, 3, next, 100 + 2 * at);
        copy(&mut graphs, 4, next + 1, 101 + 2 * at);
        next += 2 + at % 2;
    }
    next = 5000;
    for at in 0..1000 {
        assert_eq!(created(&mut graphs, 0, next), on(2));
        assert_eq!(created(&mut graphs, 0, next + 1), on(3));
        next += 2 + at % 2;
    }
}

#[test]
fn a_node_reported_as_created_and_cloned_is_a_clone() {
    for made_first in [true, false] {
        let mut graphs = Graphs::default();
        graph(&mut graphs, 1, 10, &[2, 3]);
        for (copied, original) in [(12, 10), (13, 11)] {
            if made_first {
                node(&mut graphs, 2, copied, 9);
            }
            copy(&mut graphs, 2, copied, original);
            if !made_first {
                node(&mut graphs, 2, copied, 9);
            }
        }
        assert_eq!([12, 13].map(|n| created(&mut graphs, 2, n)), [on(2), on(3)], "{made_first}");
    }
}

#[test]
fn an_instantiation_outlives_its_graph() {
    let mut graphs = Graphs::default();
    graph(&mut graphs, 1, 10, &[2, 3]);
    copies(&mut graphs, 2, 12, 10, 2);
    end(&mut graphs, 1);
    many_end(&mut graphs, 100);
    assert!(!graphs.groups.contains_key(&GraphId(1)));
    assert_eq!([12, 13].map(|n| created(&mut graphs, 2, n)), [on(2), on(3)]);
}

#[test]
fn a_destroyed_graph_is_found_until_two_flushes_later() {
    let mut graphs = Graphs::default();
    graph(&mut graphs, 1, 10, &[2]);
    end(&mut graphs, 1);
    for at in 0..=MIN_KEPT_GRAPHS as u32 {
        node(&mut graphs, 10 + at, 100 + u64::from(at), 2);
        end(&mut graphs, 10 + at);
    }
    assert_eq!(created(&mut graphs, 1, 10), on(2));
    graphs.flushed();
    assert_eq!(created(&mut graphs, 1, 10), on(2), "the graph's last launch may have been in progress");
    graphs.flushed();
    assert_eq!(created(&mut graphs, 1, 10), Created::Unknown, "forgotten");
}

/// Creates and destroys more graphs than `Graphs` keeps, and then flushes twice.
fn many_end(graphs: &mut Graphs, first: u32) {
    for at in 0..2 * MIN_KEPT_GRAPHS as u32 {
        node(graphs, first + at, 1 << 40 | u64::from(at), 2);
        end(graphs, first + at);
    }
    graphs.flushed();
    graphs.flushed();
}

#[test]
fn an_update_adopts_the_contexts_of_the_source_graph() {
    let mut graphs = Graphs::default();
    graph(&mut graphs, 1, 10, &[2, 3]);
    copies(&mut graphs, 2, 12, 10, 2);
    copies(&mut graphs, 3, 14, 10, 2);
    graph(&mut graphs, 4, 16, &[5, 6]);
    update(&mut graphs, 2, 4, 50);
    assert_eq!([12, 13].map(|n| created(&mut graphs, 2, n)), [on(5), on(6)]);
    assert_eq!([14, 15].map(|n| created(&mut graphs, 3, n)), [on(2), on(3)], "the other instantiation");
    // Update from a graph whose node ids have gaps, and then update back from the first graph.
    node(&mut graphs, 5, 20, 7);
    node(&mut graphs, 5, 30, 8);
    update(&mut graphs, 2, 5, 60);
    assert_eq!([12, 13].map(|n| created(&mut graphs, 2, n)), [on(7), on(8)]);
    update(&mut graphs, 2, 1, 70);
    assert_eq!([12, 13].map(|n| created(&mut graphs, 2, n)), [on(2), on(3)]);
    end(&mut graphs, 1);
    many_end(&mut graphs, 100);
    assert_eq!([12, 13].map(|n| created(&mut graphs, 2, n)), [on(2), on(3)]);
}

#[test]
fn a_launch_uses_the_graph_as_of_its_last_prior_update() {
    let mut graphs = Graphs::default();
    graph(&mut graphs, 1, 10, &[2, 3]);
    copies(&mut graphs, 2, 12, 10, 2);
    graph(&mut graphs, 4, 16, &[5, 6]);
    graph(&mut graphs, 5, 18, &[7, 8]);
    update(&mut graphs, 2, 4, 50);
    update(&mut graphs, 2, 5, 60);
    assert_eq!([49, 51, 61].map(|launch| at(&mut graphs, 2, 13, launch)), [on(3), on(6), on(8)]);
}

#[test]
fn one_update_per_step_does_not_grow_memory() {
    let mut graphs = Graphs::default();
    graph(&mut graphs, 1, 10, &[2, 3]);
    copies(&mut graphs, 2, 12, 10, 2);
    let mut rounds = |rounds: std::ops::Range<u32>, contexts: [u32; 2]| {
        for round in rounds {
            let first = 20 + 2 * u64::from(round);
            graph(&mut graphs, 10 + round, first, &contexts.map(|context| context + round % 2));
            update(&mut graphs, 2, 10 + round, 10 + round);
            end(&mut graphs, 10 + round);
            if round % 1000 == 0 {
                graphs.flushed();
            }
        }
        graphs.heap_bytes()
    };
    let held = [0..100_000, 100_000..400_000].map(|range| rounds(range, [2, 3]));
    assert!(held.iter().all(|bytes| *bytes < 8 << 20), "{held:?}");
}

#[test]
fn a_mismatched_update_is_ignored_but_the_tracers_source_node_counts() {
    let mut graphs = Graphs::default();
    graph(&mut graphs, 1, 10, &[2, 3]);
    copies(&mut graphs, 2, 12, 10, 2);
    graph(&mut graphs, 3, 14, &[5, 6, 7]);
    update(&mut graphs, 2, 3, 50);
    assert_eq!(created(&mut graphs, 2, 12), on(2));
    assert_eq!(from(&mut graphs, 2, 12, 16), on(7));
}

#[test]
fn a_node_may_be_added_to_a_graph_that_was_copied_before() {
    let mut graphs = Graphs::default();
    graph(&mut graphs, 1, 10, &[2, 3]);
    copies(&mut graphs, 2, 12, 10, 2);
    node(&mut graphs, 1, 14, 4);
    copies(&mut graphs, 3, 15, 10, 2);
    copy(&mut graphs, 3, 17, 14);
    assert_eq!([15, 16, 17].map(|n| created(&mut graphs, 3, n)), [on(2), on(3), on(4)]);
    assert_eq!([12, 13, 14].map(|n| created(&mut graphs, 2, n)), [on(2), on(3), on(4)]);
}

#[test]
fn nodes_without_a_context_are_counted_by_reason() {
    let mut graphs = Graphs::default();
    assert_eq!(created(&mut graphs, 1, 5), Created::BeforeRecording, "no node was created since");
    graph(&mut graphs, 2, 10, &[2]);
    copy(&mut graphs, 3, 11, 4);
    assert_eq!(created(&mut graphs, 1, 5), Created::BeforeRecording, "the id is lower than all others");
    assert_eq!(created(&mut graphs, 3, 11), Created::BeforeRecording, "the original node is older");
    assert_eq!(created(&mut graphs, 4, 12), Created::Unknown);
    node(&mut graphs, 2, 13, ContextId::NONE.0);
    assert_eq!(created(&mut graphs, 2, 13), Created::Unknown, "the stack of the node was not kept");
    let expected = NodeTally { created: 0, before_recording: 3, unknown: 2 };
    assert_eq!(graphs.tally(), expected);
}

#[test]
fn activities_that_are_not_graph_nodes_are_unchanged() {
    let mut graphs = Graphs::default();
    let mut whole = Activity { graph: GraphId(3), detail: Detail::Graph, ..kernel(1, 10, 20) };
    let mut plain = kernel(1, 10, 20);
    graphs.resolve(&mut whole);
    graphs.resolve(&mut plain);
    assert_eq!((whole.created, plain.created, graphs.tally().seen()), (None, None, 0));
}

#[test]
fn a_live_node_costs_at_most_sixteen_bytes_and_dense_clones_nothing() {
    const NODES: u64 = 1_000_000;
    let mut graphs = Graphs::default();
    (0..NODES).for_each(|at| node(&mut graphs, 1, at, 2 + at as u32 % 999));
    assert!(graphs.heap_bytes() <= 16 * NODES as usize + 4096, "{}", graphs.heap_bytes());
    let before = graphs.heap_bytes();
    for copy in 1..=10 {
        copies(&mut graphs, 1 + copy as u32, copy * NODES, 0, NODES);
    }
    assert!(graphs.heap_bytes() <= before, "{} after {before}", graphs.heap_bytes());
    assert_eq!(created(&mut graphs, 11, 10 * NODES + 998), on(2 + 998));
    // The result is the same if the ids of the copied nodes have different gaps than the ids of the original nodes.
    let mut gaps = Graphs::default();
    (0..NODES).for_each(|at| node(&mut gaps, 1, 3 * at, 2));
    (0..NODES).for_each(|at| copy(&mut gaps, 2, 4 * NODES + 5 * at, 3 * at));
    assert!(gaps.heap_bytes() <= 16 * 2 * NODES as usize + 4096, "{}", gaps.heap_bytes());
}

#[test]
fn destroyed_graphs_use_no_memory() {
    let mut graphs = Graphs::default();
    let round = |graphs: &mut Graphs, from: u32, count: u32| {
        for at in from..from + count {
            let first = u64::from(at) * 8;
            graph(graphs, 2 * at, first, &[2, 3, 4, 5]);
            copies(graphs, 2 * at + 1, first + 4, first, 4);
            end(graphs, 2 * at);
            end(graphs, 2 * at + 1);
            if at % 10_000 == 0 {
                graphs.flushed();
            }
        }
        graphs.flushed();
        graphs.flushed();
        graphs.heap_bytes()
    };
    let few = round(&mut graphs, 1, 100_000);
    let many = round(&mut graphs, 200_000, 1_000_000);
    assert!(few < 8 << 20, "{few}");
    assert!(many <= few + (1 << 20), "{many} after {few}");
}

#[test]
fn nonsensical_graph_rows_do_not_panic() {
    let mut rng = gpuflame_model::record::testing::Rng::new(7);
    let mut graphs = Graphs::default();
    for _ in 0..200_000 {
        let ids = [0, 1, 2, 5, 9, u64::MAX, u64::MAX - 1, 1 << 32, 1 << 63];
        let mut id = || ids[rng.below(ids.len() as u64) as usize].wrapping_add(rng.below(40));
        let (a, b, c) = (id(), id(), id());
        match rng.below(6) {
            0 => node(&mut graphs, a as u32 % 8, b, c as u32),
            1 | 2 => copy(&mut graphs, a as u32 % 8, b, c),
            3 => update(&mut graphs, a as u32 % 8, b as u32 % 8, c as u32),
            4 => {
                end(&mut graphs, a as u32 % 8);
                graphs.flushed();
            }
            _ => drop(from(&mut graphs, a as u32, b.max(1), c)),
        }
    }
}

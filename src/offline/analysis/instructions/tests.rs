//! Tests with small runs whose instructions and dependencies can be checked by hand.

use super::*;
use gpuflame_explain::join::Sink;
use gpuflame_model::record::testing;
use gpuflame_model::record::*;

const NONE: ContextId = ContextId::NONE;

fn call(time: u64, end: u64) -> Origin {
    Origin::Launch(Launched { time: Nanos(time), duration: (end - time) as u32, context: NONE })
}

fn on_stream(stream: u32, activity: Activity) -> Activity {
    Activity { stream: StreamId(stream), ..activity }
}

fn node(graph: u32, activity: Activity) -> Activity {
    Activity { graph: GraphId(graph), ..activity }
}

/// Adds a call at `time` that records a CUDA event on a stream.
fn record(rows: &mut InstructionRows, id: u32, time: u64, stream: u32, event: u32, sync: Option<u64>) {
    rows.host(&Row::EventCall(EventCall {
        time: Nanos(time),
        duration: 1,
        correlation: CorrelationId(id),
        context: NONE,
        event_use: EventUse::Record,
        event: 0,
        stream: 0,
    }));
    record_row(rows, id, 1, stream, event, sync);
}

fn record_row(rows: &mut InstructionRows, id: u32, context: u32, stream: u32, event: u32, sync: Option<u64>) {
    rows.host(&Row::EventRecord(EventRecord {
        correlation: CorrelationId(id),
        context: GpuContextId(context),
        stream: StreamId(stream),
        event: EventId(event),
        sync: sync.map(SyncId),
    }));
}

fn sync(kind: SyncKind, id: u32, time: u64, stream: Option<u32>) -> SyncRecord {
    SyncRecord {
        kind,
        start: Nanos(time),
        end: Nanos(time + 1),
        correlation: CorrelationId(id),
        context: GpuContextId(1),
        stream: stream.map(StreamId),
        event: None,
        sync: None,
        result: 0,
    }
}

/// Kind, correlation id and dependencies of an instruction, as the tests compare them.
type Listed = (&'static str, u32, Vec<(u32, &'static str)>);

fn listed(rows: InstructionRows) -> Vec<Listed> {
    let list = InstructionList::new(rows, &Profile::default());
    let mut all = Vec::new();
    let each = &mut |one: &Instruction<'_>| {
        let after = one.after.iter().map(|after| (after.number, after.reason.word())).collect();
        all.push((one.kind.word(), one.correlation.0, after));
        Ok::<_, ()>(())
    };
    list.each(InstructionOrder::Issue, each).unwrap();
    all
}

#[test]
fn a_call_during_which_another_thread_filled_the_stream_took_effect_later() {
    let mut rows = InstructionRows::default();
    // The call that launched kernel 1 began first, but kernel 2 ran first.
    rows.activity(&testing::kernel(1, 300, 400), call(10, 40));
    rows.activity(&testing::kernel(2, 200, 300), call(20, 25));
    // If one launch call ended before another launch call began, the times of their kernels do not change the order of
    // the calls.
    rows.activity(&on_stream(8, testing::kernel(3, 300, 400)), call(50, 55));
    rows.activity(&on_stream(8, testing::kernel(4, 200, 300)), call(60, 65));
    let expected = [
        ("kernel", 2, vec![]),
        ("kernel", 1, vec![(0, "stream")]),
        ("kernel", 3, vec![]),
        ("kernel", 4, vec![(2, "stream")]),
    ];
    assert_eq!(listed(rows), expected);
}

#[test]
fn work_without_a_call_comes_before_later_work_of_its_stream() {
    let mut rows = InstructionRows::default();
    rows.activity(&testing::kernel(5, 500, 600), call(100, 105));
    rows.activity(&testing::kernel(9, 400, 500), Origin::Missing(Missing::LaunchedBefore));
    rows.activity(&on_stream(8, testing::kernel(8, 300, 310)), Origin::Missing(Missing::NoStack));
    let expected = [("kernel", 9, vec![]), ("kernel", 5, vec![(0, "stream")]), ("kernel", 8, vec![])];
    assert_eq!(listed(rows), expected);
}

#[test]
fn a_wait_depends_on_its_record_and_on_its_stream() {
    let mut rows = InstructionRows::default();
    rows.activity(&testing::kernel(1, 100, 200), call(10, 15));
    rows.activity(&on_stream(8, testing::kernel(2, 100, 200)), call(20, 25));
    record(&mut rows, 3, 30, 7, 4, Some(77));
    record(&mut rows, 4, 40, 7, 4, Some(78));
    let wait = sync(SyncKind::STREAM_WAIT, 5, 50, Some(8));
    rows.host(&Row::Sync(SyncRecord { event: Some(EventId(4)), sync: Some(SyncId(77)), ..wait }));
    // This wait does not name the event record for which it waits, although the other waits in the recording do.
    let wait = sync(SyncKind::EVENT, 6, 60, None);
    rows.host(&Row::Sync(SyncRecord { event: Some(EventId(4)), ..wait }));
    let expected = [
        ("kernel", 1, vec![]),
        ("kernel", 2, vec![]),
        ("record", 3, vec![(0, "stream")]),
        ("record", 4, vec![(2, "stream")]),
        ("wait", 5, vec![(1, "stream"), (2, "event")]),
        ("synchronize", 6, vec![]),
    ];
    assert_eq!(listed(rows), expected);
}

#[test]
fn without_numbers_of_records_the_last_record_of_the_event_counts() {
    let mut rows = InstructionRows::default();
    rows.activity(&testing::kernel(1, 100, 200), call(10, 15));
    record(&mut rows, 3, 30, 7, 4, None);
    record(&mut rows, 4, 40, 7, 4, None);
    record(&mut rows, 5, 50, 7, 6, None);
    record_row(&mut rows, 9, 2, 7, 6, None);
    for (id, event) in [(6, 4), (7, 6)] {
        let wait = sync(SyncKind::EVENT, id, 100, None);
        rows.host(&Row::Sync(SyncRecord { event: Some(EventId(event)), ..wait }));
    }
    let after = listed(rows).into_iter().map(|(_, id, after)| (id, after)).collect::<Vec<_>>();
    // The record with id 9 has no call and therefore no known time. This event record belongs to another CUDA context,
    // whose CUDA events may have the same ids. The record with id 9 is listed last, so the wait with id 7 does not find
    // it.
    let expected = [
        (1, vec![]),
        (3, vec![(0, "stream")]),
        (4, vec![(1, "stream")]),
        (5, vec![(2, "stream")]),
        (6, vec![(2, "event")]),
        (7, vec![(3, "event")]),
        (9, vec![]),
    ];
    assert_eq!(after, expected);
}

#[test]
fn a_wait_for_a_context_depends_on_the_last_instruction_of_each_stream_since_the_wait_before() {
    let mut rows = InstructionRows::default();
    for (id, stream) in [(1, 7), (2, 8), (4, 8), (5, 8)] {
        let start = u64::from(id) * 100;
        rows.activity(
            &on_stream(stream, testing::kernel(id, start, start + 50)),
            call(start - 50, start - 40),
        );
    }
    rows.host(&Row::Sync(sync(SyncKind::CONTEXT, 3, 300, None)));
    rows.host(&Row::Sync(sync(SyncKind::CONTEXT, 6, 600, None)));
    // A query that finds unfinished work does not wait.
    rows.host(&Row::Sync(SyncRecord { result: 600, ..sync(SyncKind::STREAM, 7, 700, Some(7)) }));
    rows.host(&Row::Sync(sync(SyncKind::STREAM, 8, 800, Some(7))));
    let expected = [
        ("kernel", 1, vec![]),
        ("kernel", 2, vec![]),
        ("synchronize", 3, vec![(0, "context"), (1, "context")]),
        ("kernel", 4, vec![(1, "stream")]),
        ("kernel", 5, vec![(3, "stream")]),
        ("synchronize", 6, vec![(4, "context")]),
        ("synchronize", 7, vec![]),
        ("synchronize", 8, vec![(0, "stream")]),
    ];
    assert_eq!(listed(rows), expected);
}

#[test]
fn a_graph_launch_stands_for_its_nodes_on_all_their_streams() {
    let mut rows = InstructionRows::default();
    rows.activity(&testing::kernel(1, 100, 150), call(10, 15));
    for (id, time) in [(2, 200), (3, 300)] {
        rows.activity(&node(5, testing::kernel(id, time, time + 10)), call(time - 180, time - 170));
        rows.activity(
            &node(5, on_stream(9, testing::kernel(id, time + 5, time + 30))),
            call(time - 180, time - 170),
        );
    }
    rows.activity(&on_stream(9, testing::kernel(4, 400, 450)), call(350, 360));
    let list = InstructionList::new(rows.clone(), &Profile::default());
    let graph = list.get(1);
    assert_eq!((graph.stream, graph.ran), (None, Some((Nanos(200), Nanos(230)))));
    assert!(graph.uses(Some(0), Some(9)) && graph.uses(None, Some(7)) && !graph.uses(None, Some(8)));
    let expected = [
        ("kernel", 1, vec![]),
        ("graph", 2, vec![(0, "stream")]),
        ("kernel", 2, vec![(1, "graph")]),
        ("kernel", 2, vec![(1, "graph")]),
        ("graph", 3, vec![(1, "stream"), (1, "same_graph")]),
        ("kernel", 3, vec![(4, "graph")]),
        ("kernel", 3, vec![(4, "graph")]),
        ("kernel", 4, vec![(4, "stream")]),
    ];
    assert_eq!(listed(rows), expected);
}

#[test]
fn a_stream_that_waits_for_an_event_of_another_context_is_found_by_its_number() {
    let mut rows = InstructionRows::default();
    let other = Activity { context: GpuContextId(2), device: DeviceId(1), ..testing::kernel(1, 100, 200) };
    rows.activity(&on_stream(30, other), call(10, 15));
    rows.activity(&testing::kernel(2, 100, 200), call(20, 25));
    rows.host(&Row::Sync(sync(SyncKind::STREAM_WAIT, 3, 30, Some(30))));
    let list = InstructionList::new(rows, &Profile::default());
    let wait = list.get(2);
    assert_eq!((wait.device, wait.context), (Some(DeviceId(1)), Some(GpuContextId(2))));
    assert_eq!(wait.after, [After { number: 0, reason: AfterReason::Stream }]);
}

fn edge(graph: u32, from: u64, to: u64) -> Row<'static> {
    let from = (from != 0).then_some(GraphNodeId(from));
    Row::GraphEdge(GraphEdge { graph: GraphId(graph), from, to: GraphNodeId(to) })
}

/// Returns a kernel that is a node of graph 5.
fn graph_kernel(id: u32, node_id: u64, start: u64, end: u64) -> Activity {
    Activity { graph_node: GraphNodeId(node_id), ..node(5, testing::kernel(id, start, end)) }
}

/// For each instruction, returns the nodes for which it waits according to its graph's edges, and whether all nodes for
/// which it waits are known. The nodes are given by their instruction indexes.
fn edges(list: &InstructionList) -> Vec<(Vec<u32>, bool)> {
    let of = |number| {
        let after = list.get(number).after.iter().filter(|after| after.reason == AfterReason::GraphEdge);
        (after.map(|after| after.number).collect(), list.knows_edges(number))
    };
    (0..list.len() as u32).map(of).collect()
}

#[test]
fn a_node_waits_for_the_nodes_of_its_own_launch_and_past_empty_ones_in_files_that_list_nodes() {
    let mut rows = InstructionRows::default();
    for node in 1..=4 {
        rows.host(&Row::GraphNode { graph: GraphId(5), node: GraphNodeId(node), context: NONE });
    }
    // Node 3 is an empty node, which does no work.
    [edge(5, 1, 3), edge(5, 3, 4), edge(5, 2, 4)].iter().for_each(|row| rows.host(row));
    for (id, at) in [(1, 100), (2, 200)] {
        rows.activity(&graph_kernel(id, 1, at, at + 10), call(at - 90, at - 80));
        rows.activity(&graph_kernel(id, 2, at + 1, at + 20), call(at - 90, at - 80));
        rows.activity(&graph_kernel(id, 4, at + 20, at + 30), call(at - 90, at - 80));
    }
    let list = InstructionList::new(rows, &Profile::default());
    let launch =
        |first: u32| [(vec![], false), (vec![], true), (vec![], true), (vec![first, first + 1], true)];
    assert_eq!(edges(&list), [launch(1), launch(5)].concat());
}

#[test]
fn edges_of_a_node_are_unknown_if_one_it_waits_for_has_no_row() {
    let mut rows = InstructionRows::default();
    [edge(5, 1, 2), edge(5, 9, 3), edge(5, 0, 6)].iter().for_each(|row| rows.host(row));
    for (node, start) in [(1, 100), (2, 200), (3, 300), (6, 400)] {
        rows.activity(&graph_kernel(1, node, start, start + 10), call(10, 20));
    }
    // The rows contain no edge of graph 6.
    rows.activity(&Activity { graph: GraphId(6), ..graph_kernel(2, 1, 500, 510) }, call(30, 40));
    let list = InstructionList::new(rows, &Profile::default());
    let (launch, unknown) = ((vec![], false), (vec![], false));
    let expected =
        [launch.clone(), (vec![], true), (vec![1], true), unknown.clone(), unknown.clone(), launch, unknown];
    assert_eq!(edges(&list), expected);
}

#[test]
fn no_edges_of_a_launch_are_known_if_its_times_contradict_one() {
    let mut rows = InstructionRows::default();
    [edge(5, 1, 2), edge(5, 2, 3)].iter().for_each(|row| rows.host(row));
    for (id, starts) in [(1, [100, 200, 150]), (2, [500, 600, 700])] {
        for (node, start) in (1..).zip(starts) {
            rows.activity(
                &graph_kernel(id, node, start, start + 10),
                call(u64::from(id) * 10, u64::from(id) * 10 + 5),
            );
        }
    }
    let list = InstructionList::new(rows, &Profile::default());
    let known: Vec<bool> = edges(&list).into_iter().map(|(_, is_known)| is_known).collect();
    assert_eq!(known, [false, false, false, false, false, true, true, true]);
}

#[test]
fn a_host_function_of_a_graph_is_an_instruction_of_its_launch_and_stream() {
    let mut rows = InstructionRows::default();
    let function = |id: u32, start: u64| {
        Row::HostNode(HostNode {
            correlation: CorrelationId(id),
            device: DeviceId(0),
            context: GpuContextId(1),
            stream: StreamId(7),
            start: Nanos(start),
            end: Nanos(start + 50),
            graph: GraphId(5),
            node: GraphNodeId(2),
        })
    };
    [edge(5, 1, 2), function(1, 110), function(2, 300), function(9, 900)]
        .iter()
        .for_each(|row| rows.host(row));
    rows.activity(&graph_kernel(1, 1, 100, 110), call(10, 20));
    // This graph launch ran only a host function. A kernel follows the graph launch.
    let launched = Launched { time: Nanos(30), duration: 5, context: NONE };
    rows.pending(CorrelationId(2), launched);
    rows.activity(&testing::kernel(3, 350, 360), call(40, 45));
    let expected = [
        ("graph", 1, vec![]),
        ("kernel", 1, vec![(0, "graph")]),
        ("host_function", 1, vec![(0, "graph"), (1, "graph_edge")]),
        ("graph", 2, vec![(0, "stream"), (0, "same_graph")]),
        ("host_function", 2, vec![(3, "graph")]),
        ("kernel", 3, vec![(3, "stream")]),
    ];
    assert_eq!(listed(rows), expected);
}

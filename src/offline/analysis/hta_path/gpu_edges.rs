//! Adds the edges for GPU work. One edge represents the duration of an operation. Another edge leads to this operation,
//! either from its launch or from the previous operation on the stream. Further edges lead from the operation to the
//! calls that wait for it.

use std::collections::HashMap;

use super::events::{EventKind, HtaEvents};
use super::graph::{Edge, EdgeType, Graph, HtaRule};
use super::queue::{launches, queue_lengths};
use super::sync_edges::EventWaits;
use super::window::Selection;

/// Minimum duration in us of a long gap. If the gap between two operations of a stream is long, HTA adds no edge
/// between these operations.
pub(super) const LONG_GAP_US: i64 = 1_500;

/// GPU work to which no edge leads from an earlier event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unconnected {
    /// Gaps of at least 1,500 us between operations without an edge, as (number of gaps, total duration in us).
    pub long_gaps: (u64, i64),
    /// Number of operations to which no edge leads. On a path, such an operation can only be the first event.
    pub ops: u64,
}

/// Adds the edges for GPU work and for waits for GPU work.
pub(super) fn add_gpu_edges(
    events: &HtaEvents,
    selection: &Selection,
    zero_launch_edges: bool,
    graph: &mut Graph,
) -> Unconnected {
    let launches = launches(events, selection);
    let queue = queue_lengths(events, selection, &launches);
    let waits = EventWaits::new(events, selection, &launches);
    let row = |at: u32| &events.rows[at as usize];
    let is_gpu = |at: u32| {
        let is_wait = || matches!(events.name(row(at).name), "Event Sync" | "Context Sync");
        row(at).correlation.is_some() && (row(at).stream.is_some() || is_wait())
    };
    let mut order: Vec<u32> = selection.window.iter().copied().filter(|at| is_gpu(*at)).collect();
    // Waits are sorted by their ends, because the awaited work may begin after the begin of the wait.
    order.sort_by_key(|at| if row(*at).kind == EventKind::Sync { row(*at).end } else { row(*at).start });
    let mut walk = GpuWalk {
        events,
        selection,
        graph,
        queue,
        waits,
        zero_launch_edges,
        last: Vec::new(),
        streams: HashMap::new(),
        sources: HashMap::new(),
        unconnected: Unconnected::default(),
    };
    for at in order {
        match row(at).kind {
            EventKind::Sync => walk.wait(at),
            _ => walk.work(at),
        }
    }
    walk.unconnected
}

/// Visits the GPU work and the waits in order of time.
struct GpuWalk<'a> {
    events: &'a HtaEvents,
    selection: &'a Selection,
    graph: &'a mut Graph,
    queue: HashMap<u32, i64>,
    waits: EventWaits,
    zero_launch_edges: bool,
    /// End node of the last operation on each stream, in the order in which the streams began.
    last: Vec<u32>,
    /// Position in `last` of each stream's entry.
    streams: HashMap<Option<u32>, usize>,
    /// For each operation whose stream waits for a CUDA event before it, the operation after which the event was
    /// recorded.
    sources: HashMap<u32, u32>,
    unconnected: Unconnected,
}

impl GpuWalk<'_> {
    fn last_of(&self, stream: Option<u32>) -> Option<u32> {
        self.streams.get(&stream).map(|at| self.last[*at])
    }

    /// Returns the end node of an operation, if the operation is in the window.
    fn end_of(&self, work: u32) -> Option<u32> {
        Some(self.graph.of_row(work)?.1)
    }

    fn wait(&mut self, at: u32) {
        let row = &self.events.rows[at as usize];
        let call = self.selection.partner(at);
        match self.events.name(row.name) {
            "Stream Wait Event" => {
                let source = self.waits.source(row);
                if let (Some(source), Some(target)) = (source, call.and_then(|call| self.waits.target(call)))
                {
                    self.sources.insert(target, source);
                }
            }
            "Event Sync" => {
                if let Some(end) = self.waits.source(row).and_then(|source| self.end_of(source)) {
                    self.wait_for(&[end], call);
                }
            }
            "Stream Sync" => {
                let ends: Vec<u32> = self.last_of(row.stream).into_iter().collect();
                self.wait_for(&ends, call);
            }
            "Context Sync" => {
                let ends = self.last.clone();
                self.wait_for(&ends, call);
            }
            _ => {}
        }
    }

    /// Adds edges from the ends of operations to the end of the call that waited for the operations.
    fn wait_for(&mut self, ends: &[u32], call: Option<u32>) {
        let Some((_, end)) = call.and_then(|call| self.graph.of_row(call)) else { return };
        for from in ends {
            self.graph.connect(*from, end, EdgeType::Sync, None);
        }
    }

    fn work(&mut self, at: u32) {
        let Some((start, end)) = self.graph.of_row(at) else { return };
        self.graph.connect(start, end, EdgeType::Operator, None);
        self.graph.attribute(start, end, Some(at));
        let source = self.sources.remove(&at).and_then(|source| self.end_of(source));
        if let Some(source) = source {
            self.graph.connect(source, start, EdgeType::Sync, None);
        }
        let stream = self.events.rows[at as usize].stream;
        let is_connected = self.connect_work(at, start, self.last_of(stream), source);
        self.unconnected.ops += u64::from(!is_connected && source.is_none());
        let next = self.last.len();
        match *self.streams.entry(stream).or_insert(next) {
            at if at == next => self.last.push(end),
            at => self.last[at] = end,
        }
    }

    /// If the stream was empty when an operation was launched, adds an edge from the launch call to the operation. If
    /// the stream was not empty, adds an edge to the operation from the previous operation of the stream. Returns
    /// whether an edge was added.
    fn connect_work(&mut self, at: u32, start: u32, last: Option<u32>, source: Option<u32>) -> bool {
        let call = self.selection.partner(at);
        let begin = call.map(|call| self.events.rows[call as usize].start);
        let launch = call.and_then(|call| Some(self.graph.of_row(call)?.0));
        let ended_before = |node: Option<u32>, time: Option<i64>| {
            node.is_none_or(|node| time.is_some_and(|time| self.graph.time(node) < time))
        };
        let was_empty = call.is_some_and(|call| self.queue.get(&call) == Some(&1))
            && self.queue.get(&at) == Some(&0)
            && ended_before(last, begin)
            && ended_before(source, begin);
        if let (true, Some(launch)) = (was_empty, launch) {
            self.graph.connect(launch, start, EdgeType::LaunchDelay, Some(HtaRule::CallStart));
            return true;
        }
        let previous = last.filter(|last| ended_before(source, Some(self.graph.time(*last))));
        let mut is_connected = false;
        if let Some(previous) = previous {
            let gap = self.graph.time(start) - self.graph.time(previous);
            if gap < LONG_GAP_US {
                self.graph.connect(previous, start, EdgeType::KernelDelay, None);
                self.graph.attribute(previous, start, Some(self.graph.nodes[previous as usize].row));
                is_connected = true;
            } else {
                let (count, sum) = self.unconnected.long_gaps;
                self.unconnected.long_gaps = (count + 1, sum.saturating_add(gap));
            }
        }
        if let (true, Some(launch)) = (self.zero_launch_edges, launch) {
            let (kind, rule) = (EdgeType::LaunchDelay, None);
            self.graph.add(Edge { from: launch, to: start, kind, weight: 0, rule, attributed: None });
        }
        is_connected
    }
}

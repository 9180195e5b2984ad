//! Adds two types of edges between host events: edges for the order and nesting of the events on a thread, and edges
//! between calls that exclude each other.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::events::{EventKind, HtaEvents, TrackId};
use super::graph::{EdgeType, Graph, HtaRule};
use super::window::Selection;

/// Names of calls during which HTA assumes that the thread holds the lock of the CUDA runtime.
const LOCKING_CALLS: [&str; 3] = ["cudaHostAlloc", "cudaLaunchKernel", "cudaMemcpyAsync"];
/// Names of calls that may wait for the GPU.
const BLOCKING_CALLS: [&str; 6] = [
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventQuery",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cudaMemcpyAsync",
];

/// Adds all edges between host events.
pub(super) fn add_cpu_edges(events: &HtaEvents, selection: &Selection, graph: &mut Graph) {
    add_lock_edges(events, graph);
    for thread in threads(events, selection) {
        let tree = CallTree::new(events, thread);
        ThreadWalk { events, graph, tree: &tree, last: None, depth: 0 }.run();
    }
}

fn locks(events: &HtaEvents, graph: &Graph, node: u32) -> bool {
    let row = &events.rows[graph.nodes[node as usize].row as usize];
    LOCKING_CALLS.contains(&events.name(row.name))
}

/// Adds edges between calls that hold the lock of the CUDA runtime. The end of a lock-holding call depends on the
/// begins of all lock-holding calls that began earlier, and on the previous end of a lock-holding call.
fn add_lock_edges(events: &HtaEvents, graph: &mut Graph) {
    let (mut open, mut last): (Vec<u32>, Option<u32>) = (Vec::new(), None);
    for at in 0..graph.nodes.len() as u32 {
        if !locks(events, graph, at) {
            continue;
        }
        let node = graph.nodes[at as usize];
        if node.is_start {
            open.push(at);
        } else {
            while let Some(begin) = open.pop() {
                if graph.nodes[begin as usize].row == node.row {
                    graph.connect(begin, at, EdgeType::Operator, None);
                    graph.attribute(begin, at, Some(node.row));
                } else {
                    graph.connect(begin, at, EdgeType::Dependency, Some(HtaRule::CpuGap));
                }
            }
            if let Some(last) = last.filter(|last| !graph.nodes[*last as usize].is_start) {
                graph.connect(last, at, EdgeType::Dependency, Some(HtaRule::CpuGap));
            }
        }
        last = Some(at);
    }
}

/// Returns the rows of each host thread. If a separate thread runs the backward operators, its rows are merged into the
/// rows of the thread that runs the forward operators.
fn threads(events: &HtaEvents, selection: &Selection) -> Vec<Vec<u32>> {
    let forward = only_thread(events, selection, "forward");
    let backward = only_thread(events, selection, "autograd");
    let mut threads: BTreeMap<(&TrackId, &TrackId), Vec<u32>> = BTreeMap::new();
    for at in selection.window.iter().copied() {
        let row = &events.rows[at as usize];
        if matches!(row.kind, EventKind::Work | EventKind::Sync) {
            continue;
        }
        let (process, mut thread) = {
            let track = events.track(row.track);
            (&track.0, &track.1)
        };
        if let (Some(forward), Some(backward)) = (forward, backward)
            && thread == backward
        {
            thread = forward;
        }
        threads.entry((process, thread)).or_default().push(at);
    }
    threads.into_values().collect()
}

/// Returns the thread that has operators or annotations whose names contain `word`. Returns `None` if no thread, or
/// more than one thread, has such operators or annotations. Thread 0 is ignored.
fn only_thread<'a>(events: &'a HtaEvents, selection: &Selection, word: &str) -> Option<&'a TrackId> {
    let rows = selection.window.iter().map(|at| &events.rows[*at as usize]);
    let named = rows
        .filter(|row| matches!(row.kind, EventKind::Operator | EventKind::Annotation))
        .filter(|row| events.name(row.name).contains(word));
    let mut found = None;
    for row in named {
        let thread = &events.track(row.track).1;
        if found.is_some_and(|found| found != thread) {
            return None;
        }
        found = Some(thread);
    }
    found.filter(|thread| **thread != TrackId::Number(0))
}

/// Slices of a thread as a tree. The end of a slice closes the slice that was opened last, even if slices overlap
/// without nesting.
struct CallTree {
    rows: Vec<u32>,
    /// Slices that are not inside another slice.
    roots: Vec<u32>,
    /// For each slice, its child slices. The field after `children` contains the parent of each slice.
    children: Vec<Vec<u32>>,
    parents: Vec<Option<u32>>,
}

/// Start or end of a slice in a [`CallTree`].
#[derive(Clone, Copy)]
struct Edge {
    slice: u32,
    time: i64,
    duration: i64,
    is_start: bool,
}

impl Edge {
    /// Compares two edges. At equal times, ends of slices come before starts. If two slices start or end at the same
    /// time, the longer slice contains the shorter slice. If two slices are equal, the slice that comes first in the
    /// file contains the other slice.
    fn compare(&self, other: &Self) -> Ordering {
        if self.slice == other.slice {
            return other.is_start.cmp(&self.is_start);
        }
        let same = match (self.is_start, other.is_start) {
            (true, true) => other.duration.cmp(&self.duration).then(self.slice.cmp(&other.slice)),
            (false, false) => self.duration.cmp(&other.duration).then(other.slice.cmp(&self.slice)),
            (is_start, other_is_start) => is_start.cmp(&other_is_start),
        };
        self.time.cmp(&other.time).then(same)
    }
}

impl CallTree {
    /// Builds the tree of a thread's slices from rows in file order. All rows must have a duration.
    fn new(events: &HtaEvents, rows: Vec<u32>) -> Self {
        let mut edges = Vec::with_capacity(rows.len() * 2);
        for (slice, at) in (0..).zip(&rows) {
            let row = &events.rows[*at as usize];
            let duration = row.end - row.start;
            edges.push(Edge { slice, time: row.start, duration, is_start: true });
            edges.push(Edge { slice, time: row.end, duration, is_start: false });
        }
        edges.sort_by(Edge::compare);
        let (children, parents) = (vec![Vec::new(); rows.len()], vec![None; rows.len()]);
        let mut tree = Self { rows, roots: Vec::new(), children, parents };
        let mut open: Vec<u32> = Vec::new();
        for edge in edges {
            if !edge.is_start {
                open.pop();
                continue;
            }
            tree.parents[edge.slice as usize] = open.last().copied();
            match open.last() {
                Some(parent) => tree.children[*parent as usize].push(edge.slice),
                None => tree.roots.push(edge.slice),
            }
            open.push(edge.slice);
        }
        tree
    }

    fn parent_row(&self, slice: u32) -> Option<u32> {
        self.parents[slice as usize].map(|parent| self.rows[parent as usize])
    }
}

/// Visits the starts and ends of a thread's slices in order, and adds an edge between each two successive nodes.
struct ThreadWalk<'a> {
    events: &'a HtaEvents,
    graph: &'a mut Graph,
    tree: &'a CallTree,
    /// Node that was visited last, and the parent slice of its event.
    last: Option<(u32, Option<u32>)>,
    /// Number of events with nodes whose start was visited and whose end was not visited yet.
    depth: u32,
}

impl ThreadWalk<'_> {
    fn run(mut self) {
        // Starts and ends that remain to be visited, as (slice, whether the end is visited). The last element of the
        // list is visited next.
        let mut next: Vec<(u32, bool)> = self.tree.roots.iter().rev().map(|slice| (*slice, false)).collect();
        while let Some((slice, is_end)) = next.pop() {
            let nodes = self.graph.of_row(self.tree.rows[slice as usize]);
            if is_end {
                if let Some((_, end)) = nodes {
                    self.leave(slice, end);
                }
                continue;
            }
            if let Some((start, _)) = nodes {
                self.enter(slice, start);
            }
            next.push((slice, true));
            next.extend(self.tree.children[slice as usize].iter().rev().map(|child| (*child, false)));
        }
    }

    fn enter(&mut self, slice: u32, start: u32) {
        if self.depth == 0 {
            self.connect(start, EdgeType::Dependency, Some(HtaRule::CpuGap));
        } else {
            self.connect(start, EdgeType::Operator, None);
        }
        self.last = Some((start, self.tree.parent_row(slice)));
        self.depth += 1;
    }

    fn leave(&mut self, slice: u32, end: u32) {
        let row = &self.events.rows[self.tree.rows[slice as usize] as usize];
        let is_blocking = BLOCKING_CALLS.contains(&self.events.name(row.name));
        self.connect(end, EdgeType::Operator, is_blocking.then_some(HtaRule::BlockingExit));
        self.last = Some((end, self.tree.parent_row(slice)));
        self.depth -= 1;
    }

    /// Adds an edge from the last visited node to `to`, unless the edges for the runtime's lock already connect these
    /// two nodes.
    fn connect(&mut self, to: u32, kind: EdgeType, rule: Option<HtaRule>) {
        let Some((from, parent)) = self.last else { return };
        let [begin, end] = [from, to].map(|node| self.graph.nodes[node as usize]);
        let is_gap = !begin.is_start && end.is_start;
        if !is_gap && locks(self.events, self.graph, from) && locks(self.events, self.graph, to) {
            return;
        }
        self.graph.connect(from, to, kind, rule);
        if kind == EdgeType::Operator {
            let row = match (begin.is_start, end.is_start) {
                (true, _) => Some(begin.row),
                (false, false) => Some(end.row),
                (false, true) => parent,
            };
            self.graph.attribute(from, to, row);
        }
    }
}

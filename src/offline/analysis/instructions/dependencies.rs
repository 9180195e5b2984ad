//! Finds the dependencies between instructions, as far as the recorded data shows them.
//!
//! The order of calls on one thread is not listed as a dependency, because it follows from the order of the
//! instructions. Implicit waits of and for default streams are not listed either, because the data does not show which
//! streams take part in them.

use std::collections::BTreeMap;

use gpuflame_explain::events::JoinedRows;
use gpuflame_model::record::{
    ContextId, CorrelationId, Detail, EventId, EventRecord, EventUse, GpuContextId, GraphId, GraphNodeId,
    HostNode, IdMap, SyncId, SyncKind, SyncRecord, ThreadId,
};

use super::super::states::StreamKey;
use super::node_edges::NodeEdges;
use super::order::{GraphLaunch, Source, is_for_event, record_of, stream_key};
use super::places::Places;
use super::topology::GraphRows;

/// Dependency on an earlier instruction, which has to be done before the dependent instruction begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct After {
    /// Index of the earlier instruction of a dependency, which has to be done first.
    pub number: u32,
    /// Reason why the earlier instruction of the dependency has to be done first.
    pub reason: AfterReason,
}

/// Reason for a dependency between two instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AfterReason {
    /// The previous instruction of the stream has to be done first. If the host waits for a stream, the stream's last
    /// instruction has to be done before the wait ends.
    Stream,
    /// The record of the awaited CUDA event has to be done before the wait ends.
    Event,
    /// The host waits for a whole CUDA context. The last instruction of each stream in the context has to be done
    /// before the wait ends.
    Context,
    /// The launch of the graph that contains a node has to be done before the node begins.
    Graph,
    /// According to the graph's edges, an earlier node of the same graph launch has to be done before a node begins.
    GraphEdge,
    /// The previous launch of the same graph has to be done before a launch of the graph begins, because a graph never
    /// runs twice at the same time.
    SameGraph,
}

impl AfterReason {
    /// Returns the reason as a word for tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Event => "event",
            Self::Context => "context",
            Self::Graph => "graph",
            Self::GraphEdge => "graph_edge",
            Self::SameGraph => "same_graph",
        }
    }
}

/// Streams of a CUDA context that have instructions.
#[derive(Default)]
struct ContextStreams {
    /// Last instructions of the streams, each with the number of streams whose last instruction it is. A graph launch
    /// may be the last instruction of several streams.
    by_last: BTreeMap<u32, u32>,
    /// For each thread, the index of its last wait for the whole CUDA context.
    synchronized: IdMap<Option<ThreadId>, u32>,
}

/// The last record of a CUDA event.
#[derive(Clone, Copy)]
struct LastRecord {
    number: u32,
    context: GpuContextId,
}

/// Returns the launch contexts of the calls that launched GPU work and may also have waited, keyed by correlation id.
pub(super) fn waiting_launches(rows: &JoinedRows) -> IdMap<CorrelationId, ContextId> {
    let waiting: IdMap<CorrelationId, ()> = rows.syncs().iter().map(|sync| (sync.correlation, ())).collect();
    let launches = rows.calls().iter().filter(|call| waiting.contains_key(&call.id));
    launches.map(|call| (call.id, call.launched.context)).collect()
}

/// Finds the dependencies of the instructions, whose sources are added one by one in the order of the instructions.
pub(super) struct Finder<'a> {
    rows: &'a JoinedRows,
    host_nodes: &'a [HostNode],
    graphs: &'a mut [GraphLaunch],
    places: &'a Places,
    thread_of: &'a dyn Fn(ContextId) -> Option<ThreadId>,
    /// Launch contexts of the calls that launched work and may also have waited, keyed by correlation id.
    launches: &'a IdMap<CorrelationId, ContextId>,
    after: Vec<After>,
    ends: Vec<u32>,
    /// Index of each graph's last launch.
    last_launches: IdMap<GraphId, u32>,
    /// Index of each stream's last instruction.
    last: IdMap<StreamKey, u32>,
    contexts: IdMap<GpuContextId, ContextStreams>,
    records: IdMap<SyncId, u32>,
    /// For each CUDA event id, the last record of the event, or `None` if several CUDA contexts use this id. The last
    /// records are used if event records have no ids in the data.
    last_records: IdMap<EventId, Option<LastRecord>>,
    /// Whether any wait names the event record for which it waits. The flag is false if the order of the instructions
    /// differs from the order in the run.
    names_records: bool,
    ignores_records: bool,
    nodes: NodeEdges<'a>,
}

/// Dependencies of all instructions.
pub(super) struct Dependencies {
    pub(super) after: Vec<After>,
    /// For each instruction, the position in `after` that follows its last dependency.
    pub(super) ends: Vec<u32>,
    /// Indexes of graph nodes whose edges are all known.
    pub(super) known_nodes: IdMap<u32, ()>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(
        rows: &'a JoinedRows,
        graph_rows: &'a GraphRows,
        graphs: &'a mut [GraphLaunch],
        places: &'a Places,
        thread_of: &'a dyn Fn(ContextId) -> Option<ThreadId>,
        launches: &'a IdMap<CorrelationId, ContextId>,
        sources: &[Source],
    ) -> Self {
        let names_records = rows.syncs().iter().any(|sync| sync.sync.is_some());
        Self {
            rows,
            host_nodes: &graph_rows.host_nodes,
            graphs,
            places,
            thread_of,
            launches,
            after: Vec::new(),
            ends: Vec::new(),
            last_launches: IdMap::default(),
            last: IdMap::default(),
            contexts: IdMap::default(),
            records: IdMap::default(),
            last_records: IdMap::default(),
            names_records,
            ignores_records: false,
            nodes: NodeEdges::new(rows, graph_rows, sources),
        }
    }

    /// Makes each wait for a CUDA event depend on the last record of this event before the wait. In the recorded run,
    /// the wait may have waited for a different record.
    pub(super) fn ignore_named_records(&mut self) {
        self.names_records = false;
        self.ignores_records = true;
    }

    /// Returns the dependencies of all instructions.
    pub(super) fn finish(self) -> Dependencies {
        Dependencies { after: self.after, ends: self.ends, known_nodes: self.nodes.finish() }
    }

    /// Adds the next instruction and finds its dependencies.
    pub(super) fn add(&mut self, source: Source) {
        let number = self.ends.len() as u32;
        let from = self.after.len();
        match source {
            Source::Work(at, graph) => self.work(number, at, graph),
            Source::HostNode(at, graph) => {
                let run = self.host_nodes[at as usize];
                self.node(number, graph, (run.graph, run.node));
            }
            Source::StreamFunction(at, _) => {
                let run = self.host_nodes[at as usize];
                self.in_order(number, (run.device, run.context, run.stream));
            }
            Source::Graph(at) => self.graph(number, at),
            Source::Pending(..) => {}
            // The time of this event record is unknown. Therefore it is also unknown which instruction precedes it on
            // its stream.
            Source::Record(at) => self.note_record(number, self.rows.event_records()[at as usize]),
            Source::Host(call, sync) => self.host(number, call, sync),
            Source::Sync(at) => {
                let sync = self.rows.syncs()[at as usize];
                let context = self.launches.get(&sync.correlation).copied();
                self.sync(number, sync, context.unwrap_or(ContextId::NONE));
            }
        }
        self.after[from..].sort_unstable();
        self.ends.push(self.after.len() as u32);
    }

    fn work(&mut self, number: u32, at: u32, graph: Option<u32>) {
        let activity = &self.rows.activity_at(at).activity;
        match graph {
            Some(graph) => self.node(number, graph, (activity.graph, activity.graph_node)),
            // Graph nodes do not run in stream order.
            None if activity.graph.0 != 0 && activity.detail != Detail::Graph => {}
            None => {
                self.in_order(number, stream_key(activity));
                if activity.detail == Detail::Graph {
                    self.after_same_graph(number, activity.graph);
                }
            }
        }
    }

    fn node(&mut self, number: u32, launch: u32, node: (GraphId, GraphNodeId)) {
        if let Some(launch) = self.graphs[launch as usize].number {
            self.after.push(After { number: launch, reason: AfterReason::Graph });
        }
        let after = &mut self.after;
        self.nodes.find(number, launch, node, &mut |number| {
            after.push(After { number, reason: AfterReason::GraphEdge });
        });
    }

    fn after_same_graph(&mut self, number: u32, graph: GraphId) {
        if graph.0 != 0
            && let Some(before) = self.last_launches.insert(graph, number)
        {
            self.after.push(After { number: before, reason: AfterReason::SameGraph });
        }
    }

    fn graph(&mut self, number: u32, at: u32) {
        let launch = &mut self.graphs[at as usize];
        launch.number = Some(number);
        let streams = std::mem::take(&mut launch.streams);
        let from = self.after.len();
        streams.iter().for_each(|stream| self.in_order(number, *stream));
        self.after[from..].sort_unstable();
        let mut all = self.after.split_off(from);
        all.dedup();
        self.after.append(&mut all);
        self.graphs[at as usize].streams = streams;
        self.after_same_graph(number, self.graphs[at as usize].graph);
    }

    /// Stores the instruction as the last instruction of its stream, and adds its dependency on the previous
    /// instruction of the stream.
    fn in_order(&mut self, number: u32, stream: StreamKey) {
        let streams = self.contexts.entry(stream.1).or_default();
        if let Some(before) = self.last.insert(stream, number) {
            self.after.push(After { number: before, reason: AfterReason::Stream });
            if let Some(count) = streams.by_last.get_mut(&before) {
                *count -= 1;
                if *count == 0 {
                    streams.by_last.remove(&before);
                }
            }
        }
        *streams.by_last.entry(number).or_default() += 1;
    }

    fn host(&mut self, number: u32, call: u32, sync: Option<u32>) {
        let call = &self.rows.host_calls()[call as usize];
        match (sync, call.event_use) {
            (Some(sync), _) => self.sync(number, self.rows.syncs()[sync as usize], call.context),
            (None, Some(EventUse::Record)) => {
                let Some(record) = record_of(self.rows, call.id) else { return };
                let record = self.rows.event_records()[record as usize];
                if let Some(stream) = self.places.find_stream(record.context, record.stream) {
                    self.in_order(number, stream);
                }
                self.note_record(number, record);
            }
            (None, _) => {}
        }
    }

    fn note_record(&mut self, number: u32, record: EventRecord) {
        if let Some(sync) = record.sync {
            self.records.insert(sync, number);
        }
        let here = LastRecord { number, context: record.context };
        let last = self.last_records.entry(record.event).or_insert(Some(here));
        *last = last.filter(|last| last.context == record.context).map(|_| here);
    }

    fn sync(&mut self, number: u32, sync: SyncRecord, caller: ContextId) {
        let stream = sync.stream.and_then(|stream| {
            let context = match sync.kind {
                SyncKind::STREAM_WAIT => self.places.context_of_wait(&sync, stream),
                _ => Some(sync.context),
            };
            self.places.find_stream(context?, stream)
        });
        // If a call did not wait, it has no dependencies. For example, a query that found unfinished work did not wait.
        if sync.result != 0 {
            return;
        }
        if is_for_event(sync.kind)
            && let Some(record) = self.record_waited_for(&sync)
        {
            self.after.push(After { number: record, reason: AfterReason::Event });
        }
        match sync.kind {
            SyncKind::STREAM_WAIT => {
                if let Some(stream) = stream {
                    self.in_order(number, stream);
                }
            }
            SyncKind::STREAM => {
                if let Some(&last) = stream.and_then(|stream| self.last.get(&stream)) {
                    self.after.push(After { number: last, reason: AfterReason::Stream });
                }
            }
            SyncKind::CONTEXT => {
                let thread = (self.thread_of)(caller);
                let streams = self.contexts.entry(sync.context).or_default();
                // Instructions before the thread's previous wait for this CUDA context are skipped, because they were
                // done when the previous wait returned.
                let since = streams.synchronized.insert(thread, number).unwrap_or(0);
                let last = streams.by_last.range(since..).map(|(last, _)| *last);
                self.after.extend(last.map(|number| After { number, reason: AfterReason::Context }));
            }
            _ => {}
        }
    }

    fn record_waited_for(&self, sync: &SyncRecord) -> Option<u32> {
        match sync.sync.filter(|_| !self.ignores_records) {
            Some(record) => self.records.get(&record).copied(),
            None if self.names_records => None,
            None => Some((*self.last_records.get(&sync.event?)?)?.number),
        }
    }
}

//! Orders instructions by the times of the host calls that issued them.
//!
//! A call takes effect at some time between its start and its end. Usually the start of the call is used as the time of
//! the instruction, with one exception. During a first call, a different thread may begin a second call on the same
//! stream. If the work of the second call ran first, the first call took effect after the second call. If the launch of
//! GPU work is unknown, the work is placed before the earliest call whose work ran later on the same stream.

use std::collections::BTreeSet;

use gpuflame_explain::events::{JoinedActivity, JoinedRows};
use gpuflame_explain::join::{Launched, Origin};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, Detail, GraphId, HostNode, IdMap, SyncId, SyncKind,
};

use super::super::states::StreamKey;

/// Row or rows from which an instruction is created, given by their positions in the joined rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// Launch of a graph whose nodes are known, given by its position in the list of graph launches.
    Graph(u32),
    /// An activity. For a graph node, the second value is the position of the graph launch that contains the node.
    Work(u32, Option<u32>),
    /// A host function that a graph node ran, with the position of the graph launch that contains the node.
    HostNode(u32, u32),
    /// A host function that a stream ran, with the position of the call that submitted the function.
    StreamFunction(u32, u32),
    /// A launch without an activity, and whether it launches a graph.
    Pending(u32, bool),
    /// An event record whose call is not recorded.
    Record(u32),
    /// A call that waited or that used a CUDA event, with the position of the row about its wait if this row exists.
    Host(u32, Option<u32>),
    /// A row about a wait whose call is not recorded.
    Sync(u32),
}

/// An instruction with the keys by which it is sorted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// Time in ns at which the instruction was issued.
    pub(super) key: u64,
    /// Whether the call that issued the instruction is known. If two instructions have equal times, an instruction
    /// without a known call sorts first.
    pub(super) is_called: bool,
    /// Sort key for instructions with equal `key`: the correlation id in the file, or the start of the work if the call
    /// is unknown.
    pub(super) second: u64,
    pub(super) start: u64,
    /// End of a graph node. The end is a sort key, so that a node of zero duration sorts before a node that begins at
    /// the end of this node.
    end: u64,
    pub(super) source: Source,
}

impl Item {
    /// Returns the key that sorts instructions in issue order. In issue order, a graph launch comes before its nodes.
    pub(super) fn sort_key(&self) -> impl Ord + use<> {
        let is_launch = matches!(self.source, Source::Graph(_));
        (self.key, self.is_called, self.second, !is_launch, (self.start, self.end), self.source)
    }
}

/// Launch of a graph whose nodes were recorded.
#[derive(Clone, Debug)]
pub(super) struct GraphLaunch {
    pub(super) launched: Launched,
    pub(super) correlation: CorrelationId,
    pub(super) graph: GraphId,
    pub(super) nodes: u32,
    /// Earliest start and latest end of the nodes that have times.
    pub(super) ran: Option<(u64, u64)>,
    /// Streams that ran the nodes.
    pub(super) streams: BTreeSet<StreamKey>,
    /// Index of the instruction, or `None` until it has been assigned.
    pub(super) number: Option<u32>,
    key: u64,
}

impl GraphLaunch {
    fn add_node(&mut self, stream: StreamKey, ran: Option<(u64, u64)>) {
        self.nodes += 1;
        if let Some((start, end)) = ran {
            let (first, last) = self.ran.unwrap_or((u64::MAX, 0));
            self.ran = Some((start.min(first), end.max(last)));
        }
        self.streams.insert(stream);
    }
}

/// Returns the position of the event record that has this correlation id.
pub(super) fn record_of(rows: &JoinedRows, id: CorrelationId) -> Option<u32> {
    let records = rows.event_records();
    let at = records.partition_point(|record| record.correlation.0 < id.0);
    records.get(at).filter(|record| record.correlation == id).map(|_| at as u32)
}

pub(super) fn stream_key(activity: &Activity) -> StreamKey {
    (activity.device, activity.context, activity.stream)
}

/// Returns all instructions with their sort keys, and all graph launches.
pub(super) fn place(
    rows: &JoinedRows,
    host_nodes: &[HostNode],
    profile: &Profile,
) -> (Vec<Item>, Vec<GraphLaunch>) {
    let mut placing =
        Placing { rows, profile, items: Vec::new(), graphs: Vec::new(), only_host: IdMap::default() };
    placing.work();
    placing.host_nodes(host_nodes);
    placing.graph_launches();
    placing.pending();
    let calls = placing.host_calls();
    placing.syncs(&calls);
    placing.records();
    (placing.items, placing.graphs)
}

struct Placing<'a> {
    rows: &'a JoinedRows,
    profile: &'a Profile,
    items: Vec<Item>,
    graphs: Vec<GraphLaunch>,
    /// Correlation ids of the calls that submitted host functions but no GPU work: calls that launched a graph without
    /// GPU work, and calls that submitted a host function to a stream.
    only_host: IdMap<CorrelationId, ()>,
}

impl Placing<'_> {
    fn called(&mut self, key: u64, id: CorrelationId, (start, end): (u64, u64), source: Source) {
        let second = self.rows.source_id(id).unwrap_or(u64::MAX);
        self.items.push(Item { key, is_called: true, second, start, end, source });
    }

    /// Adds GPU work. Activities are sorted by start, so the work on each stream is visited in the order in which it
    /// ran.
    fn work(&mut self) {
        let mut latest = LatestOfStream::default();
        let mut launches: IdMap<(u64, CorrelationId), u32> = IdMap::default();
        let without_call = Item {
            key: u64::MAX,
            is_called: false,
            second: 0,
            start: 0,
            end: 0,
            source: Source::Work(0, None),
        };
        self.items.reserve(self.rows.activities().len());
        for (at, event) in (0..).zip(self.rows.activities()) {
            let activity = &event.activity;
            let (stream, start) = (stream_key(activity), activity.start.0);
            let Origin::Launch(launched) = event.origin else {
                let source = Source::Work(at, None);
                self.items.push(Item { second: start, start, source, ..without_call });
                continue;
            };
            let is_timed = activity.duration().is_some();
            let graph = self.is_node(&event, launched).then(|| {
                let next = self.graphs.len() as u32;
                *launches.entry((launched.time.0, activity.correlation)).or_insert(next)
            });
            let key = match graph {
                Some(graph) if (graph as usize) < self.graphs.len() => self.graphs[graph as usize].key,
                _ if is_timed => latest.place(stream, activity.correlation, launched),
                _ => launched.time.0,
            };
            if let Some(graph) = graph {
                if is_timed {
                    latest.note(stream, activity.correlation, key);
                }
                self.add_launch(graph, (activity.correlation, activity.graph), launched, key);
                let ran = is_timed.then_some((activity.start.0, activity.end.0));
                self.graphs[graph as usize].add_node(stream, ran);
            }
            let end = if graph.is_some() { activity.end.0 } else { 0 };
            self.called(key, activity.correlation, (start, end), Source::Work(at, graph));
        }
        self.place_unlaunched();
    }

    /// Adds the host functions that graph nodes and streams ran. Host functions without a known launch are omitted.
    fn host_nodes(&mut self, runs: &[HostNode]) {
        let rows = self.rows;
        if runs.is_empty() {
            return;
        }
        let mut of_id: IdMap<CorrelationId, u32> = IdMap::default();
        of_id.extend((0..).zip(&self.graphs).map(|(at, graph)| (graph.correlation, at)));
        let pending = (0..).zip(rows.calls()).filter(|(_, call)| call.pending);
        let pending: IdMap<CorrelationId, (u32, Launched)> =
            pending.map(|(at, call)| (call.id, (at, call.launched))).collect();
        for (at, run) in (0..).zip(runs) {
            let id = run.correlation;
            if let (0, Some((call, launched))) = (run.graph.0, pending.get(&id))
                && !self.profile.launches_graph(launched.context)
            {
                self.only_host.insert(id, ());
                let source = Source::StreamFunction(at, *call);
                self.called(launched.time.0, id, (run.start.0, run.end.0), source);
                continue;
            }
            let graph = match (of_id.get(&id), pending.get(&id)) {
                (Some(graph), _) => *graph,
                (None, Some((_, launched))) => {
                    let graph = self.graphs.len() as u32;
                    self.add_launch(graph, (id, run.graph), *launched, launched.time.0);
                    self.only_host.insert(id, ());
                    of_id.insert(id, graph);
                    graph
                }
                (None, None) => continue,
            };
            let launch = &mut self.graphs[graph as usize];
            launch.add_node((run.device, run.context, run.stream), Some((run.start.0, run.end.0)));
            let key = launch.key;
            self.called(key, id, (run.start.0, run.end.0), Source::HostNode(at, graph));
        }
    }

    fn graph_launches(&mut self) {
        for (at, graph) in (0..).zip(std::mem::take(&mut self.graphs)) {
            let start = graph.ran.map_or(0, |(start, _)| start);
            self.called(graph.key, graph.correlation, (start, 0), Source::Graph(at));
            self.graphs.push(graph);
        }
    }

    /// Whether an activity is a graph node, so that the call with the activity's correlation id launched the graph.
    fn is_node(&self, event: &JoinedActivity, launched: Launched) -> bool {
        event.activity.detail != Detail::Graph
            && (event.activity.graph != GraphId(0) || self.profile.launches_graph(launched.context))
    }

    /// Adds a graph launch, unless it was added before.
    fn add_launch(
        &mut self,
        at: u32,
        (correlation, graph): (CorrelationId, GraphId),
        launched: Launched,
        key: u64,
    ) {
        if at as usize == self.graphs.len() {
            let (nodes, ran, streams, number) = (0, None, BTreeSet::new(), None);
            self.graphs.push(GraphLaunch { launched, correlation, graph, nodes, ran, streams, number, key });
        }
    }

    /// Sets the sort keys of GPU work without a known launch. `items` must contain only GPU work, sorted by start.
    fn place_unlaunched(&mut self) {
        let mut first_later: IdMap<StreamKey, u64> = IdMap::default();
        for item in self.items.iter_mut().rev() {
            let Source::Work(at, _) = item.source else { continue };
            let activity = &self.rows.activity_at(at).activity;
            if activity.duration().is_none() {
                continue;
            }
            let later = first_later.entry(stream_key(activity)).or_insert(u64::MAX);
            if !item.is_called {
                item.key = item.start.min(*later);
            }
            *later = item.key.min(*later);
        }
    }

    fn pending(&mut self) {
        for (at, call) in (0..).zip(self.rows.calls()).filter(|(_, call)| call.pending) {
            if self.only_host.contains_key(&call.id) {
                continue;
            }
            let is_graph = self.profile.launches_graph(call.launched.context);
            self.called(call.launched.time.0, call.id, (0, 0), Source::Pending(at, is_graph));
        }
    }

    /// Adds the calls that waited or used a CUDA event. Returns the rows about waits that belong to these calls.
    fn host_calls(&mut self) -> IdMap<u32, ()> {
        let mut of_call: IdMap<CorrelationId, u32> = IdMap::default();
        for (at, sync) in (0..).zip(self.rows.syncs()) {
            of_call.entry(sync.correlation).or_insert(at);
        }
        let recorded = self.record_times();
        let mut used = IdMap::default();
        for (at, call) in (0..).zip(self.rows.host_calls()) {
            let sync = of_call.remove(&call.id);
            used.extend(sync.map(|sync| (sync, ())));
            // The waiting call may have begun before the awaited event was recorded. If the event was recorded during
            // the waiting call, the record took effect before the wait.
            let sync_id = sync.and_then(|sync| self.rows.syncs()[sync as usize].sync);
            let record = sync_id.and_then(|id| recorded.get(&id)).copied().unwrap_or(0);
            let end = call.time.0.saturating_add(call.duration);
            let key = if record > call.time.0 && record <= end { record } else { call.time.0 };
            let source = Source::Host(at, sync);
            let is_known = sync.is_some() || call.event_use.is_some();
            if let Some(wait) = ThreadWait::of_call(self.profile, call.context).filter(|_| !is_known) {
                let second = wait as u64;
                self.items.push(Item { key, is_called: true, second, start: at.into(), end: 0, source });
                continue;
            }
            let second = if key == call.time.0 { call.id } else { CorrelationId(u32::MAX) };
            self.called(key, second, (at.into(), 0), source);
        }
        used
    }

    /// Returns the times of the calls that recorded CUDA events, keyed by the id of the event record.
    fn record_times(&self) -> IdMap<SyncId, u64> {
        let rows = self.rows;
        let times = rows.host_calls().iter().filter_map(|call| {
            let record = &rows.event_records()[record_of(rows, call.id)? as usize];
            Some((record.sync?, call.time.0))
        });
        times.collect()
    }

    fn syncs(&mut self, used: &IdMap<u32, ()>) {
        for (at, sync) in (0..).zip(self.rows.syncs()).filter(|(at, _)| !used.contains_key(at)) {
            let key = if sync.start.0 == 0 { u64::MAX } else { sync.start.0 };
            self.called(key, sync.correlation, (at.into(), 0), Source::Sync(at));
        }
    }

    /// Adds event records whose call is unknown. If the call of an event record is unknown, the record is placed just
    /// before the first wait for it.
    fn records(&mut self) {
        let called: IdMap<CorrelationId, ()> =
            self.rows.host_calls().iter().map(|call| (call.id, ())).collect();
        let mut waited: IdMap<SyncId, u64> = IdMap::default();
        for sync in self.rows.syncs().iter().filter(|sync| sync.start.0 != 0) {
            if let Some(id) = sync.sync {
                let first = waited.entry(id).or_insert(u64::MAX);
                *first = sync.start.0.min(*first);
            }
        }
        for (at, record) in (0..).zip(self.rows.event_records()) {
            if !called.contains_key(&record.correlation) {
                let key = record.sync.and_then(|id| waited.get(&id)).copied().unwrap_or(u64::MAX);
                let source = Source::Record(at);
                self.items.push(Item { key, is_called: false, second: 0, start: 0, end: 0, source });
            }
        }
    }
}

/// Kind of a C library call that waits for other threads. If several calls have the same time and a duration of zero,
/// they take effect in the order of the variants below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum ThreadWait {
    /// A thread waits at a barrier. All threads continue when the last thread has arrived.
    Barrier,
    /// A lock is released.
    Unlock,
    /// A lock is taken.
    Lock,
    /// A thread waits until another thread has ended.
    Join,
}

impl ThreadWait {
    /// Returns the kind of a call, derived from the name of the called function.
    pub(in super::super) fn of_call(profile: &Profile, context: ContextId) -> Option<Self> {
        match gpuflame_export::compose::call(profile, context) {
            "pthread_barrier_wait" => Some(Self::Barrier),
            "pthread_mutex_unlock" => Some(Self::Unlock),
            "pthread_mutex_lock" => Some(Self::Lock),
            "pthread_join" => Some(Self::Join),
            _ => None,
        }
    }
}

/// For each stream, the work with the largest sort key among the work that was visited so far, given by this sort key
/// and by the correlation id of the launch call.
#[derive(Default)]
struct LatestOfStream(IdMap<StreamKey, (u64, CorrelationId)>);

impl LatestOfStream {
    /// Returns the sort key for the next work on a stream. If the duration of the launch call allows, this key is
    /// larger than the keys of all earlier work on the stream.
    fn place(&mut self, stream: StreamKey, id: CorrelationId, launched: Launched) -> u64 {
        let (begin, end) = (launched.time.0, launched.time.0.saturating_add(launched.duration.into()));
        let latest = self.0.get(&stream).filter(|(_, other)| *other != id);
        let key = match latest {
            Some((key, _)) if *key >= begin && *key < end => key + 1,
            _ => begin,
        };
        self.note(stream, id, key);
        key
    }

    fn note(&mut self, stream: StreamKey, id: CorrelationId, key: u64) {
        let latest = self.0.entry(stream).or_insert((key, id));
        if key >= latest.0 {
            *latest = (key, id);
        }
    }
}

/// Whether, in a wait of this kind, the host or a stream waits for a CUDA event.
pub(super) fn is_for_event(kind: SyncKind) -> bool {
    kind == SyncKind::EVENT || kind == SyncKind::STREAM_WAIT
}

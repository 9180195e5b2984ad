//! The instruction stream of a run, and the dependencies between its instructions. Instructions are launches, copies,
//! fills, graph launches, event records and waits, in the order in which the host issued them.
//!
//! ```text
//! number  thread  instruction             after
//!      0       1  kernel a, stream 7
//!      1       1  record event 5, stream 7   0 (stream)
//!      2       2  wait event 5, stream 8     1 (event)
//!      3       2  kernel b, stream 8         2 (stream)
//! ```
//!
//! Each instruction is listed after all instructions for which it waits, so the list can be replayed from top to
//! bottom. The list contains only facts that the data contains. For example, it lacks the edges of a graph if the tool
//! did not record them.

mod blocking_work;
mod collect;
mod dependencies;
mod node_edges;
mod order;
mod places;
#[cfg(test)]
mod tests;
mod topology;

pub use collect::InstructionRows;
pub use dependencies::{After, AfterReason};
pub(super) use order::ThreadWait;

use std::collections::BTreeSet;

use super::states::StreamKey;
use dependencies::Dependencies;
use gpuflame_explain::events::{JoinedActivity, JoinedRows};
use gpuflame_explain::join::{Launched, Origin};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, Detail, DeviceId, EventId, EventUse, GpuContextId, GraphId, HostNode,
    IdMap, Missing, Nanos, StreamId, SyncKind, SyncRecord, ThreadId,
};
use order::{GraphLaunch, Item, Source};
use places::Places;
use topology::GraphRows;

/// Kind of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InstructionKind {
    /// A kernel.
    Kernel,
    /// A copy.
    Copy,
    /// A fill.
    Fill,
    /// A stream or a graph node calls a function on the host.
    HostFunction,
    /// A launch of a graph.
    Graph,
    /// A launch whose work was not recorded.
    Launch,
    /// A CUDA event is recorded on a stream.
    Record,
    /// A stream waits for a CUDA event.
    Wait,
    /// The host waits for GPU work.
    Synchronize,
}

impl InstructionKind {
    /// All kinds, in the order of the rows in tables.
    pub const ALL: [Self; 9] = [
        Self::Kernel,
        Self::Copy,
        Self::Fill,
        Self::HostFunction,
        Self::Graph,
        Self::Launch,
        Self::Record,
        Self::Wait,
        Self::Synchronize,
    ];

    /// Returns the kind as a word for tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Copy => "copy",
            Self::Fill => "fill",
            Self::HostFunction => "host_function",
            Self::Graph => "graph",
            Self::Launch => "launch",
            Self::Record => "record",
            Self::Wait => "wait",
            Self::Synchronize => "synchronize",
        }
    }
}

/// Host call that issued an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IssuingCall {
    /// Start of the call.
    pub time: Nanos,
    /// Duration in ns, or `None` if only the start of the call was recorded.
    pub duration: Option<u64>,
    /// Launch context (stack and API call), or [`ContextId::NONE`] if it is unknown.
    pub context: ContextId,
}

/// Facts about an instruction that exist only for instructions of some kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionDetail<'a> {
    /// GPU work that was recorded in a row.
    Work {
        /// Row about the GPU work.
        activity: Activity,
        /// Index of the graph launch, if the work is a graph node and the graph's launch is known.
        launch: Option<u32>,
        /// Reason why the launch of the work is unknown, or `None` if the launch is known.
        missing: Option<Missing>,
    },
    /// A stream or a graph node called a function on the host.
    HostFunction {
        /// The row about the call of the host function.
        run: &'a HostNode,
        /// Index of the graph launch, if a graph node called the function.
        launch: Option<u32>,
    },
    /// Launch of a graph whose nodes are separate instructions.
    Graph {
        /// Id of the graph, or `None` if the data does not contain it.
        graph: Option<GraphId>,
        /// Number of nodes of the graph that ran, or `None` if no node was recorded.
        nodes: Option<u32>,
        /// Streams on which the nodes ran.
        streams: Option<&'a BTreeSet<StreamKey>>,
    },
    /// A launch whose work was not recorded.
    Launch,
    /// An event record, or a wait of a stream for a CUDA event.
    Event {
        /// Id of the CUDA event, as recorded by the tracer.
        event: Option<EventId>,
    },
    /// The host waits for GPU work or for another thread.
    Synchronize {
        /// Kind of object for which the host waits, or `None` if it is unknown.
        waits_for: Option<SyncKind>,
        /// Id of the CUDA event, as recorded by the tracer.
        event: Option<EventId>,
        /// Return code of the waiting call. The return code is 0 if the awaited work had ended when the call returned.
        result: u32,
    },
}

/// An instruction of the instruction stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction<'a> {
    /// Index of the instruction in issue order, from 0.
    pub number: u32,
    /// Kind of the instruction.
    pub kind: InstructionKind,
    /// Host call that issued the instruction, or `None` if it is unknown.
    pub call: Option<IssuingCall>,
    /// Correlation id in the instruction's rows.
    pub correlation: CorrelationId,
    /// Index of the GPU, if it is known.
    pub device: Option<DeviceId>,
    /// Id of the CUDA context, if it is known.
    pub context: Option<GpuContextId>,
    /// Id of the stream, if it is known and the instruction uses only one stream.
    pub stream: Option<StreamId>,
    /// Start and end of the GPU work, if they are known.
    pub ran: Option<(Nanos, Nanos)>,
    /// Whether the kernel may begin before the previous kernel on its stream ends (programmatic dependent launch). The
    /// value is `None` if it is not recorded whether the launch is programmatic.
    pub programmatic: Option<bool>,
    /// Fields that depend on the kind of the instruction.
    pub detail: InstructionDetail<'a>,
    /// Instructions that have to be done before this instruction begins.
    pub after: &'a [After],
}

/// Order in which instructions are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InstructionOrder {
    /// Instructions are sorted by the time of the host call.
    #[default]
    Issue,
    /// Instructions are sorted by the start of the GPU work. Instructions without GPU work are sorted by the time of
    /// the host call.
    Start,
}

impl Instruction<'_> {
    /// Whether the instruction uses the GPU `device` and the stream `stream`. If `device` or `stream` is `None`, any
    /// GPU or any stream matches.
    pub fn uses(&self, device: Option<u32>, stream: Option<u32>) -> bool {
        if let InstructionDetail::Graph { streams: Some(streams), .. } = self.detail {
            return streams.iter().any(|key| {
                device.is_none_or(|device| key.0.0 == device) && stream.is_none_or(|stream| key.2.0 == stream)
            });
        }
        device.is_none_or(|device| self.device.is_some_and(|own| own.0 == device))
            && stream.is_none_or(|stream| self.stream.is_some_and(|own| own.0 == stream))
    }

    /// Returns the time by which the instruction is sorted, or `None` if neither its call nor its GPU work has a time.
    pub fn time(&self, order: InstructionOrder) -> Option<Nanos> {
        let (called, began) = (self.call.map(|call| call.time), self.ran.map(|(start, _)| start));
        match order {
            InstructionOrder::Issue => called.or(began),
            InstructionOrder::Start => began.or(called),
        }
    }
}

/// List of all instructions of a run.
#[derive(Debug)]
pub struct InstructionList {
    rows: JoinedRows,
    graph_rows: GraphRows,
    outside: Option<(u64, u64)>,
    /// For each instruction, the rows from which it was created.
    sources: Vec<Source>,
    /// For each instruction, its kind.
    kinds: Vec<InstructionKind>,
    graphs: Vec<GraphLaunch>,
    /// Launch contexts of the calls that launched GPU work and may also have waited, keyed by correlation id.
    launches: IdMap<CorrelationId, ContextId>,
    /// Dependencies of all instructions, sorted by the index of the dependent instruction.
    after: Vec<After>,
    /// For each instruction, the position in `after` that follows its last dependency.
    after_ends: Vec<u32>,
    /// Indexes of graph nodes whose edges are all known.
    known_nodes: IdMap<u32, ()>,
    places: Places,
    /// For each stream of known kind, whether the stream and the default stream of its CUDA context wait for each
    /// other.
    blocking: IdMap<(GpuContextId, StreamId), bool>,
}

impl InstructionList {
    /// Creates the instructions of a run from its rows, and finds the dependencies between them. `profile` supplies the
    /// names of the calls.
    pub fn new(rows: InstructionRows, profile: &Profile) -> Self {
        let InstructionRows { joined: mut rows, outside, mut graph_rows, blocking } = rows;
        rows.sort_with_shared_calls();
        let launches = dependencies::waiting_launches(&rows);
        rows.keep_pending_calls();
        graph_rows.sort();
        let mut places = Places::new(&rows);
        blocking.keys().for_each(|(context, stream)| places.add_stream(*context, *stream));
        let (mut items, mut graphs) = order::place(&rows, &graph_rows.host_nodes, profile);
        items.sort_unstable_by_key(Item::sort_key);
        let sources: Vec<Source> = items.into_iter().map(|item| item.source).collect();
        places.find_contexts_of_waits((&rows, &graphs, profile), &blocking, &sources);
        let thread_of = |context| profile.context(context).map(|context| context.thread);
        let mut found = dependencies::Finder::new(
            &rows,
            &graph_rows,
            &mut graphs,
            &places,
            &thread_of,
            &launches,
            &sources,
        );
        sources.iter().for_each(|source| found.add(*source));
        let Dependencies { after, ends: after_ends, known_nodes } = found.finish();
        let mut list = Self {
            rows,
            graph_rows,
            outside,
            sources,
            kinds: Vec::new(),
            graphs,
            launches,
            after,
            after_ends,
            known_nodes,
            places,
            blocking,
        };
        list.kinds = list.sources.iter().map(|source| list.find_kind(*source)).collect();
        list
    }

    /// Returns the kind of the instruction with this source. The method [`get`](Self::get) returns the instruction with
    /// this kind.
    fn find_kind(&self, source: Source) -> InstructionKind {
        let of_sync = |sync: u32| match self.rows.syncs()[sync as usize].kind {
            SyncKind::STREAM_WAIT => InstructionKind::Wait,
            _ => InstructionKind::Synchronize,
        };
        match source {
            Source::Work(work, _) => kind_of_work(&self.rows.activity_at(work).activity),
            Source::HostNode(..) | Source::StreamFunction(..) => InstructionKind::HostFunction,
            Source::Graph(_) | Source::Pending(_, true) => InstructionKind::Graph,
            Source::Pending(_, false) => InstructionKind::Launch,
            Source::Record(_) => InstructionKind::Record,
            Source::Sync(sync) | Source::Host(_, Some(sync)) => of_sync(sync),
            Source::Host(call, None) => match self.rows.host_calls()[call as usize].event_use {
                Some(EventUse::Record) => InstructionKind::Record,
                Some(EventUse::Wait) => InstructionKind::Wait,
                None => InstructionKind::Synchronize,
            },
        }
    }

    /// Returns the row about the GPU work of an instruction, or `None` if the instruction has no such row.
    pub fn activity(&self, number: u32) -> Option<Activity> {
        match self.sources[number as usize] {
            Source::Work(work, _) => Some(self.rows.activity_at(work).activity),
            _ => None,
        }
    }

    /// Returns the kind of the instruction with this index. The method [`get`](Self::get) returns the instruction with
    /// this kind.
    pub fn kind(&self, number: u32) -> InstructionKind {
        self.kinds[number as usize]
    }

    /// Returns the number of instructions.
    pub fn len(&self) -> usize {
        self.sources.len()
    }

    /// Whether the list contains no instructions.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether all nodes for which this graph node waits are known. The known nodes are among the dependencies of this
    /// graph node.
    pub fn knows_edges(&self, number: u32) -> bool {
        self.known_nodes.contains_key(&number)
    }

    /// Finds the dependencies that the instructions would have if they were issued in a different order. `order` lists
    /// the indexes of the instructions in this new order. In the new order, each wait for a CUDA event waits for the
    /// last record of the event that comes before the wait. `thread_of` returns the thread of a launch context.
    pub(super) fn dependencies_in(
        &self,
        order: &[u32],
        thread_of: &dyn Fn(ContextId) -> Option<ThreadId>,
    ) -> Vec<Vec<After>> {
        let sources: Vec<Source> = order.iter().map(|number| self.sources[*number as usize]).collect();
        let mut graphs = self.graphs.clone();
        let mut found = dependencies::Finder::new(
            &self.rows,
            &self.graph_rows,
            &mut graphs,
            &self.places,
            thread_of,
            &self.launches,
            &sources,
        );
        found.ignore_named_records();
        sources.iter().for_each(|source| found.add(*source));
        let Dependencies { after, ends, .. } = found.finish();
        let mut by_number = vec![Vec::new(); order.len()];
        let mut from = 0;
        for (number, end) in order.iter().zip(ends) {
            let of_item = after[from as usize..end as usize].iter();
            by_number[*number as usize] =
                of_item.map(|after| After { number: order[after.number as usize], ..*after }).collect();
            from = end;
        }
        by_number
    }

    /// Returns the number of event waits on default streams whose CUDA context is ambiguous.
    pub fn unclear_waits(&self) -> u64 {
        self.places.unclear_waits
    }

    /// Whether a stream and the default stream of its CUDA context wait for each other. Returns `None` if the kind of
    /// the stream is not recorded.
    pub fn is_blocking(&self, context: GpuContextId, stream: StreamId) -> Option<bool> {
        self.blocking.get(&(context, stream)).copied()
    }

    /// Returns the joined rows of the run.
    pub fn rows(&self) -> &JoinedRows {
        &self.rows
    }

    /// Returns the start and end of the window that [`reconstruct_states`](super::reconstruct_states) uses, or `None`
    /// if there is no GPU work with times.
    pub fn window(&self, profile: &Profile) -> Option<(u64, u64)> {
        let timed = self.rows.activities().map(|event| event.activity);
        let spans = timed.filter(|activity| activity.duration().is_some()).map(|a| (a.start.0, a.end.0));
        let span = spans.chain(self.outside).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
        Some(super::states::extend_to_windows(span, profile))
    }

    /// Calls `each` with every instruction, in the given order. Stops at the first error that `each` returns.
    ///
    /// # Errors
    /// Returns the first error that `each` returns.
    pub fn each<E>(
        &self,
        order: InstructionOrder,
        each: &mut dyn FnMut(&Instruction<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut numbers: Vec<u32> = (0..self.sources.len() as u32).collect();
        if order == InstructionOrder::Start {
            numbers.sort_by_cached_key(|number| self.get(*number).time(order));
        }
        numbers.iter().try_for_each(|number| each(&self.get(*number)))
    }

    /// Returns the instruction with this index, which must be less than [`len`](Self::len).
    pub fn get(&self, number: u32) -> Instruction<'_> {
        let at = number as usize;
        let from = if at == 0 { 0 } else { self.after_ends[at - 1] };
        let after = &self.after[from as usize..self.after_ends[at] as usize];
        let base = Instruction {
            number,
            kind: InstructionKind::Launch,
            call: None,
            correlation: CorrelationId(0),
            device: None,
            context: None,
            stream: None,
            ran: None,
            programmatic: None,
            detail: InstructionDetail::Launch,
            after,
        };
        match self.sources[at] {
            Source::Work(work, graph) => self.work(base, self.rows.activity_at(work), graph),
            Source::HostNode(run, graph) => {
                let graph = &self.graphs[graph as usize];
                let run = &self.graph_rows.host_nodes[run as usize];
                host_function(base, run, graph.launched, graph.number)
            }
            Source::StreamFunction(run, call) => {
                let (run, call) = (run as usize, call as usize);
                host_function(base, &self.graph_rows.host_nodes[run], self.rows.calls()[call].launched, None)
            }
            Source::Graph(graph) => graph_launch(base, &self.graphs[graph as usize]),
            Source::Pending(call, is_graph) => {
                let call = &self.rows.calls()[call as usize];
                let (kind, detail) = match is_graph {
                    true => (
                        InstructionKind::Graph,
                        InstructionDetail::Graph { graph: None, nodes: None, streams: None },
                    ),
                    false => (InstructionKind::Launch, InstructionDetail::Launch),
                };
                Instruction { kind, detail, call: issued(call.launched), correlation: call.id, ..base }
            }
            Source::Host(call, sync) => self.host(base, call, sync),
            Source::Sync(sync) => self.sync(base, &self.rows.syncs()[sync as usize]),
            Source::Record(record) => self.record(base, record),
        }
    }

    fn work<'a>(
        &'a self,
        base: Instruction<'a>,
        event: JoinedActivity,
        graph: Option<u32>,
    ) -> Instruction<'a> {
        let JoinedActivity { activity, origin } = event;
        let (call, missing) = match origin {
            Origin::Launch(launched) => (issued(launched), None),
            Origin::Missing(missing) => (None, Some(missing)),
        };
        let launch = graph.and_then(|graph| self.graphs[graph as usize].number);
        Instruction {
            kind: kind_of_work(&activity),
            call,
            correlation: activity.correlation,
            device: Some(activity.device),
            context: Some(activity.context),
            stream: Some(activity.stream),
            ran: activity.duration().map(|_| (activity.start, activity.end)),
            programmatic: self.rows.is_programmatic(activity.correlation),
            detail: InstructionDetail::Work { activity, launch, missing },
            ..base
        }
    }

    fn host<'a>(&'a self, base: Instruction<'a>, call: u32, sync: Option<u32>) -> Instruction<'a> {
        let call = &self.rows.host_calls()[call as usize];
        let issuing = IssuingCall { time: call.time, duration: Some(call.duration), context: call.context };
        let described = match (sync, call.event_use) {
            (Some(sync), _) => self.sync(base, &self.rows.syncs()[sync as usize]),
            (None, Some(EventUse::Record)) => match order::record_of(&self.rows, call.id) {
                Some(record) => self.record(base, record),
                None => event_instruction(base, InstructionKind::Record),
            },
            (None, Some(EventUse::Wait)) => event_instruction(base, InstructionKind::Wait),
            (None, None) => {
                let detail = InstructionDetail::Synchronize { waits_for: None, event: None, result: 0 };
                Instruction { kind: InstructionKind::Synchronize, detail, ..base }
            }
        };
        Instruction { call: Some(issuing), correlation: call.id, ..described }
    }

    fn sync<'a>(&'a self, base: Instruction<'a>, sync: &SyncRecord) -> Instruction<'a> {
        let &SyncRecord { kind, event, result, .. } = sync;
        let timed = (sync.start.0 != 0).then(|| IssuingCall {
            time: sync.start,
            duration: sync.end.0.checked_sub(sync.start.0),
            context: ContextId::NONE,
        });
        let context = match sync.stream.filter(|_| kind == SyncKind::STREAM_WAIT) {
            Some(stream) => self.places.context_of_wait(sync, stream),
            None => Some(sync.context),
        };
        let (kind, detail) = match kind {
            SyncKind::STREAM_WAIT => (InstructionKind::Wait, InstructionDetail::Event { event }),
            _ => {
                let waits_for = Some(kind).filter(|kind| *kind != SyncKind::OTHER);
                (InstructionKind::Synchronize, InstructionDetail::Synchronize { waits_for, event, result })
            }
        };
        Instruction {
            kind,
            call: timed,
            correlation: sync.correlation,
            device: context.and_then(|context| self.places.device_of(context)),
            context,
            stream: sync.stream,
            detail,
            ..base
        }
    }

    fn record<'a>(&'a self, base: Instruction<'a>, record: u32) -> Instruction<'a> {
        let record = &self.rows.event_records()[record as usize];
        Instruction {
            kind: InstructionKind::Record,
            correlation: record.correlation,
            device: self.places.device_of(record.context),
            context: Some(record.context),
            stream: Some(record.stream),
            detail: InstructionDetail::Event { event: Some(record.event) },
            ..base
        }
    }
}

fn kind_of_work(activity: &Activity) -> InstructionKind {
    match activity.detail {
        Detail::Kernel(_) => InstructionKind::Kernel,
        Detail::Copy(_) => InstructionKind::Copy,
        Detail::Set(_) => InstructionKind::Fill,
        Detail::Graph => InstructionKind::Graph,
    }
}

fn issued(launched: Launched) -> Option<IssuingCall> {
    let duration = (launched.duration != 0).then_some(launched.duration.into());
    Some(IssuingCall { time: launched.time, duration, context: launched.context })
}

fn event_instruction(base: Instruction<'_>, kind: InstructionKind) -> Instruction<'_> {
    Instruction { kind, detail: InstructionDetail::Event { event: None }, ..base }
}

fn host_function<'a>(
    base: Instruction<'a>,
    run: &'a HostNode,
    launched: Launched,
    launch: Option<u32>,
) -> Instruction<'a> {
    Instruction {
        kind: InstructionKind::HostFunction,
        call: issued(launched),
        correlation: run.correlation,
        device: Some(run.device),
        context: Some(run.context),
        stream: Some(run.stream),
        ran: (run.end >= run.start).then_some((run.start, run.end)),
        detail: InstructionDetail::HostFunction { run, launch },
        ..base
    }
}

fn graph_launch<'a>(base: Instruction<'a>, graph: &'a GraphLaunch) -> Instruction<'a> {
    let first = graph.streams.first();
    let same = |is_same: fn(&StreamKey, &StreamKey) -> bool| {
        first.filter(|first| graph.streams.iter().all(|stream| is_same(first, stream)))
    };
    Instruction {
        kind: InstructionKind::Graph,
        call: issued(graph.launched),
        correlation: graph.correlation,
        device: same(|a, b| a.0 == b.0).map(|stream| stream.0),
        context: same(|a, b| a.1 == b.1).map(|stream| stream.1),
        stream: same(|a, b| a == b).map(|stream| stream.2),
        ran: graph.ran.map(|(start, end)| (Nanos(start), Nanos(end))),
        detail: InstructionDetail::Graph {
            graph: Some(graph.graph).filter(|graph| graph.0 != 0),
            nodes: Some(graph.nodes),
            streams: Some(&graph.streams),
        },
        ..base
    }
}

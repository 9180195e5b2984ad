//! Builds the dependency graph of a run from its instructions.

use super::super::instructions::{
    AfterReason, Instruction, InstructionDetail, InstructionKind, InstructionList, ThreadWait,
};
use super::graph::{EdgeKind, Graph, HostCall, Moment, MomentId, MomentKind, NO_CALL};
use super::inferred::{End, add_inferred_edges};
use super::lags::{Lags, Submitted};
use super::programmatic::{Overlap, OverlapPlace, add_overlaps};
use super::streams::{NO_STREAM, Streams, key_of};
use super::thread_waits::{ThreadCalls, add_thread_edges};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{ContextId, CorrelationId, Detail, IdMap, MemoryKind, SyncKind, ThreadId};

/// The two moments at which an instruction begins and ends on the GPU.
#[derive(Clone, Copy, Debug)]
struct OnGpu {
    /// Moment at which the instruction begins. An event record or an event wait begins when the stream reaches it.
    begin: MomentId,
    /// Moment at which the instruction has ended.
    end: MomentId,
    kind: InstructionKind,
}

/// [`OnGpu`] value for an instruction that does nothing on a GPU.
const NOT_ON_GPU: OnGpu = OnGpu { begin: u32::MAX, end: u32::MAX, kind: InstructionKind::Launch };

/// Builds the dependency graph by reading the instructions in order.
pub(super) struct Builder<'a> {
    list: &'a InstructionList,
    profile: &'a Profile,
    graph: Graph,
    lags: Lags,
    calls: KnownCalls,
    /// Index of the host call for each correlation id, or [`NO_CALL`] if no call has the id. The correlation ids are
    /// used for waits whose rows do not identify the call.
    calls_by_id: IdMap<CorrelationId, u32>,
    /// For each instruction, its moments on the GPU.
    on_gpu: Vec<OnGpu>,
    call_of: Vec<u32>,
    streams: Streams,
    /// Ends of GPU work, used to infer dependencies from times.
    ends: Vec<End>,
    /// Begins of GPU operations and of graph launches, each with the index of its stream.
    stream_of: Vec<(MomentId, u32)>,
    has_waits: bool,
    /// Positions of the calls that waited for GPU work whose row is missing from the recording.
    unknown_waits: Vec<u32>,
    /// For each waiting call, the latest end of the GPU work that the call waited for.
    waits: IdMap<u32, u64>,
    nodes: Vec<Node>,
    /// Host calls that wait for other threads.
    thread_calls: ThreadCalls,
    /// Kernels that may overlap the previous kernel on their stream.
    overlaps: Vec<Overlap>,
    /// Position of the edge from the begin to the end of the most recently added GPU work.
    work_edge: usize,
}

/// Index of each host call, keyed by thread and start. Calls that wait for another thread can have zero duration, so
/// several of these calls can have the same start. Therefore the key of a call that waits for other threads also
/// contains the instruction.
#[derive(Default)]
struct KnownCalls {
    /// Calls of each thread as (start, index), sorted by time. Nearly all calls are added in order of time.
    in_order: IdMap<ThreadId, Vec<(u64, u32)>>,
    others: IdMap<CallKey, u32>,
}

type CallKey = (ThreadId, u64, Option<u32>);

impl KnownCalls {
    /// Returns the index of a call. A call that is not stored yet gets the index `next`.
    fn number(&mut self, key: CallKey, next: u32) -> u32 {
        if let (thread, time, None) = key {
            let known = self.in_order.entry(thread).or_default();
            if known.last().is_none_or(|(last, _)| *last < time) {
                known.push((time, next));
                return next;
            }
            if let Ok(at) = known.binary_search_by_key(&time, |(time, _)| *time) {
                return known[at].1;
            }
        }
        *self.others.entry(key).or_insert(next)
    }
}

/// Result of a [`Builder`]. The graph's moments and edges are not sorted yet.
pub(super) struct Built {
    pub(super) graph: Graph,
    /// For each waiting call, the latest end of the GPU work that the call waited for.
    pub(super) waits: IdMap<u32, u64>,
    /// Host calls that wait for other threads.
    pub(super) thread_calls: ThreadCalls,
}

/// A node of a launched graph.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Index of the instruction that launched the graph.
    launch: u32,
    begin: MomentId,
    end: MomentId,
    /// Whether all nodes that this node waits for are known.
    is_known: bool,
}

impl<'a> Builder<'a> {
    pub(super) fn new(list: &'a InstructionList, profile: &'a Profile) -> Self {
        Self {
            list,
            profile,
            graph: Graph::default(),
            lags: Lags::default(),
            calls: KnownCalls::default(),
            calls_by_id: IdMap::default(),
            on_gpu: Vec::new(),
            call_of: Vec::new(),
            streams: Streams::default(),
            ends: Vec::new(),
            stream_of: Vec::new(),
            has_waits: false,
            unknown_waits: Vec::new(),
            waits: IdMap::default(),
            nodes: Vec::new(),
            thread_calls: ThreadCalls::default(),
            overlaps: Vec::new(),
            work_edge: 0,
        }
    }

    /// Adds all instructions to the graph. Frees the data that only the graph builder needs.
    pub(super) fn build(mut self) -> Built {
        let count = self.list.len() as u32;
        self.on_gpu.reserve(self.list.len());
        let waits = (0..count).filter(|number| self.list.kind(*number) == InstructionKind::Synchronize);
        self.calls_by_id = waits.map(|number| (self.list.get(number).correlation, NO_CALL)).collect();
        for number in 0..count {
            let instruction = self.list.get(number);
            self.has_waits |= matches!(instruction.kind, InstructionKind::Wait | InstructionKind::Record);
            self.add_call(&instruction);
            self.note_lags(&instruction);
            self.streams.note(&instruction);
        }
        self.lags.finish();
        self.streams.exempt_non_blocking(self.list);
        for number in 0..count {
            let instruction = self.list.get(number);
            let on_gpu = self.add_gpu(&instruction);
            self.on_gpu.push(on_gpu);
            self.add_host_waits(&instruction);
        }
        self.ends.sort_unstable();
        self.graph.kernels = add_overlaps(&mut self.graph, self.list, &self.overlaps);
        self.add_unknown_waits();
        add_thread_edges(&mut self.graph, &self.thread_calls, &mut self.waits);
        self.add_graph_edges();
        add_inferred_edges(&mut self.graph, (&self.ends, &self.stream_of), &self.streams, self.has_waits);
        self.graph.call_of = std::mem::take(&mut self.call_of);
        self.graph.knows_threads = !self.thread_calls.is_empty();
        Built { graph: self.graph, waits: self.waits, thread_calls: self.thread_calls }
    }

    /// Adds the host call that issued an instruction, unless this call was added before.
    fn add_call(&mut self, instruction: &Instruction<'_>) {
        let known = instruction.call.and_then(|call| {
            let thread = self.profile.context(call.context)?.thread;
            let at = self.graph.calls.len() as u32;
            let own = self.thread_wait_of(instruction).map(|_| instruction.number);
            let at = self.calls.number((thread, call.time.0, own), at);
            if at as usize == self.graph.calls.len() {
                let end = call.time.0.saturating_add(call.duration.unwrap_or(0));
                let number = instruction.number;
                let moment = |time, kind| Moment { call: at, ..Moment::of_gpu(time, kind, number) };
                let begin = self.graph.add_moment(moment(call.time.0, MomentKind::CallBegin));
                let done = self.graph.add_moment(moment(end, MomentKind::CallEnd));
                let moments = (begin, done);
                let (begin, context) = (call.time.0, call.context);
                self.graph.calls.push(HostCall { begin, end, context, thread, moments });
            }
            if let Some(known) = self.calls_by_id.get_mut(&instruction.correlation) {
                *known = at;
            }
            Some(at)
        });
        self.call_of.push(known.unwrap_or(NO_CALL));
    }

    /// Returns the kind of the call that issued the instruction, if this call waits for another thread.
    fn thread_wait_of(&self, instruction: &Instruction<'_>) -> Option<ThreadWait> {
        match instruction.detail {
            InstructionDetail::Synchronize { waits_for: None, .. } => {
                ThreadWait::of_call(self.profile, instruction.call?.context)
            }
            _ => None,
        }
    }

    fn note_lags(&mut self, instruction: &Instruction<'_>) {
        let (Some(call), Some((begin, _))) = (instruction.call, instruction.ran) else { return };
        if is_node(instruction) {
            return;
        }
        if let Some(submitted) = Submitted::of(instruction.kind)
            && let Some(lag) = begin.0.checked_sub(call.time.0)
        {
            self.lags.note(submitted, lag);
        }
    }

    fn call(&self, number: u32) -> Option<&HostCall> {
        self.graph.calls.get(self.call_of[number as usize] as usize)
    }

    /// Adds the moments at which an instruction begins and ends on the GPU, and the edges to these moments.
    fn add_gpu(&mut self, instruction: &Instruction<'_>) -> OnGpu {
        let (number, kind) = (instruction.number, instruction.kind);
        let moment = |time, kind| Moment::of_gpu(time, kind, number);
        match (kind, instruction.ran) {
            (InstructionKind::Launch | InstructionKind::Synchronize, _) => NOT_ON_GPU,
            (InstructionKind::Record | InstructionKind::Wait, _) | (InstructionKind::Graph, None) => {
                let reached = self.add_reached(instruction, u64::MAX);
                // The rule of default streams can make other streams wait for the stream that executes an event wait.
                // Therefore an event wait on one stream also delays all streams that wait for this stream.
                if let Some(reached) = reached.filter(|_| kind == InstructionKind::Wait) {
                    self.streams.note_last_work(instruction, reached);
                }
                reached.map_or(NOT_ON_GPU, |reached| OnGpu { begin: reached, end: reached, kind })
            }
            (_, None) => {
                self.graph.untimed += 1;
                let reached = self.add_reached(instruction, u64::MAX);
                reached.map_or(NOT_ON_GPU, |reached| OnGpu { begin: reached, end: reached, kind })
            }
            (_, Some((begin, end))) if is_graph_of_nodes(instruction) => {
                let Some(reached) = self.add_reached(instruction, begin.0) else { return NOT_ON_GPU };
                let done = self.graph.add_moment(moment(end.0, MomentKind::GraphEnd));
                self.note_end(instruction, reached, done);
                self.streams.note_last_work(instruction, done);
                OnGpu { begin: reached, end: done, kind }
            }
            (_, Some((begin, end))) => {
                let began = self.graph.add_moment(moment(begin.0, MomentKind::Begin));
                let done = self.graph.add_moment(moment(end.0, MomentKind::End));
                self.work_edge = self.graph.edges.len();
                self.graph.add_edge(began, done, EdgeKind::Work, end.0 - begin.0);
                if is_node(instruction) {
                    self.add_node_edges(instruction, began, done);
                } else {
                    self.note_end(instruction, began, done);
                    self.add_work_edges(instruction, began, done);
                    self.streams.note_last_work(instruction, done);
                }
                OnGpu { begin: began, end: done, kind }
            }
        }
    }

    fn note_end(&mut self, instruction: &Instruction<'_>, begin: MomentId, end: MomentId) {
        let stream = self.streams.of(instruction.number);
        self.ends.push(End { time: self.graph.time(end), moment: end, stream });
        if stream != NO_STREAM {
            self.stream_of.push((begin, stream));
        }
    }

    /// Adds the moment at which a stream reaches an event record, an event wait or a graph launch. The moment is the
    /// earliest time at which the instruction has been issued and all work for which it waits has ended. For a graph
    /// launch with nodes, the moment is at `latest`, the time at which the graph's first node begins. For an
    /// instruction other than a graph launch with nodes, `latest` is `u64::MAX`. Returns `None` if neither the issuing
    /// call nor work for which the instruction waits is recorded.
    fn add_reached(&mut self, instruction: &Instruction<'_>, latest: u64) -> Option<MomentId> {
        let mut causes: Vec<(MomentId, EdgeKind, u64)> = Vec::new();
        if let Some(call) = self.call(instruction.number) {
            let lag = match instruction.kind {
                InstructionKind::Graph => self.launch_lag(call, Submitted::Graph, latest),
                _ => 0,
            };
            causes.push((call.moments.0, EdgeKind::Launch, lag));
        }
        for after in instruction.after {
            let kind = match after.reason {
                AfterReason::Stream => EdgeKind::Stream,
                AfterReason::Event => EdgeKind::Event,
                AfterReason::SameGraph => EdgeKind::SameGraph,
                AfterReason::Graph | AfterReason::GraphEdge | AfterReason::Context => continue,
            };
            let before = self.on_gpu[after.number as usize];
            if before.end != u32::MAX {
                causes.push((before.end, kind, 0));
            }
        }
        let ends = self.streams.default_stream_ends(self.streams.of(instruction.number));
        let ends = ends.filter(|end| self.graph.time(*end) <= latest);
        causes.extend(ends.map(|end| (end, EdgeKind::DefaultStream, 0)));
        let times = causes.iter().map(|(from, _, lag)| self.graph.time(*from).saturating_add(*lag));
        let time = if latest == u64::MAX { times.max()? } else { latest };
        let reached = self.graph.add_moment(Moment::of_gpu(time, MomentKind::Reached, instruction.number));
        for (from, kind, lag) in causes {
            self.graph.add_edge(from, reached, kind, lag);
        }
        Some(reached)
    }

    fn add_work_edges(&mut self, instruction: &Instruction<'_>, began: MomentId, done: MomentId) {
        let mut launched = None;
        if let Some(call) = self.call(instruction.number).copied() {
            let start = self.graph.time(began);
            let lag = Submitted::of(instruction.kind).map_or(0, |kind| self.launch_lag(&call, kind, start));
            self.graph.add_edge(call.moments.0, began, EdgeKind::Launch, lag);
            launched = Some(call.begin.saturating_add(lag));
        }
        for after in instruction.after {
            match after.reason {
                AfterReason::Stream => {
                    let implied = self.streams.default_stream_ends(self.streams.of(instruction.number));
                    let implied = implied.map(|end| self.graph.time(end));
                    let other = implied.chain(launched).max();
                    self.add_stream_edge(after.number, instruction, (began, done), other);
                }
                AfterReason::SameGraph => {
                    let before = self.on_gpu[after.number as usize];
                    if before.end != u32::MAX {
                        self.graph.add_edge(before.end, began, EdgeKind::SameGraph, 0);
                    }
                }
                AfterReason::Event | AfterReason::Graph | AfterReason::GraphEdge | AfterReason::Context => {}
            }
        }
        for end in self.streams.default_stream_ends(self.streams.of(instruction.number)) {
            self.graph.add_edge(end, began, EdgeKind::DefaultStream, 0);
        }
    }

    /// Returns the minimum time in ns from the start of a launch call to the begin of the launched work. `start` is the
    /// recorded begin of this work. If the work began after the launch call had ended, the returned time is at least
    /// the duration of the call.
    fn launch_lag(&self, call: &HostCall, kind: Submitted, start: u64) -> u64 {
        let shortest = self.lags.launch(kind);
        let whole = if start >= call.end { call.end - call.begin } else { 0 };
        shortest.max(whole)
    }

    /// Adds the edge from `before`, the previous instruction of the stream. `other` is the latest time of all causes
    /// except `before`.
    fn add_stream_edge(
        &mut self,
        before: u32,
        instruction: &Instruction<'_>,
        (began, done): (MomentId, MomentId),
        other: Option<u64>,
    ) {
        let before = self.last_that_takes_time(before);
        let OnGpu { begin, end, kind } = self.on_gpu[before as usize];
        if end == u32::MAX {
            return;
        }
        let (after, is_programmatic) = (instruction.number, instruction.programmatic);
        let overlaps = self.graph.time(end) > self.graph.time(began);
        let may_overlap = kind == InstructionKind::Kernel
            && self.graph.time(begin) <= self.graph.time(began)
            && (is_programmatic == Some(true) || (is_programmatic.is_none() && overlaps));
        if may_overlap {
            self.overlaps.push(Overlap {
                before,
                after,
                place: OverlapPlace { before: (begin, end), after: (began, done), work_edge: self.work_edge },
                other,
                kind: EdgeKind::Stream,
            });
            return;
        }
        if !overlaps {
            self.graph.add_edge(end, began, EdgeKind::Stream, 0);
            return;
        }
        let (cause, effect) = (self.graph.moments[end as usize], self.graph.moments[began as usize]);
        self.graph.contradict(cause, effect, EdgeKind::Stream);
    }

    /// Walks back along the stream from the instruction `number` until an instruction is not an event record, and
    /// returns the index of this instruction. Event records are skipped because an event record does not delay its
    /// stream.
    fn last_that_takes_time(&self, mut number: u32) -> u32 {
        while self.on_gpu[number as usize].kind == InstructionKind::Record {
            let before = self.list.get(number).after.iter().find(|after| after.reason == AfterReason::Stream);
            let Some(before) = before else { break };
            number = before.number;
        }
        number
    }

    /// Adds the edges to a graph node from the graph's launch, and from the nodes named by the graph's edges.
    fn add_node_edges(&mut self, instruction: &Instruction<'_>, began: MomentId, done: MomentId) {
        let launch = instruction.after.iter().find(|after| after.reason == AfterReason::Graph);
        let Some(launch) = launch else {
            if let Some(call) = self.call(instruction.number) {
                self.graph.add_edge(call.moments.0, began, EdgeKind::Launch, 0);
            }
            return;
        };
        let reached = self.on_gpu[launch.number as usize].begin;
        self.graph.add_edge(reached, began, EdgeKind::GraphLaunch, 0);
        let edges = || instruction.after.iter().filter(|after| after.reason == AfterReason::GraphEdge);
        let start = self.graph.time(began);
        for edge in edges() {
            let others = edges().filter(|other| other.number != edge.number);
            let others = others.map(|other| self.graph_time_of_end(other.number));
            let latest = others.chain([self.graph.time(reached)]).max();
            self.add_node_edge(edge.number, (began, done), latest.filter(|latest| *latest <= start));
        }
        let is_known = self.list.knows_edges(instruction.number);
        self.nodes.push(Node { launch: launch.number, begin: began, end: done, is_known });
    }

    fn graph_time_of_end(&self, number: u32) -> u64 {
        match self.on_gpu[number as usize].end {
            u32::MAX => 0,
            end => self.graph.time(end),
        }
    }

    /// Adds the edge from `before`, a node of the same graph launch. If a kernel began before `before` ended, `before`
    /// allowed this kernel to begin early (programmatic launch). `other` is the latest time of all causes of the node
    /// except `before`.
    fn add_node_edge(&mut self, before: u32, (began, done): (MomentId, MomentId), other: Option<u64>) {
        let OnGpu { begin, end, kind } = self.on_gpu[before as usize];
        let after = self.graph.moments[began as usize].instruction;
        if end == u32::MAX {
            return;
        }
        let are_kernels = kind == InstructionKind::Kernel && self.list.kind(after) == InstructionKind::Kernel;
        if are_kernels && self.graph.time(begin) <= self.graph.time(began) {
            self.overlaps.push(Overlap {
                before,
                after,
                place: OverlapPlace { before: (begin, end), after: (began, done), work_edge: self.work_edge },
                other,
                kind: EdgeKind::GraphEdge,
            });
        } else {
            self.graph.add_edge(end, began, EdgeKind::GraphEdge, 0);
        }
    }

    /// Adds edges between the nodes of each graph launch. If the edges to a node are not recorded, its cause is assumed
    /// to be the node that ended last before it began.
    fn add_graph_edges(&mut self) {
        let mut nodes = std::mem::take(&mut self.nodes);
        nodes.sort_unstable_by_key(|node| (node.launch, self.graph.time(node.end), node.end));
        for of_launch in nodes.chunk_by(|a, b| a.launch == b.launch) {
            let launched = self.on_gpu[of_launch[0].launch as usize].end;
            let numbers = of_launch.iter().map(|node| self.graph.moments[node.end as usize].instruction);
            self.graph.moments[launched as usize].rank = numbers.max().unwrap_or(0);
            let all_are_known = of_launch.iter().all(|node| node.is_known);
            let kind = if all_are_known { EdgeKind::GraphEdge } else { EdgeKind::GraphNode };
            of_launch.iter().for_each(|node| self.graph.add_edge(node.end, launched, kind, 0));
            if !all_are_known {
                self.infer_graph_edges(of_launch);
            }
        }
    }

    /// Adds edges to the nodes of a graph launch whose graph edges are not recorded.
    fn infer_graph_edges(&mut self, of_launch: &[Node]) {
        self.add_overlap_edges(of_launch);
        for node in of_launch {
            self.graph.launch_of.insert(node.end, node.launch);
            if node.is_known {
                continue;
            }
            self.graph.launch_of.insert(node.begin, node.launch);
            let start = self.graph.time(node.begin);
            let before = of_launch.partition_point(|other| self.graph.time(other.end) <= start);
            // If a node has zero duration, it ends at its own begin. Therefore only ends with smaller moment ids count
            // as causes. The ids of moments increase in the order of the instructions.
            let before = of_launch[..before].iter().rev().find(|other| other.end < node.begin);
            if let Some(before) = before {
                self.graph.add_edge(before.end, node.begin, EdgeKind::GraphNode, 0);
            }
        }
    }

    /// Adds edges between graph nodes that overlap on one stream. Two nodes may overlap because they are in different
    /// branches of the graph, or because one node let the other begin (programmatic launch). The rows do not show why
    /// two nodes overlap. So one edge connects the begins of two overlapping nodes and one edge connects their ends,
    /// and the lag of each edge is the recorded time between its moments.
    fn add_overlap_edges(&mut self, of_launch: &[Node]) {
        let stream_of =
            |began: MomentId| key_of(&self.list.get(self.graph.moments[began as usize].instruction));
        let mut by_begin: Vec<_> = of_launch
            .iter()
            .map(|node| {
                (stream_of(node.begin), self.graph.time(node.begin), node.begin, node.end, node.is_known)
            })
            .collect();
        by_begin.sort_unstable();
        for of_stream in by_begin.chunk_by(|a, b| a.0 == b.0) {
            let mut latest: Option<(MomentId, MomentId)> = None;
            for &(_, start, began, done, is_known) in of_stream {
                let last = self.graph.time(done);
                if let Some((other, end)) = latest.filter(|_| !is_known)
                    && self.graph.time(end) > start
                {
                    let lag = start - self.graph.time(other);
                    self.graph.add_edge(other, began, EdgeKind::GraphNode, lag);
                    if let Some(lag) = last.checked_sub(self.graph.time(end)) {
                        self.graph.add_edge(end, done, EdgeKind::GraphNode, lag);
                    }
                }
                if latest.is_none_or(|(_, end)| self.graph.time(end) < last) {
                    latest = Some((began, done));
                }
            }
        }
    }

    /// Adds edges to the end of the host call that waits for this instruction. If the instruction is a host wait, the
    /// edges lead from the awaited work to the end of the waiting call.
    fn add_host_waits(&mut self, instruction: &Instruction<'_>) {
        match instruction.kind {
            InstructionKind::Synchronize => self.add_synchronize(instruction),
            // If a copy ends before the call that issued the copy returns, the call waited for the copy.
            InstructionKind::Copy | InstructionKind::Fill if !is_node(instruction) => {
                let at = self.call_of[instruction.number as usize];
                let Some(call) = self.graph.calls.get(at as usize).copied() else { return };
                let end = self.on_gpu[instruction.number as usize].end;
                let is_done = instruction.ran.is_some() && self.graph.time(end) <= call.end;
                if is_done && self.may_wait(instruction, call.context) {
                    self.add_wait(at, end, EdgeKind::Wait);
                }
            }
            _ => {}
        }
    }

    /// Whether the call that issued a copy or fill may have waited for the end of this operation. Asynchronous calls do
    /// not wait, except for copies of pageable memory, which the driver stages. Even if the call does not wait, a short
    /// asynchronous copy can end before a slow call returns.
    fn may_wait(&self, instruction: &Instruction<'_>, context: ContextId) -> bool {
        let is_pageable = match instruction.detail {
            InstructionDetail::Work { activity, .. } => match activity.detail {
                Detail::Copy(copy) => [copy.from, copy.to].contains(&MemoryKind::PAGEABLE),
                _ => false,
            },
            _ => false,
        };
        is_pageable || !gpuflame_export::compose::call(self.profile, context).contains("Async")
    }

    fn add_synchronize(&mut self, instruction: &Instruction<'_>) {
        let own = self.call_of[instruction.number as usize];
        let at = match own {
            NO_CALL => self.calls_by_id.get(&instruction.correlation).copied().unwrap_or(NO_CALL),
            own => own,
        };
        let InstructionDetail::Synchronize { waits_for, result, .. } = instruction.detail else { return };
        // A query call (such as `cudaEventQuery`) does not wait, even if it reports that the work has ended.
        if at == NO_CALL || result != 0 || self.is_query(at) {
            return;
        }
        if let Some(kind) = self.thread_wait_of(instruction) {
            self.thread_calls.push((kind, at));
            return;
        }
        self.graph.waiting.insert(at);
        let is_unknown = waits_for.is_none() && instruction.after.is_empty();
        if is_unknown {
            self.unknown_waits.push(at);
            return;
        }
        let call = self.graph.calls[at as usize];
        if waits_for == Some(SyncKind::STREAM) {
            self.add_implied_waits(instruction, at);
        }
        for after in instruction.after {
            let end = self.on_gpu[after.number as usize].end;
            if end != u32::MAX && self.graph.time(end) <= call.end {
                self.add_wait(at, end, EdgeKind::Wait);
            } else if end != u32::MAX {
                let (cause, effect) =
                    (self.graph.moments[end as usize], self.graph.moments[call.moments.1 as usize]);
                self.graph.contradict(cause, effect, EdgeKind::Wait);
            }
        }
    }

    /// Adds the implicit waits of a host call that waits for a stream. By the rule of default streams, the next work on
    /// a stream may have to wait for work on other streams. So a call that waits for the stream also waits for the work
    /// on those other streams.
    fn add_implied_waits(&mut self, instruction: &Instruction<'_>, at: u32) {
        let is_known = key_of(instruction)
            .is_some_and(|(_, context, stream)| self.list.is_blocking(context, stream).is_some());
        if !is_known {
            return;
        }
        let returned = self.graph.calls[at as usize].end;
        let ends = self.streams.default_stream_ends(self.streams.of(instruction.number));
        for end in ends.collect::<Vec<_>>() {
            if self.graph.time(end) <= returned {
                self.add_wait(at, end, EdgeKind::Wait);
            }
        }
    }

    fn is_query(&self, call: u32) -> bool {
        gpuflame_export::compose::call(self.profile, self.graph.calls[call as usize].context)
            .contains("Query")
    }

    fn add_wait(&mut self, call: u32, end: MomentId, kind: EdgeKind) {
        let HostCall { begin, moments, .. } = self.graph.calls[call as usize];
        let time = self.graph.time(end);
        self.graph.waiting.insert(call);
        self.graph.add_edge(end, moments.1, kind, 0);
        if time > begin {
            let until = self.waits.entry(call).or_insert(time);
            *until = time.max(*until);
        }
    }

    /// Adds an edge to each call that waits for unrecorded work. The edge starts at the GPU work that ended last during
    /// the call.
    fn add_unknown_waits(&mut self) {
        for call in std::mem::take(&mut self.unknown_waits) {
            let HostCall { begin, end, .. } = self.graph.calls[call as usize];
            let at = self.ends.partition_point(|one| one.time <= end);
            if let Some(&last) = at.checked_sub(1).map(|at| &self.ends[at])
                && last.time > begin
            {
                self.add_wait(call, last.moment, EdgeKind::InferredWait);
            }
        }
    }
}

/// Whether the instruction is a node of a graph.
pub(in super::super) fn is_node(instruction: &Instruction<'_>) -> bool {
    let is_of_launch = || instruction.after.iter().any(|after| after.reason == AfterReason::Graph);
    match instruction.detail {
        InstructionDetail::Work { activity, .. } => {
            instruction.kind != InstructionKind::Graph && (activity.graph.0 != 0 || is_of_launch())
        }
        InstructionDetail::HostFunction { launch, .. } => launch.is_some(),
        _ => false,
    }
}

/// Whether the instruction is a graph launch whose nodes are separate instructions.
fn is_graph_of_nodes(instruction: &Instruction<'_>) -> bool {
    matches!(instruction.detail, InstructionDetail::Graph { .. })
}

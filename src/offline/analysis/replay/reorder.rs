//! Finds the order in which several threads make their calls after a run was edited.
//!
//! The dependencies between GPU operations depend on the order in which threads submit the operations. For example, a
//! wait for a CUDA event waits for the last record of the event that was submitted before the wait. Similarly, work on
//! the default stream waits for all work that was submitted earlier to blocking streams. So after an edit, the edges
//! that depend on the order of calls are derived again, in several rounds. The rounds end when the order of calls in
//! the schedule equals the order from which the schedule's edges were derived. After each round, the final position of
//! at least one further call is known.

use std::collections::BTreeMap;

use super::super::critical_path::graph::{Edge, EdgeKind, MomentId, MomentKind, sort_edges};
use super::super::critical_path::{NO_CALL, Trigger, is_node};
use super::super::instructions::{After, AfterReason, Instruction, InstructionDetail, InstructionKind};
use super::super::states::StreamKey;
use super::edited_edges::EditedEdges;
use super::schedule::Schedule;
use super::{Edit, Replay};
use gpuflame_model::record::{ContextId, EventId, IdMap, StreamId, SyncKind, ThreadId};

/// Maximum number of rounds of the search for an order. Random programs with 3 threads need up to 10 rounds.
const MAX_ROUNDS: usize = 100;
/// Id that CUPTI gives to the legacy default stream of a CUDA context.
const DEFAULT_STREAM: StreamId = StreamId(7);

/// A run after edits: its edges, and the schedule that follows from these edges.
#[derive(Debug)]
pub struct EditedRun {
    /// Times of all moments after the edits.
    pub schedule: Schedule,
    pub(super) edges: EditedEdges,
    /// Whether the order of calls in the schedule equals the order from which the edges were derived.
    pub(super) is_settled: bool,
}

impl Replay<'_> {
    /// Replays the run after applying all `edits` together, and finds the order of the calls after the edits.
    pub fn edit(&self, edits: &[Edit]) -> EditedRun {
        let mut edges = self.edit_in_order(edits);
        let mut schedule = Schedule::of(self.graph(), self.view(&edges), &|_, _| false);
        if !self.knows_order() {
            return EditedRun { schedule, edges, is_settled: true };
        }
        let mut order = self.issue_order(None);
        for _ in 0..MAX_ROUNDS {
            let next = self.issue_order(Some(&schedule));
            if next == order {
                return EditedRun { schedule, edges, is_settled: true };
            }
            order = next;
            let rederived = Rederived::new(self, &order);
            let base = rederived.edges();
            let own = self.edited_edges(base, edits, Some(&rederived.after));
            let found = Schedule::in_any_order(self.graph(), &own);
            edges = EditedEdges::Own(own);
            match found {
                Some(found) => schedule = found,
                None => break,
            }
        }
        EditedRun { schedule, edges, is_settled: false }
    }

    /// Whether the data suffices to derive the edges for any order of the calls. The run must have several threads, and
    /// the data must include the kinds of all streams, the records of all CUDA events, and the calls that wait for
    /// other threads.
    fn knows_order(&self) -> bool {
        *self.knows_order.get_or_init(|| self.finds_order())
    }

    fn finds_order(&self) -> bool {
        let graph = self.graph();
        let is_known = |number: u32| {
            let instruction = self.list.get(number);
            let has_event = match (instruction.kind, instruction.detail) {
                (InstructionKind::Record, InstructionDetail::Event { event }) => {
                    event.is_some_and(|event| event != EventId(0))
                }
                _ => true,
            };
            let has_kind = key_of(&instruction)
                .is_none_or(|(_, context, stream)| self.list.is_blocking(context, stream).is_some());
            has_event && has_kind && graph.call_of[number as usize] != NO_CALL
        };
        let has_threads = || graph.calls.windows(2).any(|two| two[0].thread != two[1].thread);
        graph.knows_threads && has_threads() && (0..self.list.len() as u32).all(is_known)
    }

    /// Returns the indexes of the instructions, sorted by the times at which their calls begin in `schedule`. If
    /// `schedule` is `None`, the recorded times are used.
    fn issue_order(&self, schedule: Option<&Schedule>) -> Vec<u32> {
        let graph = self.graph();
        let mut order: Vec<u32> = (0..self.list.len() as u32).collect();
        if let Some(schedule) = schedule {
            order.sort_by_key(|number| {
                let call = &graph.calls[graph.call_of[*number as usize] as usize];
                (schedule.time(call.moments.0 as usize), call.thread)
            });
        }
        order
    }
}

/// Dependencies that the instructions have if they are issued in the order `order` and not in the recorded order.
struct Rederived<'a> {
    replay: &'a Replay<'a>,
    order: &'a [u32],
    after: Vec<Vec<After>>,
}

/// The moments at which an instruction begins and ends.
type Span = (MomentId, MomentId);

const NOWHERE: Span = (u32::MAX, u32::MAX);

/// Whether edges of this kind depend on the order of host calls.
fn follows_order(kind: EdgeKind) -> bool {
    use EdgeKind::*;
    matches!(kind, Stream | Event | DefaultStream | SameGraph | Wait | Programmatic)
}

fn key_of(instruction: &Instruction<'_>) -> Option<StreamKey> {
    Some((instruction.device?, instruction.context?, instruction.stream?))
}

impl<'a> Rederived<'a> {
    fn new(replay: &'a Replay<'a>, order: &'a [u32]) -> Self {
        let threads: IdMap<ContextId, ThreadId> =
            replay.graph().calls.iter().map(|call| (call.context, call.thread)).collect();
        let after = replay.list.dependencies_in(order, &|context| threads.get(&context).copied());
        Self { replay, order, after }
    }

    /// Returns the edges that the run has if its calls are made in the order `order`.
    fn edges(&self) -> Vec<Edge> {
        let replay = self.replay;
        let mut known: BTreeMap<(u32, u32, EdgeKind), u64> = BTreeMap::new();
        let mut edges = Vec::with_capacity(replay.edges().len());
        for edge in replay.edges().iter() {
            match follows_order(edge.kind) && !self.is_within(&edge) {
                true => drop(known.insert((edge.from, edge.to, edge.kind), edge.lag)),
                false => edges.push(edge),
            }
        }
        let found = OrderedEdges::find(self);
        for mut edge in found {
            let lag = known.get(&(edge.from, edge.to, edge.kind)).copied();
            let typical = || replay.lags.typical(replay.graph(), replay.list, &edge);
            edge.lag = lag.or_else(typical).unwrap_or(edge.lag);
            edges.push(edge);
        }
        sort_edges(&mut edges, replay.graph().moments.len());
        edges
    }

    /// Whether an edge stays within one graph launch or within one copy call. An edge within a copy call leads from the
    /// copy to the return of the call that issued it.
    fn is_within(&self, edge: &Edge) -> bool {
        let moments = &self.replay.graph().moments;
        let (from, to) = (moments[edge.from as usize], moments[edge.to as usize]);
        let call_of = |instruction: u32| self.replay.graph().call_of[instruction as usize];
        match edge.kind {
            EdgeKind::Wait => call_of(from.instruction) == to.call,
            _ => is_node(&self.replay.list.get(to.instruction)),
        }
    }
}

/// Finds the edges that depend on the order of the calls.
struct OrderedEdges<'a> {
    rederived: &'a Rederived<'a>,
    /// For each instruction, the moments at which it begins and at which it is done.
    spans: Vec<Span>,
    /// For each stream, the moment at which its last work ends.
    last_work: BTreeMap<StreamKey, MomentId>,
    edges: Vec<Edge>,
}

impl<'a> OrderedEdges<'a> {
    fn find(rederived: &'a Rederived<'a>) -> Vec<Edge> {
        let replay = rederived.replay;
        let mut spans = vec![NOWHERE; replay.list.len()];
        for (at, moment) in (0_u32..).zip(replay.moments()).filter(|(_, moment)| moment.call == NO_CALL) {
            let span = &mut spans[moment.instruction as usize];
            match moment.kind {
                MomentKind::Begin => span.0 = at,
                MomentKind::End | MomentKind::GraphEnd => span.1 = at,
                MomentKind::Reached => {
                    span.0 = at;
                    span.1 = if span.1 == u32::MAX { at } else { span.1 };
                }
                MomentKind::CallBegin | MomentKind::CallEnd | MomentKind::Arrived => {}
            }
        }
        let mut all = Self { rederived, spans, last_work: BTreeMap::new(), edges: Vec::new() };
        rederived.order.iter().for_each(|number| all.add(*number));
        all.edges
    }

    fn add(&mut self, number: u32) {
        let instruction = self.rederived.replay.list.get(number);
        if is_node(&instruction) {
            return;
        }
        if instruction.kind == InstructionKind::Synchronize {
            return self.add_host_wait(&instruction);
        }
        let (begin, end) = self.spans[number as usize];
        if begin == u32::MAX {
            return;
        }
        let is_work = !matches!(
            instruction.kind,
            InstructionKind::Record | InstructionKind::Wait | InstructionKind::Graph
        );
        for after in self.rederived.after[number as usize].clone() {
            let kind = match after.reason {
                AfterReason::Stream if is_work => {
                    self.add_stream_edge(&instruction, after.number);
                    continue;
                }
                AfterReason::Stream => EdgeKind::Stream,
                AfterReason::Event => EdgeKind::Event,
                AfterReason::SameGraph => EdgeKind::SameGraph,
                AfterReason::Graph | AfterReason::GraphEdge | AfterReason::Context => continue,
            };
            self.push(self.spans[after.number as usize].1, begin, kind, 0);
        }
        for implied in self.default_stream_ends(&instruction) {
            self.push(implied, begin, EdgeKind::DefaultStream, 0);
        }
        if instruction.kind != InstructionKind::Record {
            self.note_last_work(&instruction, end);
        }
    }

    fn push(&mut self, from: MomentId, to: MomentId, kind: EdgeKind, lag: u64) {
        if from != u32::MAX && to != u32::MAX {
            self.edges.push(Edge { from, to, kind, lag });
        }
    }

    /// Adds the edges to `instruction` from the previous instruction of its stream. If `before` is an event record, the
    /// nearest earlier instruction that is not an event record is used instead.
    fn add_stream_edge(&mut self, instruction: &Instruction<'_>, mut before: u32) {
        let replay = self.rederived.replay;
        while replay.list.kind(before) == InstructionKind::Record {
            let mut earlier = self.rederived.after[before as usize].iter();
            match earlier.find(|after| after.reason == AfterReason::Stream) {
                Some(after) => before = after.number,
                None => break,
            }
        }
        let (first, second) = (self.spans[before as usize], self.spans[instruction.number as usize]);
        let kernel = replay.list.get(before);
        let times = replay.graph().kernels.times(&kernel);
        let may_overlap = kernel.kind == InstructionKind::Kernel && instruction.programmatic == Some(true);
        match times.trigger.filter(|_| may_overlap) {
            Some(Trigger::After(lag)) => {
                let own = replay.graph().kernels.times(instruction);
                self.push(first.0, second.0, EdgeKind::Programmatic, lag);
                let tail = own.tail.or(own.duration).unwrap_or(0);
                self.push(first.1, second.1, EdgeKind::Stream, tail);
            }
            _ => self.push(first.1, second.0, EdgeKind::Stream, 0),
        }
    }

    fn add_host_wait(&mut self, instruction: &Instruction<'_>) {
        let graph = self.rederived.replay.graph();
        let call = graph.call_of[instruction.number as usize];
        let InstructionDetail::Synchronize { waits_for, .. } = instruction.detail else { return };
        if !graph.waiting.contains(&call) || waits_for.is_none() {
            return;
        }
        let returned = graph.calls[call as usize].moments.1;
        for after in self.rederived.after[instruction.number as usize].clone() {
            self.push(self.spans[after.number as usize].1, returned, EdgeKind::Wait, 0);
        }
        if waits_for == Some(SyncKind::STREAM) {
            for implied in self.default_stream_ends(instruction) {
                self.push(implied, returned, EdgeKind::Wait, 0);
            }
        }
    }

    /// Returns the ends of the work for which an instruction waits because of the rule of default streams.
    fn default_stream_ends(&self, instruction: &Instruction<'_>) -> Vec<MomentId> {
        let list = self.rederived.replay.list;
        let Some(key) = key_of(instruction) else { return Vec::new() };
        let blocks = |key: &StreamKey| list.is_blocking(key.1, key.2) == Some(true);
        let default: StreamKey = (key.0, key.1, DEFAULT_STREAM);
        match key == default {
            true => {
                let others =
                    self.last_work.range((key.0, key.1, StreamId(0))..=(key.0, key.1, StreamId(u32::MAX)));
                let others = others.filter(|(other, _)| **other != key && blocks(other));
                others.map(|(_, end)| *end).collect()
            }
            false if blocks(&key) => self.last_work.get(&default).copied().into_iter().collect(),
            false => Vec::new(),
        }
    }

    fn note_last_work(&mut self, instruction: &Instruction<'_>, end: MomentId) {
        match instruction.detail {
            InstructionDetail::Graph { streams: Some(streams), .. } => {
                self.last_work.extend(streams.iter().map(|stream| (*stream, end)));
            }
            _ => self.last_work.extend(key_of(instruction).map(|key| (key, end))),
        }
    }
}

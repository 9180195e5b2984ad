//! Defines the edits of a run, which are changes to GPU work, calls and streams.

use std::collections::{BTreeMap, HashSet};

use super::super::critical_path::NO_CALL;
use super::super::critical_path::graph::{Edge, EdgeKind, MomentKind, sort_edges};
use super::super::instructions::{After, AfterReason, InstructionKind, InstructionList};
use super::edited_edges::LagsMut;
use super::{Replay, is_wait};
use gpuflame_model::record::{IdMap, ThreadId};

/// Two launches become one graph launch only if the host code between them takes at most this many ns. A launch call is
/// replaced by a graph launch only if it does not last longer than this maximum. A launch from Python takes up to a few
/// hundred microseconds. If host code takes longer between launches, the program also does work that a graph does not
/// save, for example loading data or modules. The findings about lost time call a longer duration between launches a
/// pause.
const MAX_CAPTURED_GAP_NS: u64 = 500_000;

/// Set of selected instructions or calls, given by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection(Vec<bool>);

impl Selection {
    /// Selects the indexes below `count` for which `is_selected` returns true.
    pub fn new(count: usize, is_selected: impl FnMut(u32) -> bool) -> Self {
        Self((0..count as u32).map(is_selected).collect())
    }

    /// Whether the index `number` is selected.
    pub fn has(&self, number: u32) -> bool {
        self.0.get(number as usize).copied().unwrap_or(false)
    }

    /// Returns the number of selected instructions or calls.
    pub fn count(&self) -> usize {
        self.0.iter().filter(|is_selected| **is_selected).count()
    }
}

/// A change to a run. A replay predicts the effect of the change.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// The durations of the selected GPU work are multiplied by a factor.
    Scale {
        /// Selected instructions.
        work: Selection,
        /// Factor for the durations.
        factor: f64,
    },
    /// The selected GPU work is removed. A launch call is removed too if all work that it launched is selected.
    Remove {
        /// Selected instructions.
        work: Selection,
    },
    /// Each call that launches GPU work and does not wait gets the given duration, in ns.
    LaunchNanos(u64),
    /// Consecutive launches of a thread without a wait between them become one graph launch. Launches on different
    /// sides of a bound, for example the start of a step, do not become one graph.
    Graphs {
        /// Bounds in ns since 1970, sorted.
        bounds: Vec<u64>,
    },
    /// Each stream is divided into lanes, which run like separate streams. Work in one lane does not wait for earlier
    /// work in the other lanes of the stream. The lanes meet again at the next event record, event wait or wait of the
    /// host.
    Streams {
        /// Lane of each instruction, indexed by instruction. Lane 0 is the stream itself.
        lanes: Vec<u8>,
    },
    /// Streams no longer wait for CUDA events that were recorded after selected work, and the rule of default streams
    /// no longer makes streams wait for selected work.
    NoEvents {
        /// Selected instructions.
        work: Selection,
    },
    /// The selected calls no longer wait. If a selected call does nothing but wait, it is removed.
    NoWaits {
        /// Selected calls.
        calls: Selection,
    },
    /// The durations of selected calls, and given parts of the times before calls, are multiplied by a factor. Waits in
    /// the selected calls do not count as host time and keep their durations.
    ScaleHost {
        /// Selected calls.
        calls: Selection,
        /// Part in ns, of the time between the thread's previous call and a call, that is multiplied. The map is keyed
        /// by the position of the later call.
        before: IdMap<u32, u64>,
        /// Factor for the durations.
        factor: f64,
    },
}

impl Edit {
    /// Sets the factor of an edit, if the edit has a factor.
    pub fn set_factor(&mut self, new: f64) {
        if let Self::Scale { factor, .. } | Self::ScaleHost { factor, .. } = self {
            *factor = new;
        }
    }
}

/// Returns `nanos` times a factor, rounded to the nearest integer.
pub(super) fn scaled(nanos: u64, factor: f64) -> u64 {
    (nanos as f64 * factor).round() as u64
}

impl Replay<'_> {
    /// Returns the edges after all edits. If the instructions are not in the recorded order, `after` contains the
    /// dependencies that they have in their order.
    pub(super) fn edited_edges(
        &self,
        mut edges: Vec<Edge>,
        edits: &[Edit],
        after: Option<&[Vec<After>]>,
    ) -> Vec<Edge> {
        for edit in edits {
            match edit {
                Edit::Scale { work, factor } => self.scale(&mut LagsMut::Edges(&mut edges), work, *factor),
                Edit::Remove { work } => self.remove(&mut edges, work, after),
                Edit::LaunchNanos(nanos) => self.set_launch_time(&mut LagsMut::Edges(&mut edges), *nanos),
                Edit::Graphs { bounds } => self.join_launches(&mut edges, bounds),
                Edit::Streams { lanes } => self.move_streams(&mut edges, lanes),
                Edit::NoEvents { work } => self.drop_events(&mut edges, work),
                Edit::NoWaits { calls } => self.drop_waits(&mut edges, calls),
                Edit::ScaleHost { calls, before, factor } => {
                    self.scale_host(&mut LagsMut::Edges(&mut edges), calls, before, *factor)
                }
            }
        }
        sort_edges(&mut edges, self.graph().moments.len());
        edges
    }

    fn instruction_of(&self, moment: u32) -> u32 {
        self.graph().moments[moment as usize].instruction
    }

    fn call_of(&self, moment: u32) -> u32 {
        self.graph().moments[moment as usize].call
    }

    pub(super) fn scale(&self, edges: &mut LagsMut<'_>, work: &Selection, factor: f64) {
        // Old and new durations of changed kernels that overlap another kernel. A kernel overlaps another kernel if it
        // lets the other kernel begin before its own end, or if it waits for the other kernel while it runs.
        let mut changed: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        edges.each(|edge| {
            let instruction = self.instruction_of(edge.to);
            if edge.kind != EdgeKind::Work || !work.has(instruction) {
                return;
            }
            let old = edge.lag;
            edge.lag = scaled(old, factor);
            if self.overlapping.has(instruction) {
                changed.insert(instruction, (old, edge.lag));
            }
        });
        if !changed.is_empty() {
            self.change_overlaps(edges, &changed);
        }
    }

    /// Returns the calls that launch GPU work. Each call has two counts: the number of GPU instructions that it issued,
    /// and the number of selected instructions among them.
    fn launching_calls(&self, work: Option<&Selection>) -> IdMap<u32, (u32, u32)> {
        let mut calls: IdMap<u32, (u32, u32)> = IdMap::default();
        for edge in self.edges().iter().filter(|edge| edge.kind == EdgeKind::Launch) {
            let to = self.graph().moments[edge.to as usize];
            let kind = self.list.kind(to.instruction);
            if matches!(kind, InstructionKind::Record | InstructionKind::Wait | InstructionKind::HostFunction)
            {
                continue;
            }
            let (all, selected) = calls.entry(self.call_of(edge.from)).or_default();
            *all += 1;
            *selected += u32::from(work.is_some_and(|work| work.has(to.instruction)));
        }
        calls
    }

    fn remove(&self, edges: &mut Vec<Edge>, work: &Selection, after: Option<&[Vec<After>]>) {
        let calls = self.launching_calls(Some(work));
        let is_left_out = |call: u32| calls.get(&call).is_some_and(|(all, selected)| all == selected);
        edges.retain(|edge| !(is_wait(edge.kind) && is_left_out(self.call_of(edge.to))));
        // Removed work is never submitted, so it does not wait for other streams.
        edges.retain(|edge| edge.kind != EdgeKind::DefaultStream || !work.has(self.instruction_of(edge.to)));
        for edge in edges.iter_mut() {
            let to = self.graph().moments[edge.to as usize];
            let is_gone = match edge.kind {
                EdgeKind::Call => is_left_out(to.call) && self.call_of(edge.from) == to.call,
                EdgeKind::Host
                | EdgeKind::HandOff
                | EdgeKind::ThreadWait
                | EdgeKind::Wait
                | EdgeKind::InferredWait => false,
                _ => work.has(to.instruction) && to.call == NO_CALL,
            };
            if is_gone {
                edge.lag = 0;
            }
        }
        self.relink_overlaps(edges, work, after);
    }

    pub(super) fn set_launch_time(&self, edges: &mut LagsMut<'_>, nanos: u64) {
        let calls = self.launching_calls(None);
        let is_changed = |call: &u32| calls.contains_key(call) && !self.unwaited.contains_key(call);
        self.set_call_times(edges, &|call, _| is_changed(&call).then_some(nanos));
    }

    /// Changes the durations of calls. If the lag of a launch is measured from the end of the launch call, the time
    /// from this end to the launched work stays the same.
    fn set_call_times(&self, edges: &mut LagsMut<'_>, duration: &dyn Fn(u32, u64) -> Option<u64>) {
        edges.each(|edge| {
            let (from, to) = (self.call_of(edge.from), self.call_of(edge.to));
            match edge.kind {
                EdgeKind::Call if from == to => edge.lag = duration(to, edge.lag).unwrap_or(edge.lag),
                EdgeKind::Launch if self.lags.is_from_end(self.graph(), self.list, edge) => {
                    let call = &self.graph().calls[from as usize];
                    let old = call.end - call.begin;
                    if let Some(new) = duration(from, old) {
                        edge.lag = edge.lag.saturating_add(new).saturating_sub(old);
                    }
                }
                _ => {}
            }
        });
    }

    fn drop_waits(&self, edges: &mut Vec<Edge>, calls: &Selection) {
        let launching = self.launching_calls(None);
        edges.retain(|edge| !(is_wait(edge.kind) && calls.has(self.call_of(edge.to))));
        for edge in edges.iter_mut().filter(|edge| edge.kind == EdgeKind::Call) {
            let (from, to) = (self.call_of(edge.from), self.call_of(edge.to));
            if from == to && calls.has(to) {
                let own = self.unwaited.get(&to).copied().unwrap_or(edge.lag);
                edge.lag = if launching.contains_key(&to) { edge.lag.min(own) } else { 0 };
            }
        }
    }

    pub(super) fn scale_host(
        &self,
        edges: &mut LagsMut<'_>,
        calls: &Selection,
        before: &IdMap<u32, u64>,
        factor: f64,
    ) {
        edges.each(|edge| {
            let (from, to) = (self.call_of(edge.from), self.graph().moments[edge.to as usize]);
            let is_between = edge.kind == EdgeKind::Host && to.kind == MomentKind::CallBegin;
            // The `Call` edge of a waiting call has the duration that the call would have without its wait.
            let is_own =
                edge.kind == EdgeKind::Call && from == to.call && self.unwaited.contains_key(&to.call);
            if is_between && let Some(nanos) = before.get(&to.call) {
                let nanos = edge.lag.min(*nanos);
                edge.lag = edge.lag - nanos + scaled(nanos, factor);
            } else if is_own && calls.has(to.call) {
                edge.lag = scaled(edge.lag, factor);
            }
        });
        let is_changed = |call: u32| calls.has(call) && !self.unwaited.contains_key(&call);
        self.set_call_times(edges, &|call, old| is_changed(call).then(|| scaled(old, factor)));
    }

    fn drop_events(&self, edges: &mut Vec<Edge>, work: &Selection) {
        let follows = |record: u32| {
            let before = self.list.get(record).after.iter().find(|after| after.reason == AfterReason::Stream);
            before.is_some_and(|before| work.has(before.number))
        };
        edges.retain(|edge| match edge.kind {
            EdgeKind::Event => !follows(self.instruction_of(edge.from)),
            EdgeKind::DefaultStream | EdgeKind::InferredEvent => !work.has(self.instruction_of(edge.from)),
            _ => true,
        });
    }

    /// Returns groups of calls that could become one graph. A group consists of calls on one thread that launch work,
    /// or that record or wait for a CUDA event on a stream. Between two calls of a group, the thread makes no call
    /// outside the group and no wait, the host code is short, and there is no bound.
    fn capturable(&self, bounds: &[u64]) -> Vec<Vec<u32>> {
        let graph = self.graph();
        let mut issued: HashSet<u32> = self.launching_calls(None).into_keys().collect();
        issued.retain(|call| !self.unwaited.contains_key(call));
        let launching = issued.clone();
        let is_graph = |edge: &Edge| self.list.kind(self.instruction_of(edge.to)) == InstructionKind::Graph;
        for edge in self.edges().iter().filter(|edge| edge.kind == EdgeKind::Launch) {
            match is_graph(&edge) {
                true => issued.remove(&self.call_of(edge.from)),
                false => issued.insert(self.call_of(edge.from)),
            };
        }
        issued.retain(|call| !self.unwaited.contains_key(call));
        let mut open: BTreeMap<ThreadId, Vec<u32>> = BTreeMap::new();
        let mut groups = Vec::new();
        let mut bounds = bounds.iter().peekable();
        let begins = graph.moments.iter().filter(|moment| moment.kind == MomentKind::CallBegin);
        for moment in begins {
            while bounds.next_if(|bound| **bound <= moment.time).is_some() {
                groups.extend(std::mem::take(&mut open).into_values());
            }
            let call = &graph.calls[moment.call as usize];
            let group = open.entry(call.thread).or_default();
            let idle = group.last().map_or(0, |last| {
                moment.time.saturating_sub(graph.time(graph.calls[*last as usize].moments.1))
            });
            let own = graph.time(call.moments.1).saturating_sub(moment.time);
            if idle.max(own) > MAX_CAPTURED_GAP_NS {
                groups.push(std::mem::take(group));
            }
            match issued.contains(&moment.call) {
                true => group.push(moment.call),
                false => groups.push(std::mem::take(group)),
            }
        }
        groups.extend(open.into_values());
        groups.retain(|group| group.iter().filter(|call| launching.contains(call)).count() > 1);
        groups
    }

    fn join_launches(&self, edges: &mut [Edge], bounds: &[u64]) {
        // First call of each group, keyed by every call of the group.
        let mut first_of: BTreeMap<u32, u32> = BTreeMap::new();
        for group in self.capturable(bounds) {
            first_of.extend(group.iter().map(|call| (*call, group[0])));
        }
        for edge in edges {
            let (from, to) = (self.call_of(edge.from), self.call_of(edge.to));
            let (group, same) = (first_of.get(&from).copied(), first_of.get(&to) == first_of.get(&from));
            let Some(first) = group else { continue };
            match edge.kind {
                EdgeKind::Host if same => edge.lag = 0,
                EdgeKind::Call if same && to != first => edge.lag = 0,
                EdgeKind::Launch if from != first => {
                    let typical = self.lags.typical(self.graph(), self.list, edge);
                    edge.lag = typical.unwrap_or(edge.lag).min(edge.lag);
                    edge.from = self.graph().calls[first as usize].moments.0;
                }
                _ => {}
            }
        }
    }

    fn move_streams(&self, edges: &mut Vec<Edge>, lanes: &[u8]) {
        let places = Places::new(self, lanes);
        let gap = self.lags.gap();
        let mut added = Vec::new();
        for edge in edges.iter_mut() {
            let (cause, effect) = (self.instruction_of(edge.from), self.instruction_of(edge.to));
            let is_call = self.call_of(edge.to) != NO_CALL;
            match edge.kind {
                EdgeKind::Stream | EdgeKind::Programmatic if !is_call && places.is_marker(effect) => {
                    let others = places.last_of_lanes(cause).into_iter().filter(|other| *other != cause);
                    added.extend(others.map(|other| Edge {
                        from: places.ends[other as usize],
                        lag: 0,
                        ..*edge
                    }));
                }
                EdgeKind::Stream | EdgeKind::Programmatic if !is_call && !places.belong(cause, effect) => {
                    let is_end = self.graph().moments[edge.to as usize].kind == MomentKind::End;
                    match places.before(effect).filter(|_| !is_end) {
                        Some(before) => {
                            (edge.from, edge.kind, edge.lag) =
                                (places.ends[before as usize], EdgeKind::Stream, gap);
                        }
                        // The lane of this work contains no earlier work, so only the launch decides when the work
                        // begins.
                        None => edge.from = u32::MAX,
                    }
                }
                EdgeKind::Wait | EdgeKind::InferredWait => {
                    let others = places.last_of_lanes(cause).into_iter().filter(|other| *other != cause);
                    added.extend(others.map(|other| Edge {
                        from: places.ends[other as usize],
                        lag: edge.lag,
                        ..*edge
                    }));
                }
                _ => {}
            }
        }
        edges.append(&mut added);
        edges.retain(|edge| edge.from < edge.to);
    }
}

/// Finds the previous work of an instruction within its lane of the stream.
struct Places<'a> {
    list: &'a InstructionList,
    lanes: &'a [u8],
    /// For each instruction, the moment at which the instruction has ended.
    ends: Vec<u32>,
}

impl<'a> Places<'a> {
    fn new(replay: &Replay<'a>, lanes: &'a [u8]) -> Self {
        let mut ends = vec![u32::MAX; replay.list.len()];
        for (at, moment) in (0_u32..).zip(&replay.graph().moments) {
            let is_end = matches!(moment.kind, MomentKind::End | MomentKind::GraphEnd);
            let end = &mut ends[moment.instruction as usize];
            if is_end || (moment.kind == MomentKind::Reached && *end == u32::MAX) {
                *end = at;
            }
        }
        Self { list: replay.list, lanes, ends }
    }

    fn lane(&self, instruction: u32) -> u8 {
        self.lanes.get(instruction as usize).copied().unwrap_or(0)
    }

    /// Whether all lanes of a stream meet at this instruction.
    fn is_marker(&self, instruction: u32) -> bool {
        let kind = self.list.kind(instruction);
        matches!(kind, InstructionKind::Record | InstructionKind::Wait | InstructionKind::Synchronize)
    }

    fn belong(&self, cause: u32, effect: u32) -> bool {
        self.is_marker(cause) || self.lane(cause) == self.lane(effect)
    }

    fn chain(&self, instruction: u32) -> Option<u32> {
        let after = self.list.get(instruction).after.iter().find(|after| after.reason == AfterReason::Stream);
        after.map(|after| after.number)
    }

    /// Returns the previous instruction in the same lane of the stream.
    fn before(&self, instruction: u32) -> Option<u32> {
        let mut at = self.chain(instruction)?;
        while !self.belong(at, instruction) {
            at = self.chain(at)?;
        }
        (self.ends[at as usize] != u32::MAX).then_some(at)
    }

    /// For each lane, returns the last work up to an instruction. The search goes back from this instruction to the
    /// nearest instruction at which all lanes meet.
    fn last_of_lanes(&self, instruction: u32) -> Vec<u32> {
        let (mut seen, mut found, mut at) = (HashSet::new(), Vec::new(), Some(instruction));
        // The search also ends when it has found the last work of every lane.
        while let Some(one) = at.filter(|one| !self.is_marker(*one)) {
            if seen.insert(self.lane(one)) && self.ends[one as usize] != u32::MAX {
                found.push(one);
            }
            if seen.len() > usize::from(self.lanes.iter().copied().max().unwrap_or(0)) {
                break;
            }
            at = self.chain(one);
        }
        found
    }
}

//! Replays a run: computes the times of its calls and its GPU work from the dependency graph alone.
//!
//! ```text
//! recorded   launch |- 5 us -| gemm 40 us |- 1 us -| relu 10 us |
//! replayed   gemm begins 5 us after its launch; relu 1 us after gemm, or 5 us after its own launch if that is later
//! what if    gemm takes 20 us: relu begins 20 us earlier, unless its own launch is the later one now
//! ```
//!
//! Each edge gives a time for its later moment: the time of its earlier moment plus the lag of the edge. If several
//! edges lead to a moment, the moment comes at the latest of the times that they give. The edge that decided the
//! recorded time of a moment keeps its recorded lag, so a replay without edits returns the recorded times. Each edge
//! that did not decide a recorded time has a lag that is typical for the run ([`Lags`]).
//!
//! A replay executes no calls and no GPU work. The replay assumes that overlapping operations do not slow each other
//! down.

mod checks;
mod edited_edges;
mod edits;
mod explained;
mod guesses;
mod host_times;
mod lags;
mod overlaps;
mod reliance;
mod reorder;
mod schedule;

pub use checks::ReplayCheck;
pub use edits::{Edit, Selection};
pub use explained::ExplainedStarts;
pub use host_times::HostTime;
pub use lags::{LagRow, Lags, LaunchAnchor};
pub use reliance::Reliance;
pub use schedule::{ReplayedWork, Schedule};

pub use reorder::EditedRun;

use std::sync::OnceLock;

use super::critical_path::graph::{Edge, EdgeKind, Graph, MomentKind};
use super::critical_path::{
    Causes, CriticalPath, EdgesView, Moment, PathPart, TimedGraph, each_part_in_order, is_cuda_call,
};
use super::instructions::{InstructionKind, InstructionList};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::IdMap;

/// A run that can be replayed.
#[derive(Debug)]
pub struct Replay<'a> {
    path: &'a CriticalPath,
    list: &'a InstructionList,
    lags: Lags,
    /// Lag of each edge in the dependency graph, indexed by the position of the edge.
    edge_lags: Vec<u64>,
    /// Duration that each waiting call would have without its wait, keyed by the position of the call. The duration is
    /// taken from the shortest call to the same function that did not wait.
    unwaited: IdMap<u32, u64>,
    /// Kernels that let the next kernel begin before their own end, or that wait for the previous kernel while they
    /// run.
    overlapping: Selection,
    /// Whether the data suffices to derive the edges for any order of the calls. The flag is computed when it is first
    /// used.
    knows_order: OnceLock<bool>,
}

impl<'a> Replay<'a> {
    /// Prepares a run for replays. Typical lags are computed from the whole run.
    pub fn new(path: &'a CriticalPath, list: &'a InstructionList, profile: &Profile) -> Self {
        Self::fitted(path, list, profile, u64::MAX)
    }

    /// Prepares a run for replays. Typical lags are computed from the moments up to the time `until`, in ns since 1970.
    pub fn fitted(path: &'a CriticalPath, list: &'a InstructionList, profile: &Profile, until: u64) -> Self {
        let lags = Lags::fit(path, list, profile, until);
        let edge_lags = keep_recorded(path, list, &lags);
        let (unwaited, overlapping) = (IdMap::default(), Selection::default());
        let mut replay =
            Self { path, list, lags, edge_lags, unwaited, overlapping, knows_order: OnceLock::new() };
        replay.unwaited = replay.find_unwaited();
        replay.overlapping = replay.find_overlapping();
        replay
    }

    fn find_overlapping(&self) -> Selection {
        let instruction = |moment: u32| self.moments()[moment as usize].instruction;
        let programmatic = self.edges().iter().filter(|edge| edge.kind == EdgeKind::Programmatic);
        let both = programmatic.flat_map(|edge| [edge.from, edge.to]).map(instruction);
        let numbers: std::collections::BTreeSet<u32> = both.collect();
        match numbers.last() {
            Some(last) => Selection::new(*last as usize + 1, |number| numbers.contains(&number)),
            None => Selection::default(),
        }
    }

    /// Finds the durations that calls would have without their waits. A waiting call would last as long as the shortest
    /// call to the same function that did not wait.
    fn find_unwaited(&self) -> IdMap<u32, u64> {
        let calls = &self.graph().calls;
        let mut waited = vec![false; calls.len()];
        for edge in self.edges().iter().filter(|edge| is_wait(edge.kind)) {
            waited[self.graph().moments[edge.to as usize].call as usize] = true;
        }
        let (functions, names) = self.lags.functions();
        let mut shortest = vec![u64::MAX; names.len()];
        for ((call, function), _) in calls.iter().zip(functions).zip(&waited).filter(|(_, waited)| !**waited)
        {
            let known = &mut shortest[*function as usize];
            *known = (call.end - call.begin).min(*known);
        }
        let known = |nanos: u64| Some(nanos).filter(|nanos| *nanos != u64::MAX);
        let of_cuda = names.iter().zip(&shortest).filter(|(name, _)| is_cuda_call(name));
        let of_all = of_cuda.filter_map(|(_, nanos)| known(*nanos)).min().unwrap_or(0);
        let of_call = |function: u32| known(shortest[function as usize]).unwrap_or(of_all);
        let all = (0_u32..).zip(functions).zip(&waited).filter(|(_, waited)| **waited);
        all.map(|((at, function), _)| (at, of_call(*function))).collect()
    }

    fn graph(&self) -> &'a Graph {
        self.path.graph().0
    }

    /// Returns the edges of the dependency graph with the lags for replays, sorted by `to`.
    fn edges(&self) -> EdgesView<'_> {
        EdgesView::with_lags(self.path.graph().1, &self.edge_lags)
    }

    /// Returns the typical lags of the run.
    pub fn lags(&self) -> &Lags {
        &self.lags
    }

    /// Returns the moments of the run, sorted by recorded time. A [`Schedule`] contains a replayed time for each of
    /// these moments.
    pub fn moments(&self) -> &'a [Moment] {
        &self.graph().moments
    }

    /// Returns the critical path of the recorded run.
    pub fn path(&self) -> &'a CriticalPath {
        self.path
    }

    /// Returns the index of the API function that the call at position `call` called. All calls to one function have
    /// the same index.
    pub fn function(&self, call: u32) -> Option<u32> {
        self.lags.functions().0.get(call as usize).copied()
    }

    /// Replays the run without changes. All replayed times equal the recorded times. The function
    /// [`check`](Self::check) verifies that replayed and recorded times are equal.
    pub fn identity(&self) -> Schedule {
        Schedule::of(self.graph(), self.edges(), &|_, _| false)
    }

    /// Replays the run, and replaces recorded lags by typical lags. Moments for which `is_fixed` returns true keep
    /// their recorded times. The durations of GPU work and calls, and the times between calls, stay the same.
    pub fn model(&self, is_fixed: &dyn Fn(usize, &Moment) -> bool) -> Schedule {
        let graph = self.graph();
        let lag = |edge: Edge| {
            if let Some(typical) = self.lags.typical(graph, self.list, &edge) {
                return typical;
            }
            let call = graph.moments[edge.to as usize].call;
            let shortest = self.unwaited.get(&call).filter(|_| edge.kind == EdgeKind::Call);
            shortest.map_or(edge.lag, |shortest| edge.lag.min(*shortest))
        };
        let lags: Vec<u64> = self.edges().iter().map(lag).collect();
        Schedule::of(graph, EdgesView::with_lags(self.path.graph().1, &lags), is_fixed)
    }

    /// Replays the run without edits. Moments for which `is_fixed` returns true keep their recorded times.
    pub fn partial(&self, is_fixed: &dyn Fn(usize, &Moment) -> bool) -> Schedule {
        Schedule::of(self.graph(), self.edges(), is_fixed)
    }

    /// Replays the run after applying all `edits` together.
    pub fn edited(&self, edits: &[Edit]) -> Schedule {
        self.edit(edits).schedule
    }

    /// Calls `each` with the parts of the critical path after edits, in order of time. In the parts of the path, calls
    /// are given by their positions in the recorded run.
    pub fn each_path_part(&self, edited: &EditedRun, each: &mut dyn FnMut(&PathPart)) {
        let EditedRun { schedule, edges, .. } = edited;
        let graph = TimedGraph::with_times(self.graph(), schedule.times());
        let place = |moment| schedule.place(moment);
        each_part_in_order(graph, self.view(edges), &place, &Causes::new(self.list), each);
    }
}

/// Returns the lag of each edge. An edge that decided the time of a moment has its recorded lag, and every other edge
/// has its typical lag.
fn keep_recorded(path: &CriticalPath, list: &InstructionList, lags: &Lags) -> Vec<u64> {
    let (graph, edges) = path.graph();
    let mut all = Vec::with_capacity(edges.len());
    for of_moment in edges.chunk_by(|a, b| a.to == b.to) {
        let mut latest: Option<((u64, u64, bool), usize, u64)> = None;
        for edge in of_moment {
            let from = graph.time(edge.from);
            let recorded = graph.time(edge.to) - from;
            let typical = lags.typical(graph, list, edge);
            let lag = typical.map_or(edge.lag, |lag| lag.min(recorded));
            let key = (from.saturating_add(lag), from, edge.kind != EdgeKind::Host);
            if latest.is_none_or(|(known, ..)| key >= known) {
                latest = Some((key, all.len(), recorded));
            }
            all.push(lag);
        }
        if let Some((_, at, recorded)) = latest {
            all[at] = recorded;
        }
    }
    all
}

fn is_wait(kind: EdgeKind) -> bool {
    matches!(kind, EdgeKind::Wait | EdgeKind::InferredWait)
}

/// Whether a GPU operation or a whole graph begins at this moment.
fn is_start(moment: &Moment, list: &InstructionList) -> bool {
    match moment.kind {
        MomentKind::Begin => true,
        MomentKind::Reached => list.kind(moment.instruction) == InstructionKind::Graph,
        _ => false,
    }
}

//! The critical path of a run, which is the chain of calls, waits and GPU work that decided when the run ended.
//!
//! ```text
//! host    |--call--|-- host --|-call-|                       |-return-|
//!                             |- launch -|                   ^
//! GPU                                    |### gemm ###|# relu #|
//! path    |  call  |   host   |  launch  |    gemm    |  relu  | wait |
//! ```
//!
//! The [`Graph`](graph::Graph) has a moment for the begin and the end of each host call and of each GPU operation. The
//! graph has an edge for each reason why one moment cannot come before another. The path is found backwards, beginning
//! at the last moment of the run. From each moment, the search continues along the edge that decided the moment's time.
//! So the durations of the path's parts add up exactly to the duration of the run.

mod build;
mod causes;
mod edges_view;
mod functions;
pub(super) mod graph;
mod host;
mod host_stacks;
mod inferred;
mod kernel_times;
mod lags;
mod path;
mod programmatic;
mod slack;
mod streams;
mod thread_order;
mod thread_waits;

pub use causes::Unexplained;
pub use graph::{Contradiction, Edge, EdgeKind, HostCall, Moment, MomentKind};
pub use host_stacks::host_stack_name;
pub(super) use path::each_part_in_order;
pub use path::{PathClass, PathPart, What};

use std::collections::BTreeSet;
use std::sync::OnceLock;

use super::host_history::HostHistory;
use super::instructions::InstructionList;
pub(super) use build::is_node;
use build::{Builder, Built};
pub(super) use causes::{Causes, InstructionFacts};
pub(super) use edges_view::{EdgesView, TimedGraph};
pub(super) use functions::Functions;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{ContextId, IdMap};
use graph::Graph;
pub(super) use graph::{MAX_LATENCY_NS, NO_CALL};
pub(super) use host::is_cuda_call;
use host_stacks::EachStack;
pub(super) use host_stacks::{HostStack, StackClasses};
pub(super) use kernel_times::{KernelTimes, Trigger};
pub(super) use lags::Submitted;

/// Denominator N of a share: no critical path is returned if the recorded times contradict more than 1/N of the edges.
const MAX_CONTRADICTED_PART: u64 = 20;
/// Maximum time in ns by which an effect may precede its cause according to the recorded times. Small contradictions
/// are normal, because GPU clocks are aligned with the host's clock only to within a few microseconds.
const CLOCK_ERROR_NS: u64 = 20_000;

/// The critical path of a run, and the time by which each GPU operation could have ended later.
#[derive(Debug)]
pub struct CriticalPath {
    graph: Graph,
    /// Number of sorted edges at the head of the graph's list of edges. The remaining edges, at the end of the list,
    /// were added for graph nodes whose edges are not recorded.
    sorted_edges: usize,
    /// For each moment, the position of the edge that decided its time.
    deciding: Vec<u32>,
    /// For each moment, the latest time that would not delay the end of the run. The latest time is correct only if the
    /// calls of all threads keep their order.
    latest: Vec<u64>,
    /// For each moment, the latest time that would neither delay the end of the run nor change the order of calls
    /// across threads. The list of latest times is empty if the order of calls limits no call.
    in_order: Vec<u64>,
    parts: Vec<PathPart>,
    savings: OnceLock<Savings>,
}

/// Saving in ns for each part of a path. The saving for a part is the time by which the run would be shorter if this
/// part took no time.
#[derive(Debug)]
pub struct Savings(IdMap<u32, u64>);

impl Savings {
    /// Returns the saving for a part, in ns.
    pub fn of(&self, part: &PathPart) -> u64 {
        let saving = part.edge.and_then(|edge| self.0.get(&edge)).copied().unwrap_or(0);
        saving.min(part.end - part.start)
    }
}

impl CriticalPath {
    /// Finds the critical path. Returns `None` if there are no moments.
    ///
    /// # Errors
    /// Fails if many effects precede their causes, and if one of them precedes its cause by more time than a clock
    /// error can explain. The returned error is the contradiction with the longest time difference.
    pub fn new(list: &InstructionList, profile: &Profile) -> Result<Option<Self>, Contradiction> {
        let path = Self::for_replay(list, profile)?;
        Ok(path.map(|path| path.with_slack(&Causes::new(list))))
    }

    /// Finds the critical path as [`new`](Self::new) does, but computes neither its parts nor slack, because replays do
    /// not need them.
    ///
    /// # Errors
    /// Fails in the cases in which [`new`](Self::new) fails.
    pub fn for_replay(list: &InstructionList, profile: &Profile) -> Result<Option<Self>, Contradiction> {
        let Built { mut graph, waits, thread_calls } = Builder::new(list, profile).build();
        let count = graph.edges.len() as u64;
        if let Some(worst) = graph.worst
            && worst.nanos > CLOCK_ERROR_NS
            && graph.contradicted > count / MAX_CONTRADICTED_PART
        {
            return Err(worst);
        }
        graph.sort_moments();
        if graph.moments.is_empty() {
            return Ok(None);
        }
        host::add_host_edges(&mut graph, &waits, profile);
        graph.order_limits = thread_order::order_limits(&graph, list, &thread_calls);
        Ok(Some(Self::of_graph(graph)))
    }

    /// Finds the critical path of a graph whose moments and edges are sorted. The instructions of the graph may come
    /// from several lists, for example one list per rank.
    pub(super) fn of_facts(graph: Graph, facts: &dyn InstructionFacts) -> Self {
        Self::of_graph(graph).with_slack(facts)
    }

    fn of_graph(mut graph: Graph) -> Self {
        let (sorted_edges, deciding) = (graph.edges.len(), slack::decide(&mut graph));
        Self {
            graph,
            sorted_edges,
            deciding,
            latest: Vec::new(),
            in_order: Vec::new(),
            parts: Vec::new(),
            savings: OnceLock::new(),
        }
    }

    fn with_slack(mut self, facts: &dyn InstructionFacts) -> Self {
        self.latest = slack::latest_times(&mut self.graph);
        self.in_order = slack::latest_times_in_order(&self.graph, &self.latest);
        self.parts = path::walk(&self.graph, &self.deciding, facts);
        self
    }

    /// Divides the parts of the path between two calls of a thread by the known stacks of the thread: each stack gets a
    /// part of its own.
    pub fn with_host_stacks(mut self, history: &HostHistory, profile: &Profile) -> Self {
        let mut classes = StackClasses::new(profile);
        let calls = &self.graph.calls;
        self.parts = host_stacks::divide(&self.parts, &mut |before, (from, to), add| {
            for (start, end, context) in history.during(calls[before as usize].thread, from, to) {
                if let Some(class) = classes.class(context) {
                    add(HostStack { span: (start, end), context, class });
                }
            }
        });
        self
    }

    /// For each thread, divides the times between successive calls by stack, and passes each of the resulting times to
    /// `each`. The arguments of `each` are the position of the later call, the stack if it is known, and the duration
    /// in ns.
    pub fn each_time_between(
        &self,
        history: &HostHistory,
        each: &mut dyn FnMut(u32, Option<ContextId>, u64),
    ) {
        for edge in &self.graph.edges[..self.sorted_edges] {
            let to = &self.graph.moments[edge.to as usize];
            if edge.kind != EdgeKind::Host || to.kind != MomentKind::CallBegin {
                continue;
            }
            let (from, thread) = (self.graph.time(edge.from), self.graph.calls[to.call as usize].thread);
            let mut unknown = to.time - from;
            for (start, end, context) in history.during(thread, from, to.time) {
                unknown -= end - start;
                each(to.call, Some(context), end - start);
            }
            if unknown > 0 {
                each(to.call, None, unknown);
            }
        }
    }

    /// Divides the parts of the path between two calls of a thread by the stacks that `each_stack` supplies: each stack
    /// gets a part of its own.
    pub(super) fn divide_host_time(&mut self, each_stack: &mut EachStack<'_>) {
        self.parts = host_stacks::divide(&self.parts, each_stack);
    }

    /// Returns the graph, and the part of its edges that is sorted by the later moment.
    pub(super) fn graph(&self) -> (&Graph, &[Edge]) {
        (&self.graph, &self.graph.edges[..self.sorted_edges])
    }

    /// Returns the start and end of the run, in ns since 1970.
    pub fn window(&self) -> (u64, u64) {
        let time = |moment: Option<&Moment>| moment.map_or(0, |moment| moment.time);
        (time(self.graph.moments.first()), time(self.graph.moments.last()))
    }

    /// Returns the parts of the path, in order of time. The parts of the path have no gaps and do not overlap.
    pub fn parts(&self) -> &[PathPart] {
        &self.parts
    }

    /// Returns the saving for each part of the path. The saving is the maximum time in ns by which the run would end
    /// earlier if this part took no time.
    pub fn savings(&self) -> &Savings {
        self.savings.get_or_init(|| {
            let path = path::edges_of_path(&self.graph, &self.deciding);
            let savings = slack::savings(&self.graph, &self.latest, &path);
            Savings(path.into_iter().zip(savings).collect())
        })
    }

    /// Returns the host calls of the run.
    pub fn calls(&self) -> &[HostCall] {
        &self.graph.calls
    }

    /// Returns the positions of the calls that wait for GPU work.
    pub fn waiting_calls(&self) -> &BTreeSet<u32> {
        &self.graph.waiting
    }

    /// Returns the moments of the graph, in order of time.
    pub fn moments(&self) -> &[Moment] {
        &self.graph.moments
    }

    /// Returns the edges of the graph, grouped by their later moment. Edges that were inferred for graph nodes are at
    /// the end of the returned list.
    pub fn edges(&self) -> &[Edge] {
        &self.graph.edges
    }

    /// Whether the edge at this position decided the time of its later moment.
    pub fn decided(&self, edge: usize) -> bool {
        let to = self.graph.edges[edge].to;
        self.deciding[to as usize] == edge as u32
    }

    /// Returns the edge that decided the time of a moment, or `None` if no edge decided it.
    pub fn deciding_edge(&self, moment: usize) -> Option<&Edge> {
        self.graph.edges.get(self.deciding[moment] as usize)
    }

    /// Returns the time in ns by which a moment could come later without delaying the end of the run.
    pub fn slack(&self, moment: usize) -> u64 {
        let latest = self.in_order.get(moment).unwrap_or(&self.latest[moment]);
        latest - self.graph.moments[moment].time
    }

    /// Whether the slack of a moment is reduced because a later time would change the order of calls of different
    /// threads.
    pub fn is_limited_by_order(&self, moment: usize) -> bool {
        self.in_order.get(moment).is_some_and(|latest| *latest < self.latest[moment])
    }

    /// Returns the number of edges that were omitted because the effect precedes the cause. Also returns the omitted
    /// edge whose effect precedes its cause by the longest time, if any edge was omitted.
    pub fn contradicted(&self) -> (u64, Option<Contradiction>) {
        (self.graph.contradicted, self.graph.worst)
    }

    /// Returns the number of GPU operations without times, which cannot be on the path.
    pub fn untimed(&self) -> u64 {
        self.graph.untimed
    }
}

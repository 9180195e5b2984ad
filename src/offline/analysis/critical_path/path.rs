//! Walks the critical path back from the end of the run, and finds the class of each part of the path.

use super::super::instructions::InstructionKind;
use super::causes::{InstructionFacts, Unexplained};
use super::edges_view::{EdgesView, TimedGraph};
use super::graph::{Edge, EdgeKind, Graph, MAX_LATENCY_NS, MomentId, MomentKind};
use super::slack::{NO_EDGE, earliest};
use gpuflame_model::record::ContextId;

/// Class of a part of the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathClass {
    /// A kernel runs.
    Kernel,
    /// A copy or a fill runs.
    Memory,
    /// The GPU runs a graph whose nodes are not recorded.
    Graph,
    /// A host function runs, which a stream or a graph node called.
    HostFunction,
    /// A call on the host runs.
    Call,
    /// Time from the end of GPU work to the return of the call that waited for this work.
    Return,
    /// A host thread runs between two of its calls.
    Host,
    /// Time from a call on one thread to a later call on another thread, which waited for the earlier call.
    HandOff,
    /// Time from the end of a launch call to the begin of the launched GPU work.
    Launch,
    /// Time from the end of a GPU operation to the begin of another GPU operation that waited for this end.
    Gap,
    /// Time that the recorded rows do not explain.
    Unexplained(Unexplained),
}

impl PathClass {
    /// Returns the class as a word for tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Memory => "memory",
            Self::Graph => "graph",
            Self::HostFunction => "host_function",
            Self::Call => "call",
            Self::Return => "return",
            Self::Host => "host",
            Self::HandOff => "hand_off",
            Self::Launch => "launch",
            Self::Gap => "gap",
            Self::Unexplained(_) => "unexplained",
        }
    }

    /// Returns the class as a label for pictures.
    pub fn label(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Memory => "copy or fill",
            Self::Graph => "graph",
            Self::HostFunction => "host function",
            Self::Call => "CUDA call",
            Self::Return => "return of a call that waited",
            Self::Host => "host between two calls",
            Self::HandOff => "hand-off between threads",
            Self::Launch => "launch latency",
            Self::Gap => "gap between work",
            Self::Unexplained(_) => "not explained",
        }
    }
}

/// Object that a part of the critical path belongs to. Calls are given as positions in
/// [`CriticalPath::calls`](super::CriticalPath::calls).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// The GPU work of an instruction, or the time before this work.
    Instruction(u32),
    /// A host call.
    Call(u32),
    /// The time between two calls of a thread.
    Between(u32, u32),
    /// Time between two calls for which a stack of the thread is recorded.
    Stack {
        /// Position of the call after which this time begins.
        after: u32,
        /// Position of the call at which this time ends.
        before: u32,
        /// Launch context (stack and API call) that contains the recorded stack.
        context: ContextId,
    },
    /// No recorded object, for parts of the path that belong to none.
    Nothing,
}

/// A part of the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathPart {
    /// Start of the part in ns since 1970.
    pub start: u64,
    /// End of the part in ns since 1970.
    pub end: u64,
    /// What happens in this part.
    pub class: PathClass,
    /// Object that the part belongs to.
    pub what: What,
    /// Reason why this part cannot begin before the previous part ends.
    pub reason: Option<EdgeKind>,
    /// Position of the part's edge in [`CriticalPath::edges`](super::CriticalPath::edges), or `None` for the time
    /// before the first edge.
    pub edge: Option<u32>,
}

/// Returns the positions of the critical path's edges, in order of time.
pub(super) fn edges_of_path(graph: &Graph, deciding: &[u32]) -> Vec<u32> {
    let mut edges = Vec::new();
    let mut at = graph.moments.len() as u32 - 1;
    while deciding[at as usize] != NO_EDGE {
        edges.push(deciding[at as usize]);
        at = graph.edges[deciding[at as usize] as usize].from;
    }
    edges.reverse();
    edges
}

/// Returns the parts of the critical path, sorted by time.
pub(super) fn walk(graph: &Graph, deciding: &[u32], facts: &dyn InstructionFacts) -> Vec<PathPart> {
    let path = edges_of_path(graph, deciding);
    let last = graph.moments.len() as u32 - 1;
    let mut parts = Vec::new();
    let view = (graph.into(), graph.edges.as_slice().into());
    each_part_of(view, &path, (graph.moments[0].time, last), facts, &mut |part| parts.push(*part));
    parts
}

/// Finds the critical path and calls `each` with its parts, in order of time. The moments need not be sorted by time,
/// but `edges` must be sorted by `to`. Every edge must lead to a moment whose `place` is larger than that of the edge's
/// first moment.
pub(in super::super) fn each_part_in_order(
    graph: TimedGraph<'_>,
    edges: EdgesView<'_>,
    place: &dyn Fn(MomentId) -> u32,
    facts: &dyn InstructionFacts,
    each: &mut dyn FnMut(&PathPart),
) {
    let (begin, last) = graph.bounds();
    let last = last.into_iter().max_by_key(|at| place(*at)).unwrap_or(0);
    let (mut path, mut at, mut near) = (Vec::new(), last, edges.len());
    loop {
        near = edges.first_to(at, near);
        let of_moment =
            (near..).map_while(|id| edges.get(id).filter(|edge| edge.to == at).map(|edge| (id, edge)));
        // If several edges have the same sort key, the edge from the moment with the largest place decides, as in a
        // sorted graph.
        let latest = of_moment.max_by_key(|(_, edge)| (earliest(graph, edge), place(edge.from)));
        let Some((id, edge)) = latest else { break };
        path.push(id as u32);
        at = edge.from;
    }
    path.reverse();
    each_part_of((graph, edges), &path, (begin, last), facts, each);
}

/// Calls `each` with the parts of a path whose edges are given by their positions. `begin` is the start of the run, and
/// `last` is the last moment of the path.
fn each_part_of(
    (graph, edges): (TimedGraph<'_>, EdgesView<'_>),
    path: &[u32],
    (begin, last): (u64, MomentId),
    facts: &dyn InstructionFacts,
    each: &mut dyn FnMut(&PathPart),
) {
    let edge = |at: u32| edges.get(at as usize);
    let at = path.first().and_then(|at| edge(*at)).map_or(last, |edge| edge.from);
    let mut walk = Walk { graph, facts, each, reason: None, at: None };
    let what = match graph.graph.moments[at as usize] {
        moment if moment.kind == MomentKind::CallBegin => What::Call(moment.call),
        moment => What::Instruction(moment.instruction),
    };
    let before = PathClass::Unexplained(Unexplained::BeforeRecords);
    walk.add((begin, graph.time(at)), before, what);
    for at in path {
        walk.at = Some(*at);
        edge(*at).into_iter().for_each(|edge| walk.edge(edge));
    }
}

struct Walk<'a> {
    graph: TimedGraph<'a>,
    facts: &'a dyn InstructionFacts,
    each: &'a mut dyn FnMut(&PathPart),
    /// Kind of the edges of zero length after the part that was passed to `each` last.
    reason: Option<EdgeKind>,
    /// Position of the edge that the loop currently visits.
    at: Option<u32>,
}

impl Walk<'_> {
    fn add(&mut self, (start, end): (u64, u64), class: PathClass, what: What) {
        if start < end {
            let reason = self.reason.take();
            (self.each)(&PathPart { start, end, class, what, reason, edge: self.at });
        }
    }

    fn edge(&mut self, edge: Edge) {
        let moment = |at: MomentId| self.graph.graph.moments[at as usize];
        let (from, to) = (moment(edge.from), moment(edge.to));
        let span = (self.graph.time(edge.from), self.graph.time(edge.to));
        if from.instruction != to.instruction || edge.kind == EdgeKind::Launch {
            self.reason = Some(edge.kind);
        }
        match edge.kind {
            EdgeKind::Work => self.work(span, to.instruction),
            EdgeKind::Call => {
                let call = if to.kind == MomentKind::CallEnd { to.call } else { from.call };
                self.add(span, PathClass::Call, What::Call(call));
            }
            EdgeKind::Host => self.add(span, PathClass::Host, What::Between(from.call, to.call)),
            EdgeKind::HandOff | EdgeKind::ThreadWait => {
                self.add(span, PathClass::HandOff, What::Between(from.call, to.call));
            }
            EdgeKind::Wait | EdgeKind::InferredWait => {
                self.add(span, PathClass::Return, What::Call(to.call));
            }
            EdgeKind::Launch => self.launch(span, from.call, to.instruction),
            EdgeKind::Programmatic => self.work(span, from.instruction),
            EdgeKind::Collective | EdgeKind::CollectiveTie => self.work(span, to.instruction),
            EdgeKind::Stream | EdgeKind::GraphEdge | EdgeKind::GraphNode if to.kind == MomentKind::End => {
                self.work(span, to.instruction);
            }
            // By a programmatic edge, a graph node may begin before the previous node has ended.
            EdgeKind::GraphNode if from.kind == MomentKind::Begin => self.work(span, from.instruction),
            _ => self.gap(span, to.instruction, edge.kind),
        }
    }

    fn work(&mut self, span: (u64, u64), instruction: u32) {
        let class = match self.facts.kind(instruction) {
            InstructionKind::Copy | InstructionKind::Fill => PathClass::Memory,
            InstructionKind::Graph => PathClass::Graph,
            InstructionKind::HostFunction => PathClass::HostFunction,
            _ => PathClass::Kernel,
        };
        self.add(span, class, What::Instruction(instruction));
    }

    fn launch(&mut self, (start, end): (u64, u64), call: u32, instruction: u32) {
        let returned = self.graph.call_end(call).clamp(start, end);
        self.add((start, returned), PathClass::Call, What::Call(call));
        let class = match end - returned > MAX_LATENCY_NS {
            true => PathClass::Unexplained(self.facts.cause(instruction, EdgeKind::Launch)),
            false => PathClass::Launch,
        };
        let what = What::Instruction(instruction);
        self.add((returned, end), class, what);
    }

    fn gap(&mut self, span: (u64, u64), instruction: u32, kind: EdgeKind) {
        let class = match span.1 - span.0 > MAX_LATENCY_NS {
            true => PathClass::Unexplained(self.facts.cause(instruction, kind)),
            false => PathClass::Gap,
        };
        self.add(span, class, What::Instruction(instruction));
    }
}

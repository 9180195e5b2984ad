//! Walks back from the end of the run, and finds the class of each part of the path.

use std::collections::HashSet;

use super::super::instructions::{
    AfterReason, Instruction, InstructionDetail, InstructionKind, InstructionList,
};
use super::graph::{Edge, EdgeKind, Graph, MomentKind};
use super::slack::{NO_EDGE, savings};
use gpuflame_model::record::{Missing, Work};

/// Maximum time in ns between the end of work and the begin of the next that the GPU's own scheduling explains, and from the
/// end of a call to the begin of its work. H100: 0.5 to 2 us, and 3 to 12 us.
pub(super) const MAX_LATENCY_NS: u64 = 20_000;

/// Class of a part of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathClass {
    /// A kernel runs.
    Kernel,
    /// A copy or a fill runs.
    Memory,
    /// A graph runs whose nodes are not recorded.
    Graph,
    /// A call of the host runs.
    Call,
    /// A call returns after the work that it waited for.
    Return,
    /// A thread runs between two calls.
    Host,
    /// From a call of one thread to the call of another that waited for it.
    HandOff,
    /// From the end of a call to the begin of its work.
    Launch,
    /// From the end of work to the begin of the work that waited for it.
    Gap,
    /// The records do not explain this time.
    Unexplained(Unexplained),
}

impl PathClass {
    /// Word for tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Memory => "memory",
            Self::Graph => "graph",
            Self::Call => "call",
            Self::Return => "return",
            Self::Host => "host",
            Self::HandOff => "hand_off",
            Self::Launch => "launch",
            Self::Gap => "gap",
            Self::Unexplained(_) => "unexplained",
        }
    }
}

/// Why a part of the path is not explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unexplained {
    /// Nothing is recorded before it that belongs to the path.
    BeforeRecords,
    /// The first work of a stream came late, perhaps because of work that is not recorded.
    EarlierWork,
    /// The launch of the work is not recorded.
    NoLaunch,
    /// The kernel runs for the first time, and may have to be loaded.
    FirstUse,
    /// The edges of the graph are not recorded.
    GraphEdges,
    /// Waits for events are not recorded.
    NoWaitRecords,
    /// All that is recorded was done before.
    Other,
}

impl Unexplained {
    /// Word for tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::BeforeRecords => "before_records",
            Self::EarlierWork => "earlier_work",
            Self::NoLaunch => "no_launch_record",
            Self::FirstUse => "first_use",
            Self::GraphEdges => "graph_edges",
            Self::NoWaitRecords => "no_wait_records",
            Self::Other => "not_recorded",
        }
    }
}

/// Object of a part of the path. Calls are positions in [`CriticalPath::calls`](super::CriticalPath::calls).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// The work of an instruction, or the time before it.
    Instruction(u32),
    /// A call.
    Call(u32),
    /// The time between two calls.
    Between(u32, u32),
    /// No recorded object.
    Nothing,
}

/// A part of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathPart {
    /// Start in ns since 1970.
    pub start: u64,
    /// End in ns since 1970.
    pub end: u64,
    /// Class.
    pub class: PathClass,
    /// Object.
    pub what: What,
    /// Why the part begins where the previous one ends.
    pub reason: Option<EdgeKind>,
    /// Time in ns by which the run would end earlier at most if the part took no time.
    pub saving: u64,
}

/// Returns the parts of the critical path, by time.
pub(super) fn walk(graph: &Graph, deciding: &[u32], latest: &[u64], list: &InstructionList) -> Vec<PathPart> {
    let mut edges = Vec::new();
    let mut at = graph.moments.len() as u32 - 1;
    while deciding[at as usize] != NO_EDGE {
        edges.push(deciding[at as usize]);
        at = graph.edges[deciding[at as usize] as usize].from;
    }
    edges.reverse();
    let savings = savings(graph, latest, &edges);
    let mut walk = Walk { graph, list, parts: Vec::new(), reason: None, facts: Facts::new(list) };
    let begin = graph.moments[0].time;
    let what = match graph.moments[at as usize] {
        moment if moment.kind == MomentKind::CallBegin => What::Call(moment.call),
        moment => What::Instruction(moment.instruction),
    };
    let before = PathClass::Unexplained(Unexplained::BeforeRecords);
    walk.add((begin, graph.time(at)), before, what, 0);
    for (edge, saving) in edges.iter().zip(savings) {
        walk.edge(graph.edges[*edge as usize], saving);
    }
    walk.parts
}

/// Facts about the run as a whole.
struct Facts {
    /// First instruction, by kernel.
    first_uses: HashSet<u32>,
    has_waits: bool,
}

impl Facts {
    fn new(list: &InstructionList) -> Self {
        let (mut known, mut first_uses, mut has_waits) = (HashSet::new(), HashSet::new(), false);
        for number in 0..list.len() as u32 {
            let instruction = list.get(number);
            has_waits |= matches!(instruction.kind, InstructionKind::Wait | InstructionKind::Record);
            if let InstructionDetail::Work { activity, .. } = instruction.detail
                && let Work::Kernel(name) = activity.work()
                && known.insert(name)
            {
                first_uses.insert(number);
            }
        }
        Self { first_uses, has_waits }
    }
}

fn has_predecessor(instruction: &Instruction<'_>) -> bool {
    instruction.after.iter().any(|after| after.reason == AfterReason::Stream)
}

struct Walk<'a> {
    graph: &'a Graph,
    list: &'a InstructionList,
    parts: Vec<PathPart>,
    /// Reason of edges without length since the last part.
    reason: Option<EdgeKind>,
    facts: Facts,
}

impl Walk<'_> {
    fn add(&mut self, (start, end): (u64, u64), class: PathClass, what: What, saving: u64) {
        if start < end {
            let reason = self.reason.take();
            self.parts.push(PathPart { start, end, class, what, reason, saving });
        }
    }

    fn edge(&mut self, edge: Edge, saving: u64) {
        let (from, to) = (self.graph.moments[edge.from as usize], self.graph.moments[edge.to as usize]);
        let span = (from.time, to.time);
        if from.instruction != to.instruction || edge.kind == EdgeKind::Launch {
            self.reason = Some(edge.kind);
        }
        match edge.kind {
            EdgeKind::Work => self.work(span, to.instruction, saving),
            EdgeKind::Call => {
                let call = if to.kind == MomentKind::CallEnd { to.call } else { from.call };
                self.add(span, PathClass::Call, What::Call(call), saving);
            }
            EdgeKind::Host => self.add(span, PathClass::Host, What::Between(from.call, to.call), saving),
            EdgeKind::HandOff => {
                self.add(span, PathClass::HandOff, What::Between(from.call, to.call), saving);
            }
            EdgeKind::Wait | EdgeKind::InferredWait => {
                self.add(span, PathClass::Return, What::Call(to.call), saving);
            }
            EdgeKind::Launch => self.launch(span, from.call, to.instruction, saving),
            EdgeKind::Programmatic => self.work(span, from.instruction, saving),
            EdgeKind::Stream | EdgeKind::GraphNode if to.kind == MomentKind::End => {
                self.work(span, to.instruction, saving);
            }
            // The node before lets this one begin.
            EdgeKind::GraphNode if from.kind == MomentKind::Begin => {
                self.work(span, from.instruction, saving)
            }
            _ => self.gap(span, to.instruction, edge.kind, saving),
        }
    }

    fn work(&mut self, span: (u64, u64), instruction: u32, saving: u64) {
        let class = match self.list.get(instruction).kind {
            InstructionKind::Copy | InstructionKind::Fill => PathClass::Memory,
            InstructionKind::Graph => PathClass::Graph,
            _ => PathClass::Kernel,
        };
        self.add(span, class, What::Instruction(instruction), saving);
    }

    fn launch(&mut self, (start, end): (u64, u64), call: u32, instruction: u32, saving: u64) {
        let returned = self.graph.calls[call as usize].end.clamp(start, end);
        self.add((start, returned), PathClass::Call, What::Call(call), saving.min(returned - start));
        let class = match end - returned > MAX_LATENCY_NS {
            true => PathClass::Unexplained(self.cause(instruction, EdgeKind::Launch)),
            false => PathClass::Launch,
        };
        let what = What::Instruction(instruction);
        self.add((returned, end), class, what, saving.min(end - returned));
    }

    fn gap(&mut self, span: (u64, u64), instruction: u32, kind: EdgeKind, saving: u64) {
        let class = match span.1 - span.0 > MAX_LATENCY_NS {
            true => PathClass::Unexplained(self.cause(instruction, kind)),
            false => PathClass::Gap,
        };
        self.add(span, class, What::Instruction(instruction), saving);
    }

    /// Returns why the time before an instruction is not explained.
    fn cause(&self, number: u32, kind: EdgeKind) -> Unexplained {
        let instruction: Instruction<'_> = self.list.get(number);
        let has_no_launch = matches!(
            instruction.detail,
            InstructionDetail::Work { missing: Some(missing), .. } if missing != Missing::Pending
        );
        match kind {
            _ if has_no_launch => Unexplained::NoLaunch,
            _ if self.facts.first_uses.contains(&number) => Unexplained::FirstUse,
            EdgeKind::Launch if !has_predecessor(&instruction) => Unexplained::EarlierWork,
            EdgeKind::GraphNode | EdgeKind::GraphLaunch => Unexplained::GraphEdges,
            _ if !self.facts.has_waits => Unexplained::NoWaitRecords,
            _ => Unexplained::Other,
        }
    }
}

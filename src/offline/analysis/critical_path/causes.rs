//! Finds out why GPU work began later than the recorded rows explain.

use std::cell::OnceCell;

use super::super::instructions::{
    AfterReason, Instruction, InstructionDetail, InstructionKind, InstructionList,
};
use super::graph::EdgeKind;
use super::streams::DEFAULT_STREAM;
use gpuflame_model::record::{IdMap, Missing, NameId, Work};

/// Reason why the recorded rows do not explain a part of the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unexplained {
    /// The part is at the begin of the path, and no row is recorded for the time before it.
    BeforeRecords,
    /// The first work of a stream began late, perhaps because of earlier work that is not recorded.
    EarlierWork,
    /// The call that launched the GPU work is not recorded.
    NoLaunch,
    /// The kernel runs for the first time, so perhaps its code had to be loaded first.
    FirstUse,
    /// A default stream waited for a CUDA event, but the rows do not show which GPU this default stream is on. If the
    /// default stream and the delayed work are on the same GPU, the delayed work also had to wait for the CUDA event.
    UnknownGpu,
    /// The edges of the graph are not recorded.
    GraphEdges,
    /// Waits of streams for CUDA events are not recorded.
    NoWaitRecords,
    /// All recorded causes of the delayed work had ended earlier, and no other variant of this enum applies.
    Other,
}

impl Unexplained {
    /// Returns the reason as a word for tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::BeforeRecords => "before_records",
            Self::EarlierWork => "earlier_work",
            Self::NoLaunch => "no_launch_record",
            Self::FirstUse => "first_use",
            Self::UnknownGpu => "unknown_gpu",
            Self::GraphEdges => "graph_edges",
            Self::NoWaitRecords => "no_wait_records",
            Self::Other => "not_recorded",
        }
    }
}

/// Facts about the instructions of a path, looked up by instruction index.
pub(in super::super) trait InstructionFacts {
    /// Returns the kind of the instruction with this index.
    fn kind(&self, number: u32) -> InstructionKind;
    /// Returns the reason why the time before an instruction is not explained. `kind` is the kind of the edge that
    /// decided when the instruction began.
    fn cause(&self, number: u32, kind: EdgeKind) -> Unexplained;
}

/// Facts about a run that are used to find the cause of unexplained time.
pub(in super::super) struct Causes<'a> {
    list: &'a InstructionList,
    /// Facts about the instructions of the run. Most paths are explained completely, so the facts are computed only
    /// when they are first used.
    facts: OnceCell<Facts>,
}

struct Facts {
    /// Indexes of the instructions that run a kernel for the first time.
    first_uses: IdMap<u32, ()>,
    has_waits: bool,
    /// Indexes of event waits on default streams whose GPU is unknown.
    unclear_waits: Vec<u32>,
}

impl<'a> Causes<'a> {
    pub(in super::super) fn new(list: &'a InstructionList) -> Self {
        Self { list, facts: OnceCell::new() }
    }

    fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| {
            let mut known: IdMap<NameId, ()> = IdMap::default();
            let mut facts =
                Facts { first_uses: IdMap::default(), has_waits: false, unclear_waits: Vec::new() };
            for number in 0..self.list.len() as u32 {
                let instruction = self.list.get(number);
                facts.has_waits |=
                    matches!(instruction.kind, InstructionKind::Wait | InstructionKind::Record);
                if instruction.kind == InstructionKind::Wait
                    && instruction.stream == Some(DEFAULT_STREAM)
                    && instruction.context.is_none()
                {
                    facts.unclear_waits.push(number);
                }
                if let InstructionDetail::Work { activity, .. } = instruction.detail
                    && let Work::Kernel(name) = activity.work()
                    && known.insert(name, ()).is_none()
                {
                    facts.first_uses.insert(number, ());
                }
            }
            facts
        })
    }

    /// Returns the reason why the time before an instruction is not explained. `kind` is the kind of the edge that
    /// decided when the instruction began.
    pub(in super::super) fn before(&self, number: u32, kind: EdgeKind) -> Unexplained {
        let instruction: Instruction<'_> = self.list.get(number);
        let has_no_launch = matches!(
            instruction.detail,
            InstructionDetail::Work { missing: Some(missing), .. } if missing != Missing::Pending
        );
        match kind {
            _ if has_no_launch => Unexplained::NoLaunch,
            _ if self.may_wait_for_unknown_gpu(&instruction, kind) => Unexplained::UnknownGpu,
            _ if self.facts().first_uses.contains_key(&number) => Unexplained::FirstUse,
            EdgeKind::Launch if !has_predecessor(&instruction) => Unexplained::EarlierWork,
            EdgeKind::GraphNode | EdgeKind::GraphLaunch if !self.list.knows_edges(number) => {
                Unexplained::GraphEdges
            }
            _ if !self.facts().has_waits => Unexplained::NoWaitRecords,
            _ => Unexplained::Other,
        }
    }

    /// Whether a default stream whose GPU is unknown was made to wait for a CUDA event after the previous instruction
    /// of the stream was submitted. If this default stream is on the same GPU as the instruction, the instruction also
    /// has to wait for the CUDA event. Always false for graph nodes, which wait only for their graph.
    fn may_wait_for_unknown_gpu(&self, instruction: &Instruction<'_>, kind: EdgeKind) -> bool {
        let is_node = matches!(kind, EdgeKind::GraphNode | EdgeKind::GraphEdge | EdgeKind::GraphLaunch);
        let is_exempt = instruction
            .context
            .zip(instruction.stream)
            .is_some_and(|(context, stream)| self.list.is_blocking(context, stream) == Some(false));
        let of_stream = instruction.after.iter().filter(|after| after.reason == AfterReason::Stream);
        let since = of_stream.map(|after| after.number).max();
        let waits = &self.facts().unclear_waits;
        let next = waits.get(waits.partition_point(|wait| since.is_some_and(|since| *wait < since)));
        !is_node && !is_exempt && next.is_some_and(|wait| *wait < instruction.number)
    }
}

impl InstructionFacts for Causes<'_> {
    fn kind(&self, number: u32) -> InstructionKind {
        self.list.kind(number)
    }

    fn cause(&self, number: u32, kind: EdgeKind) -> Unexplained {
        self.before(number, kind)
    }
}

fn has_predecessor(instruction: &Instruction<'_>) -> bool {
    instruction.after.iter().any(|after| after.reason == AfterReason::Stream)
}

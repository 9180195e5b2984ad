//! Why work began later than the records explain.

use std::cell::OnceCell;

use super::super::instructions::{
    AfterReason, Instruction, InstructionDetail, InstructionKind, InstructionList,
};
use super::graph::EdgeKind;
use gpuflame_model::record::{IdMap, Missing, NameId, Work};

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

/// Facts about the instructions of a path, by number.
pub(in super::super) trait InstructionFacts {
    /// Kind of an instruction.
    fn kind(&self, number: u32) -> InstructionKind;
    /// Returns why the time before an instruction is not explained. `kind` is the edge that decided its begin.
    fn cause(&self, number: u32, kind: EdgeKind) -> Unexplained;
}

/// Facts about the run from which a cause follows.
pub(in super::super) struct Causes<'a> {
    list: &'a InstructionList,
    /// Found at the first question: most paths are explained.
    facts: OnceCell<Facts>,
}

struct Facts {
    /// First instruction of each kernel.
    first_uses: IdMap<u32, ()>,
    has_waits: bool,
}

impl<'a> Causes<'a> {
    pub(in super::super) fn new(list: &'a InstructionList) -> Self {
        Self { list, facts: OnceCell::new() }
    }

    fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| {
            let mut known: IdMap<NameId, ()> = IdMap::default();
            let mut facts = Facts { first_uses: IdMap::default(), has_waits: false };
            for number in 0..self.list.len() as u32 {
                let instruction = self.list.get(number);
                facts.has_waits |=
                    matches!(instruction.kind, InstructionKind::Wait | InstructionKind::Record);
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

    /// Returns why the time before an instruction is not explained. `kind` is the edge that decided its begin.
    pub(in super::super) fn before(&self, number: u32, kind: EdgeKind) -> Unexplained {
        let instruction: Instruction<'_> = self.list.get(number);
        let has_no_launch = matches!(
            instruction.detail,
            InstructionDetail::Work { missing: Some(missing), .. } if missing != Missing::Pending
        );
        match kind {
            _ if has_no_launch => Unexplained::NoLaunch,
            _ if self.facts().first_uses.contains_key(&number) => Unexplained::FirstUse,
            EdgeKind::Launch if !has_predecessor(&instruction) => Unexplained::EarlierWork,
            EdgeKind::GraphNode | EdgeKind::GraphLaunch if !self.list.knows_edges(number) => {
                Unexplained::GraphEdges
            }
            _ if !self.facts().has_waits => Unexplained::NoWaitRecords,
            _ => Unexplained::Other,
        }
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

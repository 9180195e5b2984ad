//! Finds out whether a prediction depends on kernel times that no launch in the run shows.
//!
//! If the trigger or the tail of a programmatic launch is unknown, two bounds limit the times at which the launched
//! kernel begins and ends:
//!
//! ```text
//! latest     it begins as long after the kernel before it as in the run, or at its end
//! earliest   it begins with the kernel before it, and ends with it at the earliest
//! ```
//!
//! If a lag in the graph becomes longer, each moment stays at its time or comes later, but no moment comes earlier. So
//! if the host calls and the end of the run have the same times for both bounds, their times do not depend on the
//! unknown trigger or tail.

use super::super::critical_path::NO_CALL;
use super::super::critical_path::graph::{Edge, EdgeKind, MomentKind};
use super::super::instructions::InstructionKind;
use super::{Edit, EditedRun, Replay, Schedule, Selection};

/// Assumption about the kernel times that no launch in the run shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// Every programmatically launched kernel begins and ends as late as possible.
    Latest,
    /// Every programmatically launched kernel begins as early as possible. The kernel's duration in the recorded run is
    /// assumed to include no waiting.
    EarliestWithoutWait,
    /// Every programmatically launched kernel begins as early as possible. The kernel's duration in the recorded run is
    /// assumed to include waiting for the previous kernel.
    EarliestWithWait,
}

impl Replay<'_> {
    /// Returns the number of programmatic launches whose times are guessed by a rule because the run does not show
    /// them. If the guessed times do not change the prediction, returns 0.
    pub(super) fn guesses_that_matter(&self, edits: &[Edit], edited: &EditedRun) -> u64 {
        let mut guessed = self.graph().kernels.guessed.clone();
        guessed.extend(self.guessed_by(edits));
        guessed.sort_unstable();
        let count = guessed.len() as u64;
        guessed.dedup();
        if count == 0 {
            return 0;
        }
        let guessed = Selection::new(self.list.len(), |number| guessed.binary_search(&number).is_ok());
        let mut begins = vec![u32::MAX; self.list.len()];
        for (at, moment) in (0_u32..).zip(self.moments()).filter(|(_, one)| one.kind == MomentKind::Begin) {
            begins[moment.instruction as usize] = at;
        }
        let bounds = [Bound::Latest, Bound::EarliestWithoutWait, Bound::EarliestWithWait];
        let matters = bounds.into_iter().any(|bound| {
            let mut edges: Vec<Edge> = self.view(&edited.edges).iter().collect();
            edges.iter_mut().for_each(|edge| self.set_bound(edge, &guessed, &begins, bound));
            let other = edited.schedule.with_edges(self.graph(), &edges);
            other.is_none_or(|other| !self.is_same_for_host(&edited.schedule, &other))
        });
        if matters { count } else { 0 }
    }

    /// If an edge leads to a kernel whose times are guessed, sets the lag of the edge according to the assumption
    /// `bound`.
    fn set_bound(&self, edge: &mut Edge, guessed: &Selection, begins: &[u32], bound: Bound) {
        let moments = self.moments();
        let (from, to) = (moments[edge.from as usize], moments[edge.to as usize]);
        if !guessed.has(to.instruction) || to.call != NO_CALL {
            return;
        }
        if edge.kind == EdgeKind::Work {
            if bound == Bound::EarliestWithWait {
                let times = self.graph().kernels.times(&self.list.get(to.instruction));
                edge.lag = edge.lag.min(times.duration.unwrap_or(0));
            }
            return;
        }
        let is_order = matches!(edge.kind, EdgeKind::Stream | EdgeKind::Programmatic | EdgeKind::GraphEdge);
        if !is_order || self.list.kind(from.instruction) != InstructionKind::Kernel {
            return;
        }
        let trigger = self.graph().kernels.times(&self.list.get(from.instruction)).trigger;
        match (bound, to.kind) {
            (_, MomentKind::Begin) if trigger.is_some() => {}
            (Bound::Latest, MomentKind::Begin) if edge.kind == EdgeKind::Programmatic => {
                edge.lag = edge.lag.max(to.time.saturating_sub(from.time));
            }
            (Bound::EarliestWithoutWait | Bound::EarliestWithWait, MomentKind::Begin) => {
                let begin = begins[from.instruction as usize];
                if begin != u32::MAX {
                    (edge.from, edge.lag) = (begin, 0);
                }
            }
            (Bound::EarliestWithoutWait, MomentKind::End) => edge.lag = 0,
            _ => {}
        }
    }

    /// Whether the host calls and the end of the run have the same times in both schedules.
    fn is_same_for_host(&self, one: &Schedule, other: &Schedule) -> bool {
        let times = one.times().iter().zip(other.times());
        let mut calls = self.moments().iter().zip(times).filter(|(moment, _)| moment.call != NO_CALL);
        one.window() == other.window() && calls.all(|(_, (one, other))| one == other)
    }
}

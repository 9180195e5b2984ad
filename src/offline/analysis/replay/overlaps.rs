//! Adapts edges to the edits of a replay: the edges between kernels that overlap because of programmatic launches.

use std::collections::BTreeMap;

use super::super::critical_path::graph::{Edge, EdgeKind, MomentKind};
use super::super::critical_path::{KernelTimes, Trigger, is_node};
use super::super::instructions::{After, AfterReason, InstructionKind};
use super::edited_edges::LagsMut;
use super::{Edit, Replay, Selection};

/// Two kernels, of which the second is programmatically launched. An edit removed the work between the two kernels, so
/// the second kernel now directly follows the first kernel.
struct Relinked {
    before: u32,
    after: u32,
}

impl Replay<'_> {
    /// Adapts the edges between overlapping kernels to new kernel durations. `changed` contains the old and new
    /// duration of each changed kernel. Two rules hold. A kernel lets the next kernel begin at its own end at the
    /// latest. If a kernel's duration changes, the time that the kernel runs before it waits for the previous kernel
    /// stays the same.
    pub(super) fn change_overlaps(&self, edges: &mut LagsMut<'_>, changed: &BTreeMap<u32, (u64, u64)>) {
        edges.each(|edge| {
            let (from, to) =
                (self.graph().moments[edge.from as usize], self.graph().moments[edge.to as usize]);
            match edge.kind {
                EdgeKind::Programmatic => {
                    if let Some((_, new)) = changed.get(&from.instruction) {
                        edge.lag = edge.lag.min(*new);
                    }
                }
                EdgeKind::Stream | EdgeKind::GraphEdge if to.kind == MomentKind::End && edge.lag > 0 => {
                    if let Some((old, new)) = changed.get(&to.instruction) {
                        edge.lag = edge.lag.saturating_add(*new).saturating_sub(*old);
                    }
                }
                _ => {}
            }
        });
    }

    /// Finds the programmatic launches that directly follow a different kernel than in the recorded run, because the
    /// selected work is removed. If the instructions are not in the recorded order, `after` contains the dependencies
    /// that they have in their order.
    fn relinked(&self, work: &Selection, after: Option<&[Vec<After>]>) -> Vec<Relinked> {
        let before = |number: u32| {
            let of_run = || self.list.get(number).after;
            let all = after.map_or_else(of_run, |after| &after[number as usize]);
            all.iter().find(|after| after.reason == AfterReason::Stream).map(|after| after.number)
        };
        let mut found = Vec::new();
        for after in (0..self.list.len() as u32).filter(|number| !work.has(*number)) {
            let instruction = self.list.get(after);
            if instruction.programmatic != Some(true) || is_node(&instruction) {
                continue;
            }
            let (mut at, mut is_changed) = (before(after), false);
            while let Some(skipped) = at.filter(|skipped| {
                work.has(*skipped) || self.list.get(*skipped).kind == InstructionKind::Record
            }) {
                is_changed |= work.has(skipped);
                at = before(skipped);
            }
            let is_kernel = |number: &u32| {
                let before = self.list.get(*number);
                before.kind == InstructionKind::Kernel && !is_node(&before)
            };
            if let Some(before) = at.filter(|before| is_changed && is_kernel(before)) {
                found.push(Relinked { before, after });
            }
        }
        found
    }

    fn times(&self, number: u32) -> KernelTimes {
        self.graph().kernels.times(&self.list.get(number))
    }

    /// Returns the indexes of the programmatic launches whose times have to be guessed by a rule only because of the
    /// edits.
    pub(super) fn guessed_by(&self, edits: &[Edit]) -> Vec<u32> {
        let is_guessed = |pair: &Relinked| match self.times(pair.before).trigger {
            Some(Trigger::AtEnd) => false,
            Some(Trigger::After(_)) => {
                let own = self.times(pair.after);
                own.tail.is_none() || own.duration.is_none()
            }
            None => true,
        };
        let of_edit = |edit: &Edit| match edit {
            Edit::Remove { work } => {
                let pairs = self.relinked(work, None).into_iter().filter(is_guessed);
                pairs.map(|pair| pair.after).collect()
            }
            _ => Vec::new(),
        };
        edits.iter().flat_map(of_edit).collect()
    }

    /// If a programmatically launched kernel follows a different kernel than in the recorded run because the selected
    /// work is removed, lets it begin at the trigger of this different kernel.
    pub(super) fn relink_overlaps(
        &self,
        edges: &mut Vec<Edge>,
        work: &Selection,
        after: Option<&[Vec<After>]>,
    ) {
        let pairs = self.relinked(work, after);
        if pairs.is_empty() {
            return;
        }
        let mut spans = vec![(u32::MAX, u32::MAX); self.list.len()];
        for (at, moment) in (0_u32..).zip(self.moments()) {
            match moment.kind {
                MomentKind::Begin => spans[moment.instruction as usize].0 = at,
                MomentKind::End => spans[moment.instruction as usize].1 = at,
                _ => {}
            }
        }
        let known = |number: u32| Some(spans[number as usize]).filter(|span| span.0 != u32::MAX);
        let mut added: BTreeMap<u32, Vec<Edge>> = BTreeMap::new();
        for Relinked { before, after } in pairs {
            let (Some(first), Some(second)) = (known(before), known(after)) else { continue };
            added.insert(second.0, Vec::new());
            let new = added.entry(second.1).or_default();
            match self.times(before).trigger {
                Some(Trigger::After(lag)) => {
                    let own = self.times(after);
                    let tail = own.tail.or(own.duration).unwrap_or(0);
                    new.push(Edge { from: first.0, to: second.0, kind: EdgeKind::Programmatic, lag });
                    new.push(Edge { from: first.1, to: second.1, kind: EdgeKind::Stream, lag: tail });
                }
                _ => {
                    let lag = self.lags.gap();
                    new.push(Edge { from: first.1, to: second.0, kind: EdgeKind::Stream, lag });
                }
            }
        }
        let is_replaced = |edge: &Edge| {
            matches!(edge.kind, EdgeKind::Stream | EdgeKind::Programmatic) && added.contains_key(&{ edge.to })
        };
        edges.retain(|edge| !is_replaced(edge));
        for edge in
            edges.iter_mut().filter(|edge| edge.kind == EdgeKind::Work && added.contains_key(&{ edge.to }))
        {
            let alone = self.times(self.graph().moments[edge.to as usize].instruction).duration;
            edge.lag = alone.map_or(edge.lag, |alone| edge.lag.min(alone));
        }
        edges.extend(added.into_values().flatten());
    }
}

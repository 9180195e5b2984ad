//! Runs the checks that the replay of every run must pass.

use std::collections::{BTreeMap, BinaryHeap, HashSet};

use super::super::critical_path::graph::{Edge, EdgeKind};
use super::super::critical_path::is_node;
use super::super::states::StreamKey;
use super::{Replay, Schedule};

/// Results of the checks of a replay without edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayCheck {
    /// Number of moments in the run.
    pub moments: u64,
    /// Number of moments whose replayed time differs from the recorded time.
    pub different: u64,
    /// Maximum difference in ns between the replayed time and the recorded time of a moment.
    pub largest_ns: u64,
    /// Whether a second replay, which visits the moments in a different topological order, gives the same times.
    pub any_order: bool,
    /// Number of operations that begin before the previous operation on their stream has ended. If a programmatic
    /// launch or a graph allows the overlap, the operation is not counted.
    pub overlaps: u64,
    /// Whether busy time and idle time of every stream add up to the duration of the window.
    pub adds_up: bool,
}

impl ReplayCheck {
    /// Whether all checks of the replay pass.
    pub fn holds(&self) -> bool {
        self.different == 0 && self.any_order && self.overlaps == 0 && self.adds_up
    }
}

impl Replay<'_> {
    /// Checks the replay without edits.
    pub fn check(&self) -> ReplayCheck {
        let schedule = self.identity();
        let differences =
            self.moments().iter().zip(schedule.times()).map(|(moment, time)| moment.time.abs_diff(*time));
        let wrong = differences.clone().filter(|nanos| *nanos > 0);
        ReplayCheck {
            moments: self.moments().len() as u64,
            different: wrong.count() as u64,
            largest_ns: differences.max().unwrap_or(0),
            any_order: self.in_other_order() == schedule.times(),
            overlaps: self.overlaps(&schedule),
            adds_up: self.adds_up(&schedule),
        }
    }

    /// Returns the times from a replay that visits the moments in a different topological order. Of all moments that
    /// can be visited next, the replay visits the moment with the highest position.
    fn in_other_order(&self) -> Vec<u64> {
        let graph = self.graph();
        let mut by_from: Vec<Edge> = self.edges().iter().collect();
        by_from.sort_unstable_by_key(|edge| edge.from);
        let mut missing = vec![0_u32; graph.moments.len()];
        self.edges().iter().for_each(|edge| missing[edge.to as usize] += 1);
        let mut ready: BinaryHeap<u32> =
            (0..missing.len() as u32).filter(|at| missing[*at as usize] == 0).collect();
        let mut times = vec![0; graph.moments.len()];
        ready.iter().for_each(|at| times[*at as usize] = graph.time(*at));
        while let Some(at) = ready.pop() {
            let time = times[at as usize];
            let first = by_from.partition_point(|edge| edge.from < at);
            for edge in by_from[first..].iter().take_while(|edge| edge.from == at) {
                let to = edge.to as usize;
                times[to] = times[to].max(time.saturating_add(edge.lag));
                missing[to] -= 1;
                if missing[to] == 0 {
                    ready.push(edge.to);
                }
            }
        }
        times
    }

    /// Returns the operations on each stream in issue order. An operation is given as (whether it may overlap the
    /// previous operation, start, end).
    fn streams(&self, schedule: &Schedule) -> BTreeMap<StreamKey, Vec<(bool, u64, u64)>> {
        let programmatic: HashSet<u32> = self
            .edges()
            .iter()
            .filter(|edge| edge.kind == EdgeKind::Programmatic)
            .map(|edge| self.graph().moments[edge.to as usize].instruction)
            .collect();
        let mut works = schedule.works(self.moments(), self.list);
        works.sort_unstable_by_key(|work| work.instruction);
        let mut streams: BTreeMap<StreamKey, Vec<(bool, u64, u64)>> = BTreeMap::new();
        for work in works {
            let instruction = self.list.get(work.instruction);
            if let (Some(device), Some(context), Some(stream)) =
                (instruction.device, instruction.context, instruction.stream)
            {
                let may_overlap = is_node(&instruction) || programmatic.contains(&work.instruction);
                streams.entry((device, context, stream)).or_default().push((
                    may_overlap,
                    work.start,
                    work.end,
                ));
            }
        }
        streams
    }

    fn overlaps(&self, schedule: &Schedule) -> u64 {
        let of_stream = |works: &Vec<(bool, u64, u64)>| {
            let mut last = 0;
            let mut count = 0;
            for (may_overlap, start, end) in works {
                count += u64::from(!may_overlap && *start < last);
                last = last.max(*end);
            }
            count
        };
        self.streams(schedule).values().map(of_stream).sum()
    }

    fn adds_up(&self, schedule: &Schedule) -> bool {
        let window = schedule.window();
        self.streams(schedule).into_values().all(|works| {
            let mut spans: Vec<(u64, u64)> = works.into_iter().map(|(_, start, end)| (start, end)).collect();
            spans.sort_unstable();
            let (mut busy, mut idle, mut at) = (0, 0, window.0);
            for (start, end) in spans {
                idle += start.saturating_sub(at);
                busy += end.saturating_sub(start.max(at));
                at = at.max(end);
            }
            busy + idle + (window.1 - at) == window.1 - window.0
        })
    }
}

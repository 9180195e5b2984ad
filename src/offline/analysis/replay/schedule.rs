//! Computes the times of all moments in a replay.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::critical_path::graph::{Edge, Graph, MomentKind};
use super::super::critical_path::{EdgesView, Moment};
use super::super::instructions::InstructionList;

/// Times that a replay gives to the moments of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    times: Vec<u64>,
    /// Start and end of the replayed run, in ns since 1970.
    window: (u64, u64),
    /// Place of each moment in a topological order, in which every edge leads to a later place, or `None` if the
    /// moments themselves are stored in such an order.
    places: Option<Vec<u32>>,
}

/// A GPU operation in a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedWork {
    /// Index of the operation's instruction.
    pub instruction: u32,
    /// Replayed start in ns since 1970.
    pub start: u64,
    /// Replayed end in ns since 1970.
    pub end: u64,
}

impl Schedule {
    /// Computes the time of each moment. `edges` must be sorted by `to`, and every edge must lead to a moment with a
    /// later position. A moment keeps its recorded time if no edge leads to it, or if `is_fixed` returns true for the
    /// moment.
    pub(super) fn of(graph: &Graph, edges: EdgesView<'_>, is_fixed: &dyn Fn(usize, &Moment) -> bool) -> Self {
        let mut times = vec![0_u64; graph.moments.len()];
        let mut at = 0;
        for (position, moment) in graph.moments.iter().enumerate() {
            let mut time = None;
            while let Some(edge) = edges.get(at)
                && edge.to as usize == position
            {
                time = Some(times[edge.from as usize].saturating_add(edge.lag)).max(time);
                at += 1;
            }
            times[position] = match time {
                Some(time) if !is_fixed(position, moment) => time,
                _ => moment.time,
            };
        }
        Self::from_times(times, None)
    }

    fn from_times(times: Vec<u64>, places: Option<Vec<u32>>) -> Self {
        let first = times.iter().min().copied().unwrap_or(0);
        let window = (first, times.iter().max().copied().unwrap_or(0));
        Self { times, window, places }
    }

    /// Computes the times in the same way as `of`, but also accepts edges that lead to a moment with an earlier
    /// position. Returns `None` if the edges form a cycle.
    pub(super) fn in_any_order(graph: &Graph, edges: &[Edge]) -> Option<Self> {
        let mut by_from = edges.to_vec();
        by_from.sort_unstable_by_key(|edge| edge.from);
        let count = graph.moments.len();
        let mut missing = vec![0_u32; count];
        edges.iter().for_each(|edge| missing[edge.to as usize] += 1);
        let mut ready: BinaryHeap<Reverse<u32>> =
            (0..count as u32).filter(|at| missing[*at as usize] == 0).map(Reverse).collect();
        let mut times = vec![0_u64; count];
        ready.iter().for_each(|Reverse(at)| times[*at as usize] = graph.time(*at));
        let (mut places, mut next) = (vec![0; count], 0);
        while let Some(Reverse(at)) = ready.pop() {
            places[at as usize] = next;
            next += 1;
            let first = by_from.partition_point(|edge| edge.from < at);
            for edge in by_from[first..].iter().take_while(|edge| edge.from == at) {
                let to = edge.to as usize;
                times[to] = times[to].max(times[at as usize].saturating_add(edge.lag));
                missing[to] -= 1;
                if missing[to] == 0 {
                    ready.push(Reverse(edge.to));
                }
            }
        }
        (next as usize == count).then(|| Self::from_times(times, Some(places)))
    }

    /// Computes the times of all moments again with other edges. Returns `None` if the other edges form a cycle.
    pub(super) fn with_edges(&self, graph: &Graph, edges: &[Edge]) -> Option<Self> {
        match self.places {
            None => Some(Self::of(graph, edges.into(), &|_, _| false)),
            Some(_) => Self::in_any_order(graph, edges),
        }
    }

    /// Returns the time in ns since 1970 of the moment at this position.
    pub fn time(&self, moment: usize) -> u64 {
        self.times[moment]
    }

    /// Returns the times of all moments in ns since 1970, indexed by the position of the moment.
    pub fn times(&self) -> &[u64] {
        &self.times
    }

    /// Returns the start and end of the replayed run, in ns since 1970.
    pub fn window(&self) -> (u64, u64) {
        self.window
    }

    /// Returns the GPU operations with their replayed times, in the order in which they began in the recorded run.
    pub fn works(&self, moments: &[Moment], list: &InstructionList) -> Vec<ReplayedWork> {
        let mut ends = vec![None; list.len()];
        for (at, moment) in moments.iter().enumerate().filter(|(_, moment)| moment.kind == MomentKind::End) {
            ends[moment.instruction as usize] = Some(self.times[at]);
        }
        let begins = moments.iter().enumerate().filter(|(_, moment)| moment.kind == MomentKind::Begin);
        let work = |(at, moment): (usize, &Moment)| {
            let end = ends[moment.instruction as usize]?;
            Some(ReplayedWork { instruction: moment.instruction, start: self.times[at], end })
        };
        begins.filter_map(work).collect()
    }

    /// Returns the place of a moment, in an order in which every edge leads to a later place.
    pub(super) fn place(&self, moment: u32) -> u32 {
        self.places.as_ref().map_or(moment, |places| places[moment as usize])
    }
}

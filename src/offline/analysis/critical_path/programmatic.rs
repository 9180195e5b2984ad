//! Handles programmatic launches. A programmatically launched kernel may begin before the previous kernel ends.
//!
//! ```text
//! first   |---- trigger ---->|                  |
//!         |################ first ##############|
//! second                     |## second #######.|.. tail ..|
//! ```
//!
//! The first kernel lets the second kernel begin either at a moment that is called the trigger, or at the first
//! kernel's end. At some point the second kernel waits for the end of the first kernel. The time from the end of the
//! first kernel to the end of the second kernel is called the second kernel's tail. No tool records the trigger or the
//! tail. Some launches show the trigger and the tail in their recorded times. The values measured in these launches are
//! used for all launches of the same kernel.

use super::super::instructions::{Instruction, InstructionDetail, InstructionList};
use super::graph::{EdgeKind, Graph, MomentId};
use super::kernel_times::{KernelKey, KernelTimes, LearnedKernels, Trigger, key_of};
use gpuflame_model::record::{GraphId, GraphNodeId, IdMap};

/// Maximum difference in ns between the launch delays of kernels that find their stream idle. The maximum of 1 us was
/// measured on an H100.
const MAX_LAUNCH_SCATTER_NS: u64 = 1_000;
/// Denominator N of a share: a time of a kernel counts as measured only if its samples differ by at most 1/N of their
/// median.
const MAX_SPREAD_PART: u64 = 50;

/// A kernel that is or may be launched programmatically (the second kernel), and the previous kernel (the first
/// kernel).
#[derive(Clone, Copy, Debug)]
pub(super) struct Overlap {
    /// Index of the first kernel's instruction.
    pub(super) before: u32,
    /// Index of the second kernel's instruction.
    pub(super) after: u32,
    pub(super) place: OverlapPlace,
    /// Time at which the last other cause let the second kernel begin, or `None` if it is unknown. Other causes are all
    /// causes except the first kernel.
    pub(super) other: Option<u64>,
    /// Kind of the edge between the two kernels, for the case that the launch is not programmatic.
    pub(super) kind: EdgeKind,
}

/// Moments (begin, end) of the two kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverlapPlace {
    pub(super) before: (MomentId, MomentId),
    pub(super) after: (MomentId, MomentId),
    /// Position of the edge from the begin to the end of the second kernel.
    pub(super) work_edge: usize,
}

/// Times of a kernel, as measured in its launches.
#[derive(Clone, Debug, Default)]
struct Samples {
    durations: Vec<u64>,
    triggers: Vec<u64>,
    /// Number of following kernels that began only after the end of this kernel, although they could have begun
    /// earlier.
    at_end: u64,
    tails: Vec<u64>,
    max_tail: Option<u64>,
}

impl Samples {
    fn times(&self) -> KernelTimes {
        let trigger = match (common(&self.triggers), self.at_end) {
            (Some(after), 0) => Some(Trigger::After(after)),
            (None, 1..) if self.triggers.is_empty() => Some(Trigger::AtEnd),
            _ => None,
        };
        let (duration, tail) = (common(&self.durations), common(&self.tails));
        KernelTimes { duration, trigger, tail, max_tail: self.max_tail }
    }
}

/// Returns the median of the samples, or `None` if the samples differ by too much.
fn common(samples: &[u64]) -> Option<u64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let median = *sorted.get(sorted.len() / 2)?;
    let spread = sorted[sorted.len() - 1] - sorted[0];
    (spread <= median / MAX_SPREAD_PART).then_some(median)
}

/// Graph edge, given as the graph and the two nodes.
type NodePair = (GraphId, GraphNodeId, GraphNodeId);

fn pair_of(before: &Instruction<'_>, after: &Instruction<'_>) -> Option<NodePair> {
    let node = |one: &Instruction<'_>| match one.detail {
        InstructionDetail::Work { activity, .. } => Some((activity.graph, activity.graph_node)),
        _ => None,
    };
    let ((graph, before), (_, after)) = (node(before)?, node(after)?);
    Some((graph, before, after))
}

/// Learns the times of kernels from all pairs of kernels, and adds the edges between the kernels of each pair.
pub(super) fn add_overlaps(
    graph: &mut Graph,
    list: &InstructionList,
    overlaps: &[Overlap],
) -> LearnedKernels {
    if overlaps.is_empty() {
        return LearnedKernels::default();
    }
    let mut learning = Learning { graph, list, learned: LearnedKernels::default(), pairs: IdMap::default() };
    learning.learn(overlaps);
    overlaps.iter().for_each(|overlap| learning.add_edges(overlap));
    learning.learned
}

struct Learning<'a> {
    graph: &'a mut Graph,
    list: &'a InstructionList,
    learned: LearnedKernels,
    /// Graph edges for which any launch shows whether they are programmatic, each with this flag.
    pairs: IdMap<NodePair, bool>,
}

impl Learning<'_> {
    /// Returns the begin and end times of the first kernel and of the second kernel.
    fn spans(&self, overlap: &Overlap) -> ((u64, u64), (u64, u64)) {
        let span = |(begin, end): (MomentId, MomentId)| (self.graph.time(begin), self.graph.time(end));
        (span(overlap.place.before), span(overlap.place.after))
    }

    fn learn(&mut self, overlaps: &[Overlap]) {
        let mut samples: IdMap<KernelKey, Samples> = IdMap::default();
        let overlapped = |overlap: &&Overlap| {
            let (before, after) = self.spans(overlap);
            before.1 > after.0
        };
        let mut waiting: Vec<u32> = overlaps.iter().filter(overlapped).map(|overlap| overlap.after).collect();
        waiting.sort_unstable();
        for number in 0..self.list.len() as u32 {
            let instruction = self.list.get(number);
            if let (Some(key), Some((begin, end))) = (key_of(&instruction), instruction.ran)
                && waiting.binary_search(&number).is_err()
            {
                samples.entry(key).or_default().durations.push(end.0 - begin.0);
            }
        }
        overlaps.iter().for_each(|overlap| self.note_trigger(&mut samples, overlap));
        self.learned.times = samples.iter().map(|(key, samples)| (*key, samples.times())).collect();
        overlaps.iter().for_each(|overlap| self.note_tail(&mut samples, &waiting, overlap));
        self.learned.times = samples.iter().map(|(key, samples)| (*key, samples.times())).collect();
        overlaps.iter().for_each(|overlap| self.note_pair(overlap));
    }

    fn note_trigger(&self, samples: &mut IdMap<KernelKey, Samples>, overlap: &Overlap) {
        let (before, after) = self.spans(overlap);
        let Some(key) = key_of(&self.list.get(overlap.before)) else { return };
        let of_key = samples.entry(key).or_default();
        let is_later = |time: u64| overlap.other.is_some_and(|other| time > other + MAX_LAUNCH_SCATTER_NS);
        if after.0 < before.1 {
            of_key.triggers.extend(is_later(after.0).then(|| after.0.saturating_sub(before.0)));
        } else if overlap.kind == EdgeKind::Stream {
            of_key.at_end += u64::from(is_later(before.1));
        }
    }

    /// Stores the tail of the second kernel. If the second kernel ran longer than it does without waiting, it waited
    /// for the end of the previous kernel.
    fn note_tail(&self, samples: &mut IdMap<KernelKey, Samples>, waiting: &[u32], overlap: &Overlap) {
        let (before, after) = self.spans(overlap);
        let instruction = self.list.get(overlap.after);
        let first = waiting.partition_point(|number| *number < overlap.after);
        let is_only = waiting.get(first + 1) != Some(&overlap.after);
        let alone = self.learned.times(&instruction).duration;
        if let (Some(key), Some(alone)) = (key_of(&instruction), alone)
            && after.0 < before.1
            && before.1 <= after.1
        {
            let (of_key, tail) = (samples.entry(key).or_default(), after.1 - before.1);
            of_key.max_tail = Some(of_key.max_tail.map_or(tail, |known| known.min(tail)));
            if is_only && after.1 - after.0 > alone {
                of_key.tails.push(tail);
            }
        }
    }

    /// Finds out whether a graph edge is programmatic. An edge is programmatic if its two kernels overlap in any
    /// launch. An edge is not programmatic if the second kernel begins exactly when the first kernel ends.
    fn note_pair(&mut self, overlap: &Overlap) {
        let (first, second) = (self.list.get(overlap.before), self.list.get(overlap.after));
        let (before, after) = self.spans(overlap);
        if overlap.kind == EdgeKind::Stream {
            return;
        }
        let Some(pair) = pair_of(&first, &second) else { return };
        if after.0 < before.1 {
            self.pairs.insert(pair, true);
        } else if after.0 == before.1 && overlap.other.is_some_and(|other| other < before.1) {
            self.pairs.entry(pair).or_insert(false);
        }
    }

    fn add_edges(&mut self, overlap: &Overlap) {
        let (first, second) = (self.list.get(overlap.before), self.list.get(overlap.after));
        let (before, after) = self.spans(overlap);
        let (times, own) = (self.learned.times(&first), self.learned.times(&second));
        let is_early = matches!(times.trigger, Some(Trigger::After(_)));
        let overlaps = after.0 < before.1;
        let is_programmatic = match overlap.kind {
            EdgeKind::Stream => overlaps || is_early,
            _ => pair_of(&first, &second).and_then(|pair| self.pairs.get(&pair).copied()).unwrap_or(overlaps),
        };
        self.note_guess(overlap, &first, &second, is_programmatic);
        let OverlapPlace { before: (begin, end), after: (began, done), work_edge } = overlap.place;
        if !is_programmatic {
            return self.graph.add_edge(end, began, overlap.kind, 0);
        }
        let lag = match times.trigger {
            Some(Trigger::After(lag)) => lag,
            // If every other cause was earlier, the first kernel decided when the second kernel began.
            _ if !overlaps => before.1 - before.0,
            _ if overlap.other.is_some_and(|other| after.0 <= other + MAX_LAUNCH_SCATTER_NS) => 0,
            _ => after.0.saturating_sub(before.0),
        };
        self.graph.add_edge(begin, began, EdgeKind::Programmatic, lag);
        if before.1 <= after.1 {
            // If the second kernel's tail is unknown, the longest possible tail is assumed. The longest possible tail
            // is the time from the first kernel's end to the second kernel's end, limited to the second kernel's own
            // duration.
            let longest = (after.1 - before.1).min(own.duration.unwrap_or(u64::MAX).max(after.1 - after.0));
            let longest = own.max_tail.map_or(longest, |known| known.min(longest));
            self.graph.add_edge(end, done, overlap.kind, own.tail.unwrap_or(longest));
        }
        if let Some(alone) = own.duration.filter(|_| overlaps) {
            if after.1 - after.0 <= alone {
                self.graph.unhindered.insert(done, ());
            }
            let work = &mut self.graph.edges[work_edge];
            work.lag = work.lag.min(alone);
        }
    }

    fn note_guess(
        &mut self,
        overlap: &Overlap,
        first: &Instruction<'_>,
        second: &Instruction<'_>,
        is_programmatic: bool,
    ) {
        let (times, own) = (self.learned.times(first), self.learned.times(second));
        let is_known = match times.trigger {
            Some(Trigger::AtEnd) => true,
            Some(Trigger::After(_)) => own.tail.is_some() && own.duration.is_some(),
            None => false,
        };
        let is_pair_known =
            pair_of(first, second).is_some_and(|pair| self.pairs.contains_key(&pair)) && !is_programmatic;
        match overlap.kind {
            EdgeKind::Stream if !is_known => self.learned.guessed.push(overlap.after),
            EdgeKind::Stream => {}
            _ if is_programmatic && !is_known => self.learned.guessed.push(overlap.after),
            _ if !is_programmatic && !is_pair_known && times.trigger != Some(Trigger::AtEnd) => {
                self.learned.unclear_edges += 1;
            }
            _ => {}
        }
    }
}

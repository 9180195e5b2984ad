//! Computes the share of GPU work whose start is explained by recorded moments and typical lags.

use std::collections::BTreeMap;

use super::super::critical_path::{Causes, Unexplained};
use super::{Replay, is_start};
use gpuflame_model::record::DeviceId;

/// Maximum difference in ns between the recorded start and the computed start for which the recorded start counts as
/// explained.
pub(super) const TOLERANCE_NS: u64 = 2_000;

/// Recorded starts of GPU work, compared with starts computed from the recorded times of their dependencies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExplainedStarts {
    /// Number of compared starts, which include the starts of graph launches and of graph nodes.
    pub count: u64,
    /// Number of recorded starts that are within 2 us of the computed start.
    pub explained: u64,
    /// Number of recorded starts that are more than 2 us before the computed start.
    pub early: u64,
    /// Number of recorded starts for which no dependency is recorded, so that no start can be computed.
    pub unknown: u64,
    /// For each cause, the number of recorded starts that are more than 2 us after the computed start, and the total
    /// delay of these starts in ns.
    pub late: BTreeMap<Unexplained, (u64, u64)>,
    /// Number of streams that ran GPU work.
    pub streams: usize,
}

impl ExplainedStarts {
    /// Returns the share of explained starts in percent, or `None` if there are no starts.
    pub fn share(&self) -> Option<f64> {
        (self.count > 0).then(|| 100.0 * self.explained as f64 / self.count as f64)
    }

    pub(super) fn of(replay: &Replay<'_>) -> Self {
        let (graph, edges, causes) = (replay.graph(), replay.edges(), Causes::new(replay.list));
        let mut found = Self::default();
        let mut streams: std::collections::BTreeSet<(Option<DeviceId>, _)> =
            std::collections::BTreeSet::new();
        let mut at = 0;
        for (position, moment) in graph.moments.iter().enumerate() {
            let first = at;
            while edges.get(at).is_some_and(|edge| edge.to as usize == position) {
                at += 1;
            }
            if !is_start(moment, replay.list) {
                continue;
            }
            let instruction = replay.list.get(moment.instruction);
            streams.extend(instruction.stream.map(|stream| (instruction.device, stream)));
            let computed = (first..at).filter_map(|at| edges.get(at)).map(|edge| {
                // If an edge is a duration, it has no typical lag, and its recorded lag is used.
                let lag = replay.lags.typical(graph, replay.list, &edge).unwrap_or(edge.lag);
                (graph.time(edge.from).saturating_add(lag), edge.kind)
            });
            found.count += 1;
            let Some((time, kind)) = computed.max() else {
                found.unknown += 1;
                continue;
            };
            let late = moment.time.saturating_sub(time);
            if late > TOLERANCE_NS {
                let sum = found.late.entry(causes.before(moment.instruction, kind)).or_default();
                *sum = (sum.0 + 1, sum.1 + late);
            } else if time - moment.time.min(time) > TOLERANCE_NS {
                found.early += 1;
            } else {
                found.explained += 1;
            }
        }
        found.streams = streams.len();
        found
    }
}

impl Replay<'_> {
    /// Compares each recorded start with the start computed from the recorded times of its dependencies.
    pub fn explained_starts(&self) -> ExplainedStarts {
        ExplainedStarts::of(self)
    }
}

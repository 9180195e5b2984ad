//! Creates the panel of steps, which shows the durations of steps and the slow steps.

use gpuflame_model::profile::StepSeries;
use serde_json::{Value, json};

/// Maximum number of groups of steps per rank. If a rank has more steps than this, several consecutive steps form one
/// group.
const MAX_GROUPS: usize = 2_000;
/// A step is slow if its duration exceeds the median duration of its kind of steps by at least this many percent.
const SLOW_PERCENT: u64 = 20;

/// Data about the steps of a rank.
pub(super) struct RankSteps {
    rank: u32,
    kinds: Vec<Value>,
    /// Groups of steps. The six numbers of a group are: the number of its first step; the count of its steps; duration,
    /// work and communication per step in ns; and the index of the kind of its steps.
    groups: Vec<[i64; 6]>,
}

impl RankSteps {
    pub(super) fn new(rank: u32, series: &StepSeries) -> Self {
        let kind = |(at, kind): (usize, &gpuflame_model::profile::StepKind)| {
            let name = if kind.name.is_empty() { "step" } else { &kind.name };
            json!({
                "name": name, "count": kind.count, "ns": kind.nanos, "p50": series.percentile(at, 50),
                "p95": series.percentile(at, 95), "max": kind.max, "longest": kind.longest,
            })
        };
        let per_chunk = series.groups.len().div_ceil(MAX_GROUPS).max(1);
        let groups = series.groups.chunks(per_chunk).map(|groups| {
            let steps = groups.iter().map(|group| group.steps).sum::<u64>().max(1);
            let per_step = |of: fn(&gpuflame_model::profile::StepGroup) -> u64| {
                (groups.iter().map(of).fold(0_u64, u64::saturating_add) / steps) as i64
            };
            let kind = groups[0].kind.filter(|kind| groups.iter().all(|group| group.kind == Some(*kind)));
            [
                groups[0].number as i64,
                steps as i64,
                per_step(gpuflame_model::profile::StepGroup::nanos),
                per_step(|group| group.work),
                per_step(|group| group.communication),
                kind.map_or(-1, i64::from),
            ]
        });
        Self { rank, kinds: series.kinds.iter().enumerate().map(kind).collect(), groups: groups.collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn json(&self) -> Value {
        json!({"rank": self.rank, "kinds": self.kinds, "groups": self.groups, "slowPercent": SLOW_PERCENT})
    }
}

//! Limits the costs of a late host to the time in which the busiest stream of the GPU is idle. Even if the host had
//! launched earlier, the busiest stream would still run its operations one after another. If the findings about a late
//! host cost more than the idle time of this stream, copies on the stream account for the excess.

use std::collections::BTreeMap;

use super::super::work_spans::{PlausibleSpans, WorkSpan};
use super::host::copy_costs;
use super::lost_time::LostTime;
use super::{Cost, Lost};
use gpuflame_model::profile::{SteadyPart, add_to};
use gpuflame_model::record::DeviceId;

/// Ids of the findings about a late host.
const LATE_HOST: [&str; 11] = [
    "data_loader_late",
    "sync_read",
    "sync_wait",
    "launch_bound",
    "allocation_in_loop",
    "gc_pauses",
    "recompilation",
    "pauses",
    "lock_wait",
    "profiler_cost",
    "host_work",
];

/// Limits the costs of a late host to `free`, the time in ns in which the busiest stream of the GPU is idle. If any
/// cost exceeds `free`, it is reduced to `free`, and the findings about copies are added.
pub(super) fn limit_by_stream(lost: &Lost<'_>, found: &mut Vec<Cost>, time: &LostTime, free: u64) {
    let mut is_limited = false;
    for cost in found.iter_mut().filter(|cost| LATE_HOST.contains(&cost.id) && cost.nanos > free) {
        (cost.nanos, is_limited) = (free, true);
    }
    if !is_limited {
        return;
    }
    for copies in copy_costs(lost, &time.copies) {
        let known =
            found.iter_mut().find(|known| (known.id, &known.function) == (copies.id, &copies.function));
        match known {
            Some(known) if known.nanos >= copies.nanos => {}
            Some(known) => *known = copies,
            None => found.push(copies),
        }
    }
}

/// Returns for how many ns the busiest stream of the GPU is idle. The idle time is counted from the GPU's first kernel
/// to its last kernel, within the steady part. Returns `None` if there are no kernels.
pub(super) fn free_time(
    spans: &PlausibleSpans,
    device: Option<DeviceId>,
    steady: Option<SteadyPart>,
    kernels: (u64, u64),
) -> Option<u64> {
    let (begin, end) = steady.map_or((0, u64::MAX), |steady| (steady.begin.0, steady.end.0));
    let (from, to) = (kernels.0.max(begin), kernels.1.min(end));
    // For each stream, the busy time and the latest end of the stream's work, for the activities that were visited.
    let mut streams: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let of_device = |span: &&WorkSpan| Some(spans.device_of(span)) == device;
    for span in spans.as_slice().iter().filter(of_device) {
        let (busy, until) = streams.entry(span.stream()).or_insert((0, from));
        let last = span.end.min(to);
        add_to(busy, last.saturating_sub(span.start.max(*until)));
        *until = (*until).max(last);
    }
    let busiest = streams.values().map(|(busy, _)| *busy).max()?;
    Some(to.saturating_sub(from).saturating_sub(busiest))
}

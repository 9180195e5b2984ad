//! Computes queue lengths. The queue length of a stream at a time is the number of operations that were launched on the
//! stream but had not begun.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::events::{EventKind, HtaEvents};
use super::window::Selection;

/// Names of the launch calls whose operations enter the queue. The calls in this list are also used to find the
/// operations before and after CUDA events.
const LAUNCH_CALLS: [&str; 12] = [
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipMemcpyAsync",
    "hipMemsetAsync",
    "hipMemcpyWithStream",
];

/// Returns the launches made by [`LAUNCH_CALLS`], each as (call, launched operation), in file order.
pub(super) fn launches(events: &HtaEvents, selection: &Selection) -> Vec<(u32, u32)> {
    let is_launch = |at: u32| {
        let row = &events.rows[at as usize];
        row.kind == EventKind::Call && LAUNCH_CALLS.contains(&events.name(row.name))
    };
    let calls = selection.all.iter().copied().filter(|at| is_launch(*at));
    calls.filter_map(|call| Some((call, selection.partner(call)?))).collect()
}

/// Returns the queue length after each launch and after each start of an operation, keyed by row. As in HTA, streams
/// with the same id on several GPUs share a queue. If a launch and a start have the same time in microseconds, the
/// launch comes first. In HTA, the order of a launch and a start with equal times is undefined.
pub(super) fn queue_lengths(
    events: &HtaEvents,
    selection: &Selection,
    launches: &[(u32, u32)],
) -> HashMap<u32, i64> {
    let row = |at: u32| &events.rows[at as usize];
    let ids: HashSet<Option<u64>> = launches.iter().map(|(call, _)| row(*call).correlation).collect();
    let mut changes: BTreeMap<u32, Vec<(i64, bool, u32)>> = BTreeMap::new();
    for (call, work) in launches {
        if let Some(stream) = row(*work).stream {
            changes.entry(stream).or_default().push((row(*call).start, false, *call));
        }
    }
    for at in selection.all.iter().copied().filter(|at| ids.contains(&row(*at).correlation)) {
        if let Some(stream) = row(at).stream {
            changes.entry(stream).or_default().push((row(at).start, true, at));
        }
    }
    let mut lengths = HashMap::new();
    for mut changes in changes.into_values() {
        changes.sort_by_key(|(time, begins, _)| (*time, *begins));
        let mut length = 0;
        for (_, begins, at) in changes {
            length += if begins { -1 } else { 1 };
            lengths.insert(at, length);
        }
    }
    lengths
}

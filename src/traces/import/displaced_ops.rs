//! Finds *displaced* GPU operations, whose times are on a different clock from the times of most operations. In one
//! reported case, CUPTI gave the first kernels of a process times that were wrong by 28 hours (pytorch/pytorch#192021).
//! With these times, a run of 20 ms would seem to last for more than a day.

use std::collections::BTreeMap;

use gpuflame_model::record::IdMap;

use super::call_records::CallRecords;
use super::op_records::OpRecords;

/// Minimum time in ns between the launch and the start of a displaced operation.
const MIN_DISTANCE_NS: i64 = 60_000_000_000;
/// An operation counts as displaced if it begins more than this time (in ns) after the end of all other operations,
/// even if no later work on its stream contradicts its times.
const MIN_DISTANCE_OF_LAST_NS: i64 = 600_000_000_000;

/// Ids of a device, a CUDA context and a stream.
type Place = (u32, u32, u32);

/// An operation that starts more than a minute before or after its launch.
struct FarOp {
    number: u32,
    place: Place,
    launch: i64,
    start: i64,
}

/// Returns the indexes of the displaced operations. An operation that begins more than a minute before its launch is
/// displaced. An operation that begins more than a minute after its launch is displaced in two cases: if it also begins
/// after work on its stream that was launched later, or if it begins long after all other work. If at least half of the
/// operations with a launch start more than a minute before or after their launch, the clocks of the host and the GPU
/// differ. In that case, no operation counts as displaced.
pub(super) fn displaced_ops(ops: &OpRecords, calls: &CallRecords) -> IdMap<u32, ()> {
    let launched = || {
        let with_launch = (0..).zip(ops.iter()).filter(|(_, op)| op.start != 0);
        with_launch.filter_map(|(number, op)| Some((number, op, calls.start_of(op.call()?))))
    };
    let is_far = |start: i64, launch: i64| start.abs_diff(launch) > MIN_DISTANCE_NS as u64;
    let (mut far, mut near) = (Vec::new(), 0_usize);
    for (number, op, launch) in launched() {
        if is_far(op.start, launch) {
            let place = (op.shape.device, op.shape.context, op.shape.stream);
            far.push(FarOp { number, place, launch, start: op.start });
        } else {
            near += 1;
        }
    }
    if far.is_empty() || far.len() >= near {
        return IdMap::default();
    }
    let mut streams: BTreeMap<Place, Vec<(i64, i64)>> = BTreeMap::new();
    let mut last_end = i64::MIN;
    for (_, op, launch) in launched().filter(|(_, op, launch)| !is_far(op.start, *launch)) {
        let place = (op.shape.device, op.shape.context, op.shape.stream);
        streams.entry(place).or_default().push((launch, op.start));
        last_end = last_end.max(op.end);
    }
    streams.values_mut().for_each(|ops| note_earliest_starts(ops));
    let is_displaced = |op: &FarOp| {
        let earliest_later = || {
            let of_stream = streams.get(&op.place)?;
            of_stream
                .get(of_stream.partition_point(|(launch, _)| *launch <= op.launch))
                .map(|(_, start)| *start)
        };
        op.start < op.launch
            || earliest_later().is_some_and(|start| start.saturating_add(MIN_DISTANCE_NS) < op.start)
            || last_end.saturating_add(MIN_DISTANCE_OF_LAST_NS) < op.start
    };
    far.into_iter().filter(is_displaced).map(|op| (op.number, ())).collect()
}

/// Sorts the operations of a stream by launch time. Replaces the start of each operation by the earliest start of this
/// operation and all operations that were launched later.
fn note_earliest_starts(ops: &mut [(i64, i64)]) {
    ops.sort_unstable();
    let mut earliest = i64::MAX;
    for (_, start) in ops.iter_mut().rev() {
        earliest = earliest.min(*start);
        *start = earliest;
    }
}

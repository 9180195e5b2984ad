//! Creates the findings about streams and GPUs that wait for each other.

use std::collections::BTreeMap;

use super::super::work_spans::{PlausibleSpans, WorkSpan};
use super::Cost;
use super::thresholds::{MAX_HANDOVER_NS, MIN_IDLE_DIFFERENCE_PERCENT, MIN_SERIAL_PERCENT};
use gpuflame_export::percent;
use gpuflame_model::profile::{Profile, format_nanos};
use gpuflame_model::record::{DeviceId, Work};

/// Returns the finding about kernels of two streams that never overlap although they were launched early enough to
/// overlap. Usually the reason is the legacy default stream: it waits for all blocking streams, and all blocking
/// streams wait for it. Streams may also wait for each other because of CUDA events. If the program makes at least half
/// as many event waits as there are waits between the two streams, these waits are assumed to be intended, and no
/// finding is returned.
pub(super) fn default_stream(spans: &PlausibleSpans, event_waits: u64) -> Option<Cost> {
    let mut devices: BTreeMap<DeviceId, Vec<&WorkSpan>> = BTreeMap::new();
    for span in spans.as_slice().iter().filter(|span| matches!(span.work, Work::Kernel(_))) {
        devices.entry(spans.device_of(span)).or_default().push(span);
    }
    let costs = devices.into_values().filter_map(|kernels| serial_streams(spans, &kernels, event_waits));
    costs.max_by_key(|cost| cost.nanos)
}

#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    changes: u64,
    /// Number of changes from one of the two streams to the other at which the later kernel waited for the earlier
    /// kernel. A kernel waited if it was launched before the earlier kernel ended, but began only after that end.
    waits: u64,
}

/// Returns the finding about streams of one GPU that wait for each other. `spans` contains the kernels of this GPU,
/// sorted by time.
fn serial_streams(all: &PlausibleSpans, spans: &[&WorkSpan], event_waits: u64) -> Option<Cost> {
    let mut streams: BTreeMap<_, u64> = BTreeMap::new();
    let mut pairs: BTreeMap<_, Pair> = BTreeMap::new();
    for span in spans {
        *streams.entry(span.stream()).or_default() += span.end - span.start;
    }
    for (before, after) in spans.iter().zip(&spans[1.min(spans.len())..]) {
        if before.stream() == after.stream() {
            continue;
        }
        let key = (before.stream().min(after.stream()), before.stream().max(after.stream()));
        let pair = pairs.entry(key).or_default();
        pair.changes += 1;
        let launched = after
            .launched()
            .map_or(u64::MAX, |launched| launched.time.0.saturating_add(launched.duration.into()));
        let is_direct = after.start >= before.end && after.start - before.end <= MAX_HANDOVER_NS;
        pair.waits += u64::from(is_direct && launched.saturating_add(MAX_HANDOVER_NS) < before.end);
    }
    let ((first, second), pair) = pairs.into_iter().max_by_key(|(_, pair)| pair.waits)?;
    if pair.waits < MIN_CHANGES
        || pair.waits * 100 < pair.changes * MIN_SERIAL_PERCENT
        || event_waits * 2 >= pair.waits
    {
        return None;
    }
    // At best, all work of one stream, the stream with less work, overlaps with work on the other stream.
    let (shorter, nanos) = [first, second]
        .map(|stream| (stream, streams[&stream]))
        .into_iter()
        .min_by_key(|(_, nanos)| *nanos)?;
    let other = if shorter == first { second } else { first };
    let first = spans.iter().find(|span| span.stream() == shorter)?;
    let (device, _, number) = all.stream_of(first);
    let other = spans.iter().find(|span| span.stream() == other).map_or(number, |span| all.stream_of(span).2);
    let why = format!(
        "kernels of stream {} waited for stream {} {} times and never ran beside it, for up to {}: the legacy default \
         stream may serialise them",
        number.0,
        other.0,
        pair.waits,
        format_nanos(nanos)
    );
    Some(Cost {
        id: "default_stream",
        nanos,
        count: pair.waits,
        why,
        launched_by: first.launched().map(|launched| launched.context),
        device: Some(device),
        ..Cost::default()
    })
}

/// Minimum number of changes between two streams at which the later kernel must wait for the earlier kernel. If the
/// later kernel waits at fewer than this number of changes, no finding is reported.
const MIN_CHANGES: u64 = 10;

/// Returns the finding about a GPU that has less work than another GPU of the process.
pub(super) fn idle_gpu(profile: &Profile) -> Option<Cost> {
    let times = profile.times();
    let busiest = times.iter().max_by_key(|time| time.steady().busy)?;
    let idlest = times.iter().min_by_key(|time| time.steady().busy)?;
    let window = busiest.steady().window();
    let difference = busiest.steady().busy - idlest.steady().busy;
    if percent(difference, window) < MIN_IDLE_DIFFERENCE_PERCENT {
        return None;
    }
    let all: u64 = times.iter().map(|time| time.steady().busy).sum();
    let nanos = busiest.steady().busy - all / times.len() as u64;
    let why = format!(
        "GPU {} worked {} less than GPU {}; if their work can be divided evenly, it ends up to {} earlier",
        idlest.device.0,
        format_nanos(difference),
        busiest.device.0,
        format_nanos(nanos)
    );
    Some(Cost { id: "idle_gpu", nanos, count: 1, why, device: Some(idlest.device), ..Cost::default() })
}

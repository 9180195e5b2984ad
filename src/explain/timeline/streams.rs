//! Computes the number of activities and the busy time for each stream of a device.

use gpuflame_model::profile::StreamUse;
use gpuflame_model::record::{Activity, DeviceId, GpuContextId, IdMap, StreamId, map_bytes};

/// Maximum number of streams that are summed separately. The work of all further streams is summed together, because
/// otherwise a program that creates a stream per request would fill the memory.
const MAX_STREAMS: usize = 4096;

/// Sums for each stream of one device. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamSums {
    indices: IdMap<(GpuContextId, StreamId), u32>,
    sums: Vec<StreamSum>,
    /// Index of the stream that the last activity ran on. The stream of the last activity is tried first, because
    /// consecutive activities are usually on the same stream.
    last: usize,
    others: StreamSum,
}

#[derive(Clone, Copy, Debug, Default)]
struct StreamSum {
    stream: (GpuContextId, StreamId),
    count: u64,
    /// Total time in ns during which at least one activity ran on the stream.
    nanos: u64,
    recent: RecentTimes,
}

/// Number of recent busy periods that are stored per stream. Several busy periods are needed, because activities may
/// arrive out of order.
const MAX_RECENT: usize = 4;

/// The newest periods in which a stream was busy. Activities on one stream may overlap if they are nodes of a graph, or
/// kernels with programmatic dependent launch.
#[derive(Clone, Copy, Debug, Default)]
struct RecentTimes {
    /// Busy periods, sorted by start. The stored busy periods do not overlap.
    times: [(u64, u64); MAX_RECENT],
    len: usize,
    /// End of the latest busy period that is no longer stored. The stream counts as busy at all times before this end.
    /// So the part of a delayed activity before this end is ignored.
    floor: u64,
}

impl RecentTimes {
    /// Adds the busy period from `start` to `end`. Returns the duration in ns of the part of this period in which the
    /// stream was not busy so far.
    fn add(&mut self, start: u64, end: u64) -> u64 {
        let start = start.max(self.floor);
        if start >= end {
            return 0;
        }
        let known = &self.times[..self.len];
        let first = known.iter().position(|time| time.1 >= start).unwrap_or(self.len);
        let after = known.iter().position(|time| time.0 > end).unwrap_or(self.len);
        let merged = &known[first..after.max(first)];
        let covered: u64 = merged.iter().map(|time| time.1.min(end) - time.0.max(start)).sum();
        let from = merged.first().map_or(start, |time| time.0.min(start));
        let to = merged.last().map_or(end, |time| time.1.max(end));
        let mut times: [(u64, u64); MAX_RECENT + 1] = [(0, 0); MAX_RECENT + 1];
        times[..first].copy_from_slice(&known[..first]);
        times[first] = (from, to);
        let rest = &known[first + merged.len()..];
        times[first + 1..=first + rest.len()].copy_from_slice(rest);
        let len = first + 1 + rest.len();
        let dropped = len.saturating_sub(MAX_RECENT);
        if dropped > 0 {
            self.floor = times[0].1;
        }
        self.len = len - dropped;
        self.times[..self.len].copy_from_slice(&times[dropped..len]);
        end - start - covered
    }
}

impl StreamSums {
    /// Adds an activity that has usable times.
    pub(super) fn add(&mut self, activity: &Activity) {
        let stream = (activity.context, activity.stream);
        if self.sums.get(self.last).is_none_or(|sum| sum.stream != stream) {
            self.last = self.index_of(stream);
        }
        let sum = self.sums.get_mut(self.last).unwrap_or(&mut self.others);
        sum.count += 1;
        let nanos = match self.last < MAX_STREAMS {
            true => sum.recent.add(activity.start.0, activity.end.0),
            false => activity.duration().unwrap_or(0),
        };
        sum.nanos = sum.nanos.saturating_add(nanos);
    }

    fn index_of(&mut self, stream: (GpuContextId, StreamId)) -> usize {
        if let Some(&index) = self.indices.get(&stream) {
            return index as usize;
        }
        if self.sums.len() == MAX_STREAMS {
            return MAX_STREAMS;
        }
        self.sums.push(StreamSum { stream, ..StreamSum::default() });
        self.indices.insert(stream, (self.sums.len() - 1) as u32);
        self.sums.len() - 1
    }

    /// Returns the sums for each stream. All streams beyond the limit are combined into one entry without a stream id.
    pub(super) fn uses(&self, device: DeviceId) -> impl Iterator<Item = StreamUse> {
        let known = self.sums.iter().map(|sum| (Some(sum.stream), sum));
        let others = (self.others.count > 0).then_some((None, &self.others));
        known.chain(others).map(move |(stream, sum)| StreamUse {
            device,
            stream,
            count: sum.count,
            nanos: sum.nanos,
        })
    }

    pub(super) fn heap_bytes(&self) -> usize {
        map_bytes(&self.indices) + self.sums.capacity() * size_of::<StreamSum>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_of_a_stream_is_the_union_of_its_activities_in_any_order() {
        let busy = |times: &[(u64, u64)]| {
            let mut recent = RecentTimes::default();
            times.iter().map(|&(start, end)| recent.add(start, end)).sum::<u64>()
        };
        assert_eq!(busy(&[(10, 30), (28, 48)]), 38);
        assert_eq!(busy(&[(28, 48), (10, 30), (12, 20)]), 38);
        assert_eq!(busy(&[(10, 20), (30, 40), (50, 60), (15, 55)]), 50);
        assert_eq!(busy(&[(10, 20), (20, 30), (30, 30)]), 20);
        let many: Vec<_> = (0..100).map(|at| (at * 10, at * 10 + 12)).collect();
        assert_eq!(busy(&many), 1002);
    }
}

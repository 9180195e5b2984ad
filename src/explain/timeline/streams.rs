//! Sums of work by stream of a device.

use gpuflame_model::profile::StreamUse;
use gpuflame_model::record::{Activity, DeviceId, GpuContextId, IdMap, StreamId, map_bytes};

/// Maximum number of streams that are summed separately. A program that creates a stream per request must not fill memory
/// with streams, so the work of further streams is summed together.
const MAX_STREAMS: usize = 4096;

/// Sums of the streams of one device. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamSums {
    indices: IdMap<(GpuContextId, StreamId), u32>,
    sums: Vec<StreamSum>,
    /// Index of the last activity's stream, which is tried first because most activities of a stream arrive in runs.
    last: usize,
    others: StreamSum,
}

#[derive(Clone, Copy, Debug, Default)]
struct StreamSum {
    stream: (GpuContextId, StreamId),
    count: u64,
    nanos: u64,
}

impl StreamSums {
    /// Adds an activity with a duration of `nanos`.
    pub(super) fn add(&mut self, activity: &Activity, nanos: u64) {
        let stream = (activity.context, activity.stream);
        if self.sums.get(self.last).is_none_or(|sum| sum.stream != stream) {
            self.last = self.index_of(stream);
        }
        let sum = self.sums.get_mut(self.last).unwrap_or(&mut self.others);
        sum.count += 1;
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

    /// Sums by stream. All streams beyond the limit are one entry without a stream.
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

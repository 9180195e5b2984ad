//! Finds the times in which the streams of a GPU were busy.
//!
//! The busy intervals of all streams are merged in order of time, so only the union of the intervals is stored.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::collect::{StreamKey, StreamOp, StreamRows};
use super::sums::{Concurrency, SpanSums};
use gpuflame_model::record::DeviceId;

/// Id that CUPTI gives to the legacy default stream of a CUDA context.
const DEFAULT_STREAM: u32 = 7;

/// Times in which the streams of a device were busy.
pub(super) struct DeviceBusy {
    pub(super) id: DeviceId,
    /// Union of the busy intervals of all streams.
    pub(super) busy: Vec<(u64, u64)>,
    /// Busy intervals of the default streams. The list of default streams is empty if the device has only one stream.
    defaults: Vec<(StreamKey, Vec<(u64, u64)>)>,
    pub(super) concurrency: Concurrency,
    /// Total busy time of all streams for each part of the shown time.
    pub(super) streams: SpanSums,
}

impl DeviceBusy {
    /// Finds the busy times of device `id`. `parts` are empty sums over the shown time.
    pub(super) fn new(rows: &StreamRows, id: DeviceId, parts: &SpanSums) -> Self {
        let shown = parts.shown();
        let own = (0..).zip(&rows.keys).filter(|(_, key)| key.0 == id);
        let mut running: Vec<_> = own.clone().map(|(number, _)| Running::new(rows.ops_of(number))).collect();
        let mut defaults: Vec<(StreamKey, Vec<(u64, u64)>)> = Vec::new();
        if running.len() > 1 {
            let of_defaults = own.filter(|(_, key)| key.2.0 == DEFAULT_STREAM);
            defaults.extend(of_defaults.map(|(at, key)| (*key, Running::new(rows.ops_of(at)).collect())));
        }
        let (mut streams, count_of_streams) = (parts.clone(), running.len());
        let mut next_of = |stream: usize| {
            let next = running[stream].next()?;
            streams.add(next.0, next.1);
            Some(next)
        };
        // Next start or end on each stream. If a start and an end have the same time, the start comes first, so that
        // intervals that touch are merged.
        let mut edges: BinaryHeap<Reverse<(u64, Edge, usize)>> = BinaryHeap::new();
        let first = |stream| {
            let (start, end) = next_of(stream)?;
            Some(Reverse((start, Edge::Start { end }, stream)))
        };
        edges.extend((0..count_of_streams).filter_map(first));
        let (mut busy, mut since, mut count, mut at) = (Vec::new(), 0, 0, shown.0);
        // The heap is small, because at most one interval per stream is open at any time.
        let mut by_count: Vec<u64> = vec![0];
        let mut pass = |count: usize, time: u64| {
            let time = time.min(shown.1);
            if time > at {
                by_count.resize(by_count.len().max(count + 1), 0);
                by_count[count] += time - at;
                at = time;
            }
        };
        while let Some(mut top) = edges.peek_mut() {
            let Reverse((time, edge, stream)) = *top;
            pass(count, time);
            match edge {
                Edge::Start { end } => {
                    if count == 0 {
                        since = time;
                    }
                    count += 1;
                    *top = Reverse((end, Edge::End, stream));
                }
                Edge::End => {
                    count -= 1;
                    if count == 0 {
                        busy.push((since, time));
                    }
                    match next_of(stream) {
                        Some((start, end)) => *top = Reverse((start, Edge::Start { end }, stream)),
                        None => drop(std::collections::binary_heap::PeekMut::pop(top)),
                    }
                }
            }
        }
        pass(0, shown.1);
        let concurrency = (0..).zip(by_count).filter(|(_, nanos)| *nanos > 0).collect();
        Self { id, busy, defaults, concurrency, streams }
    }

    /// Returns the busy intervals in which this stream has to wait because of the rule of default streams. A default
    /// stream waits in the busy intervals of all streams. A stream that is not a default stream waits in the busy
    /// intervals of the default stream in its CUDA context.
    pub(super) fn blocking(&self, key: StreamKey) -> &[(u64, u64)] {
        if key.2.0 == DEFAULT_STREAM {
            return &self.busy;
        }
        let default = self.defaults.iter().find(|(other, _)| other.1 == key.1);
        default.map_or(&[], |(_, times)| times.as_slice())
    }
}

/// Start or end of a busy interval. At equal times, starts sort before ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Edge {
    Start { end: u64 },
    End,
}

/// Iterator over the busy intervals of one stream. The busy intervals are computed from the stream's operations, which
/// must be sorted by start. Busy intervals that touch are merged.
struct Running<I> {
    ops: I,
    open: Option<(u64, u64)>,
}

impl<I: Iterator<Item = StreamOp>> Running<I> {
    fn new(ops: I) -> Self {
        Self { ops, open: None }
    }
}

impl<I: Iterator<Item = StreamOp>> Iterator for Running<I> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        for op in self.ops.by_ref().filter(|op| op.start < op.end) {
            match &mut self.open {
                Some((_, end)) if op.start <= *end => *end = (*end).max(op.end),
                open => {
                    if let Some(over) = open.replace((op.start, op.end)) {
                        return Some(over);
                    }
                }
            }
        }
        self.open.take()
    }
}

//! Pairs the separate begin and end events of slices, in any order in which the file has them.

use super::slices::Slice;
use super::work::CallRecord;

/// Begin and end events of one thread.
#[derive(Debug, Default)]
pub(super) struct SliceEdges(Vec<SliceEdge>);

#[derive(Debug)]
enum SliceEdge {
    /// The slice that begins; its `end` is not known yet.
    Begin(Slice),
    End(i64),
}

impl SliceEdge {
    fn time(&self) -> i64 {
        match self {
            Self::Begin(interval) => interval.start,
            Self::End(time) => *time,
        }
    }
}

impl SliceEdges {
    pub(super) fn add_begin(&mut self, interval: Slice) {
        self.0.push(SliceEdge::Begin(interval));
    }

    pub(super) fn add_end(&mut self, time: i64) {
        self.0.push(SliceEdge::End(time));
    }

    /// Pairs the events and appends the resulting slices to `slices`. An end event closes the slice that began last.
    /// An end event without a begin event is ignored, and a slice without an end event lasts to the end of the trace.
    /// Calls get their end times.
    pub(super) fn pair_into_slices(&mut self, calls: &mut [CallRecord], slices: &mut Vec<Slice>) {
        let mut edges = std::mem::take(&mut self.0);
        edges.sort_by_key(SliceEdge::time);
        let last = edges.last().map_or(0, SliceEdge::time);
        let mut open = Vec::new();
        let mut close = |mut interval: Slice, end: i64| {
            if let Some(call) = interval.call() {
                calls[call as usize].end = end.min(last);
            }
            interval.end = end;
            slices.push(interval);
        };
        for edge in edges {
            match edge {
                SliceEdge::Begin(interval) => open.push(interval),
                SliceEdge::End(time) => {
                    if let Some(interval) = open.pop() {
                        close(interval, time);
                    }
                }
            }
        }
        open.into_iter().for_each(|interval| close(interval, i64::MAX));
    }
}

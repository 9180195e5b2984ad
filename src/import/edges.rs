//! Slices whose beginning and end are events of their own, in whatever order the file has them.

use super::slices::Interval;
use super::work::CallRecord;

/// Beginnings and ends of one thread.
#[derive(Debug, Default)]
pub(super) struct Edges(Vec<Edge>);

#[derive(Debug)]
enum Edge {
    /// Its `end` is not known yet.
    Begin(Interval),
    End(i64),
}

impl Edge {
    fn time(&self) -> i64 {
        match self {
            Self::Begin(interval) => interval.start,
            Self::End(time) => *time,
        }
    }
}

impl Edges {
    pub(super) fn begin(&mut self, interval: Interval) {
        self.0.push(Edge::Begin(interval));
    }

    pub(super) fn end(&mut self, time: i64) {
        self.0.push(Edge::End(time));
    }

    /// Adds the slices to `slices`: an end ends the slice that began last; one that never ends lasts to the end of the
    /// trace, and an end without a beginning is nothing. Calls get their ends.
    pub(super) fn slices(&mut self, calls: &mut [CallRecord], slices: &mut Vec<Interval>) {
        let mut edges = std::mem::take(&mut self.0);
        edges.sort_by_key(Edge::time);
        let last = edges.last().map_or(0, Edge::time);
        let mut open = Vec::new();
        let mut close = |mut interval: Interval, end: i64| {
            if let Some(call) = interval.call() {
                calls[call as usize].end = end.min(last);
            }
            interval.end = end;
            slices.push(interval);
        };
        for edge in edges {
            match edge {
                Edge::Begin(interval) => open.push(interval),
                Edge::End(time) => {
                    if let Some(interval) = open.pop() {
                        close(interval, time);
                    }
                }
            }
        }
        open.into_iter().for_each(|interval| close(interval, i64::MAX));
    }
}

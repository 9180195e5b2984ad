//! Pairs the begin event and the end event of each slice. The file may contain these events in any order.
//!
//! An end event closes the last open slice on its thread that has the same category and name. If the begin event or the
//! end event has no category, only the names must be equal. If one of the two events has no name, only the categories
//! must be equal. An end event that matches no open slice is counted and ignored. Slices of unknown categories are
//! paired as well, because their end events would otherwise close other slices.

use super::call_records::CallRecords;
use super::op_records::OpRecords;
use super::slice_runs::SliceRuns;
use super::slices::Slice;

/// Maximum number of open slices that are compared with an end event, beginning with the innermost slice. Without this
/// limit, an end event that matches no slice would be compared with all open slices.
const MAX_COMPARED: usize = 1024;

/// Begin and end events on one thread.
#[derive(Debug, Default)]
pub(super) struct SliceEdges(Vec<SliceEdge>);

/// A begin or end event of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct SliceEdge {
    pub(super) time: i64,
    /// Indexes of the category and the name. An index is 0 if the event has no category or name.
    pub(super) words: (u32, u32),
    pub(super) kind: EdgeKind,
}

/// Kind of a begin or end event.
#[derive(Clone, Copy, Debug)]
pub(super) enum EdgeKind {
    /// The beginning of a slice. The field `end` of this slice is not set yet.
    Slice(Slice),
    /// The beginning of a GPU operation. The variant contains the index of the operation.
    Work(u32),
    /// The beginning of a slice that never becomes part of a stack.
    Unknown,
    /// The end of a slice. The variant contains the correlation id in the arguments of this end event.
    End(Option<u64>),
}

/// Number of begin events without an end event, and number of end events without a begin event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnpairedEdges {
    pub(super) begins: u64,
    pub(super) ends: u64,
}

impl SliceEdges {
    pub(super) fn add(&mut self, edge: SliceEdge) {
        self.0.push(edge);
    }

    /// Pairs the events, and appends the slices to `slices`. A slice without an end event lasts until the end of the
    /// trace. A call without an end event lasts until the thread's last begin or end event. The end times of the calls
    /// and operations are set as well. The end of an operation without an end event is set to `i64::MIN`.
    pub(super) fn pair_into_slices(
        &mut self,
        calls: &mut CallRecords,
        ops: &mut OpRecords,
        slices: &mut SliceRuns,
        unpaired: &mut UnpairedEdges,
    ) {
        let mut edges = std::mem::take(&mut self.0);
        edges.sort_by_key(|edge| edge.time);
        let last = edges.last().map_or(0, |edge| edge.time);
        let mut open: Vec<SliceEdge> = Vec::new();
        let mut close = |begin: SliceEdge, end: i64, id: Option<u64>| match begin.kind {
            EdgeKind::Slice(mut slice) => {
                if let Some(call) = slice.call() {
                    calls.set_end(call, end.min(last));
                    if calls.correlation_of(call) == 0 {
                        calls.set_correlation(call, id.unwrap_or(0));
                    }
                }
                slice.end = end;
                slices.push(slice);
            }
            EdgeKind::Work(op) => {
                ops.set_end(op, if end == i64::MAX { i64::MIN } else { end });
                ops.add_correlation(op, id.unwrap_or(0));
            }
            EdgeKind::Unknown | EdgeKind::End(_) => {}
        };
        for edge in edges {
            let EdgeKind::End(id) = edge.kind else {
                open.push(edge);
                continue;
            };
            let fits = |begin: &SliceEdge| {
                let same = |a: u32, b: u32| a == b || a == 0 || b == 0;
                same(begin.words.0, edge.words.0) && same(begin.words.1, edge.words.1)
            };
            let innermost = open.len().saturating_sub(MAX_COMPARED);
            match open[innermost..].iter().rposition(fits) {
                Some(at) => close(open.remove(innermost + at), edge.time, id),
                None => unpaired.ends += 1,
            }
        }
        unpaired.begins += open.len() as u64;
        open.into_iter().for_each(|begin| close(begin, i64::MAX, None));
    }
}

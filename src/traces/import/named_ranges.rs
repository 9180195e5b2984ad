//! Collects the ranges that the program named (annotated ranges or NVTX ranges), with their times. The list of ranges
//! is needed because rows contain such ranges only as frames of stacks, without times.

use std::collections::HashMap;
use std::sync::Arc;

use super::slices::FrameClass;
use super::trace_collector::TraceCollector;
use gpuflame_model::record::{Nanos, ThreadId};

/// A range that the program named (with `record_function` or NVTX), or a step that the profiler marked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedRange {
    /// Start time, on the clock of the rows.
    pub start: Nanos,
    /// End time, on the clock of the rows.
    pub end: Nanos,
    /// Id of the thread that opened the range.
    pub thread: ThreadId,
    /// Name of the range.
    pub name: Arc<str>,
}

impl TraceCollector {
    /// Returns the ranges and steps of all threads, sorted by start. Call this function after begin and end events were
    /// paired, and before the slices are converted to stacks. `to_rows` converts a time to the clock of the rows.
    pub(super) fn named_ranges(&self, to_rows: &dyn Fn(i64) -> Nanos) -> Vec<NamedRange> {
        // The text of each name is stored only once, because a few names occur thousands of times in most traces.
        let mut names: HashMap<u32, Arc<str>> = HashMap::new();
        let mut ranges = Vec::new();
        for (thread, slices) in self.thread_numbers().into_iter().zip(&self.slices) {
            for slice in slices.iter().filter(|slice| slice.class() == FrameClass::Range) {
                let label = slice.label();
                let name = names.entry(label).or_insert_with(|| self.labels.text(label).into());
                let (start, end) = (to_rows(slice.start), to_rows(slice.end));
                ranges.push(NamedRange { start, end, thread, name: Arc::clone(name) });
            }
        }
        ranges.sort_unstable();
        ranges
    }
}

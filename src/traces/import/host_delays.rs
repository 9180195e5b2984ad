//! Finds the stacks that a thread had while it delayed a GPU. A thread delays a GPU while the GPU is idle because the
//! thread has not yet launched the GPU's next work.
//!
//! The launch at the end of an idle gap does not explain the gap. The launch was late because the thread did something
//! else before. So the part of the gap in which the thread was late is divided into pieces. There is one piece for each
//! slice that was the innermost open slice of the thread. If this slice only groups other slices (as a range or step
//! does), or if no slice was open, the piece is labelled with the slices before and after it.

use super::call_records::CallRecords;
use super::name_table::NameTable;
use super::op_records::{OpRecord, OpRecords};
use super::slices::{FrameClass, ROOT, Slice, StackTree};
use super::text::Text;
use super::thread_states::ThreadStates;
use gpuflame_model::record::IdMap;

/// Text that occurs in the names of Python's lock functions. A lock function waits for another thread.
const LOCK_FUNCTION: &str = "'acquire' of '_thread.";
/// Frame that is added on top of a lock function.
const LOCK_WAIT: &str = "[waits for another thread]";

/// Time spans in which one thread was late with a launch, and the stacks that the thread had during these spans. See
/// the module's documentation.
#[derive(Debug, Default)]
pub(super) struct HostDelays {
    /// Time spans for which the stacks are requested. The spans are sorted and do not overlap.
    spans: Vec<(i64, i64)>,
    /// Index of the first span that has not ended.
    at: usize,
    /// Current state of the thread, and the time at which this state began.
    state: (i64, SliceState),
    /// Label of the slice that most recently ended at the nesting depth of the current state.
    before: Option<u32>,
    /// Stacks that the thread had during the requested spans. At the end of each span, there is a state with the empty
    /// stack.
    pub(super) states: ThreadStates,
    /// All labels of the trace, and the labels of gaps between two slices.
    pub(super) labels: GapLabels,
}

#[derive(Clone, Copy, Debug)]
enum SliceState {
    /// The thread is inside the innermost slice of this stack.
    Working(u32),
    /// The thread is inside the innermost slice of this stack. The innermost slice of this stack only groups other
    /// slices.
    Framing(u32),
}

impl Default for SliceState {
    fn default() -> Self {
        Self::Framing(ROOT)
    }
}

/// All labels of a trace, and also the labels of gaps between two slices.
#[derive(Debug, Default)]
pub(super) struct GapLabels {
    labels: NameTable,
    /// Label of each gap, keyed by the labels of the slice before and the slice after the gap.
    gaps: IdMap<(u32, u32), u32>,
    lock_waits: IdMap<u32, bool>,
}

const NO_LABEL: u32 = u32::MAX;

impl GapLabels {
    /// Creates the table from the labels of a trace.
    pub(super) fn new(labels: NameTable) -> Self {
        Self { labels, ..Self::default() }
    }

    /// Returns all labels of the trace, including the labels of gaps.
    pub(super) fn into_labels(self) -> NameTable {
        self.labels
    }

    fn gap_label(&mut self, before: Option<u32>, after: Option<u32>) -> Option<u32> {
        let (a, b) = (before.unwrap_or(NO_LABEL), after.unwrap_or(NO_LABEL));
        if let Some(&label) = self.gaps.get(&(a, b)) {
            return Some(label);
        }
        let name = |label| self.labels.text(label);
        let text = match (before, after) {
            (Some(before), Some(after)) => format!("[between {} and {}]", name(before), name(after)),
            (Some(before), None) => format!("[after {}]", name(before)),
            (None, Some(after)) => format!("[before {}]", name(after)),
            (None, None) => return None,
        };
        let label = self.labels.intern(Text::from(&*text));
        self.gaps.insert((a, b), label);
        Some(label)
    }

    /// Returns the label that is shown for a wait, if `label` is the name of a function that waits for another thread.
    fn lock_wait_label(&mut self, label: u32) -> Option<u32> {
        let is_wait =
            *self.lock_waits.entry(label).or_insert_with(|| self.labels.text(label).contains(LOCK_FUNCTION));
        is_wait.then(|| self.labels.intern(Text::from(LOCK_WAIT)))
    }
}

impl HostDelays {
    /// Creates the state for one thread. The spans in `spans` may be in any order, and may overlap.
    pub(super) fn new(mut spans: Vec<(i64, i64)>, labels: GapLabels) -> Self {
        spans.sort_unstable();
        spans.dedup_by(|next, kept| {
            let overlaps = next.0 <= kept.1;
            if overlaps {
                kept.1 = kept.1.max(next.1);
            }
            overlaps
        });
        Self { spans, labels, state: (i64::MIN, SliceState::default()), ..Self::default() }
    }

    /// Whether the next requested span begins before `time`.
    pub(super) fn is_requested_before(&self, time: i64) -> bool {
        self.spans.get(self.at).is_some_and(|(from, _)| *from < time)
    }

    /// Processes the beginning of a slice.
    pub(super) fn on_slice_begin(&mut self, slice: &Slice, node: u32, tree: &mut StackTree) {
        if self.at == self.spans.len() {
            return;
        }
        self.record_until(slice.start, Some(slice.label()), tree);
        self.before = None;
        self.state = (slice.start, slice_state(node, slice.class()));
        if let Some(label) = (slice.class() == FrameClass::Python)
            .then(|| self.labels.lock_wait_label(slice.label()))
            .flatten()
        {
            self.state.1 = SliceState::Working(tree.child((node, label, FrameClass::Call)));
        }
    }

    /// Processes the end of one or more slices at `time`. `over` contains the label of the innermost slice that ended,
    /// and the innermost slice that is still open at `time`.
    pub(super) fn on_slices_end(
        &mut self,
        time: i64,
        over: Option<(u32, Option<(u32, FrameClass)>)>,
        tree: &mut StackTree,
    ) {
        self.record_until(time, None, tree);
        let Some((label, open)) = over else { return };
        self.before = Some(label);
        self.state = (time, open.map_or_else(SliceState::default, |(node, class)| slice_state(node, class)));
    }

    /// Adds those parts of the current state that are in requested spans. The current state lasts until `time`. `next`
    /// is the label of the slice that begins at `time`.
    fn record_until(&mut self, time: i64, next: Option<u32>, tree: &mut StackTree) {
        let (since, state) = self.state;
        while let Some(&(from, to)) = self.spans.get(self.at)
            && from < time
        {
            let begin = from.max(since);
            if begin < to.min(time) {
                let stack = match state {
                    SliceState::Working(stack) => stack,
                    SliceState::Framing(stack) => match self.labels.gap_label(self.before, next) {
                        Some(label) => tree.child((stack, label, FrameClass::Range)),
                        None => stack,
                    },
                };
                self.states.push(begin, stack);
            }
            if to > time {
                return;
            }
            self.states.push(to, ROOT);
            self.at += 1;
        }
    }
}

fn slice_state(node: u32, class: FrameClass) -> SliceState {
    if class == FrameClass::Range { SliceState::Framing(node) } else { SliceState::Working(node) }
}

/// Returns the indexes of the operations that have a duration, sorted by device and start time.
pub(super) fn ops_by_device(ops: &OpRecords, calls: &CallRecords) -> Vec<u32> {
    let timed = (0..).zip(ops.iter()).filter(|(_, op)| op.end > op.start);
    let mut order: Vec<u32> = timed.map(|(at, _)| at).collect();
    order.sort_unstable_by_key(|&at| {
        let op = ops.get(at);
        (op.shape.device, op.start, op.call().map_or(i64::MIN, |call| calls.start_of(call)))
    });
    order
}

/// Returns, for each of `threads` threads, the time spans in which it delayed a GPU. In such a span, the GPU ran none
/// of the operations that `counted` selects, because the thread had not yet launched the next of these operations.
/// `ops` must be in the order of [`ops_by_device`].
pub(super) fn delay_spans<'a>(
    ops: impl Iterator<Item = OpRecord<'a>>,
    calls: &CallRecords,
    threads: usize,
    counted: impl Fn(&OpRecord<'_>) -> bool,
) -> Vec<Vec<(i64, i64)>> {
    let mut spans = vec![Vec::new(); threads];
    // Device, start of the previous operation, latest end of all operations before the previous one, and latest end of
    // all operations including the previous one.
    let mut busy: Option<(u32, i64, i64, i64)> = None;
    for op in ops.filter(|op| counted(op)) {
        let device = op.shape.device;
        let (until, including) = match busy.filter(|(of, ..)| *of == device) {
            // A gap may end with operations of several threads, if these operations start at the same time.
            Some((_, start, before, including)) if start == op.start => (before, including),
            Some((.., including)) => (including, including),
            None => (op.start, op.start),
        };
        if let Some(call) = op.call().map(|call| calls.get(call)) {
            let late = call.start.clamp(until, op.start.max(until));
            if late > until {
                spans[call.thread as usize].push((until, late));
            }
        }
        busy = Some((device, op.start, until, including.max(op.end)));
    }
    spans
}

/// Returns, for each of `threads` threads, the time spans between its first and its last call in which the thread was
/// not in a launching call.
pub(super) fn between_launches(calls: &CallRecords, threads: usize) -> Vec<Vec<(i64, i64)>> {
    let mut launches: Vec<Vec<(i64, i64)>> = vec![Vec::new(); threads];
    let mut bounds = vec![(i64::MAX, i64::MIN); threads];
    for call in calls.iter() {
        let thread = call.thread as usize;
        let (first, last) = &mut bounds[thread];
        (*first, *last) = ((*first).min(call.start), (*last).max(call.end));
        if call.ops > 0 {
            launches[thread].push((call.start, call.end));
        }
    }
    for (launches, (first, last)) in launches.iter_mut().zip(bounds) {
        launches.sort_unstable();
        launches.push((last, last));
        let mut over = first;
        let spans = launches.iter().filter_map(|&(start, end)| {
            let span = (over, start);
            over = over.max(end);
            (span.0 < span.1).then_some(span)
        });
        *launches = spans.collect();
    }
    launches
}

/// Extends each span backwards, to the end of the launch that the thread made directly before the span.
pub(super) fn since_last_launch(
    mut spans: Vec<Vec<(i64, i64)>>,
    calls: &CallRecords,
) -> Vec<Vec<(i64, i64)>> {
    let mut ends: Vec<Vec<i64>> = vec![Vec::new(); spans.len()];
    for call in calls.iter().filter(|call| call.ops > 0) {
        ends[call.thread as usize].push(call.end);
    }
    for (spans, ends) in spans.iter_mut().zip(&mut ends) {
        ends.sort_unstable();
        for (from, _) in spans {
            let before = ends.partition_point(|end| *end <= *from);
            *from = before.checked_sub(1).map_or(*from, |at| ends[at]);
        }
    }
    spans
}

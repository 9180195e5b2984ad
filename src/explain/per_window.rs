//! Computes sums for each window, for windows that get their own output files. The sums of each window are computed
//! separately, in addition to the sums of the whole run. When all GPU work of a window has ended, the window's sums are
//! removed and returned ([`PerWindowSums::take_finished`]).
//!
//! A launch belongs to the first window that was not closed yet when the launch began. To find the window of a launch,
//! the time in the launch's row is compared with the times at which windows opened and closed. While a window is open,
//! a GPU may run work that was launched in another window or outside all windows. Work that was not launched in the
//! open window counts only as busy time of that window. GPU work whose activity arrives after its window was removed is
//! *late*. Late work is counted, but no output file contains it.
//!
//! The number of separate windows is limited. If a run has more windows, the further windows are added to the last
//! separate window.

use std::collections::VecDeque;

use crate::aggregate::{Aggregate, HostSums};
use crate::graphs::NodeTally;
use crate::join::{Launched, Origin, Sink, Tally};
use crate::timeline::Timeline;
use gpuflame_model::profile::StepTotals;
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, Launch, MemoryCall, Missing, NameId, Nanos, Row, Step, ThreadId,
    Unified, WindowEdge,
};

/// A graph counts as finished after this number of flushes that deliver no work of the graph. One flush is not enough,
/// because the flush may have begun before the graph's last work ended.
const FLUSHES_UNTIL_FINISHED: u8 = 2;

/// Sums of all windows that were not removed so far. See the module's documentation.
#[derive(Debug)]
pub struct PerWindowSums {
    /// Windows in the order in which they were opened. A window that is removed before an earlier window stays in the
    /// list, without its sums.
    windows: VecDeque<TrackedWindow>,
    /// Number of windows that were removed from the front of `windows`. `removed_until` is the time at which the last
    /// of these windows closed.
    removed: u64,
    removed_until: Nanos,
    max_windows: u64,
    by_stream: bool,
    /// Number of windows that were opened, including windows that were merged into the last one.
    opened: u64,
    /// Number of windows, from the first window of the run, whose launches were all read from the log.
    read: u64,
    late: LateArrivals,
}

/// Launches and activities that arrived after their window was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LateArrivals {
    /// Number of launches that arrived after their window was removed.
    pub launches: u64,
    /// Number of activities that arrived after their window was removed.
    pub activities: u64,
    /// Total duration in nanoseconds of activities that arrived after their window was removed.
    pub nanos: u64,
}

#[derive(Debug)]
struct TrackedWindow {
    /// Time at which the window was closed; `None` while the window is open.
    closed: Option<Nanos>,
    /// Sums of the window; `None` after the sums were removed.
    sums: Option<Box<WindowSums>>,
}

/// Sums of one window.
#[derive(Debug)]
pub struct WindowSums {
    /// Sequence number of the window in the run, starting at 1.
    pub number: u64,
    /// Times at which the window was opened and closed. The last separate window may have been opened and closed
    /// several times.
    pub edges: Vec<(WindowEdge, Nanos)>,
    pub(super) aggregate: Aggregate,
    pub(super) timeline: Timeline,
    pub(super) host: HostSums,
    pub(super) tally: Tally,
    pub(super) nodes: NodeTally,
    pub(super) steps: StepTotals,
    /// Number of further flushes without graph work that are needed until the window's graphs count as finished.
    flushes_left: u8,
}

impl PerWindowSums {
    /// Creates an empty list of at most `max_windows` separate windows.
    pub(super) fn new(max_windows: u64, by_stream: bool) -> Self {
        Self {
            windows: VecDeque::new(),
            removed: 0,
            removed_until: Nanos(0),
            max_windows: max_windows.max(1),
            by_stream,
            opened: 0,
            read: 0,
            late: LateArrivals::default(),
        }
    }

    /// Returns the number of windows that were opened so far.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// Whether more windows were opened than are summed separately. In that case, the sums of the last separate window
    /// cover several windows.
    pub fn is_full(&self) -> bool {
        self.opened > self.max_windows
    }

    /// Returns the counts of launches and activities that arrived after their window was removed.
    pub fn late(&self) -> LateArrivals {
        self.late
    }

    /// Handles a window edge that is recorded only because the clock changed. An edge for a changed clock neither adds
    /// nor closes a window.
    pub(super) fn push_clock_edge(&mut self, edge: &Row<'_>) {
        let last = self.windows.back_mut().filter(|window| window.closed.is_none());
        if let Some(sums) = last.and_then(|last| last.sums.as_mut()) {
            sums.timeline.row(edge);
        }
    }

    /// Handles an edge that opens or closes a window.
    pub(super) fn push_edge(&mut self, edge: WindowEdge, time: Nanos) {
        if edge == WindowEdge::Open {
            self.opened += 1;
            if self.opened <= self.max_windows {
                let sums = Box::new(WindowSums::new(self.opened, self.by_stream));
                self.windows.push_back(TrackedWindow { closed: None, sums: Some(sums) });
            }
        }
        let Some(last) = self.windows.back_mut() else { return };
        last.closed = (edge == WindowEdge::Close).then_some(time);
        if let Some(sums) = &mut last.sums {
            sums.edges.push((edge, time));
            sums.timeline.row(&Row::Window { edge, time });
        }
    }

    /// Counts a launch in the window that it belongs to. This function is not called for a row that only gives a launch
    /// a second id.
    pub(super) fn count_launch(&mut self, launch: &Launch) {
        match self.index_at(launch.time).and_then(|at| self.windows[at].sums.as_mut()) {
            Some(sums) => sums.tally.launches.seen += 1,
            None => self.late.launches += 1,
        }
    }

    /// Adds a step to the window in which the step began.
    pub(super) fn add_step(&mut self, step: &Step<'_>) {
        if let Some(sums) = self.sums_at(step.time) {
            sums.steps.add(step);
        }
    }

    /// Adds a call of a thread to the window in which the call ended.
    pub(super) fn add_call(&mut self, thread: ThreadId, (begun, ended): (Nanos, Nanos), context: ContextId) {
        if let Some(sums) = self.sums_at(ended) {
            sums.timeline.add_call(thread, (begun, ended), context);
        }
    }

    /// Adds a launching call of a thread to the window in which the call began.
    pub(super) fn add_launch(
        &mut self,
        thread: ThreadId,
        (begun, ended): (Nanos, Nanos),
        context: ContextId,
    ) {
        if let Some(sums) = self.sums_at(begun) {
            sums.timeline.add_launch(thread, (begun, ended), context);
        }
    }

    /// Returns the number of closed windows, or `None` if the launches in all closed windows were already read from the
    /// log.
    pub fn unread_windows(&self) -> Option<u64> {
        let closed = self.windows.iter().filter(|window| window.closed.is_some()).count() as u64;
        let closed = self.removed + closed;
        (closed > self.read).then_some(closed)
    }

    /// Notes that all launches in the first `windows` windows were read from the log.
    pub fn note_windows_read(&mut self, windows: u64) {
        self.read = self.read.max(windows.min(self.removed + self.windows.len() as u64));
    }

    /// Processes a flush of the tracer, after all rows that the tracer delivered were pushed.
    pub(super) fn flushed(&mut self) {
        let sums = self.windows.iter_mut().filter_map(|window| window.sums.as_mut());
        sums.for_each(|sums| sums.flushes_left = sums.flushes_left.saturating_sub(1));
    }

    /// Removes and returns a window if all of its GPU work has ended, or if the window was closed before
    /// `abandon_before`. The last separate window is never returned, because later windows are added to it.
    pub fn take_finished(&mut self, abandon_before: Nanos) -> Option<Box<WindowSums>> {
        let (removed, read, max_windows) = (self.removed, self.read, self.max_windows);
        let is_due = |(at, window): (usize, &TrackedWindow)| {
            let number = removed + at as u64 + 1;
            let (Some(closed), Some(sums)) = (window.closed, &window.sums) else { return false };
            number < max_windows && (closed < abandon_before || number <= read && sums.is_over())
        };
        let at = self.windows.iter().enumerate().position(is_due)?;
        self.remove(at)
    }

    /// Removes and returns the first remaining window, even if the window is open or its work has not ended.
    pub fn take_first(&mut self) -> Option<Box<WindowSums>> {
        let at = self.windows.iter().position(|window| window.sums.is_some())?;
        self.remove(at)
    }

    fn remove(&mut self, at: usize) -> Option<Box<WindowSums>> {
        let sums = self.windows[at].sums.take();
        while let Some(TrackedWindow { closed: Some(closed), sums: None }) = self.windows.front() {
            self.removed_until = *closed;
            self.removed += 1;
            self.windows.pop_front();
        }
        sums
    }

    /// Replaces each context by the result of `context`, and each kernel by the result of `kernel`, and recomputes the
    /// sums.
    pub(super) fn rename(
        &mut self,
        context: impl Fn(ContextId) -> ContextId,
        kernel: impl Fn(NameId) -> NameId,
    ) {
        for sums in self.windows.iter_mut().filter_map(|window| window.sums.as_mut()) {
            sums.aggregate.rename(&context, &kernel);
            sums.timeline.rename(&context);
            sums.host.rename(&context);
        }
    }

    /// Returns the size in bytes of the heap memory that the sums of all windows use.
    pub(super) fn heap_bytes(&self) -> usize {
        let sums = self.windows.iter().filter_map(|window| window.sums.as_ref());
        sums.map(|sums| size_of::<WindowSums>() + sums.heap_bytes()).sum::<usize>()
            + self.windows.capacity() * size_of::<TrackedWindow>()
    }

    /// Returns the part of [`PerWindowSums::heap_bytes`] that grows with the number of stacks.
    pub(super) fn stack_bytes(&self) -> usize {
        let sums = self.windows.iter().filter_map(|window| window.sums.as_ref());
        sums.map(|sums| {
            sums.aggregate.cell_bytes() + sums.timeline.charge_bytes() + sums.host.context_bytes()
        })
        .sum()
    }

    /// Returns the index of the window to which a launch or call at `time` belongs.
    fn index_at(&self, time: Nanos) -> Option<usize> {
        if self.removed > 0 && time <= self.removed_until {
            return None;
        }
        // Check the last window first, because nearly all rows belong to it.
        let last = self.windows.len().checked_sub(1)?;
        if last == 0 || self.windows[last - 1].closed.is_some_and(|closed| closed < time) {
            return Some(last);
        }
        Some(self.windows.partition_point(|window| window.closed.is_some_and(|closed| closed < time)))
    }

    fn sums_at(&mut self, time: Nanos) -> Option<&mut WindowSums> {
        let at = self.index_at(time)?;
        self.windows[at].sums.as_deref_mut()
    }

    /// Counts `activity` as busy time in every window during which it ran, except in the window at index `own`.
    fn note_busy(&mut self, activity: &Activity, launched: Launched, own: Option<usize>) {
        let mut at = self.index_at(activity.start).unwrap_or(0);
        while let Some(TrackedWindow { sums, closed }) = self.windows.get_mut(at) {
            if let Some(sums) = sums
                && own != Some(at)
            {
                if sums.opened() > activity.end {
                    return;
                }
                sums.timeline.outside(activity, launched);
            }
            if closed.is_none_or(|closed| closed > activity.end) {
                return;
            }
            at += 1;
        }
    }

    fn count_late(&mut self, activity: &Activity) {
        self.late.activities += 1;
        self.late.nanos = self.late.nanos.saturating_add(activity.duration().unwrap_or(0));
    }
}

impl Sink for PerWindowSums {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        let (begun, elsewhere) = match origin {
            Origin::Launch(launched) => (launched.time, launched),
            Origin::Missing(_) => {
                (activity.start, Launched { time: activity.start, duration: 0, context: ContextId::NONE })
            }
        };
        let own = self.index_at(begun);
        match own.and_then(|at| self.windows[at].sums.as_deref_mut()) {
            Some(sums) => sums.add(activity, origin),
            None => self.count_late(activity),
        }
        // In these windows, idle time that ends when this activity begins is charged to `OUTSIDE` instead of a stack.
        self.note_busy(activity, Launched { context: ContextId::OUTSIDE, ..elsewhere }, own);
    }

    fn matched(&mut self, launched: Launched, is_graph: bool) {
        if let Some(sums) = self.sums_at(launched.time) {
            sums.tally.launches.matched += 1;
            sums.tally.launches.graphs += u64::from(is_graph);
        }
    }

    /// Receives a launch after the join has stopped waiting for the launch's activity. The launch counts as a launch
    /// without an activity, and its window can be removed.
    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        if let Some(sums) = self.sums_at(launched.time) {
            sums.pending(id, launched);
        }
    }

    fn outside(&mut self, activity: &Activity, launched: Launched) {
        self.note_busy(activity, launched, None);
    }

    fn memory(&mut self, call: &MemoryCall) {
        self.host_row(&Row::Memory(*call), Some(call.time));
    }

    fn unified(&mut self, unified: &Unified) {
        self.host_row(&Row::Unified(*unified), Some(unified.start));
    }

    fn host(&mut self, row: &Row<'_>) {
        let time = match row {
            Row::Wait(wait) => Some(wait.time),
            Row::EventCall(call) => Some(call.time),
            Row::Sync(sync) => Some(sync.start),
            Row::Sampled(sampled) => Some(sampled.time),
            Row::Blocked(blocked) => Some(blocked.time),
            _ => None,
        };
        self.host_row(row, time);
    }
}

impl PerWindowSums {
    /// Adds a row about the host's activity to the window that was open at `time`. A row without a time is added to the
    /// latest window.
    fn host_row(&mut self, row: &Row<'_>, time: Option<Nanos>) {
        let at = match time {
            Some(time) => self.index_at(time).filter(|at| self.windows[*at].contains(time)),
            None => self.windows.len().checked_sub(1),
        };
        if let Some(sums) = at.and_then(|at| self.windows[at].sums.as_mut()) {
            sums.host.row(row);
            match row {
                Row::Sampled(sampled) => sums.timeline.add_sample(sampled),
                Row::Blocked(blocked) => sums.timeline.add_wait(blocked),
                _ => {}
            }
        }
    }
}

impl TrackedWindow {
    fn contains(&self, time: Nanos) -> bool {
        self.sums.as_ref().is_some_and(|sums| sums.opened() <= time)
    }
}

impl WindowSums {
    fn new(number: u64, by_stream: bool) -> Self {
        Self {
            number,
            edges: Vec::new(),
            aggregate: if by_stream { Aggregate::by_stream() } else { Aggregate::default() },
            timeline: Timeline::default(),
            host: HostSums::default(),
            tally: Tally::default(),
            nodes: NodeTally::default(),
            steps: StepTotals::default(),
            flushes_left: 0,
        }
    }

    /// Returns the times of the window's first opening and last closing. All launches in the window began between these
    /// times.
    pub(super) fn span(&self) -> (Nanos, Nanos) {
        (self.opened(), self.edges.last().map_or(Nanos(u64::MAX), |(_, time)| *time))
    }

    /// Returns the number of launches that still wait for an activity.
    pub(super) fn open(&self) -> u64 {
        self.tally.launches.open()
    }

    /// Adds a launch that has no activity and will not get one any more.
    pub(super) fn pending(&mut self, id: CorrelationId, launched: Launched) {
        self.tally.launches.pending += 1;
        self.aggregate.pending(id, launched);
        self.timeline.pending(id, launched);
    }

    fn opened(&self) -> Nanos {
        self.edges.first().map_or(Nanos(0), |(_, time)| *time)
    }

    fn is_over(&self) -> bool {
        self.open() == 0 && self.flushes_left == 0
    }

    fn add(&mut self, activity: &Activity, origin: Origin) {
        let seen = &mut self.tally.activities;
        seen.seen += 1;
        match origin {
            Origin::Launch(Launched { context: ContextId::NONE, .. }) => seen.no_stack += 1,
            Origin::Launch(_) => seen.matched += 1,
            Origin::Missing(Missing::LaunchedBefore) => seen.launched_before += 1,
            Origin::Missing(Missing::DeviceGraph) => seen.device_graph += 1,
            Origin::Missing(_) => seen.no_stack += 1,
        }
        seen.untimed += u64::from(activity.duration().is_none());
        if let Origin::Launch(launched) = origin {
            seen.early += u64::from(activity.start.0 != 0 && activity.start < launched.time);
        }
        if let Some(created) = activity.created {
            self.nodes.add(created);
            self.flushes_left = FLUSHES_UNTIL_FINISHED;
        }
        self.aggregate.activity(activity, origin);
        self.timeline.activity(activity, origin);
    }

    fn heap_bytes(&self) -> usize {
        self.aggregate.heap_bytes() + self.timeline.heap_bytes() + self.host.context_bytes()
    }
}

//! Counts launches and activities with certain properties ([`RowFacts`]). The list of checks that is printed for a run
//! uses these counts. The counters are updated while rows are joined, and take a constant amount of memory.

use std::mem;

use super::join::{Launched, Origin, Sink};
use gpuflame_model::profile::{MAX_PLAUSIBLE_NS, RowFacts};
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, Detail, EventCall, GraphId, Nanos, Row, Wait, WindowEdge,
};

/// Counts and times from the rows so far, from which [`RowFacts`] are computed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowFactsCounter {
    /// Counts that never decrease. The fields `pending_at_end`, `queued`, `queued_graphs` and `ends_before_gpu` are not
    /// set here.
    counts: RowFacts,
    /// Time of the latest launch that has an activity.
    last_matched: Option<Nanos>,
    /// Whether the next activity is the first one of its launch.
    is_first: bool,
    /// Time in ns at which the latest GPU work ended.
    work_end: u64,
    /// Time in ns at which the last call or GPU work ended.
    last_event: u64,
    /// Longest time in ns from a launch call to the end of the launch's GPU work.
    longest: u64,
    at_end: PendingAtEnd,
    is_window_open: bool,
}

/// Launches that have no activity and were made after the last launch with an activity.
#[derive(Clone, Copy, Debug, Default)]
struct PendingAtEnd {
    count: u64,
    first: u64,
    latest: u64,
}

impl RowFactsCounter {
    /// Returns the final counts for the case that no more rows arrive. `queued` and `queued_graphs` are 0 in these
    /// counts.
    pub(super) fn facts(&self) -> RowFacts {
        let PendingAtEnd { count, first, .. } = self.at_end;
        let ends_before_gpu = count > 0 && first.saturating_add(self.longest) >= self.last_event;
        RowFacts { pending_at_end: count, ends_before_gpu, ..self.counts }
    }

    /// Whether the work of a launch was probably still in a queue when recording ended. The launch has no activity
    /// although all rows were read. The work of such a launch was probably still in a queue if two conditions hold: no
    /// later launch has an activity, and a GPU still ran earlier work when the launch was made.
    pub(super) fn is_queued(&self, launched: Launched) -> bool {
        self.last_matched.is_some_and(|last| launched.time > last) && launched.time.0 < self.work_end
    }

    /// Counts a window if `edge` closes it.
    pub(super) fn window(&mut self, edge: WindowEdge) {
        let was_open = mem::replace(&mut self.is_window_open, edge == WindowEdge::Open);
        self.counts.closed_windows += u64::from(was_open && edge == WindowEdge::Close);
    }

    /// Processes the row of an API call that waited or used a CUDA event.
    pub(super) fn host(&mut self, row: &Row<'_>) {
        match *row {
            Row::Wait(Wait { time, duration, .. }) => self.note_end(time.0.saturating_add(duration)),
            Row::EventCall(EventCall { time, duration, .. }) => {
                self.note_end(time.0.saturating_add(duration.into()));
            }
            _ => {}
        }
    }

    fn note_call(&mut self, launched: Launched) {
        self.note_end(launched.time.0.saturating_add(launched.duration.into()));
    }

    fn note_end(&mut self, end: u64) {
        self.last_event = self.last_event.max(end);
    }
}

impl Sink for RowFactsCounter {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        let (start, end) = (activity.start, activity.end);
        self.note_end(end.0);
        let computes =
            matches!(activity.detail, Detail::Kernel(_) | Detail::Graph) || activity.graph != GraphId(0);
        self.counts.covered_launches += u64::from(mem::take(&mut self.is_first) && computes);
        if let Origin::Launch(launched) = origin {
            self.longest = self.longest.max(end.0.saturating_sub(launched.time.0));
        }
        let Some(nanos) = activity.duration() else {
            self.counts.backwards += u64::from(start.0 != 0 && end.0 != 0);
            return;
        };
        self.work_end = self.work_end.max(end.0);
        self.counts.zero_length += u64::from(nanos == 0);
        self.counts.too_long += u64::from(nanos > MAX_PLAUSIBLE_NS);
        if matches!(origin, Origin::Launch(launched) if start < launched.time) {
            self.counts.early_ns = self.counts.early_ns.saturating_add(nanos);
        }
    }

    fn matched(&mut self, launched: Launched, _is_graph: bool) {
        self.note_call(launched);
        self.is_first = true;
        self.last_matched = self.last_matched.max(Some(launched.time));
        // `at_end` does not store single launches, but only their number and the times of the first and the latest
        // launch. So all launches in `at_end` are dropped together, when a launch that was made after the latest of
        // these launches has an activity.
        if self.at_end.latest < launched.time.0 {
            self.at_end = PendingAtEnd::default();
        }
    }

    fn shared(&mut self) {
        self.counts.shared_launches += 1;
    }

    fn pending(&mut self, _id: CorrelationId, launched: Launched) {
        self.note_call(launched);
        if self.last_matched.is_some_and(|last| launched.time <= last) {
            return;
        }
        let PendingAtEnd { count, first, latest } = self.at_end;
        let time = launched.time.0;
        let first = if count == 0 { time } else { first.min(time) };
        self.at_end = PendingAtEnd { count: count + 1, first, latest: latest.max(time) };
    }
}

/// A sink that receives the launches and activities that are still unmatched after the last row. The sink counts the
/// launches whose work was probably still in a queue.
pub(super) struct AtEnd<F, S> {
    pub(super) facts: RowFactsCounter,
    /// Sink that receives the activities, and the launches whose work was probably not in a queue.
    pub(super) steps: S,
    /// Function that determines the kind of a launch from the launch's context.
    pub(super) kind_of: F,
    /// Number of kernel launches, and number of graph launches, whose work was probably still in a queue.
    pub(super) queued: (u64, u64),
}

/// Kind of a launch, which decides whether the launch should have an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaunchKind {
    /// A kernel launch, which should have an activity.
    Kernel,
    /// A graph launch. The graph may be empty, so the launch may have no activity.
    Graph,
    /// A launch of a copy or a fill. The size of the copy or fill may be 0, so the launch may have no activity.
    Other,
}

impl<F: Fn(ContextId) -> LaunchKind, S> AtEnd<F, S> {
    pub(super) fn facts(&self) -> RowFacts {
        let (queued, queued_graphs) = self.queued;
        RowFacts { queued, queued_graphs, ..self.facts.facts() }
    }
}

impl<F: Fn(ContextId) -> LaunchKind, S: Sink> Sink for AtEnd<F, S> {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        self.facts.activity(activity, origin);
        self.steps.activity(activity, origin);
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        if self.facts.is_queued(launched) {
            match (self.kind_of)(launched.context) {
                LaunchKind::Kernel => self.queued.0 += 1,
                LaunchKind::Graph => self.queued.1 += 1,
                LaunchKind::Other => {}
            }
        } else {
            self.steps.pending(id, launched);
        }
        self.facts.pending(id, launched);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::testing;

    fn launch(time: u64) -> Launched {
        Launched { time: Nanos(time), duration: 5, context: ContextId::NONE }
    }

    fn ran(counter: &mut RowFactsCounter, launched: Launched, start: u64, end: u64) {
        counter.matched(launched, false);
        counter.activity(&testing::kernel(1, start, end), Origin::Launch(launched));
    }

    #[test]
    fn windows_count_when_they_are_closed() {
        use WindowEdge::{Close, Open};
        let mut counter = RowFactsCounter::default();
        [Close, Open, Close, Close, Open, Open, Close, Open]
            .into_iter()
            .for_each(|edge| counter.window(edge));
        assert_eq!(counter.facts().closed_windows, 2);
    }

    #[test]
    fn lengths_and_impossible_times_are_counted() {
        let mut counter = RowFactsCounter::default();
        for (start, end) in [(100, 100), (90, 80), (0, 80), (60, 70), (200, 60_000_000_201)] {
            ran(&mut counter, launch(80), start, end);
        }
        counter.shared();
        let expected = RowFacts {
            covered_launches: 5,
            backwards: 1,
            zero_length: 1,
            too_long: 1,
            early_ns: 10,
            shared_launches: 1,
            ..RowFacts::default()
        };
        assert_eq!(counter.facts(), expected);
    }

    #[test]
    fn only_launches_after_the_last_one_with_work_are_pending_at_the_end() {
        let mut counter = RowFactsCounter::default();
        ran(&mut counter, launch(10), 100, 500);
        counter.pending(CorrelationId(1), launch(15));
        counter.pending(CorrelationId(2), launch(25));
        assert_eq!(counter.facts().pending_at_end, 2);
        // The launches at 15 and 25 ns are counted as launches without an activity before the activity of the launch at
        // 20 ns arrives.
        ran(&mut counter, launch(20), 500, 600);
        ran(&mut counter, launch(30), 600, 700);
        assert_eq!(counter.facts().pending_at_end, 0);
        counter.pending(CorrelationId(3), launch(40));
        counter.pending(CorrelationId(4), launch(35));
        let facts = counter.facts();
        assert_eq!(facts.pending_at_end, 2);
        // The longest time from a launch to the end of its work is 670 ns. The first launch without an activity was
        // made 665 ns before the last work ended.
        assert!(facts.ends_before_gpu);
        assert!(
            counter.is_queued(launch(40))
                && !counter.is_queued(launch(29))
                && !counter.is_queued(launch(700))
        );
        counter.pending(CorrelationId(5), launch(710));
        assert!(!counter.facts().ends_before_gpu, "710 + 5 > 35 + 670");
    }
    #[test]
    fn launches_after_the_last_one_with_work_are_in_a_queue_while_the_gpu_works() {
        let mut facts = RowFactsCounter::default();
        ran(&mut facts, launch(10), 100, 500);
        let kind_of = |_| LaunchKind::Kernel;
        let mut at_end = AtEnd { facts, steps: (), kind_of, queued: (0, 0) };
        for time in [5, 20, 499, 500] {
            at_end.pending(CorrelationId(1), launch(time));
        }
        assert_eq!((at_end.facts().pending_at_end, at_end.facts().queued), (3, 2));
        let kind_of = |_| LaunchKind::Graph;
        let mut at_end = AtEnd { facts, steps: (), kind_of, queued: (0, 0) };
        at_end.pending(CorrelationId(1), launch(20));
        assert_eq!((at_end.facts().queued, at_end.facts().queued_graphs), (0, 1));
    }
}

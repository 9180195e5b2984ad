//! Visits the operations of one stream in order, and determines the state of the stream at each time.

use super::collect::{StreamKey, StreamOp, StreamWait};
use super::state::{Interval, State, StateCause};
use super::sums::DelaySums;
use gpuflame_explain::timeline::{MAX_DELIVERY_NS, gap_causes};
use gpuflame_model::profile::Cause;
use gpuflame_model::record::Work;

/// Data that is needed while the operations of one stream are visited.
pub(super) struct StreamWalk<'a> {
    /// Keys of all streams, indexed by stream.
    pub(super) keys: &'a [StreamKey],
    /// Waits of the stream for CUDA events, in order of time.
    pub(super) waits: &'a [StreamWait],
    /// Time ranges in which any stream of the device was busy.
    pub(super) busy: &'a [(u64, u64)],
    /// Busy time ranges of the streams for which this stream has to wait by the rule of default streams.
    pub(super) blocking: &'a [(u64, u64)],
    pub(super) is_collective: &'a dyn Fn(Work) -> bool,
    /// Time ranges between recording windows.
    pub(super) closed: &'a [(u64, u64)],
    pub(super) whole: (u64, u64),
    /// Part of the window whose intervals are passed to `each`.
    pub(super) shown: (u64, u64),
    pub(super) delays: DelaySums,
    /// Last interval, which is not yet passed to `each` because it may become longer.
    pub(super) open: Option<Interval>,
    pub(super) each: &'a mut dyn FnMut(&Interval),
}

/// CUDA events for which the next operation of a stream waits.
#[derive(Clone, Copy, Debug, Default)]
struct EventWaits {
    /// Wait for the CUDA event with the latest known time.
    known: Option<StreamWait>,
    /// Wait for a CUDA event whose time is unknown.
    untimed: Option<StreamWait>,
    /// Start of the launch call of the first operation that waits for these CUDA events.
    call: u64,
}

impl StreamWalk<'_> {
    /// Visits the operations in `ops`, which must be sorted by start.
    pub(super) fn run(&mut self, ops: impl Iterator<Item = StreamOp>) {
        let (mut at, mut taken, mut waits) = (self.whole.0, 0, EventWaits::default());
        for (number, op) in ops.enumerate() {
            let op = &op;
            if op.call != 0 && (number == 0 || op.call != waits.call) {
                waits = self.take_waits(&mut taken, op.call);
            }
            // The first operation may have been launched before the window began. If the first operation was launched
            // before the window began, the stream has been waiting since this launch.
            let from = if number == 0 && op.call != 0 { at.min(op.call) } else { at };
            self.add_delay(op, from);
            if op.start > from {
                self.gap(from, op, waits);
            }
            let running = Interval::new((at.max(op.start), op.end), State::Running, StateCause::None);
            self.emit(Interval { work: Some(op.work), ..running });
            at = at.max(op.end);
        }
        self.emit(Interval::new((at, self.whole.1), State::Finished, StateCause::None));
        if let Some(last) = self.open.take() {
            (self.each)(&last);
        }
    }

    /// Returns the waits whose calls were made after the launch of the previous operation and up to the time `call`.
    fn take_waits(&self, taken: &mut usize, call: u64) -> EventWaits {
        let mut waits = EventWaits { call, ..EventWaits::default() };
        while let Some(wait) = self.waits.get(*taken).filter(|wait| wait.time <= call) {
            match wait.until {
                Some(until) if waits.known.is_none_or(|known| known.until < Some(until)) => {
                    waits.known = Some(*wait)
                }
                Some(_) => {}
                None => waits.untimed = Some(*wait),
            }
            *taken += 1;
        }
        waits
    }

    /// Adds the launch delay of an operation. `from` is the time at which the stream became idle.
    fn add_delay(&mut self, op: &StreamOp, from: u64) {
        if op.call == 0 || op.call > op.start || !self.is_shown(op) {
            return;
        }
        self.delays.nanos.push(op.start - op.call);
        self.delay(StateCause::InOrder, from.min(op.start).saturating_sub(op.call));
    }

    fn is_shown(&self, op: &StreamOp) -> bool {
        (self.shown.0..self.shown.1).contains(&op.start)
    }

    fn delay(&mut self, cause: StateCause, nanos: u64) {
        if nanos > 0 {
            self.delays.by_cause.add(cause, nanos);
        }
    }

    /// Determines the states of the stream in the gap that lasts from the time `from` to the begin of `op`.
    fn gap(&mut self, from: u64, op: &StreamOp, waits: EventWaits) {
        let work = Some(op.work);
        let idle = |times, cause| Interval { work, ..Interval::new(times, State::Idle, cause) };
        let Some(launched) = op.launched() else {
            return self.emit(idle((from, op.start), StateCause::Unknown));
        };
        let causes = gap_causes(from, op.start, op.start, launched);
        let nanos =
            |wanted| causes.iter().filter(|(cause, _)| *cause == wanted).map(|(_, nanos)| nanos).sum::<u64>();
        let unknown = from + nanos(Cause::Unknown);
        self.emit(idle((from, unknown), StateCause::Unknown));
        let called = unknown + nanos(Cause::HostLate);
        self.emit(Interval { late: Some(launched), ..idle((unknown, called), StateCause::HostLate) });
        self.launched_gap(called, called + nanos(Cause::LaunchLatency), op, waits);
    }

    /// Determines why `op`, which was already launched, did not begin at the time `from`. Up to the time `delivered`,
    /// the launch itself explains the delay.
    fn launched_gap(&mut self, from: u64, delivered: u64, op: &StreamOp, waits: EventWaits) {
        let (mut at, mut delivered) = (from, delivered);
        let part =
            |times, state, cause| Interval { work: Some(op.work), ..Interval::new(times, state, cause) };
        if let Some((wait, until)) = waits.known.and_then(|wait| Some((wait, wait.until?.min(op.start))))
            && until > at
        {
            let last = wait.last_work.filter(|work| (self.is_collective)(*work));
            let cause = if last.is_some() { StateCause::Collective } else { StateCause::Event };
            let source = wait.source.map(|number| self.keys[number as usize]);
            let waiting = part((at, until), State::Waiting, cause);
            let work = last.or(waiting.work);
            self.launched_part(Interval { event: wait.event, source, work, ..waiting }, op);
            at = until;
            delivered = delivered.max(until.saturating_add(MAX_DELIVERY_NS));
        }
        let delivered = delivered.clamp(at, op.start);
        self.launched_part(part((at, delivered), State::Pending, StateCause::LaunchLatency), op);
        if delivered == op.start {
            return;
        }
        let rest = (delivered, op.start);
        let rest = match waits.untimed {
            Some(wait) => Interval { event: wait.event, ..part(rest, State::Waiting, StateCause::Event) },
            None => part(rest, State::Pending, self.cause_of_rest(delivered, op.start)),
        };
        self.launched_part(rest, op);
    }

    fn launched_part(&mut self, part: Interval, op: &StreamOp) {
        if self.is_shown(op) {
            self.delay(part.cause, part.end - part.start);
        }
        self.emit(part);
    }

    /// Returns the cause of a delay that neither the launch nor a known CUDA event explains.
    fn cause_of_rest(&self, from: u64, to: u64) -> StateCause {
        let last_before = |times: &[(u64, u64)]| {
            times.partition_point(|time| time.1 <= to).checked_sub(1).map(|at| times[at])
        };
        let is_blocked = last_before(self.blocking)
            .is_some_and(|(start, end)| start <= from && end > from && to - end <= MAX_DELIVERY_NS);
        if is_blocked {
            return StateCause::DefaultStream;
        }
        let at = self.busy.partition_point(|time| time.1 < to);
        match self.busy.get(at) {
            Some(busy) if busy.0 <= from => StateCause::OtherStreams,
            _ => StateCause::Unknown,
        }
    }

    /// Passes the shown part of an interval to `each`. If no operation ran in the interval, its times between recording
    /// windows are passed as intervals with the state [`State::NotRecorded`].
    fn emit(&mut self, interval: Interval) {
        let (mut from, to) = (interval.start.max(self.shown.0), interval.end.min(self.shown.1));
        if from >= to {
            return;
        }
        if interval.state != State::Running {
            let first = self.closed.partition_point(|closed| closed.1 <= from);
            for &(start, end) in self.closed[first..].iter().take_while(|closed| closed.0 < to) {
                let (start, end) = (start.max(from), end.min(to));
                self.push(Interval { start: from, end: start, ..interval });
                self.push(Interval::new((start, end), State::NotRecorded, StateCause::None));
                from = end;
            }
        }
        self.push(Interval { start: from, end: to, ..interval });
    }

    fn push(&mut self, interval: Interval) {
        if interval.start >= interval.end {
            return;
        }
        match &mut self.open {
            Some(open) if open.continues_as(&interval) => open.end = interval.end,
            open => {
                if let Some(over) = open.replace(interval) {
                    (self.each)(&over);
                }
            }
        }
    }
}

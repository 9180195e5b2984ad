//! Accounts for the time of one device: every nanosecond in which a window was open counts as busy or idle.

use super::call_history::{CallHistory, CulpritThreads};
use super::host_states::HostStates;
use super::idle_cause::split_by_cause;
use super::idle_culprit::{IdleAmount, IdleCause, IdleCulprit};
use super::sample_history::SampleHistory;
use super::steady::{CutPiece, Cuts};
use super::streams::StreamSums;
use super::stretches::{BusyStretch, BusyStretches, LaunchSpan, merge};
use super::windows::WindowSpans;
use gpuflame_model::profile::{BusyIdle, Cause, DeviceTime, SteadyPart};
use gpuflame_model::record::{Activity, Caller, ContextId, DeviceId, Nanos, ThreadId};

/// Data that, in addition to activities, are needed to compute the busy and idle time of a device.
pub(super) struct AccountInputs<'a> {
    pub(super) windows: &'a WindowSpans,
    pub(super) host_states: &'a HostStates,
    pub(super) calls: &'a CallHistory,
    pub(super) samples: &'a SampleHistory,
    pub(super) culprit_threads: &'a mut CulpritThreads,
    pub(super) cuts: &'a Cuts,
    /// Whether this device is the only GPU in the run.
    pub(super) is_only: bool,
}

impl AccountInputs<'_> {
    /// Divides the time `from..to`, during which the launch `call` was late, among the culprits (the code that delayed
    /// the launch). Each culprit is returned only once. `threads` contains the threads that launch on this GPU.
    fn blame(
        &mut self,
        call: &LaunchSpan,
        from: u64,
        to: u64,
        threads: &[ThreadId],
    ) -> Vec<(IdleCulprit, u64)> {
        if self.host_states.is_empty() {
            let mut blamed: Vec<(IdleCulprit, u64)> = Vec::new();
            for (culprit, nanos) in self.by_calls(call, from, to, threads) {
                match blamed.iter_mut().find(|(other, _)| *other == culprit) {
                    Some((_, sum)) => *sum += nanos,
                    None => blamed.push((culprit, nanos)),
                }
            }
            return blamed;
        }
        let blamed = self.host_states.blame(call.caller, from, to).into_iter();
        blamed.map(|(caller, nanos)| (IdleCulprit::Caller(caller), nanos)).collect()
    }

    /// Divides the time `from..to` among the culprits that can be derived from API calls alone. The culprits are in
    /// order of time; a culprit may occur several times.
    fn by_calls(
        &mut self,
        call: &LaunchSpan,
        from: u64,
        to: u64,
        threads: &[ThreadId],
    ) -> Vec<(IdleCulprit, u64)> {
        let times = (self.windows.opened(from), from, to);
        let threads = if self.is_only { None } else { Some(threads) };
        self.calls.blame(call, times, threads, self.culprit_threads)
    }

    /// Returns the stacks of the launching thread that were sampled in `from..to`. Each stack is returned with the
    /// pause between two calls in which it was sampled.
    fn sampled_stacks(
        &mut self,
        call: &LaunchSpan,
        from: u64,
        to: u64,
        threads: &[ThreadId],
    ) -> Vec<(IdleCulprit, SampledTime)> {
        let late = if self.samples.is_empty() { None } else { self.calls.launching_thread(call) };
        let Some(thread) = late.filter(|_| self.host_states.is_empty()) else { return Vec::new() };
        let (mut found, mut since) = (Vec::new(), from);
        for (culprit, nanos) in self.by_calls(call, from, to, threads) {
            let until = since + nanos;
            if let IdleCulprit::Pause { thread: other, .. } = culprit {
                let stacks = self.samples.within_hand_over((thread, other), since, until);
                found.extend(stacks.into_iter().map(|found| (culprit, found)));
            }
            since = until;
        }
        found
    }
}

/// Context of a sampled stack, and the time in ns that the sample represents.
type SampledTime = (ContextId, u64);

/// Maximum number of launching threads that are stored for each GPU. Launching threads are stored only in runs with
/// several GPUs. If more threads launch on the GPU, the threads whose launches most recently ended a gap on this GPU
/// are stored.
const MAX_LAUNCHING_THREADS: usize = 16;

/// Initial limit on the number of busy stretches that wait to be accounted for. The initial limit is 65,536 stretches,
/// which take 2 MiB.
const INITIAL_MAX_STRETCHES: usize = 1 << 16;
/// Highest value to which the limit on the number of waiting stretches can grow. The highest limit is 524,288
/// stretches, which take 16 MiB. This limit is enough for fifty threads whose buffers of 10,000 activity records arrive
/// one after another.
pub(super) const MAX_STRETCHES: usize = 1 << 19;

#[derive(Clone, Debug)]
pub(super) struct DeviceAccount {
    pub(super) id: DeviceId,
    /// Busy stretches of work that was launched in a window, or whose launch is unknown.
    recorded: BusyStretches,
    /// Busy stretches of work that was launched outside of windows. Of each stretch, only the part during which a
    /// window was open is accounted for.
    outside: BusyStretches,
    /// Current limit on the number of busy stretches in `recorded`, which is also the limit for `outside`.
    room: usize,
    /// Latest end time of all activities on the device so far.
    newest: u64,
    /// Longest time by which an activity was delivered too late to be in order. The first value is the maximum since
    /// the latest removal of stretches from the buffers. The second value is the maximum between the two latest
    /// removals.
    disorder: [u64; 2],
    pub(super) streams: StreamSums,
    threads: Vec<ThreadId>,
    /// Time up to which the device's time is accounted for, or `None` if no time was accounted for yet.
    cursor: Option<u64>,
    busy: u64,
    idle: u64,
    /// Busy and idle time between two cuts. (Cuts divide the time of a run into parts.) The key is the cut at which the
    /// part begins (see `Cuts`).
    pieces: Vec<(u64, BusyIdle)>,
    /// Busy time while no window was open, in ns. In this time, GPU work outlasted the window in which it was launched.
    beyond: u64,
    late: u64,
    late_count: u64,
    early: u64,
    early_count: u64,
    first: u64,
    last: u64,
}

impl DeviceAccount {
    pub(super) fn new(id: DeviceId) -> Self {
        Self {
            id,
            recorded: BusyStretches::default(),
            outside: BusyStretches::default(),
            room: INITIAL_MAX_STRETCHES,
            newest: 0,
            disorder: [0; 2],
            streams: StreamSums::default(),
            threads: Vec::new(),
            cursor: None,
            busy: 0,
            idle: 0,
            pieces: Vec::new(),
            beyond: 0,
            late: 0,
            late_count: 0,
            early: 0,
            early_count: 0,
            first: u64::MAX,
            last: 0,
        }
    }

    /// Returns the time up to which the device's time is accounted for.
    pub(super) fn cursor(&self) -> u64 {
        self.cursor.unwrap_or(0)
    }

    /// Adds an activity with usable times. Returns false if the buffer has no room for the activity. In that case, call
    /// [`DeviceAccount::make_room`] and try again.
    pub(super) fn add(&mut self, activity: &Activity, call: LaunchSpan) -> bool {
        let (start, end) = (activity.start.0, activity.end.0);
        let from = start.max(self.cursor()).min(end);
        let stretch = BusyStretch { start: from, call, end };
        let is_outside = call.caller == Caller::OUTSIDE;
        let waiting = if is_outside { &mut self.outside } else { &mut self.recorded };
        if from < end && !waiting.add(stretch, self.room) {
            return false;
        }
        self.newest = self.newest.max(end);
        self.disorder[0] = self.disorder[0].max(self.newest - start);
        if !is_outside {
            self.first = self.first.min(start);
            self.last = self.last.max(end);
            self.late = self.late.saturating_add(from - start);
            self.late_count += u64::from(from > start);
            let early = call.time.saturating_sub(start);
            self.early = self.early.max(early);
            self.early_count += u64::from(early > 0);
        }
        true
    }

    /// Adds `thread` to the threads that launch on this device.
    fn launched_by(&mut self, thread: ThreadId) {
        if !self.threads.contains(&thread) {
            self.threads.truncate(MAX_LAUNCHING_THREADS - 1);
            self.threads.insert(0, thread);
        }
    }

    /// Whether all gaps between `since` and `until` are already accounted for. The result is also true if the device
    /// was busy during the whole time.
    pub(super) fn has_no_gap_in(&self, since: u64, until: u64) -> bool {
        let since = since.max(self.cursor());
        since >= until || self.recorded.covers(since, until) || self.outside.covers(since, until)
    }

    /// Sorts the waiting busy stretches, and merges those that overlap. Merging is required before busy stretches are
    /// looked up.
    pub(super) fn merge(&mut self) {
        self.recorded.merge();
        self.outside.merge();
    }

    /// Makes room in the buffer for more busy stretches. Accounts for the oldest waiting busy stretches, but at most
    /// for half of the stretches. A stretch is accounted for only if no activity is expected before it any more. If
    /// less than a quarter of the stretches can be accounted for, the limit on the number of stretches is doubled
    /// instead, up to [`MAX_STRETCHES`].
    pub(super) fn make_room(
        &mut self,
        mut inputs: AccountInputs<'_>,
        charge: &mut impl FnMut(u64, IdleCause, IdleAmount),
    ) {
        let is_recorded = self.recorded.len() >= self.outside.len();
        let fullest = if is_recorded { &mut self.recorded } else { &mut self.outside };
        fullest.merge();
        let waiting = fullest.len();
        if waiting <= self.room / 2 {
            return;
        }
        let [now, before] = self.disorder;
        let complete_until = self.newest.saturating_sub(now.max(before).saturating_mul(2));
        let leaving = fullest.count_before(complete_until).min(waiting / 2);
        if leaving < waiting / 4 && self.room < MAX_STRETCHES {
            self.room *= 2;
            return;
        }
        let time = fullest.start_of(leaving.max(waiting / 4));
        self.disorder = [0, now];
        self.account(time, &mut inputs, charge);
    }

    /// Accounts for the waiting work that began before `time`.
    fn account(
        &mut self,
        time: u64,
        inputs: &mut AccountInputs<'_>,
        charge: &mut impl FnMut(u64, IdleCause, IdleAmount),
    ) {
        let windows = inputs.windows;
        let mut stretches = self.recorded.take_before(time);
        let outside = self.outside.take_before(time);
        if windows.has_any() && !outside.is_empty() {
            for outside in outside {
                let inside = windows.parts(outside.start, outside.end);
                stretches.extend(inside.map(|(start, end)| BusyStretch { start, end, ..outside }));
            }
            merge(&mut stretches);
        }
        for stretch in &stretches {
            let first = if windows.has_any() { 0 } else { stretch.start };
            let from = self.cursor.unwrap_or(first);
            self.charge_gap(from, stretch, inputs, charge);
            let from = from.max(stretch.start);
            if stretch.end > from {
                let inside: u64 = windows.parts(from, stretch.end).map(|(from, to)| to - from).sum();
                self.busy += stretch.end - from;
                let add = |piece: CutPiece| self.piece(piece.since).busy += piece.to - piece.from;
                inputs.cuts.split(from, stretch.end, &mut { add });
                self.beyond += stretch.end - from - inside;
                self.cursor = Some(stretch.end);
            }
        }
    }

    /// Accounts for all of the device's time before `time`. `time` must be a time at which no window was open.
    pub(super) fn account_to(
        &mut self,
        time: u64,
        inputs: &mut AccountInputs<'_>,
        charge: &mut impl FnMut(u64, IdleCause, IdleAmount),
    ) {
        self.account(time, inputs, charge);
        for (from, to) in inputs.windows.parts(self.cursor(), time) {
            self.charge_closing(from, to, inputs.cuts, charge);
        }
        self.cursor = self.cursor.max(Some(time));
    }

    /// Accounts for all waiting work, and for the time until the last window closed.
    pub(super) fn account_all(
        &mut self,
        inputs: &mut AccountInputs<'_>,
        charge: &mut impl FnMut(u64, IdleCause, IdleAmount),
    ) {
        self.account(u64::MAX, inputs, charge);
        if let Some(close) = inputs.windows.last_close() {
            self.account_to(close, inputs, charge);
        }
    }

    /// Charges the idle time between the last work in a window and the closing of the window.
    fn charge_closing(
        &mut self,
        from: u64,
        to: u64,
        cuts: &Cuts,
        charge: &mut impl FnMut(u64, IdleCause, IdleAmount),
    ) {
        cuts.split(from, to, &mut |piece| self.charge_windows(piece.since, piece.to - piece.from, charge));
    }

    /// Adds `nanos` of idle time that is charged to no code. No code is charged for idle time after the last work in a
    /// window, or in windows without work. All of the idle time must be between the cut `since` and the next cut (see
    /// `Cuts`).
    pub(super) fn charge_windows(
        &mut self,
        since: u64,
        nanos: u64,
        charge: &mut impl FnMut(u64, IdleCause, IdleAmount),
    ) {
        self.idle += nanos;
        self.piece(since).idle += nanos;
        charge(since, IdleCause::Closing, IdleAmount::gap(nanos));
    }

    /// Returns the busy and idle time from the cut `since` to the next cut (see `Cuts`).
    fn piece(&mut self, since: u64) -> &mut BusyIdle {
        // The search for the cut begins with the last entry, which is nearly always the right one.
        let at = self.pieces.iter().rposition(|(known, _)| *known == since).unwrap_or_else(|| {
            self.pieces.push((since, BusyIdle::default()));
            self.pieces.len() - 1
        });
        &mut self.pieces[at].1
    }

    /// Charges the idle time from `from` to the beginning of `stretch`. Idle time is charged only if a window was open
    /// during this time.
    fn charge_gap(
        &mut self,
        from: u64,
        stretch: &BusyStretch,
        inputs: &mut AccountInputs<'_>,
        charge: &mut impl FnMut(u64, IdleCause, IdleAmount),
    ) {
        let BusyStretch { start, call, .. } = *stretch;
        let parts: Vec<_> = inputs.windows.parts(from, start).collect();
        for (open, to) in parts {
            // The work that ended the gap may begin after the window closed. The gap is charged to this work only if
            // the work was launched before the window closed.
            let was_launched = to == start || call.caller != Caller::OUTSIDE && (1..to).contains(&call.time);
            if !was_launched {
                self.charge_closing(open, to, inputs.cuts, charge);
                continue;
            }
            self.idle += to - open;
            let is_first = open > from || self.cursor.is_none();
            // The periods of the causes follow each other directly.
            let mut since = open;
            for (cause, nanos) in split_by_cause(open, to, start, &call) {
                let cuts = inputs.cuts;
                cuts.split(since, since + nanos, &mut |piece| {
                    self.charge_piece(piece, (cause, is_first), &call, inputs, charge);
                });
                since += nanos;
            }
        }
    }

    /// Charges a part of a gap. The gap ended with the work that `call` launched.
    fn charge_piece(
        &mut self,
        CutPiece { since, from, to }: CutPiece,
        (cause, is_first): (Cause, bool),
        call: &LaunchSpan,
        inputs: &mut AccountInputs<'_>,
        charge: &mut impl FnMut(u64, IdleCause, IdleAmount),
    ) {
        self.piece(since).idle += to - from;
        let mut blame = |culprit: IdleCulprit, idle| match is_first {
            true => charge(since, IdleCause::Opening(culprit, cause), idle),
            false => charge(since, IdleCause::Between(culprit, cause), idle),
        };
        if cause != Cause::HostLate {
            return blame(IdleCulprit::Caller(call.caller), IdleAmount::gap(to - from));
        }
        if let Some(thread) = inputs.calls.launching_thread(call) {
            self.launched_by(thread);
        }
        let blamed = inputs.blame(call, from, to, &self.threads);
        let longest = blamed.iter().map(|(_, nanos)| *nanos).max();
        let counts = blamed.iter().position(|(_, nanos)| Some(*nanos) == longest);
        for (at, (culprit, nanos)) in blamed.into_iter().enumerate() {
            blame(culprit, IdleAmount { nanos, gaps: u64::from(Some(at) == counts), context: None });
        }
        for (culprit, found) in inputs.sampled_stacks(call, from, to, &self.threads) {
            blame(culprit, IdleAmount::attributed(found));
        }
    }

    /// Returns the total busy and idle time of some parts of the run: those for whose first cut `is_in` returns true.
    fn sum_pieces(&self, is_in: impl Fn(u64) -> bool) -> BusyIdle {
        let pieces = self.pieces.iter().filter(|(since, _)| is_in(*since));
        pieces.fold(BusyIdle::default(), |sum, (_, piece)| BusyIdle {
            busy: sum.busy + piece.busy,
            idle: sum.idle + piece.idle,
        })
    }

    /// Returns the busy and idle time of the device. The result is complete only after all work was accounted for.
    pub(super) fn time(&self, windows: &WindowSpans, steady: Option<&SteadyPart>) -> Option<DeviceTime> {
        let window = match windows.has_any() {
            true => windows.total(self.cursor()) + self.beyond,
            false => self.last.saturating_sub(self.first),
        };
        // A device that only ran work launched outside of windows has no busy and idle time.
        (self.first <= self.last).then_some(DeviceTime {
            device: self.id,
            window,
            busy: self.busy,
            idle: self.idle,
            late: self.late,
            late_count: self.late_count,
            early: self.early,
            early_count: self.early_count,
            first: Nanos(self.first),
            last: Nanos(self.last),
            start_up: self.sum_pieces(|since| steady.is_some_and(|steady| since < steady.begin.0)),
            shutdown: self.sum_pieces(|since| steady.is_some_and(|steady| since >= steady.end.0)),
        })
    }

    /// Replaces the caller (launch context) of each waiting stretch by the result of `caller` for it.
    pub(super) fn rename(&mut self, caller: impl Fn(Caller) -> Caller) {
        self.recorded.rename(&caller);
        self.outside.rename(&caller);
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.recorded.heap_bytes()
            + self.outside.heap_bytes()
            + self.streams.heap_bytes()
            + self.pieces.capacity() * size_of::<(u64, BusyIdle)>()
    }
}

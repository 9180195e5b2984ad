//! One device from the first moment to the last: every nanosecond of its window is busy or idle.

use super::blame::split;
use super::inside::Insides;
use super::streams::Streams;
use super::stretches::{Call, Stretch, Stretches, merge};
use super::windows::Windows;
use crate::profile::{Cause, DeviceTime};
use crate::record::{Activity, Caller, DeviceId, Nanos};

/// To what a part of the idle time is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Charge {
    /// To the launch whose work ended a gap between two pieces of work.
    Between(Caller, Cause),
    /// To the launch whose work was the first in its window.
    Opening(Caller, Cause),
    /// To nobody: no more work came until the window closed.
    Closing,
}

/// Idle time that is charged at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Idle {
    pub(super) nanos: u64,
    /// One; of a gap that is cut, for its longest piece only: so they add up to how many gaps there were.
    pub(super) gaps: u64,
}

impl Idle {
    fn gap(nanos: u64) -> Self {
        Self { nanos, gaps: 1 }
    }
}

/// What the account is made with, beside the work itself.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) windows: &'a Windows,
    pub(super) insides: &'a Insides,
}

/// Stretches that may wait at first: 2 MiB.
const ROOM: usize = 1 << 16;
/// At most: 16 MiB, for fifty threads whose buffers of 10,000 records come one after another.
pub(super) const MOST_ROOM: usize = 1 << 19;

#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) id: DeviceId,
    /// Work that was launched inside a window, and work of which we do not know.
    recorded: Stretches,
    /// Work that was launched outside: it keeps the device busy, but only the part of it that runs inside
    /// a window is anybody's business.
    outside: Stretches,
    /// How many stretches of each may wait.
    room: usize,
    /// The latest end so far.
    newest: u64,
    /// By how much an activity came too late to be in order, at most: since stretches last left, and before.
    disorder: [u64; 2],
    pub(super) streams: Streams,
    /// Everything before is accounted for; `None`: nothing is.
    cursor: Option<u64>,
    busy: u64,
    idle: u64,
    /// The busy time that no window was open in: work that outlasted its window.
    beyond: u64,
    late: u64,
    late_count: u64,
    early: u64,
    early_count: u64,
    first: u64,
    last: u64,
}

impl Device {
    pub(super) fn new(id: DeviceId) -> Self {
        Self {
            id,
            recorded: Stretches::default(),
            outside: Stretches::default(),
            room: ROOM,
            newest: 0,
            disorder: [0; 2],
            streams: Streams::default(),
            cursor: None,
            busy: 0,
            idle: 0,
            beyond: 0,
            late: 0,
            late_count: 0,
            early: 0,
            early_count: 0,
            first: u64::MAX,
            last: 0,
        }
    }

    /// Everything before this time is accounted for.
    pub(super) fn cursor(&self) -> u64 {
        self.cursor.unwrap_or(0)
    }

    /// Adds an activity with usable times. False: there is no room; [`Device::make_room`] comes first.
    pub(super) fn add(&mut self, activity: &Activity, call: Call) -> bool {
        let (start, end) = (activity.start.0, activity.end.0);
        let from = start.max(self.cursor()).min(end);
        let stretch = Stretch { start: from, call, end };
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

    /// Makes room: accounts for what is so old that nothing before it can be expected any more, up to half
    /// of what waits. Where that is less than a quarter the room grows, as long as it may.
    pub(super) fn make_room(&mut self, known: Known<'_>, charge: &mut impl FnMut(Charge, Idle)) {
        let is_recorded = self.recorded.len() >= self.outside.len();
        let fullest = if is_recorded { &mut self.recorded } else { &mut self.outside };
        fullest.merge();
        let waiting = fullest.len();
        if waiting <= self.room / 2 {
            return;
        }
        let [now, before] = self.disorder;
        let settled = self.newest.saturating_sub(now.max(before).saturating_mul(2));
        let leaving = fullest.count_before(settled).min(waiting / 2);
        if leaving < waiting / 4 && self.room < MOST_ROOM {
            self.room *= 2;
            return;
        }
        let time = fullest.start_of(leaving.max(waiting / 4));
        self.disorder = [0, now];
        self.account(time, known, charge);
    }

    /// Accounts for everything that began before `time`.
    pub(super) fn account(&mut self, time: u64, known: Known<'_>, charge: &mut impl FnMut(Charge, Idle)) {
        let windows = known.windows;
        let mut stretches = self.recorded.take_before(time);
        let outside = self.outside.take_before(time);
        if windows.any() && !outside.is_empty() {
            for outside in outside {
                let inside = windows.parts(outside.start, outside.end);
                stretches.extend(inside.map(|(start, end)| Stretch { start, end, ..outside }));
            }
            merge(&mut stretches);
        }
        for stretch in &stretches {
            let first = if windows.any() { 0 } else { stretch.start };
            let from = self.cursor.unwrap_or(first);
            self.gap(from, stretch, known, charge);
            let from = from.max(stretch.start);
            if stretch.end > from {
                let inside: u64 = windows.parts(from, stretch.end).map(|(from, to)| to - from).sum();
                self.busy += stretch.end - from;
                self.beyond += stretch.end - from - inside;
                self.cursor = Some(stretch.end);
            }
        }
    }

    /// Accounts for everything before `time`, at which no window is open.
    pub(super) fn account_to(&mut self, time: u64, known: Known<'_>, charge: &mut impl FnMut(Charge, Idle)) {
        self.account(time, known, charge);
        for (from, to) in known.windows.parts(self.cursor(), time) {
            self.closing(to - from, charge);
        }
        self.cursor = self.cursor.max(Some(time));
    }

    /// Accounts for what waits, and for the time up to the end of the last window.
    pub(super) fn account_all(&mut self, known: Known<'_>, charge: &mut impl FnMut(Charge, Idle)) {
        self.account(u64::MAX, known, charge);
        if let Some(close) = known.windows.last_close() {
            self.account_to(close, known, charge);
        }
    }

    /// Charges idle time that no work ended.
    pub(super) fn closing(&mut self, nanos: u64, charge: &mut impl FnMut(Charge, Idle)) {
        self.idle += nanos;
        charge(Charge::Closing, Idle::gap(nanos));
    }

    /// Charges the gap from `from` to the beginning of `stretch`, as far as a window was open.
    fn gap(&mut self, from: u64, stretch: &Stretch, known: Known<'_>, charge: &mut impl FnMut(Charge, Idle)) {
        let Stretch { start, call, .. } = *stretch;
        for (open, to) in known.windows.parts(from, start) {
            // What ended the gap may begin after the window closed; it counts if it was launched before.
            let was_launched = to == start || call.caller != Caller::OUTSIDE && (1..to).contains(&call.time);
            if !was_launched {
                self.closing(to - open, charge);
                continue;
            }
            self.idle += to - open;
            let is_first = open > from || self.cursor.is_none();
            for (cause, nanos) in split(open, to, start, &call).into_iter().filter(|(_, nanos)| *nanos > 0) {
                let mut blame = |caller: Caller, idle| match is_first {
                    true => charge(Charge::Opening(caller, cause), idle),
                    false => charge(Charge::Between(caller, cause), idle),
                };
                match cause {
                    // The first part of a gap, up to the call.
                    Cause::HostLate if !known.insides.is_empty() => {
                        let blamed = known.insides.blame(call.caller, open, open + nanos);
                        let longest = blamed.iter().map(|(_, nanos)| *nanos).max();
                        let counts = blamed.iter().position(|(_, nanos)| Some(*nanos) == longest);
                        for (at, (caller, nanos)) in blamed.into_iter().enumerate() {
                            blame(caller, Idle { nanos, gaps: u64::from(Some(at) == counts) });
                        }
                    }
                    _ => blame(call.caller, Idle::gap(nanos)),
                }
            }
        }
    }

    /// What the device did with its time; complete once everything is accounted for.
    pub(super) fn time(&self, windows: &Windows) -> Option<DeviceTime> {
        let window = match windows.any() {
            true => windows.total(self.cursor()) + self.beyond,
            false => self.last.saturating_sub(self.first),
        };
        // A device that did nothing inside any window is none of ours.
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
        })
    }

    /// Has what waits be charged to others.
    pub(super) fn rename(&mut self, caller: impl Fn(Caller) -> Caller) {
        self.recorded.rename(&caller);
        self.outside.rename(&caller);
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.recorded.heap_bytes() + self.outside.heap_bytes() + self.streams.heap_bytes()
    }
}

//! Launches made while no window is open: not a record each, but how many there were and which ids they had.
//! A program that records one step in a thousand makes nearly all of its launches outside.
//!
//! A thread's ids ascend, and whatever has an id between two launches of one thread that are outside, with no
//! window opened between them, was launched outside too. So each thread has one range that grows, where the
//! collector looks at it ([`Growing`]), until a window was opened since; then the range is written to the
//! thread's log, and the next begins.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::record::{CorrelationId, Launch, Nanos, Outside};

/// Ids that a range may span, so that ids, which wrap, tell before from after.
const WIDEST: u32 = 1 << 24;

/// How often the collector looks for a moment in which a thread does not write, which takes 10 ns.
const MOST_TRIES: u32 = 64;

/// The range that a thread is at; only the thread's own.
#[derive(Clone, Copy)]
pub(super) struct Range {
    /// How often a window had been opened.
    openings: u32,
    launches: Outside,
}

impl Range {
    /// Takes in a launch that was under way when so many windows had been opened, and the last id of the calls
    /// nested in it. Gives back the range that ends by it, if one does.
    pub(super) fn add(
        range: &mut Option<Self>,
        openings: u32,
        launch: &Launch,
        last: CorrelationId,
        over: Nanos,
    ) -> Option<Outside> {
        if let Some(Self { launches, .. }) = range.as_mut().filter(|range| range.is_of(openings, last)) {
            launches.last = last;
            launches.count = launches.count.wrapping_add(1);
            launches.over = over;
            return None;
        }
        let launches = Outside { first: launch.correlation, last, count: 1, over };
        range.replace(Self { openings, launches }).map(|ended| ended.launches)
    }

    fn is_of(&self, openings: u32, id: CorrelationId) -> bool {
        self.openings == openings && id.0.wrapping_sub(self.launches.first.0) < WIDEST
    }

    /// A call nested in the last launch has an id of its own.
    pub(super) fn extend(&mut self, last: CorrelationId) {
        self.launches.last = last;
    }

    pub(super) fn launches(&self) -> &Outside {
        &self.launches
    }
}

/// The same where the collector can read it. Written by the thread alone: a sequence lock.
pub(super) struct Growing {
    /// Odd while the thread writes; 0 = there is nothing.
    turn: AtomicU32,
    count: AtomicU32,
    /// Launches of it that the collector knows of.
    told: AtomicU32,
    ids: AtomicU64,
    over: AtomicU64,
}

impl Growing {
    pub(super) const fn new() -> Self {
        let [turn, count, told] = [const { AtomicU32::new(0) }; 3];
        let [ids, over] = [const { AtomicU64::new(0) }; 2];
        Self { turn, count, told, ids, over }
    }

    /// For the thread.
    pub(super) fn set(&self, range: &Outside) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        if range.count == 1 {
            self.told.store(0, Ordering::Relaxed);
        }
        self.ids.store(ids(range), Ordering::Relaxed);
        self.count.store(range.count, Ordering::Relaxed);
        self.over.store(range.over.0, Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(2).max(2), Ordering::Release);
    }

    /// How many launches of the range, which ends, the collector has not heard of.
    pub(super) fn untold(&self, range: &Outside) -> u32 {
        range.count.wrapping_sub(self.told.load(Ordering::Acquire))
    }

    /// For the collector. `None`: there is nothing, or the thread is writing, and its processor is with others.
    fn get(&self) -> Option<Outside> {
        for _ in 0..MOST_TRIES {
            let turn = self.turn.load(Ordering::Acquire);
            if turn == 0 {
                return None;
            }
            if let Some(range) = self.get_in(turn) {
                return Some(range);
            }
            std::thread::yield_now();
        }
        None
    }

    fn get_in(&self, turn: u32) -> Option<Outside> {
        let ids = self.ids.load(Ordering::Relaxed);
        let (count, over) = (self.count.load(Ordering::Relaxed), Nanos(self.over.load(Ordering::Relaxed)));
        fence(Ordering::Acquire);
        let is_whole = turn.is_multiple_of(2) && self.turn.load(Ordering::Relaxed) == turn;
        is_whole.then(|| outside(ids, count, over))
    }
}

/// Both ids in a word.
fn ids(range: &Outside) -> u64 {
    u64::from(range.first.0) | u64::from(range.last.0) << 32
}

fn outside(ids: u64, count: u32, over: Nanos) -> Outside {
    Outside { first: CorrelationId(ids as u32), last: CorrelationId((ids >> 32) as u32), count, over }
}

/// What the collector has heard of a thread's ranges: of each by its first id, as long as it may grow.
#[derive(Default)]
pub(super) struct Told(Vec<Outside>);

impl Told {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// What is new of the range that grows.
    pub(super) fn grown(&mut self, growing: &Growing) -> Option<Outside> {
        let range = growing.get()?;
        let before = match self.0.iter_mut().find(|told| told.first == range.first) {
            Some(told) => std::mem::replace(&mut told.count, range.count),
            None => {
                self.0.push(range);
                0
            }
        };
        growing.told.store(range.count, Ordering::Release);
        let count = range.count.wrapping_sub(before);
        (count > 0).then_some(Outside { count, ..range })
    }

    /// What is new of a range that has ended.
    pub(super) fn ended(&mut self, range: Outside) -> Option<Outside> {
        let told = self.0.iter().position(|told| told.first == range.first).map(|at| self.0.swap_remove(at));
        let count = range.count.wrapping_sub(told.map_or(0, |told| told.count));
        (count > 0).then_some(Outside { count, ..range })
    }
}

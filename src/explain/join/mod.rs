//! The join matches each launch to the GPU work that it caused. The join matches launches to GPU work exactly, by
//! correlation id, in one pass over the rows.
//!
//! The rows may arrive in any order. For example, an activity may arrive before its launch, because a launch is
//! recorded when the call returns. A graph launch may have many activities: one for each node. A launch may have two
//! ids: the id of a runtime call, and the id of the driver call inside it. The memory of the join does not grow with
//! the number of launches:
//!
//! ```text
//! launch row --> entry, by id  --displaced--> matched:    forgotten
//!                  ^                          of a graph: running --flushed--> forgotten
//!                  |                          else:       waiting --full-----> pending
//!                  |                                         ^
//! activity row ----+-----------------------------------------+--not found--> orphans --full--> a reason
//! ```
//!
//! A launch can be found by its id until an id arrives that is higher by [`Limits::recent`]. A launch that has no
//! activity by then is kept until [`Limits::waiting`] more launches without an activity have followed. A graph launch
//! may get more activities while the graph runs. A graph launch is forgotten when two conditions hold: no activity
//! arrived for it between two flushes of CUPTI ([`Join::flushed`]), and thousands of further graph launches were made
//! after it. Each launch or activity that stays unmatched is counted with a [`Missing`] reason, and the counts in
//! [`Tally`] always add up.
//!
//! Launches that are made outside of windows do not have one row each. Instead, one row contains a range of ids of such
//! launches (see `outside`). With these ranges, the join can distinguish activities of launches outside of windows from
//! activities of lost launches. An activity can arrive before the range that contains its id. The activity then waits
//! for this range, as it would wait for a launch. Launches that are made while CUPTI's callbacks are off have no rows,
//! and are recognized only by the ids of their activities (see `muted`).
//!
//! CUPTI assigns consecutive ids to calls. So an id can be too far from the id of every launch (further than
//! `MAX_ID_GAP`). An activity whose id is too far away cannot belong to any launch, not even to a lost launch. An
//! activity with an id that is too far away is counted separately, and is not passed to the sink.
//!
//! A [`Sink`] receives the matched launches and activities. The sink may add up the matched rows, compute idle time or
//! store the rows.

mod duplicates;
mod launch_index;
mod muted;
mod orphans;
mod outside;
mod sink;
mod tally;

#[cfg(test)]
mod tests;

pub use gpuflame_model::record::Missing;
pub use sink::{Launched, Origin, Sink};
pub use tally::{Activities, Launches, Tally};

use duplicates::DuplicateDetector;
use gpuflame_model::record::{
    self, Activity, ContextId, CorrelationId, GraphId, Launch, Nanos, Row, WindowEdge,
};
use launch_index::{ById, IdEntry, LookUp, MatchState};
use muted::MutedPeriods;
use orphans::{Chain, Orphans};
use outside::OutsideRanges;

/// Largest gap between the ids of recorded launches that can occur in a real run. A program that launches without a
/// pause takes about ten minutes to use this many ids.
const MAX_ID_GAP: u64 = 1 << 30;

/// Memory limits of a [`Join`]. With the default limits, a join takes up to 45 MiB. The join takes 45 MiB if half a
/// million launches wait for an activity, and a quarter of a million graphs are launched between two flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of ids below the highest id that are kept in a table indexed by the id. The number is rounded up to a
    /// power of two. The default is 262,144 ids, which is enough for half this number of launches if each launch has
    /// two ids.
    pub recent: usize,
    /// Maximum number per generation of older launches that have no activity. Two generations are kept. The default is
    /// 229,376 launches, which fills a hash table of 2^18 buckets to its maximum load. Two full generations hold the
    /// launches of more than forty threads that each have a partly filled buffer of 10,000 activity records.
    pub waiting: usize,
    /// Maximum number per generation of older launches that had an activity and may get more. Two generations are kept.
    /// (A flush may remove launches even if this number is not reached.) The default is 114,688 launches.
    pub running: usize,
    /// Maximum number of activities that wait for their launch. Default: 65,536.
    pub orphans: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { recent: 1 << 18, waiting: 7 << 15, running: 7 << 14, orphans: 1 << 16 }
    }
}

/// The join, which processes one row at a time. See the module's documentation.
#[derive(Debug)]
pub struct Join {
    by_id: ById,
    orphans: Orphans,
    outside: OutsideRanges,
    order: IdOrder,
    duplicates: DuplicateDetector,
    tally: Tally,
}

impl Default for Join {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Join {
    /// Creates an empty join.
    pub fn new(limits: Limits) -> Self {
        Self {
            by_id: ById::new(limits.recent, limits.waiting, limits.running),
            orphans: Orphans::new(limits.orphans),
            outside: OutsideRanges::default(),
            order: IdOrder::default(),
            duplicates: DuplicateDetector::default(),
            tally: Tally::default(),
        }
    }

    /// Processes the next row. Only launches, activities and window edges have an effect; other rows are ignored.
    pub fn push(&mut self, row: &Row<'_>, sink: &mut impl Sink) {
        match row {
            Row::Launch(launch) => self.push_launch(launch, sink),
            Row::Activity(activity) => self.push_activity(activity, sink),
            Row::Outside(launches) => self.push_outside(launches, sink),
            Row::Window { edge: WindowEdge::Open, time } => self.order.open(*time),
            Row::CallbacksSwitched { on, time } => {
                let nanos = self.order.muted.callbacks_switched(*on, *time);
                self.tally.launches.not_told_nanos = self.tally.launches.not_told_nanos.saturating_add(nanos);
            }
            _ => {}
        }
    }

    /// Does the same as [`Join::push`] for a row of a launch.
    pub fn push_launch(&mut self, launch: &Launch, sink: &mut impl Sink) {
        self.order.note_id(launch.correlation);
        if launch.is_alias() {
            return self.push_alias(launch, sink);
        }
        self.tally.launches.seen += 1;
        if launch.context == ContextId::OUTSIDE {
            self.tally.launches.outside += 1;
        } else {
            self.order.muted.launch(self.order.unroll(launch.correlation), launch.time);
        }
        let launched = Launched { time: launch.time, duration: launch.duration, context: launch.context };
        let previous = self.store(launch.correlation, IdEntry::Launch(launched, MatchState::Waiting), sink);
        let Some(chain) = previous else { return };
        let mut progress = MatchState::Waiting;
        self.orphans.take_all(chain, |activity| {
            deliver(&mut self.tally, &mut self.duplicates, activity, launched, &mut progress, sink);
        });
        if let Some(IdEntry::Launch(_, kept)) = self.by_id.get_mut(launch.correlation) {
            *kept = progress;
        }
    }

    /// Does the same as [`Join::push`] for a row of an activity.
    pub fn push_activity(&mut self, activity: &Activity, sink: &mut impl Sink) {
        self.tally.activities.seen += 1;
        match self.by_id.find(activity.correlation) {
            LookUp::Launch(launched, progress) => {
                deliver(&mut self.tally, &mut self.duplicates, activity, *launched, progress, sink);
            }
            LookUp::AliasOfAlias => self.abandon(activity, sink),
            LookUp::NotYet(id) | LookUp::Orphans(id, _) => match self.outside.find(self.order.unroll(id)) {
                Some(over) => {
                    deliver_outside(&mut self.tally, &mut self.duplicates, activity, over, sink);
                }
                None if self.order.has_impossible_id(activity) => self.abandon(activity, sink),
                None if self.order.was_reported(activity) => self.push_orphan(id, activity, sink),
                None => deliver_muted(&mut self.tally, &mut self.duplicates, activity, sink),
            },
        }
    }

    /// Does the same as [`Join::push`] for a row of launches that were made outside of windows.
    pub fn push_outside(&mut self, launches: &record::OutsideLaunches, sink: &mut impl Sink) {
        self.order.note_id(launches.first);
        self.order.note_id(launches.last);
        self.tally.launches.seen += u64::from(launches.count);
        self.tally.launches.outside += u64::from(launches.count);
        let (first, last) = (self.order.unroll(launches.first), self.order.unroll(launches.last));
        self.outside.add(first, last, launches.over);
        let Self { by_id, orphans, outside, order, duplicates, tally } = self;
        let mut theirs = Vec::new();
        orphans.for_each_id(|id| theirs.extend(outside.find(order.unroll(id)).map(|over| (id, over))));
        for (id, over) in theirs {
            by_id.shorten(id, |chain| {
                orphans.take_all(chain, |activity| deliver_outside(tally, duplicates, activity, over, sink));
                None
            });
        }
    }

    /// Returns the final counts for the case that no more rows arrive. Launches without an activity, and activities
    /// that still wait for their launch, count as unmatched and are passed to `sink`. The join itself does not change,
    /// so this function may be called at any time.
    pub fn final_tally(&self, sink: &mut impl Sink) -> Tally {
        let (mut tally, mut duplicates) = (self.tally, self.duplicates.clone());
        self.orphans.for_each(|activity| abandon(&mut tally, &self.order, &mut duplicates, activity, sink));
        self.by_id.for_each(|id, entry| {
            if let IdEntry::Launch(launched, progress) = *entry {
                retire(&mut tally, id, launched, progress, sink);
            }
        });
        tally
    }

    /// Passes the launches that were made between two times, and that still wait for an activity, to [`Sink::pending`].
    pub fn pending_between(&self, from: Nanos, to: Nanos, sink: &mut impl Sink) {
        self.by_id.for_each(|id, entry| {
            if let IdEntry::Launch(launched, MatchState::Waiting) = *entry
                && launched.context != ContextId::OUTSIDE
                && from < launched.time
                && launched.time <= to
            {
                sink.pending(id, launched);
            }
        });
    }

    /// Processes a flush of the tracer. Call this function after the tracer was flushed and all rows that it delivered
    /// were pushed.
    pub fn flushed(&mut self) {
        self.by_id.flushed();
    }

    /// Whether the tracer should be flushed soon, because many graph launches are kept until the next flush.
    pub fn wants_flush(&self) -> bool {
        self.by_id.wants_flush()
    }

    /// Returns the contexts of the launches that wait for an activity. There is one item per launch.
    pub fn waiting(&self) -> impl Iterator<Item = ContextId> {
        self.by_id.waiting().map(|launched| launched.context)
    }

    /// Replaces each launch's context by the context that the function `context` returns for it.
    pub fn rename(&mut self, context: impl Fn(ContextId) -> ContextId) {
        for launched in self.by_id.launches_mut().filter(|launched| launched.context >= ContextId::FIRST) {
            launched.context = context(launched.context);
        }
    }

    /// Returns the counts for the rows pushed so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns the size in bytes of the heap memory that the join uses.
    pub fn heap_bytes(&self) -> usize {
        self.by_id.heap_bytes()
            + self.orphans.heap_bytes()
            + self.outside.heap_bytes()
            + self.order.muted.heap_bytes()
            + self.duplicates.heap_bytes()
    }

    /// Processes a row that gives a launch a second id. The row with a second id may arrive before or after the row of
    /// the launch itself.
    fn push_alias(&mut self, alias: &Launch, sink: &mut impl Sink) {
        self.tally.launches.aliases += 1;
        let previous = self.store(alias.correlation, IdEntry::Alias(alias.within), sink);
        let Some(mut chain) = previous else { return };
        loop {
            let (activity, rest) = self.orphans.take_first(chain);
            match self.by_id.find(alias.correlation) {
                LookUp::Launch(launched, progress) => {
                    deliver(&mut self.tally, &mut self.duplicates, &activity, *launched, progress, sink);
                }
                LookUp::AliasOfAlias => self.abandon(&activity, sink),
                LookUp::NotYet(id) | LookUp::Orphans(id, _) => self.push_orphan(id, &activity, sink),
            }
            let Some(rest) = rest else { return };
            chain = rest;
        }
    }

    /// Stores an activity until its launch, which has the id `id`, arrives.
    fn push_orphan(&mut self, id: CorrelationId, activity: &Activity, sink: &mut impl Sink) {
        if self.orphans.room() == 0 && !self.abandon_oldest(sink) {
            return self.abandon(activity, sink);
        }
        if let LookUp::Orphans(_, chain) = self.by_id.find(id) {
            *chain = self.orphans.push(id, activity, Some(*chain));
        } else {
            let chain = self.orphans.push(id, activity, None);
            self.store(id, IdEntry::Orphans(chain), sink);
        }
    }

    /// Stops waiting for the launch of the activity that has waited longest. Returns false if no activity waits for its
    /// launch.
    fn abandon_oldest(&mut self, sink: &mut impl Sink) -> bool {
        let Self { by_id, orphans, order, duplicates, tally, .. } = self;
        let Some(id) = orphans.oldest() else { return false };
        let found = by_id.shorten(id, |chain| {
            let (activity, rest) = orphans.take_first(chain);
            abandon(tally, order, duplicates, &activity, sink);
            rest
        });
        debug_assert!(found, "the table of ids has each orphan");
        found
    }

    /// Stores `entry` under `id`. Returns the activities that waited for an entry with the id `id`, if there were any.
    fn store(&mut self, id: CorrelationId, entry: IdEntry, sink: &mut impl Sink) -> Option<Chain> {
        let Self { by_id, orphans, order, duplicates, tally, .. } = self;
        let mut forget = |id, entry| match entry {
            IdEntry::Launch(launched, progress) => retire(tally, id, launched, progress, sink),
            IdEntry::Alias(_) => {}
            IdEntry::Orphans(chain) => {
                orphans.take_all(chain, |activity| abandon(tally, order, duplicates, activity, sink));
            }
        };
        match by_id.insert(id, entry, &mut forget)? {
            IdEntry::Orphans(chain) => Some(chain),
            shadowed => {
                forget(id, shadowed);
                None
            }
        }
    }

    fn abandon(&mut self, activity: &Activity, sink: &mut impl Sink) {
        abandon(&mut self.tally, &self.order, &mut self.duplicates, activity, sink);
    }
}

/// Counts an activity whose launch is known, and passes it to the sink.
fn deliver(
    tally: &mut Tally,
    duplicates: &mut DuplicateDetector,
    activity: &Activity,
    launched: Launched,
    progress: &mut MatchState,
    sink: &mut impl Sink,
) {
    let outside = launched.context == ContextId::OUTSIDE;
    if duplicates.is_duplicate(progress.last(), activity) {
        return tally.activities.count_duplicate();
    }
    if *progress == MatchState::Waiting && !outside {
        let is_graph = activity.graph != GraphId(0);
        tally.launches.matched += 1;
        tally.launches.graphs += u64::from(is_graph);
        sink.matched(launched, is_graph);
    }
    let is_second = progress.advance(activity);
    if outside {
        tally.activities.outside += 1;
        return sink.outside(activity, launched);
    }
    if is_second {
        sink.shared();
    }
    if launched.context == ContextId::NONE {
        tally.activities.no_stack += 1;
    } else {
        tally.activities.matched += 1;
    }
    tally.activities.untimed += u64::from(activity.duration().is_none());
    tally.activities.early += u64::from(activity.start.0 != 0 && activity.start < launched.time);
    sink.activity(activity, Origin::Launch(launched));
}

/// Counts an activity whose launch was made outside of windows and has no row, and passes it to the sink.
fn deliver_outside(
    tally: &mut Tally,
    duplicates: &mut DuplicateDetector,
    activity: &Activity,
    over: Nanos,
    sink: &mut impl Sink,
) {
    if duplicates.is_duplicate_without_launch(activity) {
        return tally.activities.count_duplicate();
    }
    tally.activities.outside += 1;
    sink.outside(activity, Launched { time: over, duration: 1, context: ContextId::OUTSIDE });
}

/// Counts an activity that was launched while the tracer's callbacks were off, and passes it to the sink.
fn deliver_muted(
    tally: &mut Tally,
    duplicates: &mut DuplicateDetector,
    activity: &Activity,
    sink: &mut impl Sink,
) {
    if duplicates.is_duplicate_without_launch(activity) {
        return tally.activities.count_duplicate();
    }
    tally.activities.outside += 1;
    tally.activities.not_told += 1;
    sink.outside(activity, Launched { time: activity.start, duration: 1, context: ContextId::OUTSIDE });
}

/// Counts an activity for whose launch the join no longer waits, and passes it to the sink.
fn abandon(
    tally: &mut Tally,
    order: &IdOrder,
    duplicates: &mut DuplicateDetector,
    activity: &Activity,
    sink: &mut impl Sink,
) {
    if order.find_muted(activity) != muted::Muted::No {
        return deliver_muted(tally, duplicates, activity, sink);
    }
    if order.has_impossible_id(activity) {
        tally.activities.seen -= 1;
        tally.activities.of_no_call += 1;
        return;
    }
    if duplicates.is_duplicate_without_launch(activity) {
        return tally.activities.count_duplicate();
    }
    let missing = order.reason(activity);
    match missing {
        Missing::LaunchedBefore => tally.activities.launched_before += 1,
        Missing::DeviceGraph => tally.activities.device_graph += 1,
        _ => tally.activities.no_stack += 1,
    }
    tally.activities.untimed += u64::from(activity.duration().is_none());
    sink.activity(activity, Origin::Missing(missing));
}

/// Counts a launch at the time when it is forgotten. A launch that never had an activity is also passed to
/// [`Sink::pending`].
fn retire(
    tally: &mut Tally,
    id: CorrelationId,
    launched: Launched,
    progress: MatchState,
    sink: &mut impl Sink,
) {
    if progress == MatchState::Waiting && launched.context != ContextId::OUTSIDE {
        tally.launches.pending += 1;
        sink.pending(id, launched);
    }
}

/// Determines the order of correlation ids. Ids have 32 bits and may wrap. Each id is therefore *unrolled*: extended to
/// the 64-bit value that is closest to the highest unrolled id so far. Unrolled ids can be compared across a wrap.
#[derive(Debug, Default)]
struct IdOrder {
    /// Lowest and highest id in the rows of launches so far, unrolled to 64 bits.
    seen: Option<(u64, u64)>,
    opened: Option<Nanos>,
    muted: MutedPeriods,
}

impl IdOrder {
    fn note_id(&mut self, id: CorrelationId) {
        let (first, last) = self.seen.unwrap_or((u64::MAX, 0));
        let unrolled = self.unroll(id);
        self.seen = Some((first.min(unrolled), last.max(unrolled)));
    }

    /// Whether `activity` has an id that cannot belong to any call. (Work that the GPU itself launched may have the id
    /// 0.) For other tools' traces, the result is always false, because it is unknown how these tools assign ids. The
    /// result is also false once CUPTI has not reported some calls, because the number of unreported calls is unknown.
    fn has_impossible_id(&self, activity: &Activity) -> bool {
        if activity.correlation == CorrelationId(0) || activity.device_launched || self.opened.is_none() {
            return false;
        }
        let id = self.unroll(activity.correlation);
        let is_far = |(first, last)| id.saturating_add(MAX_ID_GAP) < first || id > last + MAX_ID_GAP;
        self.seen.is_some_and(is_far) && self.find_muted(activity) == muted::Muted::No
    }

    /// Whether the tracer may have reported the launch that belongs to `activity`.
    fn was_reported(&self, activity: &Activity) -> bool {
        self.find_muted(activity) != muted::Muted::Yes
    }

    fn find_muted(&self, activity: &Activity) -> muted::Muted {
        self.muted.find(self.unroll(activity.correlation), activity.start)
    }

    fn open(&mut self, time: Nanos) {
        self.opened.get_or_insert(time);
    }

    fn unroll(&self, id: CorrelationId) -> u64 {
        // The first id is unrolled to a value above 2^33, so that ids below the first recorded id stay above zero.
        let (_, last) = self.seen.unwrap_or((0, 1 << 33 | u64::from(id.0)));
        last.wrapping_add_signed(i64::from(id.0.wrapping_sub(last as u32) as i32))
    }

    /// Returns the reason why no launch was found for `activity`. If no launch was recorded at all, the activity's id
    /// cannot be compared with the ids of launches. If no launch was recorded, an activity counts as launched before
    /// recording only if it began before the first window.
    fn reason(&self, activity: &Activity) -> Missing {
        if activity.device_launched && activity.graph != GraphId(0) {
            return Missing::DeviceGraph;
        }
        let before = match self.seen {
            Some((first, _)) => self.unroll(activity.correlation) < first,
            None => activity.start.0 != 0 && self.opened.is_some_and(|opened| activity.start < opened),
        };
        if before { Missing::LaunchedBefore } else { Missing::NoStack }
    }
}

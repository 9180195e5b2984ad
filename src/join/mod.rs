//! Pairs launches with what the GPU then did, exactly and by id, in one pass over the rows.
//!
//! Rows come in any order: an activity may arrive before its launch (launches are recorded when the call
//! returns), one launch may have many activities (a graph), and a launch may carry two ids (a runtime
//! call and the driver call inside it). Nothing here grows with the number of launches:
//!
//! ```text
//! launch row --> recent --full--> matched: forgotten
//!                  ^               else: waiting --full--> pending
//!                  |                        ^
//! activity row ----+------------------------+--not found--> orphans --full--> a reason
//! ```
//!
//! A launch is therefore found for at least one [`Limits::generation`] of later launches; one that still
//! lacks an activity then, or belongs to a graph, for [`Limits::waiting`] more of its kind. What is given
//! up has a [`Missing`] reason and a count, and the counts of [`Tally`] always add up.
//!
//! What the pairs mean (cells, idle time, replay) is the business of the [`Sink`].

mod orphans;
mod sink;
mod tally;
mod window;

#[cfg(test)]
mod tests;

pub use crate::record::Missing;
pub use sink::{Launched, Origin, Sink};
pub use tally::{Activities, Launches, Tally};

use crate::record::{Activity, ContextId, CorrelationId, GraphId, Launch, Nanos, Row, WindowEdge};
use orphans::Orphans;
use window::{Entry, Found, Progress, Window};

/// How much a [`Join`] remembers. The defaults cost up to 37 MiB, when all of it is full, which
/// takes half a million launches that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Launches (and second ids of launches) in one generation; two are kept.
    /// Default: 114,688, which fills a table of 2^17 buckets to the brim.
    pub generation: usize,
    /// Launches without an activity, or of graphs, in one generation of those that wait beyond; two of
    /// these are kept as well. Default: 229,376: together more than forty threads have whose buffers of
    /// 10,000 records the tracer has not filled yet.
    pub waiting: usize,
    /// Activities that are kept until their launch arrives. Default: 65,536.
    pub orphans: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { generation: 7 << 14, waiting: 7 << 15, orphans: 1 << 16 }
    }
}

/// The streaming join. See the module's documentation.
#[derive(Debug)]
pub struct Join {
    window: Window,
    orphans: Orphans,
    order: Order,
    tally: Tally,
}

impl Default for Join {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Join {
    /// A join that has seen nothing.
    pub fn new(limits: Limits) -> Self {
        Self {
            window: Window::new(limits.generation, limits.waiting),
            orphans: Orphans::new(limits.orphans),
            order: Order::default(),
            tally: Tally::default(),
        }
    }

    /// Takes the next row. Rows other than launches, activities and window edges are passed over.
    pub fn push(&mut self, row: &Row<'_>, sink: &mut impl Sink) {
        match row {
            Row::Launch(launch) => self.push_launch(launch, sink),
            Row::Activity(activity) => self.push_activity(activity, sink),
            Row::Window { edge: WindowEdge::Open, time } => self.order.open(*time),
            _ => {}
        }
    }

    /// Takes a launch, as [`Join::push`] does.
    pub fn push_launch(&mut self, launch: &Launch, sink: &mut impl Sink) {
        self.order.see(launch.correlation);
        if launch.is_alias() {
            return self.push_alias(launch, sink);
        }
        self.tally.launches.seen += 1;
        if launch.context == ContextId::OUTSIDE {
            self.tally.launches.outside += 1;
        }
        let launched = Launched { time: launch.time, duration: launch.duration, context: launch.context };
        let mut progress = Progress::Waiting;
        while let Some(activity) = self.orphans.take(launch.correlation) {
            deliver(&mut self.tally, &activity, launched, &mut progress, sink);
        }
        self.keep(launch.correlation, Entry::Launch(launched, progress), sink);
    }

    /// Takes an activity, as [`Join::push`] does.
    pub fn push_activity(&mut self, activity: &Activity, sink: &mut impl Sink) {
        self.tally.activities.seen += 1;
        match self.window.find(activity.correlation) {
            Found::Launch(launched, progress) => {
                deliver(&mut self.tally, activity, *launched, progress, sink);
            }
            Found::Nothing(id) => {
                if let Some(oldest) = self.orphans.push(id, activity) {
                    self.give_up(&oldest, sink);
                }
            }
        }
    }

    /// Gives up on everything that still lacks a partner. What comes later finds none of the launches
    /// that were pushed before; the counts go on adding up.
    pub fn finish(&mut self, sink: &mut impl Sink) {
        while let Some(activity) = self.orphans.pop_oldest() {
            self.give_up(&activity, sink);
        }
        let tally = &mut self.tally;
        self.window.clear(&mut |id, entry| retire(tally, id, entry, sink));
    }

    /// The counts so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.window.heap_bytes() + self.orphans.heap_bytes()
    }

    /// A second id for a launch, which may come before or after the launch itself.
    fn push_alias(&mut self, alias: &Launch, sink: &mut impl Sink) {
        self.tally.launches.aliases += 1;
        self.keep(alias.correlation, Entry::Alias(alias.within), sink);
        while let Some(activity) = self.orphans.take(alias.correlation) {
            match self.window.find(alias.within) {
                Found::Launch(launched, progress) => {
                    deliver(&mut self.tally, &activity, *launched, progress, sink);
                }
                // One left and one comes back: this cannot overflow.
                Found::Nothing(_) => drop(self.orphans.push(alias.within, &activity)),
            }
        }
    }

    fn keep(&mut self, id: CorrelationId, entry: Entry, sink: &mut impl Sink) {
        let tally = &mut self.tally;
        self.window.insert(id, entry, &mut |id, entry| retire(tally, id, entry, sink));
    }

    fn give_up(&mut self, activity: &Activity, sink: &mut impl Sink) {
        let missing = self.order.reason(activity);
        match missing {
            Missing::LaunchedBefore => self.tally.activities.launched_before += 1,
            Missing::DeviceGraph => self.tally.activities.device_graph += 1,
            _ => self.tally.activities.no_stack += 1,
        }
        self.tally.activities.untimed += u64::from(activity.duration().is_none());
        sink.activity(activity, Origin::Missing(missing));
    }
}

/// Counts and passes on an activity whose launch is known.
fn deliver(
    tally: &mut Tally,
    activity: &Activity,
    launched: Launched,
    progress: &mut Progress,
    sink: &mut impl Sink,
) {
    let outside = launched.context == ContextId::OUTSIDE;
    if *progress == Progress::Waiting && !outside {
        tally.launches.matched += 1;
    }
    progress.advance(activity);
    if outside {
        tally.activities.outside += 1;
        return sink.outside(activity, launched);
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

/// Counts and passes on a launch that is forgotten.
fn retire(tally: &mut Tally, id: CorrelationId, entry: Entry, sink: &mut impl Sink) {
    let Entry::Launch(launched, Progress::Waiting) = entry else { return };
    if launched.context != ContextId::OUTSIDE {
        tally.launches.pending += 1;
        sink.pending(id, launched);
    }
}

/// Where correlation ids stand, so that "handed out before the first one we saw" stays right when they
/// wrap: ids are unrolled to 64 bits, each near the highest one so far.
#[derive(Debug, Default)]
struct Order {
    /// The lowest and the highest id of a launch row.
    seen: Option<(u64, u64)>,
    opened: Option<Nanos>,
}

impl Order {
    fn see(&mut self, id: CorrelationId) {
        let (first, last) = self.seen.unwrap_or((u64::MAX, 0));
        let unrolled = self.unroll(id);
        self.seen = Some((first.min(unrolled), last.max(unrolled)));
    }

    fn open(&mut self, time: Nanos) {
        self.opened.get_or_insert(time);
    }

    fn unroll(&self, id: CorrelationId) -> u64 {
        // Begin at 2^33, so that ids before the first can be told without going below zero.
        let (_, last) = self.seen.unwrap_or((0, 1 << 33 | u64::from(id.0)));
        last.wrapping_add_signed(i64::from(id.0.wrapping_sub(last as u32) as i32))
    }

    /// Why `activity` has no launch. Where no launch was seen at all there is no id to compare with:
    /// then work that began before the first window did is the only kind surely launched before.
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

//! `ById` is an index whose key is the correlation id. `ById` contains launches and *orphans* (activities whose launch
//! has not arrived yet).
//!
//! Ids are nearly consecutive. So the highest [`Limits::recent`](super::Limits::recent) ids are in a table in which the
//! id itself determines the position. The table of recent ids consists of pages. The page number, which is the upper
//! part of an id, determines the position of the page in the table:
//!
//! ```text
//! id = | page number ................ | 6 bits |        pages[number % pages.len()]
//!      |  (a multiple) | slot in pages| entry  |
//! ```
//!
//! A new page displaces the page at its position if that page has a lower number. When a page is displaced, its
//! finished entries (launches that need no more activities) are forgotten. The waiting entries of a displaced page
//! (launches without an activity, and orphans) move to a hash map with two generations. A waiting entry that arrives
//! after its page was displaced is stored in the map of waiting entries directly. A graph launch that had an activity
//! may have more activities, so it moves to a second map with two generations. Looking up a recent id takes two memory
//! loads, and look-ups of neighbouring ids use the same cache line.
//!
//! This module counts no outcomes and passes nothing to a sink. Each forgotten entry is passed to a closure that the
//! caller supplies.

use super::Launched;
use super::duplicates::ActivityHash;
use super::orphans::Chain;
use gpuflame_model::record::{Activity, CorrelationId, GraphId, IdMap, map_bytes};
use gpuflame_model::sorting;

/// The entry in the index for a correlation id.
#[derive(Clone, Copy, Debug)]
pub(super) enum IdEntry {
    /// A launch, and whether it has had activities.
    Launch(Launched, MatchState),
    /// A second correlation id of a launch, with the first id of this launch as its value.
    Alias(CorrelationId),
    /// Orphans: activities whose launch has not arrived yet.
    Orphans(Chain),
}

const _: () = assert!(size_of::<Option<IdEntry>>() == 24, "the entry grew: up to 262,144 entries are stored");

/// Whether a launch has had activities, and whether more may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchState {
    /// The launch has no activity so far.
    Waiting,
    /// The launch has at least one activity. `last` is the hash of the last activity.
    Matched { last: ActivityHash, has_several: bool },
    /// The launch has had at least one activity of a graph node. More activities may follow while the graph runs.
    Graph { has_several: bool },
}

impl MatchState {
    /// Returns the hash of the launch's last activity, or `None` for graph launches and for launches without an
    /// activity.
    pub(super) fn last(self) -> Option<ActivityHash> {
        if let Self::Matched { last, .. } = self { Some(last) } else { None }
    }

    /// Updates the state for a new activity of the launch. Returns true if this activity is the launch's second one.
    pub(super) fn advance(&mut self, activity: &Activity) -> bool {
        let (has_one, had_several) = match *self {
            Self::Waiting => (false, false),
            Self::Matched { has_several, .. } | Self::Graph { has_several } => (true, has_several),
        };
        *self = match *self {
            Self::Waiting | Self::Matched { .. } if activity.graph == GraphId(0) => {
                Self::Matched { last: ActivityHash::from_activity(activity), has_several: has_one }
            }
            _ => Self::Graph { has_several: has_one },
        };
        has_one && !had_several
    }
}

/// Result of [`ById::find`].
pub(super) enum LookUp<'a> {
    /// The launch was found, either directly or through an alias (a second id of the launch).
    Launch(&'a Launched, &'a mut MatchState),
    /// The launch has not arrived yet, and at least one earlier activity already waits for it. The first value in the
    /// variant is the id under which the launch will arrive.
    Orphans(CorrelationId, &'a mut Chain),
    /// The launch has not arrived yet, and no earlier activity waits for it. The value in the variant is the id under
    /// which the launch will arrive.
    NotYet(CorrelationId),
    /// The id is an alias (second id) of an id that is itself an alias. No launch can be found through an alias of an
    /// alias.
    AliasOfAlias,
}

/// Launches, and activities that wait for their launch, indexed by correlation id. See the module's documentation.
#[derive(Debug)]
pub(super) struct ById {
    recent: RecentIds,
    /// Waiting entries: launches without an activity, activities without a launch, and the aliases of both.
    waiting: OlderEntries,
    /// Running entries: launches that had an activity, and the aliases of these launches.
    running: OlderEntries,
}

impl ById {
    /// Creates an index whose table has room for `recent` recent ids. `waiting` and `running` are the maximum numbers
    /// of older entries per generation.
    pub(super) fn new(recent: usize, waiting: usize, running: usize) -> Self {
        Self {
            recent: RecentIds::new(recent),
            waiting: OlderEntries::new(waiting),
            running: OlderEntries::new(running),
        }
    }

    /// Stores `entry` under `id` and returns the previous entry. The previous entry can be a chain of orphans. The
    /// previous entry can be a different launch if ids wrapped or the data are hostile.
    pub(super) fn insert(
        &mut self,
        id: CorrelationId,
        entry: IdEntry,
        forget: &mut impl FnMut(CorrelationId, IdEntry),
    ) -> Option<IdEntry> {
        match self.recent.room_for(id) {
            PageStatus::Here => {}
            PageStatus::Displaced => {
                self.displace(id, forget);
                self.recent.start_page(id);
            }
            PageStatus::TooOld => return self.waiting.insert(id, entry, forget),
        }
        self.recent.slot(id)?.replace(entry)
    }

    /// Looks up the launch of an activity that has the correlation id `id`. At most one alias (second id of a launch)
    /// is followed.
    pub(super) fn find(&mut self, id: CorrelationId) -> LookUp<'_> {
        let target = match self.get(id) {
            Some(IdEntry::Alias(target)) => *target,
            Some(_) => id,
            None => return LookUp::NotYet(id),
        };
        self.note_running(id, target);
        match self.get_mut(target) {
            Some(IdEntry::Launch(launched, progress)) => LookUp::Launch(launched, progress),
            Some(IdEntry::Orphans(chain)) => LookUp::Orphans(target, chain),
            Some(IdEntry::Alias(_)) => LookUp::AliasOfAlias,
            None => LookUp::NotYet(target),
        }
    }

    /// Returns the entry of `id`. If the id is an alias, returns the alias itself and not its launch.
    pub(super) fn get_mut(&mut self, id: CorrelationId) -> Option<&mut IdEntry> {
        match self.recent.page_of(id) {
            Some(_) => self.recent.slot(id)?.as_mut(),
            None => self.waiting.get_mut(id).or_else(|| self.running.get_mut(id)),
        }
    }

    /// Forgets running entries that had no activity between two flushes, unless there are only a few running entries. A
    /// running entry is a launch that already had an activity. Call this function when all completed activities were
    /// delivered.
    pub(super) fn flushed(&mut self) {
        self.running.flushed();
    }

    /// Whether the tracer should be flushed soon, because many running launches are kept until the next flush.
    pub(super) fn wants_flush(&self) -> bool {
        self.running.young.len() >= 2 * MIN_KEPT_RUNNING
    }

    /// Replaces the chain of orphans (waiting activities) for `id` by the chain that `shorten` returns. Returns false
    /// if no activities wait for `id`. If ids have wrapped, one id may have two chains. The older chain is then in the
    /// map of waiting entries.
    pub(super) fn shorten(
        &mut self,
        id: CorrelationId,
        shorten: impl FnOnce(Chain) -> Option<Chain>,
    ) -> bool {
        if let Some(IdEntry::Orphans(chain)) = self.waiting.get_mut(id) {
            match shorten(*chain) {
                Some(rest) => *chain = rest,
                None => drop(self.waiting.take(id)),
            }
            return true;
        }
        match self.recent.slot(id) {
            Some(slot @ Some(IdEntry::Orphans(_))) => {
                let Some(IdEntry::Orphans(chain)) = *slot else { return false };
                *slot = shorten(chain).map(IdEntry::Orphans);
                true
            }
            _ => false,
        }
    }

    /// Passes all entries to `each`, older entries before recent entries.
    pub(super) fn for_each(&self, mut each: impl FnMut(CorrelationId, &IdEntry)) {
        let older = [&self.waiting.old, &self.waiting.young, &self.running.old, &self.running.young];
        older.into_iter().flatten().for_each(|(id, entry)| each(*id, entry));
        self.recent.for_each(each);
    }

    /// Returns the launches without an activity so far, in no particular order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Launched> {
        let recent = self.recent.pages.iter().flatten().flat_map(|page| page.entries.iter().flatten());
        let older = self.waiting.young.values().chain(self.waiting.old.values());
        recent.chain(older).filter_map(|entry| match entry {
            IdEntry::Launch(launched, MatchState::Waiting) => Some(launched),
            _ => None,
        })
    }

    /// Returns all launches in the index.
    pub(super) fn launches_mut(&mut self) -> impl Iterator<Item = &mut Launched> {
        let recent =
            self.recent.pages.iter_mut().flatten().flat_map(|page| page.entries.iter_mut().flatten());
        let older = [&mut self.waiting, &mut self.running].into_iter();
        let older = older.flat_map(|older| older.young.values_mut().chain(older.old.values_mut()));
        recent.chain(older).filter_map(|entry| match entry {
            IdEntry::Launch(launched, _) => Some(launched),
            _ => None,
        })
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.recent.heap_bytes() + self.waiting.heap_bytes() + self.running.heap_bytes()
    }

    fn get(&self, id: CorrelationId) -> Option<&IdEntry> {
        match self.recent.page_of(id) {
            Some(page) => page.entries[offset(id)].as_ref(),
            None => self.waiting.get(id).or_else(|| self.running.get(id)),
        }
    }

    /// Call this function when an activity with the id `id` has found the launch with the id `launch`. A launch that is
    /// no longer in the table of recent ids becomes the youngest running entry. The alias through which the launch was
    /// found also becomes a young running entry.
    fn note_running(&mut self, id: CorrelationId, launch: CorrelationId) {
        if self.recent.page_of(launch).is_some() {
            return;
        }
        let is_launch = |entry: &IdEntry| matches!(entry, IdEntry::Launch(..));
        if !self.waiting.get(launch).or_else(|| self.running.get(launch)).is_some_and(is_launch) {
            return;
        }
        self.move_to_running(launch);
        if id != launch && self.recent.page_of(id).is_none() {
            self.move_to_running(id);
        }
    }

    /// Makes the entry for `id` the youngest running entry. If the young generation is full, the entries of the old
    /// generation are dropped. The dropped launches do not count as lost, because each of them already had an activity.
    fn move_to_running(&mut self, id: CorrelationId) {
        let ran = self.running.take(id);
        if let Some(entry) = self.waiting.take(id).or(ran) {
            self.running.insert(id, entry, &mut |_, _| {});
        }
    }

    /// Stores an entry that is no longer in the table of recent ids. If `runs` is true, the entry is stored in the map
    /// of running entries, otherwise in the map of waiting entries.
    fn store_older(
        &mut self,
        runs: bool,
        id: CorrelationId,
        entry: IdEntry,
        forget: &mut impl FnMut(CorrelationId, IdEntry),
    ) {
        let older = if runs { &mut self.running } else { &mut self.waiting };
        if let Some(shadowed) = older.insert(id, entry, forget) {
            forget(id, shadowed);
        }
    }

    /// Empties the page that is at the position of `id` in the table. An alias (second id of a launch) is kept as long
    /// as the launch. The launch has a lower id than its alias, so this function handled the launch before the alias:
    /// in this page or in an earlier page.
    #[cold]
    fn displace(&mut self, id: CorrelationId, forget: &mut impl FnMut(CorrelationId, IdEntry)) {
        for at in 0..ENTRIES_PER_PAGE {
            let Some((id, entry)) = self.recent.take_entry(id, at) else { continue };
            match entry {
                IdEntry::Launch(_, MatchState::Matched { .. }) => forget(id, entry),
                IdEntry::Launch(_, MatchState::Graph { .. }) => self.store_older(true, id, entry, forget),
                IdEntry::Alias(launch) if self.running.get(launch).is_some() => {
                    self.store_older(true, id, entry, forget);
                }
                IdEntry::Alias(launch) if self.get(launch).or(self.waiting.get(launch)).is_none() => {}
                _ => self.store_older(false, id, entry, forget),
            }
        }
    }
}

/// Number of entries in a page of the table. A page of the table has 1.5 KiB, so emptying it takes about as long as one
/// cache miss.
const ENTRIES_PER_PAGE: usize = 64;

fn offset(id: CorrelationId) -> usize {
    id.0 as usize % ENTRIES_PER_PAGE
}

#[derive(Debug)]
struct IdPage {
    /// Id of the page's first entry.
    first: CorrelationId,
    entries: [Option<IdEntry>; ENTRIES_PER_PAGE],
}

/// Table of the entries for recent ids. The number of pages in the table is a power of two. Each page is allocated when
/// it is first used.
#[derive(Debug)]
struct RecentIds {
    pages: Box<[Option<Box<IdPage>>]>,
}

/// Which page is stored at the position that belongs to an id.
enum PageStatus {
    /// The page that contains the id is stored.
    Here,
    /// The position is empty, or contains a page with a lower number, which the page of the id may displace.
    Displaced,
    /// The position contains a page with a higher number, so the id is too old for the table.
    TooOld,
}

impl RecentIds {
    fn new(ids: usize) -> Self {
        let pages = ids.div_ceil(ENTRIES_PER_PAGE).clamp(1, 1 << 24).next_power_of_two();
        Self { pages: (0..pages).map(|_| None).collect() }
    }

    fn page_index(&self, id: CorrelationId) -> usize {
        (id.0 as usize / ENTRIES_PER_PAGE) & (self.pages.len() - 1)
    }

    /// Returns the page that contains `id`, if this page is in the table.
    fn page_of(&self, id: CorrelationId) -> Option<&IdPage> {
        let page = self.pages[self.page_index(id)].as_deref()?;
        (page.first.0 ^ id.0 < ENTRIES_PER_PAGE as u32).then_some(page)
    }

    fn room_for(&self, id: CorrelationId) -> PageStatus {
        match &self.pages[self.page_index(id)] {
            Some(page) if page.first.0 ^ id.0 < ENTRIES_PER_PAGE as u32 => PageStatus::Here,
            // Ids wrap, so the sign of the wrapped difference between two ids shows which id is higher.
            Some(page) if (id.0.wrapping_sub(page.first.0) as i32) < 0 => PageStatus::TooOld,
            _ => PageStatus::Displaced,
        }
    }

    /// Returns the slot for `id` in its page. The caller must have checked that the page of `id` is in the table.
    fn slot(&mut self, id: CorrelationId) -> Option<&mut Option<IdEntry>> {
        Some(&mut self.pages[self.page_index(id)].as_mut()?.entries[offset(id)])
    }

    /// Removes and returns the entry at index `at` of the page that is stored at the position of `id`.
    fn take_entry(&mut self, id: CorrelationId, at: usize) -> Option<(CorrelationId, IdEntry)> {
        let page = self.pages[self.page_index(id)].as_mut()?;
        let entry = page.entries[at].take()?;
        Some((CorrelationId(page.first.0 + at as u32), entry))
    }

    /// Creates the page that contains `id`. Reuses the empty page at this position, if there is one; otherwise,
    /// allocates a new page.
    fn start_page(&mut self, id: CorrelationId) {
        let first = CorrelationId(id.0 & !(ENTRIES_PER_PAGE as u32 - 1));
        let page_index = self.page_index(id);
        match &mut self.pages[page_index] {
            Some(page) => page.first = first,
            nothing => *nothing = Some(Box::new(IdPage { first, entries: [None; ENTRIES_PER_PAGE] })),
        }
    }

    /// Passes all entries to `each`. The entries are in the order of their ids unless ids wrapped.
    fn for_each(&self, mut each: impl FnMut(CorrelationId, &IdEntry)) {
        let mut pages: Vec<&IdPage> = self.pages.iter().flatten().map(|page| &**page).collect();
        sorting::sort_by_key(&mut pages, |page| page.first.0);
        for page in pages {
            for (at, entry) in (0..).zip(&page.entries) {
                if let Some(entry) = entry {
                    each(CorrelationId(page.first.0 + at), entry);
                }
            }
        }
    }

    fn heap_bytes(&self) -> usize {
        let made = self.pages.iter().flatten().count();
        size_of_val(&*self.pages) + made * size_of::<IdPage>()
    }
}

type Map = IdMap<CorrelationId, IdEntry>;

/// Number of running launches per generation that are kept even if a flush delivers no activity of these launches. This
/// number of entries fills a hash table of 2^13 buckets.
const MIN_KEPT_RUNNING: usize = 7 << 10;

/// Entries that are no longer in the table of recent ids, in two generations, young and old. To age the entries, the
/// two maps are swapped, so both maps keep the largest capacity so far.
#[derive(Debug)]
struct OlderEntries {
    young: Map,
    old: Map,
    room: usize,
}

impl OlderEntries {
    fn new(room: usize) -> Self {
        Self { young: Map::default(), old: Map::default(), room: room.max(1) }
    }

    fn get(&self, id: CorrelationId) -> Option<&IdEntry> {
        self.young.get(&id).or_else(|| self.old.get(&id))
    }

    fn get_mut(&mut self, id: CorrelationId) -> Option<&mut IdEntry> {
        self.young.get_mut(&id).or_else(|| self.old.get_mut(&id))
    }

    fn take(&mut self, id: CorrelationId) -> Option<IdEntry> {
        self.young.remove(&id).or_else(|| self.old.remove(&id))
    }

    /// Stores an entry and returns the previous entry, in the same way as [`ById::insert`].
    fn insert(
        &mut self,
        id: CorrelationId,
        entry: IdEntry,
        forget: &mut impl FnMut(CorrelationId, IdEntry),
    ) -> Option<IdEntry> {
        if let Some(there) = self.get_mut(id) {
            return Some(std::mem::replace(there, entry));
        }
        if self.young.len() >= self.room {
            self.grow_old(forget);
        }
        self.young.insert(id, entry)
    }

    /// If the young generation is large, forgets the old generation, and makes the young generation the new old
    /// generation. So CUPTI is completely flushed at least once after the last activity of an entry and before the
    /// entry is forgotten.
    fn flushed(&mut self) {
        if self.young.len() < MIN_KEPT_RUNNING {
            return;
        }
        self.grow_old(&mut |_, _| {});
        // Release memory that is still allocated after a burst of launches.
        if self.young.capacity() > 4 * MIN_KEPT_RUNNING {
            self.young = Map::default();
        }
    }

    fn grow_old(&mut self, forget: &mut impl FnMut(CorrelationId, IdEntry)) {
        std::mem::swap(&mut self.young, &mut self.old);
        self.young.drain().for_each(|(id, entry)| forget(id, entry));
    }

    fn heap_bytes(&self) -> usize {
        map_bytes(&self.young) + map_bytes(&self.old)
    }
}

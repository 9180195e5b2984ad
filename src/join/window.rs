//! The launches that activities can still find: the recent ones, and those that wait longer.
//!
//! It counts nothing and knows no sink: what it forgets it hands to the caller's closure.

use super::Launched;
use crate::record::{Activity, CorrelationId, GraphId, IdMap, map_bytes};

/// What an id stands for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// A launch, and how far it is.
    Launch(Launched, Progress),
    /// Another id.
    Alias(CorrelationId),
}

const _: () =
    assert!(size_of::<(CorrelationId, Entry)>() == 32, "the window grew: it holds 344,064 of these at most");

/// What a launch has had so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// No activity.
    Waiting,
    /// At least one.
    Matched,
    /// At least one node of a graph, so that more may follow for as long as the graph runs.
    Graph,
}

impl Progress {
    pub(super) fn advance(&mut self, activity: &Activity) {
        if activity.graph != GraphId(0) {
            *self = Self::Graph;
        } else if *self == Self::Waiting {
            *self = Self::Matched;
        }
    }
}

/// What [`Window::find`] found.
pub(super) enum Found<'a> {
    /// The launch, through an alias or not.
    Launch(&'a Launched, &'a mut Progress),
    /// Nothing yet; the launch will come under this id.
    Nothing(CorrelationId),
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Window {
    recent: Generations,
    waiting: Generations,
}

impl Window {
    pub(super) fn new(generation: usize, waiting: usize) -> Self {
        Self { recent: Generations::new(generation), waiting: Generations::new(waiting) }
    }

    /// Adds a launch. One with the same id that was there before (ids wrapped, or the data is hostile) is
    /// shadowed, and forgotten in its turn.
    pub(super) fn insert(
        &mut self,
        id: CorrelationId,
        entry: Entry,
        forget: &mut impl FnMut(CorrelationId, Entry),
    ) {
        if self.recent.is_full() {
            self.rotate(forget);
        }
        if let Some(shadowed) = self.recent.young.insert(id, entry) {
            forget(id, shadowed);
        }
    }

    /// The launch that `id` stands for. An alias is followed once: one of an alias is nobody's.
    pub(super) fn find(&mut self, id: CorrelationId) -> Found<'_> {
        let target = match self.peek(id) {
            Some(Entry::Alias(target)) => *target,
            Some(Entry::Launch(..)) => id,
            None => return Found::Nothing(id),
        };
        match self.recent.get_mut(target).or_else(|| self.waiting.get_mut(target)) {
            Some(Entry::Launch(launched, progress)) => Found::Launch(launched, progress),
            _ => Found::Nothing(target),
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self, forget: &mut impl FnMut(CorrelationId, Entry)) {
        let Self { recent, waiting } = self;
        for map in [&mut waiting.old, &mut waiting.young, &mut recent.old, &mut recent.young] {
            map.drain().for_each(|(id, entry)| forget(id, entry));
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        [&self.recent, &self.waiting].map(|g| map_bytes(&g.young) + map_bytes(&g.old)).iter().sum()
    }

    fn peek(&self, id: CorrelationId) -> Option<&Entry> {
        self.recent.get(id).or_else(|| self.waiting.get(id))
    }

    /// The oldest generation leaves: what is done is forgotten, the rest goes on waiting.
    fn rotate(&mut self, forget: &mut impl FnMut(CorrelationId, Entry)) {
        let mut leaving = self.recent.rotate();
        for (&id, &entry) in &leaving {
            match entry {
                Entry::Launch(_, Progress::Matched) => forget(id, entry),
                Entry::Launch(..) => self.wait(id, entry, forget),
                Entry::Alias(_) => {}
            }
        }
        // An alias stays as long as its launch does, and by now it is known which launches stay.
        for (&id, &entry) in &leaving {
            match entry {
                Entry::Alias(launch) if self.peek(launch).is_some() => self.wait(id, entry, forget),
                _ => {}
            }
        }
        leaving.clear();
        self.recent.young = leaving;
    }

    fn wait(&mut self, id: CorrelationId, entry: Entry, forget: &mut impl FnMut(CorrelationId, Entry)) {
        if self.waiting.is_full() {
            let mut leaving = self.waiting.rotate();
            leaving.drain().for_each(|(id, entry)| forget(id, entry));
            self.waiting.young = leaving;
        }
        if let Some(shadowed) = self.waiting.young.insert(id, entry) {
            forget(id, shadowed);
        }
    }
}

type Map = IdMap<CorrelationId, Entry>;

/// Entries by age, roughly: a whole map at a time grows old, so that nothing is ever taken out singly
/// and the tables stay as large as they once became.
#[derive(Debug)]
struct Generations {
    young: Map,
    old: Map,
    room: usize,
}

impl Generations {
    fn new(room: usize) -> Self {
        Self { young: Map::default(), old: Map::default(), room: room.max(1) }
    }

    fn is_full(&self) -> bool {
        self.young.len() >= self.room
    }

    fn get(&self, id: CorrelationId) -> Option<&Entry> {
        self.young.get(&id).or_else(|| self.old.get(&id))
    }

    fn get_mut(&mut self, id: CorrelationId) -> Option<&mut Entry> {
        self.young.get_mut(&id).or_else(|| self.old.get_mut(&id))
    }

    /// The young grow old; the old come back, to be emptied and used again as `young`.
    fn rotate(&mut self) -> Map {
        let leaving = std::mem::take(&mut self.old);
        self.old = std::mem::take(&mut self.young);
        leaving
    }
}

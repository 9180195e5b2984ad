//! The launches that activities can still find: two generations of a map, and those that wait longer.
//!
//! It counts nothing and knows no sink: what it forgets it hands to the caller's closure.

use std::collections::VecDeque;

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
    assert!(size_of::<(CorrelationId, Entry)>() == 32, "the window grew: it holds 344,064 of these");

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
    young: IdMap<CorrelationId, Entry>,
    old: IdMap<CorrelationId, Entry>,
    waiting: IdMap<CorrelationId, Entry>,
    /// The ids of `waiting` in the order they came.
    queue: VecDeque<CorrelationId>,
    generation: usize,
    patience: usize,
}

impl Window {
    pub(super) fn new(generation: usize, patience: usize) -> Self {
        Self {
            young: IdMap::default(),
            old: IdMap::default(),
            waiting: IdMap::default(),
            queue: VecDeque::new(),
            generation: generation.max(1),
            patience,
        }
    }

    /// Adds a launch. One with the same id that was there before (ids wrapped, or the data is hostile) is
    /// shadowed, and forgotten in its turn.
    pub(super) fn insert(
        &mut self,
        id: CorrelationId,
        entry: Entry,
        forget: &mut impl FnMut(CorrelationId, Entry),
    ) {
        if self.young.len() >= self.generation {
            self.rotate(forget);
        }
        if let Some(shadowed) = self.young.insert(id, entry) {
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
        match lookup(&mut self.young, &mut self.old, &mut self.waiting, target) {
            Some(Entry::Launch(launched, progress)) => Found::Launch(launched, progress),
            _ => Found::Nothing(target),
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self, forget: &mut impl FnMut(CorrelationId, Entry)) {
        for map in [&mut self.waiting, &mut self.old, &mut self.young] {
            map.drain().for_each(|(id, entry)| forget(id, entry));
        }
        self.queue.clear();
    }

    pub(super) fn heap_bytes(&self) -> usize {
        map_bytes(&self.young)
            + map_bytes(&self.old)
            + map_bytes(&self.waiting)
            + self.queue.capacity() * size_of::<CorrelationId>()
    }

    fn peek(&self, id: CorrelationId) -> Option<&Entry> {
        self.young.get(&id).or_else(|| self.old.get(&id)).or_else(|| self.waiting.get(&id))
    }

    /// The old generation leaves, the young one becomes old. The tables themselves are kept.
    fn rotate(&mut self, forget: &mut impl FnMut(CorrelationId, Entry)) {
        let mut leaving = std::mem::take(&mut self.old);
        self.old = std::mem::take(&mut self.young);
        for (&id, &entry) in &leaving {
            match entry {
                Entry::Launch(_, Progress::Matched) => forget(id, entry),
                Entry::Launch(..) => self.park(id, entry, forget),
                Entry::Alias(_) => {}
            }
        }
        // An alias stays as long as its launch does, and by now it is known which launches stay.
        for (&id, &entry) in &leaving {
            match entry {
                Entry::Alias(launch) if self.peek(launch).is_some() => self.park(id, entry, forget),
                _ => {}
            }
        }
        leaving.clear();
        self.young = leaving;
    }

    fn park(&mut self, id: CorrelationId, entry: Entry, forget: &mut impl FnMut(CorrelationId, Entry)) {
        if let Some(shadowed) = self.waiting.insert(id, entry) {
            forget(id, shadowed);
        } else {
            self.queue.push_back(id);
        }
        while self.queue.len() > self.patience {
            let oldest = self.queue.pop_front().expect("longer than the limit");
            if let Some(entry) = self.waiting.remove(&oldest) {
                forget(oldest, entry);
            }
        }
    }
}

fn lookup<'a>(
    young: &'a mut IdMap<CorrelationId, Entry>,
    old: &'a mut IdMap<CorrelationId, Entry>,
    waiting: &'a mut IdMap<CorrelationId, Entry>,
    id: CorrelationId,
) -> Option<&'a mut Entry> {
    young.get_mut(&id).or_else(|| old.get_mut(&id)).or_else(|| waiting.get_mut(&id))
}

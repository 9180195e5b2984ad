//! Activities whose launch has not arrived yet: a bounded list by age, threaded through a list per id.
//!
//! Kept as a slab with links, since activities leave from both ends: by id when their launch comes, and
//! by age when there are too many. Why an activity leaves is the caller's business.

use crate::record::{Activity, CorrelationId, IdMap, map_bytes};

const NIL: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Orphans {
    slots: Vec<Slot>,
    /// First free slot; free slots are linked by `next`.
    free: u32,
    chains: IdMap<CorrelationId, Chain>,
    oldest: u32,
    newest: u32,
    limit: usize,
    len: usize,
}

#[derive(Debug)]
struct Slot {
    activity: Activity,
    /// The id it waits for: its own, or the launch's where its own turned out to be an alias.
    id: CorrelationId,
    /// The next of the same id.
    next: u32,
    older: u32,
    newer: u32,
}

/// The activities of one id, oldest first.
#[derive(Clone, Copy, Debug)]
struct Chain {
    first: u32,
    last: u32,
}

impl Orphans {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: NIL,
            chains: IdMap::default(),
            oldest: NIL,
            newest: NIL,
            limit: limit.min(NIL as usize),
            len: 0,
        }
    }

    /// Keeps `activity` until a launch with `id` comes. Returns the oldest one where there are too many.
    pub(super) fn push(&mut self, id: CorrelationId, activity: &Activity) -> Option<Activity> {
        if self.limit == 0 {
            return Some(*activity);
        }
        let evicted = if self.len == self.limit { self.pop_oldest() } else { None };
        let slot = Slot { activity: *activity, id, next: NIL, older: self.newest, newer: NIL };
        let at = self.place(slot);
        match self.newest {
            NIL => self.oldest = at,
            newest => self.slots[newest as usize].newer = at,
        }
        self.newest = at;
        self.chain(id, at);
        self.len += 1;
        evicted
    }

    /// The oldest activity that waits for `id`.
    pub(super) fn take(&mut self, id: CorrelationId) -> Option<Activity> {
        let first = self.chains.get(&id)?.first;
        Some(self.remove(first))
    }

    /// The activity that has waited longest.
    pub(super) fn pop_oldest(&mut self) -> Option<Activity> {
        if self.oldest == NIL { None } else { Some(self.remove(self.oldest)) }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + map_bytes(&self.chains)
    }

    fn place(&mut self, slot: Slot) -> u32 {
        match self.free {
            NIL => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
            at => {
                self.free = self.slots[at as usize].next;
                self.slots[at as usize] = slot;
                at
            }
        }
    }

    fn chain(&mut self, id: CorrelationId, at: u32) {
        let chain = self.chains.entry(id).or_insert(Chain { first: at, last: at });
        if chain.last != at {
            self.slots[chain.last as usize].next = at;
            chain.last = at;
        }
    }

    /// Takes out the slot at `at`, which is the first of its chain: within an id, age and order agree.
    fn remove(&mut self, at: u32) -> Activity {
        let Slot { activity, id, next, older, newer } = self.slots[at as usize];
        match next {
            NIL => drop(self.chains.remove(&id)),
            next => self.chains.get_mut(&id).expect("every slot has a chain").first = next,
        }
        match older {
            NIL => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        self.slots[at as usize].next = self.free;
        self.free = at;
        self.len -= 1;
        activity
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::kernel;

    #[test]
    fn activities_of_one_id_come_back_oldest_first() {
        let mut orphans = Orphans::new(8);
        for (id, start) in [(1, 10), (2, 20), (1, 30)] {
            assert_eq!(orphans.push(CorrelationId(id), &kernel(id, start, start + 1)), None);
        }
        assert_eq!(orphans.take(CorrelationId(1)).unwrap().start.0, 10);
        assert_eq!(orphans.take(CorrelationId(1)).unwrap().start.0, 30);
        assert_eq!(orphans.take(CorrelationId(1)), None);
        assert_eq!(orphans.pop_oldest().unwrap().start.0, 20);
        assert_eq!(orphans.pop_oldest(), None);
    }

    #[test]
    fn when_full_the_oldest_of_all_leaves() {
        let mut orphans = Orphans::new(2);
        orphans.push(CorrelationId(1), &kernel(1, 10, 11));
        orphans.push(CorrelationId(2), &kernel(2, 20, 21));
        let evicted = orphans.push(CorrelationId(1), &kernel(1, 30, 31)).unwrap();
        assert_eq!(evicted.start.0, 10);
        assert_eq!(orphans.take(CorrelationId(1)).unwrap().start.0, 30);
        assert_eq!(orphans.take(CorrelationId(2)).unwrap().start.0, 20);
    }

    #[test]
    fn slots_are_used_again() {
        let mut orphans = Orphans::new(4);
        for id in 0..100 {
            orphans.push(CorrelationId(id), &kernel(id, 1, 2));
            assert!(orphans.take(CorrelationId(id)).is_some());
        }
        assert_eq!(orphans.slots.len(), 1);
    }

    #[test]
    fn with_no_room_at_all_it_comes_back_at_once() {
        let mut orphans = Orphans::new(0);
        assert!(orphans.push(CorrelationId(1), &kernel(1, 1, 2)).is_some());
    }
}

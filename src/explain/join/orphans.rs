//! Stores activities whose launch has not arrived yet (orphans), in a bounded list sorted by age. Orphans with the same
//! id are linked in a chain.
//!
//! When a launch arrives, the activities that wait for it are found by id and removed. If there are too many
//! activities, the oldest is removed. The list is a slab of linked slots, in which both kinds of removal are fast.
//! `launch_index` stores the first and last slot of each chain, because each id is looked up there anyway.

use gpuflame_model::record::{Activity, CorrelationId};

const NIL: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Orphans {
    slots: Vec<OrphanSlot>,
    /// Index of the first free slot. Free slots form a linked list: the field `next` of each free slot contains the
    /// index of the next free slot.
    free: u32,
    oldest: u32,
    newest: u32,
    limit: usize,
    len: usize,
}

#[derive(Debug)]
struct OrphanSlot {
    activity: Activity,
    /// Id under which the launch is expected. The expected id is the activity's id or, if that id is known to be an
    /// alias, the launch's id.
    id: CorrelationId,
    /// Index of the slot that contains the next activity with the same id.
    next: u32,
    older: u32,
    newer: u32,
}

/// First and last slot of the activities that wait for one id. The first slot has the oldest activity. A chain of
/// waiting activities always has at least one activity.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    first: u32,
    last: u32,
}

impl Orphans {
    pub(super) fn new(limit: usize) -> Self {
        let limit = limit.min(NIL as usize);
        Self { slots: Vec::new(), free: NIL, oldest: NIL, newest: NIL, limit, len: 0 }
    }

    /// Returns the number of activities that can still be added.
    pub(super) fn room(&self) -> usize {
        self.limit - self.len
    }

    /// Returns the id for which the oldest activity waits. The oldest activity is the first in its chain, because each
    /// chain of waiting activities is sorted by age.
    pub(super) fn oldest(&self) -> Option<CorrelationId> {
        Some(self.slots.get(self.oldest as usize)?.id)
    }

    /// Appends `activity` to the chain of activities that wait for `id`. The caller must have checked that there is
    /// room.
    pub(super) fn push(&mut self, id: CorrelationId, activity: &Activity, chain: Option<Chain>) -> Chain {
        debug_assert!(self.room() > 0);
        let at =
            self.allocate(OrphanSlot { activity: *activity, id, next: NIL, older: self.newest, newer: NIL });
        match self.newest {
            NIL => self.oldest = at,
            newest => self.slots[newest as usize].newer = at,
        }
        self.newest = at;
        self.len += 1;
        let Some(chain) = chain else { return Chain { first: at, last: at } };
        self.slots[chain.last as usize].next = at;
        Chain { last: at, ..chain }
    }

    /// Removes the first activity from a chain of waiting activities. Returns this activity, and the rest of the chain
    /// if it is not empty.
    pub(super) fn take_first(&mut self, chain: Chain) -> (Activity, Option<Chain>) {
        let OrphanSlot { activity, next, older, newer, .. } = self.slots[chain.first as usize];
        match older {
            NIL => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        self.slots[chain.first as usize].next = self.free;
        self.free = chain.first;
        self.len -= 1;
        (activity, (next != NIL).then_some(Chain { first: next, ..chain }))
    }

    /// Removes all activities from a chain, and passes them to `each`.
    pub(super) fn take_all(&mut self, chain: Chain, mut each: impl FnMut(&Activity)) {
        let mut left = Some(chain);
        while let Some(chain) = left {
            let (activity, rest) = self.take_first(chain);
            each(&activity);
            left = rest;
        }
    }

    /// Passes all activities to `each`, oldest first.
    pub(super) fn for_each(&self, mut each: impl FnMut(&Activity)) {
        let mut at = self.oldest;
        while let Some(slot) = self.slots.get(at as usize) {
            each(&slot.activity);
            at = slot.newer;
        }
    }

    /// Passes the id for which each activity waits to `each`. An id is passed several times if several activities wait
    /// for it.
    pub(super) fn for_each_id(&self, mut each: impl FnMut(CorrelationId)) {
        let mut at = self.oldest;
        while let Some(slot) = self.slots.get(at as usize) {
            each(slot.id);
            at = slot.newer;
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<OrphanSlot>()
    }

    fn allocate(&mut self, slot: OrphanSlot) -> u32 {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::testing::kernel;

    const ONE: CorrelationId = CorrelationId(1);
    const TWO: CorrelationId = CorrelationId(2);

    #[test]
    fn orphans_of_one_id_are_taken_oldest_first() {
        let mut orphans = Orphans::new(8);
        let first = orphans.push(ONE, &kernel(1, 10, 11), None);
        let other = orphans.push(TWO, &kernel(2, 20, 21), None);
        let chain = orphans.push(ONE, &kernel(1, 30, 31), Some(first));
        assert_eq!((orphans.oldest(), orphans.room()), (Some(ONE), 5));
        let (activity, rest) = orphans.take_first(chain);
        assert_eq!((activity.start.0, orphans.oldest()), (10, Some(TWO)));
        let (activity, rest) = orphans.take_first(rest.unwrap());
        assert_eq!((activity.start.0, rest.is_none()), (30, true));
        assert_eq!(orphans.take_first(other).0.start.0, 20);
        assert_eq!((orphans.oldest(), orphans.room()), (None, 8));
    }

    #[test]
    fn slots_are_reused() {
        let mut orphans = Orphans::new(4);
        for _ in 0..100 {
            let chain = orphans.push(ONE, &kernel(1, 1, 2), None);
            orphans.take_first(chain);
        }
        assert_eq!(orphans.slots.len(), 1);
    }
}

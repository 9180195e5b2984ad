//! Activities whose launch has not arrived yet: a bounded list by age, threaded through a chain per id.
//!
//! Kept as a slab with links, since activities leave from both ends: by id when their launch comes, and
//! by age when there are too many. Where each id's chain begins stands in `by_id`, which is asked
//! about that id anyway; why an activity leaves is the caller's business.

use crate::record::{Activity, CorrelationId};

const NIL: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Orphans {
    slots: Vec<Slot>,
    /// First free slot; free slots are linked by `next`.
    free: u32,
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

/// The activities of one id, oldest first; at least one.
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

    /// How many more fit.
    pub(super) fn room(&self) -> usize {
        self.limit - self.len
    }

    /// The id of the activity that has waited longest. It is the first of its chain: within an id, age and
    /// order agree.
    pub(super) fn oldest(&self) -> Option<CorrelationId> {
        Some(self.slots.get(self.oldest as usize)?.id)
    }

    /// Keeps `activity` until a launch with `id` comes, at the end of that id's chain. The caller has seen
    /// to it that there is room.
    pub(super) fn push(&mut self, id: CorrelationId, activity: &Activity, chain: Option<Chain>) -> Chain {
        debug_assert!(self.room() > 0);
        let at = self.place(Slot { activity: *activity, id, next: NIL, older: self.newest, newer: NIL });
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

    /// Takes the first activity of a chain out; what is left of the chain is returned with it.
    pub(super) fn take_first(&mut self, chain: Chain) -> (Activity, Option<Chain>) {
        let Slot { activity, next, older, newer, .. } = self.slots[chain.first as usize];
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

    /// Takes a whole chain out.
    pub(super) fn take_all(&mut self, chain: Chain, mut each: impl FnMut(&Activity)) {
        let mut left = Some(chain);
        while let Some(chain) = left {
            let (activity, rest) = self.take_first(chain);
            each(&activity);
            left = rest;
        }
    }

    /// Shows all of them, the one that has waited longest first.
    pub(super) fn each(&self, mut each: impl FnMut(&Activity)) {
        let mut at = self.oldest;
        while let Some(slot) = self.slots.get(at as usize) {
            each(&slot.activity);
            at = slot.newer;
        }
    }

    /// Shows the ids of all of them, some more than once.
    pub(super) fn each_id(&self, mut each: impl FnMut(CorrelationId)) {
        let mut at = self.oldest;
        while let Some(slot) = self.slots.get(at as usize) {
            each(slot.id);
            at = slot.newer;
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::kernel;

    const ONE: CorrelationId = CorrelationId(1);
    const TWO: CorrelationId = CorrelationId(2);

    #[test]
    fn activities_of_one_id_come_back_oldest_first() {
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
    fn slots_are_used_again() {
        let mut orphans = Orphans::new(4);
        for _ in 0..100 {
            let chain = orphans.push(ONE, &kernel(1, 1, 2), None);
            orphans.take_first(chain);
        }
        assert_eq!(orphans.slots.len(), 1);
    }
}

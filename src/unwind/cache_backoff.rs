//! Back-off for the stack caches: limits the cost of look-ups and insertions in programs whose stacks do not
//! repeat.
//!
//! Insertions are paid from a budget that look-ups earn. At most one insertion is allowed per eight look-ups, and fewer as
//! long as the evicted entries had never been hit. A miss costs twice the confidence that a hit restores. While the
//! confidence is low, only one look-up in sixteen is made.

/// Number of look-ups per insertion: the minimum, and the maximum (reached while evicted entries had never been hit).
const MIN_INSERT_COST: u32 = 8;
const MAX_INSERT_COST: u32 = 128;
/// Maximum budget, in look-ups.
const MAX_BUDGET: u32 = 64 * MIN_INSERT_COST;
/// Weight of a miss, compared with a weight of 1 for a hit, and the maximum of the weighted sum.
const MISS_WEIGHT: u32 = 2;
const MAX_MISSES: u32 = 64;
/// Weighted sum from which on only one look-up in sixteen is made; each hit among these look-ups has the weight `BACKOFF_HIT_WEIGHT`. If
/// a program's stacks begin to repeat, as when the program goes from capturing a graph to launching it, look-ups are
/// trusted again after about 64 of them.
const BACKOFF_MISSES: u32 = MAX_MISSES / 2;
const BACKOFF_HIT_WEIGHT: u32 = 8;
/// Maximum value of an entry's hit count.
const MAX_HITS: u8 = 3;

/// The budget, and the confidence that look-ups will hit. Zeroed memory is valid.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct CacheBackoff {
    budget: u32,
    /// Cost of an insertion in excess of `MIN_INSERT_COST`.
    extra_insert_cost: u32,
    misses: u32,
    /// Number of possible look-ups, including skipped ones.
    lookups: u32,
}

impl CacheBackoff {
    /// Counts a capture that could use the cache. Returns whether to make the look-up.
    #[inline(always)]
    pub(super) fn may_look_up(&mut self) -> bool {
        self.budget = (self.budget + 1).min(MAX_BUDGET);
        self.lookups = self.lookups.wrapping_add(1);
        self.misses < BACKOFF_MISSES || self.lookups.is_multiple_of(16)
    }

    /// Records a hit of a cached entry.
    #[inline(always)]
    pub(super) fn record_hit(&mut self) {
        let weight = if self.misses < BACKOFF_MISSES { 1 } else { BACKOFF_HIT_WEIGHT };
        (self.misses, self.extra_insert_cost) =
            (self.misses.saturating_sub(weight), self.extra_insert_cost / 2);
    }

    /// Records a miss: the stack differed from the entry that it was compared with.
    #[inline(always)]
    pub(super) fn record_miss(&mut self) {
        self.misses = (self.misses + MISS_WEIGHT).min(MAX_MISSES);
    }

    /// Whether the budget now allows an insertion.
    #[inline(always)]
    pub(super) fn can_insert(&self) -> bool {
        self.budget >= MIN_INSERT_COST + self.extra_insert_cost
    }

    /// Charges one insertion to the budget.
    pub(super) fn charge_insertion(&mut self) {
        self.budget = self.budget.saturating_sub(MIN_INSERT_COST + self.extra_insert_cost);
    }

    /// Makes insertions more expensive, because an inserted entry was never hit, or because an insertion failed.
    pub(super) fn raise_insert_cost(&mut self) {
        self.extra_insert_cost =
            (2 * self.extra_insert_cost + MIN_INSERT_COST).min(MAX_INSERT_COST - MIN_INSERT_COST);
    }

    #[cfg(test)]
    pub(super) fn forget_misses(&mut self) {
        self.misses = 0;
    }

    #[cfg(test)]
    pub(super) fn has_full_budget(&self) -> bool {
        self.budget == MAX_BUDGET
    }
}

/// Counts a hit of one entry of a set.
#[inline(always)]
pub(super) fn count_hit(hits: &mut u8) {
    *hits = (*hits + 1).min(MAX_HITS);
}

/// Chooses the slot for a new entry with this tag, by the tags (0 for a free slot) and the hit counts of the set. Also
/// returns whether the new entry evicts an entry that was never hit.
pub(super) fn choose_way<const WAYS: usize>(
    tags: &mut [u32; WAYS],
    hits: &mut [u8; WAYS],
    tag: u32,
) -> (usize, bool) {
    let way = (0..WAYS).min_by_key(|way| (tags[*way] != 0, hits[*way])).unwrap_or(0);
    let evicted_unused = tags[way] != 0 && hits[way] == 0;
    // Decrement all hit counts, because old hits must not protect an entry forever.
    hits.iter_mut().for_each(|hits| *hits = hits.saturating_sub(1));
    (tags[way], hits[way]) = (tag, 0);
    (way, evicted_unused)
}

//! Back-off for the stack caches: limits the cost of look-ups and insertions in programs whose stacks do not
//! repeat.
//!
//! Each look-up adds 1 to a budget, and each insertion subtracts its cost from the budget. An insertion costs at least
//! eight, so there is at most one insertion per eight look-ups. Insertions become more expensive while they evict
//! entries that were never hit. A sum of misses limits the look-ups: a miss adds 2 to the sum, and a hit subtracts 1.
//! While the sum is high, only one look-up in sixteen is made.

/// Minimum and maximum cost of an insertion, in look-ups. The cost rises to the maximum if each insertion evicts an
/// entry that was never hit.
const MIN_INSERT_COST: u32 = 8;
const MAX_INSERT_COST: u32 = 128;
/// Maximum budget, in look-ups.
const MAX_BUDGET: u32 = 64 * MIN_INSERT_COST;
/// Amount that a miss adds to the sum `misses` (a hit subtracts 1), and the maximum of the sum.
const MISS_WEIGHT: u32 = 2;
const MAX_MISSES: u32 = 64;
/// From this value of the sum `misses` on, only one look-up in sixteen is made, and each hit subtracts
/// `BACKOFF_HIT_WEIGHT`. If a program's stacks begin to repeat (for example because it now launches a graph that it has
/// captured before), every look-up is made again after about 64 captures.
const BACKOFF_MISSES: u32 = MAX_MISSES / 2;
const BACKOFF_HIT_WEIGHT: u32 = 8;
/// Maximum value of an entry's hit count.
const MAX_HITS: u8 = 3;

/// The budget for insertions, and the sum of misses. Zeroed memory is a valid initial state.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct CacheBackoff {
    budget: u32,
    /// Cost of an insertion, in look-ups, minus `MIN_INSERT_COST`.
    extra_insert_cost: u32,
    misses: u32,
    /// Number of look-ups that were made or skipped so far, modulo 2^32.
    lookups: u32,
}

impl CacheBackoff {
    /// Counts a capture that could use the cache. Returns true if the capture should look its stack up, and false if it
    /// should skip the look-up.
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

    /// Records a miss: the captured stack differed from the cached entry that it was compared with.
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

/// Increments the hit count of one cache entry, up to `MAX_HITS`.
#[inline(always)]
pub(super) fn count_hit(hits: &mut u8) {
    *hits = (*hits + 1).min(MAX_HITS);
}

/// Chooses the slot of a set for a new entry with this tag: a free slot (tag 0) if there is one, or else the slot whose
/// entry has the lowest hit count. Also returns whether the new entry evicts an entry without hits.
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

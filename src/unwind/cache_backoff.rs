//! Back-off for the stack caches: limits the cost of look-ups and insertions in programs whose stacks do not
//! repeat.
//!
//! The number of look-ups is limited by a weighted sum of misses (`misses`). A miss adds 2 to the sum, and a hit
//! subtracts `HIT_WEIGHT`, a constant that each cache chooses. While the sum is at least [`BACKOFF_MISSES`], only one
//! look-up in sixteen is made.
//!
//! A budget limits the number of insertions into the cache of Python walks. Each look-up adds 1 to the budget, and each
//! insertion subtracts its cost from the budget. An insertion costs at least eight look-ups, so there is at most one
//! insertion per eight look-ups. If insertions evict entries that were never hit, the cost of an insertion rises.
//!
//! The cache of whole stacks uses a debt instead of a budget, because if stacks repeat, an insertion costs much less
//! than the following hits save. An insertion adds [`DEBT_PER_INSERTION`] to the debt, and insertions stop at the
//! maximum debt. A hit subtracts an eighth of [`DEBT_PER_INSERTION`] from the debt, and each look-up subtracts a 64th
//! of [`DEBT_PER_INSERTION`]. With a debt, a thread can insert many stacks in a short time when the program begins to
//! launch from new stacks. In the long run, insertions take at most about a quarter of the time that hits save, plus
//! the time of one insertion per 64 look-ups.

/// Minimum and maximum cost of an insertion, in look-ups. The cost rises to the maximum if each insertion evicts an
/// entry that was never hit.
const MIN_INSERT_COST: u32 = 8;
const MAX_INSERT_COST: u32 = 128;
/// Maximum budget, in look-ups.
const MAX_BUDGET: u32 = 64 * MIN_INSERT_COST;
/// Amount that a miss adds to the sum `misses`, and the maximum of the sum.
const MISS_WEIGHT: u32 = 2;
const MAX_MISSES: u32 = 64;
/// Back-off threshold: if the sum `misses` is at least this value, only one look-up in sixteen is made, and each hit
/// subtracts `BACKOFF_HIT_WEIGHT` from the sum. If a program's stacks begin to repeat (for example because it now
/// launches a graph that it has captured before), back-off ends after about 64 captures, and every look-up is made
/// again.
const BACKOFF_MISSES: u32 = MAX_MISSES / 2;
const BACKOFF_HIT_WEIGHT: u32 = 8;
/// Maximum value of an entry's hit count.
const MAX_HITS: u8 = 3;

/// Amount that an insertion adds to the debt, in look-ups.
const DEBT_PER_INSERTION: u32 = 64;
/// Amount that a failed insertion adds to the debt, in look-ups. A stack whose insertion fails can
/// probably never be cached.
const DEBT_PER_FAILURE: u32 = 128;
/// Amount that a hit subtracts from the debt, in addition to the 1 that each look-up subtracts. An insertion takes up
/// to twice the time that a hit saves.
const HIT_PAYMENT: u32 = DEBT_PER_INSERTION / 8;
/// Number of insertions at which the debt reaches its maximum, if no hit and no look-up reduces the debt. With this
/// limit, a thread can fill the whole cache before insertions stop.
const MAX_UNPAID_INSERTIONS: u32 = 640;

/// The sum of misses, which limits look-ups. A hit subtracts `HIT_WEIGHT`, a miss adds `MISS_WEIGHT`. Zeroed memory is
/// a valid initial state.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct LookupBackoff<const HIT_WEIGHT: u32> {
    misses: u32,
    /// Number of look-ups so far, including skipped look-ups, modulo 2^32.
    lookups: u32,
}

impl<const HIT_WEIGHT: u32> LookupBackoff<HIT_WEIGHT> {
    /// Counts a capture that could use the cache. Returns true if the capture should look its stack up, and false if it
    /// should skip the look-up.
    #[inline(always)]
    pub(super) fn may_look_up(&mut self) -> bool {
        self.lookups = self.lookups.wrapping_add(1);
        // During back-off, the look-ups that are still made are spread evenly, but at irregular intervals. If the
        // intervals were regular, a program that launches from the same stacks in turn might always look up the same
        // few stacks.
        self.misses < BACKOFF_MISSES || self.lookups.wrapping_mul(0x9e37_79b1) >> 28 == 0
    }

    /// Records a hit of a cached entry.
    #[inline(always)]
    pub(super) fn record_hit(&mut self) {
        let weight = if self.misses < BACKOFF_MISSES { HIT_WEIGHT } else { BACKOFF_HIT_WEIGHT };
        self.misses = self.misses.saturating_sub(weight);
    }

    /// Records a miss: the captured stack was compared with a cached entry and differed.
    #[inline(always)]
    pub(super) fn record_miss(&mut self) {
        self.misses = (self.misses + MISS_WEIGHT).min(MAX_MISSES);
    }

    #[cfg(test)]
    pub(super) fn forget_misses(&mut self) {
        self.misses = 0;
    }
}

/// The budget for insertions into the cache of Python walks. Zeroed memory is a valid initial state.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct InsertBudget {
    budget: u32,
    /// Cost of an insertion, in look-ups, minus `MIN_INSERT_COST`.
    extra_insert_cost: u32,
}

impl InsertBudget {
    /// Adds 1 to the budget for a look-up that was made or skipped.
    #[inline(always)]
    pub(super) fn count_lookup(&mut self) {
        self.budget = (self.budget + 1).min(MAX_BUDGET);
    }

    /// Lowers the cost of insertions, because a cached entry was hit.
    #[inline(always)]
    pub(super) fn record_hit(&mut self) {
        self.extra_insert_cost /= 2;
    }

    /// Whether the budget is large enough for an insertion.
    #[inline(always)]
    pub(super) fn can_insert(&self) -> bool {
        self.budget >= MIN_INSERT_COST + self.extra_insert_cost
    }

    /// Subtracts the cost of one insertion from the budget.
    pub(super) fn charge_insertion(&mut self) {
        self.budget = self.budget.saturating_sub(MIN_INSERT_COST + self.extra_insert_cost);
    }

    /// Raises the cost of insertions, because an evicted entry was never hit, or because an insertion failed.
    pub(super) fn raise_insert_cost(&mut self) {
        self.extra_insert_cost =
            (2 * self.extra_insert_cost + MIN_INSERT_COST).min(MAX_INSERT_COST - MIN_INSERT_COST);
    }
}

/// The debt that insertions into the cache of whole stacks have added, in look-ups. Zeroed memory is a valid initial
/// state.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct InsertDebt(u32);

impl InsertDebt {
    /// Subtracts 1 from the debt for a look-up that was made or skipped.
    #[inline(always)]
    pub(super) fn count_lookup(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }

    /// Subtracts [`HIT_PAYMENT`] from the debt, because a cached entry was hit.
    #[inline(always)]
    pub(super) fn record_hit(&mut self) {
        self.0 = self.0.saturating_sub(HIT_PAYMENT);
    }

    /// Whether the debt is low enough for an insertion.
    #[inline(always)]
    pub(super) fn can_insert(&self) -> bool {
        self.0 <= (MAX_UNPAID_INSERTIONS - 1) * DEBT_PER_INSERTION
    }

    /// Adds the cost of an insertion to the debt.
    pub(super) fn add_insertion(&mut self) {
        self.0 += DEBT_PER_INSERTION;
    }

    /// Adds the cost of a failed insertion to the debt.
    pub(super) fn add_failure(&mut self) {
        self.0 += DEBT_PER_FAILURE;
    }
}

/// Increments the hit count of one cache entry, up to `MAX_HITS`.
#[inline(always)]
pub(super) fn count_hit(hits: &mut u8) {
    *hits = (*hits + 1).min(MAX_HITS);
}

/// Chooses the slot for a new entry with the tag `tag` in one set of a cache. Chooses a free slot (tag 0) if there is
/// one, otherwise the slot whose entry has the lowest hit count. Returns the index of the slot. Also returns whether
/// the new entry evicts an entry that was never hit.
pub(super) fn choose_way<const WAYS: usize>(
    tags: &mut [u32; WAYS],
    hits: &mut [u8; WAYS],
    tag: u32,
) -> (usize, bool) {
    let way = (0..WAYS).min_by_key(|way| (tags[*way] != 0, hits[*way])).unwrap_or(0);
    let evicted_unused = tags[way] != 0 && hits[way] == 0;
    // Decrement the hit counts of all entries in the set, because old hits must not protect an
    // entry forever.
    hits.iter_mut().for_each(|hits| *hits = hits.saturating_sub(1));
    (tags[way], hits[way]) = (tag, 0);
    (way, evicted_unused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes `lookups` look-ups. The first `hits` look-ups are hits. After each look-up, inserts a stack if the debt
    /// allows an insertion. Returns the number of insertions.
    fn insertions(debt: &mut InsertDebt, lookups: u32, hits: u32) -> u32 {
        let mut count = 0;
        for lookup in 0..lookups {
            debt.count_lookup();
            if lookup < hits {
                debt.record_hit();
            }
            if debt.can_insert() {
                debt.add_insertion();
                count += 1;
            }
        }
        count
    }

    #[test]
    fn a_full_cache_can_be_inserted_at_once_and_then_insertions_need_hits() {
        let mut debt = InsertDebt::default();
        assert_eq!(insertions(&mut debt, 640, 0), 640);
        // The 640 look-ups above have reduced the debt by the cost of 10 insertions.
        assert_eq!(insertions(&mut debt, 10, 0), 10);
        let without_hits = insertions(&mut debt, 64_000, 0);
        assert!((999..=1001).contains(&without_hits), "one insertion per 64 look-ups, not {without_hits}");
        let with_hits = insertions(&mut debt, 64_000, 64_000);
        assert!((8999..=9001).contains(&with_hits), "nine insertions per 64 hits, not {with_hits}");
    }

    #[test]
    fn a_failed_insertion_costs_as_much_as_two() {
        let mut debt = InsertDebt::default();
        let mut failures = 0;
        while debt.can_insert() {
            debt.add_failure();
            failures += 1;
        }
        assert_eq!(failures, 640 / 2);
    }
}

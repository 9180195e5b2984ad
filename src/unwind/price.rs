//! Back-off for the stack caches: limits the cost of look-ups and insertions in programs whose stacks do not
//! repeat.
//!
//! Insertions are paid from a budget that look-ups earn. At most one insertion is allowed per eight look-ups, and fewer as
//! long as the evicted entries had never been hit. A miss costs twice the confidence that a hit restores. While the
//! confidence is low, only one look-up in sixteen is made.

/// Number of look-ups per insertion: the minimum, and the maximum (reached while evicted entries had never been hit).
const PRICE: u32 = 8;
const HIGHEST_PRICE: u32 = 128;
/// Maximum budget, in look-ups.
const MOST_CREDIT: u32 = 64 * PRICE;
/// Weight of a miss, compared with a weight of 1 for a hit, and the maximum of the weighted sum.
const VAIN: u32 = 2;
const MOST_DOUBT: u32 = 64;
/// Weighted sum from which on only one look-up in sixteen is made; each hit among these look-ups has the weight `TRUST`. If
/// a program's stacks begin to repeat, as when the program goes from capturing a graph to launching it, look-ups are
/// trusted again after about 64 of them.
const DOUBTFUL: u32 = MOST_DOUBT / 2;
const TRUST: u32 = 8;
/// Maximum value of an entry's hit count.
const MOST_USES: u8 = 3;

/// The budget, and the confidence that look-ups will hit. Zeroed memory is valid.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Price {
    credit: u32,
    /// Cost of an insertion in excess of `PRICE`.
    dear: u32,
    doubt: u32,
    /// Number of possible look-ups, including skipped ones.
    looks: u32,
}

impl Price {
    /// Counts a possible look-up. Returns whether to make the look-up.
    #[inline(always)]
    pub(super) fn may_look(&mut self) -> bool {
        self.credit = (self.credit + 1).min(MOST_CREDIT);
        self.looks = self.looks.wrapping_add(1);
        self.doubt < DOUBTFUL || self.looks.is_multiple_of(16)
    }

    /// Records a hit of a cached entry.
    #[inline(always)]
    pub(super) fn was_met(&mut self) {
        let trust = if self.doubt < DOUBTFUL { 1 } else { TRUST };
        (self.doubt, self.dear) = (self.doubt.saturating_sub(trust), self.dear / 2);
    }

    /// Records a miss: the stack differed from the entry that it was compared with.
    #[inline(always)]
    pub(super) fn was_in_vain(&mut self) {
        self.doubt = (self.doubt + VAIN).min(MOST_DOUBT);
    }

    /// Whether the budget now allows an insertion.
    #[inline(always)]
    pub(super) fn can_pay(&self) -> bool {
        self.credit >= PRICE + self.dear
    }

    /// Charges one insertion to the budget.
    pub(super) fn pay(&mut self) {
        self.credit = self.credit.saturating_sub(PRICE + self.dear);
    }

    /// Makes insertions more expensive, because an inserted entry was never hit, or because an insertion failed.
    pub(super) fn raise(&mut self) {
        self.dear = (2 * self.dear + PRICE).min(HIGHEST_PRICE - PRICE);
    }

    #[cfg(test)]
    pub(super) fn forgive(&mut self) {
        self.doubt = 0;
    }

    #[cfg(test)]
    pub(super) fn is_all_saved(&self) -> bool {
        self.credit == MOST_CREDIT
    }
}

/// Counts a hit of one entry of a set.
#[inline(always)]
pub(super) fn count_use(uses: &mut u8) {
    *uses = (*uses + 1).min(MOST_USES);
}

/// Chooses the slot for a new entry with this tag, by the tags (0 for a free slot) and the hit counts of the set. Also
/// returns whether the new entry evicts an entry that was never hit.
pub(super) fn make_way<const WAYS: usize>(
    tags: &mut [u32; WAYS],
    uses: &mut [u8; WAYS],
    tag: u32,
) -> (usize, bool) {
    let way = (0..WAYS).min_by_key(|way| (tags[*way] != 0, uses[*way])).unwrap_or(0);
    let was_in_vain = tags[way] != 0 && uses[way] == 0;
    // Decrement all hit counts, because old hits must not protect an entry forever.
    uses.iter_mut().for_each(|uses| *uses = uses.saturating_sub(1));
    (tags[way], uses[way]) = (tag, 0);
    (way, was_in_vain)
}

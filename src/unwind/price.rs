//! Back-off for the stack caches: limits the cost of look-ups and insertions in programs whose stacks do not
//! repeat.
//!
//! Insertions are paid from a budget that look-ups earn: one insertion per eight look-ups at most, and fewer while
//! evicted entries had never been hit. A miss costs twice the confidence that a hit restores; while confidence is
//! low, only one look-up in sixteen is made.

/// Look-ups per insertion, at least and (while evicted entries had never been hit) at most.
const PRICE: u32 = 8;
const HIGHEST_PRICE: u32 = 128;
/// Maximum budget.
const MOST_CREDIT: u32 = 64 * PRICE;
/// Weight of a miss, compared with 1 for a hit, and the maximum of the sum.
const VAIN: u32 = 2;
const MOST_DOUBT: u32 = 64;
/// From this sum on, one look-up in sixteen is made, and each hit among those has the weight `TRUST`. A program
/// whose stacks begin to repeat, as when it goes from capturing a graph to launching it, is trusted again after
/// about 64 look-ups.
const DOUBTFUL: u32 = MOST_DOUBT / 2;
const TRUST: u32 = 8;
/// Maximum hit count of an entry.
const MOST_USES: u8 = 3;

/// The budget, and the confidence that look-ups will hit. Zeroed memory is valid.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Price {
    credit: u32,
    /// Cost of an insertion above `PRICE`.
    dear: u32,
    doubt: u32,
    /// Number of look-ups, including skipped ones.
    looks: u32,
}

impl Price {
    /// Counts a possible look-up. Returns whether to make it.
    #[inline(always)]
    pub(super) fn may_look(&mut self) -> bool {
        self.credit = (self.credit + 1).min(MOST_CREDIT);
        self.looks = self.looks.wrapping_add(1);
        self.doubt < DOUBTFUL || self.looks.is_multiple_of(16)
    }

    /// Records a hit.
    #[inline(always)]
    pub(super) fn was_met(&mut self) {
        let trust = if self.doubt < DOUBTFUL { 1 } else { TRUST };
        (self.doubt, self.dear) = (self.doubt.saturating_sub(trust), self.dear / 2);
    }

    /// Records a miss: the entry that was compared was a different one.
    #[inline(always)]
    pub(super) fn was_in_vain(&mut self) {
        self.doubt = (self.doubt + VAIN).min(MOST_DOUBT);
    }

    /// Whether the budget allows an insertion now.
    #[inline(always)]
    pub(super) fn can_pay(&self) -> bool {
        self.credit >= PRICE + self.dear
    }

    /// Charges one insertion to the budget.
    pub(super) fn pay(&mut self) {
        self.credit = self.credit.saturating_sub(PRICE + self.dear);
    }

    /// Makes insertions more expensive: an inserted entry was never hit, or an insertion failed.
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

/// Counts a hit of an entry in a set.
#[inline(always)]
pub(super) fn count_use(uses: &mut u8) {
    *uses = (*uses + 1).min(MOST_USES);
}

/// Picks the slot for a new entry with this tag, by the set's tags (0 for a free slot) and hit counts. Also returns
/// whether it evicts an entry that was never hit.
pub(super) fn make_way<const WAYS: usize>(
    tags: &mut [u32; WAYS],
    uses: &mut [u8; WAYS],
    tag: u32,
) -> (usize, bool) {
    let way = (0..WAYS).min_by_key(|way| (tags[*way] != 0, uses[*way])).unwrap_or(0);
    let was_in_vain = tags[way] != 0 && uses[way] == 0;
    // Old hits must not protect an entry forever.
    uses.iter_mut().for_each(|uses| *uses = uses.saturating_sub(1));
    (tags[way], uses[way]) = (tag, 0);
    (way, was_in_vain)
}

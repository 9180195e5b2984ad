//! What it may cost to recognise what comes again, where nothing does.
//!
//! Whoever keeps something pays for it from what looks have saved up: one in eight at most, and fewer while what was kept was
//! never met. Where looks are in vain more often than not, one in sixteen is made.

/// For so many looks something may be kept; for more, up to the most, while what makes way was never met.
const PRICE: u32 = 8;
const HIGHEST_PRICE: u32 = 128;
/// So much is saved up at most.
const MOST_CREDIT: u32 = 64 * PRICE;
/// What a look in vain counts, against 1 of one that was not; and how much of it there can be.
const VAIN: u32 = 2;
const MOST_DOUBT: u32 = 64;
/// From here on one look in sixteen is made, of which each that was not in vain counts so much: a program that has gone over to
/// what comes again, as from capturing a graph to launching it, is trusted after some 64.
const DOUBTFUL: u32 = MOST_DOUBT / 2;
const TRUST: u32 = 8;
/// How often something is said to have been met, at most.
const MOST_USES: u8 = 3;

/// What was saved up, and how much looks are worth. Zeroes are valid.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Price {
    credit: u32,
    /// What something costs, above the least.
    dear: u32,
    doubt: u32,
    /// How many looks there were.
    looks: u32,
}

impl Price {
    /// Something may come again. Whether to look.
    #[inline(always)]
    pub(super) fn may_look(&mut self) -> bool {
        self.credit = (self.credit + 1).min(MOST_CREDIT);
        self.looks = self.looks.wrapping_add(1);
        self.doubt < DOUBTFUL || self.looks.is_multiple_of(16)
    }

    /// It was recognised.
    #[inline(always)]
    pub(super) fn was_met(&mut self) {
        let trust = if self.doubt < DOUBTFUL { 1 } else { TRUST };
        (self.doubt, self.dear) = (self.doubt.saturating_sub(trust), self.dear / 2);
    }

    /// What was looked at was something else.
    #[inline(always)]
    pub(super) fn was_in_vain(&mut self) {
        self.doubt = (self.doubt + VAIN).min(MOST_DOUBT);
    }

    /// Whether something may be kept by now.
    #[inline(always)]
    pub(super) fn can_pay(&self) -> bool {
        self.credit >= PRICE + self.dear
    }

    /// Something is kept.
    pub(super) fn pay(&mut self) {
        self.credit = self.credit.saturating_sub(PRICE + self.dear);
    }

    /// What was kept, or was to be, was of no use: the next costs more.
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

/// One of those that compete for a few places was met.
#[inline(always)]
pub(super) fn count_use(uses: &mut u8) {
    *uses = (*uses + 1).min(MOST_USES);
}

/// The place for one with this tag among those that compete, by their tags (0: it is free) and how often they were met. Whether
/// another makes way for it that was never met.
pub(super) fn make_way<const WAYS: usize>(
    tags: &mut [u32; WAYS],
    uses: &mut [u8; WAYS],
    tag: u32,
) -> (usize, bool) {
    let way = (0..WAYS).min_by_key(|way| (tags[*way] != 0, uses[*way])).unwrap_or(0);
    let was_in_vain = tags[way] != 0 && uses[way] == 0;
    // Who was met once is not safe for ever.
    uses.iter_mut().for_each(|uses| *uses = uses.saturating_sub(1));
    (tags[way], uses[way]) = (tag, 0);
    (way, was_in_vain)
}

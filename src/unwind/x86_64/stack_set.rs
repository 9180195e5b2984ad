//! The sets of the cache of whole stacks (see `stack_cache`). Each set has eight *ways*, which are places for one stack
//! each. A set finds the indices of cached stacks by their tag, and chooses the stack that a new stack replaces.

/// Number of sets, and number of stacks per set. Each stack may be in either of two sets. If each stack could be in
/// only one set, some sets would overflow long before the cache is full.
pub(super) const SETS: usize = 80;
pub(super) const WAYS: usize = 8;
/// Maximum value of a stack's hit count.
const MAX_HITS: u8 = 3;

/// Tags, indices and hit counts of the stacks in one set. Zeroed memory is an empty set.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct StackSet {
    /// Hashes of the stacks' starting states; 0 marks a free way.
    tags: [u32; WAYS],
    /// Indices of the stacks in `stack_cache`.
    numbers: [u16; WAYS],
    /// Number of recent hits per stack, at most `MAX_HITS`.
    hits: [u8; WAYS],
    /// The way at which the search for the lowest hit count begins. If several ways have the lowest hit count, the
    /// first way found is evicted.
    hand: u8,
}

impl StackSet {
    /// Returns the indices of the stacks in this set that have this tag.
    #[inline(always)]
    pub(super) fn numbers_with(&self, tag: u32) -> impl Iterator<Item = usize> {
        let tags = self.tags.iter().enumerate();
        let mut ways = tags.fold(0u8, |ways, (way, other)| ways | u8::from(*other == tag) << way);
        std::iter::from_fn(move || {
            let way = ways.trailing_zeros() as usize;
            (ways != 0).then(|| {
                ways &= ways - 1;
                self.number(way)
            })
        })
    }

    /// Returns the index of the stack in `way`.
    #[inline(always)]
    pub(super) fn number(&self, way: usize) -> usize {
        usize::from(self.numbers[way % WAYS]) % (SETS * WAYS)
    }

    /// Records a hit of the stack in `way`.
    #[inline(always)]
    pub(super) fn record_hit(&mut self, way: usize) {
        let hits = &mut self.hits[way % WAYS];
        *hits = (*hits + 1).min(MAX_HITS);
    }

    /// Returns the way that is best for a new stack: a free way if there is one, otherwise a way with the lowest hit
    /// count. Also returns the way's rank: 0 for a free way, otherwise the hit count plus 1. If both sets of a stack
    /// have a way of the same rank, the set with fewer stacks is better.
    pub(super) fn best_way(&self) -> (BestWay, usize) {
        let ways = (0..WAYS).map(|turn| (usize::from(self.hand) + turn) % WAYS);
        let rank = |way: usize| if self.tags[way] == 0 { 0 } else { 1 + self.hits[way] };
        let (rank, way) = ways.map(|way| (rank(way), way)).min_by_key(|(rank, _)| *rank).unwrap_or_default();
        let stacks = self.tags.iter().filter(|tag| **tag != 0).count();
        (BestWay { rank, stacks }, way)
    }

    /// Decrements the hit counts of this set, because old hits must not protect a stack forever.
    pub(super) fn age(&mut self) {
        self.hits.iter_mut().for_each(|hits| *hits = hits.saturating_sub(1));
    }

    /// Stores a new stack with this tag in `way`. The new stack gets the index of the stack that it replaces. If the
    /// way is free, the new stack gets the index `number`. Returns the new stack's index.
    pub(super) fn put(&mut self, way: usize, tag: u32, number: usize) -> usize {
        if self.tags[way] == 0 {
            self.numbers[way] = number as u16;
        }
        (self.tags[way], self.hits[way], self.hand) = (tag, 1, ((way + 1) % WAYS) as u8);
        self.number(way)
    }
}

/// Ranking of a set as the place for a new stack. The set with the smaller ranking is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BestWay {
    rank: u8,
    stacks: usize,
}

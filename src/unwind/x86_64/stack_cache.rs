//! A cache of the thread's whole stacks. For each stack, the cache stores one hash over all words that a walk of the
//! stack read.
//!
//! The result of a walk depends only on its starting state, on the unwind rules, and on the words that it reads (see
//! `last_stack`). Therefore, if a capture starts in the same state as an earlier walk, and the words that the walk read
//! are unchanged, the present stack equals the earlier stack. An equal stack need not be walked again, and the caller
//! can use the index that it got when the earlier stack was cached. The cache is useful because programs launch from
//! the same few hundred stacks again and again.
//!
//! Only a hash of the words' values is stored, not the values. Therefore a look-up reads two bytes of cached data per
//! word; a walk with `last_stack` and `path_cache` reads thirty bytes per word. Reading less data matters because the
//! program has to reload all data that a capture evicts from the L1 cache. In a training step of PyTorch, reloading the
//! evicted data takes as long as the walk itself. The hash has four 64-bit lanes that are computed in parallel. If a
//! stack has other words at the same addresses, it is mistaken for the cached stack with probability 5e-20. At a
//! million look-ups of such stacks per second, the hash mistakes one stack for another once in 500,000 years.
//!
//! Cached stacks that have the same starting state are distinguished by their hashes. To compute fewer hashes, a
//! look-up considers only stacks with the caller's hint (for example, the launched kernel's address). The look-up
//! computes one hash for all stacks that have their words at the same addresses. The look-up begins with the expected
//! stack. The expected stack is the stack that was hit next when the previous stack was last hit. While more than four
//! fifths of the comparisons fail, only one look-up in sixteen is made. Insertions stop while they cost more than hits
//! save (see `cache_backoff`), and only stacks that the caller has seen before are inserted. So the cache costs little
//! for stacks that never recur.
//!
//! Insertions must be cheap, because a program that begins to launch from new stacks needs many insertions in a short
//! time. To keep insertions cheap, the words are not sorted, and a new stack overwrites only as much of the evicted
//! stack as it needs.

use std::ptr::NonNull;

use super::cached_stack::{CachedStack, StackKey};
use super::generated::RecheckBackoff;
use super::last_stack::LastStack;
use super::stack_set::{SETS, StackSet, WAYS};
use super::stub::StubRegisters;
use crate::cache_backoff::{InsertDebt, LookupBackoff};
use crate::loader_state::LoaderState;
use crate::memory;

/// Number of cached stacks per thread. A full cache takes 645 KiB: 1 KiB per stack, and 5 KiB for the sets. Stacks are
/// stored without gaps, so a thread touches only the memory of the stacks that it caches.
pub(crate) const STACKS: usize = SETS * WAYS;
/// Maximum number of hashes that a look-up computes.
const MAX_HASHES: usize = 5;
/// Amount that a hit subtracts from the sum of misses. A miss adds 2, so look-ups become rarer if more than four fifths
/// of the comparisons fail. Computing a hash takes a tenth of the time that a hit saves.
const HIT_WEIGHT: u32 = 8;

/// The cached stacks of one thread. Zeroed memory is an empty cache.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct StackCache {
    /// The cache's memory, which is mapped when the first stack is inserted.
    contents: Option<NonNull<StackCacheMemory>>,
    /// Number of stacks in `contents`. The entries with indices below `count` are in use.
    count: usize,
    /// Index of the stack that was hit or inserted last.
    last: usize,
    /// Index of the stack that is expected to be hit next, because it was hit directly after the previous hit of the
    /// stack `last`.
    expected: usize,
    backoff: LookupBackoff<HIT_WEIGHT>,
    debt: InsertDebt,
}

#[derive(Debug)]
#[repr(C, align(4096))]
struct StackCacheMemory {
    sets: [StackSet; SETS],
    stacks: [CachedStack; STACKS],
}

impl StackCache {
    /// Returns the index of the cached stack that equals the present stack, which starts at `entry`. Returns `None` if
    /// the cache contains no such stack, if the back-off skips the look-up, or if the rules of the stack's generated
    /// code are due for a check.
    // If this function were inlined, each capture of a stack that is not cached would run 112 more instructions, and
    // each hit would run 25 instructions fewer.
    #[inline(never)]
    pub(super) fn look_up(
        &mut self,
        entry: &StubRegisters,
        hint: u64,
        state: LoaderState,
        recheck: &mut RecheckBackoff,
    ) -> Option<usize> {
        let may_look_up = self.backoff.may_look_up();
        self.debt.count_lookup();
        // SAFETY: `insert` mapped the stacks, they stay mapped as long as `self` lives, and only this thread uses them.
        let contents = unsafe { self.contents?.as_mut() };
        if !may_look_up {
            return None;
        }
        let key = StackKey::new(entry.pc, entry.sp(), hint, state);
        // Compare the expected stack first. The processor predicts that the expected stack equals the present stack,
        // and does not wait for the look-up in the sets.
        let expected = self.expected % STACKS;
        let stack = &contents.stacks[expected];
        let hash = stack.hash_if_likely(&key, entry.rbp);
        let (number, hashed) = if hash == Some(stack.hash) {
            (Some(expected), 1)
        } else {
            let computed = hash.map(|hash| (stack.layout, hash));
            contents.find_other(expected, &key, entry.rbp, computed)
        };
        if hashed > 0 && number.is_none() {
            self.backoff.record_miss();
        }
        let number = number?;
        if contents.stacks[number].is_generated && recheck.count(false) {
            return None;
        }
        self.backoff.record_hit();
        self.debt.record_hit();
        contents.record_hit(number, self.last);
        (self.last, self.expected) = (number, usize::from(contents.stacks[number].follower));
        Some(number)
    }

    /// Whether the back-off allows an insertion at this time.
    #[inline(always)]
    pub(super) fn can_insert(&self) -> bool {
        self.debt.can_insert()
    }

    /// Caches the stack that `last_stack` contains, whose leaf is the frame `leaf`, and returns its index. Returns
    /// `None` if the stack cannot be cached.
    #[inline(never)]
    pub(super) fn insert(
        &mut self,
        last_stack: &LastStack,
        leaf: usize,
        hint: u64,
        state: LoaderState,
    ) -> Option<usize> {
        let inserted = self.try_insert(last_stack, leaf, hint, state);
        match inserted {
            Some(number) => {
                self.debt.add_insertion();
                (self.last, self.expected) = (number, number);
            }
            None => self.debt.add_failure(),
        }
        inserted
    }

    #[inline(always)]
    fn try_insert(
        &mut self,
        last_stack: &LastStack,
        leaf: usize,
        hint: u64,
        state: LoaderState,
    ) -> Option<usize> {
        let read = last_stack.walk_inputs(leaf)?;
        let key = StackKey::new(read.pc, read.sp, hint, state);
        // Avoid copies of a `CachedStack`, because each copy takes 1 KiB of the program's stack.
        let mut stack = CachedStack::with_key(key, read.bp);
        stack.is_generated = last_stack.is_generated(leaf);
        stack.fill(read.words())?;
        if self.contents.is_none() {
            self.contents = memory::reserve(size_of::<StackCacheMemory>()).map(NonNull::cast);
        }
        // SAFETY: the stacks are mapped with this size, all-zero stacks are valid, and only this thread uses them.
        Some(unsafe { self.contents?.as_mut() }.put(&stack, &mut self.count))
    }

    /// Evicts all stacks that have a frame in code that may be replaced.
    pub(super) fn evict_generated(&mut self) {
        // SAFETY: `insert` mapped the stacks, they stay mapped as long as `self` lives, and only this thread uses them.
        let Some(contents) = self.contents.map(|mut contents| unsafe { contents.as_mut() }) else { return };
        let used = contents.stacks[..self.count].iter_mut();
        used.filter(|stack| stack.is_generated).for_each(|stack| stack.key = StackKey::EMPTY);
    }

    /// Releases the memory of the cache.
    pub(super) fn release(&mut self) {
        if let Some(contents) = self.contents.take() {
            let used = used_bytes(std::mem::take(&mut self.count));
            // SAFETY: `insert` mapped the stacks with this size, and no reference to them is left.
            unsafe { memory::release(contents.cast(), size_of::<StackCacheMemory>(), used) };
        }
    }
}

/// Returns the number of bytes that a cache with `count` stacks uses.
fn used_bytes(count: usize) -> usize {
    if count == 0 { 0 } else { size_of::<[StackSet; SETS]>() + count * size_of::<CachedStack>() }
}

impl StackCacheMemory {
    /// Returns the index of the cached stack that equals the present stack, which has this key and rbp. The caller has
    /// already compared the present stack with the stack `expected`. If this comparison computed a hash of the present
    /// stack, `computed` contains that hash and its layout. Also returns the total number of hashes that were computed.
    #[inline(never)]
    fn find_other(
        &self,
        expected: usize,
        key: &StackKey,
        bp: u64,
        mut computed: Option<(u64, [u64; 2])>,
    ) -> (Option<usize>, usize) {
        let mut hashed = usize::from(computed.is_some());
        let (sets, tag) = key.sets_and_tag();
        for number in self.numbers_with(sets, tag) {
            let stack = &self.stacks[number];
            // Two stacks with the same layout have the same hash if their words are equal, and practically never if
            // their words differ. Therefore one hash is enough to compare the present stack with all cached stacks of
            // the same layout.
            let hash = match computed {
                Some((layout, hash)) if layout == stack.layout && stack.has_key(key, bp) => Some(hash),
                _ if number == expected || hashed == MAX_HASHES => None,
                _ => stack.hash_if_likely(key, bp).inspect(|hash| {
                    hashed += 1;
                    computed = Some((stack.layout, *hash));
                }),
            };
            if hash == Some(stack.hash) {
                return (Some(number), hashed);
            }
        }
        (None, hashed)
    }

    /// Returns the indices of the stacks in these sets that have this tag.
    #[inline(always)]
    fn numbers_with(&self, sets: [usize; 2], tag: u32) -> impl Iterator<Item = usize> {
        sets.into_iter().flat_map(move |set| self.sets[set].numbers_with(tag))
    }

    /// Records that the stack `number` was hit directly after the stack `last`.
    #[inline(always)]
    fn record_hit(&mut self, number: usize, last: usize) {
        self.stacks[last % STACKS].follower = number as u16;
        let slot = usize::from(self.stacks[number].slot);
        self.sets[slot / WAYS % SETS].record_hit(slot % WAYS);
    }

    /// Stores a stack in the cache and returns its index. `count` is the number of stacks in the cache.
    fn put(&mut self, stack: &CachedStack, count: &mut usize) -> usize {
        let (sets, tag) = stack.key.sets_and_tag();
        let same = self.numbers_with(sets, tag).find(|number| self.stacks[*number].is_same(stack));
        if let Some(number) = same {
            return number;
        }
        let [one, other] = sets.map(|set| (self.sets[set].best_way(), set));
        let ((_, way), set) = one.min(other);
        sets.iter().for_each(|set| self.sets[*set].age());
        let number = self.sets[set].put(way, tag, *count);
        if number == *count {
            memory::count_used(used_bytes(*count + 1) - used_bytes(*count));
            *count += 1;
        }
        self.stacks[number].copy_from(stack);
        self.stacks[number].slot = (set * WAYS + way) as u16;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: usize = 21;

    /// A test stack. A capture of the test stack starts directly below `words`.
    #[repr(C)]
    struct TestStack {
        below: [u64; 16],
        entry: StubRegisters,
        words: [u64; WORDS],
    }

    const BP: u64 = 0x7000;

    fn test_stack() -> Box<TestStack> {
        let entry = StubRegisters { r15: 0, r14: 0, r13: 0, r12: 0, rbx: 0, rbp: BP, pc: 0x4000 };
        Box::new(TestStack { below: [0; 16], entry, words: std::array::from_fn(|at| 0x5000 + at as u64) })
    }

    impl TestStack {
        /// Returns the cache entry for the present test stack, as if a walk had read every word of the stack.
        fn stack(&self, hint: u64, bp: Option<u64>) -> CachedStack {
            let key = StackKey::new(self.entry.pc, self.entry.sp(), hint, LoaderState::default());
            let words = self.words.iter().map(|word| std::ptr::from_ref(word).expose_provenance() as u64);
            let mut stack = CachedStack::with_key(key, bp);
            stack.fill(words).unwrap();
            stack
        }

        fn look_up(&self, cache: &mut StackCache, hint: u64) -> Option<usize> {
            cache.look_up(&self.entry, hint, LoaderState::default(), &mut RecheckBackoff::default())
        }
    }

    /// Caches the stack `test_stack`.
    fn insert(cache: &mut StackCache, test_stack: &TestStack, hint: u64) -> usize {
        insert_stack(cache, test_stack.stack(hint, None))
    }

    fn insert_stack(cache: &mut StackCache, stack: CachedStack) -> usize {
        let mut contents = *cache
            .contents
            .get_or_insert_with(|| memory::reserve(size_of::<StackCacheMemory>()).unwrap().cast());
        // SAFETY: the stacks are mapped with this size, all-zero stacks are valid, and only this test uses the stacks.
        unsafe { contents.as_mut() }.put(&stack, &mut cache.count)
    }

    #[test]
    fn a_cached_stack_hits_only_while_every_word_is_unchanged() {
        let (mut cache, mut test_stack) = (StackCache::default(), test_stack());
        assert_eq!(test_stack.look_up(&mut cache, 7), None);
        let number = insert(&mut cache, &test_stack, 7);
        assert!(number < STACKS);
        assert_eq!(test_stack.look_up(&mut cache, 7), Some(number));
        assert_eq!(test_stack.look_up(&mut cache, 8), None, "the hint differs");
        assert_eq!(
            cache.look_up(&test_stack.entry, 7, LoaderState::new(1, 0), &mut RecheckBackoff::default()),
            None,
            "an object was loaded"
        );
        for at in 0..WORDS {
            for bit in [0, 17, 63] {
                test_stack.words[at] ^= 1 << bit;
                assert_eq!(test_stack.look_up(&mut cache, 7), None, "word {at}");
                test_stack.words[at] ^= 1 << bit;
                cache.backoff.forget_misses();
            }
        }
        for (one, other) in (0..WORDS).flat_map(|other| (0..other).map(move |one| (one, other))) {
            test_stack.words.swap(one, other);
            assert_eq!(test_stack.look_up(&mut cache, 7), None, "words {one} and {other} are exchanged");
            test_stack.words.swap(one, other);
            cache.backoff.forget_misses();
        }
        assert_eq!(test_stack.look_up(&mut cache, 7), Some(number));
        cache.release();
        assert_eq!(test_stack.look_up(&mut cache, 7), None);
    }

    #[test]
    fn rbp_is_compared_only_if_the_walk_reads_it() {
        let (mut cache, mut test_stack) = (StackCache::default(), test_stack());
        let read = insert_stack(&mut cache, test_stack.stack(1, Some(BP)));
        let other = insert_stack(&mut cache, test_stack.stack(2, None));
        assert_eq!([1, 2].map(|hint| test_stack.look_up(&mut cache, hint)), [Some(read), Some(other)]);
        test_stack.entry.rbp = 0;
        assert_eq!([1, 2].map(|hint| test_stack.look_up(&mut cache, hint)), [None, Some(other)]);
        cache.release();
    }

    #[test]
    fn stacks_with_a_common_start_are_distinguished_and_the_least_hit_are_evicted() {
        const ROOM: usize = 2 * WAYS;
        let (mut cache, mut test_stack) = (StackCache::default(), test_stack());
        let sets = |hint| test_stack.stack(hint, None).key.sets_and_tag().0;
        let hint = (0..).find(|hint| sets(*hint)[0] != sets(*hint)[1]).unwrap();
        let numbers: Vec<usize> = (0..ROOM as u64)
            .map(|turn| {
                test_stack.words[5] = turn;
                insert(&mut cache, &test_stack, hint)
            })
            .collect();
        for turn in (0..ROOM).chain([1, 0, 2, 2]) {
            test_stack.words[5] = turn as u64;
            assert_eq!(test_stack.look_up(&mut cache, hint), Some(numbers[turn]));
            assert_eq!(insert(&mut cache, &test_stack, hint), numbers[turn], "the stack is stored only once");
        }
        for extra in 100..102 {
            test_stack.words[5] = extra;
            assert_ne!(insert(&mut cache, &test_stack, hint), numbers[2], "this stack had the most hits");
        }
        test_stack.words[5] = 2;
        assert_eq!(test_stack.look_up(&mut cache, hint), Some(numbers[2]));
        assert_eq!(cache.count, ROOM, "evicted stacks left their numbers to the extra stacks");
        cache.release();
    }

    #[test]
    fn five_hundred_stacks_are_all_found_again_in_any_order() {
        const COUNT: u64 = 512;
        let (mut cache, test_stack) = (StackCache::default(), test_stack());
        let numbers: Vec<usize> = (0..COUNT).map(|hint| insert(&mut cache, &test_stack, hint)).collect();
        assert_eq!(cache.count, COUNT as usize, "no stack was evicted");
        for step in 0..3 * COUNT {
            let hint = step * 197 % COUNT;
            assert_eq!(test_stack.look_up(&mut cache, hint), Some(numbers[hint as usize]));
        }
        cache.release();
    }

    #[test]
    fn memory_is_counted_per_stack() {
        assert_eq!([0, 1, 2, STACKS].map(used_bytes), [0, 6144, 7168, 645 * 1024]);
        assert_eq!(size_of::<StackCacheMemory>() - used_bytes(STACKS), 3072, "padding to a page");
    }

    #[test]
    fn after_many_misses_lookups_back_off_until_hits_return() {
        let (mut cache, mut test_stack) = (StackCache::default(), test_stack());
        let number = insert(&mut cache, &test_stack, 7);
        test_stack.words[0] = 0;
        (0..1000).for_each(|_| assert_eq!(test_stack.look_up(&mut cache, 7), None));
        test_stack.words[0] = 0x5000;
        let mut met =
            |looks: usize| (0..looks).filter(|_| test_stack.look_up(&mut cache, 7) == Some(number)).count();
        assert!((3..=5).contains(&met(64)), "about one look-up in sixteen is made");
        assert!(met(2000) > 1950, "the cache is used again");
        assert!(cache.can_insert());
        cache.release();
    }
}

//! A cache of the thread's whole stacks. For each stack it stores one hash over all words that a walk of the stack
//! read.
//!
//! The result of a walk depends only on its starting state, on the unwind rules, and on the words that it reads (see
//! `last_stack`). So if a capture starts in the same state as an earlier walk, and the words that the earlier walk read
//! are unchanged, then the stack is the same. The stack need not be walked again, and the caller can use the number
//! that it got for this stack before. The cache is useful because programs launch from the same few hundred stacks
//! again and again.
//!
//! Only a hash of the words' values is stored, not the values. So a look-up reads two bytes of this cache per word,
//! compared with thirty in `last_stack` and `path_cache`. The difference matters because the program has to reload all
//! data that a capture evicts from the L1 cache. In a training step of PyTorch, reloading takes as long as the walk
//! itself. The hash has four 64-bit lanes that are computed in parallel. A stack with other words at the same addresses
//! is mistaken for the cached stack with probability 5e-20: at a million such look-ups per second, once in 500,000
//! years.
//!
//! Hashes distinguish cached stacks that have the same starting state. To compute fewer hashes, a look-up considers
//! only stacks with the caller's hint (what is launched). The look-up begins with the stack that followed last time
//! after the previous stack was hit. While more than a third of the comparisons fail, only one look-up in sixteen is
//! made. At most one stack is inserted per eight captures. So stacks that never recur cost little.

use std::ptr::NonNull;

use super::generated::RecheckBackoff;
use super::last_stack::LastStack;
use super::stub::StubRegisters;
use crate::cache_backoff::{CacheBackoff, choose_way, count_hit};
use crate::copy::RED_ZONE;
use crate::loader_state::LoaderState;
use crate::memory::{self, word};

/// Number of cached stacks per thread. The cache is 8-way set-associative. The cache takes 512 KiB, but a thread
/// touches only the stacks that it uses.
pub(crate) const STACKS: usize = SETS * WAYS;
const SETS: usize = 64;
const WAYS: usize = 8;
/// Maximum number of words per stack. This number must be a multiple of the number of words that the hash processes at
/// once.
const MAX_WORDS: usize = 58 * BLOCK_WORDS;
const BLOCK_WORDS: usize = 8;
/// Number of sample words that are compared before the hash over all words is computed.
const PROBES: usize = 4;
/// Maximum number of stacks hashed per look-up.
const MAX_HASHED_STACKS: usize = 4;

/// The cached stacks of one thread. Zeroed memory is an empty cache.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct StackCache {
    /// The cache's memory, which is mapped when the first stack is inserted.
    contents: Option<NonNull<StackCacheMemory>>,
    /// Number of bytes of `contents` that are counted as used.
    used: usize,
    /// Number of the stack that was hit last.
    last: usize,
    backoff: CacheBackoff,
}

#[derive(Debug)]
#[repr(C, align(4096))]
struct StackCacheMemory {
    sets: [StackSet; SETS],
    stacks: [CachedStack; STACKS],
}

/// Tags, followers and hit counts of the stacks in one set of the cache.
#[derive(Debug)]
#[repr(C, align(64))]
struct StackSet {
    /// Hashes of the stacks' starting states; 0 marks a free slot.
    tags: [u32; WAYS],
    /// For each stack, the number of the stack that was hit directly after this stack's latest hit.
    followers: [u16; WAYS],
    /// Number of recent hits per stack, at most 3; each insertion into the set subtracts one from every stack's number.
    hits: [u8; WAYS],
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct CachedStack {
    key: StackKey,
    /// Value of rbp at the start of the stack, if that value matters.
    bp: u64,
    hash: [u64; 2],
    bp_matters: bool,
    /// Whether the stack has a frame in code that may be replaced.
    is_generated: bool,
    /// Number of words that the stack's walk read.
    len: u16,
    /// Sample words from the leaf half of the stack, where stacks with the same starting state usually differ.
    probes: [u64; PROBES],
    /// Addresses of the words, as offsets in words from the low end of the first frame's red zone.
    word_offsets: [u16; MAX_WORDS],
}

const _: () = assert!(size_of::<CachedStack>() == 1024, "a stack begins at a cache line");
/// Size in bytes of the stacks of one set. Used memory is counted in units of this size.
const SET_BYTES: usize = WAYS * size_of::<CachedStack>();

/// The key of a cached stack: its starting state and its hint, which are known before any word of the stack is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct StackKey {
    pc: u64,
    sp: u64,
    hint: u64,
    /// The loader state to which the walk's rules belong.
    state: u64,
}

impl StackKey {
    /// The key of an evicted stack, which no captured stack has.
    const EMPTY: Self = Self { pc: 0, sp: 0, hint: 0, state: 0 };

    fn new(pc: u64, sp: u64, hint: u64, state: LoaderState) -> Self {
        Self { pc, sp, hint, state: state.as_word() }
    }

    /// Index of the set that stores stacks with this key, and the tag that these stacks have in the set.
    #[inline(always)]
    fn set_and_tag(&self) -> (usize, u32) {
        let mixed = (self.pc ^ self.sp.rotate_left(32) ^ self.hint.rotate_left(16))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 57) as usize % SETS, (mixed >> 24) as u32 | 1)
    }
}

impl StackCache {
    /// Returns the number of the cached stack that equals the present stack, which starts at `entry`. Returns `None` if
    /// there is no such stack, if the back-off skips the look-up, or if the rules of the stack's generated code are due
    /// for a check.
    #[inline(always)]
    pub(super) fn look_up(
        &mut self,
        entry: &StubRegisters,
        hint: u64,
        state: LoaderState,
        recheck: &mut RecheckBackoff,
    ) -> Option<usize> {
        let may_look_up = self.backoff.may_look_up();
        // SAFETY: `insert` mapped the stacks, they stay mapped as long as `self` lives, and only this thread uses them.
        let contents = unsafe { self.contents?.as_mut() };
        if !may_look_up {
            return None;
        }
        let key = StackKey::new(entry.pc, entry.sp(), hint, state);
        let (set_index, tag) = key.set_and_tag();
        let followers = &mut contents.sets[self.last / WAYS % SETS].followers[self.last % WAYS];
        let first = usize::from(*followers);
        let mut hashed = 0;
        for turn in 0..WAYS {
            let way = (first + turn) % WAYS;
            if contents.sets[set_index].tags[way] != tag {
                continue;
            }
            let number = set_index * WAYS + way;
            match contents.stacks[number].matches(&key, entry.rbp) {
                Some(true) => {
                    if contents.stacks[number].is_generated && recheck.count(false) {
                        return None;
                    }
                    self.backoff.record_hit();
                    contents.record_hit(number, self.last);
                    self.last = number;
                    return Some(number);
                }
                Some(false) => hashed += 1,
                None => {}
            }
            if hashed == MAX_HASHED_STACKS {
                break;
            }
        }
        if hashed > 0 {
            self.backoff.record_miss();
        }
        None
    }

    /// Whether the back-off allows an insertion at this time.
    #[inline(always)]
    pub(super) fn can_insert(&self) -> bool {
        self.backoff.can_insert()
    }

    /// Caches the stack that `last_stack` contains, whose leaf is the frame `leaf`, and returns its number. `None` if
    /// the stack cannot be cached.
    #[inline(never)]
    pub(super) fn insert(
        &mut self,
        last_stack: &LastStack,
        leaf: usize,
        hint: u64,
        state: LoaderState,
    ) -> Option<usize> {
        self.backoff.charge_insertion();
        let read = last_stack.walk_inputs(leaf)?;
        let key = StackKey::new(read.pc, read.sp, hint, state);
        // Avoid copies of a `CachedStack`, because each takes 1 KiB of the program's stack.
        let mut stack = CachedStack::with_key(key, read.bp);
        stack.is_generated = last_stack.is_generated(leaf);
        if stack.fill(read.words()).is_none() {
            self.backoff.raise_insert_cost();
            return None;
        }
        if self.contents.is_none() {
            self.contents = memory::reserve(size_of::<StackCacheMemory>()).map(NonNull::cast);
            if self.contents.is_none() {
                // The next insertion tries again to reserve the memory. The back-off makes these attempts rarer.
                self.backoff.raise_insert_cost();
            }
        }
        // SAFETY: the stacks are mapped with this size, all-zero stacks are valid, and only this thread uses them.
        let contents = unsafe { self.contents?.as_mut() };
        if contents.is_first(&stack) {
            memory::count_used(SET_BYTES);
            self.used += SET_BYTES;
        }
        let (number, evicted_unused) = contents.put(&stack);
        if evicted_unused {
            self.backoff.raise_insert_cost();
        }
        self.last = number;
        Some(number)
    }

    /// Evicts all stacks that have a frame in code that may be replaced.
    pub(super) fn evict_generated(&mut self) {
        // SAFETY: `insert` mapped the stacks, they stay mapped as long as `self` lives, and only this thread uses them.
        let Some(contents) = self.contents.map(|mut contents| unsafe { contents.as_mut() }) else { return };
        let stacks = contents.stacks.chunks_exact_mut(WAYS).zip(&contents.sets);
        let used = stacks.filter(|(_, set)| set.tags != [0; WAYS]).flat_map(|(stacks, _)| stacks);
        used.filter(|stack| stack.is_generated).for_each(|stack| stack.key = StackKey::EMPTY);
    }

    /// Releases the memory of the cache.
    pub(super) fn release(&mut self) {
        if let Some(contents) = self.contents.take() {
            // SAFETY: `insert` mapped the stacks with this size, and no reference to them is left.
            unsafe {
                memory::release(
                    contents.cast(),
                    size_of::<StackCacheMemory>(),
                    std::mem::take(&mut self.used),
                )
            };
        }
    }
}

impl StackCacheMemory {
    /// Records a hit of stack `number` after stack `last`.
    #[inline(always)]
    fn record_hit(&mut self, number: usize, last: usize) {
        self.sets[last / WAYS % SETS].followers[last % WAYS] = number as u16;
        count_hit(&mut self.sets[number / WAYS % SETS].hits[number % WAYS]);
    }

    /// Whether `stack` is the first stack in its set.
    fn is_first(&self, stack: &CachedStack) -> bool {
        self.sets[stack.key.set_and_tag().0].tags == [0; WAYS]
    }

    /// Stores a stack. Returns the stack's number, and whether the stack replaced a stack that has no hits.
    fn put(&mut self, stack: &CachedStack) -> (usize, bool) {
        let (set_index, tag) = stack.key.set_and_tag();
        let set = &mut self.sets[set_index];
        let stacks = &mut self.stacks[set_index * WAYS..][..WAYS];
        let is_same =
            |old: &CachedStack| (old.key, old.hash) == (stack.key, stack.hash) && old.bp == stack.bp;
        if let Some(way) = stacks.iter().position(is_same) {
            return (set_index * WAYS + way, false);
        }
        let (way, evicted_unused) = choose_way(&mut set.tags, &mut set.hits, tag);
        stacks[way] = *stack;
        (set_index * WAYS + way, evicted_unused)
    }
}

impl CachedStack {
    /// Creates a stack with this key and without words. `bp` is the starting value of rbp if it matters.
    fn with_key(key: StackKey, bp: Option<u64>) -> Self {
        let (bp_matters, bp) = (bp.is_some(), bp.unwrap_or_default());
        let (hash, probes, word_offsets) = ([0; 2], [0; PROBES], [0; MAX_WORDS]);
        Self { key, bp, hash, bp_matters, is_generated: false, len: 0, probes, word_offsets }
    }

    /// Stores the addresses of the words that the walk read, and the hash of their present values. `None` if there are
    /// too many words, or if they are too far apart.
    fn fill(&mut self, words: impl Iterator<Item = u64>) -> Option<()> {
        let sp = self.key.sp;
        let base = sp.wrapping_sub(RED_ZONE);
        let mut count = 0;
        for address in words {
            let offset = address.wrapping_sub(base);
            *self.word_offsets.get_mut(count)? =
                u16::try_from(offset / 8).ok().filter(|_| offset % 8 == 0)?;
            count += 1;
        }
        // Sort the addresses, so that a look-up reads the stack's cache lines in order, and each line only once.
        self.word_offsets[..count].sort_unstable();
        let last = *self.word_offsets[..count].last()?;
        let cache = count.next_multiple_of(BLOCK_WORDS);
        self.word_offsets[count..cache].fill(last);
        self.len = cache as u16;
        (self.hash, self.probes) = (self.hash_words(sp), self.probe(sp));
        Some(())
    }

    /// Whether the present stack, with this key and rbp, equals this cached stack. Returns `None`, without hashing, if
    /// the key, rbp or a sample word differs.
    #[inline(always)]
    fn matches(&self, key: &StackKey, bp: u64) -> Option<bool> {
        let has_key = self.key == *key && (self.bp == bp || !self.bp_matters);
        let is_likely = has_key && self.probe(key.sp) == self.probes;
        is_likely.then(|| self.hash_words(key.sp) == self.hash)
    }

    /// The present values of the sample words.
    #[inline(always)]
    fn probe(&self, sp: u64) -> [u64; PROBES] {
        let len = usize::from(self.len).min(MAX_WORDS - 1);
        std::array::from_fn(|probe| self.word(sp, self.word_offsets[len * (probe + 1) / (2 * PROBES + 1)]))
    }

    /// Reads the word at `offset` of this stack. `sp` must be the stack pointer at which the stack's walk started.
    #[inline(always)]
    fn word(&self, sp: u64, offset: u16) -> u64 {
        let base = sp.wrapping_sub(RED_ZONE);
        // SAFETY: a walk that started at this stack pointer read the word at this address of the thread's own stack:
        // memory above the stack pointer is in use, and our own frames are in the red zone below the stack pointer.
        unsafe { word(base.wrapping_add(8 * u64::from(offset))) }
    }

    /// Hash of the present values of the stack's words.
    #[inline(always)]
    fn hash_words(&self, sp: u64) -> [u64; 2] {
        let at = |offset: u16| self.word(sp, offset);
        let (chunks, _) =
            self.word_offsets[..usize::from(self.len).min(MAX_WORDS)].as_chunks::<BLOCK_WORDS>();
        let mut hashed = STARTS;
        for word_offsets in chunks {
            for (lane, hash) in hashed.iter_mut().enumerate() {
                *hash =
                    fold(at(word_offsets[2 * lane]) ^ *hash, at(word_offsets[2 * lane + 1]) ^ SEEDS[lane]);
            }
        }
        [hashed[0] ^ hashed[2].rotate_left(32), hashed[1] ^ hashed[3].rotate_left(32)]
    }
}

/// Start of each lane, and a seed for each lane, which are digits of pi. They must all differ: if a lane started with its
/// seed, its first two words could be exchanged without a change of the hash.
const STARTS: [u64; BLOCK_WORDS / 2] =
    [0x4528_21e6_38d0_1377, 0xbe54_66cf_34e9_0c6c, 0xc0ac_29b7_c97c_50dd, 0x3f84_d5b5_b547_0917];
const SEEDS: [u64; BLOCK_WORDS / 2] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

/// XOR of both halves of the 128-bit product.
#[inline(always)]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: usize = 21;

    /// A test stack. A capture starts directly below `words`.
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
        // SAFETY: the stacks are mapped with this size, all-zero stacks are valid, and only this test uses them.
        unsafe { contents.as_mut() }.put(&stack).0
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
    fn stacks_with_a_common_start_are_distinguished_and_the_least_hit_is_evicted() {
        let (mut cache, mut test_stack) = (StackCache::default(), test_stack());
        let numbers: Vec<usize> = (0..WAYS as u64)
            .map(|turn| {
                test_stack.words[5] = turn;
                insert(&mut cache, &test_stack, 7)
            })
            .collect();
        for turn in [0, 1, 2, 3, 4, 5, 6, 7, 1, 0, 2, 2] {
            test_stack.words[5] = turn as u64;
            cache.backoff.forget_misses();
            assert_eq!(test_stack.look_up(&mut cache, 7), Some(numbers[turn]));
            assert_eq!(insert(&mut cache, &test_stack, 7), numbers[turn], "the stack is stored only once");
        }
        for extra in 100..108 {
            test_stack.words[5] = extra;
            insert(&mut cache, &test_stack, 7);
        }
        test_stack.words[5] = 2;
        cache.backoff.forget_misses();
        assert_eq!(
            test_stack.look_up(&mut cache, 7),
            Some(numbers[2]),
            "it had more hits than the other entries"
        );
        cache.release();
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
        assert_eq!(met(64), 4, "one look-up in sixteen is made");
        assert!(met(2000) > 1950, "the cache is used again");
        assert!(cache.backoff.has_full_budget() && cache.can_insert());
        cache.release();
    }
}

//! A cache of the thread's stacks. Each stack is stored as one hash over all words that a walk of the stack read.
//!
//! An unwind is a function of the state that it starts from, of the rules, and of the words that it reads (see `memo`). So
//! if a capture starts in the same state as an earlier walk, and the words that this walk read are unchanged, then the
//! stack is the same as the walk's and need not be walked or looked up again. Programs launch from the same few hundred
//! stacks again and again.
//!
//! The words are hashed, not stored. So a look-up reads two bytes of cache memory per word, while the memo and the paths in
//! `trails` read thirty. The program has to load again whatever a launch evicts from the L1 cache, and in a training step
//! of PyTorch this takes as long as the walk itself. Four 64-bit hash lanes run side by side, so a stack with other words
//! at the same addresses is mistaken for a cached one with probability 5e-20. At a million such look-ups per second, that
//! happens once in 500,000 years.
//!
//! Several stacks may start in one state. Their hashes distinguish these stacks, and a hint (what is launched) narrows down
//! which of them to try. The first stack tried is the one that last followed the previously hit stack. While more than a
//! third of the comparisons fail, only one look-up in sixteen is made, and at most one stack is inserted per eight
//! captures. So stacks that never recur cost little.

use std::ptr::NonNull;

use super::generated::Recheck;
use super::memo::Memo;
use super::stub::Entry;
use crate::cache_backoff::{CacheBackoff, choose_way, count_hit};
use crate::copy::RED_ZONE;
use crate::loader_state::LoaderState;
use crate::memory::{self, word};

/// Number of cached stacks per thread, in an 8-way set-associative cache of 512 KiB, of which a program touches only the
/// part that it uses.
pub(crate) const STACKS: usize = SETS * WAYS;
const SETS: usize = 64;
const WAYS: usize = 8;
/// Maximum number of words per stack, which is a multiple of the hash's block size.
const MOST_WORDS: usize = 58 * AT_A_TIME;
const AT_A_TIME: usize = 8;
/// Number of words that are compared before the full hash is computed.
const PROBES: usize = 4;
/// Maximum number of stacks hashed per look-up.
const MOST_SUMS: usize = 4;

/// The cached stacks of one thread. Zeroed memory is an empty cache.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Whole {
    /// The cache's memory, which is mapped when the first stack is inserted.
    all: Option<NonNull<All>>,
    /// Number of bytes of `all` in use.
    used: usize,
    /// Number of the stack that was hit last.
    last: usize,
    backoff: CacheBackoff,
}

#[derive(Debug)]
#[repr(C, align(4096))]
struct All {
    sets: [Set; SETS],
    stacks: [Stack; STACKS],
}

/// The cached stacks of one hash set.
#[derive(Debug)]
#[repr(C, align(64))]
struct Set {
    /// Hashes of the stacks' starting states; 0 marks a free slot.
    tags: [u32; WAYS],
    /// For each stack, the stack that was hit next after its latest hit.
    followers: [u16; WAYS],
    /// Number of recent hits per stack, at most 3; each insertion into the set subtracts one from every stack's number.
    hits: [u8; WAYS],
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Stack {
    begins: Beginning,
    /// Value of rbp at the start of the stack, if that value matters.
    bp: u64,
    sum: [u64; 2],
    bp_matters: bool,
    /// Whether the stack has a frame in code that may be replaced.
    is_generated: bool,
    /// Number of words that the stack's walk read.
    len: u16,
    /// Sample words from the leaf half of the stack, where stacks with the same beginning usually differ.
    probes: [u64; PROBES],
    /// Addresses of the words, in units of words above the low end of the first frame's red zone.
    places: [u16; MOST_WORDS],
}

const _: () = assert!(size_of::<Stack>() == 1024, "a stack begins at a cache line");
/// Unit of memory accounting, in bytes: the size of the stacks of one set.
const USED: usize = WAYS * size_of::<Stack>();

/// The key of a cached stack, which is everything that is known about a stack before any word of it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Beginning {
    place: u64,
    sp: u64,
    hint: u64,
    /// The loader state to which the walk's rules belong.
    state: u64,
}

impl Beginning {
    /// A starting state that no stack has.
    const NOWHERE: Self = Self { place: 0, sp: 0, hint: 0, state: 0 };

    fn new(place: u64, sp: u64, hint: u64, state: LoaderState) -> Self {
        Self { place, sp, hint, state: state.as_word() }
    }

    /// The set that this starting state belongs to, and its tag in that set.
    #[inline(always)]
    fn home(&self) -> (usize, u32) {
        let mixed = (self.place ^ self.sp.rotate_left(32) ^ self.hint.rotate_left(16))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 57) as usize % SETS, (mixed >> 24) as u32 | 1)
    }
}

impl Whole {
    /// Returns the number of the cached stack that starts at `entry`. `None` for a miss, or if `recheck` requests a
    /// check.
    #[inline(always)]
    pub(super) fn recognise(
        &mut self,
        entry: &Entry,
        hint: u64,
        state: LoaderState,
        recheck: &mut Recheck,
    ) -> Option<usize> {
        let is_due = self.backoff.may_look_up();
        // SAFETY: `keep` mapped the stacks, they stay mapped as long as `self` lives, and only this thread uses them.
        let all = unsafe { self.all?.as_mut() };
        if !is_due {
            return None;
        }
        let begins = Beginning::new(entry.pc, entry.sp(), hint, state);
        let (home, tag) = begins.home();
        let followers = &mut all.sets[self.last / WAYS % SETS].followers[self.last % WAYS];
        let first = usize::from(*followers);
        let mut sums = 0;
        for turn in 0..WAYS {
            let way = (first + turn) % WAYS;
            if all.sets[home].tags[way] != tag {
                continue;
            }
            let number = home * WAYS + way;
            match all.stacks[number].is(&begins, entry.rbp) {
                Some(true) => {
                    if all.stacks[number].is_generated && recheck.count(false) {
                        return None;
                    }
                    self.backoff.record_hit();
                    all.met(number, self.last);
                    self.last = number;
                    return Some(number);
                }
                Some(false) => sums += 1,
                None => {}
            }
            if sums == MOST_SUMS {
                break;
            }
        }
        if sums > 0 {
            self.backoff.record_miss();
        }
        None
    }

    /// Whether the back-off allows an insertion at this time.
    #[inline(always)]
    pub(super) fn can_keep(&self) -> bool {
        self.backoff.can_insert()
    }

    /// Caches the stack in the memo, whose leaf is `leaf`, and returns its number. `None` if the stack cannot be cached.
    #[inline(never)]
    pub(super) fn keep(&mut self, memo: &Memo, leaf: usize, hint: u64, state: LoaderState) -> Option<usize> {
        self.backoff.charge_insertion();
        let read = memo.read_from(leaf)?;
        let begins = Beginning::new(read.pc, read.sp, hint, state);
        // A `Stack` takes 1 KiB of the program's stack, so avoid copies of it.
        let mut stack = Stack::beginning(begins, read.bp);
        stack.is_generated = memo.is_generated(leaf);
        if stack.fill(read.words()).is_none() {
            self.backoff.raise_insert_cost();
            return None;
        }
        if self.all.is_none() {
            self.all = memory::reserve(size_of::<All>()).map(NonNull::cast);
            if self.all.is_none() {
                // A later insertion tries to reserve the memory again, less and less often.
                self.backoff.raise_insert_cost();
            }
        }
        // SAFETY: the stacks are mapped with this size, all-zero stacks are valid, and only this thread uses them.
        let all = unsafe { self.all?.as_mut() };
        if all.is_first(&stack) {
            memory::count_used(USED);
            self.used += USED;
        }
        let (number, evicted_unused) = all.put(&stack);
        if evicted_unused {
            self.backoff.raise_insert_cost();
        }
        self.last = number;
        Some(number)
    }

    /// Evicts all stacks with a frame in code that may be replaced.
    pub(super) fn forget_generated(&mut self) {
        // SAFETY: `keep` mapped the stacks, they stay mapped as long as `self` lives, and only this thread uses them.
        let Some(all) = self.all.map(|mut all| unsafe { all.as_mut() }) else { return };
        let stacks = all.stacks.chunks_exact_mut(WAYS).zip(&all.sets);
        let used = stacks.filter(|(_, set)| set.tags != [0; WAYS]).flat_map(|(stacks, _)| stacks);
        used.filter(|stack| stack.is_generated).for_each(|stack| stack.begins = Beginning::NOWHERE);
    }

    /// Releases the memory of the cache.
    pub(super) fn release(&mut self) {
        if let Some(all) = self.all.take() {
            // SAFETY: `keep` mapped the stacks with this size, and no reference to them is left.
            unsafe { memory::release(all.cast(), size_of::<All>(), std::mem::take(&mut self.used)) };
        }
    }
}

impl All {
    /// Records a hit of stack `number` after stack `last`.
    #[inline(always)]
    fn met(&mut self, number: usize, last: usize) {
        self.sets[last / WAYS % SETS].followers[last % WAYS] = number as u16;
        count_hit(&mut self.sets[number / WAYS % SETS].hits[number % WAYS]);
    }

    /// Whether `stack` is the first stack in its set.
    fn is_first(&self, stack: &Stack) -> bool {
        self.sets[stack.begins.home().0].tags == [0; WAYS]
    }

    /// Stores a stack. Returns its number, and whether it evicted a stack that was never hit.
    fn put(&mut self, stack: &Stack) -> (usize, bool) {
        let (home, tag) = stack.begins.home();
        let set = &mut self.sets[home];
        let stacks = &mut self.stacks[home * WAYS..][..WAYS];
        let is_same = |old: &Stack| (old.begins, old.sum) == (stack.begins, stack.sum) && old.bp == stack.bp;
        if let Some(way) = stacks.iter().position(is_same) {
            return (home * WAYS + way, false);
        }
        let (way, evicted_unused) = choose_way(&mut set.tags, &mut set.hits, tag);
        stacks[way] = *stack;
        (home * WAYS + way, evicted_unused)
    }
}

impl Stack {
    /// Creates a stack with this starting state, with rbp if it matters, and without words.
    fn beginning(begins: Beginning, bp: Option<u64>) -> Self {
        let (bp_matters, bp) = (bp.is_some(), bp.unwrap_or_default());
        let (sum, probes, places) = ([0; 2], [0; PROBES], [0; MOST_WORDS]);
        Self { begins, bp, sum, bp_matters, is_generated: false, len: 0, probes, places }
    }

    /// Records the addresses of the words that the walk read. `None` if there are too many words, or if they are too far
    /// apart.
    fn fill(&mut self, words: impl Iterator<Item = u64>) -> Option<()> {
        let sp = self.begins.sp;
        let base = sp.wrapping_sub(RED_ZONE);
        let mut count = 0;
        for address in words {
            let place = address.wrapping_sub(base);
            *self.places.get_mut(count)? = u16::try_from(place / 8).ok().filter(|_| place % 8 == 0)?;
            count += 1;
        }
        // The addresses are sorted, so that each cache line of the stack is read once, from one end to the other.
        self.places[..count].sort_unstable();
        let last = *self.places[..count].last()?;
        let whole = count.next_multiple_of(AT_A_TIME);
        self.places[count..whole].fill(last);
        self.len = whole as u16;
        (self.sum, self.probes) = (self.sum_up(sp), self.probe(sp));
        Some(())
    }

    /// Whether this is the stack that starts at `begins`. Returns `None`, without hashing, if the key or a sample word
    /// differs.
    #[inline(always)]
    fn is(&self, begins: &Beginning, bp: u64) -> Option<bool> {
        let is_begun_so = self.begins == *begins && (self.bp == bp || !self.bp_matters);
        let is_likely = is_begun_so && self.probe(begins.sp) == self.probes;
        is_likely.then(|| self.sum_up(begins.sp) == self.sum)
    }

    /// The present values of the sample words.
    #[inline(always)]
    fn probe(&self, sp: u64) -> [u64; PROBES] {
        let len = usize::from(self.len).min(MOST_WORDS - 1);
        std::array::from_fn(|probe| self.word(sp, self.places[len * (probe + 1) / (2 * PROBES + 1)]))
    }

    /// The word at `place` of this stack, provided that the stack starts at `sp`, as it did when the word was first read.
    #[inline(always)]
    fn word(&self, sp: u64, place: u16) -> u64 {
        let base = sp.wrapping_sub(RED_ZONE);
        // SAFETY: a walk that started at this stack pointer read the word at this address of the thread's own stack: memory
        // above the stack pointer is in use, and our own frames are in the red zone below the stack pointer.
        unsafe { word(base.wrapping_add(8 * u64::from(place))) }
    }

    /// Hash of the present values of the stack's words.
    #[inline(always)]
    fn sum_up(&self, sp: u64) -> [u64; 2] {
        let at = |place: u16| self.word(sp, place);
        let (chunks, _) = self.places[..usize::from(self.len).min(MOST_WORDS)].as_chunks::<AT_A_TIME>();
        let mut sums = SEEDS;
        for places in chunks {
            for (lane, sum) in sums.iter_mut().enumerate() {
                *sum = fold(at(places[2 * lane]) ^ *sum, at(places[2 * lane + 1]) ^ SEEDS[lane]);
            }
        }
        [sums[0] ^ sums[2].rotate_left(32), sums[1] ^ sums[3].rotate_left(32)]
    }
}

/// Seeds of the hash, which are digits of pi.
const SEEDS: [u64; AT_A_TIME / 2] =
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

    /// A test stack of words; a capture starts below it.
    #[repr(C)]
    struct Place {
        below: [u64; 16],
        entry: Entry,
        words: [u64; WORDS],
    }

    const BP: u64 = 0x7000;

    fn place() -> Box<Place> {
        let entry = Entry { r15: 0, r14: 0, r13: 0, r12: 0, rbx: 0, rbp: BP, pc: 0x4000 };
        Box::new(Place { below: [0; 16], entry, words: std::array::from_fn(|at| 0x5000 + at as u64) })
    }

    impl Place {
        /// The present test stack, as if a walk had read every word of it.
        fn stack(&self, hint: u64, bp: Option<u64>) -> Stack {
            let begins = Beginning::new(self.entry.pc, self.entry.sp(), hint, LoaderState::default());
            let words = self.words.iter().map(|word| std::ptr::from_ref(word).expose_provenance() as u64);
            let mut stack = Stack::beginning(begins, bp);
            stack.fill(words).unwrap();
            stack
        }

        fn met(&self, whole: &mut Whole, hint: u64) -> Option<usize> {
            whole.recognise(&self.entry, hint, LoaderState::default(), &mut Recheck::default())
        }
    }

    /// Caches the stack at `place`.
    fn keep(whole: &mut Whole, place: &Place, hint: u64) -> usize {
        keep_stack(whole, place.stack(hint, None))
    }

    fn keep_stack(whole: &mut Whole, stack: Stack) -> usize {
        let mut all = *whole.all.get_or_insert_with(|| memory::reserve(size_of::<All>()).unwrap().cast());
        // SAFETY: the stacks are mapped with this size, all-zero stacks are valid, and only this test uses them.
        unsafe { all.as_mut() }.put(&stack).0
    }

    #[test]
    fn a_cached_stack_hits_only_while_every_word_is_unchanged() {
        let (mut whole, mut place) = (Whole::default(), place());
        assert_eq!(place.met(&mut whole, 7), None);
        let number = keep(&mut whole, &place, 7);
        assert!(number < STACKS);
        assert_eq!(place.met(&mut whole, 7), Some(number));
        assert_eq!(place.met(&mut whole, 8), None, "another hint");
        assert_eq!(
            whole.recognise(&place.entry, 7, LoaderState::new(1, 0), &mut Recheck::default()),
            None,
            "an object was loaded"
        );
        for at in 0..WORDS {
            for bit in [0, 17, 63] {
                place.words[at] ^= 1 << bit;
                assert_eq!(place.met(&mut whole, 7), None, "word {at}");
                place.words[at] ^= 1 << bit;
                whole.backoff.forget_misses();
            }
        }
        place.words.swap(3, 4);
        assert_eq!(place.met(&mut whole, 7), None, "in another order");
        place.words.swap(3, 4);
        assert_eq!(place.met(&mut whole, 7), Some(number));
        whole.release();
        assert_eq!(place.met(&mut whole, 7), None);
    }

    #[test]
    fn rbp_is_compared_only_if_the_walk_reads_it() {
        let (mut whole, mut place) = (Whole::default(), place());
        let read = keep_stack(&mut whole, place.stack(1, Some(BP)));
        let other = keep_stack(&mut whole, place.stack(2, None));
        assert_eq!([1, 2].map(|hint| place.met(&mut whole, hint)), [Some(read), Some(other)]);
        place.entry.rbp = 0;
        assert_eq!([1, 2].map(|hint| place.met(&mut whole, hint)), [None, Some(other)]);
        whole.release();
    }

    #[test]
    fn stacks_with_a_common_start_are_distinguished_and_the_least_hit_is_evicted() {
        let (mut whole, mut place) = (Whole::default(), place());
        let numbers: Vec<usize> = (0..WAYS as u64)
            .map(|turn| {
                place.words[5] = turn;
                keep(&mut whole, &place, 7)
            })
            .collect();
        for turn in [0, 1, 2, 3, 4, 5, 6, 7, 1, 0, 2, 2] {
            place.words[5] = turn as u64;
            whole.backoff.forget_misses();
            assert_eq!(place.met(&mut whole, 7), Some(numbers[turn]));
            assert_eq!(keep(&mut whole, &place, 7), numbers[turn], "it is kept once");
        }
        for one_more in 100..108 {
            place.words[5] = one_more;
            keep(&mut whole, &place, 7);
        }
        place.words[5] = 2;
        whole.backoff.forget_misses();
        assert_eq!(place.met(&mut whole, 7), Some(numbers[2]), "it had more hits than the other entries");
        whole.release();
    }

    #[test]
    fn after_many_misses_lookups_back_off_until_hits_return() {
        let (mut whole, mut place) = (Whole::default(), place());
        let number = keep(&mut whole, &place, 7);
        place.words[0] = 0;
        (0..1000).for_each(|_| assert_eq!(place.met(&mut whole, 7), None));
        place.words[0] = 0x5000;
        let mut met = |looks: usize| (0..looks).filter(|_| place.met(&mut whole, 7) == Some(number)).count();
        assert_eq!(met(64), 4, "one in sixteen");
        assert!(met(2000) > 1950, "the cache is used again");
        assert!(whole.backoff.has_full_budget() && whole.can_keep());
        whole.release();
    }
}

//! Entry of the cache of whole stacks (see `stack_cache`): all values that determine the result of a walk.
//!
//! An entry equals the present stack if their keys are equal, and all words that the walk read have the same values. If
//! the walk reads rbp, the values of rbp must also be equal. The words themselves are not stored. Instead, 128-bit
//! hashes are compared, which depend on the values and on the order of the words. Entries whose words have the same
//! addresses (the same layout) have the words in the same order. Therefore a hash of the present stack that was
//! computed for one entry can be compared with all entries of the same layout. Two layouts count as the same if their
//! hashes of 64 bits are equal.
//!
//! The words are in the order in which `last_stack` lists them: first the return addresses (leaf first), then the other
//! words. This order matters only for the choice of the sample words, which are taken at regular distances.

use super::stack_set::SETS;
use crate::copy::RED_ZONE;
use crate::loader_state::LoaderState;
use crate::memory::word;

/// Maximum number of words per stack. The maximum must be a multiple of `BLOCK_WORDS`, the number of words that one
/// step of the hash processes.
const MAX_WORDS: usize = 57 * BLOCK_WORDS;
const BLOCK_WORDS: usize = 8;
/// Number of sample words. The sample words are compared before the hash over all words is computed.
const PROBES: usize = 4;

/// A cached stack without its frames. The caller has stored the frames under the stack's index.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct CachedStack {
    pub(super) key: StackKey,
    /// Value of rbp at the start of the walk, if the walk depends on rbp.
    bp: u64,
    pub(super) hash: [u64; 2],
    bp_matters: bool,
    /// Whether the stack has a frame in generated code, which may be replaced.
    pub(super) is_generated: bool,
    /// Number of words that the walk of this stack read.
    len: u16,
    /// Place of this stack in the cache: eight times the index of the stack's set, plus the index of its way (its place
    /// within the set).
    pub(super) slot: u16,
    /// Index of the stack that was hit directly after this stack's latest hit.
    pub(super) follower: u16,
    /// Sample words from all parts of the stack. Two different stacks with the same starting state usually differ in at
    /// least one sample word, because their functions at the root or at the leaf differ.
    probes: [u64; PROBES],
    probe_offsets: [u16; PROBES],
    /// Hash of `word_offsets`.
    pub(super) layout: u64,
    /// Addresses of the words, as offsets in words from the low end of the first frame's red zone.
    word_offsets: [u16; MAX_WORDS],
}

const _: () = assert!(size_of::<CachedStack>() == 1024, "a stack begins at a cache line");

/// The key of a cached stack: the starting state of the stack's walk, and the caller's hint. The key is known before
/// any word of the stack is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct StackKey {
    pc: u64,
    sp: u64,
    hint: u64,
    /// The loader state to which the walk's rules belong.
    state: u64,
}

impl StackKey {
    /// The key of an evicted stack. No captured stack has this key.
    pub(super) const EMPTY: Self = Self { pc: 0, sp: 0, hint: 0, state: 0 };

    pub(super) fn new(pc: u64, sp: u64, hint: u64, state: LoaderState) -> Self {
        Self { pc, sp, hint, state: state.as_word() }
    }

    /// Returns the indices of the two sets that may store stacks with this key, and the tag that such stacks have in
    /// their set.
    #[inline(always)]
    pub(super) fn sets_and_tag(&self) -> ([usize; 2], u32) {
        let mixed =
            fold(self.pc ^ self.sp.rotate_left(32) ^ self.hint.rotate_left(16), 0x9e37_79b9_7f4a_7c15);
        let set = |bits: u64| ((u64::from(bits as u16) * SETS as u64) >> 16) as usize;
        ([set(mixed), set(mixed >> 16)], (mixed >> 32) as u32 | 1)
    }
}

impl CachedStack {
    /// Creates a stack with this key and without words. `bp` is the value of rbp at the start of the walk, if the walk
    /// depends on rbp.
    pub(super) fn with_key(key: StackKey, bp: Option<u64>) -> Self {
        let (bp_matters, bp) = (bp.is_some(), bp.unwrap_or_default());
        let (hash, probes, word_offsets) = ([0; 2], [0; PROBES], [0; MAX_WORDS]);
        let (is_generated, len, slot, follower, probe_offsets, layout) = (false, 0, 0, 0, [0; PROBES], 0);
        Self {
            key,
            bp,
            hash,
            bp_matters,
            is_generated,
            len,
            slot,
            follower,
            probes,
            probe_offsets,
            layout,
            word_offsets,
        }
    }

    /// Stores the addresses of the words that the walk read, and the hash of their present values. Returns `None` if
    /// there are too many words, or if the words are too far apart.
    pub(super) fn fill(&mut self, mut words: impl Iterator<Item = u64>) -> Option<()> {
        let sp = self.key.sp;
        let base = sp.wrapping_sub(RED_ZONE);
        let mut count = 0;
        words.try_for_each(|address| {
            let offset = address.wrapping_sub(base);
            *self.word_offsets.get_mut(count)? =
                u16::try_from(offset / 8).ok().filter(|_| offset % 8 == 0)?;
            count += 1;
            Some(())
        })?;
        let last = *self.word_offsets[..count].last()?;
        let len = count.next_multiple_of(BLOCK_WORDS);
        self.word_offsets[count..len].fill(last);
        self.len = len as u16;
        self.layout = layout_of(&self.word_offsets[..len]);
        self.probe_offsets =
            std::array::from_fn(|probe| self.word_offsets[len * (2 * probe + 1) / (2 * PROBES + 1)]);
        (self.hash, self.probes) = (self.hash_words(sp), self.probe(sp));
        Some(())
    }

    /// Whether `other` equals this stack.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.key, self.hash, self.bp) == (other.key, other.hash, other.bp)
    }

    /// Replaces this stack by a copy of `other`. Copies only the words that `other` uses.
    pub(super) fn copy_from(&mut self, other: &Self) {
        (self.key, self.bp, self.hash) = (other.key, other.bp, other.hash);
        (self.bp_matters, self.is_generated, self.len) = (other.bp_matters, other.is_generated, other.len);
        (self.slot, self.follower) = (other.slot, other.follower);
        (self.probes, self.probe_offsets, self.layout) = (other.probes, other.probe_offsets, other.layout);
        let len = usize::from(other.len).min(MAX_WORDS);
        self.word_offsets[..len].copy_from_slice(&other.word_offsets[..len]);
    }

    /// Whether a stack with the key `key` and the rbp `bp` may be equal to this cached stack.
    #[inline(always)]
    pub(super) fn has_key(&self, key: &StackKey, bp: u64) -> bool {
        self.key == *key && (self.bp == bp || !self.bp_matters)
    }

    /// Computes the hash of the words that are now at the word addresses of this cached stack. The present stack has
    /// the key `key`, and its rbp is `bp`. The two stacks are equal if the returned hash equals the field `hash`.
    /// Returns `None`, without hashing, if the key, rbp or a sample word differs.
    #[inline(always)]
    pub(super) fn hash_if_likely(&self, key: &StackKey, bp: u64) -> Option<[u64; 2]> {
        let is_likely = self.has_key(key, bp) && self.probe(key.sp) == self.probes;
        is_likely.then(|| self.hash_words(key.sp))
    }

    /// Reads the present values of the sample words.
    #[inline(always)]
    fn probe(&self, sp: u64) -> [u64; PROBES] {
        self.probe_offsets.map(|offset| self.word(sp, offset))
    }

    /// Reads the word at `offset` of this stack. `sp` must be the stack pointer at which the stack's walk started.
    #[inline(always)]
    fn word(&self, sp: u64, offset: u16) -> u64 {
        let base = sp.wrapping_sub(RED_ZONE);
        // SAFETY: an earlier walk that started at this stack pointer read the word at this address of the thread's own
        // stack. The memory is still mapped: memory above the stack pointer is in use, and our own frames are in the
        // red zone below the stack pointer.
        unsafe { word(base.wrapping_add(8 * u64::from(offset))) }
    }

    /// Computes the hash of the present values of the stack's words.
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

/// Initial hash and seed of each lane. (A hash is computed in several lanes at the same time.) The values are digits
/// of pi. All values must differ: if a lane's initial hash equalled its seed, exchanging the lane's first two words
/// would not change the hash.
const STARTS: [u64; BLOCK_WORDS / 2] =
    [0x4528_21e6_38d0_1377, 0xbe54_66cf_34e9_0c6c, 0xc0ac_29b7_c97c_50dd, 0x3f84_d5b5_b547_0917];
const SEEDS: [u64; BLOCK_WORDS / 2] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

/// Computes the hash of the offsets of a stack's words.
fn layout_of(word_offsets: &[u16]) -> u64 {
    let (chunks, _) = word_offsets.as_chunks::<4>();
    let packed = chunks.iter().map(|chunk| chunk.iter().fold(0, |all, one| all << 16 | u64::from(*one)));
    packed.fold(SEEDS[0], |hash, offsets| fold(hash ^ offsets, SEEDS[1]))
}

/// Multiplies two words, and returns the XOR of both halves of the 128-bit product.
#[inline(always)]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

//! Assigns a context id to each launch context (a stack together with its API call). Only the frames that differ from
//! the thread's last stack are hashed, and the resulting hash is looked up in the thread's table.
//!
//! A stack is hashed from its root, and the hash after each frame is kept. The unwinder reports how many frames at the
//! root are the same as in the thread's last stack. Only the frames after these frames are hashed again. A context is
//! identified by its 128-bit hash alone, so contexts with equal hashes count as the same context. With a million
//! distinct stacks, the probability that two stacks have the same hash is 1e-27 (birthday bound, n^2 / 2^129).

use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpuflame_model::record::{ContextId, Frame};
use gpuflame_unwind::{Unwinder, memory};

/// Maximum number of frames of a stack. The unwinder truncates deeper stacks.
pub(super) const MAX_FRAMES: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash {
    a: u64,
    b: u64,
}

impl Hash {
    pub(crate) const ROOT: Self = Self { a: 0x243f_6a88_85a3_08d3, b: 0x1319_8a2e_0370_7344 };

    /// Adds a 64-bit word to the hash. Two independent chains of operations compute the two halves of the hash. The
    /// chains take 4 and 5 cycles per frame. The word is mixed before it enters the two chains, so that the mixing does
    /// not wait for the hash of the previous frame.
    #[inline]
    pub(crate) fn then(self, word: u64) -> Self {
        let mixed = (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = mixed ^ mixed >> 29;
        Self {
            a: (self.a ^ mixed).wrapping_mul(0xd6e8_feb8_6659_fd93),
            b: (self.b.rotate_left(29) ^ mixed.rotate_left(32)).wrapping_mul(0xa076_1d64_78bd_642f),
        }
    }

    /// Combines two hashes into one hash. The result depends on the order of the two hashes.
    #[inline]
    pub(crate) fn and(self, other: Self) -> Self {
        self.then(other.a).then(other.b)
    }

    /// Returns the bits of the hash that select a slot in a hash table.
    pub(crate) fn bits(self) -> usize {
        (self.a >> 32) as usize
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ContextSlot {
    hash: Hash,
    /// Id of the context; `ContextId::NONE` if the slot is empty.
    id: ContextId,
}

pub(crate) type PrefixHashes = [Hash; MAX_FRAMES + 1];

/// Context id of a stack that is in the unwinder's cache. An entry that consists of zero bytes is empty.
#[derive(Clone, Copy)]
#[repr(C)]
struct CachedContext {
    /// Key of the context to which `id` belongs. The same cached frames may occur in several contexts, which differ in
    /// the API call, the open ranges or the foreign (Python) frames.
    stack: ContextKey,
    id: ContextId,
    /// Value of `Interner::round` when the entry was written. If the interner has forgotten its ids since the entry was
    /// written, the entry is stale.
    round: u32,
}

type CachedContexts = [CachedContext; Unwinder::MAX_CACHED_STACKS];

const MIN_SLOTS: usize = 1024;
/// Maximum number of slots in the hash table of a thread. A table of this size takes 12 MiB and holds up to 262,144
/// stacks.
const MAX_SLOTS: usize = 1 << 19;
/// Current limit on the number of slots in a thread's table. The limit is `MAX_SLOTS`, or a smaller number if the
/// memory limit is small.
static SLOT_LIMIT: AtomicUsize = AtomicUsize::new(MAX_SLOTS);

/// Limits the hash table of each thread to `bytes`. If a thread's stacks exceed the limit, the thread forgets all of
/// its context ids. A stack that occurs again then gets a new id. Therefore the recording may contain the same stack
/// under several ids, and readers of the recording must allow for this.
pub(crate) fn limit_memory(bytes: usize) {
    let slots = (bytes / size_of::<ContextSlot>()).clamp(MIN_SLOTS, MAX_SLOTS);
    SLOT_LIMIT.store(1 << slots.ilog2(), Ordering::Relaxed);
}

/// Result of looking up the id of a launch context.
pub(crate) enum InternResult {
    /// The context already has an id.
    Known(ContextId),
    /// The context is new, so the caller must store an id for it with [`Interner::insert`].
    New(NewContext),
}

/// Key of a new context, which has no id yet.
pub(crate) struct NewContext(ContextKey);

/// Table of the context ids that one thread has assigned.
pub(crate) struct Interner {
    slots: NonNull<ContextSlot>,
    capacity: usize,
    used: usize,
    /// `prefix[n]` is the hash of the first `n` frames, counted from the root. The array `prefix` takes 16 KiB. The
    /// array has its own mapping, because this struct is created and moved on the thread's stack, which may be small.
    prefix: NonNull<PrefixHashes>,
    /// Number of hashes in `prefix` that belong to the stack that was looked up last.
    depth: usize,
    last: Option<(ContextKey, ContextId)>,
    /// Context ids of the stacks in the unwinder's cache, indexed by the stack's index in that cache. The memory of
    /// this array is mapped when the first id is stored.
    cached: Option<NonNull<CachedContexts>>,
    /// Number of times that the thread has forgotten its context ids.
    round: u32,
}

/// The values from which the hash of a context is computed. Comparing two of these keys is cheaper than hashing one of
/// them. A key that consists of zero bytes is a valid key.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct ContextKey {
    frames: Hash,
    /// Hash of the open ranges and of the foreign (Python) frames; unused if the stack has neither.
    extra: Hash,
    leaf: Frame,
    has_extra: bool,
}

impl ContextKey {
    #[inline(always)]
    fn new(frames: Hash, leaf: Frame, extra: Option<Hash>) -> Self {
        Self { frames, extra: extra.unwrap_or(Hash::ROOT), leaf, has_extra: extra.is_some() }
    }

    fn hash(self) -> Hash {
        let hash = self.frames.then(self.leaf.0);
        if self.has_extra { hash.and(self.extra) } else { hash }
    }
}

impl Interner {
    /// Creates an empty table. Returns `None` if the kernel provides no memory.
    pub(crate) fn new() -> Option<Self> {
        let slots = map_slots(MIN_SLOTS)?;
        let mut prefix = memory::map(size_of::<PrefixHashes>())?.cast::<PrefixHashes>();
        // SAFETY: `prefix` is a fresh mapping of that size, and its zero bytes are valid hashes.
        unsafe { prefix.as_mut()[0] = Hash::ROOT };
        Some(Self {
            slots,
            capacity: MIN_SLOTS,
            used: 0,
            prefix,
            depth: 0,
            last: None,
            cached: None,
            round: 0,
        })
    }

    /// Looks up the context that consists of the stack `frames` (leaf first) and the API call `leaf` on top of it.
    /// `unchanged` is the number of frames at the root that are the same as in the previous call of this function.
    /// `extra` is the hash of the open ranges and of the Python frames. Contexts that differ only in `extra` get
    /// different ids.
    #[inline(always)]
    pub(crate) fn find(
        &mut self,
        extra: Option<Hash>,
        leaf: Frame,
        frames: &[Frame],
        unchanged: usize,
    ) -> InternResult {
        let frames = &frames[..frames.len().min(MAX_FRAMES)];
        let unchanged = unchanged.min(self.depth).min(frames.len());
        // SAFETY: the array of hashes is mapped as long as `self` lives, and only `self` refers to it.
        let prefix = unsafe { self.prefix.as_mut() };
        let mut hash = prefix[unchanged];
        let new = frames.len() - unchanged;
        for (frame, prefix_hash) in frames[..new].iter().rev().zip(&mut prefix[unchanged + 1..]) {
            hash = hash.then(frame.0);
            *prefix_hash = hash;
        }
        self.depth = frames.len();
        let stack = ContextKey::new(hash, leaf, extra);
        match self.last {
            Some((last, id)) if last == stack => InternResult::Known(id),
            _ => self.look_up(stack),
        }
    }

    /// Like [`Interner::find`], but never inlined. Used for launches with open ranges or Python frames.
    #[inline(never)]
    pub(crate) fn find_with_extra(
        &mut self,
        extra: Option<Hash>,
        leaf: Frame,
        frames: &[Frame],
        unchanged: usize,
    ) -> InternResult {
        self.find(extra, leaf, frames, unchanged)
    }

    /// Stores the id of the context that the last call of `find` has looked up. `number` is the index of the stack in
    /// the unwinder's cache.
    #[cold]
    pub(crate) fn cache_last(&mut self, number: usize) {
        if self.cached.is_none() {
            self.cached = memory::map(size_of::<CachedContexts>()).map(NonNull::cast);
        }
        let (Some((stack, id)), round) = (self.last, self.round) else { return };
        if let Some(cached) = self.cached(number) {
            *cached = CachedContext { stack, id, round };
        }
    }

    /// Returns the id of the context whose stack has the index `number` in the unwinder's cache, and whose API call is
    /// `leaf`. `extra` is the hash of the open ranges and Python frames. Returns `None` if the context has no id, or if
    /// no id is stored at this index.
    #[inline(always)]
    pub(crate) fn find_cached(
        &mut self,
        number: usize,
        extra: Option<Hash>,
        leaf: Frame,
    ) -> Option<ContextId> {
        let round = self.round;
        let CachedContext { stack: last, id, round: of_round } = *self.cached(number)?;
        if id == ContextId::NONE {
            return None;
        }
        let stack = ContextKey::new(last.frames, leaf, extra);
        if stack == last && of_round == round {
            return Some(id);
        }
        let InternResult::Known(id) = self.look_up(stack) else { return None };
        *self.cached(number)? = CachedContext { stack, id, round };
        Some(id)
    }

    #[inline(always)]
    fn cached(&mut self, number: usize) -> Option<&mut CachedContext> {
        // SAFETY: the array of cached contexts is mapped as long as `self` lives, its zero bytes are valid entries, and
        // only `self` refers to it.
        unsafe { self.cached?.as_mut() }.get_mut(number)
    }

    fn look_up(&mut self, stack: ContextKey) -> InternResult {
        let slot = self.slot(self.probe(stack.hash()));
        if slot.id == ContextId::NONE {
            return InternResult::New(NewContext(stack));
        }
        self.last = Some((stack, slot.id));
        InternResult::Known(slot.id)
    }

    /// Stores the id of the context `key`. If no memory is available to enlarge the table, returns `false` and does not
    /// store the id.
    #[cold]
    pub(crate) fn insert(&mut self, key: NewContext, id: ContextId) -> bool {
        if 2 * (self.used + 1) > self.capacity && !self.reserve() {
            return false;
        }
        let hash = key.0.hash();
        let at = self.probe(hash);
        self.set_slot(at, ContextSlot { hash, id });
        self.used += 1;
        self.last = Some((key.0, id));
        true
    }

    /// Returns the index of the slot that contains `hash`. If no slot contains `hash`, returns the index of the empty
    /// slot into which `hash` must be inserted.
    #[inline]
    fn probe(&self, hash: Hash) -> usize {
        let mask = self.capacity - 1;
        let mut at = hash.a as usize & mask;
        loop {
            let slot = self.slot(at);
            if slot.id == ContextId::NONE || slot.hash == hash {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    #[cold]
    fn reserve(&mut self) -> bool {
        if 2 * self.capacity > SLOT_LIMIT.load(Ordering::Relaxed) { self.forget() } else { self.grow() }
    }

    /// Forgets all context ids of the thread. If the kernel provides no memory for the new table, returns `false` and
    /// forgets nothing.
    #[cold]
    pub(crate) fn forget(&mut self) -> bool {
        let Some(slots) = map_slots(MIN_SLOTS) else { return false };
        let old = std::mem::replace(&mut self.slots, slots);
        // SAFETY: the old table came from `map_slots(self.capacity)`, and no pointer into it remains.
        unsafe { memory::unmap(old.cast(), self.capacity * size_of::<ContextSlot>()) };
        (self.capacity, self.used, self.last) = (MIN_SLOTS, 0, None);
        self.round = self.round.wrapping_add(1);
        true
    }

    #[cold]
    fn grow(&mut self) -> bool {
        let old_capacity = self.capacity;
        let Some(slots) = map_slots(2 * old_capacity) else { return false };
        let old = std::mem::replace(&mut self.slots, slots);
        self.capacity = 2 * old_capacity;
        for at in 0..old_capacity {
            // SAFETY: the old table has `old_capacity` slots, all initialised (zero pages).
            let slot = unsafe { old.add(at).read() };
            if slot.id != ContextId::NONE {
                let at = self.probe(slot.hash);
                self.set_slot(at, slot);
            }
        }
        // SAFETY: the old table came from `map_slots(old_capacity)`, and no pointer into it remains.
        unsafe { memory::unmap(old.cast(), old_capacity * size_of::<ContextSlot>()) };
        true
    }

    fn slot(&self, at: usize) -> ContextSlot {
        debug_assert!(at < self.capacity);
        // SAFETY: callers mask `at`, so it is less than the capacity, and a table of zero bytes is a valid empty table.
        unsafe { self.slots.add(at).read() }
    }

    fn set_slot(&mut self, at: usize, slot: ContextSlot) {
        debug_assert!(at < self.capacity);
        // SAFETY: callers mask `at`, so it is less than the capacity, and `&mut self` excludes concurrent readers.
        unsafe { self.slots.add(at).write(slot) };
    }
}

impl Drop for Interner {
    fn drop(&mut self) {
        // SAFETY: the table came from `map_slots(self.capacity)` and is dropped with its owner.
        unsafe { memory::unmap(self.slots.cast(), self.capacity * size_of::<ContextSlot>()) };
        // SAFETY: the array of hashes came from `memory::map` with this size, and is dropped with its owner.
        unsafe { memory::unmap(self.prefix.cast(), size_of::<PrefixHashes>()) };
        if let Some(cached) = self.cached {
            // SAFETY: the array of cached contexts came from `memory::map` with this size, and is dropped with its
            // owner.
            unsafe { memory::unmap(cached.cast(), size_of::<CachedContexts>()) };
        }
    }
}

fn map_slots(capacity: usize) -> Option<NonNull<ContextSlot>> {
    Some(memory::map(capacity * size_of::<ContextSlot>())?.cast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::LabelId;

    const LEAF: Frame = Frame(3 << 60);

    fn id_of(interner: &mut Interner, leaf: Frame, frames: &[Frame], unchanged: usize, fresh: u32) -> u32 {
        match interner.find(None, leaf, frames, unchanged) {
            InternResult::Known(id) => id.0,
            InternResult::New(key) => {
                assert!(interner.insert(key, ContextId(fresh)));
                fresh
            }
        }
    }

    fn stack(words: &[u64]) -> Vec<Frame> {
        words.iter().map(|word| Frame(*word)).collect()
    }

    #[test]
    fn the_same_stack_has_the_same_id_for_any_kept_prefix() {
        let mut interner = Interner::new().unwrap();
        let frames = stack(&[4, 3, 2, 1]);
        assert_eq!(id_of(&mut interner, LEAF, &frames, 0, 2), 2);
        for unchanged in 0..=4 {
            assert_eq!(id_of(&mut interner, LEAF, &frames, unchanged, 99), 2, "{unchanged} unchanged");
        }
    }

    #[test]
    fn stacks_with_another_order_depth_or_leaf_have_different_ids() {
        let mut interner = Interner::new().unwrap();
        let stacks = [stack(&[1, 2]), stack(&[2, 1]), stack(&[1, 2, 2]), stack(&[1]), stack(&[])];
        for (n, frames) in stacks.iter().enumerate() {
            assert_eq!(id_of(&mut interner, LEAF, frames, 0, 2 + n as u32), 2 + n as u32);
        }
        let other_leaf = Frame::label(LabelId(7));
        assert_eq!(id_of(&mut interner, other_leaf, &stacks[0], 0, 50), 50);
        for (n, frames) in stacks.iter().enumerate() {
            assert_eq!(id_of(&mut interner, LEAF, frames, 0, 99), 2 + n as u32);
        }
    }

    #[test]
    fn a_kept_prefix_hashes_like_a_fresh_stack() {
        let mut interner = Interner::new().unwrap();
        assert_eq!(id_of(&mut interner, LEAF, &stack(&[30, 20, 10]), 0, 2), 2);
        // In this test, the two frames at the root side are unchanged; the frames at the leaf side are new.
        assert_eq!(id_of(&mut interner, LEAF, &stack(&[99, 40, 20, 10]), 2, 3), 3);
        assert_eq!(id_of(&mut interner, LEAF, &stack(&[99, 40, 20, 10]), 0, 99), 3);
        assert_eq!(id_of(&mut interner, LEAF, &stack(&[30, 20, 10]), 2, 99), 2);
    }

    #[test]
    fn a_hundred_thousand_stacks_keep_their_ids_while_the_table_grows() {
        let mut interner = Interner::new().unwrap();
        for n in 0..100_000u64 {
            let frames = stack(&[n, n / 10, 7]);
            assert_eq!(id_of(&mut interner, LEAF, &frames, 0, n as u32 + 2), n as u32 + 2);
        }
        for n in (0..100_000u64).step_by(997) {
            assert_eq!(id_of(&mut interner, LEAF, &stack(&[n, n / 10, 7]), 0, 1), n as u32 + 2);
        }
    }

    #[test]
    fn a_forgotten_stack_is_new_again_even_if_its_prefix_was_kept() {
        let mut interner = Interner::new().unwrap();
        let frames = stack(&[4, 3, 2, 1]);
        assert_eq!(id_of(&mut interner, LEAF, &frames, 0, 2), 2);
        assert!(interner.forget());
        assert_eq!(id_of(&mut interner, LEAF, &frames, 4, 3), 3);
        assert_eq!(id_of(&mut interner, LEAF, &frames, 0, 99), 3);
    }

    #[test]
    fn a_table_grows_up_to_its_maximum_size() {
        let mut interner = Interner::new().unwrap();
        for n in 0..MAX_SLOTS as u64 {
            assert_eq!(id_of(&mut interner, LEAF, &stack(&[n]), 0, n as u32 + 2), n as u32 + 2);
        }
        assert!(interner.capacity <= MAX_SLOTS && 2 * interner.used <= interner.capacity);
    }

    #[test]
    fn a_kept_stack_finds_its_contexts_by_number_until_ids_are_forgotten() {
        let mut interner = Interner::new().unwrap();
        let (frames, extra) = (stack(&[4, 3, 2, 1]), Some(Hash::ROOT.then(5)));
        let other_leaf = Frame::label(LabelId(7));
        assert_eq!(id_of(&mut interner, other_leaf, &frames, 0, 2), 2);
        assert_eq!(id_of(&mut interner, LEAF, &frames, 0, 3), 3);
        assert_eq!(interner.find_cached(9, None, LEAF), None);
        interner.cache_last(9);
        for (leaf, id) in [(LEAF, 3), (other_leaf, 2), (LEAF, 3)] {
            assert_eq!(interner.find_cached(9, None, leaf), Some(ContextId(id)));
        }
        assert_eq!(interner.find_cached(9, extra, LEAF), None, "a different key does not match");
        let InternResult::New(key) = interner.find(extra, LEAF, &frames, 0) else {
            panic!("the context must be new")
        };
        interner.insert(key, ContextId(4));
        assert_eq!(interner.find_cached(9, extra, LEAF), Some(ContextId(4)));
        assert_eq!(interner.find_cached(9, None, LEAF), Some(ContextId(3)));
        assert_eq!(interner.find_cached(8, None, LEAF), None, "no id is stored under this number");
        assert!(interner.forget());
        assert_eq!(interner.find_cached(9, None, LEAF), None);
    }
}

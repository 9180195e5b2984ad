//! From a stack to its context id: a hash over the new frames only, and one table a thread.
//!
//! A stack is hashed from its root, and the hash after every frame is kept. The unwinder says how many
//! frames at the root are those of the thread's last stack; only the others are hashed again. A
//! context is known by 128 bits of hash alone: with a million distinct stacks two of them meet by
//! accident with a chance of 1e-27 (reference: birthday bound, n^2 / 2^129).

use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::record::{ContextId, Frame};
use crate::unwind::{Unwinder, memory};

use super::budget;

/// The deepest stack that can be interned; deeper ones are truncated by the unwinder.
pub(super) const MAX_FRAMES: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash {
    a: u64,
    b: u64,
}

impl Hash {
    pub(super) const ROOT: Self = Self { a: 0x243f_6a88_85a3_08d3, b: 0x1319_8a2e_0370_7344 };

    /// Two independent chains, of 4 and 5 cycles a frame. All that mixes is done to the word itself, outside the
    /// chains: there it need not wait for the frame before.
    #[inline]
    pub(super) fn then(self, word: u64) -> Self {
        let mixed = (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = mixed ^ mixed >> 29;
        Self {
            a: (self.a ^ mixed).wrapping_mul(0xd6e8_feb8_6659_fd93),
            b: (self.b.rotate_left(29) ^ mixed.rotate_left(32)).wrapping_mul(0xa076_1d64_78bd_642f),
        }
    }

    /// Both, in this order.
    #[inline]
    pub(super) fn and(self, other: Self) -> Self {
        self.then(other.a).then(other.b)
    }

    /// Bits that choose a place in a table.
    pub(super) fn bits(self) -> usize {
        (self.a >> 32) as usize
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Slot {
    hash: Hash,
    /// `ContextId::NONE` = the slot is empty.
    id: ContextId,
}

pub(super) type Prefix = [Hash; MAX_FRAMES + 1];

/// What is known of the frames that the unwinder has kept. Zeroes are nothing.
#[derive(Clone, Copy)]
#[repr(C)]
struct Kept {
    /// What it was part of when it was met last.
    stack: Stack,
    id: ContextId,
    /// How often ids had been forgotten by then.
    round: u32,
}

type AllKept = [Kept; Unwinder::MOST_KEPT];

const FIRST_SLOTS: usize = 1024;
/// Slots that a table may have: 12 MiB, room for 262,144 stacks.
const MOST_SLOTS: usize = 1 << 19;
/// The same under the ceiling that the user asked for.
static ROOM: AtomicUsize = AtomicUsize::new(MOST_SLOTS);

/// Has tables take so many bytes each at most. A thread with more stacks forgets them all, and gives those that
/// come again new ids: whoever reads the ids has to know a stack when it sees it again.
pub(super) fn bound(bytes: usize) {
    let slots = (bytes / size_of::<Slot>()).clamp(FIRST_SLOTS, MOST_SLOTS);
    ROOM.store(1 << slots.ilog2(), Ordering::Relaxed);
}

/// What is known of a stack.
pub(super) enum Interned {
    /// It has an id.
    Known(ContextId),
    /// It is new: give it an id with [`Interner::insert`].
    New(Key),
}

/// The identity of a context that has no id yet.
pub(super) struct Key(Stack);

/// The contexts of one thread.
pub(super) struct Interner {
    slots: NonNull<Slot>,
    capacity: usize,
    used: usize,
    /// `prefix[n]` = the hash of the `n` frames next to the root. Mapped: 16 KiB are too much for the
    /// stack of a small thread, over which this value is moved once.
    prefix: NonNull<Prefix>,
    /// How many of `prefix` belong to the last stack.
    depth: usize,
    last: Option<(Stack, ContextId)>,
    /// What is known of kept stacks, by their numbers; mapped when there is the first.
    kept: Option<NonNull<AllKept>>,
    /// How often ids were forgotten.
    round: u32,
}

/// What the hash of a context is made of, which costs more to put together than to compare. Zeroes are valid.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Stack {
    frames: Hash,
    /// If there is anything.
    apart: Hash,
    leaf: Frame,
    is_apart: bool,
}

impl Stack {
    #[inline(always)]
    fn new(frames: Hash, leaf: Frame, apart: Option<Hash>) -> Self {
        Self { frames, apart: apart.unwrap_or(Hash::ROOT), leaf, is_apart: apart.is_some() }
    }

    fn hash(self) -> Hash {
        let hash = self.frames.then(self.leaf.0);
        if self.is_apart { hash.and(self.apart) } else { hash }
    }
}

impl Interner {
    /// An empty table; `None` when the kernel gives no memory.
    pub(super) fn new() -> Option<Self> {
        let slots = map_slots(FIRST_SLOTS)?;
        let mut prefix = memory::map(size_of::<Prefix>())?.cast::<Prefix>();
        // SAFETY: a fresh mapping of that size, where zeroes are valid hashes.
        unsafe { prefix.as_mut()[0] = Hash::ROOT };
        Some(Self {
            slots,
            capacity: FIRST_SLOTS,
            used: 0,
            prefix,
            depth: 0,
            last: None,
            kept: None,
            round: 0,
        })
    }

    /// Looks up `leaf` called by `frames` (leaf first), of which `kept` at the root are those of the
    /// last call, and what else tells it `apart`: open ranges, and frames of other languages.
    #[inline(always)]
    pub(super) fn find(
        &mut self,
        apart: Option<Hash>,
        leaf: Frame,
        frames: &[Frame],
        kept: usize,
    ) -> Interned {
        let frames = &frames[..frames.len().min(MAX_FRAMES)];
        let kept = kept.min(self.depth).min(frames.len());
        // SAFETY: the array is mapped as long as `self` lives, and nobody else knows it.
        let prefix = unsafe { self.prefix.as_mut() };
        let mut hash = prefix[kept];
        let new = frames.len() - kept;
        for (frame, kept_hash) in frames[..new].iter().rev().zip(&mut prefix[kept + 1..]) {
            hash = hash.then(frame.0);
            *kept_hash = hash;
        }
        self.depth = frames.len();
        let stack = Stack::new(hash, leaf, apart);
        match self.last {
            Some((last, id)) if last == stack => Interned::Known(id),
            _ => self.look_up(stack),
        }
    }

    /// The same, where something else tells stacks apart: beside the way of most launches.
    #[inline(never)]
    pub(super) fn find_apart(
        &mut self,
        apart: Option<Hash>,
        leaf: Frame,
        frames: &[Frame],
        kept: usize,
    ) -> Interned {
        self.find(apart, leaf, frames, kept)
    }

    /// Remembers that the stack that was looked up last has the number `number`, and which context it was.
    #[cold]
    pub(super) fn keep(&mut self, number: usize) {
        if self.kept.is_none() {
            self.kept = memory::map(size_of::<AllKept>()).map(NonNull::cast);
        }
        let (Some((stack, id)), round) = (self.last, self.round) else { return };
        if let Some(kept) = self.kept(number) {
            *kept = Kept { stack, id, round };
        }
    }

    /// The context of `leaf` called by the stack with the number `number`, with what else tells it `apart`. `None`: it is not
    /// known.
    #[inline(always)]
    pub(super) fn of_kept(&mut self, number: usize, apart: Option<Hash>, leaf: Frame) -> Option<ContextId> {
        let round = self.round;
        let Kept { stack: last, id, round: of_round } = *self.kept(number)?;
        if id == ContextId::NONE {
            return None;
        }
        let stack = Stack::new(last.frames, leaf, apart);
        if stack == last && of_round == round {
            return Some(id);
        }
        let Interned::Known(id) = self.look_up(stack) else { return None };
        *self.kept(number)? = Kept { stack, id, round };
        Some(id)
    }

    #[inline(always)]
    fn kept(&mut self, number: usize) -> Option<&mut Kept> {
        // SAFETY: the array is mapped as long as `self` lives, zeroes are valid in it, and nobody else knows it.
        unsafe { self.kept?.as_mut() }.get_mut(number)
    }

    fn look_up(&mut self, stack: Stack) -> Interned {
        let slot = self.slot(self.probe(stack.hash()));
        if slot.id == ContextId::NONE {
            return Interned::New(Key(stack));
        }
        self.last = Some((stack, slot.id));
        Interned::Known(slot.id)
    }

    /// Remembers that the stack of `key` has the id `id`. False: no memory to grow; the stack stays unknown.
    #[cold]
    pub(super) fn insert(&mut self, key: Key, id: ContextId) -> bool {
        if 2 * (self.used + 1) > self.capacity && !self.make_room() {
            return false;
        }
        let hash = key.0.hash();
        let at = self.probe(hash);
        self.set_slot(at, Slot { hash, id });
        self.used += 1;
        self.last = Some((key.0, id));
        true
    }

    /// Where `hash` stands, or the empty slot where it would.
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
    fn make_room(&mut self) -> bool {
        let capacity = 2 * self.capacity;
        let may_grow =
            capacity <= ROOM.load(Ordering::Relaxed) && budget::has_room(capacity * size_of::<Slot>());
        if may_grow { self.grow() } else { self.forget() }
    }

    /// Forgets all ids. False: the kernel gave no memory, and nothing is forgotten.
    #[cold]
    pub(super) fn forget(&mut self) -> bool {
        let Some(slots) = map_slots(FIRST_SLOTS) else { return false };
        let old = std::mem::replace(&mut self.slots, slots);
        // SAFETY: the old table came from `map_slots(self.capacity)` and nothing points into it any more.
        unsafe { memory::unmap(old.cast(), self.capacity * size_of::<Slot>()) };
        (self.capacity, self.used, self.last) = (FIRST_SLOTS, 0, None);
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
        // SAFETY: the old table came from `map_slots(old_capacity)` and nothing points into it any more.
        unsafe { memory::unmap(old.cast(), old_capacity * size_of::<Slot>()) };
        true
    }

    fn slot(&self, at: usize) -> Slot {
        debug_assert!(at < self.capacity);
        // SAFETY: callers mask `at` to the capacity, and a mapping of zero bytes is a valid empty table.
        unsafe { self.slots.add(at).read() }
    }

    fn set_slot(&mut self, at: usize, slot: Slot) {
        debug_assert!(at < self.capacity);
        // SAFETY: as in `slot`; `&mut self` means that nobody else reads.
        unsafe { self.slots.add(at).write(slot) };
    }
}

impl Drop for Interner {
    fn drop(&mut self) {
        // SAFETY: the table came from `map_slots(self.capacity)` and goes with its owner.
        unsafe { memory::unmap(self.slots.cast(), self.capacity * size_of::<Slot>()) };
        // SAFETY: likewise the array of hashes.
        unsafe { memory::unmap(self.prefix.cast(), size_of::<Prefix>()) };
        if let Some(kept) = self.kept {
            // SAFETY: likewise this one.
            unsafe { memory::unmap(kept.cast(), size_of::<AllKept>()) };
        }
    }
}

fn map_slots(capacity: usize) -> Option<NonNull<Slot>> {
    Some(memory::map(capacity * size_of::<Slot>())?.cast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::LabelId;

    const LEAF: Frame = Frame(3 << 60);

    fn id_of(interner: &mut Interner, leaf: Frame, frames: &[Frame], kept: usize, fresh: u32) -> u32 {
        match interner.find(None, leaf, frames, kept) {
            Interned::Known(id) => id.0,
            Interned::New(key) => {
                assert!(interner.insert(key, ContextId(fresh)));
                fresh
            }
        }
    }

    fn stack(words: &[u64]) -> Vec<Frame> {
        words.iter().map(|word| Frame(*word)).collect()
    }

    #[test]
    fn the_same_stack_has_the_same_id_however_much_of_it_was_kept() {
        let mut interner = Interner::new().unwrap();
        let frames = stack(&[4, 3, 2, 1]);
        assert_eq!(id_of(&mut interner, LEAF, &frames, 0, 2), 2);
        for kept in 0..=4 {
            assert_eq!(id_of(&mut interner, LEAF, &frames, kept, 99), 2, "{kept} kept");
        }
    }

    #[test]
    fn order_depth_and_leaf_all_count() {
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
        // The two frames next to the root stay; a new leaf side comes.
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
    fn what_was_forgotten_is_new_again_however_much_of_the_stack_was_kept() {
        let mut interner = Interner::new().unwrap();
        let frames = stack(&[4, 3, 2, 1]);
        assert_eq!(id_of(&mut interner, LEAF, &frames, 0, 2), 2);
        assert!(interner.forget());
        assert_eq!(id_of(&mut interner, LEAF, &frames, 4, 3), 3);
        assert_eq!(id_of(&mut interner, LEAF, &frames, 0, 99), 3);
    }

    #[test]
    fn a_table_grows_to_its_bound_and_no_further() {
        let mut interner = Interner::new().unwrap();
        for n in 0..MOST_SLOTS as u64 {
            assert_eq!(id_of(&mut interner, LEAF, &stack(&[n]), 0, n as u32 + 2), n as u32 + 2);
        }
        assert!(interner.capacity <= MOST_SLOTS && 2 * interner.used <= interner.capacity);
    }

    #[test]
    fn a_stack_that_is_kept_has_its_contexts_by_its_number_until_ids_are_forgotten() {
        let mut interner = Interner::new().unwrap();
        let (frames, apart) = (stack(&[4, 3, 2, 1]), Some(Hash::ROOT.then(5)));
        let other_leaf = Frame::label(LabelId(7));
        assert_eq!(id_of(&mut interner, other_leaf, &frames, 0, 2), 2);
        assert_eq!(id_of(&mut interner, LEAF, &frames, 0, 3), 3);
        assert_eq!(interner.of_kept(9, None, LEAF), None);
        interner.keep(9);
        for (leaf, id) in [(LEAF, 3), (other_leaf, 2), (LEAF, 3)] {
            assert_eq!(interner.of_kept(9, None, leaf), Some(ContextId(id)));
        }
        assert_eq!(interner.of_kept(9, apart, LEAF), None, "it is new beside this");
        let Interned::New(key) = interner.find(apart, LEAF, &frames, 0) else { panic!("it was not known") };
        interner.insert(key, ContextId(4));
        assert_eq!(interner.of_kept(9, apart, LEAF), Some(ContextId(4)));
        assert_eq!(interner.of_kept(9, None, LEAF), Some(ContextId(3)));
        assert_eq!(interner.of_kept(8, None, LEAF), None, "another number");
        assert!(interner.forget());
        assert_eq!(interner.of_kept(9, None, LEAF), None);
    }
}

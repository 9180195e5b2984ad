//! A cache of the thread's earlier Python walks. Each cached walk is identified by an index.
//!
//! Most programs launch from the same few hundred places again and again. If the thread's frames are the same as in a
//! cached walk, the walk's index identifies the whole stack. In this case, no frame has to be looked up or hashed. A
//! cached walk is compared with memory frame by frame, starting at the innermost frame. If a frame is unchanged, the
//! next outer frame may be read.
//!
//! A frame that is part of several walks is stored only once, as in a tree. Therefore a look-up reads mostly the same
//! memory as the previous look-up. A look-up first compares the predicted walk. The predicted walk is the walk that
//! followed when the previous two walks and the native frames were last the same as now. If the prediction is wrong,
//! the look-up compares the walks whose innermost frame has the same address and position as the thread's innermost
//! frame. At most one walk is inserted per eight look-ups, and insertions become rarer while inserted walks are never
//! hit. So the cache costs little in programs whose walks do not repeat.

use std::ptr::NonNull;

use super::interpreter::Interpreter;
use super::walk::{InterpreterFrame, PythonWalk, ReachedFrames, ThreadHead};
use crate::cache_backoff::{InsertBudget, LookupBackoff, choose_way, count_hit};
use crate::memory;

/// Number of cached walks per thread. The cache is 8-way set-associative. The walks and their frames take 800 KiB, but
/// a thread touches only the memory that it uses.
pub const WALKS: usize = SETS * WAYS;
const SETS: usize = 64;
const WAYS: usize = 8;
/// Maximum total number of different frames in all cached walks. When this number is reached, the cache is emptied.
const MAX_FRAMES: usize = 4096;
/// Number of slots in the hash table of all stored frames.
const FRAME_SLOTS: usize = 2 * MAX_FRAMES;
/// Maximum number of frames per walk, and maximum number of texts per walk (names and paths that identify the walk's
/// code objects, see `code`).
const MAX_FRAMES_PER_WALK: usize = 80;
const MAX_TEXTS_PER_WALK: usize = 32;
/// Number of slots in the table that predicts the next walk from the previous two walks and the native frames.
const FOLLOWERS: usize = 1024;
/// Maximum number of walks compared per look-up, in addition to the predicted walk.
const MAX_TRIED_WALKS: usize = 4;
/// Amount that a hit subtracts from the sum of misses. A miss adds 2, so look-ups become rarer if more than a third of
/// the comparisons fail.
const HIT_WEIGHT: u32 = 1;

/// The cached walks of one thread. Zeroed memory is an empty cache.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct WalkCache {
    /// The cache's memory, which is mapped when the first walk is inserted.
    contents: Option<NonNull<WalkCacheMemory>>,
    /// Number of bytes of `contents` that are counted as used.
    used: usize,
    /// Indices of the last two walks that were hit or inserted.
    last: [u16; 2],
    /// Index of the thread's native stack in the cache of whole stacks, if the stack is cached.
    native: usize,
    /// Number of stored frames of all cached walks together.
    frames: usize,
    backoff: LookupBackoff<HIT_WEIGHT>,
    budget: InsertBudget,
}

#[repr(C)]
struct WalkCacheMemory {
    sets: [WalkSet; SETS],
    followers: [u16; FOLLOWERS],
    walks: [CachedWalk; WALKS],
    /// For each slot of the hash table, 1 + the index of a frame, or 0 for a free slot.
    frame_slots: [u16; FRAME_SLOTS],
    /// For each frame, 1 + the index of its caller's frame, or 0 for an outermost frame.
    around: [u16; MAX_FRAMES],
    frames: [InterpreterFrame; MAX_FRAMES],
}

/// Tags and hit counts of the walks in one set of the cache.
#[repr(C)]
struct WalkSet {
    /// Hashes of the walks' innermost frames; 0 marks a free slot.
    tags: [u32; WAYS],
    /// Number of recent hits of each walk, at most 3. Each insertion into the set subtracts one from the hit counts of
    /// all walks in the set.
    hits: [u8; WAYS],
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CachedWalk {
    head: ThreadHead,
    /// Number of frames of the walk; 0 for an empty entry.
    count: u16,
    text_count: u16,
    texts: [u16; MAX_TEXTS_PER_WALK],
    /// Indices of the walk's frames in `WalkCacheMemory::frames`, root first.
    frames: [u16; MAX_FRAMES_PER_WALK],
}

const _: () = assert!(
    size_of::<CachedWalk>() == 256,
    "CachedWalk grew: one is read in each launch under functions of Python"
);

impl WalkCache {
    /// Sets the index of the thread's native stack in the cache of whole stacks. The index is set by a separate
    /// function, so that it takes no register during the walk.
    #[inline(always)]
    pub(super) fn set_native(&mut self, native: usize) {
        self.native = native;
    }

    /// Returns the index of a cached walk that has the same frames as the thread. Returns `None` if the cache contains
    /// no such walk, or if the back-off skips the look-up.
    #[inline(always)]
    pub(super) fn look_up(
        &mut self,
        walk: &mut PythonWalk,
        interpreter: &Interpreter,
        thread: u64,
    ) -> Option<usize> {
        let may_look_up = self.backoff.may_look_up();
        self.budget.count_lookup();
        // SAFETY: `insert` mapped the walks, they stay mapped as long as `self` lives, and only this thread uses them.
        let contents = unsafe { self.contents?.as_mut() };
        if !may_look_up {
            return None;
        }
        let slot = follower_slot(self.last, self.native);
        let mut number = usize::from(contents.followers[slot]) % WALKS;
        if !contents.matches(number, walk, interpreter, thread) {
            number = contents.find_other(number, walk, interpreter, thread, &mut self.backoff)?;
            contents.followers[slot] = number as u16;
        }
        count_hit(&mut contents.sets[number / WAYS].hits[number % WAYS]);
        self.last = [self.last[1], number as u16];
        self.backoff.record_hit();
        self.budget.record_hit();
        Some(number)
    }

    /// Whether the back-off allows an insertion at this time.
    #[inline(always)]
    pub(super) fn can_insert(&self) -> bool {
        self.budget.can_insert()
    }

    /// Caches the last walk and returns its index. Returns `None` if the walk cannot be cached.
    #[inline(never)]
    pub(super) fn insert(&mut self, walk: &PythonWalk) -> Option<usize> {
        self.budget.charge_insertion();
        let items = &walk.items[..walk.count];
        let texts = walk.texts.in_walk();
        let innermost = items.last()?;
        if walk.head.thread == 0 || items.len() > MAX_FRAMES_PER_WALK || texts.len() > MAX_TEXTS_PER_WALK {
            self.budget.raise_insert_cost();
            return None;
        }
        if self.contents.is_none() {
            self.contents = memory::reserve(size_of::<WalkCacheMemory>()).map(NonNull::cast);
            if self.contents.is_none() {
                // The next insertion tries again to reserve the memory. The back-off limits how often an insertion is
                // tried.
                self.budget.raise_insert_cost();
                return None;
            }
            self.count_memory(size_of::<[WalkSet; SETS]>() + 2 * (FOLLOWERS + FRAME_SLOTS));
        }
        if self.frames + items.len() > MAX_FRAMES {
            self.clear();
            self.budget.raise_insert_cost();
        }
        // SAFETY: the walks are mapped with this size, all-zero walks are valid, and only this thread uses them.
        let contents = unsafe { self.contents?.as_mut() };
        let mut cached = CachedWalk {
            head: walk.head,
            count: items.len() as u16,
            text_count: texts.len() as u16,
            texts: [0; MAX_TEXTS_PER_WALK],
            frames: [0; MAX_FRAMES_PER_WALK],
        };
        cached.texts[..texts.len()].copy_from_slice(texts);
        let (before, mut around) = (self.frames, 0);
        for (item, slot) in items.iter().zip(&mut cached.frames) {
            *slot = contents.intern_frame(item, around, &mut self.frames);
            around = *slot + 1;
        }
        let (number, evicted_unused) = contents.put(set_and_tag(innermost.at, innermost.position), cached);
        self.count_memory(
            (self.frames - before) * (size_of::<InterpreterFrame>() + 2) + size_of::<CachedWalk>(),
        );
        if evicted_unused {
            self.budget.raise_insert_cost();
        }
        self.last = [self.last[1], number as u16];
        Some(number)
    }

    /// Empties the cache. Call this function when the texts to which the entries refer are dropped.
    #[cold]
    pub(super) fn clear(&mut self) {
        // SAFETY: `insert` mapped the walks, they stay mapped as long as `self` lives, and only this thread uses them.
        if let Some(contents) = self.contents.map(|mut contents| unsafe { contents.as_mut() }) {
            contents.sets.iter_mut().for_each(|set| set.tags = [0; WAYS]);
            contents.walks.iter_mut().for_each(|cached| cached.count = 0);
            contents.frame_slots = [0; FRAME_SLOTS];
        }
        self.frames = 0;
    }

    /// Counts memory that the cache now uses. The count is an upper bound, because a new entry may reuse the memory of
    /// an evicted entry.
    fn count_memory(&mut self, bytes: usize) {
        let bytes = bytes.min(size_of::<WalkCacheMemory>() - self.used);
        memory::count_used(bytes);
        self.used += bytes;
    }

    /// Releases the memory of the cache.
    pub(super) fn release(&mut self) {
        if let Some(contents) = self.contents.take() {
            // SAFETY: `insert` mapped the walks with this size, and no reference to them is left.
            unsafe {
                memory::release(contents.cast(), size_of::<WalkCacheMemory>(), std::mem::take(&mut self.used))
            };
        }
    }
}

impl WalkCacheMemory {
    /// Whether the thread's frames are the same as the frames of the cached walk with the index `number`.
    #[inline(always)]
    fn matches(&self, number: usize, walk: &PythonWalk, interpreter: &Interpreter, thread: u64) -> bool {
        let cached = &self.walks[number];
        let frames = &cached.frames[..usize::from(cached.count).min(MAX_FRAMES_PER_WALK)];
        let item = |index: usize| &self.frames[usize::from(frames[index]) % MAX_FRAMES];
        let texts = &cached.texts[..usize::from(cached.text_count).min(MAX_TEXTS_PER_WALK)];
        ReachedFrames { head: cached.head, count: frames.len(), item }.are_still(interpreter, thread)
            // SAFETY: the texts belong to code objects that were just found to be the same.
            && unsafe { walk.texts.are_as_cached(texts, &interpreter.layout) }
    }

    /// Looks for a cached walk with the same frames as the thread. Skips the walk `tried`, which was already compared.
    #[inline(never)]
    fn find_other(
        &self,
        tried: usize,
        walk: &mut PythonWalk,
        interpreter: &Interpreter,
        thread: u64,
        backoff: &mut LookupBackoff<HIT_WEIGHT>,
    ) -> Option<usize> {
        let (at, position) = walk.innermost(interpreter, thread)?;
        let (set_index, tag) = set_and_tag(at, position);
        let tags = self.sets[set_index].tags.iter().enumerate();
        let alike = tags.filter(|(_, other)| **other == tag).map(|(way, _)| set_index * WAYS + way);
        let mut others = alike.filter(|number| *number != tried).take(MAX_TRIED_WALKS).peekable();
        others.peek()?;
        let number = others.find(|number| self.matches(*number, walk, interpreter, thread));
        if number.is_none() {
            backoff.record_miss();
        }
        number
    }

    /// Returns the index of a frame whose caller's frame is `around`. Stores the frame if it is new.
    fn intern_frame(&mut self, item: &InterpreterFrame, around: u16, count: &mut usize) -> u16 {
        let mut slot = mix(item.at ^ u64::from(around), item.position) as usize % FRAME_SLOTS;
        while let Some(number) = self.frame_slots[slot].checked_sub(1) {
            let frame = usize::from(number);
            if self.around[frame] == around && self.frames[frame] == *item {
                return number;
            }
            slot = (slot + 1) % FRAME_SLOTS;
        }
        let number = *count as u16;
        (self.frame_slots[slot], self.around[*count], self.frames[*count]) = (number + 1, around, *item);
        *count += 1;
        number
    }

    /// Stores a walk. Returns the index of the new walk, and whether the new walk replaced a walk that was never hit.
    fn put(&mut self, (set_index, tag): (usize, u32), cached: CachedWalk) -> (usize, bool) {
        let set = &mut self.sets[set_index];
        let walks = &mut self.walks[set_index * WAYS..][..WAYS];
        let is_same = |old: &CachedWalk| {
            (old.count, old.head, old.frames) == (cached.count, cached.head, cached.frames)
                && (old.text_count, old.texts) == (cached.text_count, cached.texts)
        };
        if let Some(way) = walks.iter().position(is_same) {
            return (set_index * WAYS + way, false);
        }
        let (way, evicted_unused) = choose_way(&mut set.tags, &mut set.hits, tag);
        walks[way] = cached;
        (set_index * WAYS + way, evicted_unused)
    }
}

/// Returns the index of the set that stores walks with this innermost frame, and the tag that such walks have in the
/// set.
#[inline(always)]
fn set_and_tag(at: u64, position: u64) -> (usize, u32) {
    let mixed = mix(at, position);
    ((mixed >> 57) as usize % SETS, (mixed >> 24) as u32 | 1)
}

#[inline(always)]
fn mix(one: u64, other: u64) -> u64 {
    let mixed = (one ^ other.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// Returns the index of the element of `followers` that predicts the next walk from the last two walks and these
/// native frames. The native frames are needed because one line of Python usually launches several kernels in a row,
/// and these launches differ only in their native frames.
#[inline(always)]
fn follower_slot(last: [u16; 2], native: usize) -> usize {
    (usize::from(last[0]).wrapping_mul(97) ^ usize::from(last[1]) ^ native.wrapping_mul(389)) % FOLLOWERS
}

#[cfg(test)]
mod tests {
    use super::super::walk::tests::{FakeInterpreter, MappedWalk, Numbers, layouts, words};
    use super::*;

    /// Simulates a thread that changes its frames and sometimes returns to earlier frames. Compares each walk that the
    /// cache recognizes with a walk without caches. Returns the number of recognized walks.
    fn compare(made: &mut FakeInterpreter, steps: usize) -> usize {
        let (mut mapped, mut walks, mut numbers) =
            (MappedWalk::new(), WalkCache::default(), Numbers::default());
        let (walk, thread) = (mapped.walk(), made.thread());
        let mut cached = vec![Vec::new(); WALKS];
        let mut frame_slots = vec![made.calls.clone()];
        let mut met = 0;
        for step in 0..steps {
            match made.below(24) {
                0 => made.step_program(),
                _ => {
                    let slot = made.below(frame_slots.len());
                    made.calls = frame_slots[slot].clone();
                    made.write_frames();
                }
            }
            let (slot, count) = (made.below(12), frame_slots.len());
            match frame_slots.get_mut(slot) {
                Some(there) if slot < count && step % 64 == 0 => there.clone_from(&made.calls),
                None if step % 8 == 0 => frame_slots.push(made.calls.clone()),
                _ => {}
            }
            let mut anew = MappedWalk::new();
            anew.walk().run(&made.interpreter, thread, &mut |text| numbers.of(text)).unwrap();
            let now = words(anew.walk());
            if let Some(number) = walks.look_up(walk, &made.interpreter, thread) {
                assert_eq!(cached[number], now, "{step}: {:?}", made.calls);
                met += 1;
                continue;
            }
            if walk.texts.are_full() {
                walks.clear();
            }
            walk.run(&made.interpreter, thread, &mut |text| numbers.of(text)).unwrap();
            if walks.can_insert()
                && let Some(number) = walks.insert(walk)
            {
                cached[number] = now;
            }
        }
        walks.release();
        met
    }

    #[test]
    fn a_recognized_walk_equals_the_kept_walk() {
        for (layout, has_root) in layouts() {
            for seed in 1..6 {
                let mut made = FakeInterpreter::new(layout, has_root, seed * 0x9e37_79b9);
                while made.calls.len() < 8 {
                    made.push();
                }
                let met = compare(&mut made, 1500);
                assert!(met > 300, "{met}");
            }
        }
    }

    #[test]
    fn kept_walks_are_recognized_even_if_not_all_fit() {
        for (layout, has_root) in layouts() {
            let mut made = FakeInterpreter::new(layout, has_root, 0x9e37_79b9);
            while made.calls.len() < MAX_FRAMES_PER_WALK - 10 {
                made.push();
            }
            let met = compare(&mut made, 3000);
            assert!(met > 300, "{met}");
        }
    }

    #[test]
    fn the_size_of_kept_walks_never_exceeds_the_capacity() {
        let (layout, has_root) = layouts()[0];
        let mut made = FakeInterpreter::new(layout, has_root, 7);
        let (mut mapped, mut walks, mut numbers) =
            (MappedWalk::new(), WalkCache::default(), Numbers::default());
        let (walk, thread) = (mapped.walk(), made.thread());
        for _ in 0..10_000 {
            made.step_program();
            while made.calls.len() < 20 {
                made.push();
            }
            made.write_frames();
            walk.run(&made.interpreter, thread, &mut |text| numbers.of(text)).unwrap();
            walks.insert(walk);
        }
        assert_eq!(walks.used, size_of::<WalkCacheMemory>());
        walks.release();
        assert_eq!(walks.used, 0);
    }

    #[test]
    fn walks_of_other_thread_states_are_not_recognized() {
        let (layout, has_root) = layouts()[0];
        let mut made = FakeInterpreter::new(layout, has_root, 7);
        (0..20).for_each(|_| made.push());
        made.write_frames();
        let (mut mapped, mut walks, mut numbers) =
            (MappedWalk::new(), WalkCache::default(), Numbers::default());
        let (walk, thread) = (mapped.walk(), made.thread());
        walk.run(&made.interpreter, thread, &mut |text| numbers.of(text)).unwrap();
        let number = walks.insert(walk);
        assert!(number.is_some());
        assert_eq!(walks.look_up(walk, &made.interpreter, thread), number);
        assert_eq!(walks.look_up(walk, &made.interpreter, thread + 8), None);
        walks.clear();
        assert_eq!(walks.look_up(walk, &made.interpreter, thread), None);
        walks.release();
    }
}

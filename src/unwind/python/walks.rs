//! A cache of the thread's earlier Python walks, each identified by a number.
//!
//! A program launches from the same few hundred places again and again. If the thread's frames are those of a cached walk,
//! no frame has to be looked up or hashed: the walk's number identifies them all. A cached walk is verified frame by frame,
//! in the same way as the last walk, starting at the innermost frame; each comparison proves that the next frame may be
//! read.
//!
//! Frames that several walks share are stored once, as in a tree, so a look-up reads mostly the memory that the previous
//! look-up read. A look-up first tries the walk that last followed the previous two walks under these native frames; then
//! it tries the walks whose innermost frame has the thread's address and position. At most one walk is inserted per eight
//! look-ups, and walks that are never hit make insertions more expensive, so programs whose walks do not repeat pay little.

use std::ptr::NonNull;

use super::find::Interpreter;
use super::walk::{Head, Item, Met, Walk};
use crate::cache_backoff::{CacheBackoff, choose_way, count_hit};
use crate::memory;

/// Number of cached walks per thread, in an 8-way set-associative cache. With their frames the walks take 800 KiB, of which
/// a program touches only the part that it uses.
pub const WALKS: usize = SETS * WAYS;
const SETS: usize = 64;
const WAYS: usize = 8;
/// Maximum number of frames of all walks together. If this number is reached, the cache is emptied.
const FRAMES: usize = 4096;
/// Number of slots in the hash table for finding frames.
const PLACES: usize = 2 * FRAMES;
/// Maximum number of frames per walk, and maximum number of texts that identify the walk's code objects (see `code`).
const MOST_FRAMES: usize = 80;
const MOST_TEXTS: usize = 32;
/// Number of slots in the table that predicts a walk from the previous two walks and the native frames.
const FOLLOWERS: usize = 1024;
/// Maximum number of walks compared per look-up, in addition to the predicted walk.
const MOST_TRIED: usize = 4;

/// The cached walks of one thread. Zeroed memory is an empty cache.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Walks {
    /// The cache's memory, which is mapped when the first walk is inserted.
    all: Option<NonNull<All>>,
    /// Number of bytes of `all` in use.
    used: usize,
    /// Numbers of the last two walks that were hit or inserted.
    last: [u16; 2],
    /// Value that identifies the thread's native frames as far as they are known.
    native: usize,
    /// Number of frames of all walks that are stored.
    frames: usize,
    backoff: CacheBackoff,
}

#[repr(C)]
struct All {
    sets: [Set; SETS],
    followers: [u16; FOLLOWERS],
    walks: [Kept; WALKS],
    /// For each hash slot, the number of a frame plus 1; 0 for a free slot.
    places: [u16; PLACES],
    /// For each frame, the number of the frame around it plus 1; 0 for an outermost frame.
    around: [u16; FRAMES],
    frames: [Item; FRAMES],
}

/// The cached walks of one hash set.
#[repr(C)]
struct Set {
    /// Hashes of the walks' innermost frames; 0 marks a free slot.
    tags: [u32; WAYS],
    /// Number of recent hits per walk, at most 3; each insertion into the set subtracts one from every walk's number.
    hits: [u8; WAYS],
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Kept {
    head: Head,
    /// Number of frames of the walk; 0 for an empty entry.
    count: u16,
    count_of_texts: u16,
    texts: [u16; MOST_TEXTS],
    /// Numbers of the walk's frames, root first.
    frames: [u16; MOST_FRAMES],
}

const _: () =
    assert!(size_of::<Kept>() == 256, "Kept grew: one is read in each launch under functions of Python");

impl Walks {
    /// Sets the thread's native frames, as far as they are known. Called early, so that the value does not occupy a
    /// register.
    #[inline(always)]
    pub(super) fn under(&mut self, native: usize) {
        self.native = native;
    }

    /// Returns the number of the cached walk whose frames the thread is in, if there is such a walk.
    #[inline(always)]
    pub(super) fn recognise(
        &mut self,
        walk: &mut Walk,
        interpreter: &Interpreter,
        thread: u64,
    ) -> Option<usize> {
        let is_due = self.backoff.may_look_up();
        // SAFETY: `keep` mapped the walks, they stay mapped as long as `self` lives, and only this thread uses them.
        let all = unsafe { self.all?.as_mut() };
        if !is_due {
            return None;
        }
        let place = follower(self.last, self.native);
        let mut number = usize::from(all.followers[place]) % WALKS;
        if !all.is(number, walk, interpreter, thread) {
            number = all.look(number, walk, interpreter, thread, &mut self.backoff)?;
            all.followers[place] = number as u16;
        }
        count_hit(&mut all.sets[number / WAYS].hits[number % WAYS]);
        self.last = [self.last[1], number as u16];
        self.backoff.record_hit();
        Some(number)
    }

    /// Whether the back-off allows an insertion at this time.
    #[inline(always)]
    pub(super) fn can_keep(&self) -> bool {
        self.backoff.can_insert()
    }

    /// Caches the last walk and returns its number. `None` if the walk cannot be cached.
    #[inline(never)]
    pub(super) fn keep(&mut self, walk: &Walk) -> Option<usize> {
        self.backoff.charge_insertion();
        let items = &walk.items[..walk.count];
        let texts = walk.texts.of_walk();
        let innermost = items.last()?;
        if walk.head.thread == 0 || items.len() > MOST_FRAMES || texts.len() > MOST_TEXTS {
            self.backoff.raise_insert_cost();
            return None;
        }
        if self.all.is_none() {
            self.all = memory::reserve(size_of::<All>()).map(NonNull::cast);
            if self.all.is_none() {
                // A later insertion tries to reserve the memory again, less and less often.
                self.backoff.raise_insert_cost();
                return None;
            }
            self.count(size_of::<[Set; SETS]>() + 2 * (FOLLOWERS + PLACES));
        }
        if self.frames + items.len() > FRAMES {
            self.forget();
            self.backoff.raise_insert_cost();
        }
        // SAFETY: the walks are mapped with this size, all-zero walks are valid, and only this thread uses them.
        let all = unsafe { self.all?.as_mut() };
        let mut kept = Kept {
            head: walk.head,
            count: items.len() as u16,
            count_of_texts: texts.len() as u16,
            texts: [0; MOST_TEXTS],
            frames: [0; MOST_FRAMES],
        };
        kept.texts[..texts.len()].copy_from_slice(texts);
        let (before, mut around) = (self.frames, 0);
        for (item, place) in items.iter().zip(&mut kept.frames) {
            *place = all.frame(item, around, &mut self.frames);
            around = *place + 1;
        }
        let (number, evicted_unused) = all.put(home_of(innermost.at, innermost.position), kept);
        self.count((self.frames - before) * (size_of::<Item>() + 2) + size_of::<Kept>());
        if evicted_unused {
            self.backoff.raise_insert_cost();
        }
        self.last = [self.last[1], number as u16];
        Some(number)
    }

    /// Empties the cache, for example because the texts that its entries refer to are dropped.
    #[cold]
    pub(super) fn forget(&mut self) {
        // SAFETY: `keep` mapped the walks, they stay mapped as long as `self` lives, and only this thread uses them.
        if let Some(all) = self.all.map(|mut all| unsafe { all.as_mut() }) {
            all.sets.iter_mut().for_each(|set| set.tags = [0; WAYS]);
            all.walks.iter_mut().for_each(|kept| kept.count = 0);
            all.places = [0; PLACES];
        }
        self.frames = 0;
    }

    /// Counts newly used memory. The count is an upper bound, because evicted entries are reused.
    fn count(&mut self, bytes: usize) {
        let bytes = bytes.min(size_of::<All>() - self.used);
        memory::count_used(bytes);
        self.used += bytes;
    }

    /// Releases the memory of the cache.
    pub(super) fn release(&mut self) {
        if let Some(all) = self.all.take() {
            // SAFETY: `keep` mapped the walks with this size, and no reference to them is left.
            unsafe { memory::release(all.cast(), size_of::<All>(), std::mem::take(&mut self.used)) };
        }
    }
}

impl All {
    /// Whether the thread is still in the frames of a cached walk.
    #[inline(always)]
    fn is(&self, number: usize, walk: &Walk, interpreter: &Interpreter, thread: u64) -> bool {
        let kept = &self.walks[number];
        let frames = &kept.frames[..usize::from(kept.count).min(MOST_FRAMES)];
        let item = |index: usize| &self.frames[usize::from(frames[index]) % FRAMES];
        let texts = &kept.texts[..usize::from(kept.count_of_texts).min(MOST_TEXTS)];
        Met { head: kept.head, count: frames.len(), item }.are_still(interpreter, thread)
            // SAFETY: the texts belong to code objects that were just found to be the same.
            && unsafe { walk.texts.are_as_kept(texts, &interpreter.layout) }
    }

    /// Finds the walk whose frames the thread is in, other than the walk that was already tried.
    #[inline(never)]
    fn look(
        &self,
        tried: usize,
        walk: &mut Walk,
        interpreter: &Interpreter,
        thread: u64,
        backoff: &mut CacheBackoff,
    ) -> Option<usize> {
        let (at, position) = walk.innermost(interpreter, thread)?;
        let (home, tag) = home_of(at, position);
        let tags = self.sets[home].tags.iter().enumerate();
        let alike = tags.filter(|(_, other)| **other == tag).map(|(way, _)| home * WAYS + way);
        let mut others = alike.filter(|number| *number != tried).take(MOST_TRIED).peekable();
        others.peek()?;
        let number = others.find(|number| self.is(*number, walk, interpreter, thread));
        if number.is_none() {
            backoff.record_miss();
        }
        number
    }

    /// The number of a frame inside the frame `around`. Stores the frame if it is new.
    fn frame(&mut self, item: &Item, around: u16, count: &mut usize) -> u16 {
        let mut place = mixed(item.at ^ u64::from(around), item.position) as usize % PLACES;
        while let Some(number) = self.places[place].checked_sub(1) {
            let known = usize::from(number);
            if self.around[known] == around && self.frames[known] == *item {
                return number;
            }
            place = (place + 1) % PLACES;
        }
        let number = *count as u16;
        (self.places[place], self.around[*count], self.frames[*count]) = (number + 1, around, *item);
        *count += 1;
        number
    }

    /// Stores a walk. Returns its number, and whether it evicted a walk that was never hit.
    fn put(&mut self, (home, tag): (usize, u32), kept: Kept) -> (usize, bool) {
        let set = &mut self.sets[home];
        let walks = &mut self.walks[home * WAYS..][..WAYS];
        let is_same = |old: &Kept| {
            (old.count, old.head, old.frames) == (kept.count, kept.head, kept.frames)
                && (old.count_of_texts, old.texts) == (kept.count_of_texts, kept.texts)
        };
        if let Some(way) = walks.iter().position(is_same) {
            return (home * WAYS + way, false);
        }
        let (way, evicted_unused) = choose_way(&mut set.tags, &mut set.hits, tag);
        walks[way] = kept;
        (home * WAYS + way, evicted_unused)
    }
}

/// The set of walks with this innermost frame, and their tag in that set.
#[inline(always)]
fn home_of(at: u64, position: u64) -> (usize, u32) {
    let mixed = mixed(at, position);
    ((mixed >> 57) as usize % SETS, (mixed >> 24) as u32 | 1)
}

#[inline(always)]
fn mixed(one: u64, other: u64) -> u64 {
    let mixed = (one ^ other.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// Slot of the prediction for the walk that follows the last two walks under these native frames. One line of Python
/// usually launches several kernels in a row, and the native frames distinguish these launches.
#[inline(always)]
fn follower(last: [u16; 2], native: usize) -> usize {
    (usize::from(last[0]).wrapping_mul(97) ^ usize::from(last[1]) ^ native.wrapping_mul(389)) % FOLLOWERS
}

#[cfg(test)]
mod tests {
    use super::super::walk::tests::{Made, Mapped, Numbers, layouts, words};
    use super::*;

    /// Simulates a thread that returns to earlier places or continues, and compares each recognized walk with a fresh walk.
    /// Returns the number of recognized walks.
    fn compare(made: &mut Made, steps: usize) -> usize {
        let (mut mapped, mut walks, mut numbers) = (Mapped::new(), Walks::default(), Numbers::default());
        let (walk, thread) = (mapped.walk(), made.thread());
        let mut kept = vec![Vec::new(); WALKS];
        let mut places = vec![made.calls.clone()];
        let mut met = 0;
        for step in 0..steps {
            match made.below(24) {
                0 => made.go_on(),
                _ => {
                    let place = made.below(places.len());
                    made.calls = places[place].clone();
                    made.write_frames();
                }
            }
            let (place, count) = (made.below(12), places.len());
            match places.get_mut(place) {
                Some(there) if place < count && step % 64 == 0 => there.clone_from(&made.calls),
                None if step % 8 == 0 => places.push(made.calls.clone()),
                _ => {}
            }
            let mut anew = Mapped::new();
            anew.walk().run(&made.interpreter, thread, &mut |text| numbers.of(text)).unwrap();
            let now = words(anew.walk());
            if let Some(number) = walks.recognise(walk, &made.interpreter, thread) {
                assert_eq!(kept[number], now, "{step}: {:?}", made.calls);
                met += 1;
                continue;
            }
            if walk.texts.are_full() {
                walks.forget();
            }
            walk.run(&made.interpreter, thread, &mut |text| numbers.of(text)).unwrap();
            if walks.can_keep()
                && let Some(number) = walks.keep(walk)
            {
                kept[number] = now;
            }
        }
        walks.release();
        met
    }

    #[test]
    fn a_recognized_walk_equals_the_kept_walk() {
        for (layout, has_root) in layouts() {
            for seed in 1..6 {
                let mut made = Made::new(layout, has_root, seed * 0x9e37_79b9);
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
            let mut made = Made::new(layout, has_root, 0x9e37_79b9);
            while made.calls.len() < MOST_FRAMES - 10 {
                made.push();
            }
            let met = compare(&mut made, 3000);
            assert!(met > 300, "{met}");
        }
    }

    #[test]
    fn the_size_of_kept_walks_never_exceeds_the_capacity() {
        let (layout, has_root) = layouts()[0];
        let mut made = Made::new(layout, has_root, 7);
        let (mut mapped, mut walks, mut numbers) = (Mapped::new(), Walks::default(), Numbers::default());
        let (walk, thread) = (mapped.walk(), made.thread());
        for _ in 0..10_000 {
            made.go_on();
            while made.calls.len() < 20 {
                made.push();
            }
            made.write_frames();
            walk.run(&made.interpreter, thread, &mut |text| numbers.of(text)).unwrap();
            walks.keep(walk);
        }
        assert_eq!(walks.used, size_of::<All>());
        walks.release();
        assert_eq!(walks.used, 0);
    }

    #[test]
    fn walks_of_other_thread_states_are_not_recognized() {
        let (layout, has_root) = layouts()[0];
        let mut made = Made::new(layout, has_root, 7);
        (0..20).for_each(|_| made.push());
        made.write_frames();
        let (mut mapped, mut walks, mut numbers) = (Mapped::new(), Walks::default(), Numbers::default());
        let (walk, thread) = (mapped.walk(), made.thread());
        walk.run(&made.interpreter, thread, &mut |text| numbers.of(text)).unwrap();
        let number = walks.keep(walk);
        assert!(number.is_some());
        assert_eq!(walks.recognise(walk, &made.interpreter, thread), number);
        assert_eq!(walks.recognise(walk, &made.interpreter, thread + 8), None);
        walks.forget();
        assert_eq!(walks.recognise(walk, &made.interpreter, thread), None);
        walks.release();
    }
}

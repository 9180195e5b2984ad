//! Walks that a thread has made before: recognised, and not made again.
//!
//! A program launches from the same few hundred places, again and again. Where the thread's frames are those of a walk that
//! was kept, nothing is looked up and nothing summed up: its number says all. A kept walk is not believed but compared as
//! the last one is, from the innermost frame on, and each comparison says that the next frame may be read.
//!
//! Frames that walks have in common are kept once, as those of a tree: so what a look reads is mostly what the one before
//! has read. Which walk is tried: the one that came after the last two under these native frames, the last time; else those whose
//! innermost frame lies where the thread's does and is at the same position. A walk is kept for every eight looks at most, and those that
//! are never met again make the next ones dearer; so programs whose walks do not come again pay little.

use std::ptr::NonNull;

use super::find::Interpreter;
use super::walk::{Head, Item, Met, Walk};
use crate::unwind::memory;
use crate::unwind::price::{Price, count_use, make_way};

/// Walks of one thread, and how many of them compete for a place: 800 KiB with their frames, of which a program touches what it
/// uses.
pub(crate) const WALKS: usize = SETS * WAYS;
const SETS: usize = 64;
const WAYS: usize = 8;
/// Frames of all walks. Where there are more, all are forgotten.
const FRAMES: usize = 4096;
/// Places by which a frame is found.
const PLACES: usize = 2 * FRAMES;
/// The most frames of one, and the most texts that tell its code objects from others (see `code`).
const MOST_FRAMES: usize = 80;
const MOST_TEXTS: usize = 32;
/// Which walk came after two others, under some native frames.
const FOLLOWERS: usize = 1024;
/// So many walks are compared in a look at most, beside the one that is expected.
const MOST_TRIED: usize = 4;

/// The walks of one thread. Zeroed memory holds none.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Walks {
    /// Mapped when the first is kept.
    all: Option<NonNull<All>>,
    /// Bytes of it that were used.
    used: usize,
    /// Those that were met last.
    last: [u16; 2],
    /// Which native frames the thread is in, as far as that is known.
    native: usize,
    /// How many frames there are.
    frames: usize,
    price: Price,
}

#[repr(C)]
struct All {
    sets: [Set; SETS],
    followers: [u16; FOLLOWERS],
    walks: [Kept; WALKS],
    /// Numbers of frames and 1; 0: there is none.
    places: [u16; PLACES],
    /// The number and 1 of the one around each; 0: it is an outermost one.
    around: [u16; FRAMES],
    frames: [Item; FRAMES],
}

/// Walks that compete.
#[repr(C)]
struct Set {
    /// Of their innermost frames; 0: there is none.
    tags: [u32; WAYS],
    /// How often they were met since others came, up to a bound.
    uses: [u8; WAYS],
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Kept {
    head: Head,
    /// 0: it is none.
    count: u16,
    count_of_texts: u16,
    texts: [u16; MOST_TEXTS],
    /// The numbers of its frames, root first.
    frames: [u16; MOST_FRAMES],
}

const _: () =
    assert!(size_of::<Kept>() == 256, "Kept grew: one is read in each launch under functions of Python");

impl Walks {
    /// The thread is in these native frames, as far as that is known. To be said at once, so that it takes no register.
    #[inline(always)]
    pub(super) fn under(&mut self, native: usize) {
        self.native = native;
    }

    /// The number of the walk whose frames are those that the thread is in, if it is kept.
    #[inline(always)]
    pub(super) fn recognise(
        &mut self,
        walk: &mut Walk,
        interpreter: &Interpreter,
        thread: u64,
    ) -> Option<usize> {
        let is_due = self.price.may_look();
        // SAFETY: `keep` mapped them, and they stay as long as `self` does; this thread alone has them.
        let all = unsafe { self.all?.as_mut() };
        if !is_due {
            return None;
        }
        let place = follower(self.last, self.native);
        let mut number = usize::from(all.followers[place]) % WALKS;
        if !all.is(number, walk, interpreter, thread) {
            number = all.look(number, walk, interpreter, thread, &mut self.price)?;
            all.followers[place] = number as u16;
        }
        count_use(&mut all.sets[number / WAYS].uses[number % WAYS]);
        self.last = [self.last[1], number as u16];
        self.price.was_met();
        Some(number)
    }

    /// Whether a walk may be kept by now.
    #[inline(always)]
    pub(super) fn can_keep(&self) -> bool {
        self.price.can_pay()
    }

    /// Keeps the last walk, and gives its number. `None`: it cannot be kept.
    #[inline(never)]
    pub(super) fn keep(&mut self, walk: &Walk) -> Option<usize> {
        self.price.pay();
        let items = &walk.items[..walk.count];
        let texts = walk.texts.of_walk();
        let innermost = items.last()?;
        if walk.head.thread == 0 || items.len() > MOST_FRAMES || texts.len() > MOST_TEXTS {
            self.price.raise();
            return None;
        }
        if self.all.is_none() {
            self.all = memory::reserve(size_of::<All>()).map(NonNull::cast);
            if self.all.is_none() {
                // It is asked again later, and more and more rarely.
                self.price.raise();
                return None;
            }
            self.count(size_of::<[Set; SETS]>() + 2 * (FOLLOWERS + PLACES));
        }
        if self.frames + items.len() > FRAMES {
            self.forget();
            self.price.raise();
        }
        // SAFETY: mapped with this size, where zeroes are no walks, and this thread's alone.
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
        let (number, was_in_vain) = all.put(home_of(innermost.at, innermost.position), kept);
        self.count((self.frames - before) * (size_of::<Item>() + 2) + size_of::<Kept>());
        if was_in_vain {
            self.price.raise();
        }
        self.last = [self.last[1], number as u16];
        Some(number)
    }

    /// Forgets all, as where what they are known by is known no longer.
    #[cold]
    pub(super) fn forget(&mut self) {
        // SAFETY: as in `recognise`.
        if let Some(all) = self.all.map(|mut all| unsafe { all.as_mut() }) {
            all.sets.iter_mut().for_each(|set| set.tags = [0; WAYS]);
            all.walks.iter_mut().for_each(|kept| kept.count = 0);
            all.places = [0; PLACES];
        }
        self.frames = 0;
    }

    /// Counts what is used for the first time, at most: what made way is used again.
    fn count(&mut self, bytes: usize) {
        let bytes = bytes.min(size_of::<All>() - self.used);
        memory::count(bytes);
        self.used += bytes;
    }

    /// Gives the memory back.
    pub(super) fn give_back(&mut self) {
        if let Some(all) = self.all.take() {
            // SAFETY: `keep` mapped them with this size, and nobody has them any more.
            unsafe { memory::give_back(all.cast(), size_of::<All>(), std::mem::take(&mut self.used)) };
        }
    }
}

impl All {
    /// Whether the thread is in the frames of a walk.
    #[inline(always)]
    fn is(&self, number: usize, walk: &Walk, interpreter: &Interpreter, thread: u64) -> bool {
        let kept = &self.walks[number];
        let frames = &kept.frames[..usize::from(kept.count).min(MOST_FRAMES)];
        let item = |index: usize| &self.frames[usize::from(frames[index]) % FRAMES];
        let texts = &kept.texts[..usize::from(kept.count_of_texts).min(MOST_TEXTS)];
        Met { head: kept.head, count: frames.len(), item }.are_still(interpreter, thread)
            // SAFETY: they belong to code objects that were just seen to be the same.
            && unsafe { walk.texts.are_as_kept(texts, &interpreter.layout) }
    }

    /// The walk whose frames the thread is in, but for one that was tried.
    #[inline(never)]
    fn look(
        &self,
        tried: usize,
        walk: &mut Walk,
        interpreter: &Interpreter,
        thread: u64,
        price: &mut Price,
    ) -> Option<usize> {
        let (at, position) = walk.innermost(interpreter, thread)?;
        let (home, tag) = home_of(at, position);
        let tags = self.sets[home].tags.iter().enumerate();
        let alike = tags.filter(|(_, other)| **other == tag).map(|(way, _)| home * WAYS + way);
        let mut others = alike.filter(|number| *number != tried).take(MOST_TRIED).peekable();
        others.peek()?;
        let number = others.find(|number| self.is(*number, walk, interpreter, thread));
        if number.is_none() {
            price.was_in_vain();
        }
        number
    }

    /// The number of a frame inside of another.
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

    /// Gives a walk a place and its number. Whether another made way for it that was never met.
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
        let (way, was_in_vain) = make_way(&mut set.tags, &mut set.uses, tag);
        walks[way] = kept;
        (home * WAYS + way, was_in_vain)
    }
}

/// The set of walks that begin with such a frame, and their tag there.
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

/// Where it is noted which walk came after two others, under these native frames: one line of Python launches several kernels
/// in a row as a rule, and those are told apart by them.
#[inline(always)]
fn follower(last: [u16; 2], native: usize) -> usize {
    (usize::from(last[0]).wrapping_mul(97) ^ usize::from(last[1]) ^ native.wrapping_mul(389)) % FOLLOWERS
}

#[cfg(test)]
mod tests {
    use super::super::walk::tests::{Made, Mapped, Numbers, layouts, words};
    use super::*;

    /// A thread that goes back to where it was, or on: each walk that is recognised is held against one that is made anew. Says
    /// how many were.
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
        walks.give_back();
        met
    }

    #[test]
    fn a_walk_that_is_recognised_is_the_one_that_was_kept() {
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
    fn walks_of_too_many_frames_to_keep_all_make_way_for_others() {
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
    fn what_is_counted_as_held_is_no_more_than_there_is_room_for() {
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
        walks.give_back();
        assert_eq!(walks.used, 0);
    }

    #[test]
    fn walks_of_other_threads_states_are_not_met() {
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
        walks.give_back();
    }
}

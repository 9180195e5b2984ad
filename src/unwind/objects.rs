//! The loaded objects by address, for glibc before 2.35, which has no `_dl_find_object`.
//!
//! There, every address without a rule would have the loader show its whole list, under its lock: 2 us. So the
//! list is copied and sorted when objects came or went, and an address is looked up in the copy.
//!
//! Nobody waits. One thread at a time copies; any other that needs the copy then asks the loader. Readers look
//! at a sequence number before and after: it is odd while the copy is written, and different afterwards. All of
//! it is static: no allocation, and no old copy to keep for somebody who may still read it.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use super::counts::Counts;
use super::loader::{self, Object, Visit};

/// Objects that fit. A process with more has the loader asked for every address without a rule.
const MOST: usize = 1024;
/// Words of an object in the copy.
const WORDS: usize = 6;

/// The copy: objects by their first address, as words.
static COPY: [[AtomicU64; WORDS]; MOST] = [const { [const { AtomicU64::new(0) }; WORDS] }; MOST];
/// How many there are, and the loader's state that they are of.
static COUNT: AtomicU64 = AtomicU64::new(0);
static STATE: AtomicU64 = AtomicU64::new(0);
/// Odd while the three above are being written.
static SEQUENCE: AtomicU64 = AtomicU64::new(0);

/// Where the list is sorted before it is copied; for whoever holds `WRITING`.
static ROOM: Room = Room(UnsafeCell::new([Object::NONE; MOST]));
static WRITING: AtomicBool = AtomicBool::new(false);

struct Room(UnsafeCell<[Object; MOST]>);

// SAFETY: only `refresh` reaches into it, while it holds `WRITING`.
unsafe impl Sync for Room {}

/// The copy cannot say: the loader is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unsure;

/// The object that holds `address` in the loader's present state, while the loader is held. Safe inside a callback.
pub(super) fn holding(address: u64, counts: Counts) -> Result<Option<Object>, Unsure> {
    match look_up(address, counts) {
        Err(Unsure) => {
            refresh(counts);
            look_up(address, counts)
        }
        found => found,
    }
}

fn look_up(address: u64, counts: Counts) -> Result<Option<Object>, Unsure> {
    let before = SEQUENCE.load(Ordering::Acquire);
    let is_current = before.is_multiple_of(2) && STATE.load(Ordering::Relaxed) == counts.as_word();
    let count = COUNT.load(Ordering::Relaxed) as usize;
    if !is_current || count == 0 {
        return Err(Unsure);
    }
    let copy = COPY.get(..count).ok_or(Unsure)?;
    let after = copy.partition_point(|words| words[0].load(Ordering::Relaxed) <= address);
    let last = after.checked_sub(1).map(|at| copy[at].each_ref().map(|word| word.load(Ordering::Relaxed)));
    // The loads above come before the one below: then what they read was whole.
    fence(Ordering::Acquire);
    if SEQUENCE.load(Ordering::Relaxed) != before {
        return Err(Unsure);
    }
    Ok(last.map(Object::from_words).filter(|object| object.contains(address)))
}

/// Copies the loader's list in its present state, unless somebody is at it.
#[cold]
fn refresh(counts: Counts) {
    if WRITING.swap(true, Ordering::Acquire) {
        return;
    }
    // SAFETY: the flag was ours to take, so no other reference to the room is alive.
    let room = unsafe { &mut *ROOM.0.get() };
    let mut count = 0;
    loader::visit(|object| {
        if let Some(place) = room.get_mut(count) {
            *place = *object;
        }
        count += 1;
        Visit::Next
    });
    if let Some(objects) = room.get_mut(..count) {
        objects.sort_unstable_by_key(|object| object.start);
        publish(objects, counts);
    }
    WRITING.store(false, Ordering::Release);
}

fn publish(objects: &[Object], counts: Counts) {
    let sequence = SEQUENCE.load(Ordering::Relaxed);
    SEQUENCE.store(sequence + 1, Ordering::Relaxed);
    // Whoever reads a word stored below sees the odd number after it.
    fence(Ordering::Release);
    for (place, object) in COPY.iter().zip(objects) {
        for (place, word) in place.iter().zip(object.to_words()) {
            place.store(word, Ordering::Relaxed);
        }
    }
    COUNT.store(objects.len() as u64, Ordering::Relaxed);
    STATE.store(counts.as_word(), Ordering::Relaxed);
    SEQUENCE.store(sequence + 2, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_finds_what_the_loader_finds() {
        loader::prepare();
        let mut inside = Vec::new();
        loader::visit(|object| {
            inside.extend([object.start, object.end - 1]);
            Visit::Next
        });
        assert!(inside.len() > 4);
        for address in inside.into_iter().chain([0, 4096, u64::MAX]) {
            let place = |object: Object| (object.start, object.end, object.bias);
            let both = loader::hold(|counts| (holding(address, counts), Object::listed(address)));
            let (found, listed) = both.expect("the loader lists the program");
            let found = found.expect("nobody else copies while the loader is held");
            assert_eq!(found.map(place), listed.map(place), "{address:x}");
        }
    }

    #[test]
    fn a_copy_of_another_loader_state_is_not_believed() {
        loader::hold(refresh);
        assert_eq!(look_up(4096, Counts::new(u32::MAX, 1)).err(), Some(Unsure));
    }
}

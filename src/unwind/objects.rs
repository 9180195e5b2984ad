//! A copy of the list of loaded objects, sorted by address, for glibc before 2.35, which has no `_dl_find_object`.
//!
//! Without this copy, every address without a rule would make the loader walk its whole list under its lock, which takes 2
//! us. So after each load or unload the list is copied and sorted, and addresses are looked up in the copy.
//!
//! No thread waits. One thread at a time copies the list; any other thread that needs the copy meanwhile asks the loader. A
//! reader checks a sequence number before and after it reads (a seqlock): the number is odd while the copy is being
//! written, and different after the copy has changed. All memory is static, so nothing is allocated, and no old copy must
//! be kept for a reader that may still use it.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use super::counts::Counts;
use super::loader::{self, Object, Visit};

/// Maximum number of objects. In a process with more objects, the loader is asked for every address without a rule.
const MOST: usize = 1024;
/// Number of words per object in the sorted copy.
const WORDS: usize = 6;

/// A list that any thread may read, and that only one thread at a time writes.
struct Copied {
    /// The objects as words, sorted by start address.
    objects: [[AtomicU64; WORDS]; MOST],
    /// Number of objects, and the loader state in which the objects were listed.
    count: AtomicU64,
    state: AtomicU64,
    /// Sequence number, which is odd while the fields above are being written.
    sequence: AtomicU64,
}

static COPY: Copied = Copied::new();

/// Buffer for sorting the list before the list is copied. It is owned by the thread that set `WRITING`.
static ROOM: Room = Room(UnsafeCell::new([Object::NONE; MOST]));
static WRITING: AtomicBool = AtomicBool::new(false);

struct Room(UnsafeCell<[Object; MOST]>);

// SAFETY: only `refresh` accesses the buffer, while its thread owns `WRITING`.
unsafe impl Sync for Room {}

/// The copy cannot answer, so the caller must ask the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unsure;

/// Returns the object that contains `address` in the loader's present state. Call while the loader's lock is held. Safe
/// inside a callback.
pub(super) fn holding(address: u64, counts: Counts) -> Result<Option<Object>, Unsure> {
    match COPY.look_up(address, counts) {
        Err(Unsure) => {
            refresh(counts);
            COPY.look_up(address, counts)
        }
        found => found,
    }
}

/// Copies the loader's list in its present state, unless another thread is already copying the list.
#[cold]
fn refresh(counts: Counts) {
    if WRITING.swap(true, Ordering::Acquire) {
        return;
    }
    // SAFETY: this thread has just set `WRITING`, so no other reference to the room exists.
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
        COPY.publish(objects, counts);
    }
    WRITING.store(false, Ordering::Release);
}

impl Copied {
    const fn new() -> Self {
        Self {
            objects: [const { [const { AtomicU64::new(0) }; WORDS] }; MOST],
            count: AtomicU64::new(0),
            state: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
        }
    }

    fn look_up(&self, address: u64, counts: Counts) -> Result<Option<Object>, Unsure> {
        let before = self.sequence.load(Ordering::Acquire);
        let is_current = before.is_multiple_of(2) && self.state.load(Ordering::Relaxed) == counts.as_word();
        let count = self.count.load(Ordering::Relaxed) as usize;
        if !is_current || count == 0 {
            return Err(Unsure);
        }
        let copy = self.objects.get(..count).ok_or(Unsure)?;
        let after = copy.partition_point(|words| words[0].load(Ordering::Relaxed) <= address);
        let last =
            after.checked_sub(1).map(|at| copy[at].each_ref().map(|word| word.load(Ordering::Relaxed)));
        // This fence orders the loads above before the load below: if the sequence number is unchanged, the loads above
        // read one version of the list.
        fence(Ordering::Acquire);
        if self.sequence.load(Ordering::Relaxed) != before {
            return Err(Unsure);
        }
        Ok(last.map(Object::from_words).filter(|object| object.contains(address)))
    }

    /// Publishes a sorted list as the new copy. Call from one thread at a time.
    fn publish(&self, objects: &[Object], counts: Counts) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        // Because of this fence, a reader that sees a word stored below also sees the odd number, or a later one.
        fence(Ordering::Release);
        for (place, object) in self.objects.iter().zip(objects) {
            for (place, word) in place.iter().zip(object.to_words()) {
                place.store(word, Ordering::Relaxed);
            }
        }
        self.count.store(objects.len() as u64, Ordering::Relaxed);
        self.state.store(counts.as_word(), Ordering::Relaxed);
        self.sequence.store(sequence + 2, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_list_copy_agrees_with_the_loader() {
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
            let found = found.expect("no other thread copies while the loader's lock is held");
            assert_eq!(found.map(place), listed.map(place), "{address:x}");
        }
    }

    #[test]
    fn an_object_list_copy_of_another_loader_state_is_not_trusted() {
        loader::hold(refresh);
        assert_eq!(COPY.look_up(4096, Counts::new(u32::MAX, 1)).err(), Some(Unsure));
    }

    /// Writes one list after another; each word contains the number of the list that it belongs to.
    #[test]
    fn an_object_list_copy_read_during_a_write_is_not_trusted() {
        const OBJECTS: u64 = 40;
        let (copy, state, enough) = (Copied::new(), AtomicU64::new(0), AtomicBool::new(false));
        let start = |at: u64, list: u64| (at + 1) << 32 | list;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for list in 1.. {
                    let object = |at| [start(at, list), (at + 2) << 32, list, list, list, list];
                    let objects: Vec<_> = (0..OBJECTS).map(|at| Object::from_words(object(at))).collect();
                    copy.publish(&objects, Counts::new(7, list as u32));
                    state.store(list, Ordering::Release);
                    if enough.load(Ordering::Relaxed) || list == u64::from(u32::MAX) {
                        return;
                    }
                }
            });
            let (mut found, mut torn) = (0, None);
            while found < 200_000 && torn.is_none() {
                let list = state.load(Ordering::Acquire);
                let at = found % OBJECTS;
                let answer = copy.look_up((at + 2) << 32 | 0xffff_ffff, Counts::new(7, list as u32));
                let Ok(answer) = answer else { continue };
                found += 1;
                // Each object ends where the next object begins, except for the last object.
                let expected = (at + 1 < OBJECTS).then(|| start(at + 1, list));
                let words = answer.map(Object::to_words);
                let is_whole = |words: [u64; WORDS]| Some(words[0]) == expected && words[2..] == [list; 4];
                torn = (!words.map_or(expected.is_none(), is_whole)).then_some((list, at, words));
            }
            enough.store(true, Ordering::Relaxed);
            assert_eq!(torn, None);
        });
    }
}

//! A copy of the loader's list of objects, sorted by address. The copy is used only with glibc before 2.35, which has
//! no `_dl_find_object`.
//!
//! Without this copy, each look-up of an address without an unwind rule would walk the loader's whole list under the
//! loader's lock, which takes 2 us. Therefore the list is copied and sorted after each load or unload, and addresses
//! are looked up in the copy.
//!
//! No thread waits for another thread. One thread at a time copies the list. Any other thread that needs the copy while
//! it is being written asks the loader instead. A reader checks a sequence number before and after it reads the copy (a
//! seqlock). The sequence number is odd while the copy is being written, and changes with each write. All memory is
//! static, so nothing is allocated or freed.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use super::loader::{self, Object, Visit};
use super::loader_state::LoaderState;

/// Maximum number of objects in the copy. In a process with more objects than this, every look-up of an address without
/// an unwind rule asks the loader.
const MAX_OBJECTS: usize = 1024;
/// Number of words per object in the sorted copy.
const WORDS_PER_OBJECT: usize = 6;

/// A list of objects that any thread may read, and that only one thread at a time writes.
struct ObjectList {
    /// The objects as words, sorted by start address.
    objects: [[AtomicU64; WORDS_PER_OBJECT]; MAX_OBJECTS],
    /// Number of objects, and the loader state in which the objects were listed.
    count: AtomicU64,
    state: AtomicU64,
    /// Sequence number, which is odd while the other fields are being written.
    sequence: AtomicU64,
}

static LIST: ObjectList = ObjectList::new();

/// Buffer in which the loader's list is sorted before it is published as the new copy. The thread that set `IS_WRITING`
/// owns the buffer.
static SORT_BUFFER: SortBuffer = SortBuffer(UnsafeCell::new([Object::NONE; MAX_OBJECTS]));
static IS_WRITING: AtomicBool = AtomicBool::new(false);

struct SortBuffer(UnsafeCell<[Object; MAX_OBJECTS]>);

// SAFETY: only `refresh` accesses the buffer, and only while its thread owns `IS_WRITING`.
unsafe impl Sync for SortBuffer {}

/// Error: the copy of the list cannot be used now, so the caller must ask the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MustAskLoader;

/// Returns the object that contains `address` in the loader's present state. Call this function while the loader's
/// lock is held. Safe inside a callback.
pub(super) fn find_object(address: u64, state: LoaderState) -> Result<Option<Object>, MustAskLoader> {
    match LIST.look_up(address, state) {
        Err(MustAskLoader) => {
            refresh(state);
            LIST.look_up(address, state)
        }
        found => found,
    }
}

/// Copies the loader's list of objects, unless another thread is already copying it. `state` is the loader's present
/// state.
#[cold]
fn refresh(state: LoaderState) {
    if IS_WRITING.swap(true, Ordering::Acquire) {
        return;
    }
    // SAFETY: this thread has just set `IS_WRITING`, so no other reference to the buffer exists.
    let buffer = unsafe { &mut *SORT_BUFFER.0.get() };
    let mut count = 0;
    loader::visit(|object| {
        if let Some(slot) = buffer.get_mut(count) {
            *slot = *object;
        }
        count += 1;
        Visit::Next
    });
    if let Some(objects) = buffer.get_mut(..count) {
        objects.sort_unstable_by_key(|object| object.start);
        LIST.publish(objects, state);
    }
    IS_WRITING.store(false, Ordering::Release);
}

impl ObjectList {
    const fn new() -> Self {
        Self {
            objects: [const { [const { AtomicU64::new(0) }; WORDS_PER_OBJECT] }; MAX_OBJECTS],
            count: AtomicU64::new(0),
            state: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
        }
    }

    fn look_up(&self, address: u64, state: LoaderState) -> Result<Option<Object>, MustAskLoader> {
        let before = self.sequence.load(Ordering::Acquire);
        let is_current = before.is_multiple_of(2) && self.state.load(Ordering::Relaxed) == state.as_word();
        let count = self.count.load(Ordering::Relaxed) as usize;
        if !is_current || count == 0 {
            return Err(MustAskLoader);
        }
        let copy = self.objects.get(..count).ok_or(MustAskLoader)?;
        let after = copy.partition_point(|words| words[0].load(Ordering::Relaxed) <= address);
        let last =
            after.checked_sub(1).map(|at| copy[at].each_ref().map(|word| word.load(Ordering::Relaxed)));
        // This fence orders the loads of the list before the second load of the sequence number. Therefore, if the
        // sequence number is unchanged, all loads of the list have read the same version of the list.
        fence(Ordering::Acquire);
        if self.sequence.load(Ordering::Relaxed) != before {
            return Err(MustAskLoader);
        }
        Ok(last.map(Object::from_words).filter(|object| object.contains(address)))
    }

    /// Publishes a sorted list as the new copy. Call this function from one thread at a time.
    fn publish(&self, objects: &[Object], state: LoaderState) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        // Because of this fence, a reader that sees a word of the new list also sees the odd sequence number, or a
        // later sequence number.
        fence(Ordering::Release);
        for (slots, object) in self.objects.iter().zip(objects) {
            for (slot, word) in slots.iter().zip(object.to_words()) {
                slot.store(word, Ordering::Relaxed);
            }
        }
        self.count.store(objects.len() as u64, Ordering::Relaxed);
        self.state.store(state.as_word(), Ordering::Relaxed);
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
            let both = loader::with_lock(|state| (find_object(address, state), Object::find_listed(address)));
            let (found, listed) = both.expect("the loader lists the program");
            let found =
                found.expect("no other thread can copy the object list while the loader's lock is held");
            assert_eq!(found.map(place), listed.map(place), "{address:x}");
        }
    }

    #[test]
    fn an_object_list_copy_of_another_loader_state_is_not_trusted() {
        loader::with_lock(refresh);
        assert_eq!(LIST.look_up(4096, LoaderState::new(u32::MAX, 1)).err(), Some(MustAskLoader));
    }

    /// Publishes many different lists while another thread looks objects up. Each word contains the index of the
    /// word's list, so that the test notices a mixture of words from different lists.
    #[test]
    fn an_object_list_copy_read_during_a_write_is_not_trusted() {
        const OBJECTS: u64 = 40;
        let (copy, state, enough) = (ObjectList::new(), AtomicU64::new(0), AtomicBool::new(false));
        let start = |at: u64, list: u64| (at + 1) << 32 | list;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for list in 1.. {
                    let object = |at| [start(at, list), (at + 2) << 32, list, list, list, list];
                    let objects: Vec<_> = (0..OBJECTS).map(|at| Object::from_words(object(at))).collect();
                    copy.publish(&objects, LoaderState::new(7, list as u32));
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
                let answer = copy.look_up((at + 2) << 32 | 0xffff_ffff, LoaderState::new(7, list as u32));
                let Ok(answer) = answer else { continue };
                found += 1;
                // Each object ends where the next object begins, except for the last object.
                let expected = (at + 1 < OBJECTS).then(|| start(at + 1, list));
                let words = answer.map(Object::to_words);
                let is_whole =
                    |words: [u64; WORDS_PER_OBJECT]| Some(words[0]) == expected && words[2..] == [list; 4];
                torn = (!words.map_or(expected.is_none(), is_whole)).then_some((list, at, words));
            }
            enough.store(true, Ordering::Relaxed);
            assert_eq!(torn, None);
        });
    }
}

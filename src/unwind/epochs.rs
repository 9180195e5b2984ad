//! Keeps a permanent list of objects (libraries and the program) with their address ranges. The list contains every
//! object in which a capture has found a frame, and every object that the module map has listed.
//!
//! When objects are loaded and unloaded, one address may belong to many objects, one after another. Often the same few
//! objects are loaded alternately at one address. Therefore each object at each address range has a number, its
//! *epoch*, and a frame contains the epoch of its object. Two objects whose address ranges overlap have different
//! epochs. Therefore address and epoch together identify the object of a frame, even if the frame is resolved much
//! later. Two captures of the same stack are equal even if other objects were loaded or unloaded between the captures.
//! An object that is loaded again at the same address gets its old epoch. (An object is identified by its address
//! range, path and build id. Function names depend only on these three values. Therefore two loads with the same range,
//! path and build id have the same function names.)
//!
//! Objects are added to the list from inside callbacks, while the loader's lock is held. Therefore only one thread at a
//! time adds objects. If a signal handler interrupts the thread that is adding an object, a capture in this handler
//! cannot add an object and gets no epoch. Entries are never changed or removed, so readers need no lock. An object
//! that does not fit into the list gets the epoch for "unknown module", because a missing function name is better than
//! a wrong name.

use std::cell::UnsafeCell;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::loader::Object;
use super::loader_state::LoaderState;
use super::memory;
use gpuflame_model::record::ModuleEpoch;

/// Size in bytes of one memory mapping for entries, and maximum number of mappings. All mappings together take at most
/// 4 MiB, which is enough for about 20,000 objects.
const CHUNK_BYTES: usize = 64 << 10;
const MAX_CHUNKS: usize = 64;
/// Maximum length of a path in bytes: the longest path that Linux can open.
const MAX_PATH_BYTES: usize = 4096;
/// Maximum length of a build id in bytes. GNU build ids are 20 bytes long.
const MAX_BUILD_ID_BYTES: usize = 64;

/// A loaded object at one address range. The object's path and build id follow this struct in memory.
#[repr(C)]
pub(super) struct EpochEntry {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) bias: u64,
    pub(super) epoch: ModuleEpoch,
    path_length: u16,
    build_id_length: u16,
    /// The latest loader state in which the object was found at this address.
    state: AtomicU64,
    /// The entry that was inserted after this entry.
    next: AtomicPtr<EpochEntry>,
    /// The entry that was inserted before this entry into the same hash bucket.
    previous: *const EpochEntry,
}

// SAFETY: all fields that are not atomic are written before the entry is published, and never change afterwards.
unsafe impl Sync for EpochEntry {}

static FIRST: AtomicPtr<EpochEntry> = AtomicPtr::new(null_mut());
/// Head of each hash bucket's chain: the bucket's newest entry. The bucket is selected by the object's start address.
static BUCKETS: [AtomicPtr<EpochEntry>; 1024] = [const { AtomicPtr::new(null_mut()) }; 1024];

/// Free memory for the next entries. The thread that set `IS_ADDING` owns this memory.
static ARENA: ArenaCell =
    ArenaCell(UnsafeCell::new(Arena { at: null_mut(), left: 0, chunks: 0, last: null() }));
static IS_ADDING: AtomicBool = AtomicBool::new(false);

struct ArenaCell(UnsafeCell<Arena>);

// SAFETY: only `epoch_of` accesses the arena, and only while its thread owns `IS_ADDING`.
unsafe impl Sync for ArenaCell {}

struct Arena {
    at: *mut u8,
    left: usize,
    chunks: usize,
    last: *const EpochEntry,
}

/// Returns the epoch of `object`, which is loaded in the loader's present state. Call this function while the loader's
/// lock is held. Returns `None` in a signal handler that has interrupted this thread while the thread was adding an
/// object.
pub(super) fn epoch_of(object: &Object, state: LoaderState) -> Option<ModuleEpoch> {
    let bucket = &BUCKETS[(object.start.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize];
    let was_found = |entry: &&EpochEntry| {
        entry.start == object.start && entry.state.load(Ordering::Relaxed) == state.as_word()
    };
    if let Some(entry) = in_bucket(bucket).find(was_found) {
        return Some(entry.epoch);
    }
    let (path, build_id) = (object.name().to_bytes(), object.build_id());
    if let Some(entry) = in_bucket(bucket).find(|entry| entry.matches(object, path, build_id)) {
        entry.state.store(state.as_word(), Ordering::Relaxed);
        return Some(entry.epoch);
    }
    if IS_ADDING.swap(true, Ordering::Acquire) {
        return None;
    }
    // SAFETY: this thread has just set `IS_ADDING`, so no other reference to the arena exists.
    let arena = unsafe { &mut *ARENA.0.get() };
    let added = arena.add(object, path, build_id, state, bucket);
    IS_ADDING.store(false, Ordering::Release);
    Some(added.map_or(ModuleEpoch::UNKNOWN, |entry| entry.epoch))
}

fn in_bucket(bucket: &AtomicPtr<EpochEntry>) -> impl Iterator<Item = &'static EpochEntry> {
    // SAFETY: linked entries are fully written, and are never unmapped.
    let follow = |entry: *const EpochEntry| unsafe { entry.as_ref() };
    std::iter::successors(follow(bucket.load(Ordering::Acquire)), move |entry| follow(entry.previous))
}

/// Returns the entries that were added to the list after `last`, oldest first. Returns all entries if
/// `last` is `None`.
pub(super) fn entries_after(last: Option<&'static EpochEntry>) -> impl Iterator<Item = &'static EpochEntry> {
    let next = last.map_or(&FIRST, |last| &last.next);
    // SAFETY: linked entries are fully written, and are never unmapped.
    let follow = |next: &AtomicPtr<EpochEntry>| unsafe { next.load(Ordering::Acquire).as_ref() };
    std::iter::successors(follow(next), move |entry: &&'static EpochEntry| follow(&entry.next))
}

impl Arena {
    /// Adds an object to the list. Returns `None` if no memory or no epoch is left for the object.
    fn add(
        &mut self,
        object: &Object,
        path: &[u8],
        build_id: &[u8],
        state: LoaderState,
        bucket: &AtomicPtr<EpochEntry>,
    ) -> Option<&'static EpochEntry> {
        if path.len() > MAX_PATH_BYTES || build_id.len() > MAX_BUILD_ID_BYTES {
            return None;
        }
        let overlapping =
            entries_after(None).filter(|entry| entry.start < object.end && object.start < entry.end);
        let epoch = overlapping.map(|entry| entry.epoch.0 + 1).max().unwrap_or_default();
        if epoch > ModuleEpoch::LAST.0 {
            return None;
        }
        let slot = self.allocate(size_of::<EpochEntry>() + path.len() + build_id.len())?.cast::<EpochEntry>();
        let entry = EpochEntry {
            start: object.start,
            end: object.end,
            bias: object.bias,
            epoch: ModuleEpoch(epoch),
            path_length: path.len() as u16,
            build_id_length: build_id.len() as u16,
            state: AtomicU64::new(state.as_word()),
            next: AtomicPtr::new(null_mut()),
            previous: bucket.load(Ordering::Relaxed),
        };
        // SAFETY: `allocate` returned enough bytes, which are aligned for this type and not yet shared with any thread.
        unsafe {
            slot.write(entry);
            let text = slot.add(1).cast::<u8>();
            text.copy_from_nonoverlapping(path.as_ptr(), path.len());
            text.add(path.len()).copy_from_nonoverlapping(build_id.as_ptr(), build_id.len());
        }
        // SAFETY: the newest entry is never unmapped.
        let last = unsafe { self.last.as_ref() }.map_or(&FIRST, |last| &last.next);
        last.store(slot, Ordering::Release);
        bucket.store(slot, Ordering::Release);
        self.last = slot;
        // SAFETY: the entry was just written, and is never unmapped.
        Some(unsafe { &*slot })
    }

    /// Allocates `bytes` bytes, aligned to 8.
    fn allocate(&mut self, bytes: usize) -> Option<*mut u8> {
        let bytes = bytes.next_multiple_of(8);
        if bytes > self.left {
            if self.chunks == MAX_CHUNKS {
                return None;
            }
            (self.at, self.left) = (memory::map(CHUNK_BYTES)?.as_ptr(), CHUNK_BYTES);
            self.chunks += 1;
        }
        let slot = self.at;
        self.at = slot.wrapping_add(bytes);
        self.left -= bytes;
        Some(slot)
    }
}

impl EpochEntry {
    fn matches(&self, object: &Object, path: &[u8], build_id: &[u8]) -> bool {
        (self.start, self.end, self.bias) == (object.start, object.end, object.bias)
            && self.path() == path
            && self.build_id() == build_id
    }

    pub(super) fn path(&self) -> &[u8] {
        self.text(0, self.path_length)
    }

    pub(super) fn build_id(&self) -> &[u8] {
        self.text(usize::from(self.path_length), self.build_id_length)
    }

    fn text(&self, from: usize, length: u16) -> &[u8] {
        let text = std::ptr::from_ref(self).wrapping_add(1).cast::<u8>().wrapping_add(from);
        // SAFETY: `add` wrote the path and the build id after this entry, and these bytes never change.
        unsafe { std::slice::from_raw_parts(text, usize::from(length)) }
    }
}

impl std::fmt::Debug for EpochEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}..{:x} in epoch {}", self.start, self.end, self.epoch.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::loader::Visit;
    use super::super::{loader, object_lookup};
    use super::*;

    #[test]
    fn an_object_has_one_epoch_in_every_state_of_the_loader() {
        object_lookup::prepare();
        let here = an_object_has_one_epoch_in_every_state_of_the_loader as fn() as usize as u64;
        let epoch = |state| {
            object_lookup::with_object_at(here, |object, _| epoch_of(object, state)).and_then(|seen| seen.1)
        };
        let first = epoch(LoaderState::new(1, 1)).expect("no other thread enters");
        assert!(first.is_some_and(|epoch| epoch <= ModuleEpoch::LAST));
        assert_eq!(epoch(LoaderState::new(1, 1)), Some(first));
        assert_eq!(epoch(LoaderState::new(7, 5)), Some(first));
    }

    #[test]
    fn overlapping_objects_have_different_epochs() {
        loader::with_lock(|state| {
            loader::visit(|object| {
                epoch_of(object, state);
                Visit::Next
            });
        });
        let all: Vec<_> = entries_after(None).collect();
        assert!(all.len() > 3, "{all:?}");
        for (at, one) in all.iter().enumerate() {
            let is_across = |other: &&&EpochEntry| one.start < other.end && other.start < one.end;
            assert!(all[..at].iter().filter(is_across).all(|other| other.epoch != one.epoch), "{all:?}");
        }
        let last = entries_after(None).last();
        assert_eq!(entries_after(last).count(), 0);
    }

    #[test]
    fn objects_are_not_entered_without_free_space() {
        let mut arena = Arena { at: null_mut(), left: 0, chunks: MAX_CHUNKS, last: null() };
        assert!(arena.add(&Object::NONE, b"/lib/a.so", b"", LoaderState::default(), &BUCKETS[0]).is_none());
        arena.chunks = 0;
        let longest = [b'a'; MAX_PATH_BYTES + 1];
        assert!(arena.add(&Object::NONE, &longest, b"", LoaderState::default(), &BUCKETS[0]).is_none());
        assert_eq!(arena.chunks, 0);
    }
}

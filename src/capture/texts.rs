//! Process-wide texts that are identified by numbers: the names of ranges, and descriptions of functions.
//!
//! Any thread may ask for a number at any time: in a signal handler, inside the application's allocator, in a forked
//! child without its parent's other threads. So nothing here is locked or allocated, and no thread waits for another:
//! a text becomes visible to other threads once it is completely written. If a thread was stopped before that, the
//! next thread that needs the text writes it again, under another number.

use std::mem::size_of;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::unwind::memory;

use super::intern::Hash;

/// Maximum number of texts per kind: a program that puts a number into each text must not exhaust the memory.
pub(super) const MOST_TEXTS: usize = (1 << 16) + (1 << 10);

/// Texts of one kind, with a word for each: a megabyte, mapped when the first text is added, whose pages are used as
/// texts are added.
pub(super) struct Texts(AtomicPtr<Table>);

struct Table {
    /// Numbers of texts, each at the place that its hash selects, or after it; 0 = empty.
    places: [AtomicU32; PLACES],
    /// Entries by number; null: not written yet.
    entries: [AtomicPtr<Entry>; MOST_TEXTS + 1],
    /// Number of assigned numbers, and number of entries that are written.
    given: AtomicU32,
    written: AtomicU32,
    /// Piece that the next text is written to.
    piece: AtomicPtr<Piece>,
    /// State of the collector: number of texts that it has received, and the number up to which it has received all.
    told: AtomicU32,
    all_told: AtomicU32,
}

/// Half of the places stay empty.
const PLACES: usize = 1 << 17;
const _: () = assert!(PLACES.is_power_of_two() && PLACES * 10 > MOST_TEXTS * 19);

/// A text. Immutable once it is written, except for `is_told`.
struct Entry {
    hash: Hash,
    /// The caller's word.
    word: u32,
    /// Stored after the entry.
    text: NonNull<u8>,
    bytes: u32,
    is_told: AtomicBool,
}

/// Memory for texts.
#[repr(C)]
struct Piece {
    used: AtomicUsize,
}

const PIECE_BYTES: usize = 64 << 10;

impl Texts {
    pub(super) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// Returns the number of the text with this hash, or a new number if there are fewer than `most`. `None`: there
    /// are too many texts, or there is no memory.
    pub(super) fn number_of(&self, hash: Hash, word: u32, text: &[u8], most: usize) -> Option<u32> {
        let table = self.ready()?;
        table
            .find(hash)
            .or_else(|place| {
                let number = table.write(hash, word, text, most).ok_or(())?;
                Ok::<_, ()>(table.publish(place, hash, number))
            })
            .ok()
    }

    /// Returns the text of an assigned number.
    pub(super) fn text(&self, number: u32) -> Option<&'static [u8]> {
        Some(self.if_any()?.entry(number)?.text())
    }

    /// Passes on the new texts, by number, word and text, preceded once by number 0, which no text has. Call by one
    /// thread at a time.
    pub(super) fn tell(&self, each: impl FnMut(u32, u32, &'static [u8])) {
        if let Some(table) = self.if_any() {
            table.tell(each);
        }
    }

    fn if_any(&self) -> Option<&'static Table> {
        // SAFETY: null, or the table that `ready` has mapped permanently.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    fn ready(&self) -> Option<&'static Table> {
        self.if_any().or_else(|| {
            let memory = memory::map(size_of::<Table>())?;
            let new = memory.as_ptr().cast::<Table>();
            if self.0.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: mapped above, and no other thread has seen it.
                unsafe { memory::unmap(memory, size_of::<Table>()) };
            }
            self.if_any()
        })
    }

    /// Assigns a number as if its thread was stopped before it wrote the text, or does not exist in this process.
    #[cfg(test)]
    pub(super) fn give_one_that_is_never_written(&self) {
        self.ready().expect("memory for a table").given.fetch_add(1, Ordering::Relaxed);
    }
}

impl Table {
    /// Returns the number of a known text, or the empty place at which the search ended.
    fn find(&self, hash: Hash) -> Result<u32, usize> {
        self.find_from(hash.bits() % PLACES, hash)
    }

    fn find_from(&self, mut place: usize, hash: Hash) -> Result<u32, usize> {
        loop {
            let number = self.places[place].load(Ordering::Acquire);
            if number == 0 {
                return Err(place);
            }
            if self.entry(number).is_some_and(|entry| entry.hash == hash) {
                return Ok(number);
            }
            place = (place + 1) % PLACES;
        }
    }

    fn entry(&self, number: u32) -> Option<&'static Entry> {
        // SAFETY: null, or an entry that was written before its address was stored, and is never unmapped.
        unsafe { self.entries.get(number as usize)?.load(Ordering::Acquire).as_ref() }
    }

    /// Writes a text under a new number. `None`: there are too many texts, or there is no memory.
    fn write(&self, hash: Hash, word: u32, text: &[u8], most: usize) -> Option<u32> {
        if self.given.load(Ordering::Relaxed) >= most as u32 {
            return None;
        }
        let place = self.room(size_of::<Entry>() + text.len())?.cast::<Entry>();
        // SAFETY: the room is this thread's, aligned for an entry, and large enough for an entry and its text.
        unsafe {
            let copy = place.add(1).cast::<u8>();
            copy.copy_from_nonoverlapping(NonNull::from(text).cast(), text.len());
            place.write(Entry {
                hash,
                word,
                text: copy,
                bytes: text.len() as u32,
                is_told: AtomicBool::new(false),
            });
        }
        let next = |given: u32| (given < most as u32).then_some(given + 1);
        let number = self.given.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()? + 1;
        self.entries[number as usize].store(place.as_ptr(), Ordering::Release);
        self.written.fetch_add(1, Ordering::Release);
        Some(number)
    }

    /// Makes a text visible to all threads. Returns its number, which is another thread's if that thread was first.
    fn publish(&self, mut place: usize, hash: Hash, number: u32) -> u32 {
        while self.places[place].compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire).is_err() {
            match self.find_from(place, hash) {
                Ok(theirs) => return theirs,
                Err(empty) => place = empty,
            }
        }
        number
    }

    /// Allocates memory permanently.
    fn room(&self, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = bytes.next_multiple_of(align_of::<Entry>());
        loop {
            let current = self.piece.load(Ordering::Acquire);
            // SAFETY: null, or a piece, which is never unmapped once it is stored here.
            if let Some(piece) = unsafe { current.as_ref() } {
                let at = piece.used.fetch_add(bytes, Ordering::Relaxed);
                if at + bytes <= PIECE_BYTES {
                    // SAFETY: within the piece.
                    return NonNull::new(unsafe { current.cast::<u8>().add(at) });
                }
            }
            let memory = memory::map(PIECE_BYTES)?;
            let new = memory.cast::<Piece>();
            // SAFETY: mapped above, and no other thread refers to it.
            unsafe { new.write(Piece { used: AtomicUsize::new(size_of::<Piece>()) }) };
            let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
            if self.piece.compare_exchange(current, new.as_ptr(), order, otherwise).is_err() {
                // SAFETY: no other thread has seen it.
                unsafe { memory::unmap(memory, PIECE_BYTES) };
            }
        }
    }

    fn tell(&self, mut each: impl FnMut(u32, u32, &'static [u8])) {
        let (written, told) = (self.written.load(Ordering::Acquire), self.told.load(Ordering::Relaxed));
        if written == told {
            return;
        }
        if told == 0 {
            each(0, 0, b"");
        }
        let given = self.given.load(Ordering::Relaxed);
        let all_told = self.all_told.load(Ordering::Relaxed);
        let (mut count, mut first_missing) = (told, None);
        for number in all_told + 1..=given {
            let Some(entry) = self.entry(number) else {
                first_missing = first_missing.or(Some(number));
                continue;
            };
            if !entry.is_told.swap(true, Ordering::Relaxed) {
                count += 1;
                each(number, entry.word, entry.text());
            }
        }
        self.told.store(count, Ordering::Relaxed);
        self.all_told.store(first_missing.map_or(given, |number| number - 1), Ordering::Relaxed);
    }
}

impl Entry {
    fn text(&self) -> &'static [u8] {
        // SAFETY: `bytes` bytes were written there before the entry's address was stored, and they never change.
        unsafe { std::slice::from_raw_parts(self.text.as_ptr(), self.bytes as usize) }
    }
}

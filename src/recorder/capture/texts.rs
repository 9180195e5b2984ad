//! Process-wide texts that are identified by numbers: the names of ranges, and descriptions of functions.
//!
//! Any thread may ask for the number of a text at any time: in a signal handler, inside the application's allocator, or
//! in a forked child, in which the parent's other threads do not exist. So this code takes no lock and uses no
//! allocator, and no thread waits for another. A text becomes visible to other threads once it is completely written.
//! If a thread is stopped before its text is visible, the next thread that needs the text writes it again, under
//! another number.

use std::mem::size_of;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use gpuflame_unwind::memory;

use super::intern::Hash;

/// Maximum number of texts per kind, so that a program that puts a different number into each text does not exhaust the
/// memory.
pub(super) const MOST_TEXTS: usize = (1 << 16) + (1 << 10);

/// Table of the texts of one kind, which stores a word of the caller with each text. It takes a megabyte of address
/// space, which is mapped when the first text is added; its pages take memory only as texts are added.
pub(super) struct Texts(AtomicPtr<Table>);

struct Table {
    /// Numbers of texts. A number is at the place that the hash of its text selects, or after that place; 0 = the place
    /// is empty.
    places: [AtomicU32; PLACES],
    /// Entries of the texts, by number; null = the entry is not written yet.
    entries: [AtomicPtr<Entry>; MOST_TEXTS + 1],
    /// Count of the numbers that are assigned, and count of the entries that are completely written.
    given: AtomicU32,
    written: AtomicU32,
    /// Piece of memory to which the next text is written.
    piece: AtomicPtr<Piece>,
    /// State of the collector: count of the texts that it has received, and the highest number up to which it has
    /// received every text.
    told: AtomicU32,
    all_told: AtomicU32,
}

/// Number of places in the hash table; about half of the places stay empty.
const PLACES: usize = 1 << 17;
const _: () = assert!(PLACES.is_power_of_two() && PLACES * 10 > MOST_TEXTS * 19);

/// Entry of a text. No field changes after the entry is written, except `is_told`.
struct Entry {
    hash: Hash,
    /// Word that the caller has stored with the text.
    word: u32,
    /// Address of the text, which is stored after the entry.
    text: NonNull<u8>,
    bytes: u32,
    is_told: AtomicBool,
}

/// Header of a piece of memory to which texts are written.
#[repr(C)]
struct Piece {
    used: AtomicUsize,
}

const PIECE_BYTES: usize = 64 << 10;

impl Texts {
    pub(super) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// Returns the number of the text with this hash. If the text is new and there are fewer than `most` texts, assigns
    /// a new number. Returns `None` if there are too many texts or no memory.
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

    /// Passes each new text on, as its number, its word and the text. Before the very first text it passes number 0,
    /// which no text has. Only one thread may call this at a time.
    pub(super) fn tell(&self, each: impl FnMut(u32, u32, &'static [u8])) {
        if let Some(table) = self.if_any() {
            table.tell(each);
        }
    }

    fn if_any(&self) -> Option<&'static Table> {
        // SAFETY: the pointer is null, or points to the table that `ready` has mapped permanently.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    fn ready(&self) -> Option<&'static Table> {
        self.if_any().or_else(|| {
            let memory = memory::map(size_of::<Table>())?;
            let new = memory.as_ptr().cast::<Table>();
            if self.0.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: the memory was mapped above, and no other thread has seen its address.
                unsafe { memory::unmap(memory, size_of::<Table>()) };
            }
            self.if_any()
        })
    }

    /// Assigns a number without a text, as if the thread that asked for it was stopped before it wrote the text, or
    /// does not exist in this process.
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
        // SAFETY: the pointer is null, or points to an entry that was written before its address was stored, and that
        // is never unmapped.
        unsafe { self.entries.get(number as usize)?.load(Ordering::Acquire).as_ref() }
    }

    /// Writes a text under a new number. Returns `None` if there are too many texts or no memory.
    fn write(&self, hash: Hash, word: u32, text: &[u8], most: usize) -> Option<u32> {
        if self.given.load(Ordering::Relaxed) >= most as u32 {
            return None;
        }
        let place = self.room(size_of::<Entry>() + text.len())?.cast::<Entry>();
        // SAFETY: the memory at `place` belongs to this thread alone, is aligned for an entry, and is large enough for
        // an entry and its text.
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

    /// Makes a text visible to all threads. Returns the number of the text. If another thread has published the same
    /// text first, that thread's number is returned.
    fn publish(&self, mut place: usize, hash: Hash, number: u32) -> u32 {
        while self.places[place].compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire).is_err() {
            match self.find_from(place, hash) {
                Ok(theirs) => return theirs,
                Err(empty) => place = empty,
            }
        }
        number
    }

    /// Allocates memory for a text, permanently.
    fn room(&self, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = bytes.next_multiple_of(align_of::<Entry>());
        loop {
            let current = self.piece.load(Ordering::Acquire);
            // SAFETY: the pointer is null, or points to a piece, which is never unmapped once its address is stored in
            // `self.piece`.
            if let Some(piece) = unsafe { current.as_ref() } {
                let at = piece.used.fetch_add(bytes, Ordering::Relaxed);
                if at + bytes <= PIECE_BYTES {
                    // SAFETY: the address is within the piece.
                    return NonNull::new(unsafe { current.cast::<u8>().add(at) });
                }
            }
            let memory = memory::map(PIECE_BYTES)?;
            let new = memory.cast::<Piece>();
            // SAFETY: the piece was mapped above, and no other thread refers to it.
            unsafe { new.write(Piece { used: AtomicUsize::new(size_of::<Piece>()) }) };
            let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
            if self.piece.compare_exchange(current, new.as_ptr(), order, otherwise).is_err() {
                // SAFETY: no other thread has seen the new piece.
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
        // SAFETY: the text's `bytes` bytes were written before the entry's address was stored, and they never change.
        unsafe { std::slice::from_raw_parts(self.text.as_ptr(), self.bytes as usize) }
    }
}

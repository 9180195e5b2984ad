//! Texts that all of the process know by one number each: the names of ranges, and what is said of functions.
//!
//! Any thread may ask for a number at any time: in a signal handler, inside the application's allocator, in a forked child
//! into which no other thread has followed. So nothing here is locked or allocated, and nobody waits for another
//! thread: a text is found by others once all of it is written, and one whose thread was stopped before that is
//! written again by whoever wants it next, under another number.

use std::mem::size_of;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::unwind::memory;

use super::intern::Hash;

/// Texts there may be of a kind in all: a program that puts a number into each must not fill the memory.
pub(super) const MOST_TEXTS: usize = (1 << 16) + (1 << 10);

/// Texts of one kind, with a word beside each: a megabyte, mapped when the first is asked for, of which use is made as
/// they come.
pub(super) struct Texts(AtomicPtr<Table>);

struct Table {
    /// Numbers of texts, each at the place that its hash says, or behind; 0 = empty.
    places: [AtomicU32; PLACES],
    /// By number; null: not written yet.
    entries: [AtomicPtr<Entry>; MOST_TEXTS + 1],
    /// Numbers that are given, and how many of them are written.
    given: AtomicU32,
    written: AtomicU32,
    /// Where the next text goes.
    piece: AtomicPtr<Piece>,
    /// The collector's: how many texts it was told of, and up to which number all.
    told: AtomicU32,
    all_told: AtomicU32,
}

/// Half of them stay empty.
const PLACES: usize = 1 << 17;
const _: () = assert!(PLACES.is_power_of_two() && PLACES * 10 > MOST_TEXTS * 19);

/// A text. Nothing of it changes once it is written, but whether it was told.
struct Entry {
    hash: Hash,
    /// What the caller keeps with it.
    word: u32,
    /// It lies behind the entry.
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

    /// The number of the text with this hash: a new one if there are fewer than `most`. `None`: there are too many, or
    /// there is no memory.
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

    /// The text of a number that was given.
    pub(super) fn text(&self, number: u32) -> Option<&'static [u8]> {
        Some(self.if_any()?.entry(number)?.text())
    }

    /// Tells of those that are new, by number, word and text, and before the first of number 0, which no text has. By
    /// one thread at a time.
    pub(super) fn tell(&self, each: impl FnMut(u32, u32, &'static [u8])) {
        if let Some(table) = self.if_any() {
            table.tell(each);
        }
    }

    fn if_any(&self) -> Option<&'static Table> {
        // SAFETY: null, or what `ready` has mapped for good.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    fn ready(&self) -> Option<&'static Table> {
        self.if_any().or_else(|| {
            let memory = memory::map(size_of::<Table>())?;
            let new = memory.as_ptr().cast::<Table>();
            if self.0.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: mapped above, and nobody has seen it.
                unsafe { memory::unmap(memory, size_of::<Table>()) };
            }
            self.if_any()
        })
    }

    /// A number whose thread was stopped before it wrote, or did not follow into this process.
    #[cfg(test)]
    pub(super) fn give_one_that_is_never_written(&self) {
        self.ready().expect("memory for a table").given.fetch_add(1, Ordering::Relaxed);
    }
}

impl Table {
    /// The number under which a text is known, or the empty place at which the search ended.
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
        // SAFETY: null, or an entry that was written before its address was, and is never unmapped.
        unsafe { self.entries.get(number as usize)?.load(Ordering::Acquire).as_ref() }
    }

    /// Writes a text down, under a new number. `None`: there are too many, or there is no memory.
    fn write(&self, hash: Hash, word: u32, text: &[u8], most: usize) -> Option<u32> {
        if self.given.load(Ordering::Relaxed) >= most as u32 {
            return None;
        }
        let place = self.room(size_of::<Entry>() + text.len())?.cast::<Entry>();
        // SAFETY: the room is this thread's: for an entry, aligned for it, and its text.
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

    /// Has a text found by all from now on: by this number, unless another thread was first.
    fn publish(&self, mut place: usize, hash: Hash, number: u32) -> u32 {
        while self.places[place].compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire).is_err() {
            match self.find_from(place, hash) {
                Ok(theirs) => return theirs,
                Err(empty) => place = empty,
            }
        }
        number
    }

    /// Memory that is the caller's for good.
    fn room(&self, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = bytes.next_multiple_of(align_of::<Entry>());
        loop {
            let current = self.piece.load(Ordering::Acquire);
            // SAFETY: null, or a piece, which is never unmapped once it is here.
            if let Some(piece) = unsafe { current.as_ref() } {
                let at = piece.used.fetch_add(bytes, Ordering::Relaxed);
                if at + bytes <= PIECE_BYTES {
                    // SAFETY: within the piece.
                    return NonNull::new(unsafe { current.cast::<u8>().add(at) });
                }
            }
            let memory = memory::map(PIECE_BYTES)?;
            let new = memory.cast::<Piece>();
            // SAFETY: mapped above, and nobody else knows of it.
            unsafe { new.write(Piece { used: AtomicUsize::new(size_of::<Piece>()) }) };
            let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
            if self.piece.compare_exchange(current, new.as_ptr(), order, otherwise).is_err() {
                // SAFETY: nobody has seen it.
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
        // SAFETY: so many bytes were written there before the entry's address was known, and they stay.
        unsafe { std::slice::from_raw_parts(self.text.as_ptr(), self.bytes as usize) }
    }
}

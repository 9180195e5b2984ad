//! Tables of texts, such as range names and descriptions of functions. Each text has an id, which is a number that is
//! unique in the process.
//!
//! Any thread may need the id of a text at any time, even in a signal handler, inside the application's allocator, or
//! in a forked child. Therefore this code takes no lock, uses no allocator, and never waits for another thread. A lock
//! must not be used, because in a forked child, the thread that held the lock at the fork does not exist. Other threads
//! see a text only after it is completely written. If a thread is stopped before it has published its text, the next
//! thread that needs the same text writes the text again, under another id.

use std::mem::size_of;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use gpuflame_unwind::memory;

use super::intern::Hash;

/// Maximum number of texts in a table. Without this limit, a program that uses each text only once (for example,
/// because its texts contain a counter) would use up all memory.
pub(crate) const MAX_TEXTS: usize = (1 << 16) + (1 << 10);

/// Table of all texts of one kind, such as range names. The caller can store one word of its own with each text. When
/// the first text is added, a table maps a megabyte of address space, but the pages of the table take memory only as
/// further texts are added.
pub(crate) struct TextTable(AtomicPtr<TextSlots>);

struct TextSlots {
    /// Hash table of the ids of texts, in which 0 marks an empty slot. The search for a text begins at a slot that
    /// depends on the text's hash.
    slots: [AtomicU32; SLOTS],
    /// Entries of the texts, indexed by the id of the text. An entry that is not written yet is null.
    entries: [AtomicPtr<TextEntry>; MAX_TEXTS + 1],
    /// Number of ids that were assigned to texts so far. `written` is the number of texts that are completely written.
    assigned: AtomicU32,
    written: AtomicU32,
    /// Chunk of memory into which the next text is written.
    chunk: AtomicPtr<TextChunk>,
    /// Number of texts that were passed to the collector. `received_up_to` is the highest id for which the collector
    /// has received the texts of this id and of all lower ids.
    received: AtomicU32,
    received_up_to: AtomicU32,
}

/// Number of slots in the hash table of texts. About half of these slots stay empty.
const SLOTS: usize = 1 << 17;
const _: () = assert!(SLOTS.is_power_of_two() && SLOTS * 10 > MAX_TEXTS * 19);

/// Entry of a text in the table. After an entry is written, only its field `is_received` changes.
struct TextEntry {
    hash: Hash,
    /// Word that the caller has stored with the text.
    word: u32,
    /// Address of the text's bytes, which directly follow the entry.
    text: NonNull<u8>,
    bytes: u32,
    is_received: AtomicBool,
}

/// Header of a memory chunk that holds texts.
#[repr(C)]
struct TextChunk {
    used: AtomicUsize,
}

const TEXT_CHUNK_BYTES: usize = 64 << 10;

impl TextTable {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// Returns the id of the text that has this hash. If the text is new and fewer than `max` ids are assigned, assigns
    /// an id to the text. Returns `None` if there are too many texts or no memory.
    pub(crate) fn number_of(&self, hash: Hash, word: u32, text: &[u8], max: usize) -> Option<u32> {
        let table = self.table()?;
        table
            .find(hash)
            .or_else(|slot| {
                let number = table.write(hash, word, text, max).ok_or(())?;
                Ok::<_, ()>(table.publish(slot, hash, number))
            })
            .ok()
    }

    /// Returns the text whose id is `number`.
    pub(super) fn text(&self, number: u32) -> Option<&'static [u8]> {
        Some(self.table_if_any()?.entry(number)?.text())
    }

    /// Passes the id, the word and the text of each new text to `each`. Before it passes the first text of the table,
    /// passes the id 0, which belongs to no text. Only one thread may call this function at a time.
    pub(crate) fn drain_new(&self, each: impl FnMut(u32, u32, &'static [u8])) {
        if let Some(table) = self.table_if_any() {
            table.drain_new(each);
        }
    }

    fn table_if_any(&self) -> Option<&'static TextSlots> {
        // SAFETY: the pointer is null, or points to the table that `table` has mapped permanently.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    fn table(&self) -> Option<&'static TextSlots> {
        self.table_if_any().or_else(|| {
            let memory = memory::map(size_of::<TextSlots>())?;
            let new = memory.as_ptr().cast::<TextSlots>();
            if self.0.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: the memory was mapped above, and no other thread knows its address.
                unsafe { memory::unmap(memory, size_of::<TextSlots>()) };
            }
            self.table_if_any()
        })
    }

    /// Assigns an id to a text without writing the text. If a thread is stopped or the process is forked before the
    /// thread has written the text, the id stays without a text.
    #[cfg(test)]
    pub(super) fn assign_number_without_text(&self) {
        self.table().expect("memory for a table").assigned.fetch_add(1, Ordering::Relaxed);
    }
}

impl TextSlots {
    /// Returns the id of the text that has this hash. If no text has this hash, returns the empty slot at which the
    /// search ended.
    fn find(&self, hash: Hash) -> Result<u32, usize> {
        self.find_from(hash.bits() % SLOTS, hash)
    }

    fn find_from(&self, mut slot: usize, hash: Hash) -> Result<u32, usize> {
        loop {
            let number = self.slots[slot].load(Ordering::Acquire);
            if number == 0 {
                return Err(slot);
            }
            if self.entry(number).is_some_and(|entry| entry.hash == hash) {
                return Ok(number);
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    fn entry(&self, number: u32) -> Option<&'static TextEntry> {
        // SAFETY: the pointer is null, or points to an entry that was written before its address was stored and that is
        // never unmapped.
        unsafe { self.entries.get(number as usize)?.load(Ordering::Acquire).as_ref() }
    }

    /// Writes a text under a new id. Until the text is published, other threads cannot find this id. Returns `None` if
    /// there are too many texts or no memory.
    fn write(&self, hash: Hash, word: u32, text: &[u8], max: usize) -> Option<u32> {
        if self.assigned.load(Ordering::Relaxed) >= max as u32 {
            return None;
        }
        let slot = self.allocate(size_of::<TextEntry>() + text.len())?.cast::<TextEntry>();
        // SAFETY: the memory at `slot` belongs to this thread alone, is aligned for an entry, and is large enough for
        // an entry and its text.
        unsafe {
            let copy = slot.add(1).cast::<u8>();
            copy.copy_from_nonoverlapping(NonNull::from(text).cast(), text.len());
            slot.write(TextEntry {
                hash,
                word,
                text: copy,
                bytes: text.len() as u32,
                is_received: AtomicBool::new(false),
            });
        }
        let next = |assigned: u32| (assigned < max as u32).then_some(assigned + 1);
        let number = self.assigned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()? + 1;
        self.entries[number as usize].store(slot.as_ptr(), Ordering::Release);
        self.written.fetch_add(1, Ordering::Release);
        Some(number)
    }

    /// Makes a text visible to all threads. Returns the id of the text. If another thread has published the same text
    /// earlier, returns the id that the other thread has assigned.
    fn publish(&self, mut slot: usize, hash: Hash, number: u32) -> u32 {
        while self.slots[slot].compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire).is_err() {
            match self.find_from(slot, hash) {
                Ok(theirs) => return theirs,
                Err(empty) => slot = empty,
            }
        }
        number
    }

    /// Allocates memory for a text and its entry. The memory is never freed.
    fn allocate(&self, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = bytes.next_multiple_of(align_of::<TextEntry>());
        loop {
            let current = self.chunk.load(Ordering::Acquire);
            // SAFETY: the pointer is null or points to a chunk. A chunk is never unmapped once its address is stored in
            // `self.chunk`.
            if let Some(chunk) = unsafe { current.as_ref() } {
                let at = chunk.used.fetch_add(bytes, Ordering::Relaxed);
                if at + bytes <= TEXT_CHUNK_BYTES {
                    // SAFETY: the address is within the chunk.
                    return NonNull::new(unsafe { current.cast::<u8>().add(at) });
                }
            }
            let memory = memory::map(TEXT_CHUNK_BYTES)?;
            let new = memory.cast::<TextChunk>();
            // SAFETY: the chunk was mapped above, and no other thread refers to it.
            unsafe { new.write(TextChunk { used: AtomicUsize::new(size_of::<TextChunk>()) }) };
            let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
            if self.chunk.compare_exchange(current, new.as_ptr(), order, otherwise).is_err() {
                // SAFETY: no other thread has seen the new chunk.
                unsafe { memory::unmap(memory, TEXT_CHUNK_BYTES) };
            }
        }
    }

    fn drain_new(&self, mut each: impl FnMut(u32, u32, &'static [u8])) {
        let (written, received) =
            (self.written.load(Ordering::Acquire), self.received.load(Ordering::Relaxed));
        if written == received {
            return;
        }
        if received == 0 {
            each(0, 0, b"");
        }
        let assigned = self.assigned.load(Ordering::Relaxed);
        let received_up_to = self.received_up_to.load(Ordering::Relaxed);
        let (mut count, mut first_missing) = (received, None);
        for number in received_up_to + 1..=assigned {
            let Some(entry) = self.entry(number) else {
                first_missing = first_missing.or(Some(number));
                continue;
            };
            if !entry.is_received.swap(true, Ordering::Relaxed) {
                count += 1;
                each(number, entry.word, entry.text());
            }
        }
        self.received.store(count, Ordering::Relaxed);
        self.received_up_to.store(first_missing.map_or(assigned, |number| number - 1), Ordering::Relaxed);
    }
}

impl TextEntry {
    fn text(&self) -> &'static [u8] {
        // SAFETY: the text's `bytes` bytes were written before the entry's address was stored, and never change.
        unsafe { std::slice::from_raw_parts(self.text.as_ptr(), self.bytes as usize) }
    }
}

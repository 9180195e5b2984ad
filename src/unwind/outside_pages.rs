//! Notes about code outside all loaded objects, which captures write for the module map. Code outside all objects was
//! generated at run time, or its file was mapped by hand.
//!
//! A capture writes a note if it reaches an address in code outside all objects and the rule table has no rule for the
//! address. Captures write one note per page and loader state. Captures run inside callbacks, so writing a note must
//! take no lock and allocate nothing. Therefore notes are written to a ring of fixed size, which the module map reads.
//! If the ring is full, the note is counted as lost. The next capture that reaches an address without a rule on the
//! same page tries again to write the note.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::loader_state::LoaderState;

/// Capacity of the ring, in notes.
const CAPACITY: usize = 1024;
/// Capacity of the table of noted pages (pages about which a note was written), in slots.
const MAX_NOTED_PAGES: usize = 1024;
pub(super) const PAGE: u64 = 4096;

/// A note: a capture has reached code on this page, which is outside all objects.
#[derive(Clone, Copy)]
pub(super) struct OutsideNote {
    pub(super) page: u64,
    /// The loader's state when the capture wrote the note.
    pub(super) state: LoaderState,
}

/// A slot of the ring. Positions of the ring increase without limit, so many positions use the same slot, one after
/// another. The slot's `turn` decides which thread may use the slot. The thread that writes a position may use the slot
/// if `turn` equals the position's write turn. The thread that reads the position may use the slot if `turn` is the
/// write turn plus 1.
struct RingSlot {
    turn: AtomicUsize,
    note: UnsafeCell<OutsideNote>,
}

// SAFETY: According to `turn`, either one writer or one reader may use the note at a time.
unsafe impl Sync for RingSlot {}

/// A ring of pending notes. `head` is the position of the oldest note, and `tail` is the position of the next note to
/// be written.
struct NoteRing {
    slots: [RingSlot; CAPACITY],
    head: AtomicUsize,
    tail: AtomicUsize,
}

static RING: NoteRing = NoteRing::new();
static LOST: AtomicU64 = AtomicU64::new(0);
static NOTED_PAGES: [AtomicU64; MAX_NOTED_PAGES] = [const { AtomicU64::new(0) }; MAX_NOTED_PAGES];

/// Writes a note that a stack contains `address`, which is outside all objects. Writes nothing if a note about the
/// address's page was already written in this loader state.
pub(super) fn note(address: u64, state: LoaderState) {
    let page = address & !(PAGE - 1);
    let mark = page | (u64::from(state.unloads()) << 48);
    let slot = &NOTED_PAGES[(mark.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize];
    if slot.load(Ordering::Relaxed) == mark {
        return;
    }
    match RING.push(OutsideNote { page, state }) {
        true => slot.store(mark, Ordering::Relaxed),
        false => drop(LOST.fetch_add(1, Ordering::Relaxed)),
    }
}

/// Passes every pending note to `read`. Only the thread that owns the module map may call this function.
pub(super) fn drain(read: impl FnMut(OutsideNote)) {
    RING.drain(read);
}

/// Whether notes are pending.
pub(super) fn are_pending() -> bool {
    RING.head.load(Ordering::Relaxed) != RING.tail.load(Ordering::Relaxed)
}

/// Number of notes lost so far because the ring was full.
pub(super) fn notes_lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Returns the value of a slot's `turn` at which `position` may be written.
fn write_turn(position: usize) -> usize {
    position / CAPACITY * 2
}

impl NoteRing {
    const fn new() -> Self {
        Self {
            slots: [const {
                let note = OutsideNote { page: 0, state: LoaderState::new(0, 0) };
                RingSlot { turn: AtomicUsize::new(0), note: UnsafeCell::new(note) }
            }; CAPACITY],
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
        }
    }

    /// Adds a note to the ring. Returns `false` if the ring is full.
    fn push(&self, note: OutsideNote) -> bool {
        let mut position = self.tail.load(Ordering::Relaxed);
        loop {
            let slot = &self.slots[position % CAPACITY];
            if slot.turn.load(Ordering::Acquire) != write_turn(position) {
                let now = self.tail.load(Ordering::Relaxed);
                if now == position {
                    return false;
                }
                position = now;
                continue;
            }
            let (order, otherwise) = (Ordering::Relaxed, Ordering::Relaxed);
            match self.tail.compare_exchange_weak(position, position + 1, order, otherwise) {
                Ok(_) => {
                    // SAFETY: the thread that wins the position is the only writer until the turn advances.
                    unsafe { slot.note.get().write(note) };
                    slot.turn.store(write_turn(position) + 1, Ordering::Release);
                    return true;
                }
                Err(now) => position = now,
            }
        }
    }

    /// Passes every pending note to `read`. Call this function from one thread at a time.
    fn drain(&self, mut read: impl FnMut(OutsideNote)) {
        loop {
            let position = self.head.load(Ordering::Relaxed);
            let slot = &self.slots[position % CAPACITY];
            if slot.turn.load(Ordering::Acquire) != write_turn(position) + 1 {
                return;
            }
            // SAFETY: the turn proves that the note is written. Only one thread reads, and no thread writes this slot
            // before the turn advances.
            read(unsafe { *slot.note.get() });
            self.head.store(position + 1, Ordering::Relaxed);
            slot.turn.store(write_turn(position) + 2, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_from_four_threads_are_read_once_and_excess_notes_are_refused() {
        const EACH: u32 = 200_000;
        let ring = NoteRing::new();
        let (mut read, mut last) = (0, [0; 4]);
        let mut look = || {
            ring.drain(|note| {
                let (thread, n) = (note.state.loads(), note.state.unloads());
                assert_eq!(note.page, u64::from(thread) << 32 | u64::from(n), "both halves are of one note");
                assert!(n > last[thread as usize], "a thread's notes arrive in order, each once");
                last[thread as usize] = n;
                read += 1;
            });
        };
        let note = |thread: u32, n: u32| {
            let page = u64::from(thread) << 32 | u64::from(n);
            ring.push(OutsideNote { page, state: LoaderState::new(thread, n) })
        };
        let write = |thread| (1..=EACH).map(|n| u64::from(note(thread, n))).sum::<u64>();
        let kept: u64 = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|thread| {
                    scope.spawn({
                        let write = &write;
                        move || write(thread)
                    })
                })
                .collect();
            while !writers.iter().all(|writer| writer.is_finished()) {
                look();
            }
            writers.into_iter().map(|writer| writer.join().unwrap()).sum()
        });
        look();
        assert_eq!(read, kept);
        let full = (0..CAPACITY as u32 + 5)
            .filter(|n| ring.push(OutsideNote { page: 0, state: LoaderState::new(0, *n) }));
        assert_eq!(full.count(), CAPACITY);
    }
}

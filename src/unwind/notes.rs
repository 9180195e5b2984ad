//! What captures tell the module map: which objects stacks have been seen in.
//!
//! An object can be loaded, launch, and be unloaded between two looks of the housekeeping thread. So the
//! first miss of the rule table in an object (in the present loader state) leaves a note, from inside the
//! callback: no lock, no allocation, a fixed ring. The map drains it. What does not fit is left for the
//! next miss in that object and counted.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::counts::{self, Counts};
use super::loader::Object;
use crate::record::ModuleEpoch;

/// Notes that may wait for the housekeeping thread.
const WAITING: usize = 128;
/// The longest path that is kept; longer ones lose their end.
const PATH: usize = 1000;
/// The longest build id that is kept. GNU's are 20 bytes.
const BUILD_ID: usize = 32;
/// Objects that are remembered as noted.
const NOTED: usize = 1024;

/// An object, or a lone address outside all objects, as a capture met it.
#[derive(Clone, Copy)]
pub(super) struct Note {
    pub(super) start: u64,
    /// 0: not an object; `start` is an address in code that the loader does not know.
    pub(super) end: u64,
    pub(super) bias: u64,
    pub(super) epoch: ModuleEpoch,
    build_id_length: u16,
    path_length: u16,
    build_id: [u8; BUILD_ID],
    path: [u8; PATH],
}

impl Note {
    const EMPTY: Self = Self {
        start: 0,
        end: 0,
        bias: 0,
        epoch: ModuleEpoch(0),
        build_id_length: 0,
        path_length: 0,
        build_id: [0; BUILD_ID],
        path: [0; PATH],
    };

    pub(super) fn build_id(&self) -> &[u8] {
        &self.build_id[..usize::from(self.build_id_length)]
    }

    pub(super) fn path(&self) -> &[u8] {
        &self.path[..usize::from(self.path_length)]
    }
}

/// A place of the ring. Its turn says whose it is: equal to a position, that position's writer's; one
/// more, that position's reader's.
struct Place {
    turn: AtomicUsize,
    note: UnsafeCell<Note>,
}

// SAFETY: `turn` hands the note to one writer or one reader at a time.
unsafe impl Sync for Place {}

static RING: [Place; WAITING] =
    [const { Place { turn: AtomicUsize::new(0), note: UnsafeCell::new(Note::EMPTY) } }; WAITING];
static HEAD: AtomicUsize = AtomicUsize::new(0);
static TAIL: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static SEEN: [AtomicU64; NOTED] = [const { AtomicU64::new(0) }; NOTED];

/// Notes that `object` is on a stack, unless that is noted already for this loader state.
pub(super) fn object(object: &Object, counts: Counts) {
    leave(object.start, counts, |note| {
        let build_id = object.build_id();
        let path = object.name().to_bytes();
        note.end = object.end;
        note.bias = object.bias;
        note.build_id_length = fill(&mut note.build_id, build_id);
        note.path_length = fill(&mut note.path, path);
    });
}

/// Notes that the stack holds `address`, which lies in no object: generated code.
pub(super) fn unknown(address: u64, counts: Counts) {
    // A page stands for all addresses in it.
    leave(address & !0xfff, counts, |note| *note = Note { start: address, ..Note::EMPTY });
}

fn fill(place: &mut [u8], bytes: &[u8]) -> u16 {
    let length = bytes.len().min(place.len());
    place[..length].copy_from_slice(&bytes[..length]);
    length as u16
}

fn leave(page: u64, counts: Counts, write: impl FnOnce(&mut Note)) {
    let mark = page | (u64::from(counts.unloads()) << 48);
    let place = &SEEN[(mark.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize];
    if place.load(Ordering::Relaxed) == mark {
        return;
    }
    let pushed = push(|note| {
        note.start = page;
        note.epoch = counts::epoch();
        write(note);
        note.epoch = counts::epoch();
    });
    match pushed {
        true => place.store(mark, Ordering::Relaxed),
        false => drop(LOST.fetch_add(1, Ordering::Relaxed)),
    }
}

/// The turn at which `position` may be written.
fn write_turn(position: usize) -> usize {
    position / WAITING * 2
}

fn push(write: impl FnOnce(&mut Note)) -> bool {
    let mut position = TAIL.load(Ordering::Relaxed);
    loop {
        let place = &RING[position % WAITING];
        if place.turn.load(Ordering::Acquire) != write_turn(position) {
            let now = TAIL.load(Ordering::Relaxed);
            if now == position {
                return false;
            }
            position = now;
            continue;
        }
        match TAIL.compare_exchange_weak(position, position + 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                // SAFETY: winning the position makes this the only writer until the turn moves on.
                write(unsafe { &mut *place.note.get() });
                place.turn.store(write_turn(position) + 1, Ordering::Release);
                return true;
            }
            Err(now) => position = now,
        }
    }
}

/// Hands every waiting note to `read`. For one thread at a time: the module map's.
pub(super) fn drain(mut read: impl FnMut(&Note)) {
    loop {
        let position = HEAD.load(Ordering::Relaxed);
        let place = &RING[position % WAITING];
        if place.turn.load(Ordering::Acquire) != write_turn(position) + 1 {
            return;
        }
        // SAFETY: the turn says that the note is written; there is one reader, and no writer before the
        // turn moves on.
        read(unsafe { &*place.note.get() });
        HEAD.store(position + 1, Ordering::Relaxed);
        place.turn.store(write_turn(position) + 2, Ordering::Release);
    }
}

/// Whether notes wait.
pub(super) fn are_waiting() -> bool {
    HEAD.load(Ordering::Relaxed) != TAIL.load(Ordering::Relaxed)
}

/// Notes that found the ring full so far.
pub(super) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

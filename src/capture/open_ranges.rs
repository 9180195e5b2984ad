//! The ranges that are open on a thread, in a table of its own, with a hash over each and those around it. So a
//! launch looks at one number where none is open, and adds one hash to that of its stack where some are.

use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::record::{Frame, RangeId};
use crate::unwind::memory;

use super::intern::Hash;
use super::range_names::{RangeDomain, RangeName, hash_bytes, hash_wide, intern};

/// Ranges that can be open on a thread at once; those opened inside are counted, and no frames.
const MOST_OPEN: usize = 128;
/// Names that a thread finds again without asking for them.
const REMEMBERED: usize = 128;
/// Ranges of one thread that others have ended and it has not noticed yet.
const MOST_ENDED: usize = 64;

/// Numbers of ranges that are ended by number go up to here: the part of a range's id that is its number.
pub(super) const SERIAL: u32 = (1 << SERIAL_BITS) - 1;
pub(super) const SERIAL_BITS: u32 = 27;

/// The open ranges of one thread.
pub(super) struct Ranges {
    /// Mapped at the thread's first range.
    table: Option<NonNull<Table>>,
    depth: usize,
    /// Pushed when the table was full.
    pub(super) beyond: usize,
    ends_seen: u32,
}

struct Table {
    open: [Open; MOST_OPEN],
    remembered: [Remembered; REMEMBERED],
    /// The frames of the open ranges, innermost first: filled when a context is written.
    frames: [u64; MOST_OPEN],
}

#[derive(Clone, Copy)]
pub(super) struct Open {
    /// Over this range and those around it.
    hash: Hash,
    frame: Frame,
    pub(super) domain: RangeDomain,
    /// 0 = pushed; else the number under which it will be ended.
    pub(super) serial: u32,
}

#[derive(Clone, Copy)]
struct Remembered {
    hash: Hash,
    /// 0 = empty.
    id: u32,
}

impl Ranges {
    pub(super) const NONE: Self = Self { table: None, depth: 0, beyond: 0, ends_seen: 0 };

    /// Whether none is open, which is all that most launches ask.
    #[inline]
    pub(super) fn are_none(&self) -> bool {
        self.depth == 0
    }

    /// What identifies the open ranges; `None` if there are none.
    pub(super) fn hash(&mut self, ended: &Ended) -> Option<Hash> {
        if self.are_none() {
            return None;
        }
        self.notice_ends(ended);
        let last = self.depth.checked_sub(1)?;
        Some(self.table()?.open[last].hash)
    }

    /// The frames of the open ranges, innermost first.
    pub(super) fn frames(&mut self) -> &[u64] {
        let depth = self.depth;
        if depth == 0 {
            return &[];
        }
        let Some(table) = self.table() else { return &[] };
        for (word, open) in table.frames[..depth].iter_mut().zip(table.open[..depth].iter().rev()) {
            *word = open.frame.0;
        }
        &table.frames[..depth]
    }

    /// Opens a range inside the others. `None`: no room.
    pub(super) fn open(&mut self, domain: RangeDomain, id: RangeId, serial: u32) -> Option<()> {
        let at = self.depth;
        if at == MOST_OPEN {
            return None;
        }
        let table = self.table()?;
        let around = at.checked_sub(1).map_or(Hash::ROOT, |last| table.open[last].hash);
        let frame = Frame::range(id);
        table.open[at] = Open { hash: around.then(frame.0), frame, domain, serial };
        self.depth = at + 1;
        Some(())
    }

    /// Closes the innermost open range that `which` names. False: there is none.
    pub(super) fn close(&mut self, which: impl Fn(&Open) -> bool) -> bool {
        let depth = self.depth;
        let Some(table) = self.table() else { return false };
        let Some(at) = table.open[..depth].iter().rposition(which) else { return false };
        // Those inside move down one.
        let mut around = at.checked_sub(1).map_or(Hash::ROOT, |last| table.open[last].hash);
        for inner in at + 1..depth {
            around = around.then(table.open[inner].frame.0);
            table.open[inner - 1] = Open { hash: around, ..table.open[inner] };
        }
        self.depth = depth - 1;
        true
    }

    /// How many of this domain are open that were pushed.
    pub(super) fn count(&mut self, domain: RangeDomain) -> usize {
        let depth = self.depth;
        if depth == 0 {
            return 0;
        }
        let Some(table) = self.table() else { return 0 };
        table.open[..depth].iter().filter(|open| open.domain == domain && open.serial == 0).count()
    }

    /// Closes what other threads have ended.
    pub(super) fn notice_ends(&mut self, ended: &Ended) {
        let ends = ended.count.load(Ordering::Acquire);
        if ends == self.ends_seen {
            return;
        }
        self.ends_seen = ends;
        for slot in &ended.serials {
            let serial = slot.swap(0, Ordering::AcqRel);
            if serial != 0 {
                self.close(|open| open.serial == serial);
            }
        }
    }

    /// The range that a name means, from memory or from the table of all.
    pub(super) fn named(&mut self, domain: RangeDomain, name: RangeName<'_>) -> Option<RangeId> {
        let hash = match name {
            RangeName::Known(id) => return Some(id),
            RangeName::Text(text) => hash_bytes(domain, text),
            RangeName::Wide(text) => hash_wide(domain, text),
        };
        let slot = &mut self.table()?.remembered[hash.bits() % REMEMBERED];
        if slot.id == 0 || slot.hash != hash {
            let id = intern(domain, name);
            *slot = Remembered { hash, id: id.0 };
        }
        Some(RangeId(slot.id))
    }

    fn table(&mut self) -> Option<&mut Table> {
        if self.table.is_none() {
            self.table = Some(memory::map(size_of::<Table>())?.cast());
        }
        // SAFETY: a mapping of that size, where zeroes are a valid table, which lives as long as `self`; and
        // nobody else knows it.
        self.table.map(|mut table| unsafe { table.as_mut() })
    }
}

impl Drop for Ranges {
    fn drop(&mut self) {
        if let Some(table) = self.table {
            // SAFETY: it came from `memory::map` and goes with its owner.
            unsafe { memory::unmap(table.cast(), size_of::<Table>()) };
        }
    }
}

/// Where other threads leave word that a thread's range has ended.
pub(super) struct Ended {
    serials: [AtomicU32; MOST_ENDED],
    count: AtomicU32,
    /// The last number that a range of this state was given. It outlives the thread: the next one that has the
    /// state must not meet a number again that somebody still holds. Its thread's alone.
    last_serial: AtomicU32,
}

impl Ended {
    pub(super) const fn new() -> Self {
        let serials = [const { AtomicU32::new(0) }; MOST_ENDED];
        Self { serials, count: AtomicU32::new(0), last_serial: AtomicU32::new(0) }
    }

    pub(super) fn next_serial(&self) -> u32 {
        let next = (self.last_serial.load(Ordering::Relaxed) + 1) & SERIAL;
        let next = next.max(1);
        self.last_serial.store(next, Ordering::Relaxed);
        next
    }

    /// False: there is no room; the range stays open.
    pub(super) fn leave(&self, serial: u32) -> bool {
        let left = self
            .serials
            .iter()
            .any(|slot| slot.compare_exchange(0, serial, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        self.count.fetch_add(u32::from(left), Ordering::AcqRel);
        left
    }
}

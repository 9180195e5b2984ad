//! The open ranges of a thread, in a table that only this thread uses. For each range, the table contains a hash over
//! that range and all ranges that enclose it. Therefore a launch without open ranges costs only one comparison. For a
//! launch inside ranges, only one other hash is combined with the hash of its stack.

use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use gpuflame_model::record::{Frame, RangeId};
use gpuflame_unwind::memory;

use crate::capture::ids::intern::Hash;
use crate::capture::ids::range_names::{RangeDomain, RangeName, hash_bytes, hash_wide, intern};

/// Maximum number of open ranges per thread that become frames. If more ranges than this are open, the excess ranges
/// are only counted.
const MAX_OPEN_RANGES: usize = 128;
/// Number of range names that each thread caches. Because of the cache, the thread rarely has to search the
/// process-wide table.
const CACHED_NAMES: usize = 128;
/// Maximum number of pending notes per thread about ended ranges. A note says that another thread has ended a range of
/// this thread. If there is such a note, this thread still has to close the range.
const MAX_PENDING_ENDS: usize = 64;

/// Maximum serial number of a range on a thread. The lower bits of a range's id contain its serial number.
pub(crate) const MAX_SERIAL: u32 = (1 << SERIAL_BITS) - 1;
pub(crate) const SERIAL_BITS: u32 = 27;

/// The open ranges of one thread.
pub(crate) struct OpenRanges {
    /// Table of the open ranges, which is mapped when the thread opens its first range.
    table: Option<NonNull<RangeTable>>,
    depth: usize,
    /// Number of open ranges that are not in the table, because the table was full when they were pushed.
    pub(crate) overflowed: usize,
    ends_seen: u32,
}

struct RangeTable {
    open: [OpenRange; MAX_OPEN_RANGES],
    cached_names: [CachedName; CACHED_NAMES],
    /// Frames of the open ranges, innermost first. The array is filled each time a new stack is recorded.
    frames: [u64; MAX_OPEN_RANGES],
}

#[derive(Clone, Copy)]
pub(crate) struct OpenRange {
    /// Hash over this range and the ranges that enclose it.
    hash: Hash,
    frame: Frame,
    pub(crate) domain: RangeDomain,
    /// Serial number by which the range is ended; 0 if the range was opened by a push and must be closed by a pop.
    pub(crate) serial: u32,
}

#[derive(Clone, Copy)]
struct CachedName {
    hash: Hash,
    /// Id of the range name; 0 if this cache entry is empty.
    id: u32,
}

impl OpenRanges {
    pub(super) const NONE: Self = Self { table: None, depth: 0, overflowed: 0, ends_seen: 0 };

    /// Whether no range is open. For most launches, this is the only check of ranges.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.depth == 0
    }

    /// Returns the hash that identifies the open ranges, or `None` if no range is open.
    pub(crate) fn hash(&mut self, ended: &PendingEnds) -> Option<Hash> {
        if self.is_empty() {
            return None;
        }
        self.apply_pending_ends(ended);
        let last = self.depth.checked_sub(1)?;
        Some(self.table()?.open[last].hash)
    }

    /// Returns the frames of the open ranges, innermost first.
    pub(crate) fn frames(&mut self) -> &[u64] {
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

    /// Opens a range inside all ranges that are open. Returns `None` if the table has no room.
    pub(crate) fn open(&mut self, domain: RangeDomain, id: RangeId, serial: u32) -> Option<()> {
        let at = self.depth;
        if at == MAX_OPEN_RANGES {
            return None;
        }
        let table = self.table()?;
        let around = at.checked_sub(1).map_or(Hash::ROOT, |last| table.open[last].hash);
        let frame = Frame::range(id);
        table.open[at] = OpenRange { hash: around.then(frame.0), frame, domain, serial };
        self.depth = at + 1;
        Some(())
    }

    /// Closes the innermost open range for which `which` returns true. Returns `false` if `which` returns true for no
    /// range.
    pub(crate) fn close(&mut self, which: impl Fn(&OpenRange) -> bool) -> bool {
        let depth = self.depth;
        let Some(table) = self.table() else { return false };
        let Some(at) = table.open[..depth].iter().rposition(which) else { return false };
        // In the table, the ranges nested in the closed range move to the next lower index, and their hashes change.
        let mut around = at.checked_sub(1).map_or(Hash::ROOT, |last| table.open[last].hash);
        for inner in at + 1..depth {
            around = around.then(table.open[inner].frame.0);
            table.open[inner - 1] = OpenRange { hash: around, ..table.open[inner] };
        }
        self.depth = depth - 1;
        true
    }

    /// Returns the number of ranges in this domain that were opened by a push and are still open.
    pub(crate) fn count(&mut self, domain: RangeDomain) -> usize {
        let depth = self.depth;
        if depth == 0 {
            return 0;
        }
        let Some(table) = self.table() else { return 0 };
        table.open[..depth].iter().filter(|open| open.domain == domain && open.serial == 0).count()
    }

    /// Closes the ranges of this thread that other threads have ended.
    pub(crate) fn apply_pending_ends(&mut self, ended: &PendingEnds) {
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

    /// Returns the id of a range name, from the thread's cache or from the process-wide table.
    pub(crate) fn intern_name(&mut self, domain: RangeDomain, name: RangeName<'_>) -> Option<RangeId> {
        let hash = match name {
            RangeName::Registered(id) => return Some(id),
            RangeName::Text(text) => hash_bytes(domain, text),
            RangeName::Wide(text) => hash_wide(domain, text),
        };
        let slot = &mut self.table()?.cached_names[hash.bits() % CACHED_NAMES];
        if slot.id == 0 || slot.hash != hash {
            let id = intern(domain, name);
            *slot = CachedName { hash, id: id.0 };
        }
        Some(RangeId(slot.id))
    }

    fn table(&mut self) -> Option<&mut RangeTable> {
        if self.table.is_none() {
            self.table = Some(memory::map(size_of::<RangeTable>())?.cast());
        }
        // SAFETY: the pointer points to a mapping of this size that lives as long as `self`. Zero bytes are a valid
        // table, and only `self` refers to the table.
        self.table.map(|mut table| unsafe { table.as_mut() })
    }
}

impl Drop for OpenRanges {
    fn drop(&mut self) {
        if let Some(table) = self.table {
            // SAFETY: the table came from `memory::map` and is dropped with its owner.
            unsafe { memory::unmap(table.cast(), size_of::<RangeTable>()) };
        }
    }
}

/// Notes by other threads that have ended ranges of this thread.
pub(crate) struct PendingEnds {
    serials: [AtomicU32; MAX_PENDING_ENDS],
    count: AtomicU32,
    /// Serial number of the range that was opened last in this thread state. When the thread ends, the serial number is
    /// not reset, because the id of an old range may still be in use. Therefore the next thread that uses this state
    /// must not give the same serial number to another range. Only the thread that owns the state accesses this field.
    last_serial: AtomicU32,
}

impl PendingEnds {
    pub(super) const fn new() -> Self {
        let serials = [const { AtomicU32::new(0) }; MAX_PENDING_ENDS];
        Self { serials, count: AtomicU32::new(0), last_serial: AtomicU32::new(0) }
    }

    pub(crate) fn next_serial(&self) -> u32 {
        let next = (self.last_serial.load(Ordering::Relaxed) + 1) & MAX_SERIAL;
        let next = next.max(1);
        self.last_serial.store(next, Ordering::Relaxed);
        next
    }

    /// Notes on another thread's state that the range with this serial number was ended. If there is no room for the
    /// note, this function returns `false`, and the range stays open.
    pub(crate) fn note_end(&self, serial: u32) -> bool {
        let noted = self
            .serials
            .iter()
            .any(|slot| slot.compare_exchange(0, serial, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        self.count.fetch_add(u32::from(noted), Ordering::AcqRel);
        noted
    }
}

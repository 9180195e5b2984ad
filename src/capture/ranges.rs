//! Ranges that the application names, by NVTX or by `gpuflame_range_push`: those that are open on a thread are
//! frames of whatever the thread launches.
//!
//! A thread keeps its open ranges in a table of its own, with a hash over each and those around it. So a
//! launch looks at one number where none is open, and adds one hash to that of its stack where some are. Names
//! are interned once for the process, under a lock; each thread remembers those that it used last.

use std::collections::HashMap;
use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::control::window::{self, State};
use crate::record::{Frame, Loss, RangeId, Row};
use crate::unwind::memory;

use super::intern::Hash;
use super::thread::{Entered, Thread, all};

/// Ranges that can be open on a thread at once; those opened inside are counted, and no frames.
const MOST_OPEN: usize = 128;
/// Names that a thread finds again without the lock.
const REMEMBERED: usize = 128;
/// Names there may be in all: a program that puts a number into each must not fill the memory.
const MOST_NAMES: usize = 1 << 16;
/// Bytes of a name that are looked at.
const LONGEST_NAME: usize = 512;
/// Ranges of one thread that others have ended and it has not noticed yet.
const MOST_ENDED: usize = 64;

/// What keeps ranges apart: those of one domain are popped by that domain alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeDomain(u32);

impl RangeDomain {
    /// Ranges of NVTX outside of all domains.
    pub const DEFAULT: Self = Self(0);
    /// `gpuflame_range_push`.
    pub const USER: Self = Self(u32::MAX);
    /// Domains that the user does not want to see.
    pub const IGNORED: Self = Self(u32::MAX - 1);

    /// The domain of this number.
    pub(super) fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Its number, for a handle.
    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// A range's name as the application gives it.
#[derive(Clone, Copy, Debug)]
pub enum RangeName<'a> {
    /// UTF-8, as far as anybody knows.
    Text(&'a [u8]),
    /// Characters of 32 bits.
    Wide(&'a [u32]),
    /// One that was named before.
    Known(RangeId),
}

/// The open ranges of one thread.
pub(super) struct Ranges {
    /// Mapped at the thread's first range.
    table: Option<NonNull<Table>>,
    depth: usize,
    /// Pushed when the table was full.
    beyond: usize,
    ends_seen: u32,
}

struct Table {
    open: [Open; MOST_OPEN],
    remembered: [Remembered; REMEMBERED],
    /// The frames of the open ranges, innermost first: filled when a context is written.
    frames: [u64; MOST_OPEN],
}

#[derive(Clone, Copy)]
struct Open {
    /// Over this range and those around it.
    hash: Hash,
    frame: Frame,
    domain: RangeDomain,
    /// 0 = pushed; else the number under which it will be ended.
    serial: u32,
}

#[derive(Clone, Copy)]
struct Remembered {
    hash: Hash,
    /// 0 = empty.
    id: u32,
}

impl Ranges {
    pub(super) const NONE: Self = Self { table: None, depth: 0, beyond: 0, ends_seen: 0 };

    /// What identifies the open ranges; `None` if there are none, which is all that most launches ask.
    #[inline]
    pub(super) fn hash(&mut self, thread: &Thread) -> Option<Hash> {
        if self.depth == 0 { None } else { self.hash_of_open(thread) }
    }

    fn hash_of_open(&mut self, thread: &Thread) -> Option<Hash> {
        self.notice_ends(thread);
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
    fn open(&mut self, domain: RangeDomain, id: RangeId, serial: u32) -> Option<()> {
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
    fn close(&mut self, which: impl Fn(&Open) -> bool) -> bool {
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

    /// Closes what other threads have ended.
    fn notice_ends(&mut self, thread: &Thread) {
        let ends = thread.ended.count.load(Ordering::Acquire);
        if ends == self.ends_seen {
            return;
        }
        self.ends_seen = ends;
        for slot in &thread.ended.serials {
            let serial = slot.swap(0, Ordering::AcqRel);
            if serial != 0 {
                self.close(|open| open.serial == serial);
            }
        }
    }

    /// The range that a name means, from memory or from the table of all.
    fn named(&mut self, domain: RangeDomain, name: RangeName<'_>) -> Option<RangeId> {
        let hash = match name {
            RangeName::Known(id) => return Some(id),
            RangeName::Text(text) => hash_bytes(domain, text),
            RangeName::Wide(text) => hash_wide(domain, text),
        };
        let slot = &mut self.table()?.remembered[hash.bits() % REMEMBERED];
        if slot.id == 0 || slot.hash != hash {
            let id = intern(domain, name)?;
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

    fn next_serial(&self) -> u32 {
        let next = (self.last_serial.load(Ordering::Relaxed) + 1) & SERIAL;
        let next = next.max(1);
        self.last_serial.store(next, Ordering::Relaxed);
        next
    }

    /// False: there is no room; the range stays open.
    fn leave(&self, serial: u32) -> bool {
        let left = self
            .serials
            .iter()
            .any(|slot| slot.compare_exchange(0, serial, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        self.count.fetch_add(u32::from(left), Ordering::AcqRel);
        left
    }
}

/// The part of a range's id that is its number; the rest is the page of its thread's state.
const SERIAL: u32 = (1 << SERIAL_BITS) - 1;
const SERIAL_BITS: u32 = 27;
const PAGE_BITS: u32 = 12;

/// Opens a range on this thread, to be closed by [`pop_range`]. Returns how many of its domain are open
/// around it; `None` where it could not be kept.
pub fn push_range(domain: RangeDomain, name: RangeName<'_>) -> Option<usize> {
    if domain == RangeDomain::IGNORED || window::state() == State::Dead {
        return None;
    }
    let mut entered = Entered::new()?;
    let (own, thread) = entered.parts();
    let ranges = &mut own.ranges;
    ranges.notice_ends(thread);
    let around = ranges.count(domain);
    let opened = ranges.named(domain, name).and_then(|id| {
        if id == RangeId::OTHER {
            thread.tally.lose(Loss::RangesDropped);
        }
        ranges.open(domain, id, 0)
    });
    if opened.is_none() {
        ranges.beyond += 1;
        thread.tally.lose(Loss::RangesDropped);
    }
    opened.map(|()| around)
}

/// Closes the range of this domain that was pushed last on this thread. Returns how many of it remain; `None`
/// where none is open.
pub fn pop_range(domain: RangeDomain) -> Option<usize> {
    if domain == RangeDomain::IGNORED || window::state() == State::Dead {
        return None;
    }
    let mut entered = Entered::new()?;
    let (own, thread) = entered.parts();
    let ranges = &mut own.ranges;
    ranges.notice_ends(thread);
    if ranges.beyond > 0 {
        ranges.beyond -= 1;
    } else if !ranges.close(|open| open.domain == domain && open.serial == 0) {
        return None;
    }
    Some(ranges.count(domain))
}

/// Opens a range on this thread, to be closed by [`end_range`] on any. Returns its id; 0 = it could not be
/// kept.
pub fn start_range(domain: RangeDomain, name: RangeName<'_>) -> u64 {
    if domain == RangeDomain::IGNORED || window::state() == State::Dead {
        return 0;
    }
    let Some(mut entered) = Entered::new() else { return 0 };
    let (own, thread) = entered.parts();
    own.ranges.notice_ends(thread);
    let serial = thread.ended.next_serial();
    let opened = own.ranges.named(domain, name).and_then(|id| own.ranges.open(domain, id, serial));
    if opened.is_none() {
        thread.tally.lose(Loss::RangesDropped);
        return 0;
    }
    page_of(thread) << SERIAL_BITS | u64::from(serial)
}

/// Closes a range by its id, whichever thread opened it. What is no id is passed over.
pub fn end_range(id: u64) {
    if id == 0 || window::state() == State::Dead {
        return;
    }
    let Some(mut entered) = Entered::new() else { return };
    let (own, thread) = entered.parts();
    let (page, serial) = (id >> SERIAL_BITS, id as u32 & SERIAL);
    if page == page_of(thread) {
        own.ranges.notice_ends(thread);
        own.ranges.close(|open| open.serial == serial);
    } else if let Some(owner) = all().find(|owner| page_of(owner) == page)
        && !owner.ended.leave(serial)
    {
        thread.tally.lose(Loss::RangesDropped);
    }
}

fn page_of(thread: &Thread) -> u64 {
    std::ptr::from_ref(thread).addr() as u64 >> PAGE_BITS
}

impl Ranges {
    fn count(&mut self, domain: RangeDomain) -> usize {
        let depth = self.depth;
        if depth == 0 {
            return 0;
        }
        let Some(table) = self.table() else { return 0 };
        table.open[..depth].iter().filter(|open| open.domain == domain && open.serial == 0).count()
    }
}

fn hash_bytes(domain: RangeDomain, text: &[u8]) -> Hash {
    let text = &text[..text.len().min(LONGEST_NAME)];
    let start = Hash::ROOT.then(u64::from(domain.0)).then(text.len() as u64);
    text.chunks(8).fold(start, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.then(u64::from_le_bytes(word))
    })
}

fn hash_wide(domain: RangeDomain, text: &[u32]) -> Hash {
    let text = &text[..text.len().min(LONGEST_NAME)];
    // Above all lengths in bytes.
    let start = Hash::ROOT.then(u64::from(domain.0)).then(1 << 32 | text.len() as u64);
    text.iter().fold(start, |hash, letter| hash.then(u64::from(*letter)))
}

/// All names there are.
struct Names {
    /// By number, from 1 on; number 0 is [`RangeDomain::DEFAULT`].
    domains: Vec<String>,
    ignored: Vec<String>,
    ids: Option<HashMap<(u32, String), RangeId>>,
    /// Those that the collector has not seen.
    new: Vec<(RangeId, u32, String)>,
}

static NAMES: Mutex<Names> =
    Mutex::new(Names { domains: Vec::new(), ignored: Vec::new(), ids: None, new: Vec::new() });
/// How many names there are: so that the collector sees that there is none without the lock.
static NAMED: AtomicU32 = AtomicU32::new(0);

fn names() -> std::sync::MutexGuard<'static, Names> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says which domains of NVTX are to be left out.
pub fn ignore_domains(domains: &[String]) {
    names().ignored = domains.to_vec();
}

/// The domain of this name: the same for all who ask for it.
pub(super) fn domain(name: &str) -> RangeDomain {
    let mut names = names();
    if names.ignored.iter().any(|ignored| ignored == name) {
        return RangeDomain::IGNORED;
    }
    let known = names.domains.iter().position(|known| known == name);
    let at = known.unwrap_or_else(|| {
        names.domains.push(name.to_owned());
        names.domains.len() - 1
    });
    RangeDomain(at as u32 + 1)
}

/// The id of a name. `None` only in a domain that is left out.
pub(super) fn register(domain: RangeDomain, name: RangeName<'_>) -> Option<RangeId> {
    if domain == RangeDomain::IGNORED || window::state() == State::Dead {
        return None;
    }
    // A name that is registered while this thread is inside gpuflame could wait for itself.
    let _entered = Entered::new()?;
    intern(domain, name)
}

#[cold]
fn intern(domain: RangeDomain, name: RangeName<'_>) -> Option<RangeId> {
    let text = match name {
        RangeName::Known(id) => return Some(id),
        RangeName::Text(text) => String::from_utf8_lossy(&text[..text.len().min(LONGEST_NAME)]).into_owned(),
        RangeName::Wide(text) => {
            let letters = text.iter().take(LONGEST_NAME);
            letters.map(|letter| char::from_u32(*letter).unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
        }
    };
    let mut names = names();
    let count = names.ids.as_ref().map_or(0, HashMap::len);
    let key = (domain.0, text);
    if let Some(id) = names.ids.get_or_insert_default().get(&key) {
        return Some(*id);
    }
    if count >= MOST_NAMES {
        return Some(RangeId::OTHER);
    }
    let id = RangeId(count as u32 + 1);
    names.new.push((id, key.0, key.1.clone()));
    names.ids.get_or_insert_default().insert(key, id);
    NAMED.store(id.0, Ordering::Release);
    Some(id)
}

/// Hands over the names that are new. To be called after the contexts that hold them were marked, and before
/// they are handed over.
pub(super) fn drain_names(each: &mut impl FnMut(&Row<'_>)) {
    static DRAINED: AtomicU32 = AtomicU32::new(0);
    let named = NAMED.load(Ordering::Acquire);
    if DRAINED.swap(named, Ordering::Relaxed) == named {
        return;
    }
    // Not handed over under the lock: whoever takes rows may be slow.
    let (new, domains) = {
        let mut names = names();
        (std::mem::take(&mut names.new), names.domains.clone())
    };
    if named > 0 && new.first().is_some_and(|(id, ..)| id.0 == 1) {
        each(&Row::Range { id: RangeId::OTHER, domain: "", text: "(one of too many names)" });
    }
    for (id, domain, text) in &new {
        let domain = domain.checked_sub(1).and_then(|at| domains.get(at as usize)).map_or("", String::as_str);
        let text = if text.is_empty() { "(no name)" } else { text };
        each(&Row::Range { id: *id, domain, text });
    }
}

//! The rules that have been compiled so far, shared by all threads.
//!
//! Open addressing over 16-byte slots `{key, rule}`. The key is a *place*, one more than the address that
//! is looked up, so that a return address is its own place (a walk asks for none beyond 2^47); above it stand the low 16 bits of
//! the loader's unload count, so that an unload makes every older rule
//! unfindable at once: its slot is then free for the next rule. Nobody waits for anybody:
//!
//! * A writer claims a slot by compare-and-swap, stores the rule, then the key with Release. Also where the slot
//!   holds this very key, and an *unknown* rule is to learn better: a writer that lost its processor between
//!   reading the key and storing would leave a rule from before an unload under a key from after it.
//! * A reader loads the key with Acquire, then the rule. A slot whose key carries the present unload
//!   count is not written again, but for a rule that learns better.
//! * A slot is reused only by a newer rule, after the count moved on. A reader that might have met such a
//!   slot finds the count changed at the end of its capture and starts over (see `Engine::capture_idle`), so
//!   one check a capture replaces one a frame. What it read meanwhile was held against the stack's bounds.
//! * A table that fills up is replaced by one twice as large. The old one stays, for readers inside it:
//!   all old tables together are smaller than the new one.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::rule::Rule;
use crate::unwind::counts::Counts;
use crate::unwind::memory;

/// Slots of the first table: 128 KiB.
const FIRST: usize = 8192;
/// How many slots from its home on a key may lie.
const REACH: usize = 32;

const EMPTY: u64 = 0;
const CLAIMED: u64 = 1;

/// Multiplies a key into a hash. It is shifted so that the tag falls out: a walk need not wait for it.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15 << 16;

#[repr(C, align(16))]
struct Slot {
    key: AtomicU64,
    rule: AtomicU64,
}

const _: () = assert!(size_of::<Slot>() == 16, "four rules fit a cache line");

/// A table and its size. It is followed in memory by `capacity + REACH` slots.
#[repr(C, align(64))]
pub(super) struct Table {
    /// The bits of a hash that are the home's distance from the first slot, in bytes.
    homes: u64,
    /// The unload count above the 16 bits that keys hold. A table serves one era only, so no tag comes back.
    era: u32,
    /// The unload count that `live` counts for.
    unloads: AtomicU32,
    /// Rules stored under that count.
    live: AtomicU32,
}

static CURRENT: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
static GROWING: AtomicBool = AtomicBool::new(false);

/// What sets the keys of one loader state apart from those of another.
#[inline(always)]
fn tag(counts: Counts) -> u64 {
    u64::from(counts.unloads()) << 48
}

/// The key under which the rule for `place` is stored while the loader is in state `counts`.
#[inline(always)]
fn key(place: u64, counts: Counts) -> u64 {
    debug_assert!(place >> 48 == 0, "the walk looks up addresses of programs only");
    place | tag(counts)
}

/// Whether the rule under `found` was made before an unload that the one for `key` knows of.
fn is_older(found: u64, key: u64) -> bool {
    ((key >> 48) as u16).wrapping_sub((found >> 48) as u16) as i16 > 0
}

/// The table in use; made on the first call. `None` where there is no memory for one.
#[inline(always)]
pub(super) fn current(counts: Counts) -> Option<&'static Table> {
    // SAFETY: a published table is never freed.
    match unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
        Some(table) if table.era == era(counts) => Some(table),
        old => replace(old, FIRST, counts),
    }
}

fn era(counts: Counts) -> u32 {
    counts.unloads() >> 16
}

/// Publishes a table of `capacity` in place of `old`, with what still holds of the old one; if another
/// thread is at it, says `None`.
#[cold]
fn replace(old: Option<&Table>, capacity: usize, counts: Counts) -> Option<&'static Table> {
    if GROWING.swap(true, Ordering::Acquire) {
        return None;
    }
    let expected = old.map_or(std::ptr::null(), std::ptr::from_ref);
    let mut published = None;
    if std::ptr::eq(CURRENT.load(Ordering::Acquire), expected)
        && let Some(table) = Table::map(capacity, era(counts))
    {
        // SAFETY: the new table is mapped, and is never freed.
        let new: &'static Table = unsafe { &*table };
        if let Some(old) = old.filter(|old| old.era == new.era) {
            old.copy_into(new, counts);
        }
        CURRENT.store(table, Ordering::Release);
        published = Some(new);
    }
    GROWING.store(false, Ordering::Release);
    published
}

/// Stores the rule for `place` for all threads, in a larger table if need be.
pub(super) fn remember(place: u64, rule: Rule, counts: Counts) {
    let Some(table) = current(counts) else { return };
    if table.put(key(place, counts), rule, counts) != Stored::Yes {
        replace(Some(table), table.capacity() * 2, counts);
    }
}

impl Table {
    fn bytes(capacity: usize) -> usize {
        size_of::<Self>() + (capacity + REACH) * size_of::<Slot>()
    }

    fn map(capacity: usize, era: u32) -> Option<*mut Self> {
        let table = memory::map(Self::bytes(capacity))?.cast::<Self>().as_ptr();
        let homes = ((capacity - 1) * size_of::<Slot>()) as u64;
        // SAFETY: the fresh mapping is page-aligned and large enough; zeroed slots are empty slots.
        unsafe { table.write(Self { homes, era, unloads: AtomicU32::new(0), live: AtomicU32::new(0) }) };
        Some(table)
    }

    fn capacity(&self) -> usize {
        self.homes as usize / size_of::<Slot>() + 1
    }

    /// The slots in which the rule for the place in `key` may lie.
    #[inline(always)]
    fn reach(&self, key: u64) -> &[Slot] {
        let home = key.wrapping_mul(SPREAD) >> 32 & self.homes;
        let slots = std::ptr::from_ref(self).wrapping_add(1).cast::<Slot>();
        // SAFETY: `map` laid out capacity + REACH slots behind the header, and the home is among the first
        // `capacity`, at a multiple of a slot's size.
        unsafe { std::slice::from_raw_parts(slots.byte_add(home as usize), REACH) }
    }

    /// The rule for `place`, stored in the loader state `counts`.
    #[inline(always)]
    pub(super) fn get(&self, place: u64, counts: Counts) -> Option<Rule> {
        let key = key(place, counts);
        let home = &self.reach(place)[0];
        if home.key.load(Ordering::Acquire) == key {
            return Some(Rule(home.rule.load(Ordering::Acquire)));
        }
        self.get_from_others(key)
    }

    #[inline(never)]
    fn get_from_others(&self, key: u64) -> Option<Rule> {
        for slot in self.reach(key) {
            let found = slot.key.load(Ordering::Acquire);
            if found == key {
                return Some(Rule(slot.rule.load(Ordering::Acquire)));
            }
            if found == EMPTY {
                return None;
            }
        }
        None
    }

    /// Stores `rule` under `key`, in its slot where the key is there already. It may fail, for lack of room:
    /// then the next walk compiles it again.
    pub(super) fn put(&self, key: u64, rule: Rule, counts: Counts) -> Stored {
        for slot in self.reach(key) {
            let found = slot.key.load(Ordering::Acquire);
            if found == key && slot.rule.load(Ordering::Acquire) == rule.0 {
                return Stored::Yes;
            }
            // A slot of this very key is claimed too: it may be a newer rule's since its key was read.
            let is_free = found == EMPTY || found == key || (found != CLAIMED && is_older(found, key));
            if is_free
                && slot.key.compare_exchange(found, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                slot.rule.store(rule.0, Ordering::Release);
                slot.key.store(key, Ordering::Release);
                let is_full = found != key && self.count(counts) > self.capacity() / 2;
                return if is_full { Stored::HalfFull } else { Stored::Yes };
            }
        }
        Stored::No
    }

    /// Counts one more rule of the present loader state. Racing threads may lose a count; it is a hint.
    fn count(&self, counts: Counts) -> usize {
        if self.unloads.swap(counts.unloads(), Ordering::Relaxed) != counts.unloads() {
            self.live.store(0, Ordering::Relaxed);
        }
        self.live.fetch_add(1, Ordering::Relaxed) as usize + 1
    }

    /// Hands every rule of the present loader state to `target`.
    fn copy_into(&self, target: &Self, counts: Counts) {
        let slots = std::ptr::from_ref(self).wrapping_add(1).cast::<Slot>();
        // SAFETY: `map` laid out capacity + REACH slots behind the header.
        let slots = unsafe { std::slice::from_raw_parts(slots, self.capacity() + REACH) };
        for slot in slots {
            let key = slot.key.load(Ordering::Acquire);
            if key > CLAIMED && key >> 48 == tag(counts) >> 48 {
                target.put(key, Rule(slot.rule.load(Ordering::Acquire)), counts);
            }
        }
    }
}

/// What became of a rule given to [`Table::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    Yes,
    /// Stored, but the table should grow.
    HalfFull,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(capacity: usize) -> &'static Table {
        let table = Table::map(capacity, 0).expect("memory for a table");
        // SAFETY: it is mapped and never freed.
        unsafe { &*table }
    }

    fn rule(place: u64) -> Rule {
        Rule::step(false, place as i32, 1)
    }

    #[test]
    fn a_rule_is_found_by_its_place_until_something_is_unloaded() {
        let (table, now, later) = (table(64), Counts::new(5, 1), Counts::new(5, 2));
        assert_eq!(table.get(0x4000, now), None);
        assert_eq!(table.put(key(0x4000, now), rule(1), now), Stored::Yes);
        assert_eq!(table.get(0x4000, now), Some(rule(1)));
        assert_eq!(table.get(0x4000, later), None);
    }

    #[test]
    fn a_second_rule_for_a_place_takes_the_place_of_the_first() {
        let (table, now) = (table(64), Counts::new(5, 1));
        table.put(key(0x4000, now), Rule::unknown(5), now);
        table.put(key(0x4000, now), rule(2), now);
        assert_eq!(table.get(0x4000, now), Some(rule(2)));
    }

    #[test]
    fn a_table_that_fills_up_says_so_and_loses_nothing() {
        let (table, larger, now) = (table(64), table(128), Counts::new(1, 0));
        let stored: Vec<_> = (1..=40u64).map(|n| table.put(key(n * 0x1000, now), rule(n), now)).collect();
        assert_eq!(stored[..32], [Stored::Yes; 32]);
        assert!(stored[32..].iter().all(|stored| *stored != Stored::Yes));
        table.copy_into(larger, now);
        for n in (1..=40).filter(|n| stored[*n as usize - 1] != Stored::No) {
            assert_eq!(larger.get(n * 0x1000, now), Some(rule(n)));
        }
    }

    #[test]
    fn old_rules_make_room_for_new_ones_but_not_the_other_way_round() {
        let table = table(64);
        for unloads in 0..1000 {
            let now = Counts::new(1, unloads);
            for n in 1..=20 {
                assert_eq!(table.put(key(n * 0x1000, now), rule(n + u64::from(unloads)), now), Stored::Yes);
            }
            for n in 1..=20 {
                assert_eq!(table.get(n * 0x1000, now), Some(rule(n + u64::from(unloads))));
            }
        }
        let (old, now) = (Counts::new(1, 3), Counts::new(1, 999));
        let late = |n: u64| table.put(key(n * 0x5000, old), rule(7), old);
        assert!((1..=64).map(late).any(|stored| stored == Stored::No));
        assert!((1..=20).all(|n| table.get(n * 0x1000, now) == Some(rule(n + 999))));
    }

    #[test]
    fn threads_that_store_at_once_find_what_they_stored_and_nothing_else() {
        let (table, now) = (table(8192), Counts::new(1, 0));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    for n in 1..=2000 {
                        // Half of the places are everybody's.
                        let place = if n % 2 == 0 { n << 4 } else { n << 4 | (thread + 1) << 30 };
                        table.put(key(place, now), rule(place >> 4), now);
                        let found = table.get(place, now);
                        assert!(found.is_none_or(|found| found == rule(place >> 4)), "{place:x}: {found:?}");
                    }
                });
            }
        });
    }

    #[test]
    fn a_slot_that_is_claimed_and_not_written_yet_is_neither_read_nor_waited_for() {
        let (table, now) = (table(64), Counts::new(5, 1));
        let key = key(0x4000, now);
        // As a thread leaves it that lost its processor, or did not follow into a forked child.
        table.reach(key)[0].key.store(CLAIMED, Ordering::Relaxed);
        assert_eq!(table.get(0x4000, now), None);
        assert_eq!(table.put(key, rule(1), now), Stored::Yes);
        assert_eq!(table.get(0x4000, now), Some(rule(1)));
    }

    /// As captures do it: what was read while nothing was unloaded is what was stored since the last unload, though all
    /// slots are taken from older rules all the time.
    #[test]
    fn a_rule_that_was_read_holds_if_nothing_was_unloaded_meanwhile() {
        const PLACES: u64 = 40;
        let (table, unloads) = (table(64), AtomicU32::new(0));
        let rule = |place: u64, counts: Counts| rule(place << 16 | u64::from(counts.unloads()));
        let now = || Counts::new(1, unloads.load(Ordering::Acquire));
        let store = |place: u64| {
            let counts = now();
            table.put(key(place << 12, counts), rule(place, counts), counts);
        };
        let is_over = AtomicBool::new(false);
        let places = || (1..=PLACES).cycle().take_while(|_| !is_over.load(Ordering::Relaxed));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // As far as a table goes.
                for count in 0..60_000 {
                    unloads.store(count, Ordering::Release);
                    (1..=PLACES).for_each(store);
                }
                is_over.store(true, Ordering::Relaxed);
            });
            scope.spawn(|| places().for_each(store));
            let mut held = 0;
            for place in places() {
                let counts = now();
                let found = table.get(place << 12, counts);
                if let Some(found) = found.filter(|_| now() == counts) {
                    assert_eq!(found, rule(place, counts), "{place} after {} unloads", counts.unloads());
                    held += 1;
                }
            }
            assert!(held > 0);
        });
    }
}

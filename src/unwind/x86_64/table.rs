//! The rule table is a hash table of all rules compiled so far, shared by all threads.
//!
//! The table uses open addressing over 16-byte slots `{key, rule}`. The lower 48 bits of a key are the *look-up pc*.
//! For a return address, the look-up pc is the return address itself. For an interrupted instruction, the look-up pc is
//! the instruction's address plus one. (Walks look up no address beyond 2^47.) The upper 16 bits of the key are the low
//! 16 bits of the loader's unload count. Therefore an unload immediately invalidates every older rule, and the slots of
//! older rules become free for reuse. No thread waits for another thread, because of the following protocol:
//!
//! * A writer claims a slot by compare-and-swap, stores the rule, then stores the key with Release. A writer claims the
//!   slot even if the slot already has the right key and the writer only replaces an *unknown* rule by a better rule.
//!   Without the claim, a writer could be preempted between reading the key and storing the rule. Such a writer could
//!   store a rule from before an unload under a key from after the unload.
//! * A reader loads the key with Acquire, then loads the rule. As long as a slot's key has the present unload count, no
//!   writer changes the slot, except to replace an unknown rule.
//! * A slot is reused only after the unload count has advanced, and only for a newer rule. A reader may read a slot
//!   while the slot is being reused. At the end of its capture, this reader finds that the unload count has changed,
//!   and starts the capture again (see `Engine::capture_idle`). Therefore one check of the unload count per capture is
//!   enough, instead of one check per frame. Until this check at the end of the capture, a wrong rule does no harm,
//!   because all reads of a capture are checked against the stack's bounds.
//! * A table that fills up is replaced by a table twice as large. The old table is never freed, because readers may
//!   still use it. All old tables together are smaller than the new table.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::rule::Rule;
use crate::loader_state::LoaderState;
use crate::memory;

/// Number of slots of the first table, which takes 128 KiB.
const MIN_CAPACITY: usize = 8192;
/// Number of slots that are searched for a key, starting at the key's home slot (the slot that the key's hash selects).
const MAX_PROBES: usize = 32;

const EMPTY: u64 = 0;
const CLAIMED: u64 = 1;

/// Multiplier of the hash that selects a key's home slot. The multiplier is shifted by 16 bits, so that the hash does
/// not depend on the key's tag. Therefore a walk can compute the hash before it has loaded the tag.
const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15 << 16;

#[repr(C, align(16))]
struct RuleSlot {
    key: AtomicU64,
    rule: AtomicU64,
}

const _: () = assert!(size_of::<RuleSlot>() == 16, "four rules fit a cache line");

/// The header of a rule table. In memory, `capacity + MAX_PROBES` slots follow the header.
#[repr(C, align(64))]
pub(super) struct RuleTable {
    /// Mask of those bits of a hash that give the position of the key's home slot, as a byte offset from the first
    /// slot.
    homes: u64,
    /// The era of the table: the loader's unload count without its low 16 bits, which are the keys' tags. Each table is
    /// used only in one era, so during a table's lifetime, a tag never refers to two different unload counts.
    era: u32,
    /// The unload count for which `live` counts the rules.
    unloads: AtomicU32,
    /// Number of rules that were stored while the unload count was `unloads`.
    live: AtomicU32,
}

static CURRENT: AtomicPtr<RuleTable> = AtomicPtr::new(std::ptr::null_mut());
static IS_GROWING: AtomicBool = AtomicBool::new(false);

/// The tag: the upper 16 bits of a key, which distinguish loader states.
#[inline(always)]
fn tag(state: LoaderState) -> u64 {
    u64::from(state.unloads()) << 48
}

/// Returns the key of the rule for `lookup_pc` in the loader state `state`.
#[inline(always)]
fn key(lookup_pc: u64, state: LoaderState) -> u64 {
    debug_assert!(lookup_pc >> 48 == 0, "the walk looks up addresses of programs only");
    lookup_pc | tag(state)
}

/// Whether the key `found` is from an earlier loader state than `key`, that is, whether an object was unloaded between
/// the two states.
fn is_older(found: u64, key: u64) -> bool {
    ((key >> 48) as u16).wrapping_sub((found >> 48) as u16) as i16 > 0
}

/// Returns the present table; the first call creates it. Returns `None` if no memory is available for a table.
#[inline(always)]
pub(super) fn current(state: LoaderState) -> Option<&'static RuleTable> {
    // SAFETY: a published table is never freed.
    match unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
        Some(table) if table.era == era(state) => Some(table),
        old => replace(old, MIN_CAPACITY, state),
    }
}

fn era(state: LoaderState) -> u32 {
    state.unloads() >> 16
}

/// Replaces the table `old` by a new table of `capacity` slots that contains the valid rules of `old`. Returns `None`
/// if another thread is already replacing `old`.
#[cold]
fn replace(old: Option<&RuleTable>, capacity: usize, state: LoaderState) -> Option<&'static RuleTable> {
    if IS_GROWING.swap(true, Ordering::Acquire) {
        return None;
    }
    let expected = old.map_or(std::ptr::null(), std::ptr::from_ref);
    let mut published = None;
    if std::ptr::eq(CURRENT.load(Ordering::Acquire), expected)
        && let Some(table) = RuleTable::map(capacity, era(state))
    {
        // SAFETY: the new table is mapped and never freed.
        let new: &'static RuleTable = unsafe { &*table };
        if let Some(old) = old.filter(|old| old.era == new.era) {
            old.copy_into(new, state);
        }
        CURRENT.store(table, Ordering::Release);
        published = Some(new);
    }
    IS_GROWING.store(false, Ordering::Release);
    published
}

/// Stores the rule for `lookup_pc` for all threads, and grows the table if necessary.
pub(super) fn insert(lookup_pc: u64, rule: Rule, state: LoaderState) {
    let Some(table) = current(state) else { return };
    if table.put(key(lookup_pc, state), rule, state) != Insertion::Done {
        replace(Some(table), table.capacity() * 2, state);
    }
}

impl RuleTable {
    fn bytes(capacity: usize) -> usize {
        size_of::<Self>() + (capacity + MAX_PROBES) * size_of::<RuleSlot>()
    }

    fn map(capacity: usize, era: u32) -> Option<*mut Self> {
        let table = memory::map(Self::bytes(capacity))?.cast::<Self>().as_ptr();
        let homes = ((capacity - 1) * size_of::<RuleSlot>()) as u64;
        // SAFETY: the fresh mapping is page-aligned and large enough; zeroed slots are empty slots.
        unsafe { table.write(Self { homes, era, unloads: AtomicU32::new(0), live: AtomicU32::new(0) }) };
        Some(table)
    }

    fn capacity(&self) -> usize {
        self.homes as usize / size_of::<RuleSlot>() + 1
    }

    /// Returns the slots that may contain the rule for the look-up pc in `key`.
    #[inline(always)]
    fn probe_slots(&self, key: u64) -> &[RuleSlot] {
        let home = key.wrapping_mul(HASH_MULTIPLIER) >> 32 & self.homes;
        let slots = std::ptr::from_ref(self).wrapping_add(1).cast::<RuleSlot>();
        // SAFETY: `map` placed `capacity + MAX_PROBES` slots after the header. The home slot is one of the first
        // `capacity` slots, and its offset is a multiple of the slot size.
        unsafe { std::slice::from_raw_parts(slots.byte_add(home as usize), MAX_PROBES) }
    }

    /// Returns the rule for `lookup_pc` that is valid in the loader state `state`, if the table contains such a rule.
    #[inline(always)]
    pub(super) fn get(&self, lookup_pc: u64, state: LoaderState) -> Option<Rule> {
        let key = key(lookup_pc, state);
        let home = &self.probe_slots(lookup_pc)[0];
        if home.key.load(Ordering::Acquire) == key {
            return Some(Rule(home.rule.load(Ordering::Acquire)));
        }
        self.get_by_probing(key)
    }

    #[inline(never)]
    fn get_by_probing(&self, key: u64) -> Option<Rule> {
        for slot in self.probe_slots(key) {
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

    /// Stores `rule` under `key`, in the slot that has this key, or in a free slot. If no slot is free, the rule is not
    /// stored, and the next walk compiles it again.
    pub(super) fn put(&self, key: u64, rule: Rule, state: LoaderState) -> Insertion {
        for slot in self.probe_slots(key) {
            let found = slot.key.load(Ordering::Acquire);
            if found == key && slot.rule.load(Ordering::Acquire) == rule.0 {
                return Insertion::Done;
            }
            // Claim the slot even if it already has this key, because another thread may have reused the slot for a
            // newer rule after `found` was loaded.
            let is_free = found == EMPTY || found == key || (found != CLAIMED && is_older(found, key));
            if is_free
                && slot.key.compare_exchange(found, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                slot.rule.store(rule.0, Ordering::Release);
                slot.key.store(key, Ordering::Release);
                let is_full = found != key && self.count(state) > self.capacity() / 2;
                return if is_full { Insertion::HalfFull } else { Insertion::Done };
            }
        }
        Insertion::Failed
    }

    /// Counts a new rule of the present loader state, and returns the number of rules of this state. If two threads
    /// count a rule at the same time, one of the two rules may not be counted. A rule that is not counted is harmless,
    /// because the number of rules only decides when the table grows.
    fn count(&self, state: LoaderState) -> usize {
        if self.unloads.swap(state.unloads(), Ordering::Relaxed) != state.unloads() {
            self.live.store(0, Ordering::Relaxed);
        }
        self.live.fetch_add(1, Ordering::Relaxed) as usize + 1
    }

    /// Copies every rule of the present loader state to `target`.
    fn copy_into(&self, target: &Self, state: LoaderState) {
        let slots = std::ptr::from_ref(self).wrapping_add(1).cast::<RuleSlot>();
        // SAFETY: `map` placed `capacity + MAX_PROBES` slots after the header.
        let slots = unsafe { std::slice::from_raw_parts(slots, self.capacity() + MAX_PROBES) };
        for slot in slots {
            let key = slot.key.load(Ordering::Acquire);
            if key > CLAIMED && key >> 48 == tag(state) >> 48 {
                target.put(key, Rule(slot.rule.load(Ordering::Acquire)), state);
            }
        }
    }
}

/// Result of [`RuleTable::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Insertion {
    Done,
    /// The rule was stored, but half of the table is used, so the caller should replace the table by a larger one.
    HalfFull,
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(capacity: usize) -> &'static RuleTable {
        let table = RuleTable::map(capacity, 0).expect("memory for a table");
        // SAFETY: the table is mapped and never freed.
        unsafe { &*table }
    }

    fn rule(lookup_pc: u64) -> Rule {
        Rule::step(false, lookup_pc as i32, 1)
    }

    #[test]
    fn a_rule_is_found_by_its_address_until_an_unload() {
        let (table, now, later) = (table(64), LoaderState::new(5, 1), LoaderState::new(5, 2));
        assert_eq!(table.get(0x4000, now), None);
        assert_eq!(table.put(key(0x4000, now), rule(1), now), Insertion::Done);
        assert_eq!(table.get(0x4000, now), Some(rule(1)));
        assert_eq!(table.get(0x4000, later), None);
    }

    #[test]
    fn a_second_rule_for_an_address_replaces_the_first() {
        let (table, now) = (table(64), LoaderState::new(5, 1));
        table.put(key(0x4000, now), Rule::unknown(5), now);
        table.put(key(0x4000, now), rule(2), now);
        assert_eq!(table.get(0x4000, now), Some(rule(2)));
    }

    #[test]
    fn a_full_table_reports_it_and_loses_no_rule() {
        let (table, larger, now) = (table(64), table(128), LoaderState::new(1, 0));
        let stored: Vec<_> = (1..=40u64).map(|n| table.put(key(n * 0x1000, now), rule(n), now)).collect();
        assert_eq!(stored[..32], [Insertion::Done; 32]);
        assert!(stored[32..].iter().all(|stored| *stored != Insertion::Done));
        table.copy_into(larger, now);
        for n in (1..=40).filter(|n| stored[*n as usize - 1] != Insertion::Failed) {
            assert_eq!(larger.get(n * 0x1000, now), Some(rule(n)));
        }
    }

    #[test]
    fn new_rules_evict_old_ones_but_not_vice_versa() {
        let table = table(64);
        for unloads in 0..1000 {
            let now = LoaderState::new(1, unloads);
            for n in 1..=20 {
                assert_eq!(
                    table.put(key(n * 0x1000, now), rule(n + u64::from(unloads)), now),
                    Insertion::Done
                );
            }
            for n in 1..=20 {
                assert_eq!(table.get(n * 0x1000, now), Some(rule(n + u64::from(unloads))));
            }
        }
        let (old, now) = (LoaderState::new(1, 3), LoaderState::new(1, 999));
        let late = |n: u64| table.put(key(n * 0x5000, old), rule(7), old);
        assert!((1..=64).map(late).any(|stored| stored == Insertion::Failed));
        assert!((1..=20).all(|n| table.get(n * 0x1000, now) == Some(rule(n + 999))));
    }

    #[test]
    fn concurrent_stores_never_yield_a_wrong_rule() {
        let (table, now) = (table(8192), LoaderState::new(1, 0));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    for n in 1..=2000 {
                        // All threads use the same addresses for half of their rules.
                        let lookup_pc = if n % 2 == 0 { n << 4 } else { n << 4 | (thread + 1) << 30 };
                        table.put(key(lookup_pc, now), rule(lookup_pc >> 4), now);
                        let found = table.get(lookup_pc, now);
                        assert!(
                            found.is_none_or(|found| found == rule(lookup_pc >> 4)),
                            "{lookup_pc:x}: {found:?}"
                        );
                    }
                });
            }
        });
    }

    #[test]
    fn a_claimed_unwritten_slot_is_neither_read_nor_waited_for() {
        let (table, now) = (table(64), LoaderState::new(5, 1));
        let key = key(0x4000, now);
        // Simulate a slot that a preempted thread has claimed (or, in a forked child, a thread that no longer exists).
        table.probe_slots(key)[0].key.store(CLAIMED, Ordering::Relaxed);
        assert_eq!(table.get(0x4000, now), None);
        assert_eq!(table.put(key, rule(1), now), Insertion::Done);
        assert_eq!(table.get(0x4000, now), Some(rule(1)));
    }

    /// Checks a guarantee on which captures rely: if no unload happens while a rule is read, the rule was stored after
    /// the last unload. This guarantee must hold even if all slots with older rules are constantly reused.
    #[test]
    fn a_rule_read_without_an_intervening_unload_is_current() {
        const PCS: u64 = 40;
        let (table, unloads) = (table(64), AtomicU32::new(0));
        let rule = |lookup_pc: u64, state: LoaderState| rule(lookup_pc << 16 | u64::from(state.unloads()));
        let now = || LoaderState::new(1, unloads.load(Ordering::Acquire));
        let store = |lookup_pc: u64| {
            let state = now();
            table.put(key(lookup_pc << 12, state), rule(lookup_pc, state), state);
        };
        let is_over = AtomicBool::new(false);
        let pcs = || (1..=PCS).cycle().take_while(|_| !is_over.load(Ordering::Relaxed));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The unload count stays below 2^16. Therefore the count stays in one era, and only one table is used.
                for count in 0..60_000 {
                    unloads.store(count, Ordering::Release);
                    (1..=PCS).for_each(store);
                }
                is_over.store(true, Ordering::Relaxed);
            });
            scope.spawn(|| pcs().for_each(store));
            let mut held = 0;
            for lookup_pc in pcs() {
                let state = now();
                let found = table.get(lookup_pc << 12, state);
                if let Some(found) = found.filter(|_| now() == state) {
                    assert_eq!(
                        found,
                        rule(lookup_pc, state),
                        "{lookup_pc} after {} unloads",
                        state.unloads()
                    );
                    held += 1;
                }
            }
            assert!(held > 0);
        });
    }
}

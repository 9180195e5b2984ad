//! A hash table of the code objects that a thread's walks have reached, keyed by address.

use std::ptr::NonNull;

use super::CachedCode;
use crate::memory;

const MIN_SLOTS: usize = 256;
/// Maximum number of slots. The slots take 2.5 MiB and hold 16,384 code objects. If a thread's walks reach more than
/// 16,384 code objects, the table is emptied.
const MAX_SLOTS: usize = 1 << 15;

/// The table of code objects that a thread's walks have reached.
#[derive(Debug)]
pub(in crate::python) struct CodeTable {
    slots: NonNull<CachedCode>,
    capacity: usize,
    used: usize,
}

impl CodeTable {
    pub(in crate::python) fn new() -> Option<Self> {
        Some(Self { slots: map_slots(MIN_SLOTS)?, capacity: MIN_SLOTS, used: 0 })
    }

    #[inline(always)]
    pub(in crate::python) fn get(&self, slot: u32) -> &CachedCode {
        debug_assert!((slot as usize) < self.capacity);
        // SAFETY: slot indices are always below the capacity, and zeroes are a valid empty slot.
        unsafe { self.slots.add(slot as usize).as_ref() }
    }

    /// Returns the slot of the code object at the address `code`, or the empty slot in which to store that object.
    #[inline]
    pub(in crate::python) fn find(&self, code: u64) -> u32 {
        let mask = self.capacity - 1;
        let mut at = (code.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & mask;
        loop {
            let cached = self.get(at as u32);
            if cached.code == code || cached.code == 0 {
                return at as u32;
            }
            at = (at + 1) & mask;
        }
    }

    pub(in crate::python) fn is_empty(&self, slot: u32) -> bool {
        self.get(slot).code == 0
    }

    /// Whether [`CodeTable::reserve`] must be called before one more entry is added.
    pub(in crate::python) fn is_full(&self) -> bool {
        2 * (self.used + 1) > self.capacity
    }

    /// Makes room for more entries: doubles the capacity, or empties the table if it has the maximum capacity. Old
    /// slot indices stay in range, but may refer to other code objects after this call. Returns false if the kernel
    /// refuses the memory.
    #[cold]
    pub(in crate::python) fn reserve(&mut self) -> bool {
        let keeps = 2 * self.capacity <= MAX_SLOTS;
        let capacity = if keeps { 2 * self.capacity } else { self.capacity };
        let Some(slots) = map_slots(capacity) else { return false };
        let old = std::mem::replace(self, Self { slots, capacity, used: 0 });
        for slot in (0..old.capacity as u32).filter(|slot| keeps && !old.is_empty(*slot)) {
            self.set(self.find(old.get(slot).code), *old.get(slot));
        }
        true
    }

    pub(in crate::python) fn set(&mut self, slot: u32, cached: CachedCode) {
        self.used += usize::from(self.is_empty(slot));
        // SAFETY: slot indices are always below the capacity; `&mut self` excludes other readers.
        unsafe { self.slots.add(slot as usize).write(cached) };
    }
}

impl Drop for CodeTable {
    fn drop(&mut self) {
        // SAFETY: `map_slots` mapped the table with this capacity, and only `self` refers to it.
        unsafe { memory::unmap(self.slots.cast(), self.capacity * size_of::<CachedCode>()) };
    }
}

fn map_slots(count: usize) -> Option<NonNull<CachedCode>> {
    Some(memory::map(count * size_of::<CachedCode>())?.cast())
}

#[cfg(test)]
mod tests {
    use super::super::CodeFingerprint;
    use super::*;

    fn cached(code: u64, number: u32) -> CachedCode {
        CachedCode { code, fingerprint: CodeFingerprint::default(), version: 0, number, traceable: 0 }
    }

    #[test]
    fn code_objects_are_found_until_the_full_table_is_cleared() {
        let mut table = CodeTable::new().unwrap();
        let mut enter = |number: u32| {
            let code = u64::from(number) * 64 + 4096;
            if table.is_full() {
                assert!(table.reserve());
            }
            let slot = table.find(code);
            assert!(table.is_empty(slot), "{number}");
            table.set(slot, cached(code, number));
            table.get(table.find(4096 + 64)).number
        };
        for number in 1..=MAX_SLOTS as u32 / 2 {
            assert_eq!(enter(number), 1);
        }
        assert_eq!(enter(MAX_SLOTS as u32), 0, "the entry was dropped with all others");
        assert!(table.capacity == MAX_SLOTS && table.used == 1);
    }
}

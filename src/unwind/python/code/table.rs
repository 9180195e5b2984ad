//! A hash table, by address, of the code objects that a thread's walks have reached.

use std::ptr::NonNull;

use super::Known;
use crate::memory;

const FIRST_PLACES: usize = 256;
/// Maximum number of slots: 2.5 MiB, for 16,384 code objects. If a thread's walks reach more code objects, the table
/// forgets them all.
const MOST_PLACES: usize = 1 << 15;

/// The code objects that a thread's walks have reached.
#[derive(Debug)]
pub(in crate::python) struct Table {
    places: NonNull<Known>,
    capacity: usize,
    used: usize,
}

impl Table {
    pub(in crate::python) fn new() -> Option<Self> {
        Some(Self { places: map_places(FIRST_PLACES)?, capacity: FIRST_PLACES, used: 0 })
    }

    #[inline(always)]
    pub(in crate::python) fn get(&self, place: u32) -> &Known {
        debug_assert!((place as usize) < self.capacity);
        // SAFETY: slot numbers are always below the capacity, and zeroes are a valid empty slot.
        unsafe { self.places.add(place as usize).as_ref() }
    }

    /// Slot of the code object at `code`, or the empty slot in which to store that object.
    #[inline]
    pub(in crate::python) fn find(&self, code: u64) -> u32 {
        let mask = self.capacity - 1;
        let mut at = (code.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & mask;
        loop {
            let known = self.get(at as u32);
            if known.code == code || known.code == 0 {
                return at as u32;
            }
            at = (at + 1) & mask;
        }
    }

    pub(in crate::python) fn is_empty(&self, place: u32) -> bool {
        self.get(place).code == 0
    }

    /// Whether one more entry requires a call of [`Table::make_room`], which moves the entries.
    pub(in crate::python) fn is_full(&self) -> bool {
        2 * (self.used + 1) > self.capacity
    }

    /// Makes room for more entries, and keeps either all present entries or none of them. Old slot numbers stay in range,
    /// but may refer to another code object. Returns false if the kernel refuses the memory.
    #[cold]
    pub(in crate::python) fn make_room(&mut self) -> bool {
        let keeps = 2 * self.capacity <= MOST_PLACES;
        let capacity = if keeps { 2 * self.capacity } else { self.capacity };
        let Some(places) = map_places(capacity) else { return false };
        let old = std::mem::replace(self, Self { places, capacity, used: 0 });
        for place in (0..old.capacity as u32).filter(|place| keeps && !old.is_empty(*place)) {
            self.set(self.find(old.get(place).code), *old.get(place));
        }
        true
    }

    pub(in crate::python) fn set(&mut self, place: u32, known: Known) {
        self.used += usize::from(self.is_empty(place));
        // SAFETY: slot numbers are always below the capacity; `&mut self` excludes other readers.
        unsafe { self.places.add(place as usize).write(known) };
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: `map_places` mapped the table with this capacity, and only `self` refers to it.
        unsafe { memory::unmap(self.places.cast(), self.capacity * size_of::<Known>()) };
    }
}

fn map_places(count: usize) -> Option<NonNull<Known>> {
    Some(memory::map(count * size_of::<Known>())?.cast())
}

#[cfg(test)]
mod tests {
    use super::super::Marks;
    use super::*;

    fn known(code: u64, number: u32) -> Known {
        Known { code, marks: Marks::default(), version: 0, number, traceable: 0 }
    }

    #[test]
    fn code_objects_are_found_until_the_full_table_is_cleared() {
        let mut table = Table::new().unwrap();
        let mut enter = |number: u32| {
            let code = u64::from(number) * 64 + 4096;
            if table.is_full() {
                assert!(table.make_room());
            }
            let place = table.find(code);
            assert!(table.is_empty(place), "{number}");
            table.set(place, known(code, number));
            table.get(table.find(4096 + 64)).number
        };
        for number in 1..=MOST_PLACES as u32 / 2 {
            assert_eq!(enter(number), 1);
        }
        assert_eq!(enter(MOST_PLACES as u32), 0, "it was dropped with all other entries");
        assert!(table.capacity == MOST_PLACES && table.used == 1);
    }
}

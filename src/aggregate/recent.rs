//! Where the last few hundred kinds of activity were added up: a program launches the same kernels from the
//! same stacks again and again, and two look-ups in hash maps are a quarter of what an activity costs the
//! collector.

use super::{Fate, PlaceCode, Stream};
use crate::record::{DeviceId, Work};

/// How many are remembered: 12 KiB, which stay in the first cache beside everything else.
const SLOTS: usize = 256;

/// All that decides where an activity is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) place: PlaceCode,
    pub(super) fate: Fate,
    pub(super) device: Option<DeviceId>,
    /// Where streams are kept apart.
    pub(super) stream: Option<Stream>,
}

impl Key {
    /// Places and names are small numbers, handed out in a row.
    fn slot(&self) -> usize {
        let name = match self.fate {
            Fate::Work(Work::Kernel(name)) => name.0,
            _ => 0,
        };
        (self.place.0.wrapping_mul(37) ^ name) as usize % SLOTS
    }
}

/// The positions of an activity's series and cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    pub(super) series: u32,
    pub(super) cell: u32,
}

/// See the module's documentation. What was put last into a slot is what it remembers.
#[derive(Clone, Debug)]
pub(super) struct Recent(Box<[Option<(Key, Sums)>; SLOTS]>);

impl Default for Recent {
    fn default() -> Self {
        Self(Box::new([None; SLOTS]))
    }
}

impl Recent {
    pub(super) fn get(&self, key: &Key) -> Option<Sums> {
        match &self.0[key.slot()] {
            Some((known, sums)) if known == key => Some(*sums),
            _ => None,
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    pub(super) fn put(&mut self, key: Key, sums: Sums) -> Sums {
        self.0[key.slot()] = Some((key, sums));
        sums
    }
}

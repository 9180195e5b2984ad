//! A cache that finds the cell and series of an activity (see `aggregate`) for the last few hundred kinds of activity.
//! The cache is useful because programs repeatedly launch the same kernels from the same stacks. Each cache hit avoids
//! two hash map look-ups. Hash map look-ups take a quarter of the time that the collector spends per activity.

use super::{LaunchOutcome, SiteCode, StreamKey};
use gpuflame_model::record::{DeviceId, Work};

/// Number of slots in the cache. All slots together take 12 KiB, so they fit into the L1 cache of the CPU next to the
/// collector's other data.
const SLOTS: usize = 256;

/// Fields that determine to which sums (cell and series) an activity belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SumKey {
    pub(super) site: SiteCode,
    pub(super) outcome: LaunchOutcome,
    pub(super) device: Option<DeviceId>,
    /// Stream on which the activity ran; set only if streams are summed separately.
    pub(super) stream: Option<StreamKey>,
}

impl SumKey {
    /// Returns the index of the cache slot for this key. The ids in a key are small and consecutive, so a simple hash
    /// is enough.
    fn slot(&self) -> usize {
        let name = match self.outcome {
            LaunchOutcome::Work(Work::Kernel(name)) => name.0,
            _ => 0,
        };
        (self.site.0.wrapping_mul(37) ^ name) as usize % SLOTS
    }
}

/// Positions of the sums (series and cell) to which an activity belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct SumIndices {
    pub(super) series: u32,
    pub(super) cell: u32,
}

/// A direct-mapped cache: each key belongs to one slot, and a slot contains the key that was stored in it last. See the
/// module's documentation.
#[derive(Clone, Debug)]
pub(super) struct SumCache(Box<[Option<(SumKey, SumIndices)>; SLOTS]>);

impl Default for SumCache {
    fn default() -> Self {
        Self(Box::new([None; SLOTS]))
    }
}

impl SumCache {
    pub(super) fn get(&self, key: &SumKey) -> Option<SumIndices> {
        match &self.0[key.slot()] {
            Some((known, sums)) if known == key => Some(*sums),
            _ => None,
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    pub(super) fn put(&mut self, key: SumKey, sums: SumIndices) -> SumIndices {
        self.0[key.slot()] = Some((key, sums));
        sums
    }
}

//! Sums up copies, grouped by direction and by the kinds of memory that they read and write.

use std::collections::BTreeMap;

use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::profile::{CopyPath, Profile, Weight};
use gpuflame_model::record::{Activity, CopyDetail, CorrelationId, Detail, Work};

/// Sums of the copies with usable times, grouped by path (device, direction and kinds of memory). The sums of copies
/// are collected while rows are joined.
#[derive(Debug, Default)]
pub struct CopySums(BTreeMap<CopyPath, Weight>);

impl CopySums {
    /// Reads the copies from the sums that the recorded process wrote when it exited. Returns `None` if the sums
    /// contain copies without paths, which files from earlier versions do.
    pub fn from_sums(profile: &Profile) -> Option<Self> {
        let mut all = Self::default();
        for (path, weight) in profile.copies() {
            all.add(*path, *weight);
        }
        let has_copies = || profile.works().iter().any(|work| matches!(work.work, Work::Copy(_)));
        (!all.0.is_empty() || !has_copies()).then_some(all)
    }

    /// Iterates over the paths of copies and their sums, ordered by device, direction and kinds of memory.
    pub fn iter(&self) -> impl Iterator<Item = (&CopyPath, &Weight)> {
        self.0.iter()
    }

    fn add(&mut self, path: CopyPath, weight: Weight) {
        let sum = self.0.entry(path).or_default();
        sum.count += weight.count;
        sum.nanos = sum.nanos.saturating_add(weight.nanos);
        sum.bytes = sum.bytes.saturating_add(weight.bytes);
    }
}

impl Sink for CopySums {
    fn activity(&mut self, activity: &Activity, _: Origin) {
        let (Detail::Copy(copy), Some(nanos)) = (activity.detail, activity.duration()) else { return };
        let CopyDetail { kind, from, to, bytes, .. } = copy;
        let path = CopyPath { device: activity.device, kind, from, to };
        self.add(path, Weight { count: 1, nanos, bytes });
    }

    fn pending(&mut self, _: CorrelationId, _: Launched) {}
}

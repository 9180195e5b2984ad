//! What a run comes to so far, for a program that asks in mid-run.

use std::cmp::Reverse;

use crate::control::{steps, window};
use crate::explain::{Ledger, Snapshot};
use crate::profile::{Profile, StringId, WorkStats};
use crate::record::{IdMap, Work};
use crate::symbolize;

/// What all windows so far come to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// What was seen and what became of it, as if the process ended now: what the GPU has not completed stands as
    /// launches that are pending.
    pub ledger: Ledger,
    /// All kernels, over all GPUs, those that took most time first.
    pub kernels: Vec<KernelTime>,
    /// How many windows were opened, the present one among them.
    pub windows: u32,
    /// How many times [`step`](crate::step) was called.
    pub steps: u64,
}

/// How long a kernel ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// Its name, demangled.
    pub name: String,
    /// How many times it ran.
    pub count: u64,
    /// How many nanoseconds in all.
    pub nanos: u64,
}

impl Stats {
    pub(super) fn of(snapshot: Snapshot<'_>) -> Self {
        let Snapshot { profile, ledger } = snapshot;
        let (windows, steps) = (window::state().openings(), steps::count());
        Self { kernels: kernels(profile, usize::MAX, symbolize::kernel_name), ledger, windows, steps }
    }
}

/// The kernels of a profile by their time, over all devices, `most` of them; `named` makes a name of what the profile
/// has.
pub(super) fn kernels(profile: &Profile, most: usize, named: impl Fn(&str) -> String) -> Vec<KernelTime> {
    let mut sums: IdMap<Option<StringId>, (u64, u64)> = IdMap::default();
    for WorkStats { work, weight, .. } in profile.works() {
        let Work::Kernel(id) = *work else { continue };
        let (nanos, count) = sums.entry(profile.kernel_text(id)).or_default();
        *nanos += weight.nanos;
        *count += weight.count;
    }
    let text = |id: Option<StringId>| id.map_or("[unnamed kernel]", |id| profile.strings().get(id));
    let mut sums: Vec<_> =
        sums.into_iter().map(|(id, (nanos, count))| (Reverse(nanos), text(id), count)).collect();
    if let Some(last) = most.checked_sub(1).filter(|last| *last < sums.len()) {
        sums.select_nth_unstable(last);
        sums.truncate(most);
    }
    let mut kernels: Vec<_> = sums
        .into_iter()
        .map(|(Reverse(nanos), name, count)| KernelTime { name: named(name), count, nanos })
        .collect();
    kernels.sort_by(|a, b| (Reverse(a.nanos), &a.name).cmp(&(Reverse(b.nanos), &b.name)));
    kernels
}

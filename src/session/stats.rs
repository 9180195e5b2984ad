//! What a run comes to so far, for a program that asks in mid-run.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::control::{steps, window};
use crate::explain::{Ledger, Snapshot};
use crate::profile::{Profile, WorkStats};
use crate::record::Work;
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
        Self { kernels: kernels(profile, symbolize::kernel_name), ledger, windows, steps }
    }
}

/// The kernels of a profile by their time, over all devices; `named` makes a name of what the profile has.
pub(super) fn kernels(profile: &Profile, named: impl Fn(&str) -> String) -> Vec<KernelTime> {
    let mut kernels: HashMap<&str, (u64, u64)> = HashMap::new();
    for WorkStats { work, weight, .. } in profile.works() {
        let Work::Kernel(id) = *work else { continue };
        let name = profile.kernel(id).unwrap_or("[unnamed kernel]");
        let (nanos, count) = kernels.entry(name).or_default();
        *nanos += weight.nanos;
        *count += weight.count;
    }
    let kernel = |(name, (nanos, count))| KernelTime { name: named(name), count, nanos };
    let mut kernels: Vec<_> = kernels.into_iter().map(kernel).collect();
    kernels.sort_by(|a, b| (Reverse(a.nanos), &a.name).cmp(&(Reverse(b.nanos), &b.name)));
    kernels
}

//! Computes the results so far for a program that requests them while it runs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::control::{steps, window};
use gpuflame_explain::{Ledger, Snapshot};
use gpuflame_model::profile::{Profile, StringId, WorkStats};
use gpuflame_model::record::Work;
use gpuflame_model::sorting;

/// Results of a run so far, summed over its windows.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Number of launches, activities and losses. Launches whose GPU work is not complete yet count as pending.
    pub ledger: Ledger,
    /// All kernels, summed over all GPUs and sorted by descending total time.
    pub kernels: Vec<KernelTime>,
    /// Number of windows that have been opened so far, counting a window that is currently open.
    pub windows: u32,
    /// Number of steps that the program has begun so far (see [`step`](crate::session::step)).
    pub steps: u64,
}

/// Passes results from the collector to the thread of the program that has requested them. The program's thread must
/// not wait forever for the collector, because the collector may wait forever for memory.
#[derive(Debug, Default)]
pub(super) struct StatsExchange {
    is_requested: AtomicBool,
    result: Mutex<Option<Stats>>,
}

impl StatsExchange {
    /// Requests the results so far. The collector computes the results when it carries out the next request from any
    /// thread.
    pub(super) fn request(&self) {
        self.is_requested.store(true, Ordering::Release);
    }

    /// Computes the results by calling `make`, if they were requested.
    pub(super) fn answer(&self, make: impl FnOnce() -> Stats) {
        if self.is_requested.swap(false, Ordering::AcqRel) {
            let stats = make();
            *self.result.lock() = Some(stats);
        }
    }

    /// Takes the results that the collector has computed. Returns `None` if another thread has already taken the
    /// results.
    pub(super) fn take_result(&self) -> Option<Stats> {
        self.result.lock().take()
    }
}

/// Name of a kernel, its total time and its number of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// Demangled name of the kernel.
    pub name: String,
    /// Number of times that the kernel ran.
    pub count: u64,
    /// Total run time of the kernel in nanoseconds.
    pub nanos: u64,
}

impl Stats {
    pub(super) fn from_snapshot(snapshot: Snapshot<'_>) -> Self {
        let Snapshot { profile, ledger } = snapshot;
        let (windows, steps) = (window::state().openings(), steps::count());
        Self { kernels: all_kernels(profile), ledger, windows, steps }
    }
}

/// Returns all kernels of a profile, summed over all devices and sorted by total time, longest first.
fn all_kernels(profile: &Profile) -> Vec<KernelTime> {
    let sums = KernelSums::from_profile(profile);
    let mut all: Vec<_> = sums.each(profile).collect();
    sorting::sort(&mut all);
    all.into_iter().map(KernelTime::from).collect()
}

/// Returns the `max_count` kernels with the longest total time.
pub(super) fn longest_kernels(profile: &Profile, max_count: usize) -> Vec<KernelTime> {
    let sums = KernelSums::from_profile(profile);
    let mut heaviest = BinaryHeap::new();
    for sum in sums.each(profile) {
        // If there are many kernels, this comparison quickly rejects nearly all of them.
        if heaviest.len() < max_count || heaviest.peek().is_some_and(|least| sum < *least) {
            heaviest.push(sum);
        }
        if heaviest.len() > max_count {
            heaviest.pop();
        }
    }
    heaviest.into_sorted_vec().into_iter().map(KernelTime::from).collect()
}

/// Total time, name and number of runs of a kernel. Values of this type are sorted by total time, longest first.
type KernelSum<'a> = (Reverse<u64>, &'a str, u64);

/// Name, total time and number of runs of each kernel. There is one entry per device and overload. The entries are
/// sorted by name, so entries with equal names are adjacent.
struct KernelSums(Vec<(Option<StringId>, u64, u64)>);

impl KernelSums {
    fn from_profile(profile: &Profile) -> Self {
        let sum = |&WorkStats { work, weight, .. }: &WorkStats| match work {
            Work::Kernel(id) => Some((profile.kernel_text(id), weight.nanos, weight.count)),
            _ => None,
        };
        let mut sums: Vec<_> = profile.works().iter().filter_map(sum).collect();
        sorting::sort(&mut sums);
        Self(sums)
    }

    fn each<'a>(&'a self, profile: &'a Profile) -> impl Iterator<Item = KernelSum<'a>> {
        self.0.chunk_by(|one, other| one.0 == other.0).map(|same| {
            let name = same[0].0.map_or("[unnamed kernel]", |id| profile.strings().get(id));
            let (nanos, count) =
                (same.iter().map(|(_, nanos, _)| nanos), same.iter().map(|(.., count)| count));
            (Reverse(nanos.sum()), name, count.sum())
        })
    }
}

impl From<KernelSum<'_>> for KernelTime {
    fn from((Reverse(nanos), name, count): KernelSum<'_>) -> Self {
        Self { name: name.to_owned(), count, nanos }
    }
}

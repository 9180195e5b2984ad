//! What a run comes to so far, for a program that asks in mid-run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::control::{steps, window};
use crate::explain::{Ledger, Snapshot};
use crate::profile::{Profile, StringId, WorkStats};
use crate::record::Work;

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

/// Stats that are asked for on a thread of the program's, and made by the collector: it may have to wait for memory for good,
/// and nobody may wait for it then.
#[derive(Debug, Default)]
pub(super) struct Asked {
    are_wanted: AtomicBool,
    made: Mutex<Option<Stats>>,
}

impl Asked {
    /// They are wanted: the next visit of the collector that is waited for makes them.
    pub(super) fn ask(&self) {
        self.are_wanted.store(true, Ordering::Release);
    }

    /// Makes them, if they are wanted.
    pub(super) fn answer(&self, make: impl FnOnce() -> Stats) {
        if self.are_wanted.swap(false, Ordering::AcqRel) {
            let made = make();
            *self.made.lock() = Some(made);
        }
    }

    /// What was made. `None`: another thread that asked has it.
    pub(super) fn take(&self) -> Option<Stats> {
        self.made.lock().take()
    }
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
        Self { kernels: kernels(profile), ledger, windows, steps }
    }
}

/// The kernels of a profile by their time, over all devices.
fn kernels(profile: &Profile) -> Vec<KernelTime> {
    let sums = Sums::of(profile);
    let mut all: Vec<_> = sums.each(profile).collect();
    all.sort_unstable();
    all.into_iter().map(KernelTime::from).collect()
}

/// Those `most` of them that took most time.
pub(super) fn heaviest(profile: &Profile, most: usize) -> Vec<KernelTime> {
    let sums = Sums::of(profile);
    let mut heaviest = BinaryHeap::new();
    for sum in sums.each(profile) {
        // Nearly all of many are looked at once, and are not among them.
        if heaviest.len() < most || heaviest.peek().is_some_and(|least| sum < *least) {
            heaviest.push(sum);
        }
        if heaviest.len() > most {
            heaviest.pop();
        }
    }
    heaviest.into_sorted_vec().into_iter().map(KernelTime::from).collect()
}

/// How long kernels of a name ran, and how often. Whoever stands first ran longest.
type Sum<'a> = (Reverse<u64>, &'a str, u64);

/// The same, by name, as it is over devices and overloads; what lies in the order of names is read quickly.
struct Sums(Vec<(Option<StringId>, u64, u64)>);

impl Sums {
    fn of(profile: &Profile) -> Self {
        let sum = |&WorkStats { work, weight, .. }: &WorkStats| match work {
            Work::Kernel(id) => Some((profile.kernel_text(id), weight.nanos, weight.count)),
            _ => None,
        };
        let mut sums: Vec<_> = profile.works().iter().filter_map(sum).collect();
        sums.sort_unstable();
        Self(sums)
    }

    fn each<'a>(&'a self, profile: &'a Profile) -> impl Iterator<Item = Sum<'a>> {
        self.0.chunk_by(|one, other| one.0 == other.0).map(|same| {
            let name = same[0].0.map_or("[unnamed kernel]", |id| profile.strings().get(id));
            let (nanos, count) =
                (same.iter().map(|(_, nanos, _)| nanos), same.iter().map(|(.., count)| count));
            (Reverse(nanos.sum()), name, count.sum())
        })
    }
}

impl From<Sum<'_>> for KernelTime {
    fn from((Reverse(nanos), name, count): Sum<'_>) -> Self {
        Self { name: name.to_owned(), count, nanos }
    }
}

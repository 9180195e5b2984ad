//! GPU work by the user's function that launched it.

use std::collections::BTreeMap;

use super::places::Places;
use gpuflame_model::profile::views::GPU;
use gpuflame_model::profile::{LeafFrame, Profile, SampleSite, add_to};
use gpuflame_model::record::{CopyKind, Work};

/// Number and duration of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) count: u64,
    pub(super) nanos: u64,
}

impl Sum {
    fn add(&mut self, count: u64, nanos: u64) {
        add_to(&mut self.count, count);
        add_to(&mut self.nanos, nanos);
    }

    pub(super) fn mean(self) -> u64 {
        self.nanos / self.count.max(1)
    }
}

/// Work that one function launched.
#[derive(Clone, Debug, Default)]
pub(super) struct Launched {
    pub(super) kernels: Sum,
    /// Kernels that are at most as long as a tiny kernel on average, by stack and name.
    pub(super) tiny: Sum,
    pub(super) to_device: Sum,
    pub(super) to_host: Sum,
    /// Stack with the most copies.
    pub(super) copy_site: Option<(SampleSite, u64)>,
    /// Stack with the most tiny kernels.
    pub(super) tiny_site: Option<(SampleSite, u64)>,
}

/// Work by function, and what is known of the whole run.
#[derive(Debug, Default)]
pub(super) struct LaunchedWork {
    pub(super) functions: BTreeMap<String, Launched>,
    /// Number of iterations of the program, as far as the numbers of launches show it.
    pub(super) iterations: u64,
}

impl LaunchedWork {
    pub(super) fn new(profile: &Profile, places: &Places<'_>, max_tiny: u64) -> Self {
        let mut functions: BTreeMap<String, Launched> = BTreeMap::new();
        let mut counts = Vec::new();
        for sample in profile.samples(&GPU) {
            let work = sample.leaf.frames().find_map(|frame| match frame {
                LeafFrame::Work(work) => Some(work),
                _ => None,
            });
            let Some(work) = work else { continue };
            let (nanos, count) = (sample.amount(), sample.count());
            counts.push(count);
            let launched = functions.entry(places.of(sample.site).function.clone()).or_default();
            let most = |site: &mut Option<(SampleSite, u64)>| {
                if site.is_none_or(|(_, known)| count > known) {
                    *site = Some((sample.site, count));
                }
            };
            match work {
                Work::Kernel(_) | Work::Graph => {
                    launched.kernels.add(count, nanos);
                    if nanos <= count.saturating_mul(max_tiny) {
                        launched.tiny.add(count, nanos);
                        most(&mut launched.tiny_site);
                    }
                }
                Work::Copy(kind) => {
                    let sum =
                        if kind == CopyKind::DTOH { &mut launched.to_host } else { &mut launched.to_device };
                    sum.add(count, nanos);
                    most(&mut launched.copy_site);
                }
                Work::Set => {}
            }
        }
        Self { functions, iterations: iterations(profile, counts) }
    }

    pub(super) fn of(&self, function: &str) -> Launched {
        self.functions.get(function).cloned().unwrap_or_default()
    }
}

/// Returns the number of steps, or else the lower quartile of the numbers of launches of stacks that launch repeatedly.
fn iterations(profile: &Profile, mut counts: Vec<u64>) -> u64 {
    let steps = profile.step_count();
    if steps > 1 {
        return steps;
    }
    counts.retain(|count| *count >= 5);
    counts.sort_unstable();
    counts.get(counts.len() / 4).copied().unwrap_or(1)
}

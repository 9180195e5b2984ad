//! Sums up the GPU work that each function in the user's code launched.

use std::collections::BTreeMap;

use super::super::work_spans::WorkSpan;
use super::places::{NameNumber, Places};
use gpuflame_model::profile::views::GPU;
use gpuflame_model::profile::{LeafFrame, Profile, SampleSite, add_to, saturating_sum};
use gpuflame_model::record::{CopyKind, IdMap, Work};

/// Number of GPU operations, and their total duration in ns.
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

/// GPU work that one function launched.
#[derive(Clone, Debug, Default)]
pub(super) struct Launched {
    pub(super) kernels: Sum,
    /// Sum of the tiny kernels. All kernels with the same stack and kernel name count as tiny if their average duration
    /// does not exceed a limit.
    pub(super) tiny: Sum,
    pub(super) to_device: Sum,
    pub(super) to_host: Sum,
    /// Stack that launched more copies than any other stack, and the number of its copies.
    pub(super) copy_site: Option<(SampleSite, u64)>,
    /// Stack that launched more tiny kernels than any other stack, and the number of its tiny kernels.
    pub(super) tiny_site: Option<(SampleSite, u64)>,
}

/// GPU work for each function, and the number of iterations of the run.
#[derive(Debug, Default)]
pub(super) struct LaunchedWork {
    pub(super) functions: BTreeMap<String, Launched>,
    /// Number of iterations of the program. If the run has no steps, the number of iterations is estimated from how
    /// often stacks launch.
    pub(super) iterations: u64,
}

impl LaunchedWork {
    /// Sums up the GPU work in the steady part of a run. `spans` contains the single activities of the steady part.
    /// `spans` is `None` for a recording of sums. If `spans` is `None`, the sums of the whole run are scaled to the
    /// steady part.
    pub(super) fn new(
        profile: &Profile,
        places: &Places<'_>,
        spans: Option<&[WorkSpan]>,
        max_tiny: u64,
    ) -> Self {
        let mut sums: IdMap<(SampleSite, Work), Sum> = IdMap::default();
        let mut add = |site: SampleSite, work: Work, count: u64, nanos: u64| {
            sums.entry((site, work)).or_default().add(count, nanos);
        };
        if let Some(spans) = spans {
            let (begin, end) =
                profile.steady().map_or((0, u64::MAX), |steady| (steady.begin.0, steady.end.0));
            for span in spans.iter().filter(|span| span.start >= begin && span.start < end) {
                let context = span.launched().map(|launched| launched.context);
                let site = context.map_or(SampleSite::NoStack, SampleSite::Context);
                add(site, span.work, 1, span.end - span.start);
            }
        } else {
            let busy = saturating_sum(profile.times().iter().map(|time| time.busy)).max(1);
            let steady = saturating_sum(profile.times().iter().map(|time| time.steady().busy));
            let part = |value: u64| (u128::from(value) * u128::from(steady) / u128::from(busy)) as u64;
            for sample in profile.samples(&GPU) {
                let work = sample.leaf.frames().find_map(|frame| match frame {
                    LeafFrame::Work(work) => Some(work),
                    _ => None,
                });
                if let Some(work) = work {
                    add(sample.site, work, part(sample.count()), part(sample.amount()));
                }
            }
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_unstable_by_key(|(key, _)| *key);
        let mut functions: BTreeMap<String, Launched> = BTreeMap::new();
        // Places with equal names count as one place. One place can have several launch contexts, and sums and single
        // activities can have different launch contexts for it.
        let mut counts: BTreeMap<(Box<[NameNumber]>, Work), u64> = BTreeMap::new();
        for ((site, work), sum) in sums {
            let Sum { count, nanos } = sum;
            let place = places.of(site);
            add_to(counts.entry((place.frames.clone(), work)).or_default(), count);
            let launched = functions.entry(place.function.to_string()).or_default();
            let most = |known: &mut Option<(SampleSite, u64)>| {
                if known.is_none_or(|(_, most)| count > most) {
                    *known = Some((site, count));
                }
            };
            match work {
                Work::Kernel(_) | Work::Graph => {
                    launched.kernels.add(count, nanos);
                    // Graph nodes do not count as tiny kernels, because they are not launched one by one.
                    let is_node = site.launch().is_ok_and(|context| profile.launches_graph(context));
                    if nanos <= count.saturating_mul(max_tiny) && !is_node {
                        launched.tiny.add(count, nanos);
                        most(&mut launched.tiny_site);
                    }
                }
                // Copies between GPUs are ignored, because the host does not wait for them.
                Work::Copy(kind) if kind == CopyKind::DTOH || kind == CopyKind::HTOD => {
                    let is_to_host = kind == CopyKind::DTOH;
                    if is_to_host { &mut launched.to_host } else { &mut launched.to_device }
                        .add(count, nanos);
                    most(&mut launched.copy_site);
                }
                Work::Copy(_) | Work::Set => {}
            }
        }
        Self { functions, iterations: iterations(profile, counts.into_values().collect()) }
    }

    pub(super) fn of(&self, function: &str) -> Launched {
        self.functions.get(function).cloned().unwrap_or_default()
    }
}

/// Returns the number of iterations. If the run has steps, each step is an iteration. If it has no steps, the number of
/// iterations is estimated by the lower quartile of the launch counts of all stacks that launch repeatedly.
fn iterations(profile: &Profile, mut counts: Vec<u64>) -> u64 {
    let steps = profile.step_count();
    if steps > 1 {
        return steps;
    }
    counts.retain(|count| *count >= 5);
    counts.sort_unstable();
    counts.get(counts.len() / 4).copied().unwrap_or(1)
}

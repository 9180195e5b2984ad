//! Creates the page's tables about GPU work: kernels with their launch delays, and functions with the work that they
//! launched.

use std::collections::{BTreeMap, BTreeSet};

use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_export::{NameFolding, folded_names, user_function, work_name};
use gpuflame_model::profile::views::{CPU, GPU, OFF_CPU};
use gpuflame_model::profile::{Profile, add_to};
use gpuflame_model::record::{Activity, CorrelationId, IdMap, Work};
use gpuflame_offline::analysis::{Durations, LaunchDelays};

/// Durations for each kind of GPU work, for the comparison of two runs. The durations of GPU work are collected from
/// the run's activities.
#[derive(Default)]
pub(super) struct WorkDurations(IdMap<Work, Durations>);

impl WorkDurations {
    /// Returns the durations from the sums that a process wrote at its exit.
    pub(super) fn from_sums(profile: &Profile) -> Self {
        let mut all = Self::default();
        for spread in profile.spreads() {
            let durations = Durations::from_sums(spread.count, spread.nanos, spread.squares);
            all.0.entry(spread.work).or_default().add_all(durations);
        }
        all
    }
}

impl Sink for WorkDurations {
    fn activity(&mut self, activity: &Activity, _: Origin) {
        if let Some(nanos) = activity.duration() {
            self.0.entry(activity.work()).or_default().add(nanos);
        }
    }

    fn pending(&mut self, _: CorrelationId, _: Launched) {}
}

/// Sums for one kernel, copy direction or fill over all runs of the page. All times in these sums are in ns.
#[derive(Default)]
pub(super) struct KernelRow {
    pub(super) nanos: u64,
    pub(super) count: u64,
    pub(super) min: u64,
    pub(super) max: u64,
    /// 50th and 95th percentile of the durations in ns. `None` if the work ran in several runs or on several GPUs.
    pub(super) percentiles: Option<[u64; 2]>,
    /// Number of combinations of a run and a GPU in which this work ran.
    parts: u64,
    pub(super) delay: DelaySums,
    pub(super) durations: Durations,
    pub(super) is_kernel: bool,
}

/// Launch delays of one kernel, copy direction or fill, in ns.
#[derive(Default)]
pub(super) struct DelaySums {
    pub(super) nanos: u64,
    pub(super) count: u64,
    /// 95th percentile of the delays in ns. `None` if the work ran in several runs.
    pub(super) p95: Option<u64>,
    parts: u64,
}

/// Times in ns of a function including its callees. `own` is the GPU time of the work that the function itself
/// launched.
#[derive(Default)]
pub(super) struct FunctionRow {
    pub(super) gpu: u64,
    pub(super) own: u64,
    pub(super) cpu: u64,
    pub(super) waiting: u64,
}

/// Sums over all runs of the page, for each name of GPU work and for each function.
#[derive(Default)]
pub(super) struct WorkSums {
    pub(super) kernels: BTreeMap<String, KernelRow>,
    pub(super) functions: BTreeMap<String, FunctionRow>,
    pub(super) has_cpu: bool,
    pub(super) has_waiting: bool,
}

impl WorkSums {
    /// Adds the GPU work and the functions of a run.
    pub(super) fn add(
        &mut self,
        profile: &Profile,
        (delays, durations): (&LaunchDelays, &WorkDurations),
        names: NameFolding,
    ) {
        for work in profile.works() {
            let row = self.kernels.entry(work_name(profile, work.work).into_owned()).or_default();
            row.min = if row.parts == 0 { work.min } else { row.min.min(work.min) };
            row.max = row.max.max(work.max);
            add_to(&mut row.nanos, work.weight.nanos);
            add_to(&mut row.count, work.weight.count);
            row.parts += 1;
            row.percentiles = (row.parts == 1).then(|| [work.percentiles[0], work.percentiles[1]]);
            row.is_kernel = matches!(work.work, Work::Kernel(_));
        }
        for (work, durations) in &durations.0 {
            let name = work_name(profile, *work).into_owned();
            self.kernels.entry(name).or_default().durations.add_all(*durations);
        }
        for (work, delay) in delays.iter() {
            let sums = &mut self.kernels.entry(work_name(profile, work).into_owned()).or_default().delay;
            add_to(&mut sums.nanos, delay.sum());
            add_to(&mut sums.count, delay.count());
            sums.parts += 1;
            sums.p95 = (sums.parts == 1).then(|| delay.percentile(95));
        }
        self.has_cpu |= profile.has(&CPU);
        self.has_waiting |= profile.has(&OFF_CPU);
        self.add_functions(profile, names);
    }

    fn add_functions(&mut self, profile: &Profile, names: NameFolding) {
        let times: [fn(&mut FunctionRow) -> &mut u64; 3] =
            [|row| &mut row.gpu, |row| &mut row.cpu, |row| &mut row.waiting];
        for (view, time) in [&GPU, &CPU, &OFF_CPU].into_iter().zip(times) {
            let mut by_site = BTreeMap::new();
            profile
                .samples(view)
                .iter()
                .for_each(|sample| add_to(by_site.entry(sample.site).or_default(), sample.amount()));
            for (site, nanos) in by_site {
                let frames = folded_names(profile, site, names);
                for frame in frames.iter().collect::<BTreeSet<_>>() {
                    let row = self.functions.entry(frame.to_string()).or_default();
                    add_to(time(row), nanos);
                }
                if view == &GPU
                    && let Some(row) = user_function(profile, site, names)
                        .and_then(|function| self.functions.get_mut(&function))
                {
                    add_to(&mut row.own, nanos);
                }
            }
        }
    }
}

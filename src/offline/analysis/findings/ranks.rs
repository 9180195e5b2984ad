//! Findings about a job with several ranks: which rank delays the other ranks, and why.

use std::collections::{BTreeMap, BTreeSet};

use super::super::arrivals::{CollectiveKernel, CollectiveKernels, shift_collectives};
use super::super::communication::CommunicationFilter;
use super::super::rank_clocks::base_shifts;
use super::super::stragglers::{RankTime, StragglerVerdict, compare_ranks, median};
use super::clocks::clock_difference;
use super::collective_waits::{exposed_spans, exposed_waits};
use super::places::Places;
use super::rules::{RunCosts, RunEvidence, classes_of_work, findings_of, run_costs};
use super::steps::step_times;
use super::thresholds::{MIN_COST_PERCENT, MIN_STEPS, MIN_UNEVEN_PERCENT};
use super::{Cost, Finding};
use gpuflame_export::{percent, work_name};
use gpuflame_model::profile::views::{GPU, IDLE, idle_word};
use gpuflame_model::profile::{Cause, LeafFrame, Sample, add_to, format_nanos};
use gpuflame_model::record::Work;

/// A rank of a job, with the results of analysing its own run.
#[derive(Debug)]
pub struct RankRun {
    /// Id of the rank.
    pub rank: u32,
    /// Durations of work and communication, in total and for each step.
    pub time: RankTime,
    /// GPU time in ns, keyed by the kernel and by the user's function that launched it. Communication kernels are
    /// excluded.
    pub work: BTreeMap<(String, String), u64>,
    /// Idle time in ns in which the host was late, for each place in the host's code.
    pub late_at: BTreeMap<String, u64>,
    /// Start, end and GPU of the executions of communication kernels, grouped by kernel name.
    pub collectives: CollectiveKernels,
    /// Periods of the steady part in which the GPU communicated but did not compute. If the rank has several GPUs, only
    /// the GPU with the longest such periods in total counts.
    pub exposed: Vec<(i64, i64)>,
    /// Costs that were found in the rank's own run.
    pub costs: RunCosts,
    /// Time in ns to which the times in the rank's trace are relative, or `None` if it is unknown.
    clock_base: Option<i64>,
}

impl RankRun {
    /// Creates the data of a rank from its run.
    pub fn new(rank: u32, run: &RunEvidence<'_>) -> Self {
        let profile = run.profile;
        let places = Places::new(profile);
        let (mut time, mut work) = (RankTime::default(), BTreeMap::new());
        for stats in profile.works() {
            time.add(stats.work, &work_name(profile, stats.work), stats.weight.nanos);
        }
        // If there are single activities, work is assigned to the step during which it was launched. If there are only
        // sums, work is assigned to the step during which it began.
        match step_times(profile, run.spans.as_slice()) {
            Some(steps) if !run.has_only_sums => time.steps = steps,
            _ => time.add_steps(profile.step_series()),
        }
        let filter = CommunicationFilter::default();
        for sample in profile.samples(&GPU) {
            let kind = sample.leaf.frames().find_map(|frame| match frame {
                LeafFrame::Work(work) => Some(work),
                _ => None,
            });
            let Some(kind) = kind else { continue };
            let name = work_name(profile, kind).into_owned();
            if !filter.is_communication(kind, &name) {
                let function = places.of(sample.site).function.to_string();
                add_to(work.entry((name, function)).or_default(), sample.amount());
            }
        }
        let mut late_at = BTreeMap::new();
        let is_late = |sample: &&Sample| idle_word(sample) == Cause::HostLate.word();
        let idle = profile.samples(&IDLE).iter().filter(|sample| sample.root_mark.is_none());
        for sample in idle.filter(is_late) {
            add_to(late_at.entry(places.of(sample.site).words.clone()).or_default(), sample.amount());
        }
        // Converts times of the rows to the clock of the trace.
        let offset = run.linked.map_or(0, |linked| linked.offset);
        let on_clock = |time: u64| i64::try_from(time).unwrap_or(i64::MAX).saturating_sub(offset);
        let mut collectives = CollectiveKernels::new();
        let mut known: BTreeMap<Work, bool> = BTreeMap::new();
        let mut communicates = |work: Work| {
            let is_kernel = matches!(work, Work::Kernel(_));
            *known
                .entry(work)
                .or_insert_with(|| is_kernel && filter.is_communication(work, &work_name(profile, work)))
        };
        for span in run.spans.as_slice() {
            if communicates(span.work) {
                let name = work_name(profile, span.work);
                let (start, end) = (on_clock(span.start), on_clock(span.end));
                let kernel = CollectiveKernel { start, end, device: run.spans.device_of(span).0 };
                collectives.entry(name.into_owned()).or_default().push(kernel);
            }
        }
        let costs = run_costs(run);
        let device =
            costs.found.iter().find(|cost| cost.id == "exposed_communication").map(|cost| cost.device);
        let (begin, end) = profile.steady().map_or((0, u64::MAX), |steady| (steady.begin.0, steady.end.0));
        let mut class = classes_of_work(profile, run.linked);
        let exposed = device.map_or_else(Vec::new, |device| {
            let inside = run.spans.as_slice().iter().filter(|span| span.start >= begin && span.end <= end);
            let inside = inside.filter(|span| Some(run.spans.device_of(span)) == device);
            exposed_spans(inside.map(|span| (on_clock(span.start), on_clock(span.end), class(span.work))))
        });
        let clock_base = run.linked.map_or(Some(0), |linked| linked.clock_base);
        Self { rank, time, work, late_at, collectives, exposed, costs, clock_base }
    }

    /// Adds `shift` (in ns) to the rank's communication times, which converts them to a common clock.
    fn shift_times(&mut self, shift: i64) {
        shift_collectives(&mut self.collectives, shift);
        for (start, end) in &mut self.exposed {
            (*start, *end) = (start.saturating_add(shift), end.saturating_add(shift));
        }
    }
}

/// Runs all checks for lost time on the ranks of a job. If files of some ranks are missing, it is unknown for how long
/// the other ranks waited for these ranks.
pub fn job_findings(mut ranks: Vec<RankRun>, are_ranks_missing: bool) -> Vec<Finding> {
    ranks.sort_by_key(|rank| rank.rank);
    let bases: Vec<Option<i64>> = ranks.iter().map(|rank| rank.clock_base).collect();
    ranks.iter_mut().zip(base_shifts(&bases)).for_each(|(rank, shift)| rank.shift_times(shift));
    let times: Vec<&RankTime> = ranks.iter().map(|rank| &rank.time).collect();
    let verdicts = compare_ranks(&times);
    let is_straggler = |verdict| matches!(verdict, StragglerVerdict::OthersWait | StragglerVerdict::MostWork);
    let straggler = verdicts.iter().position(|rank| is_straggler(rank.verdict));
    let wall = ranks.iter().map(|rank| rank.costs.wall).max().unwrap_or(0);
    let communication: Vec<_> = ranks.iter().map(|rank| (&rank.collectives, &*rank.exposed)).collect();
    let waits = exposed_waits(&communication);
    let known_waits = waits.as_deref().filter(|_| !are_ranks_missing);
    let mut found = common_costs(&ranks, straggler, known_waits, are_ranks_missing);
    match straggler {
        Some(at) => found.push(straggler_cost(&ranks, at, verdicts[at].verdict)),
        None => found.extend(late_in_turn(&ranks, waits.as_deref())),
    }
    found.retain(|cost| percent(cost.nanos, wall) >= MIN_COST_PERCENT);
    let collectives: Vec<_> = ranks.iter().map(|rank| (rank.rank, &rank.collectives)).collect();
    found.extend(clock_difference(&collectives));
    let missing = |id: &str| {
        let reasons = ranks.iter().filter_map(|rank| rank.costs.missing.get(id));
        match id {
            "straggler" | "imbalance" if ranks.iter().any(|rank| rank.time.steps.work.len() < 10) => {
                Some("mark steps, at least ten per rank".into())
            }
            "straggler" | "imbalance" | "clocks_of_ranks" => None,
            _ => reasons.into_iter().next().cloned(),
        }
    };
    findings_of(found, wall, missing)
}

/// Selects the findings about single ranks that matter to the job. A finding matters if most ranks have it, or if it is
/// about the straggler. All other findings do not delay the job, because the ranks that wait for the straggler have
/// time to spare. A rank that waits for another rank communicates for longer, because waiting counts as communication.
/// So the rank with the least communication determines the job's communication time.
fn common_costs(
    ranks: &[RankRun],
    straggler: Option<usize>,
    waits: Option<&[u64]>,
    are_ranks_missing: bool,
) -> Vec<Cost> {
    let keys: BTreeSet<(&'static str, String)> = ranks
        .iter()
        .flat_map(|rank| &rank.costs.found)
        .map(|cost| {
            (cost.id, if cost.id == "exposed_communication" { String::new() } else { cost.function.clone() })
        })
        .collect();
    let mut found = Vec::new();
    for (id, function) in keys {
        let of_rank = |rank: &RankRun| {
            let is_it =
                |cost: &&Cost| cost.id == id && (id == "exposed_communication" || cost.function == function);
            rank.costs.found.iter().filter(is_it).max_by_key(|cost| cost.nanos).cloned()
        };
        let costs: Vec<Option<Cost>> = ranks.iter().map(of_rank).collect();
        let nanos: Vec<u64> = costs.iter().map(|cost| cost.as_ref().map_or(0, |cost| cost.nanos)).collect();
        let common = if id == "exposed_communication" {
            nanos.iter().copied().min().unwrap_or(0)
        } else {
            median(&nanos)
        };
        let own = straggler.and_then(|at| costs[at].clone()).filter(|_| id != "exposed_communication");
        if common > 0 {
            let typical = costs.into_iter().flatten().min_by_key(|cost| cost.nanos.abs_diff(common));
            let why = |cost: &Cost| match id {
                "exposed_communication" => {
                    let least = nanos.iter().position(|nanos| *nanos == common).unwrap_or(0);
                    let waiting = match waits.map(|waits| waits[least].min(common)) {
                        Some(0) => String::new(),
                        Some(waited) => {
                            format!(", {} of which were waiting for the last rank", format_nanos(waited))
                        }
                        None if are_ranks_missing => {
                            ", which may include waiting for the missing ranks".to_owned()
                        }
                        None => ", which includes waiting for late ranks".to_owned(),
                    };
                    format!(
                        "nothing was computed during {} of communication{waiting}, even on the rank that waits least",
                        format_nanos(common)
                    )
                }
                _ => cost.why.clone(),
            };
            found.extend(typical.map(|cost| Cost { nanos: common, why: why(&cost), ..cost }));
        } else if let (Some(cost), Some(at)) = (own, straggler) {
            let words = format!("{} on rank {}", cost.words, ranks[at].rank);
            found.push(Cost { words, rank: Some(ranks[at].rank), ..cost });
        }
    }
    found
}

/// Ids of the findings about the host.
const OF_HOST: [&str; 11] = [
    "data_loader_late",
    "sync_read",
    "sync_wait",
    "launch_bound",
    "allocation_in_loop",
    "gc_pauses",
    "recompilation",
    "lock_wait",
    "pauses",
    "host_work",
    "starved_thread",
];

/// Returns the finding about the rank that delays the other ranks. If the late rank needs more GPU time than the other
/// ranks, and mostly in one function, the work is divided unevenly. If nearly all kernels of the late rank take longer,
/// or its host is late, the rank is slow.
fn straggler_cost(ranks: &[RankRun], at: usize, verdict: StragglerVerdict) -> Cost {
    let own = &ranks[at];
    let others: Vec<&RankRun> =
        ranks.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, rank)| rank).collect();
    let of_others =
        |of: &dyn Fn(&RankRun) -> u64| median(&others.iter().map(|rank| of(rank)).collect::<Vec<_>>());
    let waited = of_others(&|rank| rank.time.communication).saturating_sub(own.time.communication);
    let more_work = own.time.work.saturating_sub(of_others(&|rank| rank.time.work));
    // If a rank computes while it waits for another rank, the wait costs no time.
    let exposed = others.iter().filter_map(|rank| rank.costs.exposed).collect::<Vec<_>>();
    let waited = if exposed.is_empty() { waited } else { waited.min(median(&exposed)) };
    let nanos = if verdict == StragglerVerdict::OthersWait { waited } else { more_work };
    let mut by_function: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut slower, mut all) = (0_u64, 0_u64);
    for ((kernel, function), time) in &own.work {
        let usual =
            of_others(&|rank| rank.work.get(&(kernel.clone(), function.clone())).copied().unwrap_or(0));
        let more = time.saturating_sub(usual);
        all = all.saturating_add(usual);
        if more.saturating_mul(100) > usual.saturating_mul(3) {
            slower = slower.saturating_add(usual);
        }
        *by_function.entry(function).or_default() += more;
    }
    let most = by_function.into_iter().max_by_key(|(_, more)| *more);
    let rank = own.rank;
    let works_more = more_work.saturating_mul(2) >= nanos;
    let is_uneven = slower.saturating_mul(100) < all.saturating_mul(100 - MIN_UNEVEN_PERCENT);
    match most.filter(|(_, more)| works_more && is_uneven && more.saturating_mul(2) >= more_work) {
        Some((function, more)) => Cost {
            id: "imbalance",
            nanos,
            count: 1,
            why: format!(
                "in {function}, rank {rank} works {} longer than the other ranks, which wait {}",
                format_nanos(more),
                format_nanos(nanos)
            ),
            words: format!("in {function} on rank {rank}"),
            rank: Some(rank),
            ..Cost::default()
        },
        None => {
            let reason = match works_more {
                true => format!("its GPU works {} longer", format_nanos(more_work)),
                false => format!("its host is late {}", late_place(own, &others)).trim_end().to_owned(),
            };
            Cost {
                id: "straggler",
                nanos,
                count: 1,
                why: format!("the other ranks wait {} for rank {rank}: {reason}", format_nanos(nanos)),
                words: format!("rank {rank}"),
                rank: Some(rank),
                ..Cost::default()
            }
        }
    }
}

/// For each place in the host's code, compares the idle time of the late rank's GPU with the median of the other ranks,
/// and returns the place with the largest difference. If no place has more idle time, returns the place of the late
/// rank's largest finding about the host that no other rank has. Returns an empty string if neither such a place nor
/// such a finding exists.
fn late_place(own: &RankRun, others: &[&RankRun]) -> String {
    let of_others = |place: &String| {
        median(&others.iter().map(|rank| rank.late_at.get(place).copied().unwrap_or(0)).collect::<Vec<_>>())
    };
    let more = own.late_at.iter().map(|(place, nanos)| (nanos.saturating_sub(of_others(place)), place));
    let most = more.filter(|(nanos, place)| *nanos > 0 && !place.is_empty()).max();
    if let Some((_, place)) = most {
        return place.clone();
    }
    let has = |rank: &&RankRun, cost: &Cost| {
        rank.costs.found.iter().any(|other| (other.id, &other.function) == (cost.id, &cost.function))
    };
    let is_own = |cost: &&Cost| OF_HOST.contains(&cost.id) && !others.iter().any(|rank| has(rank, cost));
    let host = own.costs.found.iter().filter(is_own).max_by_key(|cost| cost.nanos);
    host.map_or_else(String::new, Cost::culprit)
}

/// Returns the finding that different ranks are late in different steps. In each step, the other ranks wait for one
/// rank. But over all steps, no single rank causes more than half of the waiting time. Inputs of different lengths can
/// make different ranks late in different steps.
fn late_in_turn(ranks: &[RankRun], waits: Option<&[u64]>) -> Option<Cost> {
    let steps = ranks.iter().map(|rank| rank.time.steps.communication.len()).min()?;
    let all_communicate = ranks.iter().all(|rank| rank.time.communication > 0);
    if ranks.len() < 2 || steps < MIN_STEPS || !all_communicate {
        return None;
    }
    let mut by_rank = vec![0_u64; ranks.len()];
    let mut by_work = 0_u64;
    for step in 0..steps {
        let of_step = |rank: &RankRun| rank.time.steps.communication[step];
        let Some(last) = (0..ranks.len()).min_by_key(|at| of_step(&ranks[*at])) else { continue };
        let others = |of: &dyn Fn(&RankRun) -> u64| {
            let others = ranks.iter().enumerate().filter(|(at, _)| *at != last);
            median(&others.map(|(_, rank)| of(rank)).collect::<Vec<_>>())
        };
        let waited = others(&of_step).saturating_sub(of_step(&ranks[last]));
        add_to(&mut by_rank[last], waited);
        let work = |rank: &RankRun| rank.time.steps.work.get(step).copied().unwrap_or(0);
        add_to(&mut by_work, work(&ranks[last]).saturating_sub(others(&work)).min(waited));
    }
    let waited: u64 = by_rank.iter().sum();
    let exposed: Vec<u64> = ranks.iter().filter_map(|rank| rank.costs.exposed).collect();
    let nanos = match waits {
        Some(waits) => median(waits),
        None if exposed.is_empty() => waited,
        None => waited.min(median(&exposed)),
    };
    let most = by_rank.iter().copied().max()?;
    if most.saturating_mul(2) > waited {
        return None;
    }
    let late = by_rank.iter().filter(|nanos| **nanos > 0).count();
    let reason = if by_work.saturating_mul(2) >= waited {
        "the one with more GPU work"
    } else {
        "the one whose host is late"
    };
    Some(Cost {
        id: "imbalance",
        nanos,
        count: steps as u64,
        why: format!(
            "{late} ranks are late in turn: in each step the others wait for {reason}, in all {}; give all ranks the same work per step",
            format_nanos(nanos)
        ),
        ..Cost::default()
    })
}

//! Findings about slow steps, and about kernels whose durations change during the run.

use super::super::mann_whitney::differ_at_one_percent;
use super::super::stragglers::{StepTimes, median};
use super::super::work_spans::{PlausibleSpans, WorkSpan};
use super::Cost;
use super::thresholds::{
    MAX_SPREAD_PERCENT, MAX_WARM_UP_PERCENT, MIN_SLOW_STEP_PERCENT, MIN_SLOWDOWN_PERCENT, MIN_STEPS,
};
use gpuflame_explain::communication::is_communication_kernel;
use gpuflame_model::profile::{Profile, StepGroup, add_to, format_nanos, saturating_sum};
use gpuflame_model::record::{ContextId, CopyKind, IdMap, NameId, Work};

/// Warm-up of a run, which are the first steps if they took longer than the later steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WarmUp {
    pub(super) steps: usize,
    /// Start of the first warm-up step. The warm-up ends at the end of the last warm-up step.
    pub(super) begin: u64,
    pub(super) end: u64,
    /// Total time by which the warm-up steps took longer than the median step, in ns.
    pub(super) excess: u64,
}

/// Returns the steps with a known duration. Returns an empty list if any entry of the step series is a group of several
/// steps.
fn single_steps(profile: &Profile) -> Vec<StepGroup> {
    let series = profile.step_series();
    let kind = (0..series.kinds.len()).max_by_key(|kind| series.kinds[*kind].nanos);
    let is_main = |group: &&StepGroup| group.kind.map(usize::from) == kind && group.nanos() > 0;
    let steps: Vec<StepGroup> = series.groups.iter().filter(is_main).copied().collect();
    match steps.iter().all(|step| step.steps == 1) {
        true => steps,
        false => Vec::new(),
    }
}

pub(super) fn warm_up(profile: &Profile) -> Option<WarmUp> {
    let steps = single_steps(profile);
    let durations: Vec<u64> = steps.iter().map(StepGroup::nanos).collect();
    if durations.len() < MIN_STEPS {
        return None;
    }
    let usual = median(&durations);
    let is_slow = |nanos: &&u64| nanos.saturating_mul(100) >= usual.saturating_mul(MIN_SLOW_STEP_PERCENT);
    let count = durations.iter().take_while(is_slow).count();
    if count == 0
        || count * 100 > durations.len() * MAX_WARM_UP_PERCENT
        || count == 1 && recurs(&durations, usual)
    {
        return None;
    }
    let excess = saturating_sum(durations[..count].iter().map(|nanos| nanos - usual));
    if !is_narrow(&durations[count..])
        && durations[..count].iter().any(|nanos| *nanos < usual.saturating_mul(2))
    {
        return None;
    }
    Some(WarmUp { steps: count, begin: steps[0].begin.0, end: steps[count - 1].end.0, excess })
}

/// Whether the first step is slow because of additional work that recurs in every N-th step, for example an optimizer
/// step or a checkpoint. Such recurring work is assumed if, for some N, every N-th later step exceeds the usual
/// duration by about as much as the first step does.
fn recurs(durations: &[u64], usual: u64) -> bool {
    let excess = durations[0].saturating_sub(usual);
    let is_as_long = |nanos: &u64| nanos.saturating_sub(usual) >= excess / 10 * 9;
    // The period must be so short that at least two more slow steps follow the first step.
    (2..=(durations.len() - 1) / 2).any(|period| durations.iter().step_by(period).all(is_as_long))
}

/// Number of neighbours on each side of a step. The median work of these neighbours is the usual work of the step.
const NEIGHBOURS: usize = 6;

/// GPU work that was launched during one step.
#[derive(Clone, Copy, Debug, Default)]
struct StepWork {
    number: u64,
    nanos: u64,
    kernels: u64,
}

/// Returns the GPU work of each step. Work is assigned to the step during which it was launched and not to the step
/// during which it ran, because work often runs during the next step.
fn step_work(profile: &Profile, spans: &[WorkSpan]) -> Vec<StepWork> {
    let steps = single_steps(profile);
    let mut work: Vec<StepWork> =
        steps.iter().map(|step| StepWork { number: step.number, ..StepWork::default() }).collect();
    let mut classifier = Classifier::new(profile);
    for span in spans.iter().filter(|span| classifier.is_computation(span.work)) {
        let Some(launched) = span.launched() else { continue };
        let after = steps.partition_point(|step| step.begin <= launched.time);
        if let Some(at) = after.checked_sub(1).filter(|at| launched.time < steps[*at].end) {
            work[at].nanos = work[at].nanos.saturating_add(span.end - span.start);
            work[at].kernels += 1;
        }
    }
    work
}

/// Whether the middle half of the values lies in a range that is narrow compared with the median. If the range is not
/// narrow, step durations vary in any case (for example with the lengths of inputs), and no step counts as slow.
fn is_narrow(values: &[u64]) -> bool {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let [low, middle, high] =
        [1, 2, 3].map(|quarter| sorted.get(sorted.len() * quarter / 4).copied().unwrap_or(0));
    (high - low).saturating_mul(100) <= middle.saturating_mul(MAX_SPREAD_PERCENT)
}

/// Whether the GPU work of a step takes longer than usual although the step has about the usual number of kernels.
fn is_slow_step(step: &StepWork, usual: u64, kernels: u64) -> bool {
    step.nanos.saturating_mul(100) >= usual.saturating_mul(MIN_SLOW_STEP_PERCENT)
        && step.kernels.abs_diff(kernels) * 20 <= kernels
}

/// Distinguishes computation from communication by the names of kernels. Each name is examined once, because a run has
/// millions of kernels but only a few hundred names.
struct Classifier<'a> {
    profile: &'a Profile,
    known: IdMap<NameId, bool>,
}

impl<'a> Classifier<'a> {
    fn new(profile: &'a Profile) -> Self {
        Self { profile, known: IdMap::default() }
    }

    fn communicates(&mut self, work: Work) -> bool {
        match work {
            Work::Kernel(name) => *self
                .known
                .entry(name)
                .or_insert_with(|| self.profile.kernel(name).is_some_and(is_communication_kernel)),
            Work::Copy(kind) => kind == CopyKind::PTOP,
            Work::Graph | Work::Set => false,
        }
    }

    fn is_computation(&mut self, work: Work) -> bool {
        matches!(work, Work::Kernel(_) | Work::Graph) && !self.communicates(work)
    }
}

/// For each step, returns the durations in ns of communication and of other GPU work. Work is assigned to the step
/// during which it was launched. Returns `None` if the times of single steps are unknown.
pub(super) fn step_times(profile: &Profile, spans: &[WorkSpan]) -> Option<StepTimes> {
    let steps = single_steps(profile);
    let (mut work, mut communication) = (vec![0_u64; steps.len()], vec![0_u64; steps.len()]);
    let mut classifier = Classifier::new(profile);
    for span in spans {
        let Some(launched) = span.launched() else { continue };
        let after = steps.partition_point(|step| step.begin <= launched.time);
        let Some(at) = after.checked_sub(1).filter(|at| launched.time < steps[*at].end) else { continue };
        add_to(
            if classifier.communicates(span.work) { &mut communication[at] } else { &mut work[at] },
            span.end - span.start,
        );
    }
    (!steps.is_empty()).then_some(StepTimes { work, communication })
}

/// Returns the GPU work of each iteration of a program without marked steps. The executions of a kernel that were
/// launched from one launch context are used only if their number is a multiple of the number of iterations. If it is a
/// multiple, the kernel is assumed to run equally often in each iteration.
fn iteration_work(profile: &Profile, spans: &[WorkSpan], iterations: u64) -> Vec<StepWork> {
    let count = usize::try_from(iterations).unwrap_or(0);
    if count < MIN_STEPS {
        return Vec::new();
    }
    let mut executions: IdMap<(Work, ContextId), Vec<(u64, u64)>> = IdMap::default();
    let mut classifier = Classifier::new(profile);
    for span in spans.iter().filter(|span| classifier.is_computation(span.work)) {
        let Some(launched) = span.launched() else { continue };
        let key = (span.work, launched.context);
        executions.entry(key).or_default().push((span.start, span.end - span.start));
    }
    let mut work: Vec<StepWork> =
        (1..=iterations).map(|number| StepWork { number, ..StepWork::default() }).collect();
    let (mut known, mut all) = (0_u64, 0_u64);
    for mut times in executions.into_values() {
        times.sort_unstable();
        let nanos = saturating_sum(times.iter().map(|(_, nanos)| *nanos));
        all = all.saturating_add(nanos);
        if times.len().is_multiple_of(count) {
            known = known.saturating_add(nanos);
            for (step, times) in work.iter_mut().zip(times.chunks(times.len() / count)) {
                step.nanos = step.nanos.saturating_add(saturating_sum(times.iter().map(|(_, nanos)| *nanos)));
                step.kernels += times.len() as u64;
            }
        }
    }
    if known > all / 2 { work } else { Vec::new() }
}

/// Returns the finding about steps whose GPU work takes longer than in neighbouring steps although the number of
/// kernels is the same. If the first steps are slow in this way, the finding states that the GPU or its libraries
/// warmed up.
pub(super) fn slow_steps(
    profile: &Profile,
    spans: &[WorkSpan],
    warm_up: usize,
    iterations: u64,
) -> Option<Cost> {
    let work = match single_steps(profile).len() < MIN_STEPS {
        true => iteration_work(profile, spans, iterations),
        false => step_work(profile, spans),
    };
    let work = work.get(warm_up..)?;
    if work.len() < MIN_STEPS {
        return None;
    }
    let of_all = |of: fn(&StepWork) -> u64| median(&work.iter().map(of).collect::<Vec<_>>());
    let (usual, kernels) = (of_all(|step| step.nanos), of_all(|step| step.kernels));
    let warms_up = |step: &&StepWork| is_slow_step(step, usual, kernels);
    let first = if warm_up == 0 { work.iter().take_while(warms_up).count() } else { 0 };
    if first > 1 && first * 100 <= work.len() * MAX_WARM_UP_PERCENT {
        let nanos = saturating_sum(work[..first].iter().map(|step| step.nanos - usual));
        let why = format!(
            "the GPU work of the first {first} steps took {} longer than that of the others; leave them out of averages",
            format_nanos(nanos)
        );
        let launched_by = longest_launcher(spans);
        return Some(Cost { id: "warm_up", nanos, count: first as u64, why, launched_by, ..Cost::default() });
    }
    let (mut nanos, mut slow) = (0_u64, Vec::new());
    for (at, step) in work.iter().enumerate() {
        let around = &work[at.saturating_sub(NEIGHBOURS)..(at + NEIGHBOURS + 1).min(work.len())];
        let usual = median(&around.iter().map(|step| step.nanos).collect::<Vec<_>>());
        let kernels = median(&around.iter().map(|step| step.kernels).collect::<Vec<_>>());
        if is_slow_step(step, usual, kernels) {
            nanos = nanos.saturating_add(step.nanos - usual);
            slow.push(at);
        }
    }
    let usual_steps: Vec<u64> =
        (0..work.len()).filter(|at| !slow.contains(at)).map(|at| work[at].nanos).collect();
    if !is_narrow(&usual_steps) {
        return None;
    }
    let first: Vec<String> = slow.iter().take(5).map(|at| work[*at].number.to_string()).collect();
    let more = if slow.len() > first.len() { ", ..." } else { "" };
    let why = format!(
        "the GPU work of {} of {} steps took {} longer than that of the steps around them: steps {}{more}",
        slow.len(),
        work.len(),
        format_nanos(nanos),
        first.join(", ")
    );
    let launched_by = longest_launcher(spans);
    Some(Cost { id: "slow_steps", nanos, count: slow.len() as u64, why, launched_by, ..Cost::default() })
}

/// Returns the launch context whose kernels have the longest total time.
fn longest_launcher(spans: &[WorkSpan]) -> Option<ContextId> {
    let mut sums: IdMap<ContextId, u64> = IdMap::default();
    for span in spans.iter().filter(|span| matches!(span.work, Work::Kernel(_) | Work::Graph)) {
        if let Some(launched) = span.launched() {
            let sum = sums.entry(launched.context).or_default();
            *sum = sum.saturating_add(span.end - span.start);
        }
    }
    sums.into_iter().max_by_key(|(context, nanos)| (*nanos, *context)).map(|(context, _)| context)
}

/// Returns series of kernel durations, in order of time. Each series contains the executions of one kernel. If a kernel
/// runs several times per iteration, its first, second and further executions in each iteration form separate series,
/// because their work may differ.
fn executions(profile: &Profile, spans: &[WorkSpan], since: u64, iterations: u64) -> Vec<Vec<u64>> {
    let mut found: IdMap<Work, Vec<u64>> = IdMap::default();
    let mut classifier = Classifier::new(profile);
    for span in spans.iter().filter(|span| span.start >= since && classifier.is_computation(span.work)) {
        found.entry(span.work).or_default().push(span.end - span.start);
    }
    let mut all = Vec::new();
    for durations in found.into_values() {
        let per_iteration = durations.len() / usize::try_from(iterations.max(1)).unwrap_or(1);
        // If the number of executions per iteration is not a whole number, all executions of the kernel form one
        // series.
        let is_whole = per_iteration > 1 && (durations.len() as u64).is_multiple_of(iterations);
        let positions = if is_whole { per_iteration } else { 1 };
        all.extend(
            (0..positions)
                .map(|at| durations.iter().skip(at).step_by(positions).copied().collect::<Vec<_>>()),
        );
    }
    all
}

/// Minimum number of executions that a series must have for its early and late durations to be compared.
const MIN_EXECUTIONS: usize = 20;

/// Whether early and late durations are clearly apart. Nine in ten late durations must be longer than the median early
/// duration. Nine in ten early durations must be shorter than the median late duration. So if durations vary with the
/// input, they are not clearly apart, even if a run happens to end with long inputs.
fn is_apart(early: &[u64], late: &[u64]) -> bool {
    let (low, high) = (median(early), median(late));
    let above = late.iter().filter(|nanos| **nanos > low).count();
    let below = early.iter().filter(|nanos| **nanos < high).count();
    above * 10 >= late.len() * 9 && below * 10 >= early.len() * 9
}

/// Returns the finding about kernels that take longer at the end of the run than at the start of the run.
pub(super) fn late_slowdown(
    profile: &Profile,
    all_spans: &PlausibleSpans,
    since: u64,
    iterations: u64,
) -> Option<Cost> {
    let spans = all_spans.as_slice();
    let (mut nanos, mut count, mut early, mut all) = (0_u64, 0, 0_u64, 0_u64);
    let series = executions(profile, spans, since, iterations);
    for durations in series.into_iter().filter(|durations| durations.len() >= MIN_EXECUTIONS) {
        let third = durations.len() / 3;
        let (first, last) = (&durations[..third], &durations[durations.len() - third..]);
        let (usual, late) = (median(first), median(last));
        let is_longer = late.saturating_mul(100) >= usual.saturating_mul(100 + MIN_SLOWDOWN_PERCENT);
        let sum = saturating_sum(durations.iter().copied());
        all = all.saturating_add(sum);
        if usual > 0 && is_longer && is_apart(first, last) && differ_at_one_percent(first, last) {
            let expected = usual.saturating_mul(durations.len() as u64);
            nanos = nanos.saturating_add(sum.saturating_sub(expected));
            early = early.saturating_add(expected);
            count += 1;
        }
    }
    // A lower clock rate slows down nearly all kernels. So a slowdown is ignored if it affects less than half of the
    // work.
    if early == 0 || early.saturating_add(nanos) < all / 2 {
        return None;
    }
    let why = format!(
        "kernels took {} longer than at the beginning of the run ({count} series of executions): the GPU's clock may have dropped, \
         or their work grew",
        format_nanos(nanos)
    );
    let launched_by = longest_launcher(spans);
    let device = spans.first().map(|span| all_spans.device_of(span));
    Some(Cost { id: "late_slowdown", nanos, count, why, launched_by, device, ..Cost::default() })
}

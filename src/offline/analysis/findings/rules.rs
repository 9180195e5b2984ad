//! Lists the findings about lost time, and checks whether a run has the data that each finding needs.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::super::communication::{CommunicationFilter, WorkClass, sum_spans};
use super::super::copies::CopySums;
use super::super::work_spans::{PlausibleSpans, WorkSpan};
use super::host::host_costs;
use super::host_states::HostStates;
use super::launched::LaunchedWork;
use super::lost_time::{LostTime, TraceRun};
use super::pieces::Piece;
use super::places::Places;
use super::steps::{WarmUp, late_slowdown, slow_steps, warm_up};
use super::stream_limit::{free_time, limit_by_stream};
use super::streams::{default_stream, idle_gpu};
use super::thresholds::{
    MAX_TINY_KERNEL_NS, MIN_COST_PERCENT, MIN_LAUNCH_COST_PERCENT, MIN_PAUSE_NS, MIN_STEPS,
};
use super::{Cost, Figures, Finding, Lost, Severity};
use gpuflame_export::{percent, work_name};
use gpuflame_model::profile::views::{CPU, GPU, OFF_CPU, UNIFIED, unified};
use gpuflame_model::profile::{Profile, SampleSite, ShownFrameKind, Weight, format_nanos, saturating_sum};
use gpuflame_model::record::{ContextId, CopyKind, IdMap, Loss, MemoryKind, UnifiedKind, Work};
use gpuflame_traces::import::LinkReport;

/// Data of a run from which the findings about lost time are derived.
#[derive(Clone, Copy, Debug)]
pub struct RunEvidence<'a> {
    /// Sums and names of the run.
    pub profile: &'a Profile,
    /// Single activities, or an empty list if the recording contains only sums.
    pub spans: &'a PlausibleSpans,
    /// States of the host's threads, from traces of other tools.
    pub states: &'a HostStates,
    /// Sums of the copies, grouped by direction and kinds of memory.
    pub copies: &'a CopySums,
    /// Whether the recording contains only sums.
    pub has_only_sums: bool,
    /// Link report, if the trace comes from another tool.
    pub linked: Option<&'a LinkReport>,
}

/// All checks for lost time, as (id, description).
pub(super) const RULES: [(&str, &str); 27] = [
    ("data_loader_late", "input data comes late"),
    ("sync_read", "the host reads values from the GPU"),
    ("sync_wait", "the host waits for the GPU"),
    ("tiny_kernels", "many tiny kernels"),
    ("launch_bound", "launches limit the GPU"),
    ("pageable_copies", "copies of pageable memory"),
    ("sync_copies", "synchronous copies"),
    ("fragmented_copies", "many short copies"),
    ("copies_not_overlapped", "kernels wait for copies"),
    ("default_stream", "streams wait for each other"),
    ("allocation_in_loop", "memory is allocated in the loop"),
    ("gc_pauses", "garbage collection"),
    ("recompilation", "code is compiled or loaded"),
    ("warm_up", "the first steps warm up"),
    ("slow_steps", "slow steps"),
    ("pauses", "pauses"),
    ("exposed_communication", "communication without overlap"),
    ("straggler", "a rank delays the others"),
    ("imbalance", "work is divided unevenly between ranks"),
    ("idle_gpu", "a GPU has less work than another"),
    ("lock_wait", "waits for other threads"),
    ("starved_thread", "the launching thread lacks a processor"),
    ("late_slowdown", "kernels become slower"),
    ("managed_memory", "managed memory moves back and forth"),
    ("profiler_cost", "a profiler costs time"),
    ("host_work", "the host does something else"),
    ("clocks_of_ranks", "the clocks of ranks differ"),
];

/// Costs of a run: the time that the run lost for each reason.
#[derive(Debug, Default)]
pub struct RunCosts {
    pub(super) found: Vec<Cost>,
    /// Ids of the checks that lack data, each with the reason.
    pub(super) missing: BTreeMap<&'static str, Cow<'static, str>>,
    /// Duration of the steady part, in ns.
    pub(super) wall: u64,
    /// Total time in ns in which communication did not overlap with computation, or `None` if it is unknown.
    pub(super) exposed: Option<u64>,
}

/// Runs all checks for lost time on one run, and returns their costs.
pub fn run_costs(run: &RunEvidence<'_>) -> RunCosts {
    let communication = exposed_communication(run.profile, run.spans, run.linked);
    let exposed = communication.as_ref().map_or(0, |cost| cost.nanos);
    let exposed = (!run.has_only_sums).then_some(exposed);
    let found = if has_steady_time(run.profile) { costs(run, communication) } else { Vec::new() };
    let missing = RULES.iter().filter_map(|(id, _)| Some((*id, missing_data(run, id)?))).collect();
    RunCosts { found, missing, wall: wall(run.profile), exposed }
}

/// Runs all checks for lost time on one run, and returns their findings. The findings are sorted by cost, the most
/// expensive first. After the findings come the checks that lacked data, and then the checks that found nothing.
pub fn cost_findings(run: &RunEvidence<'_>) -> Vec<Finding> {
    let RunCosts { found, missing, wall, .. } = run_costs(run);
    findings_of(found, wall, |id| missing.get(id).cloned())
}

/// Returns one finding for each cost in `costs`, and one finding for each check for which `costs` has no cost. For a
/// check that lacks data, the function `missing` returns the reason.
pub(super) fn findings_of(
    mut costs: Vec<Cost>,
    wall: u64,
    missing: impl Fn(&str) -> Option<Cow<'static, str>>,
) -> Vec<Finding> {
    costs.sort_by_key(|cost| (Reverse(cost.nanos), cost.id));
    let mut findings: Vec<Finding> = costs.into_iter().map(|cost| finding(cost, wall)).collect();
    // Findings that mean that figures are wrong come first.
    findings.sort_by_key(|finding| finding.severity);
    let mut others: Vec<Finding> = Vec::new();
    for (id, what) in RULES {
        if findings.iter().any(|finding| finding.id == id) {
            continue;
        }
        let (severity, why) = match missing(id) {
            Some(why) => (Severity::Unknown, why),
            None => (Severity::Absent, Cow::default()),
        };
        others.push(Finding {
            id,
            severity,
            figures: None,
            cost: None,
            what,
            culprit: String::new(),
            function: String::new(),
            rank: None,
            why,
        });
    }
    others.sort_by_key(|finding| finding.severity);
    findings.extend(others);
    findings
}

fn finding(cost: Cost, wall: u64) -> Finding {
    let what = RULES.iter().find(|(id, _)| *id == cost.id).map_or("", |(_, what)| what);
    let is_clock = cost.id == "clocks_of_ranks";
    Finding {
        id: cost.id,
        severity: if is_clock { Severity::Bad } else { Severity::Cost },
        figures: Some(Figures { count: cost.count, of: 0 }),
        cost: (!is_clock).then_some(cost.nanos.min(wall)),
        what,
        culprit: cost.culprit(),
        function: cost.function,
        rank: cost.rank,
        why: cost.why.into(),
    }
}

/// Returns the duration of the steady part of the run, in ns.
fn wall(profile: &Profile) -> u64 {
    profile.times().iter().map(|time| time.steady().window()).max().unwrap_or(0)
}

fn has_steady_time(profile: &Profile) -> bool {
    wall(profile) > 0
}

fn costs(run: &RunEvidence<'_>, communication: Option<Cost>) -> Vec<Cost> {
    let profile = run.profile;
    let places = Places::new(profile);
    let is_trace = run.linked.is_some();
    let busiest = profile.times().iter().max_by_key(|time| time.steady().busy).map(|time| time.device);
    let spans = run.spans;
    // Single activities are used only for traces, because a recording must give the same findings with and without
    // single activities.
    let rows = is_trace.then(|| spans.as_slice());
    let lost = Lost {
        work: LaunchedWork::new(profile, &places, rows, MAX_TINY_KERNEL_NS),
        has_rows: rows.is_some(),
        pageable: (is_pageable(run.copies, CopyKind::HTOD), is_pageable(run.copies, CopyKind::DTOH)),
        is_kernel_time: is_trace,
        wall: wall(profile),
        places: &places,
    };
    let mut found = Vec::new();
    let trace = TraceRun { profile, places: &places, spans, states: run.states, lost: &lost };
    let mut time = match is_trace {
        true => LostTime::of_trace(&trace, busiest),
        false => LostTime::of_recording(profile, &places, busiest),
    };
    let has_own_steps = !has_steps_of_several_processes(run);
    let warm_up = warm_up(profile).filter(|_| has_own_steps);
    let since = warm_up.map_or(0, |warm_up| warm_up.end);
    if let Some(warm_up) = warm_up {
        let piece = take_warm_up(&mut time, &warm_up, profile.step_count());
        found.push(warm_up_cost(&places, &warm_up, piece));
    }
    if profile.idle_doubt().is_none() {
        found.extend(host_costs(&lost, &time.pieces));
        found.extend(starved_thread(profile, &places, &time.pieces));
        let idle_gpu = idle_gpu(profile).filter(|_| !has_several_processes(run));
        found.extend(idle_gpu.map(|cost| Cost { launched_by: most_work(profile), ..cost }));
    }
    let is_covered = profile.coverage().all.is_sufficient();
    if !run.has_only_sums && is_covered {
        let steps = warm_up.map_or(0, |warm_up| warm_up.steps);
        if has_own_steps {
            found.extend(slow_steps(profile, spans.as_slice(), steps, lost.work.iterations));
        }
        let iterations = lost.work.iterations.saturating_sub(steps as u64);
        let late_slowdown = late_slowdown(profile, spans, since, iterations);
        found.extend(late_slowdown.filter(|_| !has_several_processes(run)));
    }
    if let Some(waits) = event_waits(run) {
        found.extend(default_stream(spans, waits));
    }
    found.extend(communication);
    found.extend(managed_memory(profile, &places));
    for cost in &mut found {
        if let (Some(context), true) = (cost.launched_by, cost.words.is_empty()) {
            let place = Cost::at(&places.of(SampleSite::Context(context)));
            (cost.words, cost.function, cost.line) = (place.words, place.function, place.line);
            if let ("idle_gpu", Some(device)) = (cost.id, cost.device.take_if(|_| cost.id == "idle_gpu")) {
                cost.words = format!("GPU {}; most work is launched {}", device.0, cost.words);
            }
        }
    }
    move_to_profiler(&mut found, profiler_time(run));
    let free = time.kernels.and_then(|kernels| free_time(spans, busiest, profile.steady(), kernels));
    if let Some(free) = free {
        limit_by_stream(&lost, &mut found, &time, free);
    }
    let wall = wall(profile).min(time.wall.unwrap_or(u64::MAX));
    let least = |id: &str| if id == "launch_bound" { MIN_LAUNCH_COST_PERCENT } else { MIN_COST_PERCENT };
    found.retain(|cost| percent(cost.nanos, wall) >= least(cost.id));
    // A slowdown late in the run also makes some steps slower than their neighbours. So the finding about slow steps is
    // reported only if it costs more than the finding about the late slowdown.
    let late = found.iter().find(|cost| cost.id == "late_slowdown").map_or(0, |cost| cost.nanos);
    found.retain(|cost| cost.id != "slow_steps" || cost.nanos > late);
    found
}

/// Returns the time in ns in which a profiler worked on the program's threads in the steady part. If the run has no
/// steady part, the time between the first and the last GPU work is used instead. A profiler's work before the first
/// GPU work is ignored, because it delays no kernel.
fn profiler_time(run: &RunEvidence<'_>) -> u64 {
    let spans = run.spans.as_slice();
    let all = || Some((spans.iter().map(|span| span.start).min()?, spans.iter().map(|span| span.end).max()?));
    let steady = run.profile.steady().map(|steady| (steady.begin.0, steady.end.0));
    let (Some(linked), Some((from, to))) = (run.linked, steady.or_else(all)) else { return 0 };
    let within = |&(start, end): &(u64, u64)| end.min(to).saturating_sub(start.max(from));
    linked.profiler_work.iter().map(within).fold(0, u64::saturating_add)
}

/// Moves cost from the finding about launches to the finding about the profiler, but at most the time in which the
/// profiler worked. A profiler adds work to each launch, so without a profiler launches would cost less.
fn move_to_profiler(found: &mut Vec<Cost>, worked: u64) {
    let at_gaps = found.iter().find(|cost| cost.id == "profiler_cost").map_or(0, |cost| cost.nanos);
    let launches = found.iter().position(|cost| cost.id == "launch_bound");
    let moved = launches.map_or(0, |at| found[at].nanos.min(worked.saturating_sub(at_gaps)));
    if worked == 0 || moved == 0 {
        return;
    }
    let nanos = at_gaps + moved;
    let why = format!(
        "a profiler worked for {} on the program's threads, which left the GPU without a kernel for {}",
        format_nanos(worked),
        format_nanos(nanos)
    );
    found.retain(|cost| cost.id != "profiler_cost");
    if let Some(launches) = found.iter_mut().find(|cost| cost.id == "launch_bound") {
        launches.nanos -= moved;
    }
    found.push(Cost { id: "profiler_cost", nanos, count: 1, why, ..Cost::default() });
}

/// Returns the launch context whose GPU work has the longest total duration.
fn most_work(profile: &Profile) -> Option<ContextId> {
    let most = profile.samples(&GPU).iter().max_by_key(|sample| sample.amount())?;
    most.site.launch().ok()
}

/// Whether most bytes that copies move in this direction are in pageable memory on the host's side. If the numbers of
/// bytes are unknown, the durations of the copies are compared instead.
fn is_pageable(copies: &CopySums, kind: CopyKind) -> bool {
    let of_kind = || copies.iter().filter(|(path, _)| path.kind == kind);
    let knows_bytes = of_kind().any(|(_, weight)| weight.bytes > 0);
    let size = |weight: &Weight| if knows_bytes { weight.bytes } else { weight.nanos };
    let all = saturating_sum(of_kind().map(|(_, weight)| size(weight)));
    let is_pageable = |path: &gpuflame_model::profile::CopyPath| {
        let memory = if kind == CopyKind::DTOH { path.to } else { path.from };
        memory == MemoryKind::PAGEABLE
    };
    let pageable =
        saturating_sum(of_kind().filter(|(path, _)| is_pageable(path)).map(|(_, weight)| size(weight)));
    pageable > all / 2
}

/// Returns the number of calls that made streams wait for CUDA events, or `None` if such calls were not recorded.
fn event_waits(run: &RunEvidence<'_>) -> Option<u64> {
    match run.linked {
        Some(linked) => Some(linked.event_wait_calls),
        None => (!run.profile.dependencies().is_empty()).then(|| run.profile.dependencies().wait_calls),
    }
}

/// Removes the warm-up time from the pieces of lost time. The warm-up time is the lost time of the first steps minus
/// the time that the same number of later steps usually lose. Returns the piece with the most warm-up time.
fn take_warm_up(time: &mut LostTime, warm_up: &WarmUp, steps: u64) -> Option<Piece> {
    let in_warm_up = |start: u64| (warm_up.begin..warm_up.end).contains(&start);
    let mut early = vec![(0_u64, 0_u64); time.pieces.len()];
    for gap in time.gaps.iter().filter(|gap| in_warm_up(gap.start)) {
        let (nanos, gaps) = &mut early[gap.piece];
        *nanos += gap.nanos;
        *gaps += 1;
    }
    let later_steps = steps.saturating_sub(warm_up.steps as u64).max(1);
    let mut most: (u64, Option<Piece>) = (0, None);
    if time.gaps.is_empty() {
        // If it is unknown when gaps occurred, gaps are assumed to be in the first steps only if they are rare and
        // long.
        let is_rare = |piece: &Piece| {
            piece.gaps <= 2 * warm_up.steps as u64 && piece.nanos / piece.gaps.max(1) >= MIN_PAUSE_NS
        };
        let mut left = warm_up.excess;
        let mut rare: Vec<usize> = (0..time.pieces.len()).filter(|at| is_rare(&time.pieces[*at])).collect();
        rare.sort_by_key(|at| Reverse(time.pieces[*at].nanos));
        for at in rare {
            let nanos = time.pieces[at].nanos;
            if nanos <= left {
                early[at] = (nanos, time.pieces[at].gaps);
                left -= nanos;
            }
        }
    }
    for (piece, (nanos, gaps)) in time.pieces.iter_mut().zip(early) {
        let usual = piece.nanos.saturating_sub(nanos) / later_steps * warm_up.steps as u64;
        let excess = nanos.saturating_sub(usual).min(piece.nanos);
        if excess > usual {
            if excess > most.0 {
                most = (excess, Some(*piece));
            }
            piece.nanos -= excess;
            piece.gaps = piece.gaps.saturating_sub(gaps);
        }
    }
    most.1
}

fn warm_up_cost(places: &Places<'_>, warm_up: &WarmUp, piece: Option<Piece>) -> Cost {
    let WarmUp { steps, excess, .. } = *warm_up;
    let subject = if steps == 1 { "the first step".to_owned() } else { format!("the first {steps} steps") };
    let why =
        format!("{subject} took {} longer than the others; leave them out of averages", format_nanos(excess));
    let place = piece.map_or_else(Cost::default, |piece| Cost::at(&places.of(piece.site)));
    Cost { id: "warm_up", nanos: excess, count: steps as u64, why, ..place }
}

/// Returns the finding about communication that does not overlap with computation.
fn exposed_communication(
    profile: &Profile,
    spans: &PlausibleSpans,
    linked: Option<&LinkReport>,
) -> Option<Cost> {
    let mut class = classes_of_work(profile, linked);
    let (begin, end) = profile.steady().map_or((0, u64::MAX), |steady| (steady.begin.0, steady.end.0));
    let inside = spans.as_slice().iter().filter(|span| span.start >= begin && span.end <= end);
    let site = |span: &WorkSpan| {
        span.launched().map_or(SampleSite::NoStack, |launched| SampleSite::Context(launched.context))
    };
    if !inside.clone().any(|span| class(span.work) == WorkClass::Communication) {
        return None;
    }
    let (devices, places) = sum_spans(
        inside.map(|span| (spans.device_of(span), span.start, span.end, class(span.work), site(span))),
    );
    let (device, sums) = devices.into_iter().max_by_key(|(_, sums)| sums.exposed)?;
    let (most, share) = places.into_iter().max_by_key(|(_, share)| share.exposed)?;
    let why = format!(
        "nothing was computed during {} of {} of communication, which includes waiting for late ranks",
        format_nanos(sums.exposed),
        format_nanos(sums.all)
    );
    Some(Cost {
        id: "exposed_communication",
        nanos: sums.exposed,
        count: share.count,
        why,
        launched_by: most.launch().ok(),
        device: Some(device),
        ..Cost::default()
    })
}

/// Returns a function that determines the class of GPU work: communication, computation or memory.
pub(super) fn classes_of_work(
    profile: &Profile,
    linked: Option<&LinkReport>,
) -> impl FnMut(Work) -> WorkClass {
    let collectives = linked.map(|linked| linked.collectives.clone()).unwrap_or_default();
    let filter = CommunicationFilter { collectives, ..CommunicationFilter::default() };
    let mut classes = IdMap::default();
    move |work: Work| *classes.entry(work).or_insert_with(|| filter.class(work, &work_name(profile, work)))
}

/// Returns the finding about managed memory that migrates to the GPU and back.
fn managed_memory(profile: &Profile, places: &Places<'_>) -> Option<Cost> {
    let (mut to, mut from, mut nanos, mut count) = (0_u64, 0_u64, 0_u64, 0_u64);
    for sums in unified(profile).filter(|sums| sums.kind.is_move()) {
        let bytes = match sums.kind {
            kind if kind == UnifiedKind::DTOH => &mut from,
            _ => &mut to,
        };
        *bytes = bytes.saturating_add(sums.value);
        nanos = nanos.saturating_add(sums.nanos);
        count += sums.count;
    }
    // Managed memory that fits into GPU memory migrates only once. If managed memory does not fit, some pages migrate
    // back to the host to make room for other pages.
    if from == 0 || from < to / 4 {
        return None;
    }
    let mut prefetches = profile.samples(&GPU).iter().map(|sample| sample.site);
    let prefetch = prefetches.find(|site| places.of(*site).call.contains("MemPrefetch"));
    let place = prefetch.map_or_else(Cost::default, |site| Cost::at(&places.of(site)));
    let mega = |bytes: u64| bytes / 1_000_000;
    let why = format!(
        "{} MB moved to the GPU and {} MB back, in {}: it does not fit, or host and GPU use it in turn",
        mega(to),
        mega(from),
        format_nanos(nanos)
    );
    Some(Cost { id: "managed_memory", nanos, count, why, ..place })
}

/// Returns the finding about a launching thread that was ready to run but did not get a processor. For such a thread,
/// the CPU time and the waits together are shorter than the duration of the run.
fn starved_thread(profile: &Profile, places: &Places<'_>, pieces: &[Piece]) -> Option<Cost> {
    if !profile.has(&CPU) || !profile.has(&OFF_CPU) {
        return None;
    }
    let thread_of = |site: SampleSite| {
        site.launch().ok().and_then(|context| profile.context(context)).map(|context| context.thread)
    };
    let launching = pieces.iter().max_by_key(|piece| piece.nanos).and_then(|piece| thread_of(piece.site))?;
    let of_thread =
        |view| profile.samples(view).iter().filter(|sample| thread_of(sample.site) == Some(launching));
    let on: u64 = saturating_sum(of_thread(&CPU).map(|sample| sample.amount()));
    let samples: u64 = saturating_sum(of_thread(&CPU).map(|sample| sample.count()));
    let off: u64 = saturating_sum(of_thread(&OFF_CPU).map(|sample| sample.amount()));
    let window = profile.times().iter().map(|time| time.window).max().unwrap_or(0);
    // No finding is returned if samples were lost or the start-up was long, because then the thread's state is unknown
    // for a large part of the run.
    let start_up = profile.times().iter().map(|time| time.start_up.window()).max().unwrap_or(0);
    let is_lost = profile.lost().any(|(loss, _)| matches!(loss, Loss::SamplesDropped | Loss::BlocksDropped));
    if is_lost || start_up > window / 10 {
        return None;
    }
    // The relative error of the CPU time is about 1 divided by the square root of the number of samples.
    let error = on as f64 / (samples.max(1) as f64).sqrt();
    let missing = window.saturating_sub(on).saturating_sub(off);
    let is_sure = missing as f64 > error && missing > window / 5;
    let late = saturating_sum(
        pieces
            .iter()
            .filter(|piece| piece.cause == gpuflame_model::profile::Cause::HostLate)
            .map(|piece| piece.nanos),
    );
    let most = of_thread(&CPU).max_by_key(|sample| sample.amount())?;
    let why = format!(
        "no sample and no wait explains {} of the {} of the launching thread: it may have had no processor",
        format_nanos(missing),
        format_nanos(window)
    );
    is_sure.then(|| Cost {
        id: "starved_thread",
        nanos: late.min(missing),
        count: 1,
        why,
        ..Cost::at(&places.of(most.site))
    })
}

/// Returns a text that states why a check lacks data, and how to record this data. Returns `None` if the check had its
/// data.
fn missing_data(run: &RunEvidence<'_>, id: &str) -> Option<Cow<'static, str>> {
    let profile = run.profile;
    let has_rows = !run.has_only_sums;
    let has_steps = profile.step_series().groups.len() >= MIN_STEPS;
    let is_trace = run.linked.is_some();
    let has_samples = profile.has(&CPU) || profile.has(&OFF_CPU) || is_trace;
    let needs_idle =
        !matches!(id, "slow_steps" | "late_slowdown" | "managed_memory" | "straggler" | "imbalance");
    if let (true, Some(doubt)) = (needs_idle, profile.idle_doubt()) {
        return Some(format!("idle time is unknown: {doubt}").into());
    }
    let rows = "`gpuflame run --rows COMMAND`";
    match id {
        "warm_up" | "slow_steps" if has_steps_of_several_processes(run) => {
            Some("the file has steps of several processes; give one file per rank".into())
        }
        "late_slowdown" if has_several_processes(run) => {
            Some("the file has kernels of several processes; give one file per rank".into())
        }
        "idle_gpu" if has_several_processes(run) && idle_gpu(profile).is_some() => {
            Some("several processes launched the work, which cannot be divided between them".into())
        }
        "warm_up" if !has_steps => Some("mark steps: `gpuflame.step()` or `--window step-range=NAME`".into()),
        "slow_steps" | "late_slowdown" | "clocks_of_ranks" if !has_rows => Some(rows.into()),
        "slow_steps" | "late_slowdown" if !profile.coverage().all.is_sufficient() => {
            Some("work of too many launches is missing".into())
        }
        "warm_up" if profile.step_series().groups.iter().any(|group| group.steps > 1) => {
            Some("there are too many steps to keep each".into())
        }
        "exposed_communication" if !has_rows && communicates(profile) => Some(rows.into()),
        "default_stream" if profile.streams().len() > 1 && !has_rows => Some(rows.into()),
        "default_stream" if profile.streams().len() > 1 && event_waits(run).is_none() => {
            Some("`GPUFLAME_DEPS=1 gpuflame run --rows COMMAND`".into())
        }
        "gc_pauses" | "lock_wait" if is_trace && !has_python(profile) => {
            Some("torch.profiler records it with `with_stack=True`".into())
        }
        "gc_pauses" | "lock_wait" | "recompilation" if !has_samples => {
            Some("`gpuflame run --cpu-samples 99 --off-cpu COMMAND`".into())
        }
        "starved_thread" if !(profile.has(&CPU) && profile.has(&OFF_CPU)) => Some(match is_trace {
            true => NOT_IN_TRACE.into(),
            false => "`gpuflame run --cpu-samples 99 --off-cpu COMMAND`".into(),
        }),
        "managed_memory" if !profile.has(&UNIFIED) => Some(match is_trace {
            true => NOT_IN_TRACE.into(),
            false => "`GPUFLAME_UNIFIED=1 gpuflame run COMMAND`".into(),
        }),
        id if needs_ranks(id) && communicates(profile) => {
            Some("give the files of all ranks of the job".into())
        }
        _ => None,
    }
}

/// Reason that is reported if a check needs data which traces of other tools never contain.
const NOT_IN_TRACE: &str = "the trace does not have the data";

/// Whether the work in the file was launched by several processes, for example by ranks whose traces were merged.
fn has_several_processes(run: &RunEvidence<'_>) -> bool {
    run.linked.is_some_and(|linked| linked.has_several_processes)
}

/// Whether the steps in the file belong to several processes.
fn has_steps_of_several_processes(run: &RunEvidence<'_>) -> bool {
    run.linked.is_some_and(|linked| linked.has_steps_of_several_processes)
}

/// Whether a check needs the data of several ranks.
fn needs_ranks(id: &str) -> bool {
    matches!(id, "straggler" | "imbalance" | "clocks_of_ranks")
}

/// Whether any stack contains a Python function.
fn has_python(profile: &Profile) -> bool {
    profile.shown_frames().iter().any(|frame| frame.kind == ShownFrameKind::Python)
}

fn communicates(profile: &Profile) -> bool {
    let filter = CommunicationFilter::default();
    profile.works().iter().any(|work| filter.is_communication(work.work, &work_name(profile, work.work)))
}

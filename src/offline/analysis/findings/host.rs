//! Creates the findings about the host: why it launched work late, and why kernels waited for copies.

use std::collections::BTreeMap;

use super::launched::Launched;
use super::pieces::{Piece, usual_count};
use super::places::{Class, Place};
use super::thresholds::{
    MAX_FRAGMENT_NS, MAX_HARDWARE_GAP_NS, MAX_PAUSES_PERCENT, MAX_READ_NS, MAX_TINY_GAP_NS, MIN_COST_PERCENT,
    MIN_FRAGMENTS, MIN_LAUNCH_GAPS, MIN_PAUSE_FACTOR, MIN_PAUSE_NS, MIN_TINY_KERNELS,
};
use super::{Cost, Lost};
use gpuflame_export::{grouped, percent};
use gpuflame_model::profile::{Cause, SampleSite, add_to, format_nanos, saturating_sum};
use gpuflame_model::record::{ContextId, IdMap};

/// Reason for lost time that can be derived from a single place in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Garbage,
    Compilation,
    Profiler,
    Allocation,
    SynchronousCopy,
    PageableCopy,
    /// A copy that overlaps no kernel, and that has no further problem (such as pageable memory).
    Copy,
    Fragments,
    Read,
    Wait,
    Lock,
    Loader,
    TinyKernels,
    Launches,
    /// Any activity of the host that no other variant describes.
    Other,
}

/// Pieces of lost time with the same reason and the same function.
#[derive(Debug, Default)]
struct Group {
    nanos: u64,
    /// Number of copies or kernels, or 0 if the group counts gaps. The number of gaps is estimated from `squares`.
    counted: u64,
    squares: f64,
    /// Part of `nanos` (in ns) that consists of an unknown number of gaps.
    uncounted: u64,
    /// Longest piece of the group, given as (duration in ns, site).
    longest: (u64, Option<SampleSite>),
    /// Lost time in ns for each function, if the group contains several functions.
    functions: BTreeMap<String, u64>,
    /// Lost time in ns for each innermost function or NVTX range within the user's function.
    inner: BTreeMap<String, u64>,
}

impl Group {
    /// Returns the number of copies, kernels or gaps in the group, which is at least 1.
    fn count(&self) -> u64 {
        match self.counted {
            0 => usual_count(self.nanos, self.squares),
            counted => counted,
        }
    }

    /// Returns the innermost functions and ranges with a large share of the lost time, each with its share in percent.
    /// The largest share comes first. Returns an empty list if a single function or range has nearly all of the lost
    /// time.
    fn shares(&self) -> Vec<(&str, f64)> {
        let all = saturating_sum(self.inner.values().copied());
        let shares = self.inner.iter().map(|(name, nanos)| (name.as_str(), percent(*nanos, all)));
        let mut large: Vec<_> = shares.filter(|(_, share)| *share >= MIN_INNER_PERCENT).collect();
        large.sort_by(|a, b| b.1.total_cmp(&a.1));
        large.truncate(MAX_INNER);
        if large.len() < 2 || large.iter().any(|(name, _)| name.is_empty()) { Vec::new() } else { large }
    }

    /// Whether at least half of the group's lost time consists of a known number of gaps.
    fn is_counted(&self) -> bool {
        self.uncounted <= self.nanos / 2
    }
}

/// Minimum share of a finding's time in percent. If a finding names several innermost functions or ranges, each of them
/// has at least this share.
const MIN_INNER_PERCENT: f64 = 10.0;
/// Maximum number of innermost functions and ranges that a finding names.
const MAX_INNER: usize = 3;

/// Maximum number of functions that the finding about a launch-bound run lists.
const MAX_LAUNCHING_FUNCTIONS: usize = 4;

/// Groups the pieces of lost time by reason and function, and returns the findings about these groups.
pub(super) fn host_costs(lost: &Lost<'_>, pieces: &[Piece]) -> Vec<Cost> {
    let mut groups: BTreeMap<(Reason, String), Group> = BTreeMap::new();
    for piece in pieces {
        let Some((reason, function, site)) = reason(lost, piece) else { continue };
        // A profiler interrupts all functions, so no single function is named.
        let function = if reason == Reason::Profiler { String::new() } else { function };
        let group = groups.entry((reason, function)).or_default();
        add_to(&mut group.nanos, piece.nanos);
        group.squares += piece.squares;
        add_to(&mut group.uncounted, piece.uncounted);
        if piece.nanos > group.longest.0 {
            group.longest = (piece.nanos, Some(site));
        }
        let inner = lost.places.of(site).inner().to_owned();
        add_to(group.inner.entry(inner).or_default(), piece.nanos);
    }
    add_gpu_time(lost, &mut groups);
    let launches = join_launches(&mut groups, lost.wall);
    let usual_gap = usual_gap(pieces);
    let mut costs: Vec<Cost> = groups
        .iter()
        .filter_map(|((reason, function), group)| cost(lost, *reason, function, group, usual_gap))
        .collect();
    costs.extend(launches.and_then(|group| launch_cost(lost, &group)));
    costs
}

/// Returns the findings about copies. `copies` maps each launch context to the time in ns in which copies from this
/// launch context ran but no kernel ran.
pub(super) fn copy_costs(lost: &Lost<'_>, copies: &IdMap<ContextId, u64>) -> Vec<Cost> {
    let mut groups: BTreeMap<(Reason, String), Group> = BTreeMap::new();
    for (&context, &nanos) in copies {
        let site = SampleSite::Context(context);
        let place = lost.places.of(site);
        let group = groups.entry((copy_reason(lost, &place), place.function.to_string())).or_default();
        add_to(&mut group.nanos, nanos);
        group.longest = group.longest.max((nanos, Some(site)));
    }
    groups.retain(|(reason, _), _| *reason != Reason::Read);
    for ((_, function), group) in &mut groups {
        let launched = lost.work.of(function);
        group.counted = launched.to_device.count + launched.to_host.count;
    }
    groups.iter().filter_map(|((reason, function), group)| cost(lost, *reason, function, group, 0)).collect()
}

/// For a piece of lost time, returns the reason, the user's function, and the site that shows this reason.
fn reason(lost: &Lost<'_>, piece: &Piece) -> Option<(Reason, String, SampleSite)> {
    let place = lost.places.of(piece.site);
    let of =
        |reason: Reason, place: &Place, site: SampleSite| Some((reason, place.function.to_string(), site));
    let here = |reason: Reason| of(reason, &place, piece.site);
    match piece.cause {
        Cause::Unknown => return None,
        Cause::Dependency => {
            let is_short = piece.nanos / piece.gaps.max(1) <= MAX_HARDWARE_GAP_NS;
            // In a recording, the site of the piece is the site of the work that waited, and not of the copy for which
            // it waited.
            let is_copy = lost.is_kernel_time && place.of_call.copies && !is_short;
            return is_copy.then(|| copy_reason(lost, &place)).and_then(here);
        }
        Cause::HostLate | Cause::LaunchLatency => {}
    }
    let mean = piece.nanos / piece.gaps.max(1);
    match place.class(mean) {
        Class::Garbage(_) => return here(Reason::Garbage),
        Class::Compilation(_) => return here(Reason::Compilation),
        Class::Profiler => return here(Reason::Profiler),
        Class::Allocation(_) => return here(Reason::Allocation),
        Class::Loader(loader) if !piece.is_launching && may_load(lost, &loader) => {
            return Some((Reason::Loader, loader.to_string(), piece.site));
        }
        Class::Lock(_) => return here(Reason::Lock),
        _ => {}
    }
    if let Some(waited) = piece.waited_at {
        let site = SampleSite::Context(waited);
        let waited = lost.places.of(site);
        if waited.of_call.allocates {
            return of(Reason::Allocation, &waited, site);
        }
        if (waited.of_call.waits_for_gpu || waited.of_call.copies)
            && let Some(reason) = match piece.site {
                SampleSite::Between { .. } => reason_after_wait(lost, &waited, piece),
                _ => wait_reason(lost, &waited),
            }
        {
            return of(reason, &waited, site);
        }
    }
    let launched = lost.work.of(&place.function);
    match () {
        () if place.of_call.copies => match copy_reason(lost, &place) {
            Reason::Copy => here(Reason::Launches),
            reason => here(reason),
        },
        () if launched.kernels.count == 0 && are_fragments(lost, &launched) => here(Reason::Fragments),
        () if mean <= MAX_TINY_GAP_NS && has_tiny_kernels(lost, &place.function, &launched) => {
            here(Reason::TinyKernels)
        }
        () if piece.is_launching || place.class(mean) == Class::Launching => here(Reason::Launches),
        () => here(Reason::Other),
    }
}

/// Whether a function whose name suggests that it loads data may really load data. For example, a function `next_token`
/// does not load data if it launches kernels and copies nothing to the GPU. If a library loads the data, `function` is
/// empty.
fn may_load(lost: &Lost<'_>, function: &str) -> bool {
    let launched = lost.work.of(function);
    function.is_empty() || launched.kernels.count == 0 || launched.to_device.count > 0
}

/// Returns the reason for the time lost in a call that waits for the GPU. In a trace, the time lost in a call is the
/// lost time that the call caused.
fn wait_reason(lost: &Lost<'_>, waited: &Place) -> Option<Reason> {
    let launched = lost.work.of(&waited.function);
    match () {
        () if waited.of_call.copies_synchronously && launched.to_device.nanos >= launched.to_host.nanos => {
            Some(Reason::SynchronousCopy)
        }
        () if reads_value(lost, waited) => Some(Reason::Read),
        () if launched.to_host.nanos > launched.to_device.nanos && lost.pageable.1 => {
            Some(Reason::PageableCopy)
        }
        () if launched.to_device.count > 0 && launched.kernels.count == 0 && lost.pageable.0 => {
            Some(Reason::PageableCopy)
        }
        () => waited.of_call.waits_for_gpu.then_some(Reason::Wait),
    }
}

/// Whether the host only waited for the GPU in the place `waited`, and neither copied nor read a value.
pub(super) fn is_wait_alone(lost: &Lost<'_>, waited: &Place) -> bool {
    waited.of_call.waits_for_gpu && wait_reason(lost, waited) == Some(Reason::Wait)
}

/// Returns the reason for idle time of the GPU between a wait and the next call, in a recording. The idle time between
/// a wait and the next call may have begun long after the wait. Therefore a wait counts as its reason only if the wait
/// read a value, because a program usually uses such a value immediately. In addition, the idle time must be short or
/// must recur. If a program works for seconds after a single read, it would work for the same time without the read.
fn reason_after_wait(lost: &Lost<'_>, waited: &Place, piece: &Piece) -> Option<Reason> {
    let is_short = piece.nanos / piece.gaps.max(1) < MIN_PAUSE_NS;
    ((is_short || !is_rare(lost, piece.gaps)) && reads_value(lost, waited)).then_some(Reason::Read)
}

/// Whether the host waited for short copies from the GPU in order to read the copied values.
fn reads_value(lost: &Lost<'_>, waited: &Place) -> bool {
    let to_host = lost.work.of(&waited.function).to_host;
    to_host.count > 0 && to_host.mean() <= MAX_READ_NS && (lost.pageable.1 || waited.of_call.waits_for_gpu)
}

/// Whether the number of gaps is at most [`MAX_PAUSES_PERCENT`] percent of the number of iterations.
fn is_rare(lost: &Lost<'_>, gaps: u64) -> bool {
    gaps.saturating_mul(100) <= lost.work.iterations.saturating_mul(MAX_PAUSES_PERCENT)
}

/// Returns the reason why the copies made by the function of `place` cost time.
fn copy_reason(lost: &Lost<'_>, place: &Place) -> Reason {
    let launched = lost.work.of(&place.function);
    let is_to_host = launched.to_host.nanos > launched.to_device.nanos;
    let is_pageable = if is_to_host { lost.pageable.1 } else { lost.pageable.0 };
    match () {
        () if place.of_call.fills => Reason::Copy,
        () if are_fragments(lost, &launched) => Reason::Fragments,
        () if place.of_call.copies_synchronously => Reason::SynchronousCopy,
        () if is_pageable && is_to_host && launched.to_host.mean() <= MAX_READ_NS => Reason::Read,
        () if is_pageable => Reason::PageableCopy,
        () => Reason::Copy,
    }
}

fn are_fragments(lost: &Lost<'_>, launched: &Launched) -> bool {
    let copies = launched.to_device.count + launched.to_host.count;
    let nanos = launched.to_device.nanos.saturating_add(launched.to_host.nanos);
    copies >= MIN_FRAGMENTS.saturating_mul(lost.work.iterations) && nanos / copies.max(1) <= MAX_FRAGMENT_NS
}

fn has_tiny_kernels(lost: &Lost<'_>, function: &str, launched: &Launched) -> bool {
    let tiny = launched.tiny.count;
    let is_named = !function.is_empty();
    is_named
        && tiny >= MIN_TINY_KERNELS.saturating_mul(lost.work.iterations)
        && tiny > launched.kernels.count / 2
}

/// Adds the GPU time of tiny kernels to the groups. For a recording, also adds the GPU time of copies that the host
/// waits for. In a trace, the time of such copies is already contained in the time without kernels.
fn add_gpu_time(lost: &Lost<'_>, groups: &mut BTreeMap<(Reason, String), Group>) {
    for (function, launched) in &lost.work.functions {
        if has_tiny_kernels(lost, function, launched) {
            let group = groups.entry((Reason::TinyKernels, function.clone())).or_default();
            add_to(&mut group.nanos, launched.tiny.nanos);
            group.counted = launched.tiny.count;
            group.longest = (0, launched.tiny_site.map(|(site, _)| site));
        }
        let copies = launched.to_device.nanos.saturating_add(launched.to_host.nanos);
        let Some((site, _)) = launched.copy_site.filter(|_| !lost.is_kernel_time) else { continue };
        let place = lost.places.of(site);
        let reason = match copy_reason(lost, &place) {
            Reason::Copy => continue,
            reason => reason,
        };
        // If a short copy reads a value, only the wait for the copy costs time. In a recording of sums, all copies may
        // belong to the start-up, unless lost time of the same reason and function is known.
        let key = (reason, function.clone());
        if reason == Reason::Read || (!lost.has_rows && !groups.contains_key(&key)) {
            continue;
        }
        let group = groups.entry(key).or_default();
        add_to(&mut group.nanos, copies);
        group.counted = launched.to_device.count + launched.to_host.count;
        group.longest = (copies, Some(site));
    }
}

/// Removes the groups for launches from `groups`, and returns them as one group. The groups are joined because a
/// launch-bound program has no single culprit. Functions that cost only little time between launches are added to the
/// joined group too.
fn join_launches(groups: &mut BTreeMap<(Reason, String), Group>, wall: u64) -> Option<Group> {
    let mut all = Group::default();
    groups.retain(|(reason, function), group| {
        let may_join = matches!(reason, Reason::Other | Reason::TinyKernels | Reason::Fragments);
        let is_small = may_join && percent(group.nanos, wall) < MIN_COST_PERCENT;
        if *reason == Reason::Launches || is_small {
            all.functions.insert(function.clone(), group.nanos);
            add_to(&mut all.nanos, group.nanos);
            all.squares += group.squares;
            add_to(&mut all.uncounted, group.uncounted);
            all.longest = all.longest.max(group.longest);
        }
        *reason != Reason::Launches && !is_small
    });
    (all.nanos > 0).then_some(all)
}

/// Returns the median duration of all gaps, in ns. The gaps of a piece are assumed to be equally long.
fn usual_gap(pieces: &[Piece]) -> u64 {
    let mut gaps: Vec<(u64, u64)> = pieces
        .iter()
        .filter(|piece| piece.gaps > 0)
        .map(|piece| (piece.nanos / piece.gaps, piece.gaps))
        .collect();
    gaps.sort_unstable();
    let all: u64 = gaps.iter().map(|(_, count)| count).sum();
    let mut before = 0;
    gaps.into_iter()
        .find(|(_, count)| {
            before += count;
            before * 2 >= all
        })
        .map_or(0, |(length, _)| length)
}

fn cost(lost: &Lost<'_>, reason: Reason, function: &str, group: &Group, usual_gap: u64) -> Option<Cost> {
    let site = group.longest.1?;
    let place = lost.places.of(site);
    let launched = lost.work.of(function);
    let time = format_nanos(group.nanos);
    let gaps = group.count();
    let mean = group.nanos / gaps.max(1);
    let is_rare = group.is_counted()
        && is_rare(lost, gaps)
        && mean >= MIN_PAUSE_NS.max(usual_gap.saturating_mul(MIN_PAUSE_FACTOR));
    let copies_to_device = launched.to_device.count > 0 && launched.kernels.count == 0;
    let without = without(lost);
    let (id, why) = match reason {
        Reason::Garbage => ("gc_pauses", format!("{without} for {time} while garbage was collected")),
        Reason::Compilation => {
            ("recompilation", format!("{without} for {time} while code was compiled or loaded"))
        }
        Reason::Profiler => ("profiler_cost", format!("{without} for {time} while a profiler worked")),
        Reason::Allocation if is_rare || gaps < 3 => {
            ("pauses", format!("{} while memory was allocated or freed", counted_pauses(gaps, mean)))
        }
        Reason::Allocation => (
            "allocation_in_loop",
            format!("{without} for {time} because of calls that allocate or free memory; keep the memory"),
        ),
        Reason::SynchronousCopy => (
            "sync_copies",
            format!("the host waited for its copies, which cost the GPU {time}; copy asynchronously"),
        ),
        Reason::PageableCopy => (
            "pageable_copies",
            match lost.is_kernel_time {
                true => {
                    format!("{without} for {time} because of copies of pageable memory; pin the memory")
                }
                false => format!("copies of pageable memory and their waits took {time}; pin the memory"),
            },
        ),
        Reason::Copy => (
            "copies_not_overlapped",
            format!("kernels waited {time} for copies or fills; start them earlier, or do less of it"),
        ),
        Reason::Fragments => {
            let copies = launched.to_device.count + launched.to_host.count;
            ("fragmented_copies", format!("{} short copies cost {time}; join them", grouped(copies)))
        }
        Reason::Read => (
            "sync_read",
            format!("{without} for {time} because the host waited to read a value; read less often"),
        ),
        Reason::Wait => ("sync_wait", format!("{without} for {time} because the host waited for the GPU")),
        Reason::Lock => ("lock_wait", format!("the host waited {time} for another thread")),
        Reason::Loader => {
            ("data_loader_late", format!("{without} for {time}, in which the host waited for data"))
        }
        Reason::TinyKernels => (
            "tiny_kernels",
            format!(
                "{} kernels of {} on average cost {time}; join them",
                grouped(launched.tiny.count),
                format_nanos(launched.tiny.mean())
            ),
        ),
        Reason::Other if is_rare && place.of_call.is_launch_call => {
            ("pauses", format!("{} in a launch: code may be loaded on first use", counted_pauses(gaps, mean)))
        }
        Reason::Other if is_rare => ("pauses", counted_pauses(gaps, mean)),
        Reason::Other if copies_to_device || ends_in_copy(lost, site) => {
            ("data_loader_late", format!("{without} for {time} before data was copied to the GPU"))
        }
        Reason::Other if place.of_call.is_launch_call => (
            "host_work",
            format!("launches took {time}: code may be loaded on first use, or the queue is full"),
        ),
        Reason::Other => ("host_work", format!("the host was busy elsewhere, or waited, for {time}")),
        Reason::Launches => return None,
    };
    Some(Cost { id, nanos: group.nanos, count: gaps, why, ..Cost::within(&place, &group.shares()) })
}

/// Returns the clause that states how the GPU lost time. In a recording, the GPU also counts as busy while it copies,
/// but in a trace it does not.
fn without(lost: &Lost<'_>) -> &'static str {
    if lost.is_kernel_time { "the GPU ran no kernel" } else { "the GPU was idle" }
}

fn counted_pauses(count: u64, mean: u64) -> String {
    match count {
        1 => format!("a pause of {}", format_nanos(mean)),
        _ => format!("{count} pauses of about {}", format_nanos(mean)),
    }
}

/// Whether `site` is a time between two calls, of which the later call copies data to the GPU.
fn ends_in_copy(lost: &Lost<'_>, site: SampleSite) -> bool {
    let SampleSite::Between { before, .. } = site else { return false };
    let place = lost.places.of(SampleSite::Context(before));
    let launched = lost.work.of(&place.function);
    place.of_call.copies && launched.to_device.nanos >= launched.to_host.nanos
}

fn launch_cost(lost: &Lost<'_>, group: &Group) -> Option<Cost> {
    let place = lost.places.of(group.longest.1?);
    let mut functions: Vec<_> = group.functions.iter().filter(|(name, _)| !name.is_empty()).collect();
    functions.sort_by_key(|(_, nanos)| std::cmp::Reverse(**nanos));
    let names: Vec<&str> =
        functions.iter().take(MAX_LAUNCHING_FUNCTIONS).map(|(name, _)| name.as_str()).collect();
    let at = Cost::at(&place);
    let mean = group.nanos / group.count();
    if group.is_counted() && group.count() < MIN_LAUNCH_GAPS && mean >= MIN_PAUSE_NS {
        // The first launch of a kernel loads the kernel's code. A few such launches do not make a run launch-bound.
        let why = format!(
            "{} in or before a launch or copy: code may be loaded on first use",
            counted_pauses(group.count(), mean)
        );
        return Some(Cost { id: "pauses", nanos: group.nanos, count: group.count(), why, ..at });
    }
    let gaps = match group.count() {
        1 => "in one gap".to_owned(),
        _ => format!("mostly in gaps of about {}", format_nanos(mean)),
    };
    let (without, time) = (without(lost), format_nanos(group.nanos));
    let why = format!("{without} for {time} before launches, {gaps}; launch less often, or larger work");
    let words = if names.is_empty() { at.words.clone() } else { format!("in {}", names.join(", ")) };
    let (nanos, count) = (group.nanos, group.count());
    Some(Cost {
        id: "launch_bound",
        nanos,
        count,
        why,
        words,
        function: String::new(),
        line: String::new(),
        ..at
    })
}

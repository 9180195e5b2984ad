//! Writes the summary of a run in five lines: how busy the GPUs were, why they were idle, the most expensive GPU work,
//! whether the results are complete, and the file to open. The library prints all five lines when the process exits.
//! `gpuflame summary` prints only the lines about busy time, idle time and completeness. The ledger contains all
//! figures of the run.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

use super::compose::folded_names;
use super::options::NameFolding;
use super::short_names::short_kernel;
use super::source::StackEnd;
use gpuflame_explain::Ledger;
use gpuflame_model::profile::views::{IDLE, idle_word};
use gpuflame_model::profile::{
    Cause, CopyPath, DeviceTime, Profile, RootMark, Sample, SampleSite, Weight, add_to, format_nanos,
    saturating_sum,
};
use gpuflame_model::record::{ContextId, CopyKind, Loss, MemoryKind, Work};
use gpuflame_model::sorting;

/// Maximum number of GPUs that are listed, and maximum number of kinds of GPU work that are listed.
const MAX_GPUS: usize = 8;
const MAX_WORKS: usize = 3;
/// Maximum length of the name of a kernel, copy or fill, in characters.
const MAX_NAME_CHARS: usize = 60;
/// Maximum number of stacks that are examined to find the place with the most idle time. Stacks with the longest idle
/// time are examined first.
const MAX_IDLE_STACKS: usize = 4096;

/// A wait of the host is listed if at least this share of the idle time, in percent, directly follows the wait. Waits
/// that are followed by less idle time are not listed.
const MIN_WAIT_PERCENT: f64 = 5.0;
/// Minimum duration of a step that is listed as slow, as a multiple of the median duration.
const MIN_SLOW_FACTOR: u64 = 5;
/// Minimum duration of a step that is listed as slow, in percent of the total duration of all steps.
const MIN_SLOW_PERCENT: f64 = 10.0;

/// If less than this share of the copied bytes, in percent, is in pageable memory, the summary writes "mostly".
const MIN_ALL_PERCENT: f64 = 95.0;

const MEMORY_WAS_SHORT: &str = "memory was short, raise GPUFLAME_MAX_MEM";

/// Returns the lines of the summary. `files` contains all files that were written. If `files` is empty, the line about
/// the file to open is omitted.
pub fn summary_lines(ledger: &Ledger, profile: &Profile, files: &[&Path]) -> Vec<String> {
    let mut lines = busy_and_idle_lines(ledger, profile);
    lines.extend(work_line(profile));
    lines.push(complete_line(ledger, profile));
    lines.extend(next_file_line(profile, files));
    lines
}

/// Returns the lines about how busy the GPUs were and why they were idle.
pub fn busy_and_idle_lines(ledger: &Ledger, profile: &Profile) -> Vec<String> {
    [busy_line(ledger, profile)].into_iter().chain(idle_line(profile)).collect()
}

/// Returns `part` in percent of `whole`; 0 if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// Whether GPUs may have been busy for longer than the measured busy time, because GPU work was lost, arrived too late
/// to be counted, or has no record.
fn is_busy_time_incomplete(ledger: &Ledger, profile: &Profile) -> bool {
    profile.coverage().all.uncovered > 0
        || profile.idle_doubt().is_some()
        || ledger.tally.activities.untimed > 0
        || profile.losses().any(|(loss, _)| loss.hides_gpu_time())
        || profile.times().iter().any(|time| time.late_count > 0)
}

fn sum_times(profile: &Profile, of: fn(&DeviceTime) -> u64) -> u64 {
    saturating_sum(profile.times().iter().map(of))
}

/// Returns the line with each GPU's share of busy time in the steady part of the run.
fn busy_line(ledger: &Ledger, profile: &Profile) -> String {
    let times = profile.times();
    if times.is_empty() {
        let what = if profile.devices().is_empty() { "no GPU work" } else { "no time of any GPU work" };
        return format!("{what} was recorded");
    }
    let least = if is_busy_time_incomplete(ledger, profile) { "at least " } else { "" };
    let shares = times.iter().take(MAX_GPUS).map(|time| {
        let (device, steady) = (time.device.0, time.steady());
        let share = percent(steady.busy, steady.window());
        let least = if share < 100.0 { least } else { "" };
        format!("GPU {device} busy {least}{share:.1} % of {}", format_nanos(steady.window()))
    });
    let mut line = shares.collect::<Vec<_>>().join(", ");
    if let Some(more) = times.len().checked_sub(MAX_GPUS).filter(|more| *more > 0) {
        line += &format!(", and {}", counted(more as u64, "more GPUs"));
    }
    match profile.steady() {
        Some(steady) => {
            line += " of ";
            line += steady.rule.words();
            let start_up = times.iter().map(|time| time.start_up.window()).max();
            let shutdown = times.iter().map(|time| time.shutdown.window()).max();
            let mut before = ", without ";
            for (longest, part) in [(start_up, " of start-up"), (shutdown, " of shutdown")] {
                if let Some(longest) = longest.filter(|longest| *longest > 0) {
                    line = line + before + &format_nanos(longest) + part;
                    before = " and ";
                }
            }
        }
        None => line += ", start-up and shutdown included",
    }
    line + &slow_step(profile).unwrap_or_default()
}

/// Returns the clause about the longest step, for example a first step that warms up. Returns `None` unless the longest
/// step is much longer than the median step and takes a large part of the total time of all steps. Also returns `None`
/// if all steps together are shorter than half of the steady part. If steps are this short, they only launch work that
/// runs later, so the durations of the steps do not show the GPU time.
fn slow_step(profile: &Profile) -> Option<String> {
    let series = profile.step_series();
    let (slow, all) = (series.longest.first()?, saturating_sum(series.kinds.iter().map(|kind| kind.nanos)));
    let median = series.percentile(slow.kind.into(), 50);
    let window = profile.times().iter().map(|time| time.steady().window()).max().unwrap_or(0);
    let is_listed = all >= window / 2
        && slow.nanos / MIN_SLOW_FACTOR >= median
        && percent(slow.nanos, all) >= MIN_SLOW_PERCENT;
    let (number, nanos) = (slow.number, format_nanos(slow.nanos));
    is_listed.then(|| format!("; step {number} took {nanos}, the median step {}", format_nanos(median)))
}

/// Returns the line with the largest cause of idle time in the steady part of the run, and the place at which that
/// cause took the most time. Returns `None` if no GPU has a known busy time.
fn idle_line(profile: &Profile) -> Option<String> {
    if profile.times().is_empty() {
        return None;
    }
    if let Some(doubt) = profile.idle_doubt() {
        return Some(format!("idle time is unknown: {doubt}"));
    }
    let is_steady =
        |sample: &&Sample| !matches!(sample.root_mark, Some(RootMark::StartUp | RootMark::Shutdown));
    let mut causes: BTreeMap<&str, u64> = BTreeMap::new();
    let samples = || profile.samples(&IDLE).iter().filter(is_steady);
    samples().for_each(|sample| add_to(causes.entry(idle_word(sample)).or_default(), sample.amount()));
    let idle = sum_times(profile, |time| time.steady().idle);
    let Some((cause, nanos)) =
        causes.into_iter().max_by_key(|(_, nanos)| *nanos).filter(|(_, nanos)| *nanos > 0)
    else {
        return Some(match idle {
            0 => "idle: none in this part".to_owned(),
            _ => format!("idle {}", format_nanos(idle)),
        });
    };
    let share = percent(nanos, idle);
    let words = if cause == Cause::Unknown.word() {
        "of unknown cause, because no usable launch of the next work is known"
    } else {
        cause_words(cause)
    };
    let mut line = format!("idle {}: {share:.1} % {words}", format_nanos(idle));
    let mut stacks: Vec<_> = samples().filter(|sample| idle_word(sample) == cause).collect();
    sorting::sort_by_key(&mut stacks, |sample| Reverse(sample.amount()));
    let after_wait = longest_after_wait(profile, &stacks);
    let mut places: BTreeMap<Option<String>, u64> = BTreeMap::new();
    for sample in stacks.into_iter().take(MAX_IDLE_STACKS) {
        add_to(places.entry(idle_place(profile, sample)).or_default(), sample.amount());
    }
    // If the place is unknown for most of the time, no place is named.
    let longest = places.into_iter().max_by_key(|(_, part)| *part);
    let longest = longest.and_then(|(place, part)| Some((place?, part)));
    if let Some((place, part)) = &longest {
        line += &format!(" ({:.1} % {place})", percent(*part, idle));
    }
    if let Some((wait, part)) = after_wait
        && percent(part, idle) >= MIN_WAIT_PERCENT
    {
        let (call, function) = wait.split_once('\n').unwrap_or((&wait, ""));
        let is_named = |(longest, _): &(String, u64)| {
            longest.starts_with(&["between ", call, " "].concat()) && longest.contains(function)
        };
        if !longest.iter().any(is_named) {
            let place = if function.is_empty() { String::new() } else { [" in ", function].concat() };
            line += &format!("; {:.1} % after the host waited at {call}{place}", percent(part, idle));
        }
    }
    Some(line)
}

/// Returns the text to display for a word that denotes a cause of idle time, or idle time at the edge of a window.
pub fn cause_words(word: &'static str) -> &'static str {
    match word {
        "before_the_first" => "before the first work",
        "after_the_last" => "after the last work",
        _ => Cause::ALL.into_iter().find(|cause| cause.word() == word).map_or(word, Cause::label),
    }
}

/// Returns the place of an idle sample: `between cudaMalloc and cudaMemcpy in upload`, or `before cudaLaunchKernel in
/// decode`. Returns `None` if the place is unknown.
pub fn idle_place(profile: &Profile, sample: &Sample) -> Option<String> {
    let is_thread_there = idle_word(sample) == Cause::HostLate.word();
    place_in_words(profile, sample.site, is_thread_there, |site| innermost(&StackEnd::at(profile, site)))
}

/// Returns a description of the place `site` where the host was, in the form of [`idle_place`]. The function `end` must
/// return the end of the stack at a site.
pub fn host_place(
    profile: &Profile,
    site: SampleSite,
    end: impl Fn(SampleSite) -> StackEnd,
) -> Option<String> {
    place_in_words(profile, site, true, |site| innermost(&end(site)))
}

fn place_in_words(
    profile: &Profile,
    site: SampleSite,
    is_thread_there: bool,
    innermost: impl Fn(SampleSite) -> (Option<String>, Option<String>),
) -> Option<String> {
    let in_function = |function: Option<String>| function.map_or(String::new(), |name| format!(" in {name}"));
    if let SampleSite::Between { after, before, .. } = site {
        let [first, second] =
            [after, before].map(|context: ContextId| innermost(SampleSite::Context(context)));
        // Traces of other tools may lack the names of calls.
        let side = |(call, function): (Option<String>, Option<String>)| match call {
            Some(call) => Some(call + &in_function(function)),
            None => function.map(|name| format!("a call in {name}")),
        };
        return Some(match (first, second) {
            ((None, Some(one)), (None, Some(other))) if one == other => format!("between two calls in {one}"),
            ((Some(call), one), next) if one == next.1 => format!("between {call} and {}", side(next)?),
            (first, second) => format!("between {} and {}", side(first)?, side(second)?),
        });
    }
    match innermost(site) {
        (Some(call), function) => {
            let at = if is_thread_there { "at" } else { "before" };
            Some(format!("{at} {call}{}", in_function(function)))
        }
        (None, Some(function)) => Some(format!("in {function}")),
        // In traces of other tools, the time between two calls is attributed to a frame that contains the names of both
        // calls.
        (None, None) => {
            let names = folded_names(profile, site, NameFolding::Kept);
            let inside = |name: &Cow<'_, str>| name.strip_prefix('[')?.strip_suffix(']').map(str::to_owned);
            let is_place =
                |name: &String| ["between ", "after ", "before "].iter().any(|word| name.starts_with(word));
            names.iter().rev().filter_map(inside).find(is_place)
        }
    }
}

/// Returns the call at the end of a stack, and the innermost function of user code. A function without a name is
/// omitted, because an address does not help the user to find the place.
fn innermost(end: &StackEnd) -> (Option<String>, Option<String>) {
    let function = end.user_function.as_ref().or(end.innermost.function.as_ref());
    (end.innermost.call.clone(), function.filter(|name| !name.contains("0x")).cloned())
}

/// Whether this API call makes the host wait for the GPU. Examples of calls that wait are `cudaStreamSynchronize` and
/// copies that are not asynchronous.
fn is_wait(call: &str) -> bool {
    let copies = call.contains("Memcpy") && !call.contains("Async");
    call.contains("Synchronize") || copies
}

/// Returns the wait of the host after which the GPU was idle for the longest total time, and the duration of this idle
/// time. The wait is a text: the name of the API call, a line break, and the name of the function that made the call.
fn longest_after_wait(profile: &Profile, samples: &[&Sample]) -> Option<(String, u64)> {
    let mut places: BTreeMap<String, u64> = BTreeMap::new();
    for sample in samples.iter().take(MAX_IDLE_STACKS) {
        let SampleSite::Between { after, .. } = sample.site else { continue };
        let (Some(call), function) = innermost(&StackEnd::at(profile, SampleSite::Context(after))) else {
            continue;
        };
        if is_wait(&call) {
            let place = [&call, "\n", &function.unwrap_or_default()].concat();
            add_to(places.entry(place).or_default(), sample.amount());
        }
    }
    places.into_iter().max_by_key(|(_, nanos)| *nanos)
}

/// Returns the line with the most expensive GPU work (kernels, copies and fills) on all GPUs. Returns `None` if no GPU
/// work has a known duration.
pub fn work_line(profile: &Profile) -> Option<String> {
    let mut sums: BTreeMap<Cow<'_, str>, (u64, u64)> = BTreeMap::new();
    for work in profile.works() {
        let name = match work.work {
            Work::Kernel(id) => profile.kernel(id).unwrap_or("unnamed kernels").into(),
            Work::Copy(kind) => format!("{} copies{}", kind.label(), pageable(profile, kind)).into(),
            Work::Set => "fills".into(),
            Work::Graph => "graphs".into(),
        };
        let (nanos, count) = sums.entry(name).or_default();
        add_to(nanos, work.weight.nanos);
        add_to(count, work.weight.count);
    }
    let all = saturating_sum(sums.values().map(|(nanos, _)| *nanos));
    if all == 0 {
        return None;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sorting::sort_by_key(&mut sums, |(_, (nanos, _))| Reverse(*nanos));
    let rest = sums.split_off(sums.len().min(MAX_WORKS));
    let share = |nanos| percent(nanos, all);
    let part = |(name, (nanos, count)): &(Cow<'_, str>, (u64, u64))| {
        let name = short_kernel(name).map_or_else(|| name.clone(), Cow::from);
        format!("{:.1} % {}{}", share(*nanos), without_middle(&name), number_and_length(*nanos, *count))
    };
    let mut parts: Vec<_> = sums.iter().map(part).collect();
    if !rest.is_empty() {
        let nanos = saturating_sum(rest.iter().map(|(_, (nanos, _))| *nanos));
        parts.push(format!("{:.1} % in {} more", share(nanos), rest.len()));
    }
    Some(format!("GPU work {}: {}", format_nanos(all), parts.join(", ")))
}

/// Returns ` from pageable memory` or ` to pageable memory` if more than half of the bytes copied in this direction are
/// in pageable memory. Copies from and to pageable memory are slower, because the driver copies the bytes a second time
/// with the CPU.
fn pageable(profile: &Profile, kind: CopyKind) -> &'static str {
    let of_kind = || profile.copies().iter().filter(|(path, _)| path.kind == kind);
    let bytes = |end: fn(&CopyPath) -> MemoryKind| {
        let is_pageable = |(path, _): &&(CopyPath, Weight)| end(path) == MemoryKind::PAGEABLE;
        saturating_sum(of_kind().filter(is_pageable).map(|(_, weight)| weight.bytes))
    };
    let all = saturating_sum(of_kind().map(|(_, weight)| weight.bytes));
    let [from, to] = [bytes(|path| path.from), bytes(|path| path.to)].map(|part| percent(part, all));
    match () {
        () if from >= MIN_ALL_PERCENT => " from pageable memory",
        () if from > 50.0 => " mostly from pageable memory",
        () if to >= MIN_ALL_PERCENT => " to pageable memory",
        () if to > 50.0 => " mostly to pageable memory",
        () => "",
    }
}

/// Shortens a long name by removing its middle, because names of generated kernels differ at both ends.
fn without_middle(name: &str) -> Cow<'_, str> {
    let end = |count: usize| name.char_indices().nth(count).map_or(name.len(), |(at, _)| at);
    let (all, kept) = (name.chars().count(), MAX_NAME_CHARS / 2);
    match all {
        0..=MAX_NAME_CHARS => name.into(),
        _ => [&name[..end(kept)], "...", &name[end(all - kept)..]].concat().into(),
    }
}

/// Returns ` (16,000 x 6.600 us)`: the number of executions and their mean duration.
fn number_and_length(nanos: u64, count: u64) -> String {
    match count {
        0 | 1 => String::new(),
        _ => format!(" ({} x {})", grouped(count), format_nanos(nanos / count)),
    }
}

/// Returns the line that states whether any data was lost, and why.
pub fn complete_line(ledger: &Ledger, profile: &Profile) -> String {
    let tally = &ledger.tally;
    let uncovered = profile.coverage().all.uncovered;
    let (mut lost, mut details, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    let mut note = |is_lost: bool, count: u64, what: &str, reason: &'static str| {
        if count > 0 {
            let list = if is_lost { &mut lost } else { &mut details };
            list.push(counted(count, what));
            if !reason.is_empty() && !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
    };
    note(
        true,
        uncovered,
        "launches without GPU work",
        "it was not finished at the exit, or CUPTI did not report it",
    );
    for (loss, count) in profile.lost() {
        note(!is_detail(loss), count, &loss.label().replace('_', " "), reason(loss));
    }
    note(true, tally.activities.untimed, "activities without times", "CUPTI reported none");
    note(true, tally.activities.of_no_call, "activities with impossible correlation ids", "");
    note(false, tally.activities.no_stack, "activities without a launch stack", "");
    note(false, tally.activities.launched_before, "activities launched before recording", "");
    let queued = profile.row_facts().map_or(0, |facts| facts.queued + facts.queued_graphs);
    note(false, queued, "launches probably still queued at the end", "");
    let others = tally.launches.pending.saturating_sub(uncovered + queued);
    note(false, others, "launches of copies or graphs without GPU work", "");
    note(false, tally.launches.outside, "launches outside the windows", "");
    let launches = counted(ledger.launches().total, "launches");
    let mut line = match lost.is_empty() {
        true => format!("complete: {launches}, none lost"),
        false => format!("not complete: {launches}; lost: {}", lost.join(", ")),
    };
    if !details.is_empty() {
        line += &format!("; {}", details.join(", "));
    }
    if !reasons.is_empty() {
        line += &format!(" ({})", reasons.join("; "));
    }
    line
}

/// Whether all launches and their GPU work are in the results in spite of this loss. Returns true for losses that
/// affect only stacks and names, and for losses that gpuflame did not cause.
fn is_detail(loss: Loss) -> bool {
    use Loss::{
        KernelsNotKeptApart, LaunchesFailed, PythonDropped, PythonUnsure, StacksCut, StacksGuessed,
        StacksModuleUnknown, StacksNotKeptApart, StacksTruncated, ThreadsNotNamed,
    };
    matches!(
        loss,
        StacksTruncated
            | StacksGuessed
            | StacksCut
            | StacksModuleUnknown
            | StacksNotKeptApart
            | KernelsNotKeptApart
            | ThreadsNotNamed
            | PythonDropped
            | PythonUnsure
            | LaunchesFailed
    )
}

/// Returns the reason for a loss, and how to avoid the loss. Returns an empty text if the name of the loss already
/// explains the loss.
fn reason(loss: Loss) -> &'static str {
    use Loss::{
        ActivitiesDropped, ActivitiesUnreadable, BlocksDropped, GraphNodesDropped, HostCallsDropped,
        KernelsNotKeptApart, LaunchesDropped, MarksDropped, RangesDropped, RowsOverLimit, SamplesDropped,
        StacksDropped, StacksNested, StacksNotKeptApart, StepsDropped, ThreadsNotNamed,
    };
    match loss {
        LaunchesDropped | ActivitiesDropped | StacksDropped | GraphNodesDropped | StacksNotKeptApart
        | KernelsNotKeptApart | ThreadsNotNamed => MEMORY_WAS_SHORT,
        ActivitiesUnreadable => "CUPTI's records have an unknown layout",
        StacksNested => "launched by signal handlers",
        RowsOverLimit => "the recording reached GPUFLAME_MAX_FILE",
        HostCallsDropped | MarksDropped | SamplesDropped | BlocksDropped | StepsDropped | RangesDropped => {
            "too many at once"
        }
        _ => "",
    }
}

/// Formats a count of `what`. If the count is 1, the first plural in `what` is changed to singular, as in `1 launch
/// without GPU work`.
pub fn counted(count: u64, what: &str) -> String {
    let plural = what.split_once("s ").or_else(|| Some((what.strip_suffix('s')?, "")));
    let (Some((one, rest)), 1) = (plural, count) else { return grouped(count) + " " + what };
    let (one, end) = match one.strip_suffix("ie") {
        Some(one) => (one, "y"),
        None => (one.strip_suffix("he").map_or(one, |_| &one[..one.len() - 1]), ""),
    };
    let space = if rest.is_empty() { "" } else { " " };
    ["1 ", one, end, space, rest].concat()
}

/// Formats a number with commas between thousands: `9,216`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the line with the file to open next: the picture of idle time if the GPUs were mostly idle, otherwise the
/// picture of GPU time. Returns `None` if no file was written.
fn next_file_line(profile: &Profile, files: &[&Path]) -> Option<String> {
    let (busy, window) =
        (sum_times(profile, |time| time.steady().busy), sum_times(profile, |time| time.steady().window()));
    let is_mostly_idle = profile.idle_doubt().is_none() && busy < window.saturating_sub(busy);
    let length = |file: &&&Path| file.as_os_str().len();
    let ends = |end: &'static str| {
        files.iter().filter(move |file| file.as_os_str().as_encoded_bytes().ends_with(end.as_bytes()))
    };
    // Among the pictures, the picture of GPU time has the shortest file name. Pictures of other views have an
    // additional word before the suffix.
    let idle = ends(".idle.svg").max_by_key(length).filter(|_| is_mostly_idle);
    let file = idle.or_else(|| ends(".svg").min_by_key(length)).or_else(|| files.first())?;
    let more = files.len() - 1;
    let verb =
        if file.as_os_str().as_encoded_bytes().ends_with(b".gfr") { "run `gpuflame top` on" } else { "open" };
    let others = match more {
        0 => String::new(),
        more => format!(
            "; {} written",
            counted(more as u64, if more == 1 { "more files was" } else { "more files were" })
        ),
    };
    Some(format!("next: {verb} {}{others}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GEMM, RELU, Sketch};
    use gpuflame_model::profile::{
        Coverage, LaunchCoverage, Leaf, LeafFrame, RowFacts, ShownFrame, ShownFrameKind, SteadyPart,
        SteadyRule,
    };
    use gpuflame_model::record::{CopyKind, DeviceId, Missing, Nanos, Row, Step, ThreadId, WindowEdge};

    fn device_time(device: u32, busy: u64, idle: u64) -> DeviceTime {
        DeviceTime {
            device: DeviceId(device),
            window: busy + idle,
            busy,
            idle,
            late: 0,
            late_count: 0,
            early: 0,
            early_count: 0,
            first: Nanos(0),
            last: Nanos(busy + idle),
            start_up: Default::default(),
            shutdown: Default::default(),
        }
    }

    /// Adds a launch context: the function `function` makes the API call `call`.
    fn add_call(profile: &mut Profile, id: u32, function: &str, call: &str) -> ContextId {
        let id = ContextId(id);
        profile.push(&Row::Context { id, thread: ThreadId(1), flags: Default::default(), frames: &[] });
        let shown = [(ShownFrameKind::Code, function), (ShownFrameKind::Call, call)].map(|(kind, name)| {
            let frame = ShownFrame::new(kind, profile.intern(name));
            profile.intern_shown(frame)
        });
        profile.set_shown(id, shown);
        id
    }

    fn idle(site: SampleSite, cause: Cause, nanos: u64) -> Sample {
        let mut sample = Sample::new(site, Leaf::new(&[LeafFrame::Idle(cause)]));
        (sample.device, sample.values) = (Some(DeviceId(0)), [nanos, 1, 0, 0]);
        sample
    }

    fn between(after: ContextId, before: ContextId) -> SampleSite {
        SampleSite::Between { after, thread: None, before }
    }

    /// Returns a ledger with `launches` launches. In this ledger, each launch has an activity.
    fn complete_ledger(launches: u64) -> Ledger {
        let mut ledger = Ledger::default();
        (ledger.tally.launches.seen, ledger.tally.launches.matched) = (launches, launches);
        (ledger.tally.activities.seen, ledger.tally.activities.matched) = (launches, launches);
        ledger
    }

    fn shown(ledger: &Ledger, profile: &Profile, files: &[&str]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(Path::new).collect();
        summary_lines(ledger, profile, &files)
    }

    const FILES: [&str; 5] = ["/x/o.folded", "/x/o.svg", "/x/o.csv", "/x/o.idle.folded", "/x/o.idle.svg"];

    #[test]
    fn an_idle_program_gets_the_largest_cause_the_calls_around_it_and_the_idle_picture() {
        let mut profile = Sketch::new().stats(GEMM, 0, 4, 1_000_000, 0).done();
        let [malloc, copy] = [(1, "cudaMalloc"), (2, "cudaMemcpy")]
            .map(|(id, call)| add_call(&mut profile, id, "upload", call));
        let launch = add_call(&mut profile, 3, "decode", "cudaLaunchKernel");
        profile.set_times(vec![device_time(0, 1_000_000, 9_000_000)], Vec::new());
        // The GPUs were idle for 9 ms. For 6 of the 9 ms of idle time (66.7 %), the cause is that the host was late.
        // For 3 + 2 of the 9 ms of idle time (55.6 %), the host was between the same two calls.
        let samples = vec![
            idle(between(malloc, copy), Cause::HostLate, 3_000_000),
            Sample {
                root_mark: Some(RootMark::Opening),
                ..idle(SampleSite::Context(launch), Cause::HostLate, 500_000)
            },
            idle(between(copy, launch), Cause::HostLate, 1_000_000),
            Sample { device: Some(DeviceId(1)), ..idle(between(malloc, copy), Cause::HostLate, 2_000_000) },
            idle(SampleSite::Context(launch), Cause::LaunchLatency, 2_500_000),
        ];
        profile.set_samples(&IDLE, samples);
        let expected = [
            "GPU 0 busy 10.0 % of 10.000 ms, start-up and shutdown included",
            "idle 9.000 ms: 66.7 % host late (55.6 % between cudaMalloc and cudaMemcpy in upload); \
             11.1 % after the host waited at cudaMemcpy in upload",
            "GPU work 1.000 ms: 100.0 % gemm (4 x 250.000 us)",
            "complete: 9,216 launches, none lost",
            "next: open /x/o.idle.svg; 4 more files were written",
        ];
        assert_eq!(shown(&complete_ledger(9216), &profile, &FILES), expected);
    }

    #[test]
    fn idle_time_before_a_launch_names_the_launch() {
        let mut profile = Profile::default();
        let launch = add_call(&mut profile, 3, "decode", "cudaLaunchKernel");
        let address = add_call(&mut profile, 4, "libx.so+0x12", "cuLaunchKernel");
        profile.set_times(vec![device_time(0, 5, 5_000)], Vec::new());
        let line = |profile: &mut Profile, site, cause| {
            profile.set_samples(&IDLE, vec![idle(site, cause, 5_000)]);
            idle_line(profile).unwrap()
        };
        let context = SampleSite::Context(launch);
        assert_eq!(
            line(&mut profile, context, Cause::LaunchLatency),
            "idle 5.000 us: 100.0 % launch latency (100.0 % before cudaLaunchKernel in decode)"
        );
        assert_eq!(
            line(&mut profile, context, Cause::HostLate),
            "idle 5.000 us: 100.0 % host late (100.0 % at cudaLaunchKernel in decode)"
        );
        assert_eq!(
            line(&mut profile, between(launch, address), Cause::HostLate),
            "idle 5.000 us: 100.0 % host late (100.0 % between cudaLaunchKernel in decode and cuLaunchKernel)"
        );
        let [nameless, other] = [(5, "load"), (6, "train")].map(|(id, function)| {
            let id = ContextId(id);
            profile.push(&Row::Context { id, thread: ThreadId(1), flags: Default::default(), frames: &[] });
            let frame = ShownFrame::new(ShownFrameKind::Python, profile.intern(function));
            let frame = profile.intern_shown(frame);
            profile.set_shown(id, [frame]);
            id
        });
        let place = |profile: &mut Profile, site| line(profile, site, Cause::HostLate);
        assert!(
            place(&mut profile, between(nameless, nameless)).ends_with("(100.0 % between two calls in load)")
        );
        let apart = place(&mut profile, between(nameless, other));
        assert!(apart.ends_with("(100.0 % between a call in load and a call in train)"), "{apart}");
        assert_eq!(
            line(&mut profile, SampleSite::NoStack, Cause::Dependency),
            "idle 5.000 us: 100.0 % dependency or sync"
        );
    }

    #[test]
    fn a_copy_bound_program_lists_its_copies_first() {
        let mut sketch = Sketch::new();
        sketch.stats(Work::Copy(CopyKind::HTOD), 0, 9, 6_000_000, 0);
        sketch.stats(Work::Copy(CopyKind::HTOD), 1, 9, 2_400_000, 0);
        sketch.stats(GEMM, 0, 9, 900_000, 0).stats(RELU, 0, 9, 400_000, 0);
        sketch.stats(Work::Set, 0, 1, 200_000, 0).stats(Work::Copy(CopyKind::DTOH), 0, 1, 100_000, 0);
        let profile = sketch.done();
        // In this test, copies to the GPUs take 8.4 ms of 10 ms of GPU time.
        let expected = "GPU work 10.000 ms: 84.0 % HtoD copies (18 x 466.666 us), 9.0 % gemm (9 x 100.000 us), \
                        4.0 % relu (9 x 44.444 us), 3.0 % in 2 more";
        assert_eq!(work_line(&profile).unwrap(), expected);
    }

    #[test]
    fn long_names_are_cut_in_the_middle() {
        assert_eq!(without_middle("gemm"), "gemm");
        let name = format!("{}é{}", "a".repeat(40), "b".repeat(40));
        assert_eq!(without_middle(&name), format!("{}...{}", "a".repeat(30), "b".repeat(30)));
    }

    #[test]
    fn copies_mostly_from_pageable_memory_are_labelled() {
        let copies = |pageable: u64| {
            let mut profile = Sketch::new().stats(Work::Copy(CopyKind::HTOD), 0, 1, 3_000, 0).done();
            let copies = [(MemoryKind::PAGEABLE, pageable), (MemoryKind(2), 500)].map(|(from, bytes)| {
                let path = CopyPath { device: DeviceId(0), kind: CopyKind::HTOD, from, to: MemoryKind(3) };
                (path, Weight { count: 1, nanos: 10, bytes })
            });
            profile.set_delays_and_copies(Vec::new(), copies.into());
            work_line(&profile).unwrap()
        };
        assert_eq!(copies(501), "GPU work 3.000 us: 100.0 % HtoD copies mostly from pageable memory");
        assert_eq!(copies(50_000), "GPU work 3.000 us: 100.0 % HtoD copies from pageable memory");
        assert_eq!(copies(499), "GPU work 3.000 us: 100.0 % HtoD copies");
    }

    #[test]
    fn idle_time_after_a_wait_of_the_host_is_listed_in_addition_to_the_longest_place() {
        let mut profile = Profile::default();
        let wait = add_call(&mut profile, 1, "report", "cudaStreamSynchronize");
        let [launch, next] = [(2, "forward"), (3, "backward")]
            .map(|(id, name)| add_call(&mut profile, id, name, "cudaLaunchKernel"));
        profile.set_times(vec![device_time(0, 5, 10_000)], Vec::new());
        let line = |profile: &mut Profile, after_wait: u64| {
            let samples = [
                idle(between(launch, next), Cause::HostLate, 10_000 - after_wait),
                idle(between(wait, launch), Cause::HostLate, after_wait),
            ];
            profile.set_samples(&IDLE, samples.into());
            idle_line(profile).unwrap()
        };
        let calls = "between cudaLaunchKernel in forward and cudaLaunchKernel in backward";
        assert_eq!(
            line(&mut profile, 700),
            format!(
                "idle 10.000 us: 100.0 % host late (93.0 % {calls}); 7.0 % after the host waited at cudaStreamSynchronize in report"
            )
        );
        assert_eq!(line(&mut profile, 400), format!("idle 10.000 us: 100.0 % host late (96.0 % {calls})"));
        assert_eq!(
            line(&mut profile, 9_000),
            "idle 10.000 us: 100.0 % host late (90.0 % between cudaStreamSynchronize in report and cudaLaunchKernel in forward)"
        );
    }

    #[test]
    fn a_step_that_takes_most_of_the_time_is_listed() {
        let mut explain = gpuflame_explain::Explain::default();
        let mut time = 1_000_000;
        for number in 1..=21 {
            let step = Step { time: Nanos(time), end: None, thread: ThreadId(1), number, name: "" };
            explain.push(&Row::Step(step), &mut ());
            time += if number == 1 { 9_000_000 } else { 1_000_000 };
        }
        explain.push(&Row::Window { edge: WindowEdge::Close, time: Nanos(time) }, &mut ());
        let profile = explain.finish(&[], &mut ()).profile;
        assert_eq!(slow_step(profile).unwrap(), "; step 1 took 9.000 ms, the median step 1.000 ms");
        assert_eq!(slow_step(&Profile::default()), None);
    }

    #[test]
    fn several_gpus_share_a_line_and_the_steady_part_is_named() {
        let mut profile = Sketch::new().done();
        let mut times = vec![device_time(0, 900, 100), device_time(1, 200, 800)];
        times[0].start_up.idle = 100;
        times[1].start_up.idle = 100;
        times[1].shutdown.busy = 100;
        profile.set_times(times, Vec::new());
        profile.set_steady(Some(SteadyPart { rule: SteadyRule::Steps, begin: Nanos(100), end: Nanos(900) }));
        let expected = "GPU 0 busy 100.0 % of 900 ns, GPU 1 busy 12.5 % of 800 ns of steps, \
                        without 100 ns of start-up and 100 ns of shutdown";
        assert_eq!(busy_line(&complete_ledger(3), &profile), expected);
        // In this test, the GPUs were busy for 1,000 of 1,700 ns, so the picture to open first is the picture of GPU
        // time.
        let files = FILES.map(Path::new);
        assert_eq!(
            next_file_line(&profile, &files).unwrap(),
            "next: open /x/o.svg; 4 more files were written"
        );
        let times = (0..10).map(|device| device_time(device, 1, 1)).collect();
        profile.set_times(times, Vec::new());
        assert!(
            busy_line(&complete_ledger(3), &profile).contains("GPU 7 busy 50.0 % of 2 ns, and 2 more GPUs")
        );
    }

    #[test]
    fn losses_are_listed_with_their_reasons_and_make_the_busy_share_a_minimum() {
        let mut sketch = Sketch::new();
        sketch.lost(Loss::LaunchesDropped, 1200).lost(Loss::ActivitiesDropped, 5).lost(Loss::StacksCut, 3);
        let mut profile = sketch.lost(Loss::LaunchesCaptured, 7).done();
        profile.set_times(vec![device_time(0, 3, 1)], Vec::new());
        let mut ledger = complete_ledger(100);
        ledger.losses = profile.losses().collect();
        ledger.tally.activities.no_stack = 2;
        assert_eq!(
            complete_line(&ledger, &profile),
            "not complete: 1,300 launches; lost: 1,200 launches dropped, 5 activities dropped; 3 stacks cut, \
             2 activities without a launch stack (memory was short, raise GPUFLAME_MAX_MEM)"
        );
        assert_eq!(
            busy_line(&ledger, &profile),
            "GPU 0 busy at least 75.0 % of 4 ns, start-up and shutdown included"
        );
    }

    #[test]
    fn each_kind_of_loss_is_in_the_summary() {
        for loss in Loss::ALL {
            let profile = Sketch::new().lost(loss, 4321).done();
            let mut ledger = complete_ledger(1);
            ledger.losses = profile.losses().collect();
            let line = complete_line(&ledger, &profile);
            // Launches that were captured into a graph are not lost, because the captured work runs when the graph is
            // launched.
            assert_eq!(line.contains("4,321"), loss != Loss::LaunchesCaptured, "{loss:?}: {line}");
            let is_complete = is_detail(loss) || loss == Loss::LaunchesCaptured;
            assert_eq!(line.starts_with("complete: "), is_complete, "{line}");
        }
    }

    #[test]
    fn withheld_idle_time_has_its_reason() {
        let mut profile = Sketch::new().done();
        profile.set_times(vec![device_time(0, 10, 90)], Vec::new());
        let all = LaunchCoverage { launches: 20, uncovered: 18 };
        profile.set_coverage(Coverage { all, ..Coverage::default() });
        let mut ledger = complete_ledger(20);
        (ledger.tally.launches.matched, ledger.tally.launches.pending) = (1, 19);
        let expected = [
            "GPU 0 busy at least 10.0 % of 100 ns, start-up and shutdown included",
            "idle time is unknown: 18 of 20 launches have no activity",
            "not complete: 20 launches; lost: 18 launches without GPU work; 1 launch of copies or graphs without GPU work \
             (it was not finished at the exit, or CUPTI did not report it)",
            "next: open /x/o.svg; 4 more files were written",
        ];
        assert_eq!(shown(&ledger, &profile, &FILES), expected);
    }

    #[test]
    fn launches_that_were_queued_at_the_end_do_not_count_as_empty_graphs() {
        let mut profile = Sketch::new().done();
        profile.set_coverage(Coverage {
            all: LaunchCoverage { launches: 14, uncovered: 4 },
            ..Coverage::default()
        });
        profile.set_row_facts(Some(RowFacts { queued: 5, queued_graphs: 1, ..RowFacts::default() }));
        let mut ledger = complete_ledger(22);
        (ledger.tally.launches.matched, ledger.tally.launches.pending) = (10, 12);
        let expected = "not complete: 22 launches; lost: 4 launches without GPU work; \
                        6 launches probably still queued at the end, \
                        2 launches of copies or graphs without GPU work \
                        (it was not finished at the exit, or CUPTI did not report it)";
        assert_eq!(complete_line(&ledger, &profile), expected);
    }

    #[test]
    fn a_run_without_gpu_work_has_no_lines_about_work() {
        let mut ledger = Ledger::default();
        (ledger.tally.launches.seen, ledger.tally.launches.outside) = (40, 40);
        let expected = [
            "no GPU work was recorded",
            "complete: 40 launches, none lost; 40 launches outside the windows",
            "next: run `gpuflame top` on /x/o.gfr",
        ];
        assert_eq!(shown(&ledger, &Profile::default(), &["/x/o.gfr"]), expected);
    }

    #[test]
    fn work_without_times_has_no_share_and_counts_as_lost() {
        let profile = Sketch::new().done();
        let mut ledger = complete_ledger(2);
        ledger.tally.activities.untimed = 2;
        let expected = [
            "no time of any GPU work was recorded",
            "not complete: 2 launches; lost: 2 activities without times (CUPTI reported none)",
        ];
        assert_eq!(shown(&ledger, &profile, &[]), expected);
    }

    #[test]
    fn idle_time_without_a_stack_has_only_a_cause() {
        let mut profile = Profile::default();
        profile.set_times(vec![device_time(0, 0, 70)], Vec::new());
        profile.set_samples(&IDLE, vec![idle(SampleSite::Missing(Missing::NoStack), Cause::Unknown, 70)]);
        let expected =
            "idle 70 ns: 100.0 % of unknown cause, because no usable launch of the next work is known";
        assert_eq!(idle_line(&profile).unwrap(), expected);
        profile.set_samples(&IDLE, Vec::new());
        assert_eq!(idle_line(&profile).unwrap(), "idle 70 ns");
        profile.set_times(vec![device_time(0, 70, 0)], Vec::new());
        assert_eq!(idle_line(&profile).unwrap(), "idle: none in this part");
    }

    #[test]
    fn a_count_of_one_has_a_singular() {
        for (what, one) in [
            ("launches", "1 launch"),
            (
                "launches of copies or graphs without GPU work",
                "1 launch of copies or graphs without GPU work",
            ),
            ("activities without times", "1 activity without times"),
            ("graph nodes dropped", "1 graph node dropped"),
            ("python unsure", "1 python unsure"),
            ("more GPUs", "1 more GPU"),
        ] {
            assert_eq!(counted(1, what), one);
            assert_eq!(counted(1200, what), format!("1,200 {what}"));
        }
    }

    #[test]
    fn numbers_are_grouped_by_three_digits() {
        let found = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(found, ["0", "999", "1,000", "1,234,567"]);
    }
}

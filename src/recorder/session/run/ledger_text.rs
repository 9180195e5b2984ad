//! Formats the ledger as text. The ledger contains the number of launches and activities that gpuflame saw, the losses,
//! and gpuflame's own cost. If the user requests the ledger, it is printed to stderr on exit. If the user does not
//! request the ledger, only the recording contains it. Scripts parse the text, so its lines must keep their wording and
//! order.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt::Write;

use crate::capture::{self, CallbackCost, VerifiedStacks};
use gpuflame_config::RenamedOutput;
use gpuflame_cupti::DeliveryCounts;
use gpuflame_explain::{Device, Host, Ledger};
use gpuflame_export::percent;
use gpuflame_model::profile::views::UnifiedSums;
use gpuflame_model::profile::{
    BusyIdle, DeviceTime, OTHER_KERNELS, OTHER_STACKS, Profile, SteadyPart, StreamUse, saturating_sum,
};
use gpuflame_model::record::{Frame, FrameKind, Loss, Missing};
use gpuflame_model::sorting;
use gpuflame_unwind::python;

use super::stats::{KernelTime, longest_kernels};
use crate::session::clients::other_clients::{SubscriptionLoans, TimesLost};
use crate::session::collect::collector;
use crate::session::outputs::output_files::WriteReport;
use crate::session::process::messages;

/// Maximum number of kernels that are listed, and maximum number of streams that are listed per device.
const MAX_LISTED: usize = 5;

/// Returns the ledger as text. Each line begins with gpuflame's prefix.
pub(super) fn text(
    ledger: &Ledger,
    profile: &Profile,
    (report, further): (&WriteReport, Vec<String>),
    held: usize,
    (traffic, times_lost): (DeliveryCounts, TimesLost),
) -> String {
    let mut lines = vec![
        ledger.launches().to_string(),
        ledger.activities().to_string(),
        ledger.graph_activities().to_string(),
        losses(ledger),
    ];
    lines.extend(incomplete_figures(ledger));
    lines.extend(profile.idle_doubt().map(|doubt| format!("incomplete: {doubt}, so idle time is unknown")));
    lines.extend(step_count(ledger));
    lines.push(format!("stacks {} distinct", ledger.stacks.distinct));
    lines.extend(python_functions(profile));
    lines.extend(repeated_activities(ledger).into_iter().chain(impossible_ids(ledger)));
    lines.extend(callbacks_off(ledger));
    lines.extend(missing_records_hint(ledger, times_lost.records));
    lines.extend(subscription_loans(times_lost.subscription));
    lines.extend(foreign_buffers(traffic));
    lines.extend(merged_detail(ledger));
    lines.extend(ledger.devices.iter().filter_map(|device| device_lines(device, profile)).flatten());
    lines.extend(top_kernels(profile));
    lines.extend(host_calls(&ledger.host));
    lines.extend(dependencies(ledger));
    lines.extend(ledger.unified.iter().map(unified_memory));
    lines.push(own_cost(capture::cost(), held));
    lines.extend(graph_cost(ledger.tally.launches.graphs));
    lines.extend(verified_stacks(capture::verified()));
    lines.extend(report.renamed.iter().map(renamed_file));
    lines.extend(report.notes.iter().cloned());
    lines.extend(further);
    lines.extend(report.written.iter().map(|path| format!("wrote {}", path.display())));
    lines.iter().fold(String::new(), |mut text, line| {
        text.push_str(&messages::format_line(line));
        text
    })
}

/// Returns the lines of the ledger that are printed even if the user has not requested the ledger. These lines state
/// causes of missing or wrong results that the summary does not contain. These lines also list files that did not get
/// the requested names.
pub(super) fn remarks(
    ledger: &Ledger,
    profile: &Profile,
    report: &WriteReport,
    (traffic, times_lost): (DeliveryCounts, TimesLost),
) -> Vec<String> {
    let mut lines: Vec<_> = missing_records_hint(ledger, times_lost.records).into_iter().collect();
    lines.extend(subscription_loans(times_lost.subscription));
    lines.extend(foreign_buffers(traffic));
    lines.extend(python::off_reason().and_then(|_| python_functions(profile)));
    lines.extend(profile.times().iter().flat_map(doubtful_times));
    lines.extend(report.renamed.iter().map(renamed_file));
    lines.extend(report.notes.iter().cloned());
    lines
}

/// Returns a line that lists every kind of loss. The line includes the kinds that did not occur, so that scripts can
/// rely on its format.
fn losses(ledger: &Ledger) -> String {
    let mut line = format!("lost: {} {}", Missing::Untimed.word(), ledger.tally.activities.untimed);
    for loss in Loss::ALL {
        let _ = write!(line, ", {} {}", loss.label(), ledger.lost(loss));
    }
    line
}

/// Returns a line that states which figures are incomplete because of losses, and how the user can avoid the losses.
fn incomplete_figures(ledger: &Ledger) -> Option<String> {
    let (launches, activities) = (ledger.lost(Loss::LaunchesDropped), ledger.lost(Loss::ActivitiesDropped));
    let what = match (launches, activities) {
        (0, 0) => return None,
        (_, 0) => "launches were dropped, and their GPU time has no stack",
        _ => "activities were dropped, and GPU time and idle time are incomplete",
    };
    Some(format!("incomplete: {what}; raise GPUFLAME_MAX_MEM to drop fewer"))
}

/// Returns a line with the number of steps that began inside windows, if the program marks steps.
fn step_count(ledger: &Ledger) -> Option<String> {
    let threads = if ledger.steps.has_several_threads { ", begun by several threads" } else { "" };
    (ledger.steps.count > 0).then(|| format!("steps {} recorded{threads}", ledger.steps.count))
}

/// Returns a line with the number of Python functions that occur in stacks. If Python frames could not be read, the
/// line states the reason instead.
fn python_functions(profile: &Profile) -> Option<String> {
    if let Some(why) = python::off_reason() {
        return Some(format!("python frames off: {why}"));
    }
    let function = |frame: &Frame| match frame.kind() {
        FrameKind::Python { code, .. } => Some(code),
        _ => None,
    };
    let functions: HashSet<_> = profile.frames().iter().filter_map(function).collect();
    (!functions.is_empty()).then(|| format!("python {} functions in stacks", functions.len()))
}

/// Returns a line with the number of activities that CUPTI delivered twice. If an activity was delivered twice, it is
/// counted only once.
fn repeated_activities(ledger: &Ledger) -> Option<String> {
    let repeated = ledger.tally.activities.repeated;
    (repeated > 0).then(|| {
        format!(
            "CUPTI delivered {repeated} activities twice (same launch, stream and time); each counts once"
        )
    })
}

/// Returns a line with the number of activities whose correlation id cannot belong to any API call. Such activities do
/// not appear in any picture.
fn impossible_ids(ledger: &Ledger) -> Option<String> {
    let many = ledger.tally.activities.of_no_call;
    (many > 0).then(|| {
        format!(
            "CUPTI delivered {many} activities with impossible correlation ids; they are not in any picture"
        )
    })
}

/// Returns a line that states for how long the launch callbacks were off.
fn callbacks_off(ledger: &Ledger) -> Option<String> {
    let (nanos, activities) = (ledger.tally.launches.not_told_nanos, ledger.tally.activities.not_told);
    (nanos > 0).then(|| {
        format!(
            "closed: for {:.3} s launch callbacks were off and launches were not counted; {activities} \
             activities belong to them",
            nanos as f64 / 1e9
        )
    })
}

/// Returns a line that explains why launches have no activities. One possible reason is that another client of CUPTI
/// has received the activity records. CUPTI delivers activity records to the client that requested them last. A client
/// such as Kineto requests the records without a subscription, and CUPTI does not notify gpuflame of this.
fn missing_records_hint(ledger: &Ledger, taken: u64) -> Option<String> {
    let waiting = ledger.launches().parts.into_iter().find(|(word, _)| *word == "launch_pending")?.1;
    if taken > 0 {
        let times = if taken == 1 { String::new() } else { format!(" {taken} times") };
        return Some(format!(
            "another CUPTI client took over the activity records{times}: the GPU work of {waiting} launches \
             is missing; record torch.profiler and gpuflame in separate runs"
        ));
    }
    (waiting > 0 && ledger.activities().total == 0).then(|| {
        format!(
            "CUPTI recorded no GPU work for {waiting} launches, or delivered it to another client; record \
             torch.profiler and gpuflame in separate runs"
        )
    })
}

/// Returns a line that states for how long another client owned the CUPTI subscription.
fn subscription_loans(subscription: SubscriptionLoans) -> Option<String> {
    let times = match subscription.times {
        0 => return None,
        1 => String::new(),
        times => format!(" ({times} times)"),
    };
    let duration = subscription.duration().as_secs_f64();
    Some(format!("for {duration:.3} s{times} another CUPTI client prevented recording"))
}

/// Returns a line about deliveries from CUPTI that can only be errors: buffers that do not belong to gpuflame, and
/// callbacks without data.
fn foreign_buffers(traffic: DeliveryCounts) -> Option<String> {
    let DeliveryCounts { foreign_buffers: strangers, callbacks_without_data: without_data, .. } = traffic;
    (strangers + without_data > 0).then(|| {
        format!(
            "CUPTI returned {strangers} buffers that are not gpuflame's, and made {without_data} callbacks \
             without data"
        )
    })
}

/// Returns lines about details that were dropped because memory was short: merged stacks, merged kernels and missing
/// thread names. The sums are complete even if details such as merged stacks were dropped.
fn merged_detail(ledger: &Ledger) -> Vec<String> {
    let line = |loss, many: &str, frame: &str, (count, nanos): (u64, u64)| {
        let not_kept = ledger.lost(loss);
        (not_kept > 0)
            .then(|| format!("merged: {not_kept} {many} into {frame}, with {count} activities, {nanos} ns"))
    };
    let stacks = line(Loss::StacksNotKeptApart, "stacks", OTHER_STACKS, ledger.others.stacks);
    let kernels = line(Loss::KernelsNotKeptApart, "kernels", OTHER_KERNELS, ledger.others.kernels);
    let threads = match ledger.lost(Loss::ThreadsNotNamed) {
        0 => None,
        count => Some(format!(
            "not kept: the names of {count} threads, because their stacks were first seen on other threads"
        )),
    };
    let mut lines: Vec<String> = [stacks, kernels, threads].into_iter().flatten().collect();
    if !lines.is_empty() {
        lines.push("memory was short: raise GPUFLAME_MAX_MEM to keep more detail".to_owned());
    }
    lines
}

/// Returns lines about the waits and memory allocations of the host, if these were recorded.
fn host_calls(host: &Host) -> Vec<String> {
    let mut lines = Vec::new();
    if host.waits > 0 {
        lines.push(format!("host waited {} ns in {} calls", host.waited, host.waits));
    }
    if host.allocations + host.frees > 0 {
        let Host { allocations, frees, held_max, .. } = host;
        lines.push(host.bytes().to_string());
        lines.push(format!(
            "allocated in {allocations} calls, freed in {frees}, at most {held_max} bytes at once"
        ));
    }
    lines
}

/// Returns lines about the dependencies that arise from API calls that record CUDA events or wait for them, if these
/// were recorded.
fn dependencies(ledger: &Ledger) -> Vec<String> {
    if ledger.dependencies.is_empty() {
        return Vec::new();
    }
    let [calls, waits] = ledger.dependency_sums();
    let records = format!("event records {}", ledger.dependencies.event_records);
    vec![calls.to_string(), records, waits.to_string()]
}

/// Returns a line about one kind of activity of unified memory.
fn unified_memory(sample: &UnifiedSums) -> String {
    let UnifiedSums { kind, device, count, value, nanos } = sample;
    let gpu = device.map(|device| format!("GPU {} ", device.0)).unwrap_or_default();
    match kind.is_move() {
        true => format!("{gpu}unified memory {}: {value} bytes in {count} moves, {nanos} ns", kind.label()),
        false => format!("{gpu}unified memory {}: {value}, in {count} records", kind.label()),
    }
}

/// Returns the lines about the GPU work, the times and the streams of a device. Returns `None` if the device's GPU work
/// has no times.
fn device_lines(device: &Device, profile: &Profile) -> Option<Vec<String>> {
    let gpu = format!("GPU {}", device.id().0);
    let (time, [window, idle]) = (device.time.as_ref()?, device.sums()?);
    let work = format!("{gpu}: {} activities, {} ns in all", device.work.count, device.work.nanos);
    let mut lines = match profile.idle_doubt() {
        Some(_) => vec![work],
        None => vec![
            format!("{work}, {}", busy_share(time, profile.steady())),
            window.to_string(),
            idle.to_string(),
        ],
    };
    lines.push(busiest_streams(profile, time, &gpu));
    lines.extend(doubtful_times(time));
    Some(lines)
}

/// Returns lines about a device's activities that arrived too late, or that began before they were launched.
fn doubtful_times(time: &DeviceTime) -> Vec<String> {
    let gpu = format!("GPU {}", time.device.0);
    let mut lines = Vec::new();
    if time.late_count > 0 {
        lines.push(format!(
            "{gpu} late: {} activities came too late to count as busy, {} ns",
            time.late_count, time.late
        ));
    }
    if time.early_count > 0 {
        lines.push(format!(
            "{gpu} clock: {} activities began before their launch, by up to {} ns; causes of idle time may be wrong",
            time.early_count, time.early
        ));
    }
    lines
}

/// Returns a line about a file that has another name than intended, because the intended name was taken.
fn renamed_file(rename: &RenamedOutput) -> String {
    format!("{} is taken; wrote {} instead", rename.intended.display(), rename.actual.display())
}

/// Returns a text that states for which share of the run's steady part a device was busy, and how long the start-up and
/// the shutdown of the program took.
fn busy_share(time: &DeviceTime, steady: Option<SteadyPart>) -> String {
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let BusyIdle { busy, .. } = time.steady();
    let window = time.steady().window();
    let share = format!("busy {:.1} % of {:.3} s", percent(busy, window), seconds(window));
    match steady {
        Some(SteadyPart { rule, .. }) => format!(
            "{share} of {}, between {:.3} s of start-up and {:.3} s of shutdown",
            rule.words(),
            seconds(time.start_up.window()),
            seconds(time.shutdown.window())
        ),
        None => format!("{share}, start-up and shutdown included"),
    }
}

/// Returns a line that lists the busiest streams of a device, and states for which share of the window each of these
/// streams was busy.
fn busiest_streams(profile: &Profile, time: &DeviceTime, gpu: &str) -> String {
    let mut streams: Vec<_> =
        profile.streams().iter().filter(|stream| stream.device == time.device).collect();
    sorting::sort_by_key(&mut streams, |stream| (Reverse(stream.nanos), stream.stream));
    let mut line = format!("{gpu} streams: {}", streams.len());
    for StreamUse { stream, count, nanos, .. } in streams.iter().take(MAX_LISTED) {
        let name = match stream {
            Some((context, stream)) => format!("stream {} of context {}", stream.0, context.0),
            None => "further streams".to_owned(),
        };
        let _ = write!(line, "; {name} {:.1} % in {count}", percent(*nanos, time.window));
    }
    line
}

/// Returns lines that list the kernels with the longest total time on all devices.
fn top_kernels(profile: &Profile) -> Vec<String> {
    let all = saturating_sum(profile.works().iter().map(|work| work.weight.nanos));
    let line = |(place, KernelTime { name, count, nanos }): (usize, KernelTime)| {
        let share = percent(nanos, all);
        format!("top {}: {share:5.1} % {nanos} ns in {count} x {name}", place + 1)
    };
    longest_kernels(profile, MAX_LISTED).into_iter().enumerate().map(line).collect()
}

/// Returns a line with the results of verifying stacks, if stacks were verified.
fn verified_stacks(verified: VerifiedStacks) -> Option<String> {
    let VerifiedStacks { stacks, unlike_plain, unlike_libgcc } = verified;
    (stacks > 0).then(|| {
        format!(
            "verified: {stacks} stacks captured again, {unlike_plain} differ from a walk of every frame, \
             {unlike_libgcc} differ from libgcc's walk"
        )
    })
}

/// Returns a line that states how much time gpuflame adds to a graph launch, if there were graph launches. The time
/// that gpuflame adds does not depend on the number of nodes in the graph.
fn graph_cost(launches: u64) -> Option<String> {
    let each = median_cost(capture::graph_cost(launches));
    (launches > 0).then(|| format!("graph launches: {each}, {launches} of them"))
}

fn median_cost(cost: CallbackCost) -> String {
    match cost.median {
        Some(median) => format!("{median} ns per call (median of {} timed)", cost.timed),
        None => "not measured".to_owned(),
    }
}

fn own_cost(cost: CallbackCost, held: usize) -> String {
    let each = median_cost(cost);
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let most = mib(held.max(collector::peak_bytes_held()));
    format!("own cost: {each}, {} calls, {:.1} MiB held, {most:.1} at most", cost.calls, mib(held))
}

//! The ledger: what was seen, what became of it, what was lost, and what it cost. Printed to stderr at
//! exit, in lines that keep their words and their order, so that scripts can read them.

use std::cmp::Reverse;
use std::fmt::Write;

use crate::capture::{self, Cost, Verified};
use crate::profile::views::{self, IDLE, MEMORY, UnifiedSums, WAITS, idle_word};
use crate::profile::{Cause, DeviceTime, Profile, Sample, StreamUse, Tip, View, WorkStats};
use crate::record::{Loss, Missing, Work};

use super::collector;
use super::pipeline::Pipeline;
use super::write::Report;

/// How many kernels are named, and how many streams of a device.
const TOP: usize = 5;

/// The ledger's text, every line with the prefix.
pub(super) fn text(pipeline: &Pipeline, report: &Report, held: usize) -> String {
    let explain = pipeline.explain();
    let (profile, tally, nodes) = (explain.profile(), explain.tally(), explain.nodes());
    let lost = |loss| profile.losses().find(|(kind, _)| *kind == loss).map_or(0, |(_, count)| count);
    let mut lines = vec![
        sum(
            "launches",
            tally.launches.seen,
            &tally.launches.parts(),
            lost(Loss::LaunchesDropped) + lost(Loss::StacksNested),
        ),
        sum("activities", tally.activities.seen, &tally.activities.parts(), lost(Loss::ActivitiesDropped)),
        format!("graph activities {} = {}", nodes.seen(), parts(&nodes.parts())),
        losses(&lost, tally.activities.untimed),
        format!("stacks {} distinct", explain.stacks().distinct),
    ];
    lines.extend(profile.times().iter().flat_map(|time| device_lines(profile, time)));
    lines.extend(top(profile));
    lines.extend(host(profile, explain.memory()));
    lines.extend(dependencies(profile));
    lines.extend(unified(profile));
    lines.push(cost(capture::cost(), held));
    lines.extend(graph_cost(tally.launches.graphs));
    lines.extend(verified(capture::verified()));
    lines.extend(
        report.renamed.iter().map(|rename| {
            format!("{} exists; wrote {} instead", rename.taken.display(), rename.used.display())
        }),
    );
    lines.extend(report.written.iter().map(|path| format!("wrote {}", path.display())));
    lines.iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "gpuflame: {}", super::on_one_line(line));
        text
    })
}

/// `launches N = matched M + …`: all that were seen, and what became of them.
fn sum(what: &str, seen: u64, parts: &[(&str, u64)], dropped: u64) -> String {
    format!("{what} {} = {} + dropped {dropped}", seen + dropped, self::parts(parts))
}

fn parts(parts: &[(&str, u64)]) -> String {
    parts.iter().map(|(word, n)| format!("{word} {n}")).collect::<Vec<_>>().join(" + ")
}

/// Everything that can be lost, also what was not: a line that scripts can rely on.
fn losses(lost: &impl Fn(Loss) -> u64, untimed: u64) -> String {
    let mut line = format!("lost: {} {untimed}", Missing::Untimed.word());
    for loss in Loss::ALL {
        let _ = write!(line, ", {} {}", loss.label(), lost(loss));
    }
    line
}

/// How long the host waited, and what it allocated, where that was asked for.
fn host(profile: &Profile, (held, most): (u64, u64)) -> Vec<String> {
    let of = |view: &View, wanted: fn(&Sample) -> bool| {
        let samples = profile.samples(view).iter().filter(|sample| wanted(sample));
        samples.fold((0, 0), |(count, sum), sample| (count + sample.count(), sum + sample.amount()))
    };
    let mut lines = Vec::new();
    let (waits, nanos) = of(&WAITS, |_| true);
    if waits > 0 {
        lines.push(format!("host waited {nanos} ns in {waits} calls"));
    }
    let (allocations, allocated) =
        of(&MEMORY, |sample| sample.leaf.tips().any(|tip| matches!(tip, Tip::Allocate(_))));
    let (frees, freed) = of(&MEMORY, |sample| sample.leaf.tips().any(|tip| matches!(tip, Tip::Free(_))));
    if allocations + frees > 0 {
        let lost = allocated - freed - held;
        lines.push(format!(
            "allocated_bytes {allocated} = freed {freed} + held {held} + free_not_seen {lost}"
        ));
        lines.push(format!(
            "allocated in {allocations} calls, freed in {frees}, at most {most} bytes at once"
        ));
    }
    lines
}

/// What was recorded of what waited for what, where that was asked for.
fn dependencies(profile: &Profile) -> Vec<String> {
    let known = profile.dependencies();
    if known.is_empty() {
        return Vec::new();
    }
    let calls = [("record", known.record_calls), ("stream_wait", known.wait_calls)];
    let (waits, by_kind) = known.waits();
    vec![
        format!("event calls {} = {}", known.record_calls + known.wait_calls, parts(&calls)),
        format!("event records {}", known.event_records),
        format!("wait records {waits} = {}", parts(&by_kind)),
    ]
}

/// What happened to unified memory, where that was asked for.
fn unified(profile: &Profile) -> impl Iterator<Item = String> {
    views::unified(profile).map(|UnifiedSums { kind, device, count, value, nanos }| {
        let gpu = device.map(|device| format!("GPU {} ", device.0)).unwrap_or_default();
        match kind.is_move() {
            true => {
                format!("{gpu}unified memory {}: {value} bytes in {count} moves, {nanos} ns", kind.label())
            }
            false => format!("{gpu}unified memory {}: {value}, in {count} records", kind.label()),
        }
    })
}

/// What a device did, how it spent its time, and on which streams.
fn device_lines(profile: &Profile, time: &DeviceTime) -> Vec<String> {
    let gpu = format!("GPU {}", time.device.0);
    let (count, nanos) = profile
        .devices()
        .iter()
        .find(|device| device.device == time.device)
        .map_or((0, 0), |device| (device.count, device.nanos));
    let mut lines = vec![
        format!(
            "{gpu}: {count} activities, {nanos} ns in all, busy {:.1} % of {:.3} s",
            percent(time.busy, time.window),
            time.window as f64 / 1e9
        ),
        format!("{gpu} window_ns {} = busy {} + idle {}", time.window, time.busy, time.idle),
        idle(profile, time, &gpu),
        streams(profile, time, &gpu),
    ];
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

/// `GPU 0 idle_ns N = host_late A + …`: by cause where work ended a gap, and what lay before and after.
fn idle(profile: &Profile, time: &DeviceTime, gpu: &str) -> String {
    let of = |word: &str| -> u64 {
        let samples = profile.samples(&IDLE).iter();
        let samples = samples.filter(|s| s.device == Some(time.device) && idle_word(s) == word);
        samples.map(Sample::amount).sum()
    };
    let mut line = format!("{gpu} idle_ns {} =", time.idle);
    for cause in Cause::ALL {
        let _ = write!(line, " {} {} +", cause.word(), of(cause.word()));
    }
    let _ = write!(line, " opening {} + closing {}", of("before_the_first"), of("after_the_last"));
    line
}

/// The busiest streams of a device, with their share of its window.
fn streams(profile: &Profile, time: &DeviceTime, gpu: &str) -> String {
    let mut streams: Vec<_> =
        profile.streams().iter().filter(|stream| stream.device == time.device).collect();
    streams.sort_by_key(|stream| (Reverse(stream.nanos), stream.stream));
    let mut line = format!("{gpu} streams: {}", streams.len());
    for StreamUse { stream, count, nanos, .. } in streams.iter().take(TOP) {
        let name = match stream {
            Some((context, stream)) => format!("stream {} of context {}", stream.0, context.0),
            None => "further streams".to_owned(),
        };
        let _ = write!(line, "; {name} {:.1} % in {count}", percent(*nanos, time.window));
    }
    line
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// The kernels that took most time, over all devices.
fn top(profile: &Profile) -> Vec<String> {
    let mut kernels: Vec<(u64, u64, &str)> = Vec::new();
    for WorkStats { work, weight, .. } in profile.works() {
        let Work::Kernel(id) = *work else { continue };
        let name = profile.kernel(id).unwrap_or("[unnamed kernel]");
        match kernels.iter_mut().find(|(.., known)| *known == name) {
            Some(sum) => {
                sum.0 += weight.nanos;
                sum.1 += weight.count;
            }
            None => kernels.push((weight.nanos, weight.count, name)),
        }
    }
    let all: u64 = profile.works().iter().map(|work| work.weight.nanos).sum();
    kernels.sort_by(|a, b| b.0.cmp(&a.0).then(a.2.cmp(b.2)));
    let line = |(place, (nanos, count, name)): (usize, &(u64, u64, &str))| {
        let share = percent(*nanos, all);
        format!("top {}: {share:5.1} % {nanos} ns in {count} x {name}", place + 1)
    };
    kernels.iter().take(TOP).enumerate().map(line).collect()
}

/// What was found by taking stacks again, where that was asked for.
fn verified(verified: Verified) -> Option<String> {
    let Verified { stacks, unlike_plain, unlike_libgcc } = verified;
    (stacks > 0).then(|| {
        format!(
            "verified: {stacks} stacks taken again, {unlike_plain} unlike a walk of every frame, {unlike_libgcc} \
             unlike libgcc's"
        )
    })
}

/// What a launch of a graph cost the application, if there were any: it does not follow the number of nodes.
fn graph_cost(launches: u64) -> Option<String> {
    let each = median(capture::graph_cost(launches));
    (launches > 0).then(|| format!("graph launches: {each}, {launches} of them"))
}

fn median(cost: Cost) -> String {
    match cost.median {
        Some(median) => format!("{median} ns a call (median of {} timed)", cost.timed),
        None => "not measured".to_owned(),
    }
}

fn cost(cost: Cost, held: usize) -> String {
    let each = median(cost);
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let most = mib(held.max(collector::most_held()));
    format!("own cost: {each}, {} calls, {:.1} MiB held, {most:.1} at most", cost.calls, mib(held))
}

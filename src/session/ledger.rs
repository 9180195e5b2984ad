//! The ledger: what was seen, what became of it, what was lost, and what it cost. Printed to stderr at
//! exit, in lines that keep their words and their order, so that scripts can read them.

use std::fmt::Write;

use crate::capture::{self, Cost, Verified};
use crate::profile::{DeviceUse, Profile, WorkStats};
use crate::record::{Loss, Missing, WindowEdge, Work};

use super::collector;
use super::pipeline::Pipeline;
use super::write::Report;

/// How many kernels are named.
const TOP: usize = 5;

/// The ledger's text, every line with the prefix.
pub(super) fn text(pipeline: &Pipeline, report: &Report, held: usize) -> String {
    let profile = pipeline.profile();
    let tally = pipeline.join().tally();
    let lost = |loss| profile.losses().find(|(kind, _)| *kind == loss).map_or(0, |(_, count)| count);
    let mut lines = vec![
        sum(
            "launches",
            tally.launches.seen,
            &tally.launches.parts(),
            lost(Loss::LaunchesDropped) + lost(Loss::StacksNested),
        ),
        sum("activities", tally.activities.seen, &tally.activities.parts(), lost(Loss::ActivitiesDropped)),
        losses(&lost, tally.activities.untimed),
        format!("stacks {} distinct", pipeline.stacks()),
    ];
    lines.extend(profile.devices().iter().map(|device| device_line(device, window(profile, device))));
    lines.extend(top(profile));
    lines.push(cost(capture::cost(), held));
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
    let parts: Vec<_> =
        parts.iter().chain(&[("dropped", dropped)]).map(|(word, n)| format!("{word} {n}")).collect();
    format!("{what} {} = {}", seen + dropped, parts.join(" + "))
}

/// Everything that can be lost, also what was not: a line that scripts can rely on.
fn losses(lost: &impl Fn(Loss) -> u64, untimed: u64) -> String {
    let mut line = format!("lost: {} {untimed}", Missing::Untimed.word());
    for loss in Loss::ALL {
        let _ = write!(line, ", {} {}", loss.label(), lost(loss));
    }
    line
}

/// The stretch in which `device` could have been busy: from the first edge to the last, or to the end
/// of work that outlasted the window.
fn window(profile: &Profile, device: &DeviceUse) -> u64 {
    let edge =
        |wanted| profile.windows().iter().filter(move |(edge, _)| *edge == wanted).map(|(_, time)| *time);
    let opened = edge(WindowEdge::Open).min().unwrap_or(device.first).min(device.first);
    let closed = edge(WindowEdge::Close).max().unwrap_or(device.last).max(device.last);
    closed.since(opened)
}

fn device_line(device: &DeviceUse, window: u64) -> String {
    let share = if window == 0 { 0.0 } else { 100.0 * device.busy as f64 / window as f64 };
    format!(
        "GPU {}: {} activities, {} ns in all, busy {share:.1} % of {:.3} s",
        device.device.0,
        device.count,
        device.nanos,
        window as f64 / 1e9
    )
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
        let share = if all == 0 { 0.0 } else { 100.0 * *nanos as f64 / all as f64 };
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

fn cost(cost: Cost, held: usize) -> String {
    let each = match cost.median {
        Some(median) => format!("{median} ns a call (median of {} timed)", cost.timed),
        None => "not measured".to_owned(),
    };
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let most = mib(held.max(collector::most_held()));
    format!("own cost: {each}, {} calls, {:.1} MiB held, {most:.1} at most", cost.calls, mib(held))
}

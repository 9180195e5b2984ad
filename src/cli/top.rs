//! `gpuflame top`: the kernels, stacks and launches that cost most, heaviest first.

use std::collections::HashMap;

use clap::{Args, ValueEnum};

use super::console::{Console, Outcome};
use super::explain::{Explained, explain};
use super::input::Source;
use super::names::NameFlags;
use super::report::{Cell, Report, Table};
use crate::analysis::Delays;
use crate::error::Result;
use crate::events::JoinedActivity;
use crate::export::{Names, folded_names, work_name};
use crate::profile::views::{GPU, IDLE, idle_word};
use crate::profile::{Profile, Values, add_values};

/// Show what costs most.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame top run.gfr --by kernels,delay,idle\n  \
    gpuflame top trace.json.gz -n 0 --format csv -o top.csv")]
pub(super) struct Top {
    /// The recording or trace (`-`: standard input).
    input: Source,
    /// What to rank.
    #[arg(short, long, value_delimiter = ',', default_values = ["kernels", "stacks"])]
    by: Vec<By>,
    /// How many rows of each; 0: all.
    #[arg(short, long, default_value_t = 10)]
    number: usize,
    #[command(flatten)]
    names: NameFlags,
    #[command(flatten)]
    report: Report,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// Kernels, copies and fills by GPU time.
    Kernels,
    /// Launching stacks by GPU time.
    Stacks,
    /// How long kernels waited between the call that launched them and their start.
    Delay,
    /// Time in which GPUs had nothing to do, by cause. Where a trace tells what the launching thread was in meanwhile, a
    /// late host is shown there, `[between A and B]` where only that is known; all else by the launch that ended it.
    Idle,
}

impl Top {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let mut delays = Delays::default();
        let explained = explain(&self.input, console, &mut delays)?;
        explained.facts.need_work(&self.input)?;
        let names = self.names.names();
        let most = if self.number == 0 { usize::MAX } else { self.number };
        let tables: Vec<_> = self
            .by
            .iter()
            .map(|by| match by {
                By::Kernels => kernels(&explained, most),
                By::Stacks => stacks(&explained, names, most),
                By::Idle => idle(&explained.profile, names, most),
                By::Delay => self::delays(&delays, &explained.profile, most),
            })
            .collect();
        self.report.write(console, &tables)?;
        Ok(Outcome::Clean)
    }
}

fn gpu_time(profile: &Profile) -> u64 {
    profile.devices().iter().map(|device| device.nanos).sum()
}

fn kernels(explained: &Explained, most: usize) -> Table {
    let profile = &explained.profile;
    let mut table = Table::new(
        "kernels",
        &[
            "total_ns",
            "share_percent",
            "count",
            "avg_ns",
            "min_ns",
            "p50_ns",
            "p95_ns",
            "max_ns",
            "device",
            "name",
        ],
    );
    let total = gpu_time(profile);
    let mut works: Vec<_> =
        profile.works().iter().map(|work| (work_name(profile, work.work), work)).collect();
    works.sort_by(|(a_name, a), (b_name, b)| {
        b.weight.nanos.cmp(&a.weight.nanos).then_with(|| (a_name, a.device).cmp(&(b_name, b.device)))
    });
    for (name, work) in works.into_iter().take(most) {
        table.row([
            Cell::Nanos(work.weight.nanos),
            Cell::share(work.weight.nanos, total),
            Cell::Count(work.weight.count),
            Cell::Nanos(work.weight.nanos / work.weight.count.max(1)),
            Cell::Nanos(work.min),
            Cell::Nanos(work.percentiles[0]),
            Cell::Nanos(work.percentiles[1]),
            Cell::Nanos(work.max),
            Cell::Count(work.device.0.into()),
            Cell::Text(name),
        ]);
    }
    table
}

fn stacks(explained: &Explained, names: Names, most: usize) -> Table {
    let profile = &explained.profile;
    let mut sums: HashMap<String, Values> = HashMap::new();
    for sample in profile.samples(&GPU) {
        let sum = sums.entry(folded_names(profile, sample.place, names).join(";")).or_default();
        add_values(sum, sample.values);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1[0].cmp(&a.1[0]).then_with(|| a.0.cmp(&b.0)));
    let mut table = Table::new("stacks", &["total_ns", "share_percent", "count", "stack"]);
    let total = gpu_time(profile);
    for (stack, [nanos, count, ..]) in sums.into_iter().take(most) {
        table.row([Cell::Nanos(nanos), Cell::share(nanos, total), Cell::Count(count), Cell::Text(stack)]);
    }
    table
}

fn idle(profile: &Profile, names: Names, most: usize) -> Table {
    let mut sums: HashMap<(&str, String), (u64, u64)> = HashMap::new();
    for sample in profile.samples(&IDLE) {
        let stack = folded_names(profile, sample.place, names).join(";");
        let sum = sums.entry((idle_word(sample), stack)).or_default();
        sum.0 += sample.amount();
        sum.1 += sample.count();
    }
    let total = profile.times().iter().map(|time| time.idle).sum();
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
    let mut table = Table::new("idle", &["total_ns", "share_percent", "gaps", "cause", "stack"]);
    for ((cause, stack), (nanos, gaps)) in sums.into_iter().take(most) {
        table.row([
            Cell::Nanos(nanos),
            Cell::share(nanos, total),
            Cell::Count(gaps),
            cause.into(),
            Cell::Text(stack),
        ]);
    }
    table
}

/// Sums by name, over all devices, of these activities; the `most` heaviest.
pub(super) fn sums(profile: &Profile, events: &[&JoinedActivity], most: usize) -> Table {
    let columns = &["total_ns", "share_percent", "count", "avg_ns", "min_ns", "max_ns", "name"];
    let mut table = Table::new("stats", columns);
    let mut sums: HashMap<String, (u64, u64, u64, u64)> = HashMap::new();
    for event in events {
        let Some(nanos) = event.activity.duration() else { continue };
        let sum = sums.entry(work_name(profile, event.activity.work())).or_insert((0, 0, u64::MAX, 0));
        *sum = (sum.0.saturating_add(nanos), sum.1 + 1, sum.2.min(nanos), sum.3.max(nanos));
    }
    let total = sums.values().map(|sum| sum.0).sum();
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
    for (name, (nanos, count, min, max)) in sums.into_iter().take(most) {
        table.row([
            Cell::Nanos(nanos),
            Cell::share(nanos, total),
            Cell::Count(count),
            Cell::Nanos(nanos / count),
            Cell::Nanos(min),
            Cell::Nanos(max),
            Cell::Text(name),
        ]);
    }
    table
}

/// From the call that launched to the start on the GPU, for each kind of work; longest in all first.
fn delays(delays: &Delays, profile: &Profile, most: usize) -> Table {
    let mut table =
        Table::new("delay", &["avg_ns", "p50_ns", "p95_ns", "max_ns", "count", "before_launch", "name"]);
    let mut delays: Vec<_> = delays.each().map(|(work, delay)| (work_name(profile, work), delay)).collect();
    delays.sort_by(|(a_name, a), (b_name, b)| b.sum.cmp(&a.sum).then_with(|| a_name.cmp(b_name)));
    for (name, delay) in delays.into_iter().take(most) {
        table.row([
            Cell::Nanos(delay.average()),
            Cell::Nanos(delay.percentile(50)),
            Cell::Nanos(delay.percentile(95)),
            Cell::Nanos(delay.longest),
            Cell::Count(delay.count()),
            Cell::Count(delay.early),
            Cell::Text(name),
        ]);
    }
    table
}

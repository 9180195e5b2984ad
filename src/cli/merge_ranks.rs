//! `gpuflame merge-ranks`: many recordings or traces of one job as one profile, and the table that shows
//! which of them holds the others up.

use clap::Args;

use super::explain::explain;
use super::input::Source;
use super::output::Target;
use super::report::{self, Cell, Format, Table};
use super::{Console, Ended, Outcome, ranks};
use crate::aggregate::Aggregate;
use crate::error::{Error, ErrorKind, Result};
use crate::export::{GraphStacks, Lines, SvgOptions, Unit, lines, work_name, write_lines_svg};
use crate::profile::Profile;
use crate::record::Work;
use crate::symbolize::SymbolizeOptions;

/// Put the ranks of a job together.
///
/// The straggler is the rank with most work of its own (busy with anything but communication): the others
/// wait for it inside their collectives.
#[derive(Debug, Args)]
pub(super) struct MergeRanks {
    /// Recordings or traces, one a rank, or folders of them. Ranks are told from the names.
    #[arg(required = true)]
    inputs: Vec<Source>,
    /// Where to write one profile of all, each rank a frame at the root (.folded or .svg).
    #[arg(short, long, value_name = "FILE")]
    output: Option<Target>,
    /// Where to write the table.
    #[arg(long, value_name = "FILE", default_value = "-")]
    table: Target,
    /// How to write the table.
    #[arg(short, long, default_value = "text")]
    format: Format,
    /// How many kernels to name for each rank.
    #[arg(short, long, default_value_t = 3)]
    number: usize,
    /// What a stack weighs in the profile: ns, us or count.
    #[arg(short, long, default_value = "ns")]
    unit: Unit,
    /// Which stacks the work of a graph hangs under: both, capture (where it was captured or added), or launch.
    #[arg(long, default_value = "both")]
    graph: GraphStacks,
}

/// What is known of a rank.
struct Rank {
    rank: u32,
    busy: u64,
    idle: u64,
    work: u64,
    communication: u64,
    linked: (u64, u64),
    /// Heaviest first.
    kernels: Vec<(u64, String)>,
}

impl MergeRanks {
    pub(super) fn run(&self, console: Console) -> Outcome {
        let sources = ranks::expand(&self.inputs)?;
        let mut all = Vec::new();
        let mut merged = Lines::new();
        let numbers = ranks::of(&sources);
        for (source, &rank) in sources.iter().zip(&numbers) {
            console.remark(format!("rank {rank}: {source}"));
            let explained = explain(source, SymbolizeOptions::default(), console, None::<Aggregate>)?;
            for (stack, weight) in lines(&explained.profile, self.unit, self.graph) {
                *merged.entry(format!("rank {rank};{stack}")).or_default() += weight;
            }
            let tally = explained.tally.activities;
            all.push(Rank::of(rank, &explained.profile, (tally.matched, tally.seen)));
        }
        all.sort_by_key(|rank| rank.rank);
        if let Some(output) = &self.output {
            self.profile(&merged, output, console)?;
        }
        let tables = [self.ranks(&all), self.kernels(&all)];
        self.table.write(console, |out| report::write(&tables, self.format, out))?;
        Ok(Ended::Well)
    }

    fn profile(&self, merged: &Lines, output: &Target, console: Console) -> Result<()> {
        match output.ending() {
            Some("svg") => {
                let title = "GPU time by rank and launching stack".to_owned();
                let options = SvgOptions { unit: self.unit, title, graph: self.graph };
                output.write(console, |mut out| write_lines_svg(merged, &options, &mut out))
            }
            Some("folded" | "txt") | None => output.write(console, |out| {
                for (stack, weight) in merged {
                    let weight = if self.unit == Unit::Micros { (weight + 500) / 1000 } else { *weight };
                    writeln!(out, "{stack} {weight}")?;
                }
                Ok(())
            }),
            Some(other) => {
                let message = format!("a profile of many ranks is a .folded or an .svg, not a .{other}");
                Err(Error::new(ErrorKind::Setting, message))
            }
        }
    }

    fn ranks(&self, all: &[Rank]) -> Table {
        let columns = &[
            "rank",
            "busy_ns",
            "idle_ns",
            "busy_percent",
            "work_ns",
            "communication_ns",
            "linked_percent",
            "straggler",
        ];
        let mut table = Table::new("ranks", columns);
        let most = all.iter().map(|rank| rank.work).max().unwrap_or(0);
        for rank in all {
            table.row([
                Cell::Text(rank.rank.to_string()),
                Cell::Nanos(rank.busy),
                Cell::Nanos(rank.idle),
                Cell::share(rank.busy, rank.busy + rank.idle),
                Cell::Nanos(rank.work),
                Cell::Nanos(rank.communication),
                Cell::share(rank.linked.0, rank.linked.1),
                (if rank.work == most && most > 0 && all.len() > 1 { "<- most work" } else { "" }).into(),
            ]);
        }
        table
    }

    fn kernels(&self, all: &[Rank]) -> Table {
        let mut table = Table::new("kernels", &["rank", "total_ns", "name"]);
        for rank in all {
            for (nanos, name) in rank.kernels.iter().take(self.number) {
                table.row([Cell::Text(rank.rank.to_string()), Cell::Nanos(*nanos), Cell::Text(name.clone())]);
            }
        }
        table
    }
}

impl Rank {
    fn of(rank: u32, profile: &Profile, linked: (u64, u64)) -> Self {
        let mut sums: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
        let (mut work, mut communication) = (0, 0);
        for one in profile.works() {
            let name = work_name(profile, one.work);
            let is_kernel = matches!(one.work, Work::Kernel(_));
            *(if is_kernel && is_communication(&name) { &mut communication } else { &mut work }) +=
                one.weight.nanos;
            if is_kernel {
                *sums.entry(name).or_default() += one.weight.nanos;
            }
        }
        let mut kernels: Vec<_> = sums.into_iter().map(|(name, nanos)| (nanos, name)).collect();
        kernels.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let busy = profile.times().iter().map(|time| time.busy).sum();
        let idle = profile.times().iter().map(|time| time.idle).sum();
        Self { rank, busy, idle, work, communication, linked, kernels }
    }
}

/// Kernels of NCCL and RCCL are named after it.
fn is_communication(name: &str) -> bool {
    name.to_ascii_lowercase().contains("nccl")
}

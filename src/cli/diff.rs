//! `gpuflame diff`: what became slower and what faster between two runs, by kernel and by stack, and
//! whether that is more than chance.

use std::collections::BTreeMap;

use clap::Args;

use super::console::{Console, Outcome};
use super::explain::{Explained, explain};
use super::input::Source;
use super::report::{Cell, Report, Table};
use crate::analysis::{Durations, change};
use crate::error::Result;
use crate::events::Events;
use crate::export::{clean_frame, event_place, stack_names, work_name};
use crate::profile::Place;

/// Compare two runs.
///
/// `sure` says whether the average duration of an activity changed by more than chance, by Welch's t-test (two
/// sides, one in a thousand): `yes` or `no`; `too few` where either side has less than five, and nothing can be
/// said; `new` and `gone` where one side has none. It takes durations as independent of each other: a clock
/// that was slower for all of one run makes everything `yes`, so that two runs each are better than one. Totals
/// also change where there are more or fewer activities, which is no question of chance.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame diff before.gfr after.gfr\n  \
    gpuflame diff before.json.gz after.json.gz -n 0 --format csv -o diff.csv")]
pub(super) struct Diff {
    /// The run before.
    before: Source,
    /// The run after.
    after: Source,
    /// How many rows of each table; 0: all.
    #[arg(short, long, default_value_t = 10)]
    number: usize,
    #[command(flatten)]
    report: Report,
}

const COLUMNS: [&str; 9] = [
    "change_ns",
    "change_percent",
    "before_ns",
    "after_ns",
    "before_count",
    "after_count",
    "average_percent",
    "sure",
    "name",
];

impl Diff {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let before = Run::read(&self.before, console)?;
        let after = Run::read(&self.after, console)?;
        let mut total = Table::new(
            "total",
            &["change_ns", "change_percent", "before_ns", "after_ns", "before_count", "after_count"],
        );
        let (a, b) = (before.total(), after.total());
        let [change, percent, nanos, later_nanos, count, later_count, ..] = cells("", a, b);
        total.row([change, percent, nanos, later_nanos, count, later_count]);
        let tables = [
            total,
            self.table("kernels", &before.kernels, &after.kernels),
            self.table("stacks", &before.stacks, &after.stacks),
        ];
        self.report.write(console, &tables)?;
        Ok(Outcome::Clean)
    }

    /// The largest changes first, whichever way.
    fn table(&self, name: &'static str, before: &Sums, after: &Sums) -> Table {
        let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
        names.sort();
        names.dedup();
        let get = |sums: &Sums, name: &String| sums.get(name).copied().unwrap_or_default();
        let mut rows: Vec<_> =
            names.into_iter().map(|name| (name, get(before, name), get(after, name))).collect();
        rows.sort_by_key(|(_, a, b)| std::cmp::Reverse(a.nanos.abs_diff(b.nanos)));
        let mut table = Table::new(name, &COLUMNS);
        let most = if self.number == 0 { usize::MAX } else { self.number };
        for (name, a, b) in rows.into_iter().take(most) {
            table.row(cells(name, a, b));
        }
        table
    }
}

fn cells(name: &str, a: Durations, b: Durations) -> [Cell; 9] {
    let difference = i64::try_from(i128::from(b.nanos) - i128::from(a.nanos)).unwrap_or(0);
    let percent =
        |from: f64, to: f64| if from > 0.0 { Cell::Share(100.0 * (to - from) / from) } else { Cell::Nothing };
    [
        Cell::Change(difference),
        percent(a.nanos as f64, b.nanos as f64),
        Cell::Nanos(a.nanos),
        Cell::Nanos(b.nanos),
        Cell::Count(a.count),
        Cell::Count(b.count),
        if b.count > 0 { percent(a.mean(), b.mean()) } else { Cell::Nothing },
        change(a, b).word().into(),
        name.into(),
    ]
}

type Sums = BTreeMap<String, Durations>;

/// A run, by what can be compared with another.
struct Run {
    kernels: Sums,
    stacks: Sums,
}

impl Run {
    fn read(source: &Source, console: Console) -> crate::Result<Self> {
        let mut events = Events::default();
        let Explained { profile, facts, .. } = explain(source, console, &mut events)?;
        facts.need_work(source)?;
        let (mut kernels, mut stacks) = (Sums::new(), Sums::new());
        let mut names: std::collections::HashMap<Place, String> = std::collections::HashMap::new();
        for event in events.activities() {
            let Some(nanos) = event.activity.duration() else { continue };
            let place = event_place(event);
            let stack = names.entry(place).or_insert_with(|| {
                let frames: Vec<_> =
                    stack_names(&profile, place).iter().map(|name| clean_frame(name)).collect();
                frames.join(";")
            });
            stacks.entry(stack.clone()).or_default().add(nanos);
            kernels.entry(work_name(&profile, event.activity.work())).or_default().add(nanos);
        }
        Ok(Self { kernels, stacks })
    }

    fn total(&self) -> Durations {
        self.kernels.values().fold(Durations::default(), |sum, one| sum.and(*one))
    }
}

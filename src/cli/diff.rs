//! `gpuflame diff`: what became slower and what faster between two runs, by kernel and by stack, and
//! whether that is more than chance.

use std::collections::BTreeMap;

use clap::Args;

use super::explain::{Explained, explain};
use super::input::Source;
use super::output::Target;
use super::report::{self, Cell, Format, Table};
use super::{Console, Ended, Outcome};
use crate::events::Events;
use crate::export::{clean_frame, event_place, stack_names, work_name};
use crate::profile::Place;
use crate::symbolize::SymbolizeOptions;

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
    /// How to write it.
    #[arg(short, long, default_value = "text")]
    format: Format,
    /// Where to write.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: Target,
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
    pub(super) fn run(&self, console: Console) -> Outcome {
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
        self.output.write(console, |out| report::write(&tables, self.format, out))?;
        Ok(Ended::Well)
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

fn cells(name: &str, a: Sum, b: Sum) -> [Cell; 9] {
    let change = i64::try_from(i128::from(b.nanos) - i128::from(a.nanos)).unwrap_or(0);
    let percent =
        |from: f64, to: f64| if from > 0.0 { Cell::Share(100.0 * (to - from) / from) } else { Cell::Nothing };
    [
        Cell::Change(change),
        percent(a.nanos as f64, b.nanos as f64),
        Cell::Nanos(a.nanos),
        Cell::Nanos(b.nanos),
        Cell::Count(a.count),
        Cell::Count(b.count),
        if b.count > 0 { percent(a.mean(), b.mean()) } else { Cell::Nothing },
        sure(a, b).into(),
        name.into(),
    ]
}

type Sums = BTreeMap<String, Sum>;

/// Enough of the durations to compare their averages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    count: u64,
    nanos: u64,
    /// The sum of the squares of the distances from the mean.
    squares: f64,
}

impl Sum {
    /// After Welford, who takes no difference of large numbers.
    fn add(&mut self, nanos: u64) {
        let before = self.mean();
        self.count += 1;
        self.nanos = self.nanos.saturating_add(nanos);
        self.squares += (nanos as f64 - before) * (nanos as f64 - self.mean());
    }

    fn mean(self) -> f64 {
        self.nanos as f64 / self.count.max(1) as f64
    }

    /// The variance of the mean.
    fn uncertainty(self) -> f64 {
        self.squares / (self.count - 1) as f64 / self.count as f64
    }
}

/// Fewer activities than this say nothing.
const ENOUGH: u64 = 5;
/// Beyond this lies one in a thousand by chance, both sides taken together, of a normal distribution.
const NORMAL: f64 = 3.2905;

/// The same of Student's t with so many degrees of freedom: the series of Cornish and Fisher, which is 5 % too
/// low for 4 degrees, and right to 0.5 % from 8 on.
fn critical(freedom: f64) -> f64 {
    let z = NORMAL;
    let first = (z.powi(3) + z) / (4.0 * freedom);
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * freedom.powi(2));
    let third =
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * freedom.powi(3));
    z + first + second + third
}

/// Welch's and Satterthwaite's degrees of freedom.
fn freedom(a: Sum, b: Sum) -> f64 {
    let (of_a, of_b) = (a.uncertainty(), b.uncertainty());
    let parts = of_a.powi(2) / (a.count - 1) as f64 + of_b.powi(2) / (b.count - 1) as f64;
    (of_a + of_b).powi(2) / parts
}

fn sure(a: Sum, b: Sum) -> &'static str {
    match (a.count, b.count) {
        (0, 0) => "no",
        (0, _) => "new",
        (_, 0) => "gone",
        (before, after) if before.min(after) < ENOUGH => "too few",
        _ => {
            let (change, spread) = ((b.mean() - a.mean()).abs(), (a.uncertainty() + b.uncertainty()).sqrt());
            // Without any spread every difference is one.
            let is_beyond =
                if spread > 0.0 { change / spread > critical(freedom(a, b)) } else { change > 0.0 };
            if is_beyond { "yes" } else { "no" }
        }
    }
}

/// A run, by what can be compared with another.
struct Run {
    kernels: Sums,
    stacks: Sums,
}

impl Run {
    fn read(source: &Source, console: Console) -> crate::Result<Self> {
        let mut events = Events::default();
        let Explained { profile, .. } = explain(source, SymbolizeOptions::default(), console, &mut events)?;
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

    fn total(&self) -> Sum {
        self.kernels.values().fold(Sum::default(), |sum, one| Sum {
            count: sum.count + one.count,
            nanos: sum.nanos + one.nanos,
            squares: sum.squares + one.squares,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(durations: &[u64]) -> Sum {
        let mut sum = Sum::default();
        durations.iter().for_each(|&nanos| sum.add(nanos));
        sum
    }

    #[test]
    fn students_t_is_near_the_tables() {
        // From printed tables, p = 0.001, two sides.
        for (freedom, table) in [(8.0, 5.041), (15.0, 4.073), (30.0, 3.646), (120.0, 3.373)] {
            assert!((critical(freedom) - table).abs() < 0.005 * table, "{freedom}: {}", critical(freedom));
        }
        let freedom = freedom(sum(&[1, 2, 3, 4, 5]), sum(&[10, 20, 30, 40, 50]));
        // Variances of the means: 0.5 and 50. 50.5^2 / (0.25/4 + 2500/4).
        assert!((freedom - 4.0796).abs() < 1e-3, "{freedom}");
    }

    #[test]
    fn a_change_is_sure_only_beyond_the_spread() {
        let base = sum(&[100, 104, 96, 101, 99, 100]);
        assert_eq!(sure(base, sum(&[120, 118, 121, 119, 122, 120])), "yes");
        assert_eq!(sure(base, sum(&[101, 103, 97, 102, 98, 104])), "no");
        assert_eq!(sure(base, sum(&[60, 200, 90, 170, 20, 180])), "no", "wide enough to be chance");
        assert_eq!(sure(base, sum(&[120, 120])), "too few");
        assert_eq!((sure(base, sum(&[])), sure(sum(&[]), base)), ("gone", "new"));
        assert_eq!(sure(sum(&[5; 9]), sum(&[5; 9])), "no");
        assert_eq!(sure(sum(&[5; 9]), sum(&[6; 9])), "yes");
    }
}

//! `gpuflame what-if --ranks-even`: predicts the duration of a job's steps if all ranks took equally long between
//! collectives.

use super::console::{Console, Outcome};
use super::input::Source;
use super::length_change::{change_row, percent_change};
use super::rank_timelines::read_ranks;
use super::ranks::RankFlags;
use super::table_output::{Cell, ReportFlags, ReportFormat, Table};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::format_nanos;
use gpuflame_offline::analysis::{ModelError, StepTime, ranks_model, slowdown_report};

/// Assumptions of the prediction. docs/stragglers.md states the rules of the simulation.
const ASSUMPTIONS: [(&str, &str); 4] = [
    ("full_speed", "work that overlaps runs at full speed"),
    (
        "change",
        "between two collectives, every rank has the mean work and the mean idle time of all ranks and steps",
    ),
    ("change", "a collective takes its median transfer time after the last rank has entered it"),
    ("change", "work during a collective takes no time of its own"),
];

/// Predicts the step times of a job and writes them. `inputs` are the recordings of the job's ranks.
///
/// # Errors
/// Returns `Format` if the ranks do not run the same collectives.
pub(super) fn write_even_ranks(
    inputs: &[Source],
    flags: RankFlags,
    most: usize,
    report: &ReportFlags,
    console: Console,
) -> Result<Outcome> {
    let ranks = read_ranks(inputs, flags, console)?;
    let withheld =
        |ModelError(why)| Error::new(ErrorKind::Format, format!("the prediction is withheld: {why}"));
    let (model, _) = ranks_model(&ranks).map_err(withheld)?;
    let slowdown = slowdown_report(&model, 0);
    let (before, after) = sums(&slowdown.steps);
    let mut total = Table::new("total", &["before_ns", "after_ns", "change_ns", "change_percent"]);
    total.add_row(change_row(before, after));
    let mut changes = Table::new("changes", &["alone_ns", "changed", "change"]);
    changes.add_row([
        Cell::Change(after as i64 - before as i64),
        Cell::Count(ranks.len() as u64),
        "every rank takes as long as the mean of all ranks".into(),
    ]);
    let mut assumptions = Table::new("assumptions", &["rule", "uses", "assumption"]);
    for (rule, words) in ASSUMPTIONS {
        assumptions.add_row([rule.into(), Cell::Nothing, words.into()]);
    }
    // This simulation does not compute a critical path, so this table has no rows.
    let path = Table::new("new_path", &["time_ns", "share_percent", "parts", "class", "name"]);
    let answer = format!(
        "{} steps of {} ranks: {} -> {} ({:+.1} %)",
        slowdown.steps.len(),
        ranks.len(),
        format_nanos(before),
        format_nanos(after),
        percent_change(before, after)
    );
    let mut tables = vec![total, step_table(&slowdown.steps, most), changes, path, assumptions];
    if report.format == ReportFormat::Text {
        tables.retain(|table| !table.rows().is_empty());
    }
    report.write(console, &[answer], &tables)?;
    Ok(Outcome::Clean)
}

/// Returns two sums of simulated step times in ns. The first sum results from the recorded durations, and the second
/// sum results if all ranks take equally long between collectives.
fn sums(steps: &[StepTime]) -> (u64, u64) {
    let sum = |time: &dyn Fn(&StepTime) -> f64| steps.iter().map(time).sum::<f64>().round() as u64;
    (sum(&|step| step.simulated), sum(&|step| step.ideal))
}

fn step_table(steps: &[StepTime], most: usize) -> Table {
    let mut table = Table::new("steps", &["step", "before_ns", "after_ns", "change_ns", "change_percent"]);
    table.set_all_rows(steps.len());
    for step in steps.iter().take(most) {
        let [before, after] = [step.simulated, step.ideal].map(|nanos| nanos.round() as u64);
        let [old, new, change, share] = change_row(before, after);
        table.add_row([Cell::Id(step.step.unsigned_abs() + 1), old, new, change, share]);
    }
    table
}

//! Builds the tables of `gpuflame stragglers`.

use super::table_output::{Cell, Table};
use gpuflame_model::profile::format_nanos;
use gpuflame_offline::analysis::{
    EvenedPart, JobModel, MIN_DECOMPOSED, PartKind, RankClocks, RankFacts, Share, SlowdownReport,
};

/// Data from which the model of a job was built. This data determines the assumptions of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Basis {
    /// Recorded operations of a pipeline.
    Pipeline,
    /// Recorded GPU work of several ranks.
    Ranks(RankFacts),
}

/// Returns the sentence that is printed above the tables. The sentence contains the slowdown of the job.
pub(super) fn answer(model: &JobModel, report: &SlowdownReport) -> String {
    let (replicas, stages, steps) = model.size();
    let workers = replicas * stages;
    format!(
        "{workers} {}, {steps} {}: a step takes {}; with even durations {}, so S = {:.3}.",
        noun(workers, "worker"),
        noun(steps, "step"),
        format_nanos(whole(report.simulated)),
        format_nanos(whole(report.ideal)),
        report.slowdown()
    )
}

fn noun(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

fn whole(nanos: f64) -> u64 {
    nanos.round().max(0.0) as u64
}

/// Returns the tables with the results of the simulation.
pub(super) fn report_tables(model: &JobModel, report: &SlowdownReport, most: usize) -> Vec<Table> {
    vec![
        slowdown_table(model, report),
        share_table(report),
        evened_table(report, most),
        step_table(report, most),
    ]
}

/// Returns the table with the alignment of the ranks' clocks.
pub(super) fn clock_table(ranks: &[u32], clocks: &RankClocks) -> Table {
    let columns = &["rank", "ahead_ns", "error_ns", "ends_apart_ns", "collectives"];
    let mut table = Table::new("clocks", columns);
    for (rank, ahead) in ranks.iter().zip(&clocks.ahead) {
        table.add_row([
            Cell::Id((*rank).into()),
            Cell::Change(*ahead),
            Cell::Nanos(clocks.error),
            Cell::Nanos(clocks.spread),
            Cell::Count(clocks.collectives as u64),
        ]);
    }
    table
}

fn slowdown_table(model: &JobModel, report: &SlowdownReport) -> Table {
    let columns = &[
        "workers",
        "stages",
        "steps",
        "measured_ns",
        "simulated_ns",
        "ideal_ns",
        "slowdown",
        "error_percent",
    ];
    let mut table = Table::new("slowdown", columns);
    let (replicas, stages, steps) = model.size();
    let measured: f64 = report.steps.iter().map(|step| step.measured).sum();
    table.add_row([
        Cell::Count((replicas * stages) as u64),
        Cell::Count(stages as u64),
        Cell::Count(steps as u64),
        Cell::Nanos(whole(measured / steps.max(1) as f64)),
        Cell::Nanos(whole(report.simulated)),
        Cell::Nanos(whole(report.ideal)),
        Cell::Number(report.slowdown()),
        Cell::Share(report.error_percent),
    ]);
    table
}

fn share_table(report: &SlowdownReport) -> Table {
    let columns = &["share_percent", "saved_ns", "slowdown_alone", "evened_out", "members"];
    let mut table = Table::new("shares", columns);
    let rows =
        [("last stage (Ms)", &report.last_stage), ("worst 3 % of workers (Mw)", &report.worst_workers)];
    for (what, share) in rows {
        if let Some(Share { share, saved, slowdown, members }) = share {
            let members: Vec<String> = members.iter().map(u32::to_string).collect();
            table.add_row([
                Cell::Share(100.0 * share),
                Cell::Change(saved.round() as i64),
                Cell::Number(*slowdown),
                what.into(),
                Cell::Text(members.join(", ")),
            ]);
        }
    }
    table
}

fn evened_table(report: &SlowdownReport, most: usize) -> Table {
    let columns = &["saved_ns", "saved_percent", "slowdown_alone", "part", "name"];
    let mut table = Table::new("evened_out", columns);
    let mut left_out = 0;
    for kind in [PartKind::Stage, PartKind::Replica, PartKind::Worker, PartKind::Kind] {
        let parts: Vec<&EvenedPart> = report.parts.iter().filter(|part| part.part == kind).collect();
        left_out += parts.len().saturating_sub(most);
        for part in parts.into_iter().take(most) {
            table.add_row([
                Cell::Change(part.saved.round() as i64),
                Cell::Share(100.0 * part.saved / report.simulated),
                Cell::Number(part.slowdown),
                part_word(kind).into(),
                Cell::Text(part.name.clone()),
            ]);
        }
    }
    table.set_all_rows(table.rows().len() + left_out);
    table
}

fn part_word(kind: PartKind) -> &'static str {
    match kind {
        PartKind::Stage => "stage",
        PartKind::Replica => "data-parallel rank",
        PartKind::Worker => "rank",
        PartKind::Kind => "kind",
    }
}

fn step_table(report: &SlowdownReport, most: usize) -> Table {
    let columns = &["step", "measured_ns", "simulated_ns", "error_percent", "ideal_ns"];
    let mut table = Table::new("step_times", columns);
    for step in report.steps.iter().take(most) {
        let error = 100.0 * (step.simulated - step.measured).abs() / step.measured;
        table.add_row([
            Cell::Text(step.step.to_string()),
            Cell::Nanos(whole(step.measured)),
            Cell::Nanos(whole(step.simulated)),
            if step.measured > 0.0 { Cell::Share(error) } else { Cell::Nothing },
            Cell::Nanos(whole(step.ideal)),
        ]);
    }
    table.set_all_rows(report.steps.len());
    table
}

/// Returns the table of withheld answers, each with the reason. An answer is withheld if the data does not support it.
pub(super) fn withheld_table(model: &JobModel, report: &SlowdownReport, basis: &Basis) -> Table {
    let mut table = Table::new("withheld", &["answer", "why"]);
    let (replicas, stages, _) = model.size();
    let is_small = report.slowdown() <= MIN_DECOMPOSED;
    let small = format!(
        "S is {:.3}; up to {MIN_DECOMPOSED} it is not decomposed, because its parts would be smaller than the error",
        report.slowdown()
    );
    let reasons = [
        ("Ms", stages < 2, "the job has one stage"),
        ("Mw", replicas * stages < 2, "the job has one worker"),
        ("savings by stage", stages < 2, "the job has one stage"),
    ];
    for (answer, is_single, reason) in reasons {
        if is_single {
            table.add_row([answer.into(), reason.into()]);
        } else if is_small {
            table.add_row([answer.into(), Cell::Text(small.clone())]);
        }
    }
    if let Basis::Ranks(RankFacts { one_step_because: Some(why), .. }) = basis {
        let why = format!("{why}, so the time from the first to the last collective counts as one step");
        table.add_row(["times of single steps".into(), Cell::Text(why)]);
    }
    if is_small {
        table.add_row(["savings by worker and kind".into(), Cell::Text(small)]);
    }
    table
}

/// Returns the table with the assumptions of the simulation.
pub(super) fn assumption_table(basis: &Basis) -> Table {
    let mut table = Table::new("assumptions", &["about", "why"]);
    let all = match basis {
        Basis::Pipeline => PIPELINE_ASSUMPTIONS,
        Basis::Ranks(_) => RANK_ASSUMPTIONS,
    };
    all.iter().for_each(|&(about, what)| table.add_row([about.into(), what.into()]));
    table
}

/// Assumptions of the simulation for the operations of a pipeline, as pairs of a subject and a clause.
const PIPELINE_ASSUMPTIONS: &[(&str, &str)] = &[
    (
        "start",
        "an operation starts at once when the operations that it needs have ended; delays of the host are 0",
    ),
    ("groups", "a collective or message ends its own transfer time after the last worker has started it"),
    ("ideal", "computation takes its mean and communication its median, by kind, over all workers and steps"),
    ("savings", "they do not add up: evening out one part changes which operations are waited for"),
    ("contention", "it is not modelled: an operation takes as long as measured, whatever else runs"),
];

/// Assumptions of the simulation for the GPU work of ranks, as pairs of a subject and a clause.
const RANK_ASSUMPTIONS: &[(&str, &str)] = &[
    (
        "steps",
        "a step lasts from the end of the last collective before it to the end of its own last collective",
    ),
    (
        "start",
        "work between two collectives starts when the first one ends, then comes the time without work",
    ),
    (
        "collectives",
        "a collective ends on all ranks its transfer time after the last rank has entered it; its transfer time is its shortest duration on a rank, because the last rank waits for no other",
    ),
    (
        "overlap",
        "work that runs during a collective takes no time of its own, however long the collective is",
    ),
    (
        "ideal",
        "work and idle time take their mean and a transfer its median, by position in the step, over all ranks and steps",
    ),
    ("savings", "they do not add up: evening out one part changes which operations are waited for"),
    ("contention", "it is not modelled: an operation takes as long as measured, whatever else runs"),
];

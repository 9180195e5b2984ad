//! `gpuflame stragglers`: computes how much faster a job would be if all its workers took equally long, and which
//! workers cause the difference.

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::input::Source;
use super::page::Page;
use super::rank_timelines::read_ranks;
use super::ranks::RankFlags;
use super::straggler_tables::{Basis, answer, assumption_table, clock_table, report_tables, withheld_table};
use super::table_output::{ReportFlags, ReportFormat, write_tables};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_offline::analysis::{JobModel, ModelError, pipeline_model, ranks_model, slowdown_report};
use gpuflame_offline::pipeline_file::{JobLayout, layout_file, read_layout, read_pipeline_ops};

/// Compute how much stragglers slow a job down, by simulating it with even durations.
///
/// The step is simulated twice: with the measured durations, and with the mean or median duration of each operation
/// over all workers and steps. The ratio of the two step times is the slowdown S. Nothing is executed, and no other
/// figure of a run, such as its memory, is known. docs/stragglers.md states the formulas and the rules.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame stragglers trace-job.parquet\n  \
    gpuflame stragglers job/\n  gpuflame stragglers rank-*.json.gz --format json")]
pub(super) struct Stragglers {
    /// Recordings or traces, one per rank, or folders of such files, with ranks as for `merge-ranks`; or the
    /// operations of a whole pipeline (`trace-X.parquet`, with `meta-X.yaml` next to it).
    #[arg(required = true)]
    inputs: Vec<Source>,
    /// Maximum number of workers, kinds and steps to show; 0: all.
    #[arg(short, long, default_value_t = 10)]
    number: usize,
    #[command(flatten)]
    ranks: RankFlags,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

impl Stragglers {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let most = if self.number == 0 { usize::MAX } else { self.number };
        let (model, basis) = self.model(console)?;
        let report = slowdown_report(&model, most);
        let answer = answer(&model, &report);
        let mut tables = report_tables(&model, &report, most);
        if let Basis::Ranks(facts) = &basis {
            tables.push(clock_table(model.worker_ranks(), &facts.clocks));
        }
        tables.push(withheld_table(&model, &report, &basis));
        tables.push(assumption_table(&basis));
        if self.report.format != ReportFormat::Text {
            self.report.write(console, &[answer], &tables)?;
            return Ok(Outcome::Clean);
        }
        tables.retain(|table| !table.rows().is_empty());
        let page = Page::of(&self.report.output, console);
        self.report.output.write(console, |out| {
            if page.columns.is_none() {
                writeln!(out, "{answer}\n")?;
            }
            write_tables(&[answer], &tables, ReportFormat::Text, page, out)
        })?;
        Ok(Outcome::Clean)
    }

    fn model(&self, console: Console) -> Result<(JobModel, Basis)> {
        match &self.inputs[..] {
            [source] if is_parquet(source) => Ok((read_pipeline(source, console)?, Basis::Pipeline)),
            inputs if inputs.iter().any(is_parquet) => {
                Err(usage_error("a .parquet file has all workers of a job; name one file"))
            }
            inputs => {
                let ranks = read_ranks(inputs, self.ranks, console)?;
                let withheld = |ModelError(why)| {
                    Error::new(ErrorKind::Format, format!("the slowdown is withheld: {why}"))
                };
                ranks_model(&ranks).map(|(model, facts)| (model, Basis::Ranks(facts))).map_err(withheld)
            }
        }
    }
}

fn is_parquet(source: &Source) -> bool {
    matches!(source, Source::File(path) if path.extension().is_some_and(|ending| ending == "parquet"))
}

fn read_pipeline(source: &Source, console: Console) -> Result<JobModel> {
    let Source::File(path) = source else { return Err(usage_error("name a .parquet file")) };
    let ops = read_pipeline_ops(path)?;
    let layout = match layout_file(path) {
        Some(file) => read_layout(&file)?,
        None => {
            console.remark(format!(
                "{source}: no `meta` file next to it; each worker is taken to have sequences of its own"
            ));
            JobLayout::default()
        }
    };
    let failed = |ModelError(why)| Error::new(ErrorKind::Format, format!("{source}: {why}"));
    let model = pipeline_model(&ops, layout.sequence_parallel.unwrap_or(1)).map_err(failed)?;
    let (replicas, stages, _) = model.size();
    for (stated, found, what) in
        [(layout.data_parallel, replicas, "data-parallel ranks"), (layout.stages, stages, "stages")]
    {
        if let Some(stated) = stated.filter(|&stated| stated as usize != found) {
            let why = format!("{source}: has {found} {what}, its `meta` file says {stated}");
            return Err(Error::new(ErrorKind::Format, why));
        }
    }
    Ok(model)
}

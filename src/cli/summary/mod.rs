//! `gpuflame summary`: shows one screen about a run. The screen shows how busy the GPUs were, why they were idle, the
//! GPU work, the data that the file lacks, and the command to run next.
//!
//! The figures on this screen equal the figures that the more detailed verbs show. Busy and idle time refer to the
//! steady part of the run, if there is one. Figures other than busy and idle time refer to the whole run.

mod answers;
mod findings;
mod fit;
mod job;
mod job_runs;
mod read;
mod screen;

use std::path::Path;

use clap::Args;

pub(super) use self::answers::Answers;
use self::findings::{finding_sentences, has_impossible_durations};
pub(super) use self::findings::{has_impossible_durations as are_times_withheld, measured_part};
use self::fit::{MAX_JSON_BYTES, fitted, is_one_screen};
pub(super) use self::job_runs::JobRuns;
pub(super) use self::read::summarize_rank;
use self::read::{read_run, summarize};
use self::screen::Screen;
use super::console::{Console, Outcome};
use super::input::Source;
use super::measured_part::MeasuredPart;
use super::name_flags::NameFlags;
use super::next_command::quoted_for_shell;
use super::page::Page;
use super::ranks::RankFlags;
use super::run_path::{PathRows, RunPath};
use super::table_output::{ReportFlags, ReportFormat, write_tables};
use gpuflame_model::error::Result;
use gpuflame_offline::analysis::cost_findings;
use gpuflame_offline::run::ReadOptions;

/// Show on one screen why the GPUs were idle, what ran, and what to look at next.
///
/// Reads recordings, with or without every call, and traces of other tools. The files of several ranks are summarised
/// as one job. If the run has a steady part, busy and idle time cover only this part, without start-up and shutdown.
/// All other figures cover the whole run. The cost of a finding is the time that the GPUs would gain without its cause.
/// The costs of findings overlap, so they do not add up. Missing data is listed with the command that records it. The
/// JSON has at most 8,000 bytes.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gpuflame summary run.gfr\n  gpuflame summary trace.json.gz --format json\n  \
        gpuflame summary rank-*.json.gz"
)]
pub(super) struct Summary {
    /// Recording or trace (`-`: standard input), or the files of all ranks of a job.
    #[arg(required = true)]
    inputs: Vec<Source>,
    #[command(flatten)]
    ranks: RankFlags,
    #[command(flatten)]
    names: NameFlags,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

/// Maximum number of findings that `gpuflame run` prints at its end.
const MAX_FINDINGS_OF_RUN: usize = 2;
/// Width of the screen in columns if the output is not a terminal.
const COLUMNS: usize = 80;
/// Maximum number of calls and activities in a run up to which the critical path is computed. For a run of this maximum
/// size, computing the critical path takes 0.15 s and 60 MB.
const MAX_PATH_ROWS: usize = 200_000;

impl Summary {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let sources = self.ranks.sources(&self.inputs, console)?;
        let [input] = &sources[..] else { return job::run(self, &sources, console) };
        let mut rows = PathRows::with_max(MAX_PATH_ROWS);
        let reading = ReadOptions { between_launches: MAX_PATH_ROWS, ..self.names.read_options() };
        let (mut run, findings) = summarize(input, reading, console, &mut rows)?;
        let are_times_known = !has_impossible_durations(&findings);
        let path = RunPath::find(&mut run.explained, rows, are_times_known, &findings);
        let screen = Screen { path: Some(&path), ..run.screen(&findings, self.names.names()) };
        let Answers { mut sentences, complete, scope, .. } = screen.answers(&run.spans);
        let file = quoted_for_shell(&input.to_string());
        sentences.extend(path.sentence(&file));
        sentences.extend(path.gain_sentence(&file, MeasuredPart::of(&run.explained.profile)));
        sentences.push(complete);
        sentences.extend(scope);
        let answers = sentences;
        let page = Page::of(&self.report.output, console);
        let page = Page { columns: Some(page.columns.unwrap_or(COLUMNS)), ..page };
        let text = match self.report.format {
            ReportFormat::Text => fitted(|fit| screen.text(&answers, input, fit, page), is_one_screen),
            format => {
                let tables = |fit| screen.all_tables(&answers, input, fit);
                let write = |fit| {
                    let mut text = Vec::new();
                    write_tables(&[], &tables(fit), format, Page::UNBOUNDED, &mut text).map(|()| text)
                };
                fitted(write, |text| text.len() <= MAX_JSON_BYTES)
            }
        }?;
        self.report.output.write(console, |out| Ok(out.write_all(&text)?))?;
        Ok(Outcome::Clean)
    }
}

/// Returns sentences about the most expensive findings of a run, and about the command that shows more. Returns an
/// empty list if nothing was found, or if the recording cannot be read.
pub(super) fn describe_lost_time(file: &Path, console: Console) -> Vec<String> {
    let console = Console { quiet: true, ..console };
    let input = Source::from(file.as_os_str().to_owned());
    let Ok(run) = read_run(&input, ReadOptions::default(), console, ()) else { return Vec::new() };
    let run = run.into_evidence();
    let findings = cost_findings(&run.evidence());
    let mut lines =
        finding_sentences(&findings, MeasuredPart::of(&run.explained.profile).nanos, MAX_FINDINGS_OF_RUN);
    if !lines.is_empty() {
        lines.push(format!("more: gpuflame summary {}", quoted_for_shell(&input.to_string())));
    }
    lines
}

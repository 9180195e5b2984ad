//! Writes `gpuflame summary` for a job, whose ranks are given as several files.

use std::io::Write as _;

use super::findings::{
    answer_table, finding_table, next_table, not_recorded_table, unchecked, why_times_are_withheld,
    write_findings, write_not_recorded,
};
use super::fit::{Fit, MAX_JSON_BYTES, MAX_RANKS, MAX_ROWS, fitted, is_one_screen};
use super::job_runs::JobRuns;
use super::read::{SummarizedRun, summarize_rank};
use super::{COLUMNS, Summary};
use crate::console::{Console, Outcome};
use crate::input::Source;
use crate::jobs::{RanksWithoutWork, describe_missing, job_member, refuse_different_jobs};
use crate::layout;
use crate::next_command::{command_for, merge_command, quoted_for_shell};
use crate::page::Page;
use crate::ranks::{SameJob, SameRank};
use crate::table_output::{Cell, ReportFormat, Table, write_tables};
use gpuflame_export::{NameFolding, busy_and_idle_lines, clean_line};
use gpuflame_model::error::Result;
use gpuflame_model::profile::saturating_sum;
use gpuflame_offline::analysis::{Finding, RankRun, RankTime, Severity};

/// One rank in the summary of a job.
struct RankRow {
    rank: u32,
    sentence: String,
    cells: Vec<Cell>,
}

/// Summarises a job with several ranks.
pub(super) fn run(flags: &Summary, sources: &[Source], console: Console) -> Result<Outcome> {
    let numbers = flags.ranks.assign(sources, SameRank::Refused)?;
    let (mut ranks, mut rows, mut world_size) = (JobRuns::default(), Vec::new(), None);
    let (mut has_rows, mut members, mut names) = (true, Vec::new(), Vec::new());
    let mut without_work = RanksWithoutWork::default();
    for (source, &rank) in sources.iter().zip(&numbers) {
        let options = flags.names.read_options();
        let read = summarize_rank((rank, source), options, console, (), &mut without_work)?;
        let Some((run, found)) = read else { continue };
        names.push(source.to_string());
        let of_rank = RankRun::new(rank, &run.evidence());
        rows.push(rank_row(&run, &found, &of_rank, flags.names.names()));
        has_rows &= !run.explained.facts.has_only_sums;
        world_size = world_size.or(run.explained.facts.world_size);
        members.push(job_member(rank, &run.explained));
        ranks.add(of_rank, &run.explained.profile, &found);
    }
    without_work.leave_out(rows.len(), console)?;
    refuse_different_jobs(&members, &names, SameJob::from_sources(sources), console)?;
    rows.sort_by_key(|row| row.rank);
    let (all, part) = (rows.len(), ranks.part());
    let present = numbers.iter().copied().collect();
    let missing = describe_missing(&present, world_size, flags.ranks.assume_order);
    let findings = ranks.into_findings(missing.is_some() || !without_work.is_empty());
    let mut answers: Vec<String> = rows.iter().map(|row| row.sentence.clone()).collect();
    if all > MAX_RANKS {
        answers.truncate(MAX_RANKS);
        answers.push(format!("and {} more ranks", all - MAX_RANKS));
    }
    answers.extend(without_work.sentence());
    answers.extend(missing);
    let files: Vec<String> = flags.inputs.iter().map(|input| quoted_for_shell(&input.to_string())).collect();
    let next = findings.iter().find(|finding| matches!(finding.severity, Severity::Bad | Severity::Cost));
    let next = next.and_then(|finding| {
        let is_bad = finding.severity == Severity::Bad;
        let at = numbers.iter().position(|rank| Some(*rank) == finding.rank).unwrap_or(0);
        let file = quoted_for_shell(&sources[at].to_string());
        command_for(finding.id, is_bad, &file, &files, has_rows, flags.ranks)
    });
    let next = next.unwrap_or_else(|| merge_command(&files, flags.ranks));
    let page = Page::of(&flags.report.output, console);
    let page = Page { columns: Some(page.columns.unwrap_or(COLUMNS)), ..page };
    let text = match flags.report.format {
        ReportFormat::Text => fitted(
            |Fit { rows: most, .. }| {
                let mut text = Vec::new();
                layout::write_sentences(&answers, page, &mut text)?;
                text.push(b'\n');
                write_findings(&findings, part, most, page, &mut text)?;
                layout::write(&[], &[rank_table(&rows, most)], page, &mut text)?;
                text.push(b'\n');
                write_not_recorded(unchecked(&findings), page, &mut text)?;
                writeln!(text, "next: {}", clean_line(&next))?;
                Ok(text)
            },
            is_one_screen,
        ),
        format => {
            let write = |Fit { rows: most, .. }| {
                let unknown = unchecked(&findings);
                let tables = [
                    answer_table(&answers),
                    finding_table(&findings, part.nanos, most),
                    rank_table(&rows, most),
                    not_recorded_table(unknown),
                    next_table(&next),
                ];
                let mut text = Vec::new();
                write_tables(&[], &tables, format, Page::UNBOUNDED, &mut text).map(|()| text)
            };
            fitted(write, |text| text.len() <= MAX_JSON_BYTES)
        }
    }?;
    flags.report.output.write(console, |out| Ok(out.write_all(&text)?))?;
    Ok(Outcome::Clean)
}

/// Returns the row of a rank in the table of ranks. If the rank has impossible durations, the cells of its row are
/// empty.
fn rank_row(run: &SummarizedRun, found: &[Finding], of_rank: &RankRun, names: NameFolding) -> RankRow {
    let rank = of_rank.rank;
    let mut cells = rank_cells(run, &of_rank.time, names);
    let sentence = match why_times_are_withheld(found) {
        Some(why) => {
            cells.fill(Cell::Nothing);
            why.to_owned()
        }
        None => {
            let lines = busy_and_idle_lines(&run.explained.ledger, &run.explained.profile);
            lines.into_iter().next().unwrap_or_default()
        }
    };
    RankRow { rank, sentence: format!("rank {rank}: {sentence}"), cells }
}

/// Returns the figures of a rank: busy and idle time of its GPUs, time of work and of communication, its median step,
/// and the cause and place of most of its idle time. A GPU that waits for another rank in a collective counts as busy.
fn rank_cells(run: &SummarizedRun, time: &RankTime, names: NameFolding) -> Vec<Cell> {
    let profile = &run.explained.profile;
    let parts = || profile.times().iter().map(|time| time.steady());
    let (busy, window) =
        (saturating_sum(parts().map(|part| part.busy)), saturating_sum(parts().map(|part| part.window())));
    let known = |cell| if profile.idle_doubt().is_some() { Cell::Nothing } else { cell };
    let series = profile.step_series();
    // Selects the kind of steps that takes the longest total time.
    let steps = series.kinds.iter().enumerate().filter(|(_, kind)| kind.count > 0);
    let steps = steps.max_by_key(|(at, kind)| (kind.nanos, std::cmp::Reverse(*at)));
    let mut cells = vec![
        known(Cell::share(busy, window)),
        Cell::Nanos(busy),
        known(Cell::Nanos(saturating_sum(parts().map(|part| part.idle)))),
        Cell::Nanos(time.work),
        Cell::Nanos(time.communication),
        steps.map_or(Cell::Nothing, |(at, _)| Cell::Nanos(series.percentile(at, 50))),
    ];
    for table in run.screen(&[], names).idle_tables(1) {
        let largest = table.rows().first().and_then(|row| row.last());
        cells.push(largest.cloned().unwrap_or(Cell::Nothing));
    }
    cells
}

/// Returns the table of ranks, with at least two rows even if `most` is smaller.
fn rank_table(rows: &[RankRow], most: usize) -> Table {
    let columns = &[
        "rank",
        "busy_percent",
        "busy_ns",
        "idle_ns",
        "work_ns",
        "communication_ns",
        "step_p50_ns",
        "idle_cause",
        "idle_place",
    ];
    let mut table = Table::new("ranks", columns);
    table.set_all_rows(rows.len());
    for row in rows.iter().take((MAX_RANKS * most / MAX_ROWS).max(2)) {
        table.add_row([Cell::Id(row.rank.into())].into_iter().chain(row.cells.iter().cloned()));
    }
    table
}

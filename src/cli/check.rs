//! `gpuflame check`: reports data in a trace that may be wrong.

use clap::Args;

use super::console::{Console, Outcome};
use super::explain::explain;
use super::heading::heading;
use super::input::Source;
use super::stream_times::{self, clamped_table};
use super::table_output::{Cell, ReportFlags, ReportFormat, Table};
use gpuflame_model::error::Result;
use gpuflame_offline::analysis::{
    CopySums, Evidence, Finding, PlausibleSpans, RunEvidence, Severity, WorkSpans, check_stream_order,
    cost_findings, count_unset_times, note_idle_beside_lost, record_findings,
};
use gpuflame_offline::run::ReadOptions;

/// Check a recording or trace for doubtful data.
///
/// `BAD` findings make sums, links or orders wrong. `cost` findings state how long a GPU waited, and why. `note`
/// findings are worth knowing. `unknown` means that the input lacks the data for the check. `ok` and `none` mean that
/// there is nothing to do. With --strict, the exit code is 1 if there is a `BAD` finding.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame check trace.json.gz\n  \
    gpuflame check run.gfr --strict --format json")]
pub(super) struct Check {
    /// Recording or trace (`-`: standard input).
    input: Source,
    /// Exit with code 1 if there is a `BAD` finding.
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

impl Check {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let (mut spans, mut copies) = (WorkSpans::unbounded(), CopySums::default());
        let options = ReadOptions { kernel_gaps: true, ..ReadOptions::default() };
        let mut explained = explain(&self.input, &options, console, (&mut spans, &mut copies))?;
        if explained.facts.has_only_sums {
            copies = CopySums::from_sums(&explained.profile).unwrap_or_default();
        }
        let linked = explained.facts.linked.as_ref();
        let unset_times = count_unset_times(&spans, linked);
        let order = check_stream_order(&explained.profile, &mut spans, linked);
        note_idle_beside_lost(&mut explained.profile, &spans);
        let mut findings = record_findings(&Evidence {
            profile: &explained.profile,
            tally: &explained.ledger.tally,
            stacks: explained.ledger.stacks,
            has_only_sums: explained.facts.has_only_sums,
            unset_times,
            stream_order: &order,
            linked,
            damaged: explained.facts.damaged,
            writer_state: explained.facts.writer_state,
        });
        findings.extend(cost_findings(&RunEvidence {
            profile: &explained.profile,
            spans: &PlausibleSpans::new(spans),
            states: &explained.facts.host_states,
            copies: &copies,
            has_only_sums: explained.facts.has_only_sums,
            linked,
        }));
        findings.sort_by_key(|finding| (finding.severity, std::cmp::Reverse(finding.cost)));
        let is_text = self.report.format == ReportFormat::Text;
        // Text output shows only the description of a check. Output formats other than text also show the check's id.
        let mut table =
            if is_text { Table::new("findings", &TEXT_COLUMNS) } else { Table::new("findings", &COLUMNS) };
        // Output formats for programs list every check. If checks found nothing and have no figures, text output prints
        // only how many such checks there are.
        let is_silent = |finding: &Finding| finding.severity == Severity::Absent && finding.figures.is_none();
        let silent = findings.iter().filter(|finding| is_silent(finding)).count();
        let shown = findings.iter().filter(|finding| !(is_text && is_silent(finding)));
        shown.for_each(|finding| match cells(finding, is_text) {
            [result, what, count, share, why, _, cost, culprit] if is_text => {
                table.add_row([result, what, count, share, cost, culprit, why]);
            }
            cells => table.add_row(cells),
        });
        let mut tables = vec![table];
        tables.extend(clamped_table(stream_times::TABLE, &explained.profile, &order));
        self.report.write(console, &[heading(&self.input, &explained.profile)], &tables)?;
        if is_text && silent > 0 {
            console.remark(format!("{silent} checks for lost time found nothing; JSON and CSV list them"));
        }
        let bad = findings.iter().any(|finding| finding.severity == Severity::Bad);
        Ok(if bad && self.strict { Outcome::Findings } else { Outcome::Clean })
    }
}

const COLUMNS: [&str; 8] = ["result", "what", "count", "share_percent", "why", "id", "cost_ns", "culprit"];

const TEXT_COLUMNS: [&str; 7] = ["result", "what", "count", "share_percent", "cost_ns", "culprit", "why"];

/// Positive sentences for checks that found nothing, keyed by the check's id. A positive sentence is needed for each
/// check whose name contains a negation.
const GOOD_NEWS: [(&str, &str); 16] = [
    ("no_gpu_work", "GPU work was recorded"),
    ("no_launch", "every activity has a launch"),
    ("no_id", "every activity has an id"),
    ("rows_skipped", "every row could be used"),
    ("rows_of_no_call", "every activity has a possible id"),
    ("truncated", "the file has its end"),
    ("launch_pending", "every earlier kernel launch has an activity"),
    ("launch_pending_at_end", "the last kernel launch has an activity"),
    ("launch_coverage", "enough launches have an activity to know idle time"),
    ("steps_without_work", "every step has GPU work"),
    ("times_missing", "all times were collected"),
    ("no_length", "every activity has a length"),
    ("no_waits", "waits are known"),
    ("lost", "everything was kept while recording"),
    ("stacks_incomplete", "all stacks are complete"),
    ("cut_off", "the recording has its end"),
];

/// Returns the table cells for a check's finding. If a check found nothing and its name contains a negation, text
/// output shows a sentence from `GOOD_NEWS`. For all other checks that found nothing, it shows `none` and the check's
/// name. Output formats other than text always contain the name of the check.
fn cells(finding: &Finding, is_text: bool) -> [Cell; 8] {
    let (count, share) = match finding.figures {
        Some(figures) => (Cell::Count(figures.count), Cell::share(figures.count, figures.of)),
        None => (Cell::Nothing, Cell::Nothing),
    };
    let good = GOOD_NEWS.iter().find(|(id, _)| *id == finding.id && finding.severity == Severity::Absent);
    match good {
        Some((_, sentence)) if is_text => {
            let (word, nothing) = (Severity::Fine.word(), Cell::Nothing);
            let (id, sentence) = (finding.id.into(), (*sentence).into());
            [word.into(), sentence, nothing.clone(), nothing.clone(), "".into(), id, nothing, "".into()]
        }
        _ => [
            finding.severity.word().into(),
            finding.what.into(),
            count,
            share,
            (*finding.why).into(),
            finding.id.into(),
            finding.cost.map_or(Cell::Nothing, Cell::Nanos),
            (*finding.culprit).into(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(id: &'static str, what: &'static str, severity: Severity) -> Finding {
        Finding {
            id,
            severity,
            figures: None,
            cost: None,
            what,
            culprit: String::new(),
            function: String::new(),
            rank: None,
            why: "".into(),
        }
    }

    #[test]
    fn good_news_has_no_double_negation_in_text() {
        let shown = |finding: &Finding, is_text| {
            let cells = cells(finding, is_text);
            [cells[0].clone(), cells[1].clone()]
        };
        let found = finding("no_waits", "waits not recorded", Severity::Note);
        assert_eq!(shown(&found, true), [Cell::from("note"), "waits not recorded".into()]);
        let absent = finding("no_waits", "waits not recorded", Severity::Absent);
        assert_eq!(shown(&absent, true), [Cell::from("ok"), "waits are known".into()]);
        assert_eq!(shown(&absent, false), [Cell::from("none"), "waits not recorded".into()]);
        let plain = finding("stream_overlap", "overlaps on a stream", Severity::Absent);
        assert_eq!(shown(&plain, true), [Cell::from("none"), "overlaps on a stream".into()]);
    }
}

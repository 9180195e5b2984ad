//! `gpuflame check`: reports data in a trace that may be wrong.

use clap::Args;

use super::console::{Console, Outcome};
use super::explain::explain;
use super::heading::heading;
use super::input::Source;
use super::report::{Cell, ReportFlags, ReportFormat, Table};
use super::stream_times::{self, clamped_table};
use gpuflame_explain::events::JoinedRows;
use gpuflame_model::error::Result;
use gpuflame_offline::analysis::{Evidence, Finding, Severity, WorkSpans, check_stream_order, findings};
use gpuflame_offline::run::ReadOptions;

/// Check a recording or trace for doubtful data.
///
/// `BAD` findings make sums, links or orders wrong; `note` findings are worth knowing; `unknown` means that the
/// input lacks the data for the check; `ok` and `none` mean that there is nothing to do. With --strict, the exit
/// code is 1 if there is a `BAD` finding.
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
        let mut events = JoinedRows::default();
        let explained = explain(&self.input, &ReadOptions::default(), console, &mut events)?;
        events.sort();
        let linked = explained.facts.linked.as_ref();
        let order = check_stream_order(&explained.profile, WorkSpans::from_events(&events), linked);
        let findings = findings(&Evidence {
            profile: &explained.profile,
            tally: &explained.ledger.tally,
            has_only_sums: explained.facts.has_only_sums,
            events: &events,
            stream_order: &order,
            linked,
            damaged: explained.facts.damaged,
            writer_state: explained.facts.writer_state,
        });
        let mut table = Table::new("findings", &["result", "what", "count", "share_percent", "why"]);
        let is_text = self.report.format == ReportFormat::Text;
        findings.iter().for_each(|finding| table.add_row(cells(finding, is_text)));
        let mut tables = vec![table];
        tables.extend(clamped_table(stream_times::TABLE, &explained.profile, &order));
        self.report.write(console, &[heading(&self.input, &explained.profile)], &tables)?;
        let bad = findings.iter().any(|finding| finding.severity == Severity::Bad);
        Ok(if bad && self.strict { Outcome::Findings } else { Outcome::Clean })
    }
}

/// For checks whose name has a negation, by their id: the good news if they found nothing.
const GOOD_NEWS: [(&str, &str); 16] = [
    ("no_gpu_work", "GPU work was recorded"),
    ("no_launch", "every activity has a launch"),
    ("no_id", "every activity has an id"),
    ("rows_skipped", "every row could be used"),
    ("rows_of_no_call", "every activity has a possible id"),
    ("truncated", "the file has its end"),
    ("launch_pending", "every earlier launch has an activity"),
    ("launch_pending_at_end", "the last launch has an activity"),
    ("launch_coverage", "enough launches have an activity to know idle time"),
    ("steps_without_work", "every step has GPU work"),
    ("times_missing", "all times were collected"),
    ("no_length", "every activity has a length"),
    ("no_waits", "waits are known"),
    ("lost", "everything was kept while recording"),
    ("stacks_incomplete", "all stacks are complete"),
    ("cut_off", "the recording has its end"),
];

/// Returns the cells of a finding. For people, `none` in front of a name with a negation becomes a sentence; programs see
/// the name.
fn cells(finding: &Finding, is_text: bool) -> [Cell; 5] {
    let (count, share) = match finding.figures {
        Some(figures) => (Cell::Count(figures.count), Cell::share(figures.count, figures.of)),
        None => (Cell::Nothing, Cell::Nothing),
    };
    let good = GOOD_NEWS.iter().find(|(id, _)| *id == finding.id && finding.severity == Severity::Absent);
    match good {
        Some((_, sentence)) if is_text => {
            [Severity::Fine.word().into(), (*sentence).into(), Cell::Nothing, Cell::Nothing, "".into()]
        }
        _ => [finding.severity.word().into(), finding.what.into(), count, share, (*finding.why).into()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(id: &'static str, what: &'static str, severity: Severity) -> Finding {
        Finding { id, severity, figures: None, what, why: "".into() }
    }

    #[test]
    fn good_news_has_no_double_negation_in_text() {
        let shown = |finding: &Finding, is_text| cells(finding, is_text)[..2].to_vec();
        let found = finding("no_waits", "waits not recorded", Severity::Note);
        assert_eq!(shown(&found, true), [Cell::from("note"), "waits not recorded".into()]);
        let absent = finding("no_waits", "waits not recorded", Severity::Absent);
        assert_eq!(shown(&absent, true), [Cell::from("ok"), "waits are known".into()]);
        assert_eq!(shown(&absent, false), [Cell::from("none"), "waits not recorded".into()]);
        let plain = finding("stream_overlap", "overlaps on a stream", Severity::Absent);
        assert_eq!(shown(&plain, true), [Cell::from("none"), "overlaps on a stream".into()]);
    }
}

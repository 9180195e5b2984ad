//! `gpuflame check`: reports data in a trace that may be wrong.

use clap::Args;

use super::console::{Console, Outcome};
use super::explain::explain;
use super::heading::heading;
use super::input::Source;
use super::report::{Cell, ReportFlags, Table};
use super::stream_times::{self, clamped_table};
use gpuflame_explain::events::JoinedRows;
use gpuflame_model::error::Result;
use gpuflame_offline::analysis::{Evidence, Finding, Severity, WorkSpans, check_stream_order, findings};
use gpuflame_offline::run::ReadOptions;

/// Check a recording or trace for doubtful data.
///
/// `BAD` findings make sums, links or orders wrong; `note` findings are worth knowing; `none` means that the
/// check found nothing. With --strict, the exit code is 1 if there is a `BAD` finding.
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
    report: ReportFlags,
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
            events: &events,
            stream_order: &order,
            linked,
            damaged: explained.facts.damaged,
            writer_state: explained.facts.writer_state,
        });
        let mut table = Table::new("findings", &["result", "what", "count", "share_percent", "why"]);
        findings.iter().for_each(|finding| table.add_row(cells(finding)));
        let mut tables = vec![table];
        tables.extend(clamped_table(stream_times::TABLE, &explained.profile, &order));
        self.report.write(console, &[heading(&self.input, &explained.profile)], &tables)?;
        let bad = findings.iter().any(|finding| finding.severity == Severity::Bad);
        Ok(if bad && self.strict { Outcome::Findings } else { Outcome::Clean })
    }
}

fn cells(finding: &Finding) -> [Cell; 5] {
    let (count, share) = match finding.figures {
        Some(figures) => (Cell::Count(figures.count), Cell::share(figures.count, figures.of)),
        None => (Cell::Nothing, Cell::Nothing),
    };
    [finding.severity.word().into(), finding.what.into(), count, share, (*finding.why).into()]
}

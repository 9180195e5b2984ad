//! `gpuflame summary`: one screen about a run: how busy the GPUs were, why they were idle, the GPU work, the data that
//! this file lacks, and the command to run next.
//!
//! The figures equal those of the detailed verbs. Busy and idle time are those of the steady part of the run if it has
//! one; all other figures cover the whole run.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use clap::Args;

use super::console::{Console, Outcome};
use super::explain::{Explained, explain_sums_with};
use super::info::step_table;
use super::input::Source;
use super::layout;
use super::measured_part::MeasuredPart;
use super::name_flags::NameFlags;
use super::next_command::{command_for, quoted_for_shell};
use super::page::Page;
use super::ranks;
use super::run_path::{PathRows, RunPath, UnknownPath};
use super::shorten::{MAX_NAME_CHARS, shortened};
use super::stream_times::{MAX_SPANS, check_order};
use super::summary_job;
use super::table_output::{Cell, ReportFlags, ReportFormat, Table, group_digits, write_tables};
use super::top::copy_table;
use gpuflame_explain::events::JoinedRows;
use gpuflame_explain::join::Sink;
use gpuflame_export::{
    NameFolding, busy_and_idle_lines, clean_line, complete_line, executed_line, idle_place, percent,
    work_name,
};
use gpuflame_model::error::Result;
use gpuflame_model::profile::views::{CPU, GPU, IDLE, OFF_CPU, idle_word};
use gpuflame_model::profile::{
    Cause, Profile, RootMark, Sample, SampleSite, Weight, add_to, format_nanos, saturating_sum,
};
use gpuflame_model::record::Work;
use gpuflame_offline::analysis::{
    CommunicationFilter, CopySums, Evidence, Finding, PlausibleSpans, RunEvidence, Severity, StreamOrder,
    WorkSpans, cost_findings, record_findings,
};
use gpuflame_offline::run::ReadOptions;
use gpuflame_traces::import::Kind;

/// Show on one screen why the GPUs were idle, what ran, and what to look at next.
///
/// Reads recordings, with or without every call, and traces of other tools. The files of several ranks are summarised
/// as one job. Busy and idle time are those of the steady part of the run, without start-up and shutdown, if the run
/// has one. All other figures cover the whole run. A finding costs the time that the GPUs would gain without its
/// cause; such times overlap, so they do not add up. Missing data is listed with the command that records it. The
/// JSON has at most 8,000 bytes.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gpuflame summary run.gfr\n  gpuflame summary trace.json.gz --format json\n  \
        gpuflame summary rank-*.json.gz"
)]
pub(super) struct Summary {
    /// Recording or trace (`-`: standard input), or the files of all ranks of a job.
    #[arg(required = true)]
    pub(super) inputs: Vec<Source>,
    #[command(flatten)]
    pub(super) names: NameFlags,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

/// Maximum number of rows of a table. If the JSON is too long, there are fewer.
pub(super) const MAX_ROWS: usize = 5;
/// Maximum number of findings that `gpuflame run` prints.
const MAX_FINDINGS_OF_RUN: usize = 2;
/// Maximum number of ranks that are listed.
pub(super) const MAX_RANKS: usize = 8;
/// Maximum size of the JSON in bytes.
pub(super) const MAX_JSON_BYTES: usize = 8_000;
/// Maximum number of lines of the screen.
const MAX_LINES: usize = 40;
/// Width of the screen in columns if the output is not a terminal.
pub(super) const COLUMNS: usize = 80;
/// Maximum mean length of a gap, in ns, at which a run is launch-bound. With longer gaps it is host-bound: the host did
/// something else than launch.
const LAUNCH_GAP_NANOS: u64 = 50_000;
/// Minimum busy share, in percent, at which a run is bound by GPU work.
const BUSY_PERCENT: f64 = 90.0;
/// Minimum cost of late kernels, in percent, at which the sentence `bound by GPU work` is left out.
const LOST_PERCENT: f64 = 5.0;
/// Minimum difference in percent between the time with any work and the time with kernels at which a sentence tells both.
const COPYING_PERCENT: f64 = 3.0;
/// Findings about kernels that come late. A GPU may be busy with copies meanwhile.
const LATE_KERNELS: [&str; 9] = [
    "data_loader_late",
    "sync_read",
    "sync_wait",
    "launch_bound",
    "pageable_copies",
    "sync_copies",
    "fragmented_copies",
    "host_work",
    "profiler_cost",
];
/// Maximum number of calls and activities in a run whose critical path is found, in 0.15 s and 60 MB.
const MAX_PATH_ROWS: usize = 200_000;
/// Name of the row for GPU time whose launching line is unknown.
const NO_LINE: &str = "[no line]";
/// Minimum share of the idle time between two calls, in percent of all idle time, at which a summary without samples
/// reports that the host's work in this time was not recorded.
const LATE_PERCENT: f64 = 5.0;

impl Summary {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        let sources = ranks::expand_folders(&self.inputs)?;
        let [input] = &sources[..] else { return summary_job::run(self, &sources, console) };
        let mut rows = PathRows::with_max(MAX_PATH_ROWS);
        let (mut run, findings) = summarize(input, self.names.read_options(), console, &mut rows)?;
        let path = RunPath::find(&mut run.explained, rows);
        let screen = Screen { path: Some(&path), ..run.screen(&findings, self.names.names()) };
        let Answers { mut sentences, complete, scope, .. } = screen.answers(&run.spans);
        if let Some(sentence) = path.sentence(&quoted_for_shell(&input.to_string())) {
            sentences.push(sentence + &path.limit_of_host_code(&run.explained.profile));
        }
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

/// Returns sentences about the most expensive findings of a run, and about the command that shows more. Returns none if nothing
/// was found, or if the recording cannot be read.
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

/// Writes the findings, and the checks without data.
pub(super) fn write_findings(
    findings: &[Finding],
    part: MeasuredPart,
    most: usize,
    page: Page,
    text: &mut Vec<u8>,
) -> Result<()> {
    let sentences = finding_sentences(findings, part.nanos, most);
    let all =
        findings.iter().filter(|finding| matches!(finding.severity, Severity::Bad | Severity::Cost)).count();
    let without_data = findings.iter().filter(|finding| finding.severity == Severity::Unknown).count();
    let checks = findings.iter().filter(|finding| finding.severity == Severity::Absent).count();
    let nothing = [format!(
        "findings: none above 2 % of {} in {checks} checks; {without_data} more have no data",
        part.name()
    )];
    layout::write_sentences(if sentences.is_empty() { &nothing } else { &sentences }, page, text)?;
    if let Some(more) = all.checked_sub(sentences.len()).filter(|more| *more > 0) {
        writeln!(text, "and {more} more findings: `gpuflame check` lists all")?;
    }
    text.push(b'\n');
    Ok(())
}

/// Writes the questions without data, each with the command that records the data.
pub(super) fn write_not_recorded(
    unknown: Vec<(String, String)>,
    page: Page,
    text: &mut Vec<u8>,
) -> Result<()> {
    let unknown = unknown.into_iter().map(|(what, how)| format!("not recorded: {what}; {how}"));
    let unknown: Vec<String> = unknown.collect();
    layout::write_sentences(&unknown, Page { has_colors: false, ..page }, text)
}

pub(super) fn answer_table(answers: &[String]) -> Table {
    let mut table = Table::new("answers", &["answer"]);
    answers.iter().for_each(|line| table.add_row([Cell::Text(shortened(line, 4 * MAX_NAME_CHARS))]));
    table
}

pub(super) fn not_recorded_table(unknown: Vec<(String, String)>) -> Table {
    let mut table = Table::new("not_recorded", &["not_recorded", "recorded_by"]);
    unknown.into_iter().for_each(|(what, how)| table.add_row([what, how].map(Cell::Text)));
    table
}

pub(super) fn next_table(command: &str) -> Table {
    let mut next = Table::new("next", &["command"]);
    next.add_row([Cell::Text(command.to_owned())]);
    next
}

/// A run as it was read.
pub(super) struct ReadRun {
    explained: Explained,
    copies: CopySums,
    spans: WorkSpans,
}

/// A run, with everything that its summary needs.
pub(super) struct SummarizedRun {
    pub(super) explained: Explained,
    copies: CopySums,
    spans: PlausibleSpans,
}

/// Sentences about a run, and the data that it lacks.
pub(super) struct Answers {
    /// Busy time, idle time with its culprit, the time with kernels, and what bounds the run.
    pub(super) sentences: Vec<String>,
    /// Completeness of the run.
    pub(super) complete: String,
    /// Parts of the run that the tables cover, if they differ from those of the sentences.
    pub(super) scope: Option<String>,
    /// Missing data, each with a clause about the command that records it.
    pub(super) not_recorded: Vec<(String, String)>,
}

/// Reads a run, and returns it with its findings, the worst first. Passes every joined activity and launch to `more`.
pub(super) fn summarize(
    input: &Source,
    options: ReadOptions,
    console: Console,
    more: impl Sink,
) -> Result<(SummarizedRun, Vec<Finding>)> {
    let mut run = read_run(input, options, console, more)?;
    let order = check_order(input, &run.explained, &mut run.spans, console);
    let run = run.into_evidence();
    let findings = findings_of_run(&run.evidence(), &run.explained, order);
    Ok((run, findings))
}

pub(super) fn read_run(
    input: &Source,
    options: ReadOptions,
    console: Console,
    more: impl Sink,
) -> Result<ReadRun> {
    let (mut copies, mut spans) = (CopySums::default(), WorkSpans::bounded(MAX_SPANS));
    let options = ReadOptions { kernel_gaps: true, ..options };
    let explained = explain_sums_with(input, options, console, ((&mut copies, &mut spans), more))?;
    explained.facts.require_work(input)?;
    explained.require_activities(input)?;
    if explained.facts.has_only_sums {
        copies = CopySums::from_sums(&explained.profile).unwrap_or_default();
    }
    Ok(ReadRun { explained, copies, spans })
}

impl ReadRun {
    pub(super) fn into_evidence(self) -> SummarizedRun {
        let Self { explained, copies, spans } = self;
        SummarizedRun { explained, copies, spans: PlausibleSpans::new(spans) }
    }
}

impl SummarizedRun {
    /// Returns the sentences about the run, which has these findings.
    pub(super) fn answers(&self, findings: &[Finding], names: NameFolding) -> Answers {
        self.screen(findings, names).answers(&self.spans)
    }

    pub(super) fn screen<'a>(&'a self, findings: &'a [Finding], names: NameFolding) -> Screen<'a> {
        Screen { explained: &self.explained, copies: &self.copies, names, findings, path: None }
    }

    pub(super) fn evidence(&self) -> RunEvidence<'_> {
        RunEvidence {
            profile: &self.explained.profile,
            spans: &self.spans,
            states: &self.explained.facts.host_states,
            copies: &self.copies,
            has_only_sums: self.explained.facts.has_only_sums,
            linked: self.explained.facts.linked.as_ref(),
        }
    }
}

/// Returns the findings about records and about lost time, the worst first.
fn findings_of_run(run: &RunEvidence<'_>, explained: &Explained, order: StreamOrder) -> Vec<Finding> {
    let mut findings = record_findings(&Evidence {
        profile: &explained.profile,
        tally: &explained.ledger.tally,
        has_only_sums: explained.facts.has_only_sums,
        events: &JoinedRows::default(),
        stream_order: &order,
        linked: run.linked,
        damaged: explained.facts.damaged,
        writer_state: explained.facts.writer_state,
    });
    findings.retain(|finding| finding.severity == Severity::Bad);
    findings.extend(cost_findings(run));
    findings.sort_by_key(|finding| (finding.severity, std::cmp::Reverse(finding.cost)));
    findings
}

/// Returns the table of wrong data and lost time.
pub(super) fn finding_table(findings: &[Finding], wall: u64, most: usize) -> Table {
    const COLUMNS: [&str; 6] = ["result", "id", "cost_ns", "share_percent", "culprit", "why"];
    let mut table = Table::new("findings", &COLUMNS);
    let shown = |finding: &&Finding| matches!(finding.severity, Severity::Bad | Severity::Cost);
    table.set_all_rows(findings.iter().filter(shown).count());
    for finding in findings.iter().filter(shown).take(most.max(2)) {
        table.add_row([
            finding.severity.word().into(),
            finding.id.into(),
            finding.cost.map_or(Cell::Nothing, Cell::Nanos),
            finding.cost.map_or(Cell::Nothing, |cost| Cell::share(cost, wall)),
            Cell::Text(shortened(&finding.culprit, MAX_NAME_CHARS)),
            Cell::Text(shortened(&finding.why, 4 * MAX_NAME_CHARS)),
        ]);
    }
    table
}

/// Returns sentences about findings: what, where, and why.
fn finding_sentences(findings: &[Finding], wall: u64, most: usize) -> Vec<String> {
    let shown = findings.iter().filter(|finding| matches!(finding.severity, Severity::Bad | Severity::Cost));
    let sentence = |finding: &Finding| {
        let share = finding.cost.map_or(String::new(), |cost| format!("{:.1} %, ", percent(cost, wall)));
        let place = if finding.culprit.is_empty() { String::new() } else { format!(" {}", finding.culprit) };
        let mark = if finding.severity == Severity::Bad { "BAD " } else { "" };
        format!(
            "{mark}{}: {share}{}{}{}",
            finding.id,
            finding.why,
            if place.is_empty() { "" } else { ";" },
            place
        )
    };
    shown.take(most.max(2)).map(sentence).collect()
}

/// Returns the checks without data, as pairs of the checks and the reason.
pub(super) fn unchecked(findings: &[Finding]) -> Vec<(String, String)> {
    let mut reasons: Vec<(String, String)> = Vec::new();
    for finding in findings.iter().filter(|finding| finding.severity == Severity::Unknown) {
        let (id, why) = (finding.id, &*finding.why);
        match reasons.iter_mut().find(|(_, known)| known == why) {
            Some((ids, _)) => *ids += &format!(", {id}"),
            None => reasons.push((id.to_owned(), why.to_owned())),
        }
    }
    reasons
}

/// Number of rows and tables of a summary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fit {
    /// Maximum number of rows per table.
    pub(super) rows: usize,
    /// Number of tables that are left out, the least important ones.
    left_out: usize,
}

/// Returns the text with as many rows and tables as fit.
pub(super) fn fitted(
    write: impl Fn(Fit) -> Result<Vec<u8>>,
    fits: impl Fn(&[u8]) -> bool,
) -> Result<Vec<u8>> {
    let fewer_rows = (MIN_ROWS..=MAX_ROWS).rev().map(|rows| Fit { rows, left_out: 0 });
    let fewer_tables = (1..=TABLES.len()).map(|left_out| Fit { rows: MIN_ROWS, left_out });
    let mut last = Vec::new();
    for fit in fewer_rows.chain(fewer_tables).chain([Fit { rows: 0, left_out: TABLES.len() }]) {
        last = write(fit)?;
        if fits(&last) {
            break;
        }
    }
    Ok(last)
}

/// Names of the tables, the most important first.
const TABLES: [&str; 8] =
    ["gpus", "work", "critical_path", "steps", "idle_causes", "copies", "lines", "idle_places"];
/// Minimum number of rows per table, before tables are left out.
const MIN_ROWS: usize = 2;

pub(super) fn is_one_screen(text: &[u8]) -> bool {
    text.iter().filter(|byte| **byte == b'\n').count() <= MAX_LINES
}

/// Data of the screen.
pub(super) struct Screen<'a> {
    explained: &'a Explained,
    copies: &'a CopySums,
    names: NameFolding,
    findings: &'a [Finding],
    /// The critical path; `None` if it was not asked for.
    path: Option<&'a RunPath>,
}

impl Screen<'_> {
    fn answers(&self, spans: &PlausibleSpans) -> Answers {
        let mut sentences = busy_and_idle_lines(&self.explained.ledger, self.profile());
        sentences.extend(self.kernel_line(spans));
        sentences.extend(self.bound_line());
        Answers {
            sentences,
            complete: self.complete_line(),
            scope: self.scope_line(),
            not_recorded: self.not_recorded(),
        }
    }

    fn profile(&self) -> &Profile {
        &self.explained.profile
    }

    /// Returns the idle samples of the steady part. Returns an empty list if idle time is unknown.
    fn idle_samples(&self) -> Vec<&Sample> {
        let is_steady =
            |sample: &&Sample| !matches!(sample.root_mark, Some(RootMark::StartUp | RootMark::Shutdown));
        let known = self.profile().idle_doubt().is_none();
        self.profile().samples(&IDLE).iter().filter(is_steady).filter(|_| known).collect()
    }

    fn busy_percent(&self) -> Option<f64> {
        let times = self.profile().times();
        let busy = saturating_sum(times.iter().map(|time| time.steady().busy));
        let window = saturating_sum(times.iter().map(|time| time.steady().window()));
        (self.profile().idle_doubt().is_none() && window > 0).then(|| percent(busy, window))
    }

    /// Returns the sentence about the time with kernels, if a GPU also did something else for a large part of its busy time.
    fn kernel_line(&self, spans: &PlausibleSpans) -> Option<String> {
        let time = self.profile().times().iter().max_by_key(|time| time.steady().busy)?;
        let kernels = spans.kernel_time(time.device, self.profile().steady())?;
        let window = time.steady().window();
        let share = percent(kernels, window);
        (percent(time.steady().busy, window) - share >= COPYING_PERCENT).then(|| {
            format!(
                "kernels ran for {share:.1} % of the time on GPU {}; copies count as busy, too",
                time.device.0
            )
        })
    }

    /// Returns the sentence that names what bounds the run, with the reason. Returns `None` if idle time is unknown, or if
    /// the GPU's account covers only a part of the steps.
    fn bound_line(&self) -> Option<String> {
        let busy = self.busy_percent()?;
        let is_late = |finding: &&Finding| LATE_KERNELS.contains(&finding.id);
        let lost = self.findings.iter().filter(is_late).filter_map(|finding| finding.cost).max().unwrap_or(0);
        let is_lost = percent(lost, MeasuredPart::of(self.profile()).nanos) >= LOST_PERCENT;
        if busy >= BUSY_PERCENT {
            return (!is_lost && !self.is_account_partial()).then(|| self.busy_line(busy));
        }
        let idle = self.idle_samples();
        let all = saturating_sum(idle.iter().map(|sample| sample.amount()));
        let of_causes = |causes: &[Cause]| {
            let is_of = |sample: &&&Sample| causes.iter().any(|cause| cause.word() == idle_word(sample));
            percent(saturating_sum(idle.iter().filter(is_of).map(|sample| sample.amount())), all)
        };
        let host = of_causes(&[Cause::HostLate, Cause::LaunchLatency]);
        let waits = of_causes(&[Cause::Dependency]);
        if host >= 50.0 {
            // A gap has a piece for each cause. Nearly all gaps have a piece of launch latency.
            let pieces = |cause: Cause| {
                let of_cause = idle.iter().filter(|sample| idle_word(sample) == cause.word());
                saturating_sum(of_cause.map(|sample| sample.count()))
            };
            let gaps = match pieces(Cause::LaunchLatency) {
                0 => pieces(Cause::HostLate),
                gaps => gaps,
            };
            let mean = all / gaps.max(1);
            let bound = if mean <= LAUNCH_GAP_NANOS { "launch-bound" } else { "host-bound" };
            let mean = format_nanos(mean);
            return Some(format!(
                "{bound}: in {host:.1} % of the idle time no work was queued; a gap lasts {mean} on average"
            ));
        }
        let why = "launched work waited for an event, the host or other work";
        (waits >= 50.0).then(|| format!("not launch-bound: in {waits:.1} % of the idle time, {why}"))
    }

    /// Returns the sentence about GPUs that are busy. Communication contains the time in which a rank waits for others.
    fn busy_line(&self, busy: f64) -> String {
        let filter = CommunicationFilter::default();
        let (mut all, mut communication, mut copies) = (0, 0, 0);
        for work in self.profile().works() {
            let nanos = work.weight.nanos;
            add_to(&mut all, nanos);
            if filter.is_communication(work.work, &work_name(self.profile(), work.work)) {
                add_to(&mut communication, nanos);
            } else if matches!(work.work, Work::Copy(_)) {
                add_to(&mut copies, nanos);
            }
        }
        let (communication, copies) = (percent(communication, all), percent(copies, all));
        match () {
            () if communication >= 50.0 => format!(
                "bound by communication: {communication:.1} % of the GPU work, which includes waiting for a late rank"
            ),
            () if copies >= 50.0 => format!("bound by copies: {copies:.1} % of the GPU work"),
            () => format!("bound by GPU work: the GPUs are busy {busy:.1} % of the time"),
        }
    }

    /// Whether the steps last clearly longer than the time for which GPUs are accounted. The account of a trace begins with
    /// its first GPU work.
    fn is_account_partial(&self) -> bool {
        let groups = &self.profile().step_series().groups;
        let (Some(first), Some(last)) = (groups.first(), groups.last()) else { return false };
        let window = self.profile().times().iter().map(|time| time.steady().window()).max().unwrap_or(0);
        last.end.0.saturating_sub(first.begin.0) > window.saturating_add(window / 4)
    }

    /// Returns the sentence about the parts of the run that the tables cover; `None` if GPUs worked only in the steady part.
    fn scope_line(&self) -> Option<String> {
        let times = self.profile().times().iter();
        let apart = saturating_sum(times.flat_map(|time| [time.start_up.busy, time.shutdown.busy]));
        (apart > 0).then(|| {
            format!(
                "GPU work, lines and copies below are those of the whole run, with {} outside of the steady part",
                format_nanos(apart)
            )
        })
    }

    /// Returns the sentence about losses. Traces of other tools do not record losses.
    fn complete_line(&self) -> String {
        let Explained { profile, ledger, facts, .. } = self.explained;
        if facts.writer_state.is_some() || facts.damaged > 0 {
            let damaged = group_digits(facts.damaged);
            let line = complete_line(ledger, profile);
            let line = line.split_once(": ").map_or(&*line, |(_, rest)| rest);
            return format!(
                "not complete: the recording breaks off or is damaged ({damaged} damaged records); {line}"
            );
        }
        let Some(linked) = &facts.linked else { return complete_line(ledger, profile) };
        let (launches, activities) = (ledger.tally.launches.seen, ledger.tally.activities.seen);
        let without = match self.profile().coverage().all.uncovered {
            0 => String::new(),
            count => format!("{} launches have no activity; ", group_digits(count)),
        };
        without
            + &format!(
                "{} launches, {} activities: {:.1} % of the GPU time is linked to launches; the trace does not record losses",
                group_digits(launches),
                group_digits(activities),
                percent(linked.linked_gpu_ns, linked.gpu_ns)
            )
    }

    /// Returns the screen as text: the answers, the tables, the missing data, and the next command.
    fn text(&self, answers: &[String], input: &Source, fit: Fit, page: Page) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        layout::write_sentences(answers, page, &mut text)?;
        text.push(b'\n');
        write_findings(self.findings, MeasuredPart::of(self.profile()), fit.rows, page, &mut text)?;
        layout::write(&[], &self.tables(fit), page, &mut text)?;
        text.push(b'\n');
        write_not_recorded(self.not_recorded(), page, &mut text)?;
        // A command is not broken, so that it can be pasted.
        writeln!(text, "next: {}", clean_line(&self.next_command(input)))?;
        Ok(text)
    }

    /// Returns the whole screen as tables, for programs.
    fn all_tables(&self, answers: &[String], input: &Source, fit: Fit) -> Vec<Table> {
        let findings = finding_table(self.findings, MeasuredPart::of(self.profile()).nanos, fit.rows);
        let unknown: Vec<_> = self.not_recorded();
        [answer_table(answers), findings]
            .into_iter()
            .chain(self.tables(fit))
            .chain([not_recorded_table(unknown), next_table(&self.next_command(input))])
            .collect()
    }

    fn tables(&self, Fit { rows: most, left_out }: Fit) -> Vec<Table> {
        let kept = &TABLES[..TABLES.len() - left_out];
        let mut tables = vec![self.device_table(most)];
        tables.extend(self.idle_tables(most));
        tables.push(self.work_table(most));
        tables.extend(self.path.and_then(|path| path.table(most, short_name)));
        tables.push(self.line_table(most.min(3)));
        let mut copies = copy_table(self.copies, most.min(3));
        copies.set_all_rows(copies.rows().len());
        tables.push(copies);
        tables.extend(step_table(self.explained, most));
        tables.retain(|table| !table.rows().is_empty() && kept.contains(&table.name()));
        tables
    }

    /// Returns the table of busy and idle time. Empty for a single GPU, because the first sentence contains its times.
    fn device_table(&self, most: usize) -> Table {
        let mut table = Table::new("gpus", &["device", "busy_percent", "busy_ns", "idle_ns", "window_ns"]);
        let times = self.profile().times();
        let is_unknown = self.profile().idle_doubt().is_some();
        for time in times.iter().filter(|_| times.len() > 1).take(most.max(1) * 2) {
            let steady = time.steady();
            let known = |cell| if is_unknown { Cell::Nothing } else { cell };
            table.add_row([
                Cell::Gpu(time.device.0),
                known(Cell::share(steady.busy, steady.window())),
                Cell::Nanos(steady.busy),
                known(Cell::Nanos(steady.idle)),
                Cell::Nanos(steady.window()),
            ]);
        }
        table
    }

    /// Returns idle time by cause, and by place.
    pub(super) fn idle_tables(&self, most: usize) -> [Table; 2] {
        let (mut causes, mut places) = (BTreeMap::new(), BTreeMap::new());
        for sample in self.idle_samples() {
            add_to(causes.entry(idle_word(sample).to_owned()).or_default(), sample.amount());
            let place = idle_place(self.profile(), sample).unwrap_or_default();
            add_to(places.entry(place).or_default(), sample.amount());
        }
        let by_cause = Table::new("idle_causes", &["total_ns", "share_percent", "cause"]);
        let by_place = Table::new("idle_places", &["total_ns", "share_percent", "place"]);
        [sum_table(by_cause, causes, most), sum_table(by_place, places, most)]
    }

    /// Returns GPU work by name, over all GPUs.
    fn work_table(&self, most: usize) -> Table {
        let mut sums: BTreeMap<String, Weight> = BTreeMap::new();
        for work in self.profile().works() {
            let sum = sums.entry(work_name(self.profile(), work.work).into_owned()).or_default();
            add_to(&mut sum.nanos, work.weight.nanos);
            add_to(&mut sum.count, work.weight.count);
        }
        let total = saturating_sum(sums.values().map(|sum| sum.nanos));
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by(|a, b| b.1.nanos.cmp(&a.1.nanos).then_with(|| a.0.cmp(&b.0)));
        let mut table = Table::new("work", &["total_ns", "share_percent", "count", "avg_ns", "name"]);
        for (name, sum) in sums.into_iter().take(most) {
            table.add_row([
                Cell::Nanos(sum.nanos),
                Cell::share(sum.nanos, total),
                Cell::Count(sum.count),
                Cell::Nanos(sum.nanos / sum.count.max(1)),
                Cell::Kernels(vec![shortened(&name, MAX_NAME_CHARS)]),
            ]);
        }
        table
    }

    /// Returns source lines by the GPU time that they launched.
    fn line_table(&self, most: usize) -> Table {
        let mut lines = BTreeMap::new();
        for sample in self.profile().samples(&GPU) {
            let line = executed_line(self.profile(), sample.site, self.names);
            let line = line.map_or_else(|| NO_LINE.to_owned(), |line| format!("{}:{}", line.file, line.line));
            add_to(lines.entry(line).or_default(), sample.amount());
        }
        sum_table(Table::new("lines", &["total_ns", "share_percent", "line"]), lines, most)
    }

    /// Returns the data that the file lacks, each with a clause about the command, call or option that records it.
    fn not_recorded(&self) -> Vec<(String, String)> {
        let (profile, facts) = (self.profile(), &self.explained.facts);
        let idle = self.idle_samples();
        let is_between = |sample: &&&Sample| matches!(sample.site, SampleSite::Between { .. });
        let all = saturating_sum(idle.iter().map(|sample| sample.amount()));
        let late = saturating_sum(idle.iter().filter(is_between).map(|sample| sample.amount()));
        let has_samples = profile.has(&CPU) || profile.has(&OFF_CPU);
        let mut notes = Vec::new();
        let mut note = |what: String, how: &str| notes.push((what, how.to_owned()));
        if !has_samples && percent(late, all) >= LATE_PERCENT {
            let what = format!("what the host did in {} between two calls", format_nanos(late));
            note(
                what,
                match facts.kind {
                    Kind::Recording => "`gpuflame run --cpu-samples 99 --off-cpu COMMAND` records it",
                    Kind::Chrome => "torch.profiler records it with `with_stack=True`",
                    _ => "a profiler that samples the host records it",
                },
            );
        }
        let filter = CommunicationFilter::default();
        let communicates = |work: Work| filter.is_communication(work, &work_name(profile, work));
        if facts.has_only_sums && profile.works().iter().any(|work| communicates(work.work)) {
            let what = "how much communication overlaps with work".to_owned();
            note(what, "`gpuflame run --rows COMMAND` records it");
        }
        if matches!(self.path, Some(RunPath::Unknown(UnknownPath::OnlySums))) {
            note("the critical path".to_owned(), "`gpuflame run --rows COMMAND` records it");
        }
        let marks = match facts.kind {
            Kind::Recording => Some("`gpuflame.step()` or `--window step-range=NAME` marks them"),
            Kind::Chrome => Some("`profiler.step()` marks them"),
            _ => None,
        };
        if let Some(marks) = marks.filter(|_| profile.step_series().groups.is_empty()) {
            note("steps, so slow ones are unknown".to_owned(), marks);
        }
        notes.extend(unchecked(self.findings));
        notes
    }

    fn next_command(&self, input: &Source) -> String {
        let is_idle = self.busy_percent().is_some_and(|busy| busy < 50.0);
        let file = quoted_for_shell(&input.to_string());
        let shown = |finding: &&Finding| matches!(finding.severity, Severity::Bad | Severity::Cost);
        let picture = match self.findings.iter().find(shown) {
            Some(finding) => {
                let has_rows = !self.explained.facts.has_only_sums;
                let is_bad = finding.severity == Severity::Bad;
                let command = command_for(finding.id, is_bad, std::slice::from_ref(&file), has_rows);
                command.ok_or("--idle -o idle.svg")
            }
            None if is_idle => Err("--idle -o idle.svg"),
            None => Err("-o gpu.svg"),
        };
        picture.unwrap_or_else(|options| format!("gpuflame flamegraph {file} {options}"))
    }
}

fn short_name(name: &str) -> String {
    shortened(name, MAX_NAME_CHARS)
}

/// Adds the largest sums to a table. A name that is not known is empty.
fn sum_table(mut table: Table, sums: BTreeMap<String, u64>, most: usize) -> Table {
    let total = saturating_sum(sums.values().copied());
    let mut sums: Vec<_> = sums.into_iter().filter(|(_, nanos)| *nanos > 0).collect();
    sums.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    for (name, nanos) in sums.into_iter().take(most) {
        let name = if name.is_empty() { Cell::Nothing } else { Cell::Text(shortened(&name, MAX_NAME_CHARS)) };
        table.add_row([Cell::Nanos(nanos), Cell::share(nanos, total), name]);
    }
    table
}

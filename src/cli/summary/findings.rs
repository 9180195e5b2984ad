//! Writes the findings, the missing data and the next command of a summary, as sentences and as tables.

use std::io::Write as _;

use crate::layout;
use crate::measured_part::MeasuredPart;
use crate::page::Page;
use crate::shorten::{MAX_NAME_CHARS, shortened};
use crate::table_output::{Cell, Table};
use gpuflame_export::percent;
use gpuflame_model::error::Result;
use gpuflame_model::profile::{Profile, format_nanos};
use gpuflame_offline::analysis::{Finding, Severity};

/// Id of the finding about GPU work whose duration is longer than is possible on its stream.
pub(super) const IMPOSSIBLE_DURATION: &str = "impossible_duration";
/// Ids of findings that make all shares of time wrong. Each finding's id is paired with the sentence that replaces the
/// sentences about busy and idle time.
const WITHHOLDING: [(&str, &str); 3] = [
    (
        IMPOSSIBLE_DURATION,
        "busy and idle time are withheld: some GPU work has impossible durations; `gpuflame info` names it, and has \
         clamped figures",
    ),
    (
        "times_backwards",
        "busy and idle time are withheld: some GPU work ends before it begins; `gpuflame check` counts it",
    ),
    (
        "no_length",
        "busy and idle time are withheld: all GPU work has a duration of 0; its times may be in another unit, such as \
         seconds",
    ),
];

/// Returns the sentence that replaces busy and idle time, if GPU work has durations that cannot be correct.
pub(super) fn why_times_are_withheld(findings: &[Finding]) -> Option<&'static str> {
    let is_found = |id| findings.iter().any(|finding| finding.id == id && finding.severity == Severity::Bad);
    WITHHOLDING.iter().find(|(id, _)| is_found(*id)).map(|(_, why)| *why)
}

/// Whether GPU work has impossible durations. A duration is impossible if it is longer than its stream allows, or if
/// the end is before the start. If GPU work has impossible durations, all shares of time are wrong.
pub(crate) fn has_impossible_durations(findings: &[Finding]) -> bool {
    why_times_are_withheld(findings).is_some()
}

/// Returns the finding about durations that cannot be correct, if there is one.
pub(super) fn withholding_finding(findings: &[Finding]) -> Option<&Finding> {
    let of_id = |id| findings.iter().find(|finding| finding.id == id && finding.severity == Severity::Bad);
    WITHHOLDING.iter().find_map(|(id, _)| of_id(*id))
}

/// Returns the part of a run to which shares refer. The length of the part is 0 if impossible durations make all shares
/// wrong.
pub(crate) fn measured_part(profile: &Profile, findings: &[Finding]) -> MeasuredPart {
    if has_impossible_durations(findings) { MeasuredPart::default() } else { MeasuredPart::of(profile) }
}

/// Writes the findings as text, and the checks that lacked data.
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

/// Writes the kinds of data that were not recorded, each with the command that records the data.
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

/// Returns the table of findings about wrong data and lost time.
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
            finding.cost.filter(|_| wall > 0).map_or(Cell::Nothing, |cost| Cell::share(cost, wall)),
            Cell::Text(shortened(&finding.culprit, MAX_NAME_CHARS)),
            Cell::Text(shortened(&finding.why, 4 * MAX_NAME_CHARS)),
        ]);
    }
    table
}

/// Returns sentences about findings, with their subject, location and explanation. Costs are shown as shares of `wall`
/// (in ns), or as times if `wall` is 0.
pub(super) fn finding_sentences(findings: &[Finding], wall: u64, most: usize) -> Vec<String> {
    let shown = findings.iter().filter(|finding| matches!(finding.severity, Severity::Bad | Severity::Cost));
    let sentence = |finding: &Finding| {
        let cost = |nanos| match wall {
            0 => format!("{}, ", format_nanos(nanos)),
            _ => format!("{:.1} %, ", percent(nanos, wall)),
        };
        let share = finding.cost.map_or(String::new(), cost);
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

/// Returns the checks that lacked data. Each returned pair consists of the ids of some checks and the reason that these
/// checks have in common.
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

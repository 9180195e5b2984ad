//! Creates the first screen of a page, which shows why the run is slow, in sentences, bars and findings.

use super::super::measured_part::MeasuredPart;
use super::super::next_command::command_for;
use super::super::shorten::{MAX_NAME_CHARS, shortened};
use super::super::table_output::group_digits;
use super::bars::DeviceBar;
use super::comparison;
use super::job::{Job, RankFacts};
use super::remedies::remedy;
use super::words::{capitalized, cut_middle, with_base};
use gpuflame_export::{clean_line, percent};
use gpuflame_model::profile::{format_nanos, saturating_sum};
use gpuflame_offline::analysis::{Finding, Severity};
use serde_json::{Value, json};

/// Maximum length, in characters, of a finding's source location in its tooltip.
const MAX_CULPRIT_CHARS: usize = 2_000;
/// Maximum length, in characters, of a finding's source location on the first screen. The finding's tooltip shows the
/// location without this limit.
const MAX_PLACE_CHARS: usize = 150;
/// Maximum number of findings that a page lists. The first screen shows only three findings.
const MAX_FINDINGS: usize = 12;

/// A finding on a page, with the command that shows more about the finding.
pub(super) struct PageFinding {
    pub(super) id: &'static str,
    is_bad: bool,
    pub(super) share: Option<f64>,
    pub(super) cost: Option<u64>,
    pub(super) what: &'static str,
    pub(super) why: String,
    /// Sentence about a remedy for the finding; empty if the finding is about wrong data.
    pub(super) remedy: &'static str,
    /// Responsible source location. `place` is the text of `culprit`, cut to `MAX_PLACE_CHARS` characters.
    pub(super) culprit: String,
    place: String,
    pub(super) command: String,
    view: &'static str,
}

/// Content of a page's first screen.
pub(super) struct Head {
    pub(super) title: String,
    /// Sentence about the largest cost, or about busy time if there is no cost.
    pub(super) first_line: String,
    /// Sentences that name the culprit: the cause of idle time, and the resource that limits the run.
    pub(super) culprits: Vec<String>,
    /// Sentences about the changes since the older run. The list of sentences is empty if there is no older run.
    pub(super) changes: Vec<String>,
    /// Additional sentences that answer why the run is slow.
    pub(super) answers: Vec<String>,
    pub(super) complete: String,
    bars: Vec<Value>,
    pub(super) findings: Vec<PageFinding>,
    /// Sentence that is shown if the run has no findings.
    pub(super) none_found: String,
    not_recorded: Vec<(String, String)>,
    /// The part of the run to which all shares of costs refer.
    part: MeasuredPart,
    /// Number of checks that lacked data, and number of other facts that were not recorded.
    without_data: (usize, usize),
}

pub(super) fn head(job: &Job, old: Option<&Job>) -> Head {
    let (first_line, culprits, answers) = match &job.ranks[..] {
        [one] => {
            let mut sentences = one.answers.sentences.iter().map(|line| with_base(line, job.part.name()));
            let first = sentences.next().unwrap_or_default();
            let work = one.work.iter().map(|line| with_base(line, job.part.name()));
            let gain = job.gain_sentence().map(|line| capitalized(&line));
            (
                first,
                sentences.collect(),
                gain.into_iter().chain(work).chain(one.answers.scope.clone()).collect(),
            )
        }
        _ => {
            let others = job.without_work.iter().cloned().chain(job.missing_ranks());
            (job_line(job), others.collect(), Vec::new())
        }
    };
    let (first_line, culprits) = headline(job, first_line, culprits);
    let not_recorded = not_recorded(job);
    let severities =
        |severity| job.findings.iter().filter(move |finding| finding.severity == severity).count();
    Head {
        title: job.title(),
        first_line,
        culprits,
        changes: old.map(|old| comparison::sentences(job, old)).unwrap_or_default(),
        answers,
        complete: complete_line(job),
        bars: bars(job),
        findings: job
            .findings
            .iter()
            .filter_map(|finding| page_finding(finding, job))
            .take(MAX_FINDINGS)
            .collect(),
        none_found: format!(
            "No cause costs more than 2 % of {}, in {} checks; {} more checks have no data. How efficient the \
             kernels are is not checked.",
            job.part.name(),
            severities(Severity::Absent),
            severities(Severity::Unknown)
        ),
        part: job.part,
        without_data: (severities(Severity::Unknown), other_facts(job, &not_recorded)),
        not_recorded,
    }
}

/// Returns the first line and the sentences after it. The first line is about the largest cost, and the next sentence
/// is about busy time. A first line about busy time could mislead, because a GPU may be busy all the time with
/// unnecessary work.
fn headline(job: &Job, busy: String, culprits: Vec<String>) -> (String, Vec<String>) {
    let is_cost = |finding: &&Finding| finding.severity == Severity::Cost && finding.cost.is_some();
    let largest = job.findings.iter().filter(is_cost).max_by_key(|finding| finding.cost);
    match largest.and_then(|finding| Some((finding.what, finding.cost?))) {
        Some((what, cost)) if job.part.nanos > 0 => {
            let what = capitalized(what);
            let share = percent(cost, job.part.nanos);
            let line = format!("{what}: {share:.1} % of {} ({})", job.part.name(), format_nanos(cost));
            (line, std::iter::once(busy).chain(culprits).collect())
        }
        _ => (busy, culprits),
    }
}

/// Returns the number of entries in `not_recorded` that are not about checks. Entries about checks begin with the id of
/// a check.
fn other_facts(job: &Job, not_recorded: &[(String, String)]) -> usize {
    let is_id = |text: &str| job.findings.iter().any(|finding| finding.id == text);
    let first = |what: &str| what.split(", ").next().is_some_and(is_id);
    not_recorded.iter().filter(|(what, _)| !first(what)).count()
}

/// Returns the first line for a job with several ranks. The first line of a job names the ranks with the smallest and
/// the largest busy share.
fn job_line(job: &Job) -> String {
    let sums = |bars: &[DeviceBar]| {
        let sum = |of: fn(&DeviceBar) -> u64| saturating_sum(bars.iter().map(of));
        (sum(|bar| bar.busy), sum(|bar| bar.window))
    };
    // A rank without bars has no times, or only times that cannot be correct.
    let known = || job.ranks.iter().filter(|rank| !rank.bars.is_empty());
    let of_ranks: Vec<(u32, (u64, u64))> = known().map(|rank| (rank.rank, sums(&rank.bars))).collect();
    let busy = saturating_sum(of_ranks.iter().map(|(_, (busy, _))| *busy));
    let window = saturating_sum(of_ranks.iter().map(|(_, (_, window))| *window));
    let mut line = match (of_ranks.len(), job.ranks.len()) {
        (0, all) => {
            return format!("{all} ranks: busy and idle time are unknown");
        }
        (some, all) if some < all => format!("{all} ranks: GPUs of {some} ranks"),
        (_, all) => format!("{all} ranks: GPUs"),
    };
    line += &format!(" busy {:.1} % of the time", percent(busy, window));
    let mut shares: Vec<(f64, u32)> =
        of_ranks.iter().map(|(rank, (busy, window))| (percent(*busy, *window), *rank)).collect();
    shares.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    if let (Some((low, idle)), Some((high, busy))) = (shares.first(), shares.last()) {
        line += &format!(", from {low:.1} % (rank {idle}) to {high:.1} % (rank {busy})");
    }
    line
}

/// Returns the sentence that states whether the data of the run is complete. If the data of some ranks of a job is
/// incomplete, the sentence is about the first of these ranks.
fn complete_line(job: &Job) -> String {
    let [one] = &job.ranks[..] else {
        let is_incomplete = |rank: &&RankFacts| rank.answers.complete.starts_with("not complete");
        let incomplete = job.ranks.iter().filter(is_incomplete).count();
        let shown = job.ranks.iter().find(is_incomplete).or(job.ranks.first());
        let line =
            shown.map_or_else(String::new, |rank| format!("rank {}: {}", rank.rank, rank.answers.complete));
        return match incomplete {
            0 => format!("{} ranks were read; {line}", job.ranks.len()),
            _ => format!("{incomplete} of {} ranks are not complete; {line}", job.ranks.len()),
        };
    };
    one.answers.complete.clone()
}

fn bars(job: &Job) -> Vec<Value> {
    let rank_of = |rank: u32| job.is_job().then_some(rank);
    job.ranks.iter().flat_map(|rank| rank.bars.iter().map(move |bar| bar.json(rank_of(rank.rank)))).collect()
}

fn not_recorded(job: &Job) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for missing in job.ranks.iter().flat_map(|rank| &rank.answers.not_recorded) {
        if !job.is_job() || !all.iter().any(|known| known.1 == missing.1) {
            all.push(missing.clone());
        }
    }
    all
}

fn page_finding(finding: &Finding, job: &Job) -> Option<PageFinding> {
    let is_bad = finding.severity == Severity::Bad;
    if !is_bad && finding.severity != Severity::Cost {
        return None;
    }
    let (command, view) = next_step(finding, is_bad, job);
    Some(PageFinding {
        id: finding.id,
        is_bad,
        share: finding.cost.filter(|_| job.part.nanos > 0).map(|cost| percent(cost, job.part.nanos)),
        cost: finding.cost,
        what: finding.what,
        why: with_count(finding, is_bad),
        remedy: if is_bad { "" } else { remedy(finding.id) },
        culprit: shortened(&finding.culprit, MAX_CULPRIT_CHARS),
        place: cut_middle(&finding.culprit, MAX_PLACE_CHARS),
        command,
        view,
    })
}

/// Returns the text that explains why a finding matters. If the finding is about wrong data, the text starts with the
/// number of cases in which the data is wrong.
fn with_count(finding: &Finding, is_bad: bool) -> String {
    let why = shortened(&finding.why, 4 * MAX_NAME_CHARS);
    match finding.figures.filter(|_| is_bad) {
        Some(figures) if figures.of > 0 => {
            format!("{} of {}: {why}", group_digits(figures.count), group_digits(figures.of))
        }
        Some(figures) => format!("{}: {why}", group_digits(figures.count)),
        None => why,
    }
}

/// Returns the command that shows more about a finding, and the name of the page's view that shows the finding.
fn next_step(finding: &Finding, is_bad: bool, job: &Job) -> (String, &'static str) {
    let file = job.file_of(finding.rank);
    let command = command_for(finding.id, is_bad, &file, &job.files(), job.has_rows(), job.flags);
    let view = match (&command, finding.id) {
        (None, _) | (Some(_), "launch_bound" | "starved_thread" | "profiler_cost") if !is_bad => "idle",
        _ => "gpu",
    };
    (command.unwrap_or_else(|| format!("gpuflame top {file} --by idle")), view)
}

impl Head {
    /// Returns the fields of the page's JSON data that belong to the first screen.
    pub(super) fn json(&self) -> String {
        let finding = |finding: &PageFinding| {
            json!({
                "id": finding.id, "bad": finding.is_bad, "share": finding.share, "ns": finding.cost,
                "what": finding.what, "why": finding.why, "culprit": finding.culprit, "at": finding.place, "remedy": finding.remedy,
                "command": finding.command, "view": finding.view,
            })
        };
        let findings: Vec<Value> = self.findings.iter().map(finding).collect();
        let missing: Vec<Value> =
            self.not_recorded.iter().map(|(what, how)| json!({"what": what, "how": how})).collect();
        let mut all = json!({
            "version": 1, "title": self.title, "firstLine": self.first_line,
            "culprits": self.culprits, "changes": self.changes, "answers": self.answers,
            "complete": self.complete, "bars": self.bars, "findings": findings, "noneFound": self.none_found,
            "notRecorded": missing, "wall": self.part.nanos, "part": self.part.name(), "checksWithoutData": self.without_data.0,
            "otherFacts": self.without_data.1,
        });
        clean(&mut all);
        let text = all.to_string();
        text[1..text.len() - 1].to_owned()
    }
}

/// Removes harmful characters from all texts in a JSON value. Names of programs and functions may contain control
/// characters that change how a browser shows the following text.
fn clean(value: &mut Value) {
    match value {
        Value::String(text) => *text = clean_line(text).into_owned(),
        Value::Array(all) => all.iter_mut().for_each(clean),
        Value::Object(all) => all.values_mut().for_each(clean),
        _ => {}
    }
}

//! The first screen of a page: why the run is slow, in sentences, bars and findings.

use super::super::shorten::{MAX_NAME_CHARS, shortened};
use super::super::summary::quoted_for_shell;
use super::super::table_output::group_digits;
use super::bars::DeviceBar;
use super::comparison;
use super::job::{Job, RankFacts};
use gpuflame_export::{clean_line, percent};
use gpuflame_model::profile::saturating_sum;
use gpuflame_offline::analysis::{Finding, Severity};
use serde_json::{Value, json};

/// Maximum number of findings that a page lists. The first screen shows three.
const MAX_FINDINGS: usize = 12;

/// A finding, with the command that shows more about it.
pub(super) struct PageFinding {
    pub(super) id: &'static str,
    is_bad: bool,
    pub(super) share: Option<f64>,
    pub(super) cost: Option<u64>,
    pub(super) what: &'static str,
    pub(super) why: String,
    pub(super) culprit: String,
    pub(super) command: String,
    view: &'static str,
}

/// Content of the first screen.
pub(super) struct Head {
    pub(super) title: String,
    pub(super) first_line: String,
    /// Sentences that name the culprit: the cause of idle time, and what bounds the run.
    pub(super) culprits: Vec<String>,
    /// Sentences about the change since the older run. Empty if there is none.
    pub(super) changes: Vec<String>,
    /// Further sentences.
    pub(super) answers: Vec<String>,
    pub(super) complete: String,
    bars: Vec<Value>,
    pub(super) findings: Vec<PageFinding>,
    /// Sentence for a run without findings.
    pub(super) none_found: String,
    not_recorded: Vec<(String, String)>,
}

pub(super) fn head(job: &Job, old: Option<&Job>) -> Head {
    let (first_line, culprits, answers) = match &job.ranks[..] {
        [one] => {
            let mut sentences = one.answers.sentences.iter().cloned();
            let first = sentences.next().unwrap_or_default();
            let more = one.work.clone().into_iter().chain(one.answers.scope.clone());
            (first, sentences.collect(), more.collect())
        }
        _ => (job_line(job), Vec::new(), Vec::new()),
    };
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
            "No cause costs more than 2 % of the time, in {} checks; {} more checks have no data. How \
             efficient the kernels are is not checked.",
            severities(Severity::Absent),
            severities(Severity::Unknown)
        ),
        not_recorded: not_recorded(job),
    }
}

/// Returns the first line of a job of several ranks, with the ranks that were busy for the smallest and the largest share.
fn job_line(job: &Job) -> String {
    let sums = |bars: &[DeviceBar]| {
        let sum = |of: fn(&DeviceBar) -> u64| saturating_sum(bars.iter().map(of));
        (sum(|bar| bar.busy), sum(|bar| bar.window))
    };
    let of_ranks: Vec<(u32, (u64, u64))> =
        job.ranks.iter().map(|rank| (rank.rank, sums(&rank.bars))).collect();
    let busy = saturating_sum(of_ranks.iter().map(|(_, (busy, _))| *busy));
    let window = saturating_sum(of_ranks.iter().map(|(_, (_, window))| *window));
    let mut line = format!("{} ranks: GPUs busy {:.1} % of the time", job.ranks.len(), percent(busy, window));
    let mut shares: Vec<(f64, u32)> =
        of_ranks.iter().map(|(rank, (busy, window))| (percent(*busy, *window), *rank)).collect();
    shares.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    if let (Some((low, idle)), Some((high, busy))) = (shares.first(), shares.last()) {
        line += &format!(", from {low:.1} % (rank {idle}) to {high:.1} % (rank {busy})");
    }
    line
}

/// Returns the completeness of the run, or of the first rank that is incomplete.
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
    let (command, view) = next_step(finding.id, is_bad, job);
    Some(PageFinding {
        id: finding.id,
        is_bad,
        share: finding.cost.filter(|_| job.wall > 0).map(|cost| percent(cost, job.wall)),
        cost: finding.cost,
        what: finding.what,
        why: with_count(finding, is_bad),
        culprit: shortened(&finding.culprit, 2 * MAX_NAME_CHARS),
        command,
        view,
    })
}

/// Returns why a finding matters. Wrong data also has its number of occurrences.
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

/// Returns the command that shows more about a finding, and the view of the page that shows it.
fn next_step(id: &str, is_bad: bool, job: &Job) -> (String, &'static str) {
    let file = job.ranks.first().map_or_else(String::new, |rank| quoted_for_shell(&rank.source));
    if matches!(id, "straggler" | "imbalance" | "clocks_of_ranks") {
        return (format!("gpuflame merge-ranks {}", job.files()), "gpu");
    }
    if is_bad {
        return (format!("gpuflame check {file}"), "gpu");
    }
    let (arguments, view) = match id {
        "pageable_copies"
        | "sync_copies"
        | "fragmented_copies"
        | "copies_not_overlapped"
        | "managed_memory" => ("top FILE --by copies,stacks", "gpu"),
        "tiny_kernels" => ("top FILE --by kernels,function", "gpu"),
        "launch_bound" => ("top FILE --by idle,delay", "idle"),
        "slow_steps" | "late_slowdown" | "warm_up" => ("info FILE", "gpu"),
        "default_stream" => ("states FILE", "gpu"),
        "idle_gpu" => ("top FILE --by kernels", "gpu"),
        "exposed_communication" => ("top FILE --by comm", "gpu"),
        "starved_thread" | "profiler_cost" => ("check FILE", "idle"),
        _ => ("top FILE --by idle", "idle"),
    };
    (format!("gpuflame {}", arguments.replace("FILE", &file)), view)
}

impl Head {
    /// Returns the members of the page's data that belong to the first screen.
    pub(super) fn json(&self) -> String {
        let finding = |finding: &PageFinding| {
            json!({
                "id": finding.id, "bad": finding.is_bad, "share": finding.share, "ns": finding.cost,
                "what": finding.what, "why": finding.why, "culprit": finding.culprit,
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
            "notRecorded": missing,
        });
        clean(&mut all);
        let text = all.to_string();
        text[1..text.len() - 1].to_owned()
    }
}

/// Cleans all texts. Names of programs and functions may have characters that change the text after them.
fn clean(value: &mut Value) {
    match value {
        Value::String(text) => *text = clean_line(text).into_owned(),
        Value::Array(all) => all.iter_mut().for_each(clean),
        Value::Object(all) => all.values_mut().for_each(clean),
        _ => {}
    }
}

//! Creates the panel of the critical path, which shows the path's largest parts and marks them in the timeline.

use gpuflame_export::short_kernels;
use gpuflame_offline::analysis::{PathClass, PathPart};
use serde_json::{Value, json};

use super::super::critical_path_job::JobReport;
use super::super::path_groups::PathGroup;
use super::super::run_path::{MAX_PARTS, RunPath, UnknownPath};
use super::super::shorten::{MAX_NAME_CHARS, shortened};
use super::super::table_output::group_digits;
use super::job::{Job, PagePath};
use super::words::capitalized;

/// Maximum length, in characters, of a name in a tooltip.
const MAX_FULL_CHARS: usize = 2_000;
/// Maximum number of marks in the timeline for one part of the path. With more marks, the distance between two marks
/// would be less than two pixels.
const MAX_MARKS: usize = 500;

/// Returns the panel of the critical path for a page.
pub(super) fn panel(job: &Job) -> Value {
    let mut panel = json!({"id": "critical", "title": "Critical path"});
    match &job.path {
        PagePath::Run(RunPath::Unknown(why)) => panel["why"] = why_words(why).into(),
        PagePath::Run(RunPath::Found { parts, answer, groups, .. }) => {
            let zero = job.timeline.start().unwrap_or(0);
            panel["critical"] = json!({
                "answer": answer,
                "ns": parts.iter().map(|part| part.end - part.start).sum::<u64>(),
                "parts": groups.iter().map(|group| group_json(group, parts, zero)).collect::<Vec<_>>(),
            });
        }
        PagePath::Job(report) => {
            let [alignment, changes, answer] = report.lines();
            panel["note"] = format!("{}; {changes}.", capitalized(&alignment)).into();
            panel["critical"] = job_json(report, &answer);
        }
        PagePath::UnknownOfJob(why) => panel["why"] = why.as_str().into(),
    }
    panel
}

fn why_words(why: &UnknownPath) -> String {
    match why {
        UnknownPath::OnlySums => {
            "The critical path needs every call: record with `gpuflame run --rows COMMAND`.".to_owned()
        }
        UnknownPath::TooLarge(max_count) => format!(
            "The run has more than {} calls and activities: `gpuflame critical-path` finds its path.",
            group_digits(*max_count as u64)
        ),
        UnknownPath::NoTimes => "The run has no times, so that no path can be found.".to_owned(),
        UnknownPath::Contradiction => {
            "The times contradict each other: `gpuflame critical-path` names the worst case.".to_owned()
        }
        UnknownPath::MissingWork => {
            "Too many launches have no activity, so that no path can be found.".to_owned()
        }
        UnknownPath::UnknownIdle(doubt) => {
            format!("Idle time is unknown ({doubt}), so that no path can be found.")
        }
        UnknownPath::ImpossibleDurations => {
            "Some durations are impossible, so that no path can be found: `gpuflame info` names them."
                .to_owned()
        }
    }
}

/// Returns the path of a job as JSON. The parts of a job's path are not marked in the timeline, because the path has
/// the job's clock, but each row of the timeline has the clock of the row's rank.
fn job_json(report: &JobReport, answer: &str) -> Value {
    let parts = report.groups().into_iter().take(MAX_PARTS).map(|(rank, group)| {
        let mut part = group_json(&group, &[], 0);
        part["rank"] = rank.into();
        part["count"] = group.parts.len().into();
        part
    });
    json!({"answer": answer, "ns": report.total(), "parts": parts.collect::<Vec<_>>()})
}

fn group_json(group: &PathGroup, parts: &[PathPart], zero: u64) -> Value {
    let spans: Vec<(u64, u64)> = group
        .parts
        .iter()
        .filter_map(|&at| parts.get(at))
        .map(|part| (part.start.saturating_sub(zero), part.end.saturating_sub(zero)))
        .collect();
    let longest = spans.iter().max_by_key(|(start, end)| (end - start, std::cmp::Reverse(*start)));
    let is_kernel = matches!(group.class, PathClass::Kernel | PathClass::Launch | PathClass::Gap);
    let short = short_kernels(std::iter::once(group.name.as_str()).filter(|_| is_kernel));
    let name = short.get(&*group.name).map_or(&group.name, |short| short);
    json!({
        "kind": group.class.word(), "label": group.class.label(), "ns": group.nanos, "count": spans.len(),
        "name": shortened(name, MAX_NAME_CHARS), "full": shortened(&group.name, MAX_FULL_CHARS),
        "function": group.function.as_ref().map(|function| shortened(function, MAX_NAME_CHARS)),
        "longest": longest, "marks": marks(&spans),
    })
}

/// Returns the starts and lengths of the marks for `spans`. Spans that are close to each other share one mark.
fn marks(spans: &[(u64, u64)]) -> Vec<u64> {
    let mut gap = 0;
    loop {
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for &(start, end) in spans {
            match joined.last_mut().filter(|last| start - last.1 <= gap) {
                Some(last) => last.1 = end,
                None => joined.push((start, end)),
            }
        }
        if joined.len() <= MAX_MARKS {
            return joined.into_iter().flat_map(|(start, end)| [start, end - start]).collect();
        }
        gap = (gap * 2).max(1_000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_joined_only_if_there_are_many() {
        assert_eq!(marks(&[(0, 10), (20, 25)]), [0, 10, 20, 5]);
        assert_eq!(marks(&[(0, 10), (10, 25)]), [0, 25]);
        // In this test, one of 600 parts begins every 11 us, and each part lasts 10 us. The gaps of 1 us between the
        // parts are closed, so all parts share one mark.
        let many: Vec<(u64, u64)> = (0..600).map(|at| (at * 11_000, at * 11_000 + 10_000)).collect();
        assert_eq!(marks(&many), [0, 599 * 11_000 + 10_000]);
    }
}

//! Reads the runs that a page shows: one run, or the ranks of a job.

use super::super::console::Console;
use super::super::critical_path_job::JobReport;
use super::super::explain::Explained;
use super::super::input::Source;
use super::super::jobs::{RanksWithoutWork, describe_missing, job_member, refuse_different_jobs};
use super::super::measured_part::MeasuredPart;
use super::super::name_flags::NameFlags;
use super::super::next_command::quoted_for_shell;
use super::super::ranks::{RankFlags, SameJob, SameRank};
use super::super::run_path::{PathRows, RunPath};
use super::super::summary::{Answers, JobRuns, are_times_withheld, measured_part, summarize_rank};
use super::super::table_output::group_digits;
use super::bars::{DeviceBar, device_bars};
use super::step_panel::RankSteps;
use super::work_panels::{WorkDurations, WorkSums};
use gpuflame_export::{Options, run_facts, work_line};
use gpuflame_model::error::Result;
use gpuflame_model::profile::Profile;
use gpuflame_offline::analysis::{Finding, LaunchDelays, RankComparison, RankRun, RankTime, compare_ranks};
use gpuflame_offline::report::{ReportViews, Timeline, TimelineActivities};
use gpuflame_offline::run::ReadOptions;
use gpuflame_traces::import::Kind;

/// Maximum number of calls and activities, in a run or in all ranks of a job, up to which the critical path is
/// computed. Two million rows take 250 MB of memory.
const MAX_PATH_ROWS: usize = 2_000_000;

/// Facts about a run on the page, without the run's samples.
pub(super) struct RankFacts {
    pub(super) rank: u32,
    pub(super) source: String,
    pub(super) heading: String,
    pub(super) answers: Answers,
    pub(super) work: Option<String>,
    pub(super) bars: Vec<DeviceBar>,
    pub(super) steps: RankSteps,
    pub(super) kind: Kind,
    has_only_sums: bool,
    /// Whether all durations of GPU work are plausible.
    are_times_known: bool,
    /// Number of steps in the run; 0 if no step is marked.
    pub(super) step_count: u64,
    /// Number of ranks of the job, if the run's file contains this number.
    world_size: Option<u32>,
}

/// The critical path that the page shows.
pub(super) enum PagePath {
    Run(RunPath),
    Job(Box<JobReport>),
    /// The critical path of a job with several ranks is unknown. The text of this variant states the reason.
    UnknownOfJob(String),
}

/// All runs that a page shows.
pub(super) struct Job {
    pub(super) ranks: Vec<RankFacts>,
    /// Sentence about the ranks whose files have no GPU work; `None` if there are none.
    pub(super) without_work: Option<String>,
    /// Flags that determine how the files of the ranks are numbered.
    pub(super) flags: RankFlags,
    pub(super) views: ReportViews,
    pub(super) work: WorkSums,
    /// Timeline of all runs. The timeline is empty if the runs have only sums.
    pub(super) timeline: Timeline,
    pub(super) path: PagePath,
    /// Findings about the run or the job, in descending order of severity.
    pub(super) findings: Vec<Finding>,
    /// Work time and communication time of each rank, compared with the other ranks. This list is empty if the job has
    /// only one rank.
    pub(super) times: Vec<(RankTime, RankComparison)>,
    /// The part of the run to which the shares of findings refer. The length of the part is 0 if the run's times cannot
    /// be correct.
    pub(super) part: MeasuredPart,
}

impl Job {
    /// Reads all runs of the page.
    pub(super) fn read(
        sources: &[Source],
        flags: RankFlags,
        names: &NameFlags,
        console: Console,
    ) -> Result<Self> {
        let numbers = flags.assign(sources, SameRank::Refused)?;
        let is_job = sources.len() > 1;
        let options =
            Options { names: names.names(), whole_kernels: names.whole_kernels(), ..Options::default() };
        let max_path_rows = if is_job { 0 } else { MAX_PATH_ROWS };
        let between_launches = max_path_rows;
        let reading = ReadOptions { by_stream: true, between_launches, ..names.read_options() };
        let mut order: Vec<usize> = (0..sources.len()).collect();
        order.sort_by_key(|&at| numbers[at]);
        let (mut views, mut work) = (ReportViews::default(), WorkSums::default());
        let (mut timeline, mut path, mut path_rows_of_job) = (Timeline::default(), None, 0);
        let (mut ranks, mut runs, mut findings) = (Vec::new(), JobRuns::default(), Vec::new());
        let mut part = MeasuredPart::default();
        let (mut members, mut files) = (Vec::new(), Vec::new());
        let mut without_work = RanksWithoutWork::default();
        for at in order {
            let (source, rank) = (&sources[at], numbers[at]);
            let (mut delays, mut durations) = (LaunchDelays::default(), WorkDurations::default());
            let mut activities = TimelineActivities::default();
            // For a job, this function only counts the rows, because the job's path is found later from the files of
            // all ranks.
            let mut path_rows = PathRows::with_max(max_path_rows);
            let sinks = (&mut delays, ((&mut durations, &mut activities), &mut path_rows));
            let reading = reading.clone();
            let read = summarize_rank((rank, source), reading, console, sinks, &mut without_work)?;
            let Some((mut run, found)) = read else { continue };
            path_rows_of_job += path_rows.count();
            let is_known = !are_times_withheld(&found);
            path = (!is_job).then(|| RunPath::find(&mut run.explained, path_rows, is_known, &found));
            let parts = path.as_ref().map_or(&[][..], RunPath::parts);
            let (profile, facts) = (&run.explained.profile, &run.explained.facts);
            if facts.has_only_sums {
                (delays, durations) = (LaunchDelays::from_sums(profile), WorkDurations::from_sums(profile));
            }
            timeline.add_run(profile, &activities, parts, is_job.then_some(rank));
            views.add_run(profile, is_job.then_some(rank), &options);
            work.add(profile, (&delays, &durations), names.names());
            let answers = run.answers(&found, names.names());
            ranks.push(rank_facts(source, rank, &run.explained, &found, answers));
            if is_job {
                members.push(job_member(rank, &run.explained));
                files.push(source.to_string());
                runs.add(RankRun::new(rank, &run.evidence()), profile, &found);
            } else {
                part = measured_part(profile, &found);
                findings = found;
            }
        }
        without_work.leave_out(ranks.len(), console)?;
        refuse_different_jobs(&members, &files, SameJob::from_sources(sources), console)?;
        let mut times = Vec::new();
        if is_job {
            let all = runs.times();
            part = runs.part();
            let compared = compare_ranks(&all.iter().collect::<Vec<_>>());
            times = all.into_iter().zip(compared).collect();
            let present = ranks.iter().map(|rank: &RankFacts| rank.rank).collect();
            let world_size = ranks.iter().find_map(|rank| rank.world_size);
            let are_ranks_missing = describe_missing(&present, world_size, flags.assume_order).is_some();
            findings = runs.into_findings(are_ranks_missing || !without_work.is_empty());
        }
        let without_work = without_work.sentence();
        let path = match (path, &without_work) {
            (Some(path), _) => PagePath::Run(path),
            (None, Some(why)) => PagePath::UnknownOfJob(format!("The ranks have no common path: {why}.")),
            (None, None) => job_path(sources, flags, &ranks, path_rows_of_job, console),
        };
        Ok(Self { ranks, without_work, flags, views, work, timeline, path, findings, times, part })
    }

    pub(super) fn is_job(&self) -> bool {
        self.ranks.len() > 1
    }

    /// Returns the sentence about the predicted gain; `None` if no gain is predicted, or for a job with several ranks.
    pub(super) fn gain_sentence(&self) -> Option<String> {
        let (PagePath::Run(path), [one]) = (&self.path, &self.ranks[..]) else { return None };
        path.gain_sentence(&quoted_for_shell(&one.source), self.part)
    }

    /// Returns the sentence about ranks without a file; `None` if no rank is missing, or for a single run.
    pub(super) fn missing_ranks(&self) -> Option<String> {
        let present = self.ranks.iter().map(|rank| rank.rank).collect();
        let world_size = self.ranks.iter().find_map(|rank| rank.world_size);
        describe_missing(&present, world_size, self.flags.assume_order).filter(|_| self.is_job())
    }

    /// Returns the title of the page.
    pub(super) fn title(&self) -> String {
        match &self.ranks[..] {
            [one] => one.heading.clone(),
            all => format!("{} ranks: {} …", all.len(), all[0].heading),
        }
    }

    /// Returns the input files, quoted for a shell.
    pub(super) fn files(&self) -> Vec<String> {
        self.ranks.iter().map(|rank| quoted_for_shell(&rank.source)).collect()
    }

    /// Returns the input file of a rank, quoted for a shell. If no rank is given, returns the first input file.
    pub(super) fn file_of(&self, rank: Option<u32>) -> String {
        let of_rank = self.ranks.iter().find(|run| Some(run.rank) == rank).unwrap_or(&self.ranks[0]);
        quoted_for_shell(&of_rank.source)
    }

    /// Whether the files of all runs contain a row for every call.
    pub(super) fn has_rows(&self) -> bool {
        self.ranks.iter().all(|rank| !rank.has_only_sums)
    }

    /// Whether all runs are recordings of gpuflame.
    pub(super) fn is_recorded(&self) -> bool {
        self.ranks.iter().all(|rank| rank.kind == Kind::Recording)
    }
}

/// Finds the critical path of a job. To find the path, the files of the job are read again.
fn job_path(
    sources: &[Source],
    flags: RankFlags,
    ranks: &[RankFacts],
    rows: usize,
    console: Console,
) -> PagePath {
    if let Some(rank) = ranks.iter().find(|rank| !rank.are_times_known) {
        return PagePath::UnknownOfJob(format!(
            "Some durations of rank {} are impossible, so that no path can be found: `gpuflame info` names them.",
            rank.rank
        ));
    }
    if ranks.iter().any(|rank| rank.has_only_sums) {
        return PagePath::UnknownOfJob(
            "The critical path needs every call of each rank: record with `gpuflame run --rows COMMAND`."
                .into(),
        );
    }
    if rows > MAX_PATH_ROWS {
        let max_count = group_digits(MAX_PATH_ROWS as u64);
        return PagePath::UnknownOfJob(format!(
            "The ranks have more than {max_count} calls and activities: `gpuflame critical-path RANK0 RANK1 ...{}` finds the path of the job.",
            flags.as_text()
        ));
    }
    match JobReport::read(sources, flags, (None, None), Console { quiet: true, ..console }) {
        Ok(report) => PagePath::Job(Box::new(report)),
        Err(error) => PagePath::UnknownOfJob(format!("The ranks have no common path: {error}.")),
    }
}

/// Returns the facts about a run that the page shows. If one of `findings` shows that the run's times cannot be
/// correct, the returned facts have no bars, and their heading has no shares.
fn rank_facts(
    source: &Source,
    rank: u32,
    Explained { profile, facts, .. }: &Explained,
    findings: &[Finding],
    answers: Answers,
) -> RankFacts {
    let is_known = !are_times_withheld(findings);
    RankFacts {
        rank,
        source: source.to_string(),
        heading: heading(source, profile, is_known),
        answers,
        work: work_line(profile).filter(|_| is_known),
        bars: if is_known { device_bars(profile) } else { Vec::new() },
        steps: RankSteps::new(rank, profile.step_series()),
        kind: facts.kind,
        has_only_sums: facts.has_only_sums,
        are_times_known: is_known,
        step_count: profile.step_count(),
        world_size: facts.world_size,
    }
}

/// Returns the name of the program and facts about its run, such as `train.py (process 4711), rank 3: GPU 0 busy 34.5 %
/// of 3.700 s of steps`. If the program is unknown, the name of the file without its folders is used instead.
fn heading(source: &Source, profile: &Profile, are_times_known: bool) -> String {
    let name = match profile.process().filter(|(_, program)| !program.is_empty()) {
        Some((process, program)) => format!("{program} (process {process})"),
        None => {
            let text = source.to_string();
            text.rsplit('/').next().unwrap_or(&text).to_owned()
        }
    };
    if are_times_known { name + &run_facts(profile, ": ", true) } else { name }
}

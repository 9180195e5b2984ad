//! Finds the critical path of a run for `summary` and `report`, and shows the path's largest parts.

use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::profile::{Profile, format_nanos};
use gpuflame_model::record::{Activity, CorrelationId, Row};
use gpuflame_offline::analysis::{
    CriticalPath, Finding, HostHistory, HostHistoryRows, InstructionList, InstructionRows, PathClass,
    PathPart,
};

use super::explain::Explained;
use super::measured_part::MeasuredPart;
use super::path_groups::{PathGroup, path_groups};
use super::path_names::PathNames;
use super::path_tables::{answer, group_names, group_sums};
use super::predicted_gain::{PredictedGain, ReplayedRun};
use super::table_output::{Table, group_digits};

/// Maximum number of parts of the path that are shown.
pub(super) const MAX_PARTS: usize = 5;

/// Collects the rows from which the critical path is found. Discards all rows if there are more than `max_count` calls
/// and activities.
pub(super) struct PathRows {
    rows: InstructionRows,
    history: HostHistoryRows,
    count: usize,
    max_count: usize,
}

impl PathRows {
    /// Creates a collector for at most `max_count` calls and activities.
    pub(super) fn with_max(max_count: usize) -> Self {
        Self { rows: InstructionRows::default(), history: HostHistoryRows::default(), count: 0, max_count }
    }

    /// Returns the number of calls and activities so far.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    fn is_full(&mut self) -> bool {
        self.count += 1;
        if self.count == self.max_count + 1 {
            (self.rows, self.history) = <(InstructionRows, HostHistoryRows)>::default();
        }
        self.count > self.max_count
    }
}

impl Sink for PathRows {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        if !self.is_full() {
            self.rows.activity(activity, origin);
        }
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        if !self.is_full() {
            self.rows.pending(id, launched);
        }
    }

    fn outside(&mut self, activity: &Activity, launched: Launched) {
        self.rows.outside(activity, launched);
    }

    fn host(&mut self, row: &Row<'_>) {
        // Rows with the stacks of threads between their calls do not count towards `max_count`.
        if matches!(row, Row::HostState(_) | Row::HostCallSpan(_)) {
            if self.count <= self.max_count {
                self.history.host(row);
            }
        } else if !self.is_full() {
            self.rows.host(row);
        }
    }
}

/// Reason why the critical path of a run is unknown.
pub(super) enum UnknownPath {
    OnlySums,
    /// The run has more calls and activities than the maximum, which this variant contains.
    TooLarge(usize),
    NoTimes,
    Contradiction,
    /// Some GPU work has a duration that is longer than is possible on the work's stream.
    ImpossibleDurations,
    /// Too many launches have no recorded activity.
    MissingWork,
    /// Idle time is unknown for another reason. The text of this variant states the reason.
    UnknownIdle(String),
}

/// The critical path of a run, or the reason why the path is unknown.
pub(super) enum RunPath {
    Found {
        parts: Vec<PathPart>,
        answer: String,
        groups: Vec<PathGroup>,
        /// Time that the run would save without the cause of its most expensive finding; `None` if a replay cannot
        /// predict this time.
        gain: Option<PredictedGain>,
    },
    Unknown(UnknownPath),
}

impl RunPath {
    /// Finds the critical path of a run. `are_times_known` states whether the durations of the run's GPU work are
    /// plausible. If there are findings, also predicts how much time the run would save without the cause of the most
    /// expensive finding.
    pub(super) fn find(
        run: &mut Explained,
        rows: PathRows,
        are_times_known: bool,
        findings: &[Finding],
    ) -> Self {
        let PathRows { mut rows, history, count, max_count } = rows;
        if !are_times_known {
            return Self::Unknown(UnknownPath::ImpossibleDurations);
        }
        if run.facts.has_only_sums {
            return Self::Unknown(UnknownPath::OnlySums);
        }
        if let Some(doubt) = run.profile.idle_doubt() {
            let coverage = run.profile.coverage();
            let lacks_launches = !coverage.all.is_sufficient() || !coverage.uncovered_steps.is_empty();
            let is_other = !lacks_launches && coverage.empty_steps.is_empty();
            let why = if is_other { UnknownPath::UnknownIdle(doubt) } else { UnknownPath::MissingWork };
            return Self::Unknown(why);
        }
        if count > max_count {
            return Self::Unknown(UnknownPath::TooLarge(max_count));
        }
        run.facts.add_to(&mut rows);
        let profile = &run.profile;
        let list = InstructionList::new(rows, profile);
        let steps = run.facts.steps.spans();
        let path = match CriticalPath::new(&list, profile) {
            Ok(Some(path)) => path.with_host_stacks(&HostHistory::new(history, profile), profile),
            Ok(None) => return Self::Unknown(UnknownPath::NoTimes),
            Err(_) => return Self::Unknown(UnknownPath::Contradiction),
        };
        let names = PathNames { path: &path, list: &list, profile };
        let parts = path.parts().to_vec();
        let (from, to) = path.window();
        let groups = path_groups(names, &parts).into_iter().take(MAX_PARTS).collect();
        let limit = limit_of_host_code(&parts, profile);
        let replayed = ReplayedRun { path: &path, list: &list, profile, steps: &steps };
        let gain = PredictedGain::find(replayed, findings);
        Self::Found { answer: answer(&parts, to - from) + &limit, groups, parts, gain }
    }

    /// Returns the parts in chronological order; empty if the path is unknown.
    pub(super) fn parts(&self) -> &[PathPart] {
        match self {
            Self::Found { parts, .. } => parts,
            Self::Unknown(_) => &[],
        }
    }

    /// Returns the sentence about the shares of the path, or about the reason why the path is unknown. `file` is quoted
    /// for a shell. Returns `None` if calls are not recorded.
    pub(super) fn sentence(&self, file: &str) -> Option<String> {
        let unknown = match self {
            Self::Found { answer, .. } => return Some(answer.clone()),
            Self::Unknown(UnknownPath::OnlySums) => return None,
            Self::Unknown(UnknownPath::TooLarge(max_count)) => {
                let count = group_digits(*max_count as u64);
                format!("not searched, because the run has more than {count} calls and activities")
            }
            Self::Unknown(UnknownPath::NoTimes) => "the run has no times".to_owned(),
            Self::Unknown(UnknownPath::Contradiction) => "the times contradict each other".to_owned(),
            Self::Unknown(UnknownPath::ImpossibleDurations) => "some durations are impossible".to_owned(),
            Self::Unknown(UnknownPath::MissingWork) => {
                return Some("critical path: unknown, because too many launches have no activity".to_owned());
            }
            Self::Unknown(UnknownPath::UnknownIdle(doubt)) => {
                return Some(format!("critical path: unknown, because {doubt}"));
            }
        };
        Some(format!("critical path: {unknown}; `gpuflame critical-path {file}` shows more"))
    }

    /// Returns the sentence about the predicted gain; `None` if no gain is predicted. `file` is quoted for a shell.
    /// `part` is the part of the run to which shares refer.
    pub(super) fn gain_sentence(&self, file: &str, part: MeasuredPart) -> Option<String> {
        let Self::Found { gain: Some(gain), .. } = self else { return None };
        Some(gain.sentence(file, part))
    }

    /// Returns the table of the `most` largest groups of parts; `None` if the path is unknown. `shorten` cuts a name to
    /// the maximum length.
    pub(super) fn table(&self, most: usize, shorten: fn(&str) -> String) -> Option<Table> {
        let Self::Found { parts, groups, .. } = self else { return None };
        let total = parts.iter().map(|part| part.end - part.start).sum();
        let columns = &["time_ns", "share_percent", "parts", "class", "function", "name"];
        let mut table = Table::new("critical_path", columns);
        for group in groups.iter().take(most) {
            let short = PathGroup {
                name: shorten(&group.name),
                function: group.function.as_deref().map(shorten),
                parts: group.parts.clone(),
                ..*group
            };
            table.add_row(group_sums(&short, total).into_iter().chain(group_names(short)));
        }
        Some(table)
    }
}

/// Returns the clause about the maximum time that the run could save with faster host code. Returns an empty text
/// unless host time is most of the path and a stream is busy most of the time. The saved time is bounded by the GPU
/// work of only one stream, because work of several streams may overlap more if it is launched earlier.
fn limit_of_host_code(parts: &[PathPart], profile: &Profile) -> String {
    let streams = profile.streams().iter().filter(|stream| stream.stream.is_some());
    let Some(longest) = streams.max_by_key(|stream| stream.nanos) else { return String::new() };
    let length = |part: &PathPart| part.end - part.start;
    let total: u64 = parts.iter().map(length).sum();
    let is_host = |part: &&PathPart| {
        matches!(part.class, PathClass::Host | PathClass::HandOff | PathClass::Call | PathClass::Return)
    };
    let host: u64 = parts.iter().filter(is_host).map(length).sum();
    if 2 * host < total || 2 * longest.nanos < total || longest.nanos > total {
        return String::new();
    }
    format!(
        "; a stream of GPU {} works for {} meanwhile, so faster host code alone saves at most {}",
        longest.device.0,
        format_nanos(longest.nanos),
        format_nanos(total - longest.nanos)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::{Nanos, WindowEdge};

    #[test]
    fn a_path_that_is_not_searched_names_the_command_that_finds_it() {
        let sentence = |why| RunPath::Unknown(why).sentence("'a b.gfr'");
        assert_eq!(
            sentence(UnknownPath::TooLarge(200_000)).unwrap(),
            "critical path: not searched, because the run has more than 200,000 calls and activities; `gpuflame critical-path \
             'a b.gfr'` shows more"
        );
        assert_eq!(sentence(UnknownPath::OnlySums), None);
    }

    #[test]
    fn rows_are_dropped_once_there_are_too_many() {
        let mut rows = PathRows::with_max(2);
        let row = Row::Window { edge: WindowEdge::Open, time: Nanos(1) };
        let mut is_full = || {
            rows.host(&row);
            rows.count > rows.max_count
        };
        assert_eq!([is_full(), is_full(), is_full()], [false, false, true]);
    }
}

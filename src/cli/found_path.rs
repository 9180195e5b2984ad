//! Reads a run and finds its critical path. Several verbs use this module.

use std::collections::BTreeMap;

use super::console::{Console, usage_error};
use super::explain::{Explained, explain_opened};
use super::input::Source;
use super::path_names::{PathNames, why_words};
use super::table_output::group_digits;
use gpuflame_explain::join::Sink;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::{Profile, format_nanos};
use gpuflame_offline::analysis::{
    Contradiction, CriticalPath, HostHistory, HostHistoryRows, InstructionDetail, InstructionList,
    InstructionRows, PathClass, PathPart,
};
use gpuflame_offline::run::ReadOptions;

/// A run, its list of instructions and its critical path.
pub(super) struct FoundPath {
    pub(super) explained: Explained,
    pub(super) list: InstructionList,
    pub(super) path: CriticalPath,
    /// Stacks in which the host threads were between their CUDA calls; empty for a replay.
    pub(super) history: HostHistory,
}

/// Prints a remark if too many launches have no recorded activity. If activities are missing, a GPU may seem idle
/// although it was busy.
pub(super) fn remark_on_missing_work(input: &Source, profile: &Profile, console: Console) {
    if let Some(doubt) = profile.idle_doubt() {
        console.remark(format!("{input}: {doubt}, so the GPU may have worked where it seems to be idle"));
    }
}

impl FoundPath {
    /// Reads `input` and finds its critical path.
    ///
    /// # Errors
    /// Returns `Format` if the input has no rows, or if its activity records contradict each other.
    pub(super) fn read(input: &Source, console: Console) -> Result<Self> {
        Self::read_with(input, &ReadOptions::default(), console)
    }

    /// Does the same as `read`. If `ranges` is set, also reads the times of named ranges, such as NVTX ranges.
    pub(super) fn read_for(input: &Source, ranges: bool, console: Console) -> Result<Self> {
        Self::read_with(input, &ReadOptions { ranges, ..ReadOptions::default() }, console)
    }

    /// Does the same as `read`, but for replays. For a replay, the path has neither parts nor slack. The states of host
    /// threads during the idle time of GPUs are not read either.
    pub(super) fn read_to_replay(input: &Source, console: Console) -> Result<Self> {
        let options = ReadOptions { without_host_states: true, ..ReadOptions::default() };
        let (explained, rows) = Self::read_rows(input, &options, InstructionRows::default(), console)?;
        Self::found(input, explained, rows, CriticalPath::for_replay)
    }

    fn read_with(input: &Source, options: &ReadOptions, console: Console) -> Result<Self> {
        let options = ReadOptions { between_launches: usize::MAX, ..options.clone() };
        let (rows, history) = (InstructionRows::default(), HostHistoryRows::default());
        let (explained, (rows, history)) = Self::read_rows(input, &options, (rows, history), console)?;
        Ok(Self::new(input, explained, rows)?.with_host_stacks(history))
    }

    /// Divides the time between two calls among the stacks that the thread had during that time. A time range stays
    /// undivided if `history` does not contain its stacks.
    pub(super) fn with_host_stacks(mut self, history: HostHistoryRows) -> Self {
        self.history = HostHistory::new(history, &self.explained.profile);
        self.path = self.path.with_host_stacks(&self.history, &self.explained.profile);
        self
    }

    fn read_rows<S: Sink>(
        input: &Source,
        options: &ReadOptions,
        mut rows: S,
        console: Console,
    ) -> Result<(Explained, S)> {
        // Every part of the path needs a stack. Therefore `options` has no memory limit, because a limit would drop
        // stacks.
        let explained = explain_opened(input, input.open()?, options, console, &mut rows)?;
        remark_on_missing_work(input, &explained.profile, console);
        Ok((explained, rows))
    }

    /// Finds the critical path of a run that has already been read.
    ///
    /// # Errors
    /// Fails for the same reasons as [`FoundPath::read`].
    pub(super) fn new(input: &Source, explained: Explained, rows: InstructionRows) -> Result<Self> {
        Self::found(input, explained, rows, CriticalPath::new)
    }

    fn found(
        input: &Source,
        mut explained: Explained,
        mut rows: InstructionRows,
        find: fn(&InstructionList, &Profile) -> std::result::Result<Option<CriticalPath>, Contradiction>,
    ) -> Result<Self> {
        explained.facts.add_to(&mut rows);
        explained.facts.require_work(input)?;
        explained.facts.require_rows(input)?;
        let list = InstructionList::new(rows, &explained.profile);
        let path = match find(&list, &explained.profile) {
            Ok(Some(path)) => path,
            Ok(None) => {
                let what = "it has no times, so no path can be found; `gpuflame info` shows its contents";
                return Err(Error::new(ErrorKind::Format, format!("{input}: {what}")));
            }
            Err(worst) => return Err(contradiction(input, &list, &explained.profile, &worst)),
        };
        Ok(Self { explained, list, path, history: HostHistory::default() })
    }

    /// Returns the start and end in ns of step `step`, counted from 1, within the path's time range.
    ///
    /// # Errors
    /// Returns `Format` if the path contains no such step.
    pub(super) fn step(&self, input: &Source, step: usize) -> Result<(u64, u64)> {
        let whole = self.path.window();
        let spans = self.explained.facts.steps.spans();
        let span = step.checked_sub(1).and_then(|at| spans.get(at)).copied();
        let cut = span.map(|(from, to)| (from.clamp(whole.0, whole.1), to.clamp(whole.0, whole.1)));
        cut.filter(|(from, to)| from < to).ok_or_else(|| {
            let what = match spans.len() {
                0 => "it has no steps; name a part by --from and --to".to_owned(),
                count => format!("step {step} has no part of the path; there are {count} steps"),
            };
            Error::new(ErrorKind::Format, format!("{input}: {what}"))
        })
    }

    /// Returns the start and end in ns of the time range between `from` and `to`. `from` and `to` count from the start
    /// of the path.
    ///
    /// # Errors
    /// Returns `Setting` if the time range is empty.
    pub(super) fn stretch(&self, from: Option<i64>, to: Option<i64>) -> Result<(u64, u64)> {
        stretch_of(self.path.window(), from, to)
    }

    /// Lists the device and stream of all GPU work, for messages: `0:7, 0:20`.
    pub(super) fn list_streams(&self) -> String {
        let instructions = (0..self.list.len() as u32).map(|number| self.list.get(number));
        let streams: std::collections::BTreeSet<_> =
            instructions.filter_map(|one| Some((one.device?.0, one.stream?.0))).collect();
        let words: Vec<String> =
            streams.iter().map(|(device, stream)| format!("{device}:{stream}")).collect();
        words.join(", ")
    }

    pub(super) fn names(&self) -> PathNames<'_> {
        PathNames { path: &self.path, list: &self.list, profile: &self.explained.profile }
    }
}

/// Returns the start and end in ns of the time range between `from` and `to`. `from` and `to` count from the start of
/// the path `whole`.
///
/// # Errors
/// Returns `Setting` if the time range is empty.
pub(super) fn stretch_of(whole: (u64, u64), from: Option<i64>, to: Option<i64>) -> Result<(u64, u64)> {
    let moment = |offset: Option<i64>, default| {
        offset.map_or(default, |offset| whole.0.saturating_add(offset.unsigned_abs()).min(whole.1))
    };
    let (from, to) = (moment(from, whole.0), moment(to, whole.1));
    if from >= to {
        let length = format_nanos(whole.1 - whole.0);
        return Err(usage_error(format!(
            "no time is left between --from and --to; the path is {length} long"
        )));
    }
    Ok((from, to))
}

/// Returns the error for two instructions that contradict each other. The error's message names both instructions.
fn contradiction(input: &Source, list: &InstructionList, profile: &Profile, worst: &Contradiction) -> Error {
    let name = |number: u32| {
        let instruction = list.get(number);
        let name = match instruction.detail {
            InstructionDetail::Work { activity, .. } => gpuflame_export::work_name(profile, activity.work()),
            _ => instruction.kind.word().into(),
        };
        format!("{name} (correlation id {})", instruction.correlation.0)
    };
    let what = format!(
        "the records contradict each other, so there is no critical path: {} is {} before {}, for which it had to wait \
         ({}); `gpuflame check` lists what is wrong with the times",
        name(worst.effect),
        format_nanos(worst.nanos),
        name(worst.cause),
        worst.kind.word()
    );
    Error::new(ErrorKind::Format, format!("{input}: {what}"))
}

/// Prints how many activity records the path leaves out, and the causes of unexplained time.
pub(super) fn print_remarks(input: &Source, found: &FoundPath, console: Console) {
    let name = input.to_string();
    print_left_out(&name, found, console);
    print_unexplained(&name, found.path.parts(), console);
}

/// Prints how many records the path leaves out. `input` is the name of the run in the message.
pub(super) fn print_left_out(input: &str, found: &FoundPath, console: Console) {
    if found.list.unclear_waits() > 0 {
        let count = group_digits(found.list.unclear_waits());
        console.remark(format!(
            "{input}: {count} waits of default streams for events are left out because it is not recorded on which GPU they were"
        ));
    }
    let (contradicted, worst) = found.path.contradicted();
    if let Some(worst) = worst {
        let names = found.names();
        console.remark(format!(
            "{input}: {} dependencies are left out because the effect comes before its cause; the worst is {} by {} ({})",
            group_digits(contradicted),
            names.instruction(worst.effect),
            format_nanos(worst.nanos),
            worst.kind.word()
        ));
    }
    if found.path.untimed() > 0 {
        let count = group_digits(found.path.untimed());
        console.remark(format!("{input}: {count} pieces of work have no times and cannot be on the path"));
    }
}

/// Prints the causes of the time on the path that no record explains. `input` is the name of the run in the message.
pub(super) fn print_unexplained(input: &str, parts: &[PathPart], console: Console) {
    let unexplained = parts.iter().filter_map(|part| match part.class {
        PathClass::Unexplained(why) => Some((why, part.end - part.start)),
        _ => None,
    });
    let mut sums: BTreeMap<_, u64> = BTreeMap::new();
    unexplained.for_each(|(why, nanos)| *sums.entry(why).or_default() += nanos);
    for (why, nanos) in sums {
        let time = format_nanos(nanos);
        console.remark(format!("{input}: {time} of the path are unexplained: {}", why_words(why)));
    }
}

//! Reads the values of a run that are needed to compare several runs. The values are the sums for each kernel, stack
//! and idle cause, and the facts that determine whether the runs can be compared.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::console::Console;
use super::explain::{Explained, explain_sums};
use super::input::Source;
use super::name_flags::NameFlags;
use super::table_output::group_digits;
use gpuflame_export::{clean_frame, folded_names, work_name};
use gpuflame_model::error::{ErrorKind, Result};
use gpuflame_model::profile::views::{GPU, IDLE, idle_word};
use gpuflame_model::profile::{BusyIdle, DeviceTime, Profile, RootMark, Sample, add_to, saturating_sum};
use gpuflame_model::record::Provenance;

/// Sums in ns, keyed by name.
pub(super) type Sums = BTreeMap<String, u64>;

/// Busy and idle time in ns, summed over all GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Times {
    pub(super) busy: u64,
    pub(super) wall: u64,
    /// Idle time in ns, keyed by cause.
    pub(super) idle: Sums,
}

/// Values and facts of a run that are needed to compare it with other runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RunValues {
    pub(super) source: String,
    /// Reasons why the run cannot be compared.
    pub(super) problems: Vec<String>,
    pub(super) program: String,
    /// Models of the machine's GPUs, sorted by name. This list is empty for traces, because traces do not contain the
    /// models of GPUs.
    pub(super) gpus: Vec<String>,
    /// Number of GPUs that ran at least one kernel, copy or fill.
    pub(super) used_gpus: u64,
    /// Start of the recording, in ISO 8601; empty if unknown.
    pub(super) start: String,
    pub(super) steps: u64,
    /// Mean duration of a step in ns; 0 if it is unknown.
    pub(super) step_ns: u64,
    /// Number of GPU operations (kernels, copies and fills) in the run.
    pub(super) operations: u64,
    /// Sum of the durations of all GPU operations in ns.
    pub(super) work_ns: u64,
    /// Name of the steady part of the run; empty if the run has no steady part.
    pub(super) steady_part: String,
    /// Times of the steady part, or of the whole run if there is no steady part.
    pub(super) steady: Times,
    /// Busy and idle times of the whole run.
    pub(super) whole: Times,
    /// Reason why idle time is unknown; empty if it is known.
    pub(super) idle_doubt: String,
    pub(super) kernels: Sums,
    pub(super) stacks: Sums,
}

impl RunValues {
    /// Reads a run. If the run has no usable contents, `problems` contains the reasons.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or read.
    pub(super) fn read(source: &Source, flags: &NameFlags, console: Console) -> Result<Self> {
        let mut values = Self { source: source.to_string(), ..Self::default() };
        let explained = explain_sums(source, flags.read_options(), console);
        let explained =
            explained.and_then(|explained| explained.facts.require_work(source).map(|()| explained));
        let explained = match explained {
            Ok(explained) => explained,
            Err(error) if error.kind() == ErrorKind::Format => {
                values.problems.push(error.to_string());
                return Ok(values);
            }
            Err(error) => return Err(error),
        };
        values.fill(&explained, flags);
        values.problems = problems(source, &explained, values.work_ns);
        Ok(values)
    }

    fn fill(&mut self, explained: &Explained, flags: &NameFlags) {
        let profile = &explained.profile;
        for work in profile.works() {
            let name = work_name(profile, work.work).into_owned();
            add_to(self.kernels.entry(name).or_default(), work.weight.nanos);
            add_to(&mut self.operations, work.weight.count);
            add_to(&mut self.work_ns, work.weight.nanos);
        }
        for sample in profile.samples(&GPU).iter().filter(|sample| sample.amount() > 0) {
            let frames = folded_names(profile, sample.site, flags.names());
            let frames: Vec<_> = frames.iter().map(|name| clean_frame(name)).collect();
            add_to(self.stacks.entry(frames.join(";")).or_default(), sample.amount());
        }
        let facts =
            |wanted| profile.provenance().filter(move |(what, _)| *what == wanted).map(|(_, text)| text);
        self.program = profile.process().map(|(_, program)| program.to_owned()).unwrap_or_default();
        // The bus address in parentheses at the end of the model is removed, because it differs between equal machines.
        let model = |text: &str| text.rsplit_once(" (").map_or(text, |(model, _)| model).to_owned();
        self.gpus = facts(Provenance::GPU).map(model).collect();
        self.gpus.sort();
        self.start = facts(Provenance::START).next().unwrap_or_default().to_owned();
        self.used_gpus = profile.devices().len() as u64;
        self.steps = profile.steps().count;
        let kinds = &profile.step_series().kinds;
        let steps = saturating_sum(kinds.iter().map(|kind| kind.count));
        self.step_ns = saturating_sum(kinds.iter().map(|kind| kind.nanos)) / steps.max(1);
        self.steady_part = profile.steady().map(|part| part.rule.words().to_owned()).unwrap_or_default();
        self.idle_doubt = profile.idle_doubt().unwrap_or_default();
        let is_steady =
            |sample: &Sample| !matches!(sample.root_mark, Some(RootMark::StartUp | RootMark::Shutdown));
        self.steady = times(profile, DeviceTime::steady, is_steady);
        self.whole = times(profile, |time| BusyIdle { busy: time.busy, idle: time.idle }, |_| true);
    }

    /// Returns the run's values except `kernels` and `stacks`, for a baseline file.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "source": self.source, "program": self.program, "gpus": self.gpus, "used_gpus": self.used_gpus,
            "start": self.start, "steps": self.steps, "step_ns": self.step_ns, "operations": self.operations,
            "work_ns": self.work_ns, "steady_part": self.steady_part, "idle_doubt": self.idle_doubt,
            "steady": self.steady.to_json(), "whole": self.whole.to_json(),
        })
    }

    /// Reads the values that [`RunValues::to_json`] wrote. Returns `None` if a value is missing or has another type.
    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let text = |key: &str| Some(value.get(key)?.as_str()?.to_owned());
        let number = |key: &str| value.get(key)?.as_u64();
        let gpus = value.get("gpus")?.as_array()?.iter();
        Some(Self {
            source: text("source")?,
            problems: Vec::new(),
            program: text("program")?,
            gpus: gpus.map(|gpu| gpu.as_str().map(str::to_owned)).collect::<Option<_>>()?,
            used_gpus: number("used_gpus")?,
            start: text("start")?,
            steps: number("steps")?,
            step_ns: number("step_ns")?,
            operations: number("operations")?,
            work_ns: number("work_ns")?,
            steady_part: text("steady_part")?,
            steady: Times::from_json(value.get("steady")?)?,
            whole: Times::from_json(value.get("whole")?)?,
            idle_doubt: text("idle_doubt")?,
            kernels: Sums::new(),
            stacks: Sums::new(),
        })
    }
}

impl Times {
    fn to_json(&self) -> Value {
        let idle: Map<String, Value> =
            self.idle.iter().map(|(cause, nanos)| (cause.clone(), (*nanos).into())).collect();
        json!({ "busy_ns": self.busy, "wall_ns": self.wall, "idle_ns": idle })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let causes = value.get("idle_ns")?.as_object()?.iter();
        Some(Self {
            busy: value.get("busy_ns")?.as_u64()?,
            wall: value.get("wall_ns")?.as_u64()?,
            idle: causes
                .map(|(cause, nanos)| Some((cause.clone(), nanos.as_u64()?)))
                .collect::<Option<_>>()?,
        })
    }
}

fn times(
    profile: &Profile,
    part: impl Fn(&DeviceTime) -> BusyIdle,
    is_in_part: impl Fn(&Sample) -> bool,
) -> Times {
    let mut idle = Sums::new();
    for sample in profile.samples(&IDLE).iter().filter(|sample| is_in_part(sample)) {
        add_to(idle.entry(idle_word(sample).to_owned()).or_default(), sample.amount());
    }
    Times {
        busy: saturating_sum(profile.times().iter().map(|time| part(time).busy)),
        wall: saturating_sum(profile.times().iter().map(|time| part(time).window())),
        idle,
    }
}

/// Lists the reasons why the sums of a run do not cover the whole run.
fn problems(source: &Source, explained: &Explained, work_ns: u64) -> Vec<String> {
    let Explained { profile, facts, .. } = explained;
    let mut problems = Vec::new();
    let mut add = |what: String| problems.push(format!("{source}: {what}"));
    if facts.damaged > 0 {
        add(format!("{} damaged records", group_digits(facts.damaged)));
    }
    if facts.writer_state.is_some() {
        add("the recording breaks off; copy the complete file, or record again".to_owned());
    }
    if facts.linked.as_ref().is_some_and(|linked| linked.counts.truncated_at.is_some()) {
        add("the trace is truncated; copy the complete file, or record again".to_owned());
    }
    if work_ns == 0 {
        add("no GPU work".to_owned());
    }
    let coverage = profile.coverage().all;
    if !coverage.is_sufficient() {
        add(format!(
            "{} of {} launches have no GPU work, so sums are incomplete",
            group_digits(coverage.uncovered),
            group_digits(coverage.launches)
        ));
    }
    problems
}

//! Defines the command-line flags for the changes that `gpuflame what-if` replays.

use std::collections::HashMap;

use clap::Args;
use regex::Regex;

use super::console::usage_error;
use super::found_path::FoundPath;
use super::input::Source;
use super::table_output::group_digits;
use gpuflame_explain::communication::is_communication_kernel;
use gpuflame_export::compose::{call, stack_names};
use gpuflame_export::{short_kernels, work_name};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::{Profile, SampleSite, format_nanos};
use gpuflame_model::record::{ContextId, CopyKind, IdMap, Work};
use gpuflame_offline::analysis::{CriticalPath, Edit, InstructionDetail, InstructionKind, Selection};

/// Maximum number of names that a message lists.
const MAX_NAMES: usize = 5;
/// Maximum factor by which a change may multiply a duration. A larger factor is probably a typing error.
const MAX_FACTOR: f64 = 1e6;
/// Maximum number of additional streams.
const MAX_STREAMS: u8 = 64;

/// Changes, which are replayed together.
#[derive(Debug, Args)]
#[command(next_help_heading = "Changes (replayed together)")]
pub(super) struct EditFlags {
    /// Multiply the durations of kernels, copies and fills by the factor if their names match: with `gemm=0.5`, they
    /// are twice as fast.
    #[arg(long, value_name = "REGEX=FACTOR", value_parser = parse_scale)]
    scale: Vec<Scale>,
    /// Multiply the duration of GPU work by the factor if its launching stack matches. Stacks are written as in folded
    /// files: `main;train;forward`.
    #[arg(long, value_name = "REGEX=FACTOR", value_parser = parse_scale)]
    scale_stack: Vec<Scale>,
    /// Leave out work whose name matches. The launch of the omitted work is left out too, unless the launch also
    /// submits other work.
    #[arg(long, value_name = "REGEX", value_parser = parse_names)]
    remove: Vec<Regex>,
    /// Duration in ns of each call that launches work and does not wait.
    #[arg(long, value_name = "NS")]
    launch_ns: Option<u64>,
    /// Replace the launches between two waits of a thread by one launch of a graph, and save the time between the
    /// launches. Each step has its own graphs.
    #[arg(long)]
    graphs: bool,
    /// Spread the work of every stream over N further streams in turn. With a name, only matching work moves. Other
    /// work waits for moved work only at the next event or wait on the stream from which the work was moved.
    #[arg(long, value_name = "+N[:REGEX]", value_parser = parse_streams)]
    streams: Option<Streams>,
    /// Remove the waits of calls for GPU work. Calls that only wait are left out. With `=REGEX`: only calls whose stack
    /// matches.
    #[arg(long, value_name = "REGEX", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = parse_names)]
    no_sync: Option<Regex>,
    /// Remove the waits of streams for communication between GPUs.
    #[arg(long)]
    overlap_comm: bool,
    /// Make all kernels faster by this factor, but not copies and fills.
    #[arg(long, value_name = "F", value_parser = parse_factor)]
    gpu_speed: Option<f64>,
}

/// A pattern of names, and the factor by which the duration of matching work is multiplied.
#[derive(Clone, Debug)]
struct Scale {
    names: Regex,
    factor: f64,
}

fn wrong<T>(want: &str) -> Result<T> {
    Err(usage_error(format!("want {want}")))
}

fn parse_factor(text: &str) -> Result<f64> {
    match text.trim().parse::<f64>() {
        Ok(factor) if factor > 0.0 && factor <= MAX_FACTOR => Ok(factor),
        _ => wrong("a number above 0, such as 0.5"),
    }
}

fn parse_names(text: &str) -> Result<Regex> {
    Regex::new(text).map_err(|error| {
        // The regex parser's message has several lines. The reason for the error is in the last line of the message.
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
        usage_error(format!("not a regular expression: {reason}"))
    })
}

fn parse_scale(text: &str) -> Result<Scale> {
    match text.rsplit_once('=') {
        Some((names, factor)) => Ok(Scale { names: parse_names(names)?, factor: parse_factor(factor)? }),
        None => wrong("a name and a factor, such as gemm=0.5"),
    }
}

/// Number of additional streams, and the names of the GPU work that moves to them.
#[derive(Clone, Debug)]
struct Streams {
    count: u8,
    names: Option<Regex>,
}

fn parse_streams(text: &str) -> Result<Streams> {
    let (count, names) = match text.split_once(':') {
        Some((count, names)) => (count, Some(parse_names(names)?)),
        None => (text, None),
    };
    match count.strip_prefix('+').and_then(|count| count.parse().ok()) {
        Some(count) if (1..=MAX_STREAMS).contains(&count) => Ok(Streams { count, names }),
        _ => wrong("the number of further streams, from +1 to +64"),
    }
}

/// A change to the run, with the GPU work and the calls that it affects.
pub(super) struct Change {
    pub(super) edit: Edit,
    /// Description of the change in words.
    pub(super) words: String,
    /// Number of kernels, copies, fills or calls that the change affects; `None` if the change has no such number.
    pub(super) count: Option<usize>,
    /// Condition under which the prediction is valid.
    pub(super) assumption: &'static str,
}

const SAME_WORK: &str = "the program makes the same calls in the same order";
const NOT_NEEDED: &str = "nothing needs the results of the removed work";
const CAPTURABLE: &str = "the launches can be captured, with nothing else between them";
const INDEPENDENT: &str = "moved work is independent until the next event or wait";
const NO_RACE: &str = "the host reads no result too early";
const OVERLAP: &str = "nothing needs the results before the host's next wait";

impl EditFlags {
    /// Whether the command line contains no change.
    pub(super) fn is_empty(&self) -> bool {
        self.scale.is_empty()
            && self.scale_stack.is_empty()
            && self.remove.is_empty()
            && self.launch_ns.is_none()
            && !self.graphs
            && self.streams.is_none()
            && self.no_sync.is_none()
            && !self.overlap_comm
            && self.gpu_speed.is_none()
    }

    /// Finds the GPU work and the calls that each change affects.
    ///
    /// # Errors
    /// Returns `Format` if a change affects neither GPU work nor calls.
    pub(super) fn resolve(&self, input: &Source, found: &FoundPath) -> Result<Vec<Change>> {
        let names = WorkNames { input, found };
        let mut changes = Vec::new();
        for Scale { names: regex, factor } in &self.scale {
            let work = names.named(regex)?;
            let words = format!("work named `{regex}` takes {factor} times as long");
            changes
                .push(Change::of_work(work, SAME_WORK, words, |work| Edit::Scale { work, factor: *factor }));
        }
        for Scale { names: regex, factor } in &self.scale_stack {
            let work = names.launched_under(regex)?;
            let words = format!("work launched under `{regex}` takes {factor} times as long");
            changes
                .push(Change::of_work(work, SAME_WORK, words, |work| Edit::Scale { work, factor: *factor }));
        }
        if let Some(factor) = self.gpu_speed {
            let is_kernel = |number: u32| {
                matches!(found.list.get(number).kind, InstructionKind::Kernel | InstructionKind::Graph)
            };
            let work = names.selected(is_kernel, || "it has no kernels".to_owned())?;
            let words = format!("kernels are {factor} times as fast");
            changes.push(Change::of_work(work, SAME_WORK, words, |work| Edit::Scale {
                work,
                factor: 1.0 / factor,
            }));
        }
        for regex in &self.remove {
            let work = names.named(regex)?;
            let words = format!("work named `{regex}` is left out");
            changes.push(Change::of_work(work, NOT_NEEDED, words, |work| Edit::Remove { work }));
        }
        if let Some(nanos) = self.launch_ns {
            let words = format!("each launch takes {}", format_nanos(nanos));
            changes.push(Change {
                edit: Edit::LaunchNanos(nanos),
                words,
                count: None,
                assumption: SAME_WORK,
            });
        }
        if let Some(regex) = &self.no_sync {
            changes.push(no_sync(&names, regex)?);
        }
        if let Some(Streams { count, names: regex }) = &self.streams {
            changes.push(names.streams(*count, regex.as_ref())?);
        }
        if self.overlap_comm {
            changes.extend(names.overlapped_communication()?);
        }
        if self.graphs {
            let bounds = found.explained.facts.steps.spans().into_iter().flat_map(|(from, to)| [from, to]);
            let mut bounds: Vec<u64> = bounds.collect();
            bounds.sort_unstable();
            let words = "launches between two waits become one launch of a graph".to_owned();
            changes.push(Change {
                edit: Edit::Graphs { bounds },
                words,
                count: None,
                assumption: CAPTURABLE,
            });
        }
        Ok(changes)
    }
}

impl Change {
    fn of_work(
        work: Selection,
        assumption: &'static str,
        words: String,
        edit: impl FnOnce(Selection) -> Edit,
    ) -> Self {
        Self { count: Some(work.count()), edit: edit(work), words, assumption }
    }
}

/// Selects the calls that wait for GPU work and whose launch context `is_selected` accepts.
pub(super) fn waiting_calls(path: &CriticalPath, is_selected: impl Fn(ContextId) -> bool) -> Selection {
    let (calls, waiting) = (path.calls(), path.waiting_calls());
    let mut known: HashMap<ContextId, bool> = HashMap::new();
    Selection::new(calls.len(), |at| {
        let context = calls[at as usize].context;
        waiting.contains(&at) && *known.entry(context).or_insert_with(|| is_selected(context))
    })
}

/// Selects the calls that wait for GPU work and whose stack matches `regex`. For the comparison with `regex`, stacks
/// are written as in folded files.
pub(super) fn waiting_calls_under(path: &CriticalPath, profile: &Profile, regex: &Regex) -> Selection {
    waiting_calls(path, |context| regex.is_match(&folded_stack(profile, context)))
}

/// Returns the stack of a call as a folded line; empty if the stack is unknown.
fn folded_stack(profile: &Profile, context: ContextId) -> String {
    if profile.context(context).is_none() {
        return String::new();
    }
    let mut frames = stack_names(profile, SampleSite::Context(context));
    let own = call(profile, context);
    if frames.last().is_none_or(|last| last != own) {
        frames.push(own.into());
    }
    frames.join(";")
}

fn no_sync(names: &WorkNames<'_>, regex: &Regex) -> Result<Change> {
    let waiting = names.found.path.waiting_calls();
    let selection = waiting_calls_under(&names.found.path, &names.found.explained.profile, regex);
    if selection.count() == 0 {
        let what = match (regex.as_str(), waiting.len()) {
            ("", _) | (_, 0) => "no call is recorded as waiting for GPU work".to_owned(),
            (regex, count) => format!(
                "none of the {} calls that wait has a stack that matches `{regex}`",
                group_digits(count as u64)
            ),
        };
        return Err(names.error(&what));
    }
    let which = if regex.as_str().is_empty() { String::new() } else { format!(" under `{regex}`") };
    let words = format!("calls{which} do not wait");
    Ok(Change {
        count: Some(selection.count()),
        edit: Edit::NoWaits { calls: selection },
        words,
        assumption: NO_RACE,
    })
}

/// Finds GPU work by name or by launching stack.
struct WorkNames<'a> {
    input: &'a Source,
    found: &'a FoundPath,
}

impl WorkNames<'_> {
    fn error(&self, what: &str) -> Error {
        Error::new(ErrorKind::Format, format!("{}: {what}", self.input))
    }

    /// Selects the GPU work for which `is_selected` returns true.
    fn selected(
        &self,
        mut is_selected: impl FnMut(u32) -> bool,
        otherwise: impl FnOnce() -> String,
    ) -> Result<Selection> {
        let list = &self.found.list;
        let selection =
            Selection::new(list.len(), |number| list.activity(number).is_some() && is_selected(number));
        match selection.count() {
            0 => Err(self.error(&otherwise())),
            _ => Ok(selection),
        }
    }

    fn named(&self, regex: &Regex) -> Result<Selection> {
        let mut matches: IdMap<Work, bool> = IdMap::default();
        let names = self.found.names();
        let is_match = |number: u32| {
            let work = self.found.list.activity(number).map(|activity| activity.work());
            work.is_some_and(|work| {
                *matches.entry(work).or_insert_with(|| regex.is_match(&names.instruction(number)))
            })
        };
        self.selected(is_match, || {
            format!("no work has a name that matches `{regex}`; there are {}", self.longest())
        })
    }

    /// Returns the names of the GPU work with the longest total time, for messages.
    fn longest(&self) -> String {
        let mut sums: HashMap<String, u64> = HashMap::new();
        for number in 0..self.found.list.len() as u32 {
            let instruction = self.found.list.get(number);
            if let (InstructionDetail::Work { .. }, Some((start, end))) =
                (instruction.detail, instruction.ran)
            {
                *sums.entry(self.found.names().instruction(number).into_owned()).or_default() +=
                    end.0 - start.0;
            }
        }
        let mut sums: Vec<(String, u64)> = sums.into_iter().collect();
        sums.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let more = sums.len().saturating_sub(MAX_NAMES);
        let shown: Vec<String> = sums.into_iter().take(MAX_NAMES).map(|(name, _)| name).collect();
        let short = short_kernels(shown.iter().map(String::as_str));
        let short = |name: &String| short.get(name.as_str()).unwrap_or(name).clone();
        let names: Vec<String> = shown.iter().map(|name| format!("`{}`", short(name))).collect();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}", names.join(", "))
    }

    fn launched_under(&self, regex: &Regex) -> Result<Selection> {
        let mut matches: HashMap<ContextId, bool> = HashMap::new();
        let is_match = |number: u32| match self.found.list.get(number).call {
            Some(issued) => *matches.entry(issued.context).or_insert_with(|| {
                regex.is_match(&folded_stack(&self.found.explained.profile, issued.context))
            }),
            None => false,
        };
        let otherwise = || {
            format!(
                "no work is launched under a stack that matches `{regex}`; `gpuflame top --by stack` lists the stacks"
            )
        };
        self.selected(is_match, otherwise)
    }

    /// Returns the change that spreads GPU work over `count` additional streams.
    fn streams(&self, count: u8, regex: Option<&Regex>) -> Result<Change> {
        let work = match regex {
            Some(regex) => self.named(regex)?,
            None => self.selected(|_| true, || "it has no GPU work".to_owned())?,
        };
        let mut turn: HashMap<_, u8> = HashMap::new();
        let list = &self.found.list;
        let lane = |number: u32| {
            let instruction = list.get(number);
            if !work.has(number) {
                return 0;
            }
            let next = turn.entry((instruction.device, instruction.context, instruction.stream)).or_default();
            // If GPU work is selected by name, all selected work moves away from its original stream. If no name is
            // given, a part of the GPU work stays on its original stream.
            let lanes = if regex.is_some() { count } else { count + 1 };
            let lane = *next % lanes + u8::from(regex.is_some());
            *next = (*next + 1) % lanes;
            lane
        };
        let lanes: Vec<u8> = (0..list.len() as u32).map(lane).collect();
        let moved = lanes.iter().filter(|lane| **lane != 0).count();
        let which = regex.map_or_else(|| "work".to_owned(), |regex| format!("work named `{regex}`"));
        let words =
            format!("{which} moves to {count} further {}", if count == 1 { "stream" } else { "streams" });
        Ok(Change { edit: Edit::Streams { lanes }, words, count: Some(moved), assumption: INDEPENDENT })
    }

    /// Returns the changes that remove the waits of streams for work that moves data between GPUs.
    fn overlapped_communication(&self) -> Result<[Change; 2]> {
        let profile = &self.found.explained.profile;
        let is_communication = |number: u32| match self.found.list.get(number).detail {
            InstructionDetail::Work { activity, .. } => match activity.work() {
                Work::Kernel(_) => is_communication_kernel(&work_name(profile, activity.work())),
                Work::Copy(kind) => kind == CopyKind::PTOP,
                _ => false,
            },
            _ => false,
        };
        let otherwise = || "it has no kernel that communicates and no copy between GPUs".to_owned();
        let work = self.selected(is_communication, otherwise)?;
        let lanes = (0..self.found.list.len() as u32).map(|number| u8::from(work.has(number))).collect();
        let change = |edit, words: &str| Change {
            edit,
            words: words.to_owned(),
            count: Some(work.count()),
            assumption: OVERLAP,
        };
        Ok([
            change(Edit::Streams { lanes }, "communication runs on a stream of its own"),
            change(Edit::NoEvents { work: work.clone() }, "no stream waits for communication"),
        ])
    }
}

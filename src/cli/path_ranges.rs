//! Restricts a critical path to ranges that the program named, such as NVTX ranges.
//!
//! A trace contains the start and end of each range. A recording contains ranges only as frames of stacks. In a
//! recording, an occurrence of a range is a sequence of consecutive calls of one thread whose stacks contain the range.
//! An occurrence lasts from the start of its first call to the end of its last call.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use regex::Regex;

use super::console::Console;
use super::found_path::FoundPath;
use super::input::Source;
use super::near_misses::{near_misses, quoted};
use super::table_output::{Cell, Table, group_digits};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{ContextId, FrameKind, LabelKind, ThreadId};
use gpuflame_offline::analysis::{HostCall, PathClass, PathPart};

/// Maximum number of range names that a message lists.
const MAX_NAMES: usize = 10;

/// Text that selects ranges: an exact name, or a regular expression that the names must match.
#[derive(Clone, Debug)]
pub(super) struct RangeName {
    text: String,
    /// The compiled regular expression; `None` if the text is not a valid regular expression. A text that is not a
    /// regular expression can only be an exact name.
    regex: Option<Regex>,
}

impl From<&str> for RangeName {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), regex: Regex::new(text).ok() }
    }
}

impl RangeName {
    /// Selects the names that equal the text. If no name equals the text, selects the names that match the text as a
    /// regular expression.
    fn choose<'a>(&self, names: impl Iterator<Item = &'a Arc<str>> + Clone) -> Vec<Arc<str>> {
        let equal: Vec<_> = names.clone().filter(|name| ***name == *self.text).cloned().collect();
        let matches = |name: &&Arc<str>| self.regex.as_ref().is_some_and(|regex| regex.is_match(name));
        if equal.is_empty() { names.filter(matches).cloned().collect() } else { equal }
    }
}

/// Occurrence of a range, clipped to the time range of the path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Occurrence {
    start: u64,
    end: u64,
    thread: ThreadId,
    name: Arc<str>,
}

/// All occurrences of the selected ranges.
pub(super) struct PathRanges {
    /// Occurrences of the ranges, sorted by start.
    occurrences: Vec<Occurrence>,
    /// Time ranges that the occurrences cover, in chronological order. The time ranges do not overlap.
    stretches: Vec<(u64, u64)>,
    /// Whether the input file contains the starts and ends of ranges.
    is_timed: bool,
}

impl PathRanges {
    /// Finds the occurrences of the ranges that `name` selects.
    ///
    /// # Errors
    /// Returns `Format` if no range has this name, or if no such range overlaps the path.
    pub(super) fn find(
        name: &RangeName,
        input: &Source,
        found: &FoundPath,
        console: Console,
    ) -> Result<Self> {
        let timed = timed_ranges(found);
        let called = ranges_of_calls(&found.explained.profile, found.path.calls());
        let mut names: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        timed.iter().for_each(|one| *names.entry(&one.name).or_default() += 1);
        for one in &called {
            names.entry(&one.name).or_insert(1);
        }
        let chosen = name.choose(names.keys().copied());
        if chosen.is_empty() {
            return Err(unknown_name(name, input, &names));
        }
        let with_name = |ranges: &[Occurrence]| -> Vec<Occurrence> {
            ranges.iter().filter(|range| chosen.contains(&range.name)).cloned().collect()
        };
        let mut occurrences = with_name(&timed);
        let is_timed = !occurrences.is_empty();
        if !is_timed {
            console.remark(format!(
                "{input}: has no times of ranges; each lasts from its first call to its last, and ranges without calls are \
                 missing"
            ));
            occurrences = with_name(&called);
        }
        let count = occurrences.len();
        let (from, to) = found.path.window();
        for range in &mut occurrences {
            (range.start, range.end) = (range.start.max(from), range.end.min(to));
        }
        occurrences.retain(|range| range.start < range.end);
        occurrences.sort_unstable();
        if occurrences.is_empty() {
            let what = format!("--range {}: {} outside the time of the path", name.text, ranges_are(count));
            return Err(Error::new(ErrorKind::Format, format!("{input}: {what}")));
        }
        let stretches = merged(&occurrences);
        Ok(Self { occurrences, stretches, is_timed })
    }

    /// Returns the time ranges that the occurrences cover, in chronological order. The time ranges do not overlap.
    pub(super) fn stretches(&self) -> &[(u64, u64)] {
        &self.stretches
    }

    /// Returns the line about the ranges that is printed above the tables.
    pub(super) fn line(&self, name: &RangeName) -> String {
        let (count, stretches) = (self.occurrences.len(), self.stretches.len());
        let word = if count == 1 { "range" } else { "ranges" };
        let overlap = match stretches < count {
            true => "; overlapping time counts once",
            false => "",
        };
        let span = if self.is_timed { "" } else { ", each from its first recorded call to its last" };
        format!("{} {word} `{}`{span}{overlap}", group_digits(count as u64), name.text)
    }

    /// Returns the table with one row per occurrence. A row contains the time on the path within the occurrence. The
    /// times in a row add up to the duration of the row's occurrence. `parts` are all parts of the path.
    pub(super) fn table(&self, parts: &[PathPart], zero: u64, most: usize) -> Table {
        let columns = &[
            "start_ns",
            "duration_ns",
            "gpu_ns",
            "host_ns",
            "latency_ns",
            "unexplained_ns",
            "thread",
            "range",
        ];
        let mut table = Table::new("ranges", columns);
        table.set_all_rows(self.occurrences.len());
        for one in self.occurrences.iter().take(most) {
            let sums = TimeSums::of(&parts_within(parts, (one.start, one.end)));
            let place = [Cell::Id(one.thread.0.into()), Cell::Text(one.name.to_string())];
            let start = Cell::Moment((one.start - zero) as i64);
            table.add_row([start].into_iter().chain(sums.cells()).chain(place));
        }
        let all: Vec<PathPart> =
            self.stretches.iter().flat_map(|stretch| parts_within(parts, *stretch)).collect();
        let total = [Cell::Blank].into_iter().chain(TimeSums::of(&all).cells());
        table.set_total(total.chain([Cell::Blank, "total".into()]));
        table
    }
}

/// Time on the path in ns, for each kind of time.
#[derive(Default)]
pub(super) struct TimeSums {
    gpu: u64,
    host: u64,
    latency: u64,
    unexplained: u64,
}

impl TimeSums {
    pub(super) fn of<'a>(parts: impl IntoIterator<Item = &'a PathPart>) -> Self {
        let mut sums = Self::default();
        for part in parts {
            let sum = match part.class {
                PathClass::Kernel | PathClass::Memory | PathClass::Graph => &mut sums.gpu,
                PathClass::Launch | PathClass::Gap => &mut sums.latency,
                PathClass::Unexplained(_) => &mut sums.unexplained,
                PathClass::HostFunction
                | PathClass::Call
                | PathClass::Return
                | PathClass::Host
                | PathClass::HandOff => &mut sums.host,
            };
            *sum += part.end - part.start;
        }
        sums
    }

    /// Returns the sum of the times of all kinds, in ns.
    pub(super) fn total(&self) -> u64 {
        self.gpu + self.host + self.latency + self.unexplained
    }

    /// Returns five cells: the sum of all times, and the time of each kind.
    pub(super) fn cells(&self) -> [Cell; 5] {
        [self.total(), self.gpu, self.host, self.latency, self.unexplained].map(Cell::Nanos)
    }
}

/// Returns the parts inside a window, clipped to the window. `parts` are sorted by time and do not overlap.
pub(super) fn parts_within(parts: &[PathPart], (from, to): (u64, u64)) -> Vec<PathPart> {
    let first = parts.partition_point(|part| part.end <= from);
    let inside = parts[first..].iter().take_while(|part| part.start < to);
    inside.map(|part| PathPart { start: part.start.max(from), end: part.end.min(to), ..*part }).collect()
}

fn ranges_are(count: usize) -> String {
    if count == 1 {
        "its only range is".to_owned()
    } else {
        format!("all {} ranges are", group_digits(count as u64))
    }
}

/// Merges occurrences that overlap into one time range. Occurrences that only touch each other stay separate. `ranges`
/// are sorted by start.
fn merged(ranges: &[Occurrence]) -> Vec<(u64, u64)> {
    let mut stretches: Vec<(u64, u64)> = Vec::new();
    for range in ranges {
        match stretches.last_mut() {
            Some(last) if range.start < last.1 => last.1 = last.1.max(range.end),
            _ => stretches.push((range.start, range.end)),
        }
    }
    stretches
}

/// Returns the ranges whose times the trace contains.
fn timed_ranges(found: &FoundPath) -> Vec<Occurrence> {
    let linked = found.explained.facts.linked.as_ref();
    let ranges = linked.map_or(&[][..], |linked| &linked.ranges).iter();
    ranges
        .map(|range| Occurrence {
            start: range.start.0,
            end: range.end.0,
            thread: range.thread,
            name: Arc::clone(&range.name),
        })
        .collect()
}

/// Returns the ranges that are frames in the stacks of calls. The start and end of such a range are derived from the
/// times of the calls.
fn ranges_of_calls(profile: &Profile, calls: &[HostCall]) -> Vec<Occurrence> {
    let mut names_of: HashMap<ContextId, Vec<Arc<str>>> = HashMap::new();
    let mut threads: BTreeMap<ThreadId, Vec<&HostCall>> = BTreeMap::new();
    for call in calls {
        threads.entry(call.thread).or_default().push(call);
    }
    let mut ranges = Vec::new();
    for (thread, mut calls) in threads {
        calls.sort_by_key(|call| call.begin);
        let mut open: BTreeMap<Arc<str>, (u64, u64)> = BTreeMap::new();
        let mut close = |name: Arc<str>, (start, end)| ranges.push(Occurrence { start, end, thread, name });
        for call in calls {
            let names =
                names_of.entry(call.context).or_insert_with(|| ranges_of_stack(profile, call.context));
            let ended = open.extract_if(.., |name, _| !names.contains(name));
            ended.for_each(|(name, span)| close(name, span));
            for name in names.iter() {
                let span = open.entry(Arc::clone(name)).or_insert((call.begin, call.end));
                span.1 = span.1.max(call.end);
            }
        }
        open.into_iter().for_each(|(name, span)| close(name, span));
    }
    ranges
}

/// Returns the names of the ranges in the stack of a launch context.
fn ranges_of_stack(profile: &Profile, context: ContextId) -> Vec<Arc<str>> {
    let Some(known) = profile.context(context) else { return Vec::new() };
    let frames = profile.stack(known.stack).map(|frame| profile.frames()[frame.index()]);
    let name = |frame: gpuflame_model::record::Frame| match frame.kind() {
        FrameKind::Range(id) => profile.range(id),
        FrameKind::Label(id) if frame.label_kind() == LabelKind::Range => profile.label(id),
        _ => None,
    };
    frames.filter_map(name).map(|name| bare_name(name).into()).collect()
}

/// Removes the prefix that marks a range frame: `[range]step` and `[range nccl]step` become `step`.
fn bare_name(frame: &str) -> &str {
    let marked = frame.strip_prefix("[range").and_then(|rest| rest.split_once(']'));
    marked.map_or(frame, |(_, name)| name)
}

/// Returns the error for a name that no range has. The error's message lists similar names first, then the most
/// frequent names.
fn unknown_name(name: &RangeName, input: &Source, names: &BTreeMap<&Arc<str>, usize>) -> Error {
    let text = &name.text;
    if names.is_empty() {
        let what = format!("--range {text}: it has no named ranges; name a part by --from and --to");
        return Error::new(ErrorKind::Format, format!("{input}: {what}"));
    }
    let mut listed = near_misses(text, names.keys().map(|name| &***name));
    let mut frequent: Vec<_> =
        names.iter().map(|(name, count)| (std::cmp::Reverse(*count), &***name)).collect();
    frequent.sort_unstable();
    let others = frequent.into_iter().map(|(_, name)| name).filter(|name| !listed.contains(name));
    let others: Vec<&str> = others.collect();
    listed.extend(others);
    let more = match listed.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        more => format!(" and {} more", group_digits(more as u64)),
    };
    listed.truncate(MAX_NAMES);
    let what = format!("--range {text}: no range has or matches this name; it has {}{more}", quoted(&listed));
    Error::new(ErrorKind::Format, format!("{input}: {what}"))
}

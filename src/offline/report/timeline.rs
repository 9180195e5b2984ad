//! The timeline of a run: the critical path, the slices of each stream and launching thread, and the idle time of each
//! GPU and cause. Short neighbouring slices are merged, so that the page stays small.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_export::json::comma;
use gpuflame_export::{cause_words, work_name};
use gpuflame_model::error::Result;
use gpuflame_model::profile::{Profile, add_to};
use gpuflame_model::record::{Activity, CorrelationId, DeviceId, IdMap, StreamId, Work};

use super::idle_gaps::{CAUSES, DeviceWork, idle_gaps};
use super::json::quoted;
use super::timeline_slices::{Slice, pack};
use super::tracks::ThreadNames;
use crate::analysis::{PathClass, PathPart};

/// Maximum number of activities that are stored. This number of activities takes 130 MB of memory.
const MAX_ACTIVITIES: usize = 2_000_000;
/// Maximum number of slices on a page, over all rows. Browsers read this number of slices in half a second.
const MAX_SLICES: usize = 2_000_000;
/// Maximum total size of the names, in bytes. If the names take more bytes than this, the names with the least total
/// time are replaced by [`OTHER_NAMES`].
const MAX_NAME_BYTES: usize = 1_000_000;
/// Name that replaces the names that exceed the maximum total size.
const OTHER_NAMES: &str = "[name left out]";
/// Maximum number of rows for streams and threads. If there are more rows than this, the rows with the least total time
/// are omitted.
const MAX_ROWS: usize = 64;

/// Collects activities and their launches from joined rows.
#[derive(Debug, Default)]
pub struct TimelineActivities {
    list: Vec<(Activity, Option<Launched>)>,
    /// GPU work that was launched outside all windows, as (GPU, start, end). GPU work from outside the windows is not
    /// drawn, but the GPU does not count as idle while this work runs.
    outside: Vec<(DeviceId, u64, u64)>,
    skipped: u64,
    /// Start of the earliest activity that was skipped. After this time, gpuflame does not know when a GPU was idle.
    skipped_from: Option<u64>,
}

impl TimelineActivities {
    fn is_full(&mut self, activity: &Activity) -> bool {
        let is_full = self.list.len() + self.outside.len() >= MAX_ACTIVITIES;
        if is_full {
            let start = activity.start.0;
            self.skipped_from = Some(self.skipped_from.map_or(start, |first| first.min(start)));
        }
        is_full
    }

    fn work(&self) -> BTreeMap<DeviceId, Vec<DeviceWork>> {
        let mut work: BTreeMap<DeviceId, Vec<DeviceWork>> = BTreeMap::new();
        for (activity, launched) in &self.list {
            let (start, end, launched) = (activity.start.0, activity.end.0, *launched);
            let it = DeviceWork { start, end, launched, is_outside: false };
            work.entry(activity.device).or_default().push(it);
        }
        for &(device, start, end) in &self.outside {
            let it = DeviceWork { start, end, launched: None, is_outside: true };
            work.entry(device).or_default().push(it);
        }
        work
    }

    /// Returns the time of the first launch or activity, and the end of the last activity.
    fn span(&self) -> Option<(u64, u64)> {
        let first = self.list.iter().map(|(activity, launched)| {
            launched.map_or(activity.start.0, |launched| launched.time.0.min(activity.start.0))
        });
        let last = self.list.iter().map(|(activity, _)| activity.end.0).max();
        Some((first.min()?, last?))
    }
}

impl Sink for TimelineActivities {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        if activity.duration().is_none() {
            return;
        }
        if self.is_full(activity) {
            self.skipped += 1;
            return;
        }
        let launched = match origin {
            Origin::Launch(launched) => Some(launched),
            Origin::Missing(_) => None,
        };
        self.list.push((*activity, launched));
    }

    fn pending(&mut self, _: CorrelationId, _: Launched) {}

    fn outside(&mut self, activity: &Activity, _: Launched) {
        if activity.duration().is_some() && !self.is_full(activity) {
            self.outside.push((activity.device, activity.start.0, activity.end.0));
        }
    }
}

/// Kind of a timeline row. Rows are drawn in the order of their kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RowKind {
    Path,
    Idle,
    Stream,
    Thread,
}

impl RowKind {
    fn word(self) -> &'static str {
        match self {
            Self::Path => "critical",
            Self::Idle => "idle",
            Self::Stream => "stream",
            Self::Thread => "thread",
        }
    }
}

/// A row of the timeline: the slices of a stream, of a thread, of a GPU's idle time or of the critical path, sorted by
/// start. For streams and threads, the name of a slice is an index into the timeline's names. For idle time and the
/// critical path, the name of a slice is an index into the causes of idle time or into the classes of the path.
#[derive(Debug)]
struct TimelineRow {
    label: String,
    kind: RowKind,
    slices: Vec<Slice>,
}

impl TimelineRow {
    fn nanos(&self) -> u64 {
        self.slices.iter().map(|slice| slice.nanos).fold(0, u64::saturating_add)
    }
}

/// Timeline of one or several runs. Each run has its own clock, so times in different runs must not be compared.
#[derive(Debug, Default)]
pub struct Timeline {
    rows: Vec<TimelineRow>,
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    skipped: u64,
    start: Option<u64>,
}

/// Data of a timeline for the page: a JSON object, and the slices compressed as zlib.
#[derive(Debug)]
pub struct TimelineData {
    /// Description of the rows as a JSON object.
    pub json: String,
    /// Slices, row by row; see `timeline_slices.rs`.
    pub slices: Vec<u8>,
}

impl Timeline {
    /// Adds the activities of a run, and the parts of its critical path if the path is known.
    pub fn add_run(
        &mut self,
        profile: &Profile,
        activities: &TimelineActivities,
        path: &[PathPart],
        rank: Option<u32>,
    ) {
        let Some((first, last)) = activities.span() else { return };
        let zero = path.first().map_or(first, |part| part.start.min(first));
        self.start.get_or_insert(zero);
        self.skipped += activities.skipped;
        let before = rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
        if !path.is_empty() {
            let slice =
                |part: &PathPart| Slice::new(part.start - zero, part.end - zero, class_number(part.class));
            let slices = path.iter().map(slice).collect();
            self.rows.push(TimelineRow { label: "critical path".to_owned(), kind: RowKind::Path, slices });
        }
        self.add_work(profile, activities, (zero, &before));
        let until = activities.skipped_from.unwrap_or(last).max(zero);
        for (DeviceId(device), gaps) in idle_gaps(activities.work(), profile, (zero, until)) {
            let label = format!("{before}GPU {device}, idle");
            let slices = gaps.into_iter().map(|gap| gap.earlier(zero)).collect();
            self.rows.push(TimelineRow { label, kind: RowKind::Idle, slices });
        }
    }

    /// Adds the rows of streams and launching threads.
    fn add_work(&mut self, profile: &Profile, activities: &TimelineActivities, (zero, before): (u64, &str)) {
        let threads = ThreadNames::new(profile);
        let mut streams: BTreeMap<(DeviceId, StreamId), Vec<Slice>> = BTreeMap::new();
        let mut callers: HashMap<_, Vec<Slice>> = HashMap::new();
        let mut names: IdMap<Work, u32> = IdMap::default();
        let launch_name = self.name("launching call".to_owned());
        for (activity, launched) in &activities.list {
            let work = activity.work();
            let name = *names.entry(work).or_insert_with(|| self.name(work_name(profile, work).into_owned()));
            let slice = Slice::new(activity.start.0 - zero, activity.end.0.saturating_sub(zero), name);
            streams.entry((activity.device, activity.stream)).or_default().push(slice);
            if let Some(launched) = launched {
                let thread = profile.context(launched.context).map(|it| it.thread);
                let start = launched.time.0 - zero;
                let slice = Slice::new(start, start + u64::from(launched.duration), launch_name);
                callers.entry(thread).or_default().push(slice);
            }
        }
        for ((DeviceId(device), StreamId(stream)), mut slices) in streams {
            slices.sort_by_key(|slice| (slice.start, slice.end));
            let label = format!("{before}GPU {device}, stream {stream}");
            self.rows.push(TimelineRow { label, kind: RowKind::Stream, slices });
        }
        // Threads with the same name share a row.
        let mut by_name: BTreeMap<String, Vec<Slice>> = BTreeMap::new();
        for (thread, slices) in callers {
            let name = thread.map_or_else(|| "thread".to_owned(), |thread| threads.name(thread));
            by_name.entry(name).or_default().extend(slices);
        }
        for (name, mut slices) in by_name {
            slices.sort_by_key(|slice| (slice.start, slice.end));
            // Several activities launched by the same call give only one slice.
            slices.dedup_by_key(|slice| slice.start);
            self.rows.push(TimelineRow { label: format!("{before}{name}"), kind: RowKind::Thread, slices });
        }
    }

    fn name(&mut self, name: String) -> u32 {
        let next = self.names.len() as u32;
        let number = *self.numbers.entry(name.clone()).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        number
    }

    /// Sorts the names by their total time, the longest first, and returns them as JSON strings with a total size of at
    /// most `max_bytes`. Updates the slices' name indexes to the sorted order.
    fn limit_names(&mut self, max_bytes: usize) -> Vec<String> {
        let mut nanos = vec![0_u64; self.names.len()];
        let is_named = |row: &&mut TimelineRow| matches!(row.kind, RowKind::Stream | RowKind::Thread);
        for row in self.rows.iter_mut().filter(is_named) {
            row.slices.iter().for_each(|slice| add_to(&mut nanos[slice.name() as usize], slice.nanos));
        }
        let mut order: Vec<usize> = (0..nanos.len()).collect();
        order.sort_by_key(|&name| std::cmp::Reverse(nanos[name]));
        let (mut names, mut numbers, mut bytes) = (Vec::new(), vec![0_u32; nanos.len()], 0);
        for name in order {
            let text = quoted(&self.names[name]);
            bytes += text.len();
            if bytes <= max_bytes {
                names.push(text);
            } else if names.last().is_none_or(|last| *last != quoted(OTHER_NAMES)) {
                names.push(quoted(OTHER_NAMES));
            }
            numbers[name] = names.len() as u32 - 1;
        }
        for row in self.rows.iter_mut().filter(is_named) {
            row.slices.iter_mut().for_each(|slice| slice.rename(&numbers));
        }
        names
    }

    /// Whether the timeline contains no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the start of the first run, in ns since 1970.
    pub fn start(&self) -> Option<u64> {
        self.start
    }

    /// Returns the timeline as data for a page, with as many slices as fit into `max_bytes`.
    ///
    /// # Errors
    /// Does not fail in practice, because the compressor writes to memory.
    pub fn data(&mut self, max_bytes: usize) -> Result<TimelineData> {
        let names = self.limit_names(MAX_NAME_BYTES);
        let is_work = |row: &&TimelineRow| matches!(row.kind, RowKind::Stream | RowKind::Thread);
        let mut kept: Vec<&TimelineRow> = self.rows.iter().filter(is_work).collect();
        kept.sort_by_key(|row| std::cmp::Reverse(row.nanos()));
        let left = kept.len().saturating_sub(MAX_ROWS);
        kept.truncate(MAX_ROWS);
        kept.extend(self.rows.iter().filter(|row| !is_work(row)).take(MAX_ROWS));
        // The idle time of a GPU is drawn above the GPU's streams.
        let group = |row: &TimelineRow| if row.kind == RowKind::Idle { RowKind::Stream } else { row.kind };
        kept.sort_by(|a, b| (group(a), &a.label).cmp(&(group(b), &b.label)));
        let end = kept.iter().flat_map(|row| row.slices.iter().map(|slice| slice.end)).max().unwrap_or(0);
        let slices: Vec<&[Slice]> = kept.iter().map(|row| &row.slices[..]).collect();
        let packed = pack(&slices, MAX_SLICES, max_bytes)?;
        let mut rows = String::new();
        for (at, (row, count)) in kept.iter().zip(&packed.counts).enumerate() {
            let (label, kind) = (quoted(&row.label), row.kind.word());
            let _ = write!(rows, "{}{{\"label\":{label},\"kind\":\"{kind}\",\"slices\":{count}}}", comma(at));
        }
        let causes = CAUSES.map(|word| kind_json(word, cause_words(word)));
        let classes = CLASSES.map(|class| kind_json(class.word(), class.label()));
        let json = format!(
            "{{\"end\":{end},\"resolution\":{},\"skipped\":{},\"left\":{left},\"names\":[{}],\"causes\":[{}],\
             \"classes\":[{}],\"rows\":[{rows}]}}",
            packed.resolution,
            self.skipped,
            names.join(","),
            causes.join(","),
            classes.join(",")
        );
        Ok(TimelineData { json, slices: packed.bytes })
    }
}

fn kind_json(word: &str, label: &str) -> String {
    format!("{{\"kind\":\"{word}\",\"label\":{}}}", quoted(label))
}

/// Classes into which the critical path's parts are divided. The name index of a slice is an index into this list.
const CLASSES: [PathClass; 11] = [
    PathClass::Kernel,
    PathClass::Memory,
    PathClass::Graph,
    PathClass::HostFunction,
    PathClass::Call,
    PathClass::Return,
    PathClass::Host,
    PathClass::HandOff,
    PathClass::Launch,
    PathClass::Gap,
    PathClass::Unexplained(crate::analysis::Unexplained::Other),
];

fn class_number(class: PathClass) -> u32 {
    CLASSES.iter().position(|known| known.word() == class.word()).unwrap_or(CLASSES.len() - 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_room_are_one_and_the_longest_times_keep_theirs() {
        let mut timeline = Timeline::default();
        let [rare, often, never] = ["rare", "often", "never"].map(|name| timeline.name(name.to_owned()));
        let slices = vec![Slice::new(0, 5, rare), Slice::new(5, 50, often), Slice::new(50, 50, never)];
        timeline.rows.push(TimelineRow { label: String::new(), kind: RowKind::Stream, slices });
        // With its quotes, the name "often" takes seven bytes.
        assert_eq!(timeline.limit_names(12), ["\"often\"", "\"[name left out]\""]);
        let numbers: Vec<u32> = timeline.rows[0].slices.iter().map(Slice::name).collect();
        assert_eq!(numbers, [1, 0, 1]);
    }
}

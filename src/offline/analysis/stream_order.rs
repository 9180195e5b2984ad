//! Checks the order of work on each stream: which work overlaps, which overlaps are legal, and which durations are
//! impossible, because later work of the same stream ran meanwhile.
//!
//! Work on a stream runs in order, with two exceptions. Nodes of a graph may run concurrently. A kernel that was
//! launched with programmatic dependent launch (`cudaLaunchKernelEx`, Hopper and later) may begin before the previous
//! kernel ends.

use std::cell::OnceCell;

use gpuflame_explain::events::JoinedRows;
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_export::compose::call;
use gpuflame_model::profile::{MAX_PLAUSIBLE_NS, Profile, SteadyPart, add_to, saturating_sum};
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, DeviceId, GpuContextId, IdMap, Nanos, StreamId, Work,
};
use gpuflame_traces::import::LinkReport;

/// Minimum time in ns by which an activity must last past the start of later work for its duration to count as
/// impossible. Shorter overlaps can be errors of the clock.
const MIN_EXCESS_NS: u64 = 10_000;
/// Part (1/N) of the stream's time by which an activity must also last past the start of later work.
const MIN_EXCESS_PART: u64 = 100;
/// Error of times that are whole microseconds, in ns.
const MICROSECOND_NS: u64 = 1000;

/// Part of the name of all calls that can launch with programmatic dependent launch: `cudaLaunchKernelExC`,
/// `cuLaunchKernelEx`.
const PROGRAMMATIC_LAUNCH: &str = "LaunchKernelEx";

/// A [`Sink`] that stores the times and places of activities, which [`check_stream_order`] compares.
#[derive(Clone, Debug)]
pub struct WorkSpans {
    spans: Vec<WorkSpan>,
    limit: usize,
    /// Number of activities beyond the limit, which are not stored.
    skipped: u64,
    /// Activities with possible durations, by start, once they were asked for.
    plausible: OnceCell<Vec<WorkSpan>>,
}

impl WorkSpans {
    /// Creates a collector that stores at most `limit` activities, of about 70 bytes each.
    pub fn bounded(limit: usize) -> Self {
        Self { spans: Vec::new(), limit, skipped: 0, plausible: OnceCell::new() }
    }

    /// Copies the activities of `events`.
    pub fn from_events(events: &JoinedRows) -> Self {
        let mut spans = Self::bounded(usize::MAX);
        events.activities().iter().for_each(|event| spans.activity(&event.activity, event.origin));
        spans
    }

    /// Whether the times are in whole microseconds. Only times in text formats can be in whole microseconds; other
    /// formats, such as recordings, count nanoseconds. Returns `None` if there are no times.
    pub fn whole_micros(&self, linked: Option<&LinkReport>) -> Option<bool> {
        let is_text = |linked: &LinkReport| linked.counts.whole_times + linked.counts.fractional_times > 0;
        has_whole_micros(&self.spans).map(|whole| whole && linked.is_some_and(is_text))
    }

    /// Returns the time in which a GPU ran at least one kernel in the steady part of a run, in ns. Returns `None` if activities were
    /// not stored.
    pub fn kernel_time(&self, device: DeviceId, steady: Option<SteadyPart>) -> Option<u64> {
        let (begin, end) = steady.map_or((0, u64::MAX), |steady| (steady.begin.0, steady.end.0));
        let (mut nanos, mut until) = (0_u64, begin);
        for span in self.plausible_spans() {
            if span.stream.0 == device && matches!(span.work, Work::Kernel(_) | Work::Graph) {
                let last = span.end.min(end);
                nanos = nanos.saturating_add(last.saturating_sub(span.start.max(until)));
                until = until.max(last);
            }
        }
        (self.skipped == 0 && !self.spans.is_empty()).then_some(nanos)
    }

    /// Returns the stored activities whose durations are possible. An activity that lasts beyond the start of later work of its
    /// stream, and beyond any plausible duration, ends at that start.
    pub(super) fn plausible_spans(&self) -> &[WorkSpan] {
        self.plausible.get_or_init(|| self.with_possible_durations())
    }

    fn with_possible_durations(&self) -> Vec<WorkSpan> {
        let mut spans: Vec<WorkSpan> =
            self.spans.iter().filter(|span| span.end >= span.start).copied().collect();
        spans.sort_unstable_by_key(|span| (span.stream, span.start));
        for at in 0..spans.len() {
            let next = spans.get(at + 1).filter(|next| next.stream == spans[at].stream);
            let end = next.map_or(spans[at].end, |next| next.start);
            if spans[at].end - spans[at].start > MAX_PLAUSIBLE_NS {
                spans[at].end = end.max(spans[at].start).min(spans[at].end);
            }
        }
        spans.retain(|span| span.end - span.start <= MAX_PLAUSIBLE_NS);
        spans.sort_unstable_by_key(|span| (span.start, span.end));
        spans
    }

    /// Returns the number of activities that were not stored.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

impl Sink for WorkSpans {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        if activity.duration().is_none() {
            return;
        }
        if self.spans.len() >= self.limit {
            self.skipped += 1;
            return;
        }
        let launch = match origin {
            Origin::Launch(launched) => Some((activity.correlation, launched)),
            Origin::Missing(_) => None,
        };
        self.spans.push(WorkSpan {
            stream: (activity.device, activity.context, activity.stream),
            start: activity.start.0,
            end: activity.end.0,
            launch,
            is_node: activity.graph.0 != 0,
            work: activity.work(),
        });
    }

    fn pending(&mut self, _: CorrelationId, _: Launched) {}
}

type StreamKey = (DeviceId, GpuContextId, StreamId);

/// Times, place and launch of an activity.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkSpan {
    pub(super) stream: StreamKey,
    pub(super) start: u64,
    pub(super) end: u64,
    launch: Option<(CorrelationId, Launched)>,
    /// Whether the work may be a node of a graph.
    is_node: bool,
    pub(super) work: Work,
}

impl WorkSpan {
    /// Returns the launch of the activity, if it is known.
    pub(super) fn launched(&self) -> Option<Launched> {
        self.launch.map(|(_, launched)| launched)
    }
}

/// Number of overlapping activities, and the total time by which they begin too early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlaps {
    /// Number of activities that begin before the previous activity of their stream ends.
    pub count: u64,
    /// Total time by which these activities begin too early, in ns.
    pub nanos: u64,
}

/// An activity that ends after later work of its stream began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImpossibleDuration {
    /// Work of the activity.
    pub work: Work,
    /// GPU that ran the activity.
    pub device: DeviceId,
    /// Stream of the activity.
    pub stream: StreamId,
    /// Start of the activity.
    pub start: Nanos,
    /// Duration as recorded, in ns.
    pub raw_ns: u64,
    /// Time from the start of the activity to the start of the next work of its stream, in ns.
    pub clamped_ns: u64,
}

/// Result of [`check_stream_order`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOrder {
    /// Overlaps that no rule of CUDA allows.
    pub doubtful: Overlaps,
    /// Overlaps of kernels that were probably launched with programmatic dependent launch.
    pub programmatic: Overlaps,
    /// Impossible durations, the largest excess first.
    pub impossible: Vec<ImpossibleDuration>,
    /// Sum of all durations, in ns.
    pub raw_ns: u64,
    /// Sum of all durations, with each impossible duration clamped.
    pub clamped_ns: u64,
    /// Busy time of all GPUs, in ns.
    pub raw_busy_ns: u64,
    /// Busy time of all GPUs, with each impossible duration clamped.
    pub clamped_busy_ns: u64,
    /// Start of the first activity.
    pub first: Nanos,
    /// Whether the times are in whole microseconds; `None` if there are no times.
    pub whole_micros: Option<bool>,
}

impl StreamOrder {
    /// Time by which all impossible durations together run past the start of later work, in ns.
    pub fn excess_ns(&self) -> u64 {
        saturating_sum(self.impossible.iter().map(|row| row.raw_ns - row.clamped_ns))
    }
}

/// Compares the times of all activities, stream by stream. Activities whose trace does not give a stream have no order.
pub fn check_stream_order(profile: &Profile, work: WorkSpans, linked: Option<&LinkReport>) -> StreamOrder {
    let mut order = StreamOrder { whole_micros: work.whole_micros(linked), ..StreamOrder::default() };
    let mut spans = work.spans;
    order.first = spans.iter().map(|span| Nanos(span.start)).min().unwrap_or_default();
    // The end of an activity and the start of the next are each off by less than the resolution.
    let resolution = if order.whole_micros == Some(true) { MICROSECOND_NS } else { 1 };
    mark_graph_nodes(&mut spans);
    spans.sort_unstable_by_key(|span| (span.stream, span.start, span.end));
    let mut programmatic = ProgrammaticCalls { profile, known: IdMap::default() };
    let has_streamless = linked.is_some_and(|linked| linked.ops_without_stream > 0);
    order.raw_ns = saturating_sum(spans.iter().map(|span| span.end - span.start));
    let mut clamped = spans.clone();
    let mut first = 0;
    for stream in spans.chunk_by(|a, b| a.stream == b.stream) {
        let rest = &mut clamped[first..first + stream.len()];
        first += stream.len();
        if has_streamless && stream[0].stream.2.0 == 0 {
            continue;
        }
        let stream = OneStream {
            launches: stream.iter().map(|span| programmatic.class_of(span)).collect(),
            spans: stream,
            resolution,
        };
        stream.count_overlaps(&mut order);
        stream.find_impossible(rest, &mut order.impossible);
    }
    order.impossible.sort_by_key(|row| (std::cmp::Reverse(row.raw_ns - row.clamped_ns), row.start));
    order.clamped_ns = saturating_sum(clamped.iter().map(|span| span.end - span.start));
    (order.raw_busy_ns, order.clamped_busy_ns) = (busy_time(&mut spans), busy_time(&mut clamped));
    order
}

/// Whether all times differ by whole microseconds, wherever the zero of the clock is.
fn has_whole_micros(spans: &[WorkSpan]) -> Option<bool> {
    let first = spans.first()?.start;
    Some(spans.iter().all(|span| {
        span.start.abs_diff(first).is_multiple_of(MICROSECOND_NS)
            && (span.end - span.start).is_multiple_of(MICROSECOND_NS)
    }))
}

/// Marks the work of launches with several activities. If a trace does not mark graph nodes, such a launch is taken for
/// the launch of a graph.
fn mark_graph_nodes(spans: &mut [WorkSpan]) {
    let key = |span: &WorkSpan| span.launch.map(|(id, launched)| (id.0, launched.time));
    spans.sort_unstable_by_key(key);
    for one_launch in spans.chunk_by_mut(|a, b| a.launch.is_some() && key(a) == key(b)) {
        if one_launch.len() > 1 {
            one_launch.iter_mut().for_each(|span| span.is_node = true);
        }
    }
}

/// Finds the calls that can launch programmatically. The name of each context's call is looked up once.
struct ProgrammaticCalls<'a> {
    profile: &'a Profile,
    known: IdMap<ContextId, LaunchClass>,
}

/// Class of the call that launched an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaunchClass {
    /// The call can launch with programmatic dependent launch.
    Programmatic,
    /// The work may have run on an AMD GPU, which records the start of a kernel up to a microsecond before the end of
    /// the previous kernel.
    MaybeAmd,
    /// All other calls.
    Ordered,
}

impl ProgrammaticCalls<'_> {
    fn class_of(&mut self, span: &WorkSpan) -> LaunchClass {
        let Some(Launched { context, .. }) = span.launched() else { return LaunchClass::MaybeAmd };
        let profile = self.profile;
        *self.known.entry(context).or_insert_with(|| match call(profile, context) {
            name if name.starts_with("hip") => LaunchClass::MaybeAmd,
            name if name.contains(PROGRAMMATIC_LAUNCH) => LaunchClass::Programmatic,
            _ => LaunchClass::Ordered,
        })
    }
}

/// Activities of a stream, by start.
struct OneStream<'a> {
    spans: &'a [WorkSpan],
    /// Class of the call that launched each activity.
    launches: Vec<LaunchClass>,
    resolution: u64,
}

impl OneStream<'_> {
    fn count_overlaps(&self, order: &mut StreamOrder) {
        let mut end = 0;
        for (span, &launch) in self.spans.iter().zip(&self.launches) {
            let depth = u64::saturating_sub(end, span.start);
            let resolution = match launch {
                LaunchClass::MaybeAmd => self.resolution.max(MICROSECOND_NS),
                _ => self.resolution,
            };
            if depth > resolution && !span.is_node {
                let is_contained = span.end.saturating_add(self.resolution) < end;
                let is_legal =
                    launch == LaunchClass::Programmatic && (!is_contained || depth <= MIN_EXCESS_NS);
                let sum = if is_legal { &mut order.programmatic } else { &mut order.doubtful };
                sum.count += 1;
                add_to(&mut sum.nanos, depth);
            }
            end = end.max(span.end);
        }
    }

    /// Finds the activities that began before and ended after a later activity of the stream, and clamps them in
    /// `clamped` to the start of that later activity.
    fn find_impossible(&self, clamped: &mut [WorkSpan], found: &mut Vec<ImpossibleDuration>) {
        let suspects = self.suspects();
        let excess = saturating_sum(suspects.iter().map(|&(at, start)| self.spans[at].end - start));
        let all = saturating_sum(self.spans.iter().map(|span| span.end - span.start)).saturating_sub(excess);
        for (at, start) in suspects {
            let span = &self.spans[at];
            if (span.end - start).saturating_mul(MIN_EXCESS_PART) <= all {
                continue;
            }
            clamped[at].end = start;
            found.push(ImpossibleDuration {
                work: span.work,
                device: span.stream.0,
                stream: span.stream.2,
                start: Nanos(span.start),
                raw_ns: span.end - span.start,
                clamped_ns: start - span.start,
            });
        }
    }

    /// Returns the activities that may be impossible, each with the start of the next work.
    fn suspects(&self) -> Vec<(usize, u64)> {
        // Index of the next activity that is not a graph node, from each activity on.
        let mut next = self.spans.len();
        let mut nexts = vec![next; next + 1];
        for at in (0..self.spans.len()).rev() {
            if !self.spans[at].is_node {
                next = at;
            }
            nexts[at] = next;
        }
        let later = |at: usize| {
            let start = self.spans[at].start.saturating_add(self.resolution);
            let after = at + self.spans[at..].partition_point(|span| span.start <= start);
            self.spans.get(nexts[after])
        };
        let suspect = |(at, span): (usize, &WorkSpan)| {
            let later = later(at)?;
            let is_over = later.end < span.end && span.end - later.start > MIN_EXCESS_NS;
            is_over.then_some((at, later.start))
        };
        self.spans.iter().enumerate().filter_map(suspect).collect()
    }
}

/// Returns the sum of the busy times of all GPUs.
fn busy_time(spans: &mut [WorkSpan]) -> u64 {
    spans.sort_unstable_by_key(|span| (span.stream.0, span.start));
    let mut busy = 0;
    for device in spans.chunk_by(|a, b| a.stream.0 == b.stream.0) {
        let mut end = 0;
        for span in device {
            add_to(&mut busy, span.end.saturating_sub(span.start.max(end)));
            end = end.max(span.end);
        }
    }
    busy
}

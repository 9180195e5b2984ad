//! Stores the times, streams and launches of single activities. An activity takes about 10 bytes while rows are read,
//! and 48 bytes while activities are compared.

use super::device_waits::WaitCalls;
use super::packed_ops::{PackedOp, PackedOps};
use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_model::profile::{MAX_PLAUSIBLE_NS, SteadyPart};
use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, DeviceId, GpuContextId, IdMap, LaunchAttributes, Nanos, Row,
    StreamId, Work,
};
use gpuflame_traces::import::LinkReport;

/// Maximum number of stored launches without an activity. If a run has more launches without an activity than this
/// maximum, its idle time can usually not be explained.
const MAX_PENDING: usize = 1 << 16;

/// A [`Sink`] that stores the times and streams of activities.
///
/// [`check_stream_order`](super::check_stream_order) compares the stored activities with each other. [`PlausibleSpans`]
/// contains the activities on which the findings are based.
#[derive(Debug)]
pub struct WorkSpans {
    /// Encoded activities, until [`WorkSpans::unpack`] decodes them.
    packed: PackedOps,
    pub(super) spans: Vec<WorkSpan>,
    pub(super) streams: Streams,
    limit: usize,
    /// Number of activities that are not stored because the limit was reached.
    skipped: u64,
    /// Recorded starts and ends of the activities without usable times. The list is `None` if the sink does not store
    /// activities without usable times.
    untimed: Option<Vec<(u64, u64)>>,
    /// For each launch whose attributes were recorded, whether the launch is programmatic.
    attributes: IdMap<CorrelationId, bool>,
    /// API calls that waited for GPU work.
    pub(super) waits: WaitCalls,
    /// Launches without an activity. At most [`MAX_PENDING`] launches without an activity are stored.
    pub(super) pending: Vec<Launched>,
}

/// Streams of a run. Each [`WorkSpan`] contains the index of its stream.
#[derive(Debug, Default)]
pub(super) struct Streams {
    keys: Vec<StreamKey>,
    numbers: IdMap<StreamKey, u32>,
    last: u32,
}

pub(super) type StreamKey = (DeviceId, GpuContextId, StreamId);

impl Streams {
    fn number(&mut self, key: StreamKey) -> u32 {
        // Most activities run on the same stream as the previous activity.
        if self.keys.get(self.last as usize) != Some(&key) {
            self.last = *self.numbers.entry(key).or_insert_with(|| {
                self.keys.push(key);
                self.keys.len() as u32 - 1
            });
        }
        self.last
    }

    /// Whether all streams belong to one CUDA context.
    pub(super) fn are_of_one_context(&self) -> bool {
        self.keys.iter().all(|(device, context, _)| (*device, *context) == (self.keys[0].0, self.keys[0].1))
    }

    pub(super) fn key(&self, span: &WorkSpan) -> StreamKey {
        self.keys[span.stream() as usize]
    }

    /// Assigns new indexes to the streams of `spans`. The indexes then have the same order as the keys (device, CUDA
    /// context and stream).
    pub(super) fn sort(&mut self, spans: &mut [WorkSpan]) {
        let mut order: Vec<u32> = (0..self.keys.len() as u32).collect();
        order.sort_unstable_by_key(|number| self.keys[*number as usize]);
        if order.is_sorted() {
            return;
        }
        let mut numbers = vec![0; order.len()];
        (0..).zip(&order).for_each(|(new, old)| numbers[*old as usize] = new);
        spans.iter_mut().for_each(|span| span.set_stream(numbers[span.stream() as usize]));
        self.keys = order.iter().map(|old| self.keys[*old as usize]).collect();
        self.numbers = self.keys.iter().copied().zip(0..).collect();
    }
}

impl WorkSpans {
    /// Creates a sink that stores at most `limit` activities.
    pub fn bounded(limit: usize) -> Self {
        Self {
            packed: PackedOps::default(),
            spans: Vec::new(),
            streams: Streams::default(),
            limit,
            skipped: 0,
            untimed: None,
            attributes: IdMap::default(),
            waits: WaitCalls::default(),
            pending: Vec::new(),
        }
    }

    /// Creates a sink that stores all activities, including activities without usable times.
    pub fn unbounded() -> Self {
        Self { untimed: Some(Vec::new()), ..Self::bounded(usize::MAX) }
    }

    /// Returns the starts and ends of the stored activities, in no particular order. Call `times` before the activities
    /// are decoded for a comparison.
    pub(super) fn times(&self) -> impl Iterator<Item = (u64, u64)> {
        let untimed = self.untimed.iter().flatten().copied();
        self.packed.iter().map(|op| (op.start, op.end)).chain(untimed)
    }

    /// Decodes the stored activities, so that they can be compared.
    fn unpack(&mut self) {
        self.spans.reserve_exact(self.packed.len());
        let spans = &mut self.spans;
        self.packed.take_all(|op| spans.push(op.into()));
    }

    /// Whether the times are in whole microseconds. Only text formats contain times in whole microseconds. All other
    /// formats, such as recordings, contain nanoseconds. Returns `None` if there are no times.
    pub fn whole_micros(&mut self, linked: Option<&LinkReport>) -> Option<bool> {
        self.unpack();
        let is_text = |linked: &LinkReport| linked.counts.whole_times + linked.counts.fractional_times > 0;
        has_whole_micros(&self.spans).map(|whole| whole && linked.is_some_and(is_text))
    }

    /// For each launch whose attributes were recorded, returns whether the launch is programmatic.
    pub(super) fn take_attributes(&mut self) -> IdMap<CorrelationId, bool> {
        std::mem::take(&mut self.attributes)
    }

    /// Returns the number of activities that were not stored.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

impl Sink for WorkSpans {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        if activity.duration().is_none() {
            if let Some(untimed) = &mut self.untimed {
                untimed.push((activity.start.0, activity.end.0));
            }
            return;
        }
        if self.packed.len() >= self.limit {
            self.skipped += 1;
            return;
        }
        let stream = self.streams.number((activity.device, activity.context, activity.stream));
        let place = stream & STREAM | if activity.graph.0 != 0 { IS_NODE } else { 0 };
        let correlation = activity.correlation.0;
        self.packed.push(PackedOp { correlation, place, ..PackedOp::new(activity, origin) });
    }

    fn pending(&mut self, _: CorrelationId, launched: Launched) {
        if self.pending.len() < MAX_PENDING {
            self.pending.push(launched);
        }
    }

    fn host(&mut self, row: &Row<'_>) {
        self.waits.add(row);
        if let Row::LaunchAttributes(LaunchAttributes { correlation, is_programmatic }) = *row {
            self.attributes.insert(correlation, is_programmatic);
        }
    }
}

/// Times, stream and launch of a decoded activity.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkSpan {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Launch of the activity, if it is known.
    launch: Launched,
    correlation: CorrelationId,
    pub(super) work: Work,
    /// Index of the stream in [`Streams`], and the flags [`IS_LAUNCHED`] and [`IS_NODE`].
    stream_and_flags: u32,
}

const _: () = assert!(size_of::<WorkSpan>() == 48, "a span grew: up to a million are stored");

impl From<PackedOp> for WorkSpan {
    fn from(op: PackedOp) -> Self {
        let PackedOp { start, end, launched, work, correlation, place } = op;
        let unknown = Launched { time: Nanos(0), duration: 0, context: ContextId::NONE };
        let stream_and_flags = place | if launched.is_some() { IS_LAUNCHED } else { 0 };
        let (launch, correlation) = (launched.unwrap_or(unknown), CorrelationId(correlation));
        Self { start, end, launch, correlation, work, stream_and_flags }
    }
}

/// Bits of `stream_and_flags` that contain the index of the stream.
const STREAM: u32 = u32::MAX >> 2;
/// Flag for an activity whose launch is known.
const IS_LAUNCHED: u32 = 1 << 31;
/// Flag for an activity that may be a node of a graph.
const IS_NODE: u32 = 1 << 30;

impl WorkSpan {
    /// Returns the launch of the activity, if it is known.
    pub(super) fn launched(&self) -> Option<Launched> {
        (self.stream_and_flags & IS_LAUNCHED != 0).then_some(self.launch)
    }

    /// Returns the correlation id and time of the activity's launch, if the launch is known. Neither the correlation id
    /// nor the time alone identifies a launch.
    pub(super) fn launch_key(&self) -> Option<(u32, Nanos)> {
        self.launched().map(|launched| (self.correlation.0, launched.time))
    }

    /// Whether the activity may be a node of a graph.
    pub(super) fn is_node(&self) -> bool {
        self.stream_and_flags & IS_NODE != 0
    }

    /// Returns the correlation id of the activity.
    pub(super) fn correlation(&self) -> CorrelationId {
        self.correlation
    }

    pub(super) fn set_node(&mut self) {
        self.stream_and_flags |= IS_NODE;
    }

    /// Returns the index of the activity's stream in [`Streams`].
    pub(super) fn stream(&self) -> u32 {
        self.stream_and_flags & STREAM
    }

    fn set_stream(&mut self, stream: u32) {
        self.stream_and_flags = self.stream_and_flags & !STREAM | stream;
    }

    pub(super) fn nanos(&self) -> u64 {
        self.end - self.start
    }
}

/// Activities with plausible durations, sorted by start. If an implausibly long activity lasts beyond the start of
/// later work on its stream, it is cut off at that start.
#[derive(Debug)]
pub struct PlausibleSpans {
    spans: Vec<WorkSpan>,
    streams: Streams,
    skipped: u64,
    /// Number of activities that were shortened or removed.
    implausible: u64,
}

impl PlausibleSpans {
    /// Creates the list of plausible activities from `all`. An activity with an implausible duration is cut off or
    /// removed.
    pub fn new(mut all: WorkSpans) -> Self {
        all.unpack();
        let WorkSpans { mut spans, mut streams, skipped, .. } = all;
        let is_plausible = |span: &WorkSpan| span.nanos() <= MAX_PLAUSIBLE_NS;
        streams.sort(&mut spans);
        let implausible = spans.iter().filter(|span| !is_plausible(span)).count() as u64;
        if implausible > 0 {
            spans.sort_unstable_by_key(|span| (span.stream(), span.start));
            for at in 0..spans.len() {
                let next = spans.get(at + 1).filter(|next| next.stream() == spans[at].stream());
                let end = next.map_or(spans[at].end, |next| next.start);
                if !is_plausible(&spans[at]) {
                    spans[at].end = end.max(spans[at].start).min(spans[at].end);
                }
            }
            spans.retain(is_plausible);
        }
        spans.sort_unstable_by_key(|span| (span.start, span.end, span.stream(), span.launch.time));
        Self { spans, streams, skipped, implausible }
    }

    pub(super) fn as_slice(&self) -> &[WorkSpan] {
        &self.spans
    }

    /// Returns the device, CUDA context and stream of an activity.
    pub(super) fn stream_of(&self, span: &WorkSpan) -> StreamKey {
        self.streams.key(span)
    }

    /// Returns the device of an activity.
    pub(super) fn device_of(&self, span: &WorkSpan) -> DeviceId {
        self.stream_of(span).0
    }

    /// Returns the time in ns in which at least one GPU was busy in the steady part of a run. Returns `None` if some
    /// activities were not stored, or if the duration of an activity is implausible.
    pub fn work_time(&self, steady: Option<SteadyPart>) -> Option<u64> {
        self.union(steady, &|_| true)
    }

    /// Returns the time in ns in which a GPU ran at least one kernel in the steady part of a run. Returns `None` if
    /// some activities were not stored, or if the duration of an activity is implausible.
    pub fn kernel_time(&self, device: DeviceId, steady: Option<SteadyPart>) -> Option<u64> {
        self.union(steady, &|span| {
            self.device_of(span) == device && matches!(span.work, Work::Kernel(_) | Work::Graph)
        })
    }

    /// Returns the time in ns in which at least one activity that `counts` selects ran in the steady part of a run.
    fn union(&self, steady: Option<SteadyPart>, counts: &dyn Fn(&WorkSpan) -> bool) -> Option<u64> {
        let (begin, end) = steady.map_or((0, u64::MAX), |steady| (steady.begin.0, steady.end.0));
        let (mut nanos, mut until) = (0_u64, begin);
        for span in self.spans.iter().filter(|span| counts(span)) {
            let last = span.end.min(end);
            nanos = nanos.saturating_add(last.saturating_sub(span.start.max(until)));
            until = until.max(last);
        }
        let is_known = self.skipped == 0 && self.implausible == 0 && !self.spans.is_empty();
        is_known.then_some(nanos)
    }
}

/// Maximum error in ns of times that are rounded to whole microseconds.
pub(super) const MICROSECOND_NS: u64 = 1000;

/// Whether all times differ from each other by whole microseconds. Differences are tested because, unlike the times
/// themselves, they do not depend on the offset of the clock. Returns `None` if there are no activities.
fn has_whole_micros(spans: &[WorkSpan]) -> Option<bool> {
    let first = spans.first()?.start;
    Some(spans.iter().all(|span| {
        span.start.abs_diff(first).is_multiple_of(MICROSECOND_NS)
            && (span.end - span.start).is_multiple_of(MICROSECOND_NS)
    }))
}

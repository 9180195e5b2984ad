//! Checks the order of work on each stream. Finds overlaps that CUDA does not allow, overlaps of programmatic launches,
//! and impossible durations. The duration of an activity is impossible if later work on the same stream begins before
//! its end, or if a wait for the activity returns before its end.
//!
//! Work on a stream runs in order, with two exceptions. Nodes of a graph may run concurrently. A kernel that was
//! launched with programmatic dependent launch (`cudaLaunchKernelEx`, Hopper and later) may begin before the previous
//! kernel ends.

use super::device_waits::DeviceWaits;
use super::work_spans::{MICROSECOND_NS, StreamKey, Streams, WorkSpan, WorkSpans};
use gpuflame_explain::join::Launched;
use gpuflame_export::compose::call;
use gpuflame_model::profile::{Profile, add_to, saturating_sum};
use gpuflame_model::record::{ContextId, CorrelationId, DeviceId, IdMap, Nanos, StreamId, Work};
use gpuflame_traces::import::LinkReport;

/// If later work begins before an activity ends, the activity's duration counts as impossible only if the overlap
/// exceeds this many ns. Clock errors can cause shorter overlaps.
const MIN_EXCESS_NS: u64 = 10_000;
/// Denominator N of a share: a duration counts as impossible only if it exceeds the possible duration by more than 1/N
/// of the stream's busy time.
const MIN_EXCESS_PART: u64 = 100;
/// If a wait for an activity returned, the activity's duration counts as impossible only if the activity ends more than
/// this many ns after the return. The limit allows for differences between the clocks of the host and of the GPU, which
/// are below 1 us in the traces examined so far.
const MIN_WAIT_EXCESS_NS: u64 = 100_000;
/// If an activity ends more than this many ns after a wait for it returned, the clocks of host and GPU differ.
const MIN_CLOCK_ERROR_NS: u64 = 1_000_000;
/// Denominator N of a share: waits are used as evidence only if at most 1/N of the activities end after a wait for them
/// returned.
const MAX_OUTLASTING_PART: u64 = 10;
/// Maximum duration of an activity in ns: one day. A duration of more than one day is impossible even if no other fact
/// contradicts it.
const MAX_DURATION_NS: u64 = 86_400_000_000_000;
/// Substring of the names of all API calls that can use programmatic dependent launch, which are `cudaLaunchKernelExC`
/// and `cuLaunchKernelEx`.
const PROGRAMMATIC_LAUNCH: &str = "LaunchKernelEx";

/// Number of overlaps between activities, and the total duration of the overlaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlaps {
    /// Number of activities that begin before the previous activity on their stream ends.
    pub count: u64,
    /// Total time in ns from the begins of these activities to the ends of the activities before them.
    pub nanos: u64,
}

/// An activity with an impossible duration. The activity ends after later work on its stream began or after a wait for
/// it returned, or it lasts more than a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImpossibleDuration {
    /// Kind of GPU work: the kernel's name, or the kind of copy or fill.
    pub work: Work,
    /// Id of the GPU that ran the activity.
    pub device: DeviceId,
    /// Id of the stream that ran the activity.
    pub stream: StreamId,
    /// Start of the activity.
    pub start: Nanos,
    /// Recorded duration, in ns.
    pub raw_ns: u64,
    /// Maximum duration in ns that is possible according to the contradicting fact.
    pub clamped_ns: u64,
    /// Fact that contradicts the recorded duration.
    pub contradiction: DurationContradiction,
}

/// Fact that contradicts the duration of an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DurationContradiction {
    /// Later work on the stream began before the activity's recorded end.
    LaterWork,
    /// A wait for the GPU that was called after the activity's launch returned before the activity's recorded end.
    Wait,
    /// The activity lasts more than a day.
    TooLong,
}

/// Result of [`check_stream_order`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOrder {
    /// Overlaps that CUDA does not allow.
    pub doubtful: Overlaps,
    /// Overlaps of kernels that were probably launched with programmatic dependent launch.
    pub programmatic: Overlaps,
    /// Activities that ended after a wait for them had returned. The field `nanos` is the total time from the returns
    /// of the waits to the ends of the activities.
    pub after_wait: Overlaps,
    /// Impossible durations, sorted by the time by which they exceed the possible duration, the longest time first.
    pub impossible: Vec<ImpossibleDuration>,
    /// Total of all recorded durations, in ns.
    pub raw_ns: u64,
    /// Total of all durations in ns, with each impossible duration reduced to the possible maximum.
    pub clamped_ns: u64,
    /// Total busy time of all GPUs as recorded, in ns.
    pub raw_busy_ns: u64,
    /// Total busy time of all GPUs in ns, with each impossible duration reduced to the possible maximum.
    pub clamped_busy_ns: u64,
    /// Start of the first activity in the run.
    pub first: Nanos,
    /// Whether all times are whole microseconds, or `None` if there are no times.
    pub whole_micros: Option<bool>,
    /// Whether the times were rounded to a quarter of a microsecond.
    pub quarter_micros: bool,
}

impl StreamOrder {
    /// Returns the total time in ns by which impossible durations exceed the possible durations.
    pub fn excess_ns(&self) -> u64 {
        saturating_sum(self.impossible.iter().map(|row| row.raw_ns - row.clamped_ns))
    }
}

/// Compares the times of all activities on each stream. Activities without a stream in the trace are not compared with
/// each other. The function also changes the order of the activities in `work`.
pub fn check_stream_order(
    profile: &Profile,
    work: &mut WorkSpans,
    linked: Option<&LinkReport>,
) -> StreamOrder {
    let mut order = StreamOrder { whole_micros: work.whole_micros(linked), ..StreamOrder::default() };
    let attributes = work.take_attributes();
    let WorkSpans { spans, streams, .. } = work;
    order.first = spans.iter().map(|span| Nanos(span.start)).min().unwrap_or_default();
    // Overlaps shorter than the resolution of the times do not count, because the end of an activity and the start of
    // the next activity are rounded.
    order.quarter_micros =
        order.whole_micros == Some(false) && linked.is_some_and(|linked| has_quarter_micros(spans, linked));
    let resolution = match order.whole_micros {
        Some(true) => MICROSECOND_NS,
        _ if order.quarter_micros => QUARTERS_NS,
        _ => 1,
    };
    mark_graph_nodes(spans);
    streams.sort(spans);
    sort_by_stream(spans);
    let mut programmatic = ProgrammaticCalls { profile, known: IdMap::default(), attributes };
    // If the run has several CUDA contexts, the data does not show for which CUDA context a thread waited.
    let waited = match streams.are_of_one_context() {
        true => WaitedWork::find(profile, &work.waits.of_devices(profile), spans, &work.pending),
        false => WaitedWork::default(),
    };
    order.after_wait = waited.after_wait;
    let has_streamless = linked.is_some_and(|linked| linked.ops_without_stream > 0);
    order.raw_ns = saturating_sum(spans.iter().map(WorkSpan::nanos));
    let (mut first, mut clamped) = (0, IdMap::default());
    for stream in spans.chunk_by(|a, b| a.stream() == b.stream()) {
        let before = first;
        first += stream.len();
        let key = streams.key(&stream[0]);
        if has_streamless && key.2.0 == 0 {
            continue;
        }
        let stream = OneStream {
            launches: stream.iter().map(|span| programmatic.class_of(span)).collect(),
            wait_ends: waited.ends.get(before..first).unwrap_or_default(),
            spans: stream,
            key,
            resolution,
        };
        stream.count_overlaps(&mut order);
        stream.find_impossible(&mut order.impossible, &mut |at, end| {
            clamped.insert(before + at, end);
        });
    }
    order.impossible.sort_by_key(|row| (std::cmp::Reverse(row.raw_ns - row.clamped_ns), row.start));
    let durations =
        spans.iter().enumerate().map(|(at, span)| *clamped.get(&at).unwrap_or(&span.end) - span.start);
    order.clamped_ns = if clamped.is_empty() { order.raw_ns } else { saturating_sum(durations) };
    (order.raw_busy_ns, order.clamped_busy_ns) = busy_times(spans, streams, &clamped);
    order
}

/// Maximum error in ns of the difference between two rounded times. Both times were rounded to a quarter of a
/// microsecond and written with one decimal. The rounding to a quarter changes each time by at most 125 ns. Writing
/// only one decimal changes 0.25 and 0.75 us to 0.2 and 0.8 us, which is an error of 50 ns.
const QUARTERS_NS: u64 = 350;
/// Minimum number of activities for the conclusion that times were rounded to a quarter of a microsecond.
const MIN_ROUNDED: usize = 8;

/// Whether all times look as if they had once been stored as floating-point numbers of microseconds since 1970. At the
/// size of times since 1970, floating-point numbers of microseconds are multiples of 0.25 us. Times are stored in this
/// way if a program such as Python's `json` module rewrote the file.
fn has_quarter_micros(spans: &[WorkSpan], linked: &LinkReport) -> bool {
    let is_quarter = |span: &WorkSpan| {
        let fraction = i64::try_from(span.start).unwrap_or(0).saturating_sub(linked.offset).rem_euclid(1000);
        matches!(fraction, 0 | 200 | 250 | 500 | 750 | 800)
    };
    linked.clock_base == Some(0) && spans.len() >= MIN_ROUNDED && spans.iter().all(is_quarter)
}

/// Sorts activities by stream and time. Activities with equal stream and times are sorted by launch, so that the order
/// is always the same.
fn sort_by_stream(spans: &mut [WorkSpan]) {
    spans.sort_unstable_by_key(|span| (span.stream(), span.start, span.end, span.launch_key(), span.work));
}

/// If a launch has several activities, marks these activities as graph nodes. Some traces do not mark graph nodes, so a
/// launch with several activities is assumed to be a graph launch.
fn mark_graph_nodes(spans: &mut [WorkSpan]) {
    spans.sort_unstable_by_key(WorkSpan::launch_key);
    let is_same = |a: &WorkSpan, b: &WorkSpan| a.launch_key().is_some() && a.launch_key() == b.launch_key();
    for one_launch in spans.chunk_by_mut(is_same) {
        if one_launch.len() > 1 {
            one_launch.iter_mut().for_each(WorkSpan::set_node);
        }
    }
}

/// Results of comparing the activities of a run with the waits for these activities.
#[derive(Debug, Default)]
struct WaitedWork {
    /// For each activity, the time at which a wait for it returned, or [`u64::MAX`] if no such wait is known. The list
    /// of times is empty if the waits are not usable as evidence.
    ends: Vec<u64>,
    after_wait: Overlaps,
}

impl WaitedWork {
    /// Finds the waits for each activity in `spans`. `pending` contains the launches without an activity.
    fn find(profile: &Profile, waits: &DeviceWaits, spans: &[WorkSpan], pending: &[Launched]) -> Self {
        if waits.is_empty() {
            return Self::default();
        }
        let thread = |launched: Launched| Some((profile.context(launched.context)?.thread, launched.time.0));
        let launches = spans.iter().filter_map(WorkSpan::launched).chain(pending.iter().copied());
        let mut launches: Vec<_> = launches.filter_map(thread).collect();
        launches.sort_unstable();
        let wait_end = |span: &WorkSpan| {
            let (thread, time) = thread(span.launched()?)?;
            let end = waits.end_after(thread, time)?;
            // A wait is used only if the waiting thread launches again before the recorded end of the activity. A
            // thread that waits for several GPUs in turn launches nothing between its waits, so this condition excludes
            // its waits.
            let next = launches.get(launches.partition_point(|launch| *launch < (thread, end)));
            next.is_some_and(|(of, time)| *of == thread && *time < span.end).then_some(end)
        };
        let ends: Vec<u64> = spans.iter().map(|span| wait_end(span).unwrap_or(u64::MAX)).collect();
        let pairs = || spans.iter().zip(ends.iter().copied());
        let stretched = pairs().filter(|(span, end)| is_stretched(span, *end)).count() as u64;
        let after_wait = count_after_wait(pairs());
        // If many activities end after a wait for them returned, the threads may have waited for a different GPU.
        let is_rare = stretched.saturating_mul(MAX_OUTLASTING_PART) <= spans.len() as u64;
        Self { ends: if is_rare { ends } else { Vec::new() }, after_wait }
    }
}

/// Counts the activities that ended long after a wait for them returned. Returns 0 if any work begins right after its
/// launch, because then the clocks of the host and of the GPU do not differ.
fn count_after_wait<'a>(spans: impl Iterator<Item = (&'a WorkSpan, u64)>) -> Overlaps {
    let (mut sum, mut min_delay) = (Overlaps::default(), u64::MAX);
    for (span, end) in spans {
        let delay = span.launched().map_or(u64::MAX, |launched| span.start.saturating_sub(launched.time.0));
        min_delay = min_delay.min(delay);
        let depth = span.end.saturating_sub(end);
        if depth > MIN_CLOCK_ERROR_NS {
            sum.count += 1;
            add_to(&mut sum.nanos, depth);
        }
    }
    if min_delay > MIN_CLOCK_ERROR_NS { sum } else { Overlaps::default() }
}

/// Finds the calls that may have used programmatic dependent launch. The API call of each launch context (stack and API
/// call) is looked up only once.
struct ProgrammaticCalls<'a> {
    profile: &'a Profile,
    known: IdMap<ContextId, LaunchClass>,
    /// For each launch whose attributes were recorded, whether the launch is programmatic.
    attributes: IdMap<CorrelationId, bool>,
}

/// Class of a launch call. The class determines by how much the launched work may overlap the previous work on its
/// stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaunchClass {
    /// The call may have used programmatic dependent launch.
    Programmatic,
    /// The work may have run on an AMD GPU. On AMD GPUs, the recorded start of a kernel can be up to 1 us before the
    /// end of the previous kernel.
    MaybeAmd,
    /// Any other call. Work that any other call launched runs in stream order.
    Ordered,
}

impl ProgrammaticCalls<'_> {
    fn class_of(&mut self, span: &WorkSpan) -> LaunchClass {
        let Some(Launched { context, .. }) = span.launched() else { return LaunchClass::MaybeAmd };
        let profile = self.profile;
        if self.attributes.get(&span.correlation()) == Some(&false) {
            return LaunchClass::Ordered;
        }
        *self.known.entry(context).or_insert_with(|| match call(profile, context) {
            name if name.starts_with("hip") => LaunchClass::MaybeAmd,
            name if name.contains(PROGRAMMATIC_LAUNCH) => LaunchClass::Programmatic,
            _ => LaunchClass::Ordered,
        })
    }
}

/// Activities of one stream, sorted by start.
struct OneStream<'a> {
    spans: &'a [WorkSpan],
    key: StreamKey,
    /// For each activity, the class of the call that launched it.
    launches: Vec<LaunchClass>,
    /// For each activity, the time at which a wait for it returned (see [`WaitedWork`]).
    wait_ends: &'a [u64],
    resolution: u64,
}

/// An activity whose duration may be impossible.
struct Suspect {
    /// Index of the activity in the stream.
    at: usize,
    /// Latest possible end of the activity, in ns.
    end: u64,
    contradiction: DurationContradiction,
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
            if depth > resolution && !span.is_node() {
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

    /// Finds the activities with impossible durations. An activity has an impossible duration if it ended after a later
    /// activity on the stream began, or after a wait for it returned. For each activity found, calls `clamp` with the
    /// position and the latest possible end of the activity.
    fn find_impossible(&self, found: &mut Vec<ImpossibleDuration>, clamp: &mut dyn FnMut(usize, u64)) {
        let suspects = self.suspects();
        let excess = |suspect: &Suspect| self.spans[suspect.at].end - suspect.end;
        let excess = saturating_sum(suspects.iter().map(excess));
        let all = saturating_sum(self.spans.iter().map(|span| span.end - span.start)).saturating_sub(excess);
        for Suspect { at, end, contradiction } in suspects {
            let span = &self.spans[at];
            if (span.end - end).saturating_mul(MIN_EXCESS_PART) <= all {
                continue;
            }
            clamp(at, end);
            found.push(ImpossibleDuration {
                work: span.work,
                device: self.key.0,
                stream: self.key.2,
                start: Nanos(span.start),
                raw_ns: span.end - span.start,
                clamped_ns: end - span.start,
                contradiction,
            });
        }
    }

    /// Returns the activities whose durations may be impossible, each with the fact that contradicts its duration.
    fn suspects(&self) -> Vec<Suspect> {
        // Element i of `nexts` is the index of the first activity at index i or later that is not a graph node.
        let mut next = self.spans.len();
        let mut nexts = vec![next; next + 1];
        for at in (0..self.spans.len()).rev() {
            if !self.spans[at].is_node() {
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
            let is_over = |later: &&WorkSpan| later.end < span.end && span.end - later.start > MIN_EXCESS_NS;
            let later =
                later(at).filter(is_over).map(|later| (later.start, DurationContradiction::LaterWork));
            let waited = self.wait_ends.get(at).copied().filter(|end| is_stretched(span, *end));
            let waited = waited.map(|end| (end, DurationContradiction::Wait));
            let endless =
                (span.nanos() > MAX_DURATION_NS).then_some((span.start, DurationContradiction::TooLong));
            let (end, contradiction) = later.into_iter().chain(waited).min().or(endless)?;
            Some(Suspect { at, end, contradiction })
        };
        self.spans.iter().enumerate().filter_map(suspect).collect()
    }
}

/// Whether most of the activity's duration lies after `end`, the time at which a wait for the activity returned,
/// although the activity began before `end`.
fn is_stretched(span: &WorkSpan, end: u64) -> bool {
    let excess = span.end.saturating_sub(end);
    excess > MIN_WAIT_EXCESS_NS && span.start < end && excess > span.nanos() / 2
}

/// Returns the total busy time of all GPUs twice: with the recorded ends and with the clamped ends of activities.
/// `clamped` maps the positions of activities to their clamped ends.
fn busy_times(spans: &[WorkSpan], streams: &Streams, clamped: &IdMap<usize, u64>) -> (u64, u64) {
    let device = |at: u32| streams.key(&spans[at as usize]).0;
    let mut order: Vec<u32> = (0..spans.len() as u32).collect();
    order.sort_unstable_by_key(|at| (device(*at), spans[*at as usize].start));
    let busy = |end: &dyn Fn(usize) -> u64| {
        let mut busy = 0;
        for one_device in order.chunk_by(|a, b| device(*a) == device(*b)) {
            let mut until = 0;
            for at in one_device.iter().map(|at| *at as usize) {
                add_to(&mut busy, end(at).saturating_sub(spans[at].start.max(until)));
                until = until.max(end(at));
            }
        }
        busy
    };
    let raw = busy(&|at| spans[at].end);
    match clamped.is_empty() {
        true => (raw, raw),
        false => (raw, busy(&|at| clamped.get(&at).copied().unwrap_or(spans[at].end))),
    }
}

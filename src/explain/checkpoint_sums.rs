//! Encodes and decodes sums, for recording files that contain sums instead of rows. One [`Explain`] writes the sums,
//! and a second [`Explain`] reads these sums. `record::encode` documents the layout of keys and values.

use std::collections::BTreeMap;

use super::memory_limit::IdMapping;
use super::step_sums::{StoredSteps, step_sums};
use super::{Explain, Ledger, Snapshot, Stacks, WindowSums};
use crate::graphs::NodeTally;
use crate::join::{Activities, Launched, Launches, Origin, Sink, Tally};
use gpuflame_model::profile::{
    BusyIdle, Cause, CopyPath, Dependencies, DeviceTime, DeviceUse, DurationSpread, LaunchDelays, Leaf,
    LeafFrame, Profile, RootMark, RowFacts, Sample, SampleSite, SteadyPart, SteadyRule, StepSeries,
    StepTotals, StreamUse, VIEWS, Weight, WorkDelays, WorkStats, add_values,
};
use gpuflame_model::record::{
    Activity, Caller, Chunk, ContextId, CopyKind, CorrelationId, DeviceId, Fields, GpuContextId, IdMap, Loss,
    MemoryKind, Missing, NameId, Nanos, Payload, Row, StreamId, SumsWriter, SyncKind, ThreadId, UnifiedKind,
    WindowEdge, Work,
};
use gpuflame_model::sorting;

/// Kinds of sums that a file can contain. The first byte of a sum's key is the kind of the sum.
mod kind {
    pub(super) const SAMPLE: u8 = 1;
    pub(super) const WORK: u8 = 2;
    pub(super) const DEVICE: u8 = 3;
    pub(super) const TIME: u8 = 4;
    pub(super) const STREAM: u8 = 5;
    pub(super) const TALLY: u8 = 6;
    pub(super) const NODES: u8 = 7;
    pub(super) const STACKS: u8 = 8;
    pub(super) const HELD: u8 = 9;
    pub(super) const DEPENDENCIES: u8 = 10;
    pub(super) const SYNC: u8 = 11;
    pub(super) const LOSS: u8 = 12;
    pub(super) const WINDOW: u8 = 13;
    pub(super) const STEPS: u8 = 14;
    pub(super) const STEADY: u8 = 15;
    pub(super) const TIME_PARTS: u8 = 16;
    pub(super) const SPREAD: u8 = 17;
    pub(super) const DELAYS: u8 = 18;
    pub(super) const COPIES: u8 = 19;
    pub(super) const ROW_FACTS: u8 = 20;
    pub(super) const STEP_SERIES: u8 = 21;
}

/// Upper limit for the total of all values of all sums in a file. No real run exceeds this limit, and totals below it
/// can be computed without overflow.
const MAX_TOTAL: u64 = 1 << 62;
/// Maximum number of values in one sum that stores a part of a histogram. Each histogram bucket is stored as two
/// values. A complete histogram is stored in at most 36 sums.
const MAX_BUCKET_VALUES: usize = 250;
/// Number of bits in each of the three parts into which a sum of squared durations is split. The three parts together
/// have 126 bits, which is enough for the squared durations in any process.
const SQUARES_PART_BITS: u32 = 42;
const SQUARES_PART_MASK: u64 = (1 << SQUARES_PART_BITS) - 1;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
const STEADY_RULES: [SteadyRule; 2] = [SteadyRule::Steps, SteadyRule::Repeated];

const MISSING_REASONS: [Missing; 6] = [
    Missing::LaunchedBefore,
    Missing::DeviceGraph,
    Missing::NoStack,
    Missing::Untimed,
    Missing::Pending,
    Missing::Outside,
];
const ROOT_MARKS: [Option<RootMark>; 5] = [
    None,
    Some(RootMark::Opening),
    Some(RootMark::Closing),
    Some(RootMark::StartUp),
    Some(RootMark::Shutdown),
];

impl Explain {
    /// Appends the sums over all rows so far to `chunk`. Sums that did not change since the last call are skipped.
    /// `counted` contains the numbers of lost items that no row reports.
    pub fn write_sums(&mut self, counted: &[(Loss, u64)], written: &mut SumsWriter, chunk: &mut Chunk) {
        let snapshot = self.snapshot(counted, &mut ());
        let Snapshot { profile, ledger } = &snapshot;
        written.write(chunk, |each| sums(profile, ledger, profile.windows(), each));
        // Drop the profile's samples, because they take as much memory as the sums from which the samples were made.
        self.profile.forget_sums();
    }

    /// Appends to `chunk` the sums that the profile contains after [`Explain::finish`]. The sums also stay in the
    /// profile.
    pub fn write_finished(&self, ledger: &Ledger, written: &mut SumsWriter, chunk: &mut Chunk) {
        written.write(chunk, |each| sums(&self.profile, ledger, self.profile.windows(), each));
    }

    /// Appends the sums of a window that was removed from [`PerWindowSums`](super::PerWindowSums). Launches that have
    /// no activity so far are written as launches without an activity. Returns the number of launches that have no
    /// activity so far.
    pub fn write_window_sums(
        &mut self,
        mut part: WindowSums,
        counted: &[(Loss, u64)],
        chunk: &mut Chunk,
    ) -> u64 {
        let open = part.open();
        if open > 0 {
            let (from, to) = part.span();
            self.join.pending_between(Nanos(from.0.saturating_sub(1)), to, &mut PendingToWindow(&mut part));
        }
        let replacements = IdMap::default();
        let mapping = IdMapping::new(&self.profile, &replacements);
        if mapping.has_any() {
            part.aggregate.rename(|id| mapping.context(id), |id| mapping.kernel(id));
        }
        let WindowSums { edges, aggregate, timeline, host, tally, nodes, steps, .. } = part;
        let profile = &mut self.profile;
        profile.set_losses(sorting::into_map(counted.iter().copied()));
        aggregate.fill(profile);
        timeline.end(profile);
        host.fill(profile);
        profile.set_steps(steps);
        profile.set_step_series(StepSeries::default());
        profile.set_row_facts(None);
        let ledger = Ledger::new(profile, tally, nodes, Stacks::default(), host.held());
        SumsWriter::default().write(chunk, |each| sums(profile, &ledger, &edges, each));
        profile.forget_sums();
        open
    }

    /// Forgets the sums and windows that were read from a file of sums. Call this function before reading a second file
    /// that has the same stacks.
    pub fn forget_checkpoint(&mut self) {
        self.checkpoint = None;
        self.profile.forget_windows();
        self.profile.forget_sums();
    }

    /// Whether enough memory is left to run [`Explain::write_sums`] without exceeding the memory ceiling. `held` is the
    /// number of bytes that gpuflame uses now.
    pub fn has_room(&self, held: usize) -> bool {
        self.ceiling.saturating_sub(held) >= self.checkpoint_bytes()
    }

    /// Returns an upper bound for the heap bytes that [`Explain::write_sums`] uses. [`Explain::write_sums`] copies the
    /// sums, converts them to samples, and stores a hash of each sum that it writes.
    pub fn checkpoint_bytes(&self) -> usize {
        let copies =
            self.aggregate.heap_bytes() + self.timeline.heap_bytes() + 3 * self.step_series.heap_bytes();
        copies + self.aggregate.cells() * (4 * size_of::<Sample>() + 150)
    }

    /// Returns the number of stacks, kernels and thread names that were dropped so far. If this number has grown since
    /// a file of sums was created, do not append to that file.
    pub fn dropped_count(&self) -> u64 {
        self.dropped.losses().iter().map(|(_, count)| count).sum()
    }
}

/// A sink that receives the launches without an activity so far, and adds these launches to the sums of a window.
struct PendingToWindow<'a>(&'a mut WindowSums);

impl Sink for PendingToWindow<'_> {
    fn activity(&mut self, _activity: &Activity, _origin: Origin) {}

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        self.0.pending(id, launched);
    }
}

/// Passes each sum of a snapshot to `each`, as a key and its values.
pub(super) fn sums(
    profile: &Profile,
    ledger: &Ledger,
    windows: &[(WindowEdge, Nanos)],
    each: &mut dyn FnMut(&[u8], &[u64]),
) {
    let mut key = Vec::new();
    let mut sum = |of: u8, more: &dyn Fn(&mut Payload<'_>), values: &[u64]| {
        key.clear();
        let mut out = Payload(&mut key);
        out.u8(of);
        more(&mut out);
        each(&key, values);
    };
    for (number, view) in (0..).zip(VIEWS) {
        let counted = view.values.len().max(1);
        for sample in profile.samples(view) {
            sum(kind::SAMPLE, &|out| put_sample(out, number, sample), &sample.values[..counted]);
        }
    }
    for work in profile.works() {
        let WorkStats { weight, min, max, percentiles: [p50, p95, p99], .. } = *work;
        let values = [weight.count, weight.nanos, weight.bytes, min, max, p50, p95, p99];
        let put = |out: &mut Payload<'_>| {
            put_leaf_frame(out, LeafFrame::Work(work.work));
            out.u32(work.device.0);
        };
        sum(kind::WORK, &put, &values);
    }
    for spread in profile.spreads() {
        let put = |out: &mut Payload<'_>| {
            put_site(out, spread.site);
            put_leaf_frame(out, LeafFrame::Work(spread.work));
            out.option(spread.device.map(|device| device.0));
            put_stream(out, spread.stream);
        };
        let [low, middle, high] = split_squares(spread.squares);
        sum(kind::SPREAD, &put, &[spread.count, spread.nanos, low, middle, high]);
    }
    let mut values = Vec::new();
    for WorkDelays { work, device, delays } in profile.delays() {
        let LaunchDelays { ref histogram, sum: total, max, started_before_call } = *delays;
        let mut part = 0;
        let mut put = |values: &[u64]| {
            let put = |out: &mut Payload<'_>| {
                put_leaf_frame(out, LeafFrame::Work(*work));
                out.u32(device.0).u8(part);
            };
            sum(kind::DELAYS, &put, values);
            part += 1;
        };
        put(&[total, max, started_before_call]);
        values.clear();
        values.extend(histogram.buckets().flat_map(|(bucket, count)| [bucket.into(), count]));
        values.chunks(MAX_BUCKET_VALUES).for_each(put);
    }
    for (path, weight) in profile.copies() {
        let CopyPath { device, kind, from, to } = *path;
        let put = |out: &mut Payload<'_>| _ = out.u32(device.0).u8(kind.0).u16(from.0).u16(to.0);
        sum(kind::COPIES, &put, &[weight.count, weight.nanos, weight.bytes]);
    }
    for device in profile.devices() {
        sum(kind::DEVICE, &|out| _ = out.u32(device.device.0), &[device.count, device.nanos]);
    }
    for time in profile.times() {
        let DeviceTime { window, busy, idle, late, late_count, early, early_count, first, last, .. } = *time;
        let values = [window, busy, idle, late, late_count, early, early_count, first.0, last.0];
        sum(kind::TIME, &|out| _ = out.u32(time.device.0), &values);
        let parts = [time.start_up.busy, time.start_up.idle, time.shutdown.busy, time.shutdown.idle];
        if parts != [0; 4] {
            sum(kind::TIME_PARTS, &|out| _ = out.u32(time.device.0), &parts);
        }
    }
    for stream in profile.streams() {
        let put = |out: &mut Payload<'_>| {
            out.u32(stream.device.0);
            put_stream(out, stream.stream);
        };
        sum(kind::STREAM, &put, &[stream.count, stream.nanos]);
    }
    let nothing = |_: &mut Payload<'_>| {};
    sum(kind::TALLY, &nothing, &tally_values(&ledger.tally));
    let NodeTally { created, before_recording, unknown } = ledger.nodes;
    sum(kind::NODES, &nothing, &[created, before_recording, unknown]);
    let Stacks { distinct, truncated, guessed, cut, module_unknown } = ledger.stacks;
    sum(kind::STACKS, &nothing, &[distinct, truncated, guessed, cut, module_unknown]);
    sum(kind::HELD, &nothing, &[ledger.host.held, ledger.host.held_max]);
    let known = &ledger.dependencies;
    sum(kind::DEPENDENCIES, &nothing, &[known.record_calls, known.wait_calls, known.event_records]);
    if let Some(steady) = profile.steady() {
        sum(kind::STEADY, &nothing, &steady_values(steady));
    }
    if ledger.steps.count > 0 {
        sum(kind::STEPS, &nothing, &step_values(ledger.steps));
    }
    if let Some(facts) = profile.row_facts() {
        sum(kind::ROW_FACTS, &nothing, &row_fact_values(facts));
    }
    for (kind, count) in &known.syncs {
        sum(kind::SYNC, &|out| _ = out.u32(kind.0), &[*count]);
    }
    for (loss, count) in &ledger.losses {
        sum(kind::LOSS, &|out| _ = out.u8(*loss as u8), &[*count]);
    }
    for (edge, time) in windows {
        sum(kind::WINDOW, &|out| _ = out.u8(u8::from(*edge == WindowEdge::Close)), &[time.0]);
    }
    step_sums(profile.step_series(), ledger.steps.first, kind::STEP_SERIES, each);
}

/// Encodes the totals over the program's steps as values of a sum. Each time is split into seconds and nanoseconds,
/// because older versions of gpuflame add up all values of a file and reject a total above `MAX_TOTAL`. Older versions
/// also add the values of kinds of sums that they do not know.
fn step_values(steps: StepTotals) -> [u64; 8] {
    let StepTotals { count, first_number, first, last, thread, has_several_threads } = steps;
    let ([first_s, first_ns], [last_s, last_ns]) = (split_time(first), split_time(last));
    let (thread, several) = (thread.0.into(), has_several_threads.into());
    [count, first_number, first_s, first_ns, last_s, last_ns, thread, several]
}

fn row_fact_values(facts: RowFacts) -> [u64; 11] {
    let RowFacts {
        closed_windows,
        covered_launches,
        backwards,
        zero_length,
        too_long,
        early_ns,
        shared_launches,
        pending_at_end,
        queued,
        queued_graphs,
        ends_before_gpu,
    } = facts;
    let ends_before_gpu = ends_before_gpu.into();
    [
        closed_windows,
        covered_launches,
        backwards,
        zero_length,
        too_long,
        early_ns,
        shared_launches,
        pending_at_end,
        queued,
        queued_graphs,
        ends_before_gpu,
    ]
}

/// Splits a sum of squared durations into parts that are small enough for [`MAX_TOTAL`], as in [`step_values`].
fn split_squares(squares: u128) -> [u64; 3] {
    [0, 1, 2].map(|part| (squares >> (part * SQUARES_PART_BITS)) as u64 & SQUARES_PART_MASK)
}

fn join_squares(parts: [u64; 3]) -> Option<u128> {
    let is_part = |part: &u64| *part <= SQUARES_PART_MASK;
    let add = |sum: u128, part: &u64| sum << SQUARES_PART_BITS | u128::from(*part);
    parts.iter().all(is_part).then(|| parts.iter().rev().fold(0, add))
}

fn split_time(time: Nanos) -> [u64; 2] {
    [time.0 / NANOS_PER_SECOND, time.0 % NANOS_PER_SECOND]
}

fn join_time(seconds: u64, nanos: u64) -> Option<Nanos> {
    let seconds = seconds.checked_mul(NANOS_PER_SECOND)?;
    (nanos < NANOS_PER_SECOND).then(|| seconds.checked_add(nanos).map(Nanos))?
}

/// Encodes the steady part of the run as values of a sum. Each time is split into seconds and nanoseconds, as in
/// [`step_values`].
fn steady_values(SteadyPart { rule, begin, end }: SteadyPart) -> [u64; 5] {
    let ([begin_s, begin_ns], [end_s, end_ns]) = (split_time(begin), split_time(end));
    [position(&STEADY_RULES, rule).into(), begin_s, begin_ns, end_s, end_ns]
}

fn decode_steady(values: &[u64]) -> Option<SteadyPart> {
    let &[rule, begin_s, begin_ns, end_s, end_ns] = values else { return None };
    let rule = *STEADY_RULES.get(usize::try_from(rule).ok()?)?;
    let (begin, end) = (join_time(begin_s, begin_ns)?, join_time(end_s, end_ns)?);
    (begin <= end).then_some(SteadyPart { rule, begin, end })
}

fn decode_steps(values: &[u64]) -> Option<StepTotals> {
    let &[count, first_number, first_s, first_ns, last_s, last_ns, thread, several] = values else {
        return None;
    };
    let (first, last) = (join_time(first_s, first_ns)?, join_time(last_s, last_ns)?);
    let (thread, has_several_threads) = (ThreadId(thread.try_into().ok()?), several != 0);
    (first <= last).then_some(StepTotals { count, first_number, first, last, thread, has_several_threads })
}

fn tally_values(tally: &Tally) -> [u64; 18] {
    let (launches, activities) = (tally.launches, tally.activities);
    let Launches { seen, matched, graphs, pending, outside, aliases, not_told_nanos } = launches;
    let of_launches = [seen, matched, graphs, pending, outside, aliases];
    let Activities {
        seen,
        matched,
        launched_before,
        device_graph,
        no_stack,
        outside,
        untimed,
        early,
        not_told,
        repeated,
        of_no_call,
    } = activities;
    let of_activities = [seen, matched, launched_before, device_graph, no_stack, outside, untimed, early];
    let mut all = [0; 18];
    all[..6].copy_from_slice(&of_launches);
    all[6..14].copy_from_slice(&of_activities);
    all[14..].copy_from_slice(&[not_told_nanos, not_told, repeated, of_no_call]);
    all
}

fn put_sample(out: &mut Payload<'_>, view: u8, sample: &Sample) {
    let root_mark = ROOT_MARKS.iter().position(|root_mark| *root_mark == sample.root_mark).unwrap_or(0);
    out.u8(view).u8(root_mark as u8);
    put_site(out, sample.site);
    out.u8(sample.leaf.frames().count() as u8);
    sample.leaf.frames().for_each(|leaf_frame| put_leaf_frame(out, leaf_frame));
    out.option(sample.device.map(|device| device.0));
    put_stream(out, sample.stream);
}

fn put_site(out: &mut Payload<'_>, site: SampleSite) {
    match site {
        SampleSite::Context(context) => out.u8(0).u32(Caller::from(context).bits()),
        SampleSite::Missing(missing) => out.u8(0).u32(Caller::from(Err(missing)).bits()),
        SampleSite::Node { launch, created } => {
            out.u8(1).u32(Caller::from(launch).bits()).u32(Caller::from(created).bits())
        }
        SampleSite::NoStack => out.u8(2),
        SampleSite::Between { after, thread, before } => {
            out.u8(3).u32(after.0).option(thread.map(|thread| thread.0)).u32(before.0)
        }
    };
}

fn put_leaf_frame(out: &mut Payload<'_>, leaf_frame: LeafFrame) {
    let (kind, value) = match leaf_frame {
        LeafFrame::Work(Work::Kernel(name)) => (0, name.0),
        LeafFrame::Work(Work::Copy(kind)) => (1, kind.0.into()),
        LeafFrame::Work(Work::Set) => (2, 0),
        LeafFrame::Work(Work::Graph) => (3, 0),
        LeafFrame::Missing(missing) => (4, position(&MISSING_REASONS, missing)),
        LeafFrame::Idle(cause) => (5, position(&Cause::ALL, cause)),
        LeafFrame::IdleUntilClose => (6, 0),
        LeafFrame::Allocate(memory) => (7, memory.0.into()),
        LeafFrame::Free(Some(memory)) => (8, memory.0.into()),
        LeafFrame::Free(None) => (9, 0),
        LeafFrame::Unified(kind) => (10, kind.0),
        LeafFrame::Lost(loss) => (11, loss as u32),
        // Samples with these leaf frames do not occur in a process that stores sums.
        LeafFrame::OnCpu | LeafFrame::OffCpu | LeafFrame::Named(..) => (u8::MAX, 0),
    };
    out.u8(kind).u32(value);
}

fn position<T: PartialEq>(all: &[T], one: T) -> u32 {
    all.iter().position(|known| *known == one).unwrap_or(0) as u32
}

fn put_stream(out: &mut Payload<'_>, stream: Option<(GpuContextId, StreamId)>) {
    match stream {
        None => out.u8(0),
        Some((context, stream)) => out.u8(1).u32(context.0).u32(stream.0),
    };
}

/// Sums that were read from a file.
#[derive(Debug, Default)]
pub(super) struct CheckpointSums {
    /// Samples of each view, keyed by the view's index in [`VIEWS`].
    samples: BTreeMap<usize, Vec<Sample>>,
    works: Vec<WorkStats>,
    spreads: Vec<DurationSpread>,
    delays: Vec<WorkDelays>,
    copies: Vec<(CopyPath, Weight)>,
    devices: Vec<DeviceUse>,
    times: Vec<DeviceTime>,
    streams: Vec<StreamUse>,
    pub(super) tally: Tally,
    pub(super) nodes: NodeTally,
    pub(super) stacks: Stacks,
    /// Number of bytes that the program has allocated and not freed, and the maximum of this number during the run.
    pub(super) held: (u64, u64),
    dependencies: Dependencies,
    steps: StepTotals,
    stored_steps: StoredSteps,
    steady: Option<SteadyPart>,
    row_facts: Option<RowFacts>,
    /// Busy and idle time of each device before the steady part of the run, and after the steady part.
    time_parts: BTreeMap<DeviceId, [BusyIdle; 2]>,
    pub(super) losses: BTreeMap<Loss, u64>,
    /// Total of all values read so far, which must stay below `MAX_TOTAL`.
    total: u64,
}

impl CheckpointSums {
    /// Adds a sum that was read from a file. Skips a sum of a kind that this version does not know, and a sum with
    /// impossible values. `first` maps a context to the context that represents it, which is the first context with the
    /// same stack.
    pub(super) fn push(&mut self, key: &[u8], values: &[u64], first: impl Fn(ContextId) -> ContextId) {
        let _ = self.add_sum(&mut Fields(key), values, first);
    }

    fn add_sum(
        &mut self,
        key: &mut Fields<'_>,
        values: &[u64],
        first: impl Fn(ContextId) -> ContextId,
    ) -> Option<()> {
        let of = key.u8()?;
        // The first seven values of a device's times are durations. The further values are timestamps, which do not
        // count toward the limit `MAX_TOTAL`.
        let counted = if of == kind::TIME { values.get(..7)? } else { values };
        let total = counted.iter().try_fold(self.total, |sum, value| sum.checked_add(*value));
        self.total = total.filter(|total| *total < MAX_TOTAL)?;
        match (of, values) {
            (kind::SAMPLE, _) => self.add_sample(key, values, first)?,
            (kind::WORK, &[count, nanos, bytes, min, max, p50, p95, p99]) => {
                let LeafFrame::Work(work) = decode_leaf_frame(key)? else { return None };
                let (device, weight) = (DeviceId(key.u32()?), Weight { count, nanos, bytes });
                self.works.push(WorkStats { work, device, weight, min, max, percentiles: [p50, p95, p99] });
            }
            (kind::SPREAD, &[count, nanos, low, middle, high]) => {
                let site = map_contexts(decode_site(key)?, first);
                let LeafFrame::Work(work) = decode_leaf_frame(key)? else { return None };
                let (device, stream) = (key.option()?.map(DeviceId), decode_stream(key)?);
                let squares = join_squares([low, middle, high])?;
                self.spreads.push(DurationSpread { site, work, device, stream, count, nanos, squares });
            }
            (kind::DELAYS, _) => {
                let LeafFrame::Work(work) = decode_leaf_frame(key)? else { return None };
                let device = DeviceId(key.u32()?);
                // All sums for one kind of work on one device are consecutive.
                if self.delays.last().is_none_or(|last| (last.work, last.device) != (work, device)) {
                    self.delays.push(WorkDelays { work, device, delays: LaunchDelays::default() });
                }
                let delays = &mut self.delays.last_mut()?.delays;
                match (key.u8()?, values) {
                    (0, &[sum, max, early]) => {
                        (delays.sum, delays.max, delays.started_before_call) = (sum, max, early);
                    }
                    (0, _) => return None,
                    _ => {
                        for pair in values.as_chunks().0 {
                            let &[bucket, count] = pair;
                            delays.histogram.add_bucket(bucket.try_into().ok()?, count).then_some(())?;
                        }
                    }
                }
            }
            (kind::COPIES, &[count, nanos, bytes]) => {
                let device = DeviceId(key.u32()?);
                let (kind, from) = (CopyKind(key.u8()?), MemoryKind(key.u16()?));
                let path = CopyPath { device, kind, from, to: MemoryKind(key.u16()?) };
                self.copies.push((path, Weight { count, nanos, bytes }));
            }
            (kind::DEVICE, &[count, nanos]) => {
                self.devices.push(DeviceUse { device: DeviceId(key.u32()?), count, nanos });
            }
            (kind::TIME, &[window, busy, idle, late, late_count, early, early_count, first, last]) => {
                let (device, first, last) = (DeviceId(key.u32()?), Nanos(first), Nanos(last));
                let time = DeviceTime {
                    device,
                    window,
                    busy,
                    idle,
                    late,
                    late_count,
                    early,
                    early_count,
                    first,
                    last,
                    start_up: BusyIdle::default(),
                    shutdown: BusyIdle::default(),
                };
                (window == busy + idle && first <= last).then(|| self.times.push(time))?;
            }
            (kind::STREAM, &[count, nanos]) => {
                let (device, stream) = (DeviceId(key.u32()?), decode_stream(key)?);
                self.streams.push(StreamUse { device, stream, count, nanos });
            }
            (kind::TALLY, values) => self.tally = decode_tally(values)?,
            (kind::NODES, &[created, before_recording, unknown]) => {
                self.nodes = NodeTally { created, before_recording, unknown };
            }
            (kind::STACKS, &[distinct, truncated, guessed, cut, module_unknown]) => {
                self.stacks = Stacks { distinct, truncated, guessed, cut, module_unknown };
            }
            (kind::HELD, &[held, most]) => self.held = (held, most),
            (kind::DEPENDENCIES, &[record_calls, wait_calls, event_records]) => {
                let syncs = std::mem::take(&mut self.dependencies.syncs);
                self.dependencies = Dependencies { record_calls, wait_calls, event_records, syncs };
            }
            (kind::STEADY, values) => self.steady = Some(decode_steady(values)?),
            (kind::TIME_PARTS, &[busy, idle, later_busy, later_idle]) => {
                let shutdown = BusyIdle { busy: later_busy, idle: later_idle };
                self.time_parts.insert(DeviceId(key.u32()?), [BusyIdle { busy, idle }, shutdown]);
            }
            (
                kind::ROW_FACTS,
                &[
                    closed_windows,
                    covered_launches,
                    backwards,
                    zero_length,
                    too_long,
                    early_ns,
                    shared_launches,
                    pending_at_end,
                    queued,
                    queued_graphs,
                    ends_before_gpu,
                ],
            ) => {
                let ends_before_gpu = ends_before_gpu != 0;
                self.row_facts = Some(RowFacts {
                    closed_windows,
                    covered_launches,
                    backwards,
                    zero_length,
                    too_long,
                    early_ns,
                    shared_launches,
                    pending_at_end,
                    queued,
                    queued_graphs,
                    ends_before_gpu,
                });
            }
            (kind::STEPS, values) => self.steps = decode_steps(values)?,
            (kind::STEP_SERIES, values) => self.stored_steps.add(key, values)?,
            (kind::SYNC, &[count]) => drop(self.dependencies.syncs.insert(SyncKind(key.u32()?), count)),
            (kind::LOSS, &[count]) => drop(self.losses.insert(decode_loss(key.u8()?.into())?, count)),
            _ => return None,
        }
        Some(())
    }

    fn add_sample(
        &mut self,
        key: &mut Fields<'_>,
        sums: &[u64],
        first: impl Fn(ContextId) -> ContextId,
    ) -> Option<()> {
        let view = usize::from(key.u8()?);
        let root_mark = *ROOT_MARKS.get(usize::from(key.u8()?))?;
        let site = map_contexts(decode_site(key)?, first);
        let count = key.u8()?;
        let frames = (0..count).map(|_| decode_leaf_frame(key)).collect::<Option<Vec<_>>>()?;
        if frames.len() > Leaf::MAX_FRAMES || view >= VIEWS.len() {
            return None;
        }
        let (device, stream) = (key.option()?.map(DeviceId), decode_stream(key)?);
        let mut sample = Sample { root_mark, device, stream, ..Sample::new(site, Leaf::new(&frames)) };
        sample.values.get_mut(..sums.len())?.copy_from_slice(sums);
        self.samples.entry(view).or_default().push(sample);
        Some(())
    }

    /// Decodes the opening or closing of a window. Window edges are stored in the profile, and not in this struct.
    pub(super) fn window(key: &[u8], values: &[u64]) -> Option<Row<'static>> {
        match (key, values) {
            (&[kind::WINDOW, edge @ 0..=1], &[time]) => {
                let edge = if edge == 0 { WindowEdge::Open } else { WindowEdge::Close };
                Some(Row::Window { edge, time: Nanos(time) })
            }
            _ => None,
        }
    }

    /// Replaces the sums in `profile` by the stored sums.
    pub(super) fn fill(&self, profile: &mut Profile) {
        for (&view, samples) in &self.samples {
            profile.set_samples(VIEWS[view], merge_samples(samples.clone()));
        }
        profile.set_works(self.works.clone(), self.devices.clone());
        profile.set_spreads(self.spreads.clone());
        profile.set_delays_and_copies(self.delays.clone(), self.copies.clone());
        let mut times = self.times.clone();
        for time in &mut times {
            let [start_up, shutdown] = self.time_parts.get(&time.device).copied().unwrap_or_default();
            let busy = start_up.busy.saturating_add(shutdown.busy);
            let idle = start_up.idle.saturating_add(shutdown.idle);
            if busy <= time.busy && idle <= time.idle {
                (time.start_up, time.shutdown) = (start_up, shutdown);
            }
        }
        profile.set_times(times, self.streams.clone());
        profile.set_steady(self.steady);
        profile.set_dependencies(self.dependencies.clone());
        profile.set_steps(self.steps);
        profile.set_row_facts(self.row_facts);
        profile.set_step_series(self.stored_steps.series(self.steps.first));
    }

    /// Replaces each context by the result of `context`, and each kernel by the result of `kernel`.
    pub(super) fn rename(
        &mut self,
        context: impl Fn(ContextId) -> ContextId,
        kernel: impl Fn(NameId) -> NameId,
    ) {
        let known = |id: ContextId| if id < ContextId::FIRST { id } else { context(id) };
        let leaf_frame = |leaf_frame| match leaf_frame {
            LeafFrame::Work(Work::Kernel(name)) => LeafFrame::Work(Work::Kernel(kernel(name))),
            other => other,
        };
        for sample in self.samples.values_mut().flatten() {
            sample.site = map_contexts(sample.site, known);
            let frames: Vec<_> = sample.leaf.frames().map(leaf_frame).collect();
            sample.leaf = Leaf::new(&frames);
        }
        for spread in &mut self.spreads {
            spread.site = map_contexts(spread.site, known);
            if let Work::Kernel(name) = &mut spread.work {
                *name = kernel(*name);
            }
        }
        for delays in &mut self.delays {
            if let Work::Kernel(name) = &mut delays.work {
                *name = kernel(*name);
            }
        }
        let mut works: BTreeMap<(Work, DeviceId), WorkStats> = BTreeMap::new();
        for mut stats in std::mem::take(&mut self.works) {
            if let Work::Kernel(name) = &mut stats.work {
                *name = kernel(*name);
            }
            let known = works.entry((stats.work, stats.device));
            known.and_modify(|known| add_stats(known, stats)).or_insert(stats);
        }
        self.works = works.into_values().collect();
    }

    /// Returns the context, count and amount of each sample. A sample of a graph node is returned twice: once for the
    /// context that launched the graph, and once for the context that created the node.
    pub(super) fn weights(&self) -> impl Iterator<Item = (ContextId, u64, u64)> {
        self.samples.values().flatten().flat_map(|sample| {
            let of = |id: Option<ContextId>| id.map(|id| (id, sample.count(), sample.amount()));
            let created = match sample.site {
                SampleSite::Node { created, .. } => Caller::from(created).launched().ok(),
                _ => None,
            };
            [of(sample.site.launch().ok()), of(created)].into_iter().flatten()
        })
    }

    /// Returns the number, total nanoseconds and bytes of the activities of each kernel.
    pub(super) fn kernel_weights(&self) -> IdMap<NameId, Weight> {
        let kernels = self.works.iter().filter_map(|stats| match stats.work {
            Work::Kernel(name) => Some((name, stats.weight)),
            _ => None,
        });
        kernels.collect()
    }

    /// Returns the number of samples.
    pub(super) fn len(&self) -> usize {
        self.samples.values().map(Vec::len).sum()
    }
}

/// Merges samples that differ only in their values.
fn merge_samples(mut samples: Vec<Sample>) -> Vec<Sample> {
    samples.sort_unstable();
    samples.dedup_by(|next, kept| {
        let is_same = Sample { values: kept.values, ..*next } == *kept;
        if is_same {
            add_values(&mut kept.values, next.values);
        }
        is_same
    });
    samples
}

/// Adds the duration statistics `more` to `sum`. The percentiles of the combined durations are unknown, so the larger
/// of the two percentiles is used as an estimate.
fn add_stats(sum: &mut WorkStats, more: WorkStats) {
    sum.weight.count += more.weight.count;
    sum.weight.nanos += more.weight.nanos;
    sum.weight.bytes += more.weight.bytes;
    sum.min = sum.min.min(more.min);
    sum.max = sum.max.max(more.max);
    sum.percentiles.iter_mut().zip(more.percentiles).for_each(|(sum, more)| *sum = more.max(*sum));
}

fn decode_tally(values: &[u64]) -> Option<Tally> {
    // Files written by older versions of gpuflame contain up to four fewer of the values that are read here.
    let (values, more) = values.split_at_checked(14)?;
    let (not_told_nanos, not_told, repeated, of_no_call) = match *more {
        [] => (0, 0, 0, 0),
        [nanos, activities] => (nanos, activities, 0, 0),
        [nanos, activities, repeated] => (nanos, activities, repeated, 0),
        [nanos, activities, repeated, of_no_call] => (nanos, activities, repeated, of_no_call),
        _ => return None,
    };
    let values: [u64; 14] = values.try_into().ok()?;
    let [seen, matched, graphs, pending, outside, aliases, rest @ ..] = values;
    let launches = Launches { seen, matched, graphs, pending, outside, aliases, not_told_nanos };
    let [seen, matched, launched_before, device_graph, no_stack, outside, untimed, early] = rest;
    let activities = Activities {
        seen,
        matched,
        launched_before,
        device_graph,
        no_stack,
        outside,
        untimed,
        early,
        not_told,
        repeated,
        of_no_call,
    };
    let adds_up = |seen: u64, parts: &[(&str, u64)]| parts.iter().map(|(_, part)| part).sum::<u64>() == seen;
    let is_sound = adds_up(launches.seen, &launches.parts()) && adds_up(activities.seen, &activities.parts());
    is_sound.then_some(Tally { launches, activities })
}

fn decode_site(key: &mut Fields<'_>) -> Option<SampleSite> {
    let kind = key.u8()?;
    Some(match kind {
        0 => Caller::from_bits(key.u32()?).launched().map_or_else(SampleSite::Missing, SampleSite::Context),
        1 => {
            let (launch, created) = (Caller::from_bits(key.u32()?), Caller::from_bits(key.u32()?));
            SampleSite::Node { launch: launch.launched(), created: created.created() }
        }
        2 => SampleSite::NoStack,
        3 => {
            let (after, thread) = (ContextId(key.u32()?), key.option()?.map(ThreadId));
            SampleSite::Between { after, thread, before: ContextId(key.u32()?) }
        }
        _ => return None,
    })
}

fn map_contexts(site: SampleSite, context: impl Fn(ContextId) -> ContextId) -> SampleSite {
    let created_by = |created: Caller| created.launched().map_or(created, |id| context(id).into());
    match site {
        SampleSite::Context(id) => SampleSite::Context(context(id)),
        SampleSite::Node { launch, created } => {
            SampleSite::Node { launch: launch.map(&context), created: created_by(created.into()).created() }
        }
        SampleSite::Between { after, thread, before } => {
            SampleSite::Between { after: context(after), thread, before: context(before) }
        }
        other => other,
    }
}

fn decode_leaf_frame(key: &mut Fields<'_>) -> Option<LeafFrame> {
    let (kind, value) = (key.u8()?, key.u32()?);
    Some(match kind {
        0 => LeafFrame::Work(Work::Kernel(NameId(value))),
        1 => LeafFrame::Work(Work::Copy(CopyKind(value.try_into().ok()?))),
        2 => LeafFrame::Work(Work::Set),
        3 => LeafFrame::Work(Work::Graph),
        4 => LeafFrame::Missing(*MISSING_REASONS.get(value as usize)?),
        5 => LeafFrame::Idle(*Cause::ALL.get(value as usize)?),
        6 => LeafFrame::IdleUntilClose,
        7 => LeafFrame::Allocate(MemoryKind(value.try_into().ok()?)),
        8 => LeafFrame::Free(Some(MemoryKind(value.try_into().ok()?))),
        9 => LeafFrame::Free(None),
        10 => LeafFrame::Unified(UnifiedKind(value)),
        11 => LeafFrame::Lost(decode_loss(value)?),
        _ => return None,
    })
}

fn decode_loss(number: u32) -> Option<Loss> {
    Loss::ALL.into_iter().find(|loss| *loss as u32 == number)
}

fn decode_stream(key: &mut Fields<'_>) -> Option<Option<(GpuContextId, StreamId)>> {
    Some(match key.u8()? {
        0 => None,
        _ => Some((GpuContextId(key.u32()?), StreamId(key.u32()?))),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Definitions, Options};
    use super::*;
    use gpuflame_model::profile::views::IDLE;
    use gpuflame_model::record::testing::{each_row_of_cycle, kernel, launch};
    use gpuflame_model::record::{CheckpointMark, Launch, Reader};

    /// Returns all data from which outputs are made, as text.
    fn shown(explain: &mut Explain) -> String {
        let snapshot = explain.snapshot(&[(Loss::LaunchesFailed, 5)], &mut ());
        let profile = &*snapshot.profile;
        let samples: Vec<_> = VIEWS.iter().map(|view| profile.samples(view)).collect();
        let stacks: Vec<_> =
            profile.contexts().into_iter().map(|id| profile.context(id).unwrap().flags).collect();
        let beside =
            (profile.works(), profile.devices(), profile.times(), profile.streams(), profile.windows());
        format!("{:?}\n{samples:?}\n{stacks:?}\n{beside:?}", snapshot.ledger)
    }

    fn read(file: &[u8]) -> Explain {
        let mut explain = Explain::default();
        let mut reader = Reader::new(file).unwrap();
        while let Some(row) = reader.next_row().unwrap() {
            explain.push(&row, &mut ());
        }
        explain
    }

    /// Pushes the rows of three launches, with a pause of one millisecond before the third launch. The first and the
    /// third launch were made in the same context.
    fn two_calls(explain: &mut Explain) {
        let window = |edge, time| Row::Window { edge, time: Nanos(time) };
        explain.push(&window(WindowEdge::Open, 1_000_000), &mut ());
        for (id, of, time) in [(9001, 5, 1_001_000), (9002, 6, 1_002_000), (9003, 5, 2_000_000)] {
            let launch = Launch { time: Nanos(time), duration: 500, ..launch(id, of) };
            explain.push(&Row::Launch(launch), &mut ());
            // The same activity is delivered twice.
            for _ in 0..2 {
                explain.push(&Row::Activity(kernel(id, time + 600, time + 900)), &mut ());
            }
        }
        explain.push(&window(WindowEdge::Close, 2_010_000), &mut ());
        let snapshot = explain.snapshot(&[], &mut ());
        let idle = snapshot.profile.samples(&IDLE).iter();
        let between =
            idle.filter(|sample| matches!(sample.site, SampleSite::Between { thread: Some(_), .. }));
        assert_eq!(
            between.map(Sample::amount).collect::<Vec<_>>(),
            [1_002_000 - 1_001_900, 2_000_000 - 1_002_900]
        );
    }

    #[test]
    fn stored_sums_read_back_equal_the_live_sums_after_every_append() {
        let mut explain = Explain::new(Options::default());
        let (mut definitions, mut written) = (Definitions::default(), SumsWriter::default());
        let mut file = Chunk::file_header().to_vec();
        for number in 0..30 {
            each_row_of_cycle(number, &mut |row| explain.push(row, &mut ()));
            if number == 29 {
                two_calls(&mut explain);
            }
            let mut chunk = Chunk::default();
            while !explain.write_definitions(&mut definitions, &mut chunk, 200) {
                file.extend(chunk.take());
            }
            explain.write_sums(&[(Loss::LaunchesFailed, 5)], &mut written, &mut chunk);
            chunk.mark(&CheckpointMark::default());
            file.extend(chunk.take());
            let mut checkpoint = read(&file);
            let expected = shown(&mut explain);
            checkpoint.checkpoint.as_mut().unwrap().losses.remove(&Loss::LaunchesFailed);
            assert_eq!(shown(&mut checkpoint), expected, "turn {number}");
        }
    }

    #[test]
    fn impossible_sums_are_skipped() {
        let mut checkpoint = CheckpointSums::default();
        let first = |id| id;
        checkpoint.push(&[kind::DEVICE, 0, 0, 0, 0], &[u64::MAX, 1], first);
        checkpoint.push(&[kind::DEVICE, 0, 0, 0, 0], &[1, MAX_TOTAL - 2], first);
        checkpoint.push(&[kind::DEVICE, 1, 0, 0, 0], &[1, 1], first);
        checkpoint.push(&[kind::TIME, 0, 0, 0, 0], &[10, 1, 2, 0, 0, 0, 0, 5, 6], first);
        checkpoint.push(&[kind::TALLY], &[5; 14], first);
        checkpoint.push(&[kind::SAMPLE, 9], &[1], first);
        checkpoint.push(&[kind::STEPS], &[3, 1, 7, 0, 6, 999_999_999, 1, 0], first);
        checkpoint.push(&[kind::STEPS], &[3, 1, u64::MAX >> 3, 0, u64::MAX >> 3, 0, 1, 0], first);
        checkpoint.push(&[kind::STEPS], &[3, 1, 5, 1_000_000_000, 6, 0, 1, 0], first);
        checkpoint.push(&[kind::STEPS], &[3, 1, 5, 0, 6, 0, 1 << 32, 0], first);
        checkpoint.push(&[99], &[1], first);
        checkpoint.push(&[], &[], first);
        assert_eq!((checkpoint.devices.len(), checkpoint.steps), (1, StepTotals::default()));
        assert!(checkpoint.times.is_empty() && checkpoint.tally == Tally::default() && checkpoint.len() == 0);
    }
}

//! Finds the time in which a GPU ran no kernel, and divides it into pieces. A piece is the total lost time that one
//! cause and one place in the code explain.
//!
//! For a trace, this module finds the pieces from single activities and from the states of the host's threads. In this
//! module, copies do not count as kernels, because a GPU that only copies the next batch does not compute. A recording
//! already contains its pieces as samples of idle time. In the samples of idle time, copies count as busy time.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::super::work_spans::{PlausibleSpans, WorkSpan};
use super::Lost;
use super::host::is_wait_alone;
use super::host_states::HostStates;
use super::marks::Marks;
use super::pieces::{Key, Piece, Pieces};
use super::places::{Class, Place, Places};
use super::reads::{Lead, reads};
use super::thresholds::MAX_LAUNCH_GAP_NS;
use gpuflame_explain::join::Launched;
use gpuflame_model::profile::views::{IDLE, idle_word};
use gpuflame_model::profile::{Cause, Profile, Sample, SampleSite, SteadyPart, add_to};
use gpuflame_model::record::{ContextId, DeviceId, FrameKind, IdMap, LabelId, ThreadId, Work};

/// Maximum time in ns that an idle GPU needs from the return of a launch call to the start of the launched work.
const MAX_DELIVERY_NS: u64 = 10_000;

/// A gap in time between two kernels of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) start: u64,
    pub(super) nanos: u64,
    /// Index of the piece that takes the largest part of the gap.
    pub(super) piece: usize,
}

/// All pieces of lost time, and the gaps that contain them.
#[derive(Debug, Default)]
pub(super) struct LostTime {
    pub(super) pieces: Vec<Piece>,
    /// Gaps between kernels, in order of time. For a recording, the list of gaps is empty, because the pieces of a
    /// recording have no start times.
    pub(super) gaps: Vec<Gap>,
    /// Time in ns from the start of the first kernel to the end of the last kernel in the steady part, or `None` for a
    /// recording.
    pub(super) wall: Option<u64>,
    /// Start of the first kernel and end of the last kernel, if the run has kernels.
    pub(super) kernels: Option<(u64, u64)>,
    /// For each launch context (stack and API call), the time in ns that its copies and fills took in the gaps. The map
    /// is empty for a recording.
    pub(super) copies: IdMap<ContextId, u64>,
}

/// Names of the frames, executed line and cause of a piece of lost time.
type PlaceName = (Vec<Rc<str>>, String, u8);

impl LostTime {
    /// Returns the lost time of a GPU in the steady part of a recording. For a recording, lost time is idle time.
    pub(super) fn of_recording(profile: &Profile, places: &Places<'_>, device: Option<DeviceId>) -> Self {
        let is_steady = |sample: &&Sample| sample.root_mark.is_none() && sample.device == device;
        // Places with equal names count as one place. One place can have several launch contexts, and sums and single
        // activities can have different launch contexts for it.
        let mut places_by_name: BTreeMap<PlaceName, (Key, u64, u64)> = BTreeMap::new();
        for sample in profile.samples(&IDLE).iter().filter(is_steady) {
            let Some(cause) = Cause::ALL.into_iter().find(|cause| cause.word() == idle_word(sample)) else {
                continue;
            };
            let place = places.of(sample.site);
            let name = (places.names(&place), place.line.clone(), cause as u8);
            let (_, nanos, gaps) = places_by_name.entry(name).or_insert((Key::new(sample.site, cause), 0, 0));
            add_to(nanos, sample.amount());
            *gaps += sample.count();
        }
        let mut pieces = Pieces::default();
        for (mut key, nanos, gaps) in places_by_name.into_values() {
            key.waited_at = match key.site {
                SampleSite::Between { after, .. } => Some(after),
                SampleSite::Context(context) if key.cause == Cause::HostLate => Some(context),
                _ => None,
            };
            key.is_launching = places.of(key.site).class(nanos / gaps.max(1)) == Class::Launching;
            let piece = pieces.number(key);
            pieces.add(piece, nanos, gaps);
            // In a recording, a gap may be divided among samples at several places. Such a gap is counted only at the
            // place with the largest part of the gap.
            if gaps == 0 {
                add_to(&mut pieces.pieces[piece].uncounted, nanos);
            }
        }
        Self { pieces: pieces.pieces, ..Self::default() }
    }

    /// Returns the lost time of a GPU in the steady part of a trace. For a trace, lost time is time without kernels.
    pub(super) fn of_trace(run: &TraceRun<'_>, device: Option<DeviceId>) -> Self {
        let is_kernel = |span: &&WorkSpan| matches!(span.work, Work::Kernel(_) | Work::Graph);
        // `spans` contains all activities, sorted by start.
        let all = run.spans.as_slice();
        let of_device = || all.iter().filter(|span| Some(run.spans.device_of(span)) == device);
        let others: Vec<&WorkSpan> = of_device().filter(|span| !is_kernel(span)).collect();
        let mut launches = IdMap::default();
        let launch_end = |launched: Launched| launched.time.0.saturating_add(launched.duration.into());
        for span in all {
            if let Some(launched) = span.launched()
                && let Some(context) = run.profile.context(launched.context)
            {
                launches.entry(context.thread).or_insert_with(Vec::new).push(launch_end(launched));
            }
        }
        launches.values_mut().for_each(|ends: &mut Vec<u64>| ends.sort_unstable());
        let mut backward = BackwardCalls::new(run.profile);
        let is_backward = |launched: &Launched| backward.contain(launched.context);
        let mut backward_launches: Vec<u64> =
            of_device().filter_map(|span| span.launched()).filter(is_backward).map(launch_end).collect();
        backward_launches.sort_unstable();
        let (mut pieces, mut gaps) = (Pieces::default(), Vec::new());
        let lead = Lead::new(reads(&others));
        let (contexts, in_gap, copies) = (Marks::default(), Marks::default(), IdMap::default());
        let others = &others;
        let mut divider = GapDivider {
            run,
            launches,
            backward_launches,
            others,
            first: 0,
            pieces: &mut pieces,
            lead,
            contexts,
            in_gap,
            copies,
        };
        let first = of_device().find(is_kernel);
        let mut busy = first.map_or(0, |first| first.end);
        for kernel in of_device().filter(is_kernel) {
            divider.lead.advance(kernel);
            if kernel.start > busy {
                gaps.extend(divider.divide(busy, kernel));
            }
            busy = busy.max(kernel.end);
        }
        let (begin, end) = steady_bounds(run.profile.steady());
        let kernels = first.map(|first| (first.start, busy));
        let (first, copies) = (first.map_or(0, |first| first.start.max(begin)), divider.copies);
        let wall = Some(busy.min(end).saturating_sub(first));
        Self { pieces: pieces.pieces, gaps, wall, kernels, copies }
    }
}

/// Prefix of the names of the operators that PyTorch's backward threads run.
const BACKWARD_OPERATOR: &str = "autograd::engine::evaluate_function";

/// Detects calls that belong to a backward pass of PyTorch.
struct BackwardCalls<'a> {
    profile: &'a Profile,
    operators: BTreeSet<LabelId>,
    known: IdMap<ContextId, bool>,
}

impl<'a> BackwardCalls<'a> {
    fn new(profile: &'a Profile) -> Self {
        let operators = profile.labels().filter(|(_, name)| name.starts_with(BACKWARD_OPERATOR));
        Self { profile, operators: operators.map(|(label, _)| label).collect(), known: IdMap::default() }
    }

    fn contain(&mut self, context: ContextId) -> bool {
        let Self { profile, operators, known } = self;
        if operators.is_empty() {
            return false;
        }
        *known.entry(context).or_insert_with(|| {
            let stack = profile.context(context).map(|context| context.stack);
            let mut frames = stack.into_iter().flat_map(|stack| profile.stack(stack));
            frames.any(|frame| match profile.frames()[frame.index()].kind() {
                FrameKind::Label(label) => operators.contains(&label),
                _ => false,
            })
        })
    }
}

/// A trace, with the data needed to find its lost time.
pub(super) struct TraceRun<'a> {
    pub(super) profile: &'a Profile,
    pub(super) places: &'a Places<'a>,
    /// Activities with plausible durations.
    pub(super) spans: &'a PlausibleSpans,
    pub(super) states: &'a HostStates,
    /// Facts about the run, used here to distinguish a plain wait from a wait that reads a value.
    pub(super) lost: &'a Lost<'a>,
}

struct GapDivider<'a> {
    run: &'a TraceRun<'a>,
    /// For each thread, the ends of the calls that launched GPU work.
    launches: IdMap<ThreadId, Vec<u64>>,
    /// Ends of the calls that launched work on this GPU in a backward pass of PyTorch.
    backward_launches: Vec<u64>,
    /// Copies and fills of the GPU, sorted by start.
    others: &'a [&'a WorkSpan],
    /// Index of the first copy or fill in `others` that has not ended before the current gap.
    first: usize,
    pieces: &'a mut Pieces,
    /// Time by which the host would be ahead of the GPU if the host had not read values.
    lead: Lead,
    /// For each launch context in the current gap, its index in the list of host states.
    contexts: Marks,
    /// For each piece of the current gap, its index in the list of totals.
    in_gap: Marks,
    /// For each launch context (stack and API call), the time in ns that its copies took in the gaps that were already
    /// divided.
    copies: IdMap<ContextId, u64>,
}

impl GapDivider<'_> {
    /// Divides the gap before `kernel` among causes. If the gap extends beyond the steady part of the run, only the
    /// time within the steady part is divided.
    fn divide(&mut self, from: u64, kernel: &WorkSpan) -> Option<Gap> {
        let (begin, end) = steady_bounds(self.run.profile.steady());
        let (from, to) = (from.max(begin), kernel.start.min(end));
        if from >= to {
            return None;
        }
        let mut parts: Vec<(Key, u64)> = Vec::new();
        for (copy, nanos) in self.copies_during(from, to) {
            add_to(self.copies.entry(copy).or_default(), nanos);
        }
        let Some(Launched { time, duration, context }) = kernel.launched() else {
            parts.push((Key::new(SampleSite::NoStack, Cause::Unknown), to - from));
            return Some(self.add_parts(from, to, parts));
        };
        let site = SampleSite::Context(context);
        let called = time.0.clamp(from, to);
        let delivered = match duration {
            0 | u32::MAX => to,
            duration => time.0.saturating_add(u64::from(duration) + MAX_DELIVERY_NS).clamp(called, to),
        };
        let copied = self.copies_during(from, called);
        let late_copies = self.add_waiting_time(site, delivered, to, &mut parts);
        self.add_host_time(context, (from, called), late_copies, &copied, &mut parts);
        if delivered > called {
            parts.push((Key::new(site, Cause::LaunchLatency), delivered - called));
        }
        Some(self.add_parts(from, to, parts))
    }

    /// Returns the time in ns that each copy took between `from` and `to`, with the launch context of the copy.
    fn copies_during(&mut self, from: u64, to: u64) -> Vec<(ContextId, u64)> {
        while self.others.get(self.first).is_some_and(|span| span.end <= from) {
            self.first += 1;
        }
        let (mut until, mut found) = (from, Vec::new());
        for copy in self.others[self.first..].iter().take_while(|span| span.start < to) {
            let (begin, end) = (copy.start.max(until), copy.end.min(to));
            if let Some(launched) = copy.launched().filter(|_| end > begin) {
                found.push((launched.context, end - begin));
                until = end;
            }
        }
        found
    }

    /// Divides two times among causes: the time before a launch in which the GPU ran no kernel, and the time of copies
    /// that were launched late. Everything that the host did since its last launch delayed this launch, even if the GPU
    /// still had work at that time. So the cost of an activity of the host is its duration since the last launch, but
    /// at most the time that the GPU lost. This cost is the part of the GPU's lost time that the GPU would not have
    /// lost without the activity. While PyTorch's backward thread launches work, the thread that started the backward
    /// pass waits for the backward thread. Therefore, in a backward pass, the time since the last launch is the time
    /// since the last launch by the backward thread.
    ///
    /// Before a thread reads a value from the GPU, the host may have queued work and so be ahead of the GPU. After a
    /// read, the queue is empty, and the host has lost its lead over the GPU until work is queued again. The loss of
    /// the lead affects all threads, because their launches would have been less late if the host had kept its lead.
    ///
    /// If the host was reading a value when the GPU's kernels ended, it could not queue work during the read. If the
    /// host had not read the value, it could have queued work during the time that the read took. So a read costs the
    /// duration of the read, and also the time from the end of the kernels until the read returned. If the host was
    /// waiting for copies when the kernels ended, the copies are the reason for the lost time.
    ///
    /// A plain wait, which reads no value, costs less: the time until the wait returns, and the duration of a short
    /// launch. The host's work after a wait may need the result of the wait. So the time after a plain wait is charged
    /// to the function that the host executed in this time.
    fn add_host_time(
        &mut self,
        launch: ContextId,
        (from, to): (u64, u64),
        late_copies: u64,
        copied: &[(ContextId, u64)],
        parts: &mut Vec<(Key, u64)>,
    ) {
        let mut late = (to - from).saturating_add(late_copies);
        let Some(thread) =
            self.run.profile.context(launch).map(|context| context.thread).filter(|_| late > 0)
        else {
            return;
        };
        let ends = self.launches.get(&thread).map_or(&[][..], Vec::as_slice);
        let last_of = |ends: &[u64]| Some(ends[ends.partition_point(|end| *end <= from).checked_sub(1)?]);
        let last = last_of(ends).max(last_of(&self.backward_launches)).unwrap_or(from);
        let mut waited = None;
        // Two values: the end of a wait that read no value, and the total time of the waits after this end.
        let (mut alone_until, mut waited_later): (Option<u64>, u64) = (None, 0);
        let mut states: Vec<(ContextId, u64, Rc<Place>)> = Vec::new();
        // A pause may contain thousands of host states in different places, so places are looked up in a table.
        let known = &mut self.contexts;
        known.clear();
        // If the host was not late, the GPU lost no time by the host's activities since the last launch.
        let since = if to > from { last } else { to };
        for (begin, end, context) in self.run.states.during(thread, since, to) {
            if context == ContextId::NONE || end <= begin {
                continue;
            }
            let is_open = (begin..end).contains(&from);
            if let Some(at) = known.get(context.0).filter(|_| !is_open) {
                states[at].1 += end - begin;
                continue;
            }
            let place = self.run.places.of(SampleSite::Context(context));
            if is_open && (place.of_call.waits_for_gpu || place.of_call.copies) {
                waited = Some((context, end - begin, end - from));
                if is_wait_alone(self.run.lost, &place) {
                    // The GPU was busy during all activities before this wait, and the host even had time to wait for
                    // the GPU. So the host's activities before this wait cost no GPU time.
                    alone_until = Some(end);
                    states.clear();
                    known.clear();
                }
                continue;
            }
            match known.get(context.0) {
                Some(at) => states[at].1 += end - begin,
                // If a wait ended before the GPU's kernels ended, the wait cost no GPU time.
                None if !place.of_call.waits_for_gpu => {
                    known.set(context.0, states.len());
                    states.push((context, end - begin, place));
                }
                None => waited_later += end - begin,
            }
        }
        if waited.is_none()
            && let Some((context, cost)) = self.lead.take(late)
        {
            let key =
                Key { waited_at: Some(context), ..Key::new(SampleSite::Context(context), Cause::HostLate) };
            parts.push((key, cost));
            let is_named = |(_, nanos, place): &&(ContextId, u64, Rc<Place>)| place.class(*nanos).is_named();
            let named: u64 = states.iter().filter(is_named).map(|(_, nanos, _)| nanos).sum();
            late = late.saturating_sub(cost).max(named.min(late));
            // If the host had kept its lead over the GPU, the GPU would have lost no time by the host's work after the
            // read.
            if late <= named {
                states.retain(|state| is_named(&state));
            }
            if late == 0 {
                return;
            }
        }
        if let Some((context, duration, returned)) = waited {
            let copying: u64 = copied.iter().map(|(_, nanos)| nanos).sum();
            if copying.saturating_mul(2) > returned && copying > 0 {
                for &(copy, nanos) in copied {
                    parts.push((Key::new(SampleSite::Context(copy), Cause::Dependency), nanos.min(late)));
                }
                late = late.saturating_sub(copying);
            }
            let mut cost = duration.min(late);
            let after = alone_until.map_or(0, |until| (to - until).saturating_sub(waited_later)).min(late);
            let is_late_after = after > MAX_LAUNCH_GAP_NS;
            if is_late_after {
                let known: u64 = states.iter().map(|(_, nanos, _)| nanos).sum();
                let unknown = after.saturating_sub(known);
                cost = cost.min(late - after);
                if unknown > MAX_LAUNCH_GAP_NS {
                    let site = SampleSite::Between { after: context, thread: None, before: launch };
                    parts.push((Key::new(site, Cause::HostLate), unknown));
                } else {
                    cost += unknown;
                }
            }
            self.lead.take(cost);
            let key =
                Key { waited_at: Some(context), ..Key::new(SampleSite::Context(context), Cause::HostLate) };
            if cost > 0 {
                parts.push((key, cost));
            }
            // If the host had not waited, the GPU would have lost no time by the host's work after the wait.
            if !is_late_after && cost.saturating_mul(10) >= late.saturating_mul(9) {
                states.retain(|(_, nanos, place)| place.class(*nanos).is_named());
            }
            if states.is_empty() {
                return;
            }
        }
        // For each class, the total time of its states. The states of a class together cost at most this time.
        let mut classes: Vec<(Class, u64)> = Vec::new();
        let states: Vec<(ContextId, u64, Class)> = states
            .into_iter()
            .map(|(context, nanos, place)| {
                let class = place.class(nanos);
                match classes.iter_mut().find(|(known, _)| *known == class) {
                    Some((_, sum)) => *sum += nanos,
                    None => classes.push((class.clone(), nanos)),
                }
                (context, nanos, class)
            })
            .collect();
        if states.is_empty() {
            let site = SampleSite::Context(launch);
            let is_launching = self.run.places.of(site).class(late) == Class::Launching;
            return parts.push((Key { is_launching, ..Key::new(site, Cause::HostLate) }, late));
        }
        for (context, nanos, class) in states {
            let all = classes.iter().find(|(known, _)| *known == class).map_or(nanos, |(_, sum)| *sum);
            let share = u128::from(nanos) * u128::from(all.min(late)) / u128::from(all.max(1));
            let is_launching = class == Class::Launching;
            let key = Key { is_launching, ..Key::new(SampleSite::Context(context), Cause::HostLate) };
            parts.push((key, share as u64));
        }
    }

    /// Divides the time for which a launched kernel waited. While copies ran, the kernel is assumed to have waited for
    /// these copies, and at other times for other work. Returns the total time of copies that began immediately after
    /// their launch. A copy that began immediately after its launch was launched too late to overlap with kernels.
    fn add_waiting_time(&mut self, site: SampleSite, from: u64, to: u64, parts: &mut Vec<(Key, u64)>) -> u64 {
        while self.others.get(self.first).is_some_and(|span| span.end <= from) {
            self.first += 1;
        }
        let (mut until, mut late_copies) = (from, 0);
        for copy in self.others[self.first..].iter().take_while(|span| span.start < to) {
            let (begin, end) = (copy.start.max(until), copy.end.min(to));
            let Some(launched) = copy.launched().filter(|_| end > begin) else { continue };
            if begin > until {
                parts.push((Key::new(site, Cause::Dependency), begin - until));
            }
            let own = Key::new(SampleSite::Context(launched.context), Cause::Dependency);
            let returned = launched.time.0.saturating_add(launched.duration.into());
            match copy.start <= returned.saturating_add(MAX_DELIVERY_NS) {
                true => late_copies += end - begin,
                false => parts.push((own, end - begin)),
            }
            until = end;
        }
        if to > until {
            parts.push((Key::new(site, Cause::Dependency), to - until));
        }
        late_copies
    }

    fn add_parts(&mut self, from: u64, to: u64, parts: Vec<(Key, u64)>) -> Gap {
        let mut main = (0, 0);
        for (at, nanos) in self.merged(parts) {
            self.pieces.add(at, nanos, u64::from(nanos.saturating_mul(2) >= to - from));
            if nanos > main.0 {
                main = (nanos, at);
            }
        }
        Gap { start: from, nanos: to - from, piece: main.1 }
    }

    /// Adds up the durations of the parts with the same key. Returns the totals as (index of the piece, ns).
    fn merged(&mut self, parts: Vec<(Key, u64)>) -> Vec<(usize, u64)> {
        let mut sums: Vec<(usize, u64)> = Vec::with_capacity(parts.len());
        self.in_gap.clear();
        for (key, nanos) in parts {
            let piece = self.pieces.number(key);
            match self.in_gap.get(piece as u32) {
                Some(at) => sums[at].1 += nanos,
                None => {
                    self.in_gap.set(piece as u32, sums.len());
                    sums.push((piece, nanos));
                }
            }
        }
        sums
    }
}

fn steady_bounds(steady: Option<SteadyPart>) -> (u64, u64) {
    steady.map_or((0, u64::MAX), |steady| (steady.begin.0, steady.end.0))
}

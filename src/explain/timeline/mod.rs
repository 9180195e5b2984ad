//! `Timeline` accounts for the time of every device: how long the device was busy, and which code is responsible for
//! its idle time.
//!
//! The timeline processes joined rows in one pass. A device is busy while at least one of its activities runs. The time
//! between two busy periods is a *gap*. A gap is idle time. The idle time of a gap is *charged* to the launch whose
//! activity ended the gap, because an earlier launch would have made the gap shorter. Module `idle_cause` determines
//! the cause of a gap. If the cause is that the host was late, the time is charged to the *culprit*: the code that the
//! launching thread ran in that time. The culprits of late launches are derived from one of these sources:
//! - the states of the thread (`host_states`, from traces) or its CPU samples (`sample_history`);
//! - otherwise, the API calls that the thread made around that time (`call_history`).
//!
//! Time is accounted for only if a window was open during this time. For each device, the following equation holds:
//!
//! ```text
//! window = busy + idle                                                    to the nanosecond
//!
//!   opened                                                    closed
//!   |. opening .|#######|. between .|####|. between .|######|. closing .|
//! ```
//!
//! Here, *busy* includes work that outlasted its window (the window counts as longer by that time). *Busy* also
//! includes work that was launched outside of windows, but only the time of such work in a window. The time before the
//! first work in a window is charged to the launch of that work, under the label *opening*. The time after the last
//! work in a window is charged to no code.
//!
//! The timeline's memory grows with the number of distinct stacks, and never with the number of launches. Activities
//! therefore wait in a reorder buffer of limited size per device (`stretches`). Activities that arrive too late for
//! this buffer are counted separately. The time of activities that arrive too late is reported as idle instead of busy.

mod call_history;
mod device;
mod host_states;
mod idle_cause;
mod idle_culprit;
mod late_launches;
mod sample_history;
mod state_history;
mod steady;
mod streams;
mod stretches;
mod windows;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::join::{Launched, Origin, Sink};
use call_history::{CallHistory, CulpritThreads};
use device::{AccountInputs, DeviceAccount};
use gpuflame_model::profile::views::IDLE;
use gpuflame_model::profile::{
    Cause, Leaf, LeafFrame, MAX_SAMPLE_VALUES, Profile, RootMark, Sample, SampleSite, SteadyPart,
};
use gpuflame_model::record::{
    Activity, Caller, ContextId, CorrelationId, CpuSample, DeviceId, HostState, IdMap, Missing, Nanos,
    OffCpuWait, Row, Step, ThreadId, WindowEdge, map_bytes,
};
use host_states::HostStates;
pub use idle_cause::MAX_DELIVERY_NS;
use idle_cause::split_by_cause;
use idle_culprit::{IdleAmount, IdleCause, IdleCulprit};
pub use late_launches::{LateLaunches, TimedCall};
use sample_history::{SampleHistory, divide_idle};
pub use state_history::StateHistory;
use steady::{Cuts, FoundPart, RepeatedLaunches};
use stretches::LaunchSpan;
use windows::WindowSpans;

/// Divides the gap `from..to` among its causes, in order of time. The gap ended with work that `launched` started and
/// that began at `start`. The durations in the result add up to the duration of the gap. Analyses of gaps use this
/// function, so that they follow the same rules as the account of idle time.
pub fn gap_causes(from: u64, to: u64, start: u64, launched: Launched) -> [(Cause, u64); 3] {
    split_by_cause(from, to, start, &call(launched))
}

/// Busy and idle time of all devices, from the rows so far. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    devices: Vec<DeviceAccount>,
    /// Index in `devices` of the device of the last activity.
    last: usize,
    windows: WindowSpans,
    host_states: HostStates,
    /// API calls of all threads, from which culprits are found. The calls are shared only with snapshots, which are
    /// short-lived.
    calls: Arc<CallHistory>,
    /// CPU samples and off-CPU waits of all threads. Like the calls, the samples and waits are shared only with
    /// snapshots.
    samples: Arc<SampleHistory>,
    culprit_threads: CulpritThreads,
    charges: IdleByCause,
    /// Launches from which the steady part of the run is found. The field is `None` if start-up and shutdown are not
    /// distinguished.
    launches: Option<RepeatedLaunches>,
    cuts: Cuts,
}

/// Idle time by device, part of the run, and charge (culprit and cause). `found` is the time that CPU samples and
/// off-CPU waits attribute to stacks. While rows arrive, a part of the run is identified by the cut (see `Cuts`) at
/// which the part begins. After the last row, a part of the run is one of the constants in [`part`].
#[derive(Clone, Debug, Default)]
struct IdleByCause {
    sums: Sums,
    found: IdMap<(DeviceId, u64, IdleCause, ContextId), u64>,
}

type Sums = IdMap<(DeviceId, u64, IdleCause), IdleAmount>;

/// Parts of a run for which idle time is summed separately.
mod part {
    pub(super) const STEADY: u64 = 0;
    pub(super) const START_UP: u64 = 1;
    pub(super) const SHUTDOWN: u64 = 2;
}

/// Maximum number of distinct charges (combinations of culprit and cause). All charges together take 400 KiB. A charge
/// that occurs before and after a cut (see `Cuts`) counts as two charges. If a run has more charges, idle time is
/// charged to the second call around a pause instead of to the pause.
const MAX_CAUSES: usize = 1 << 12;
/// Maximum number of cuts (see `Cuts`) that are made before the run has ended. A cut that would exceed the limit is not
/// made, and the time around this cut is not divided.
const MAX_CUTS: usize = 16;
/// Maximum number of stacks to which CPU samples attribute idle time. If samples have more stacks, idle time stays
/// attributed to the two calls around the idle time.
const MAX_SAMPLED_STACKS: usize = 1 << 14;

impl IdleByCause {
    fn adder_for(&mut self, device: DeviceId) -> impl FnMut(u64, IdleCause, IdleAmount) {
        move |since, charge, idle| {
            let is_full = self.sums.len() >= MAX_CAUSES && !self.sums.contains_key(&(device, since, charge));
            let charge = if is_full { charge.map_culprit(IdleCulprit::without_pause) } else { charge };
            match idle.context {
                None => add(&mut self.sums, (device, since, charge), idle),
                Some(context) => self.add_found((device, since, charge, context), idle.nanos),
            }
        }
    }

    fn add_found(&mut self, key: (DeviceId, u64, IdleCause, ContextId), nanos: u64) {
        if self.found.len() < MAX_SAMPLED_STACKS || self.found.contains_key(&key) {
            let sum = self.found.entry(key).or_default();
            *sum = sum.saturating_add(nanos);
        }
    }

    /// Replaces each part and charge by the result of `map`, and each stack in `found` by the result of `context`.
    fn map_keys(
        &mut self,
        map: &dyn Fn(u64, IdleCause) -> (u64, IdleCause),
        context: &dyn Fn(ContextId) -> ContextId,
    ) {
        let Self { sums, found } = std::mem::take(self);
        self.sums.reserve(sums.len());
        for ((device, since, charge), old) in sums {
            let (since, charge) = map(since, charge);
            add(&mut self.sums, (device, since, charge), old);
        }
        for ((device, since, charge, by), nanos) in found {
            let (since, charge) = map(since, charge);
            self.add_found((device, since, charge, context(by)), nanos);
        }
    }

    /// Replaces each cut (see `Cuts`) by the part of the run to which the time after the cut belongs. Outside the
    /// steady part, idle time at the opening of a window is not distinguished.
    fn set_parts(&mut self, steady: Option<&SteadyPart>) {
        let part = |since: u64, charge: IdleCause| match steady {
            Some(steady) if since < steady.begin.0 => (part::START_UP, charge.without_edge()),
            Some(steady) if since >= steady.end.0 => (part::SHUTDOWN, charge.without_edge()),
            _ => (part::STEADY, charge),
        };
        self.map_keys(&part, &|context| context);
    }

    /// Returns the sums of idle time. If CPU samples and waits cover a part of the time between two calls, this part is
    /// charged to their stacks.
    fn shared(&self) -> Sums {
        let mut found: IdMap<(DeviceId, u64, IdleCause), Vec<(ContextId, u64)>> = IdMap::default();
        for (&(device, part, charge, context), &nanos) in &self.found {
            found.entry((device, part, charge)).or_default().push((context, nanos));
        }
        let mut shared = Sums::default();
        shared.reserve(self.sums.len());
        for (&key, idle) in &self.sums {
            let (device, part, charge) = key;
            for (culprit, amount) in divide_idle(*idle, found.remove(&key).unwrap_or_default()) {
                let by = culprit
                    .map_or(charge, |culprit| charge.map_culprit(|_| IdleCulprit::Caller(culprit.into())));
                add(&mut shared, (device, part, by), amount);
            }
        }
        shared
    }
}

fn add(sums: &mut Sums, key: (DeviceId, u64, IdleCause), more: IdleAmount) {
    let sum = sums.entry(key).or_default();
    sum.gaps += more.gaps;
    sum.nanos += more.nanos;
}

impl Sink for Timeline {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        let call = match origin {
            Origin::Launch(launched) => call(launched),
            Origin::Missing(Missing::LaunchedBefore) => {
                LaunchSpan { time: 0, duration: 0, caller: Caller::LAUNCHED_BEFORE }
            }
            Origin::Missing(_) => LaunchSpan { time: 0, duration: 0, caller: Caller::NO_STACK },
        };
        self.add(activity, call);
    }

    fn pending(&mut self, _id: CorrelationId, _launched: Launched) {}

    fn outside(&mut self, activity: &Activity, launched: Launched) {
        self.add(activity, call(launched));
    }
}

fn call(launched: Launched) -> LaunchSpan {
    let Launched { time, duration, context } = launched;
    LaunchSpan { time: time.0, duration, caller: context.into() }
}

impl Timeline {
    /// Creates a timeline that uses at most about `bytes` bytes to store calls and pauses of threads. Without a limit,
    /// the timeline uses up to 3 MiB for calls and pauses.
    pub fn bounded(bytes: usize) -> Self {
        Self {
            calls: Arc::new(CallHistory::bounded(bytes)),
            samples: Arc::new(SampleHistory::bounded(bytes / 4)),
            ..Self::default()
        }
    }

    /// Processes the opening or closing of a window, and ignores all other rows.
    pub fn row(&mut self, row: &Row<'_>) {
        let Row::Window { edge, time } = *row else { return };
        // A time cannot be accounted for twice. So if the edge of a window is in the time that is already accounted
        // for, the edge takes effect at the end of this time.
        let accounted = self.accounted_until();
        match edge {
            WindowEdge::Open => self.windows.open(time.0.max(accounted)),
            WindowEdge::Close => self.windows.close(time.0.max(accounted)),
        }
        if let Some(time) = self.windows.overflow_start() {
            self.account_before(time);
        }
    }

    /// Makes this timeline distinguish start-up and shutdown from the steady part of the run. Call this function before
    /// the first row.
    pub fn with_steady_part(self) -> Self {
        Self { launches: Some(RepeatedLaunches::default()), ..self }
    }

    /// Adds a step of the program.
    pub fn add_step(&mut self, step: &Step<'_>) {
        if let Some(launches) = &mut self.launches {
            launches.add_step(step);
        }
    }

    /// Adds a state (stack or operation) that a thread entered. The state must be added before the launch that ends the
    /// gap in which the thread had this state.
    pub fn add_host_state(&mut self, state: &HostState) {
        self.host_states.add(state);
    }

    /// Whether [`Timeline::add_host_state`] was called. If this function was called, the caller must also supply the
    /// thread of each launch.
    pub fn has_host_states(&self) -> bool {
        !self.host_states.is_empty()
    }

    /// Notes that `thread` makes the launches with this context.
    pub fn note_launching_thread(&mut self, context: ContextId, thread: ThreadId) {
        self.host_states.note_launching_thread(context, thread);
    }

    /// Adds a call that a thread has completed, or a launch that is still in progress. For a launch in progress, the
    /// start time is passed for both times. The calls of each thread must be added in order of time.
    pub fn add_call(&mut self, thread: ThreadId, (begun, ended): (Nanos, Nanos), context: ContextId) {
        if context >= ContextId::FIRST {
            Arc::make_mut(&mut self.calls).add(thread, begun.0, ended.0, context);
            self.forget_calls();
        }
    }

    /// Adds a launch. The calls and launches of each thread must be added in order of time, as for
    /// [`Timeline::add_call`].
    pub fn add_launch(&mut self, thread: ThreadId, (begun, ended): (Nanos, Nanos), context: ContextId) {
        if context >= ContextId::FIRST {
            Arc::make_mut(&mut self.calls).add_launch(thread, begun.0, ended.0, context);
            self.forget_calls();
        }
    }

    /// If too many calls and pauses are stored, drops the calls and pauses from periods in which no GPU was idle.
    fn forget_calls(&mut self) {
        if self.calls.is_crowded() {
            let Self { devices, calls, .. } = self;
            devices.iter_mut().for_each(DeviceAccount::merge);
            let is_over = |since, until| {
                !devices.is_empty() && devices.iter().all(|device| device.has_no_gap_in(since, until))
            };
            Arc::make_mut(calls).forget(is_over);
        }
    }

    /// Whether a window was open at `time`. The result is always true if the run has no windows.
    pub fn is_in_window(&self, time: Nanos) -> bool {
        self.windows.parts(time.0, time.0.saturating_add(1)).next().is_some()
    }

    /// Returns the parts of the period `from..to` during which a window was open. If the run has no windows, returns
    /// the whole period.
    pub fn parts(&self, from: Nanos, to: Nanos) -> Vec<(u64, u64)> {
        self.windows.parts(from.0, to.0).collect()
    }

    /// Adds a CPU sample of a thread. The sample must be added before the gap in which it was taken is accounted for.
    pub fn add_sample(&mut self, sampled: &CpuSample) {
        if sampled.context < ContextId::FIRST {
            return;
        }
        Arc::make_mut(&mut self.samples).add(sampled);
        self.forget_samples();
    }

    /// Adds an off-CPU wait of a thread. The wait must be added before the gap in which it occurred is accounted for.
    pub fn add_wait(&mut self, blocked: &OffCpuWait) {
        if blocked.context >= ContextId::FIRST {
            Arc::make_mut(&mut self.samples).add_blocked(blocked);
            self.forget_samples();
        }
    }

    fn forget_samples(&mut self) {
        if self.samples.is_crowded() {
            let Self { devices, samples, .. } = self;
            devices.iter_mut().for_each(DeviceAccount::merge);
            let is_over =
                |from, to| !devices.is_empty() && devices.iter().all(|device| device.has_no_gap_in(from, to));
            Arc::make_mut(samples).forget(is_over);
        }
    }

    /// Stores the busy and idle times so far in `profile`. The timeline does not change.
    pub fn fill(&self, profile: &mut Profile) {
        self.clone().end(profile);
    }

    /// Stores the final busy and idle times in `profile`. Call this function after the last row.
    pub fn end(mut self, profile: &mut Profile) {
        let all = &mut self;
        let steady = all.cut_steady_part(profile);
        let (devices, mut inputs, charges) = all.accounting();
        for device in devices {
            device.account_all(&mut inputs, &mut charges.adder_for(device.id));
        }
        let time = |device: &DeviceAccount| device.time(&all.windows, steady.as_ref());
        let times: Vec<_> = all.devices.iter().filter_map(time).collect();
        let is_known = |device| times.iter().any(|time| time.device == device);
        all.charges.set_parts(steady.as_ref());
        let charges = all.charges.shared();
        let mut idle = Vec::with_capacity(charges.len()); // a growing vector would take up to three times the memory
        let charges = charges.into_iter().filter(|((device, ..), _)| is_known(*device));
        idle.extend(charges.map(|((device, part, charge), sum)| {
            let mut values = [0; MAX_SAMPLE_VALUES];
            values[..2].copy_from_slice(&[sum.nanos, sum.gaps]);
            let sample = sample(charge);
            let root_mark = match part {
                part::START_UP => Some(RootMark::StartUp),
                part::SHUTDOWN => Some(RootMark::Shutdown),
                _ => sample.root_mark,
            };
            Sample { device: Some(device), values, root_mark, ..sample }
        }));
        profile.set_samples(&IDLE, idle);
        let streams = all.devices.iter().flat_map(|device| device.streams.uses(device.id)).collect();
        profile.set_times(times, streams);
        profile.set_steady(steady);
    }

    /// Finds the steady part of the run, and makes cuts at its beginning and end. Call this function after the last
    /// row. If the time around the beginning or end is already accounted for, the steady part is extended to the
    /// nearest existing cut.
    fn cut_steady_part(&mut self, profile: &Profile) -> Option<SteadyPart> {
        let SteadyPart { rule, begin, end } = self.launches.as_ref()?.find(0, Some(profile))?.part;
        let accounted = self.accounted_until();
        let begin = if begin.0 >= accounted { begin.0 } else { self.cuts.before(begin.0) };
        let end = match end.0 >= accounted {
            true => end.0,
            false => self.cuts.after(end.0).unwrap_or(accounted),
        };
        self.cuts.add(begin);
        self.cuts.add(end);
        Some(SteadyPart { rule, begin: Nanos(begin), end: Nanos(end) })
    }

    /// Makes cuts at the beginning and end of each loop, before the time around these cuts is accounted for. Only the
    /// longest loop needs these cuts, but the longest loop is known only at the end of the run, when it is too late to
    /// make cuts.
    fn cut_at_loops(&mut self) {
        let Some(launches) = &self.launches else { return };
        let accounted = self.accounted_until();
        for since in [0, accounted] {
            let Some(FoundPart { part, is_over }) = launches.find(since, None) else {
                continue;
            };
            for (time, is_edge) in [(part.begin.0, true), (part.end.0, is_over)] {
                if is_edge && time >= accounted && self.cuts.len() < MAX_CUTS {
                    self.cuts.add(time);
                }
            }
        }
    }

    /// Returns the latest time up to which the time of any device is accounted for.
    fn accounted_until(&self) -> u64 {
        self.devices.iter().map(DeviceAccount::cursor).max().unwrap_or(0)
    }

    /// Replaces each context by the context that the function `context` returns for it, and recomputes the charges.
    pub fn rename(&mut self, context: impl Fn(ContextId) -> ContextId) {
        let caller = |caller: Caller| caller.launched().map_or(caller, |id| context(id).into());
        let renamed = |culprit| match culprit {
            IdleCulprit::Caller(by) => IdleCulprit::Caller(caller(by)),
            IdleCulprit::Pause { after, thread, before } => {
                IdleCulprit::Pause { after: context(after), thread, before: context(before) }
            }
        };
        self.charges.map_keys(&|since, charge| (since, charge.map_culprit(renamed)), &context);
        self.launches.iter_mut().for_each(|launches| launches.rename(&context));
        self.devices.iter_mut().for_each(|device| device.rename(caller));
        Arc::make_mut(&mut self.calls).rename(&context);
        Arc::make_mut(&mut self.samples).rename(&context);
        self.host_states.rename(context);
    }

    /// Returns the heap size in bytes of the sums per context.
    pub fn charge_bytes(&self) -> usize {
        map_bytes(&self.charges.sums)
            + map_bytes(&self.charges.found)
            + self.launches.as_ref().map_or(0, RepeatedLaunches::heap_bytes)
    }

    /// Returns the size in bytes of the heap memory that the timeline uses.
    pub fn heap_bytes(&self) -> usize {
        self.devices.iter().map(DeviceAccount::heap_bytes).sum::<usize>()
            + self.charge_bytes()
            + self.windows.heap_bytes()
            + self.host_states.heap_bytes()
            + self.calls.heap_bytes()
            + self.samples.heap_bytes()
    }

    fn add(&mut self, activity: &Activity, call: LaunchSpan) {
        if activity.duration().is_none() {
            return;
        }
        if self.devices.get(self.last).is_none_or(|device| device.id != activity.device) {
            self.last = self.index_of(activity.device);
        }
        if let (Some(launches), Ok(context)) = (&mut self.launches, call.caller.launched()) {
            launches.add(activity, context, call.time);
        }
        let device = &mut self.devices[self.last];
        if call.caller != Caller::OUTSIDE {
            device.streams.add(activity);
        }
        if !device.add(activity, call) {
            let last = self.last;
            self.cut_at_loops();
            let (devices, inputs, charges) = self.accounting();
            let device = &mut devices[last];
            device.make_room(inputs, &mut charges.adder_for(device.id));
            device.add(activity, call);
            self.forget_windows();
        }
    }

    fn index_of(&mut self, id: DeviceId) -> usize {
        self.devices.iter().position(|device| device.id == id).unwrap_or_else(|| {
            let mut device = DeviceAccount::new(id);
            // The device was idle in all windows that were already forgotten. All forgotten windows count as start-up,
            // even those that opened after the start-up, because only their total duration is known.
            if self.windows.forgotten_ns() > 0 {
                let nanos = self.windows.forgotten_ns();
                device.charge_windows(0, nanos, &mut self.charges.adder_for(id));
            }
            self.devices.push(device);
            self.devices.len() - 1
        })
    }

    /// Accounts for all time before `time`, even if only a few activities wait in the buffers. Call this function if
    /// too many windows are stored.
    fn account_before(&mut self, time: u64) {
        self.cut_at_loops();
        let (devices, mut inputs, charges) = self.accounting();
        for device in devices {
            device.account_to(time, &mut inputs, &mut charges.adder_for(device.id));
        }
        self.forget_windows();
    }

    /// Splits `self` into three borrows: the accounts of the devices, the inputs for these accounts, and the charges.
    fn accounting(&mut self) -> (&mut [DeviceAccount], AccountInputs<'_>, &mut IdleByCause) {
        let inputs = AccountInputs {
            windows: &self.windows,
            host_states: &self.host_states,
            calls: &self.calls,
            samples: &self.samples,
            culprit_threads: &mut self.culprit_threads,
            cuts: &self.cuts,
            is_only: self.devices.len() == 1,
        };
        (&mut self.devices, inputs, &mut self.charges)
    }

    fn forget_windows(&mut self) {
        let accounted = self.devices.iter().map(DeviceAccount::cursor).min().unwrap_or(0);
        self.windows.forget(accounted);
    }
}

/// Converts a charge of idle time into a sample that has the stack of the culprit.
fn sample(charge: IdleCause) -> Sample {
    let idle = |cause| Leaf::new(&[LeafFrame::Idle(cause)]);
    match charge {
        IdleCause::Between(culprit, cause) => Sample::new(culprit.site(), idle(cause)),
        IdleCause::Opening(culprit, cause) => {
            Sample { root_mark: Some(RootMark::Opening), ..Sample::new(culprit.site(), idle(cause)) }
        }
        IdleCause::Closing => Sample {
            root_mark: Some(RootMark::Closing),
            ..Sample::new(SampleSite::NoStack, Leaf::new(&[LeafFrame::IdleUntilClose]))
        },
    }
}

//! `Timeline` accounts for every device's time: when the device was busy, and which code is responsible for
//! its idle time.
//!
//! The timeline works on joined rows, in one pass. A device is busy in the union of its activities. Each gap in this union
//! is idle time and is charged to the launch of the activity that ended the gap, because an earlier launch would have made
//! the gap shorter. `blame` determines the cause. If the host was late, the time is charged to whatever the launching
//! thread did during that time (`inside`, from traces; `samples`), or to the two calls around that time (`calls`). A device
//! is accounted for while a window was open, and
//!
//! ```text
//! window = busy + idle                                                    to the nanosecond
//!
//!   opened                                                    closed
//!   |. opening .|#######|. between .|####|. between .|######|. closing .|
//! ```
//!
//! where *busy* includes work that outlasted its window (the window is longer by that time), and the part inside windows of
//! work that was launched outside. Time before a window's first work is also charged to the launch of that work, but under
//! a separate label; time after the last work is charged to no code.
//!
//! Memory grows with the number of distinct stacks, never with the number of launches: activities wait in a reorder buffer
//! per device (`stretches`). Activities that arrive too late for that buffer are counted as late. Then some busy time is
//! reported as idle, at most as much as the duration of the late work.

mod blame;
mod calls;
mod charge;
mod device;
mod inside;
mod samples;
mod streams;
mod stretches;
mod windows;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::join::{Launched, Origin, Sink};
use calls::{Calls, ToldApart};
use charge::{Blamed, Charge, Idle};
use device::{Device, Known};
use gpuflame_model::profile::views::IDLE;
use gpuflame_model::profile::{Base, Leaf, MOST_VALUES, Place, Profile, Sample, Tip};
use gpuflame_model::record::{
    Activity, Blocked, Caller, ContextId, CorrelationId, DeviceId, IdMap, Inside, Missing, Nanos, Row,
    Sampled, ThreadId, WindowEdge, map_bytes,
};
use inside::Insides;
use samples::{Samples, shares};
use stretches::Call;
use windows::Windows;

/// The account of all rows so far. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    devices: Vec<Device>,
    /// Index of the device of the last activity.
    last: usize,
    windows: Windows,
    insides: Insides,
    /// Calls of threads, which are shared with a snapshot at most, and that is short-lived.
    calls: Arc<Calls>,
    /// Samples of threads, which are shared in the same way as the calls.
    samples: Arc<Samples>,
    told_apart: ToldApart,
    charges: Charges,
}

/// Idle time by device and cause, and the part that samples and waits attribute to a stack.
#[derive(Clone, Debug, Default)]
struct Charges {
    sums: Sums,
    found: IdMap<(DeviceId, Charge, ContextId), u64>,
}

type Sums = IdMap<(DeviceId, Charge), Idle>;

/// Maximum number of distinct charges, which take 400 KiB. Beyond this number, time between two calls is charged to the
/// second call.
const MOST_PAUSES: usize = 1 << 12;
/// Maximum number of stacks to which samples attribute time. Beyond this number, time stays with the two calls.
const MOST_FOUND: usize = 1 << 14;

impl Charges {
    fn of(&mut self, device: DeviceId) -> impl FnMut(Charge, Idle) {
        move |charge, idle| {
            let is_full = self.sums.len() >= MOST_PAUSES && !self.sums.contains_key(&(device, charge));
            let charge = if is_full { charge.by(Blamed::without_pause) } else { charge };
            match idle.found {
                None => add(&mut self.sums, (device, charge), idle),
                Some(context) => self.add_found((device, charge, context), idle.nanos),
            }
        }
    }

    fn add_found(&mut self, key: (DeviceId, Charge, ContextId), nanos: u64) {
        if self.found.len() < MOST_FOUND || self.found.contains_key(&key) {
            let sum = self.found.entry(key).or_default();
            *sum = sum.saturating_add(nanos);
        }
    }

    /// Returns the sums. Time between two calls is charged to the stacks in which the thread was found during that time, as
    /// far as samples and waits cover it.
    fn shared(&self) -> Sums {
        let mut found: IdMap<(DeviceId, Charge), Vec<(ContextId, u64)>> = IdMap::default();
        for (&(device, charge, context), &nanos) in &self.found {
            found.entry((device, charge)).or_default().push((context, nanos));
        }
        let mut shared = Sums::default();
        for (&(device, charge), idle) in &self.sums {
            for (who, part) in shares(*idle, found.remove(&(device, charge)).unwrap_or_default()) {
                let by = who.map_or(charge, |who| charge.by(|_| Blamed::Caller(who.into())));
                add(&mut shared, (device, by), part);
            }
        }
        shared
    }
}

fn add(sums: &mut Sums, key: (DeviceId, Charge), more: Idle) {
    let sum = sums.entry(key).or_default();
    sum.gaps += more.gaps;
    sum.nanos += more.nanos;
}

impl Sink for Timeline {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        let call = match origin {
            Origin::Launch(launched) => call(launched),
            Origin::Missing(Missing::LaunchedBefore) => {
                Call { time: 0, duration: 0, caller: Caller::LAUNCHED_BEFORE }
            }
            Origin::Missing(_) => Call { time: 0, duration: 0, caller: Caller::NO_STACK },
        };
        self.add(activity, call);
    }

    fn pending(&mut self, _id: CorrelationId, _launched: Launched) {}

    fn outside(&mut self, activity: &Activity, launched: Launched) {
        self.add(activity, call(launched));
    }
}

fn call(launched: Launched) -> Call {
    let Launched { time, duration, context } = launched;
    Call { time: time.0, duration, caller: context.into() }
}

impl Timeline {
    /// Creates a timeline that stores at most about `bytes` bytes of thread activity between calls. Default: 3 MiB.
    pub fn bounded(bytes: usize) -> Self {
        Self {
            calls: Arc::new(Calls::bounded(bytes)),
            samples: Arc::new(Samples::bounded(bytes / 4)),
            ..Self::default()
        }
    }

    /// Processes a window edge; ignores all other rows.
    pub fn row(&mut self, row: &Row<'_>) {
        let Row::Window { edge, time } = *row else { return };
        // Time that is already accounted for does not change, so a delayed edge takes effect where the accounted time ends.
        let accounted = self.devices.iter().map(Device::cursor).max().unwrap_or(0);
        match edge {
            WindowEdge::Open => self.windows.open(time.0.max(accounted)),
            WindowEdge::Close => self.windows.close(time.0.max(accounted)),
        }
        if let Some(time) = self.windows.crowded() {
            self.account_before(time);
        }
    }

    /// Adds the state that a thread entered. Add the state before the launches that end the gaps in which the thread had
    /// this state.
    pub fn inside(&mut self, inside: &Inside) {
        self.insides.add(inside);
    }

    /// Whether [`Timeline::inside`] was called. If it was, the threads of launches must be known.
    pub fn has_insides(&self) -> bool {
        !self.insides.is_empty()
    }

    /// Notes that `thread` makes the launches with this context.
    pub fn launches(&mut self, context: ContextId, thread: ThreadId) {
        self.insides.launches(context, thread);
    }

    /// Adds a thread's completed call, or a launch that is still in progress (then both times are the launch's beginning).
    /// Calls of a thread must be added in order of time.
    pub fn called(&mut self, thread: ThreadId, (begun, ended): (Nanos, Nanos), context: ContextId) {
        if context >= ContextId::FIRST {
            Arc::make_mut(&mut self.calls).add(thread, begun.0, ended.0, context);
            self.forget_calls();
        }
    }

    /// Adds a launch, under the same conditions as [`Timeline::called`].
    pub fn launched(&mut self, thread: ThreadId, (begun, ended): (Nanos, Nanos), context: ContextId) {
        if context >= ContextId::FIRST {
            Arc::make_mut(&mut self.calls).add_launch(thread, begun.0, ended.0, context);
            self.forget_calls();
        }
    }

    /// Drops the activity of threads in periods in which no GPU was idle, once too much activity is stored.
    fn forget_calls(&mut self) {
        if self.calls.is_crowded() {
            let Self { devices, calls, .. } = self;
            devices.iter_mut().for_each(Device::merge);
            let is_over = |since, until| {
                !devices.is_empty() && devices.iter().all(|device| device.has_no_gap_in(since, until))
            };
            Arc::make_mut(calls).forget(is_over);
        }
    }

    /// Whether a window was open at `time`. Always true if there are no windows at all.
    pub fn is_in_window(&self, time: Nanos) -> bool {
        self.windows.parts(time.0, time.0.saturating_add(1)).next().is_some()
    }

    /// The parts of a period that are inside windows, or the whole period if there are no windows at all.
    pub fn parts(&self, from: Nanos, to: Nanos) -> Vec<(u64, u64)> {
        self.windows.parts(from.0, to.0).collect()
    }

    /// Adds a sample of a thread. Add the sample before the gap to which it belongs is accounted for.
    pub fn sampled(&mut self, sampled: &Sampled) {
        if sampled.context < ContextId::FIRST {
            return;
        }
        Arc::make_mut(&mut self.samples).add(sampled);
        self.forget_samples();
    }

    /// Adds a wait of a thread. Add the wait before the gap to which it belongs is accounted for.
    pub fn blocked(&mut self, blocked: &Blocked) {
        if blocked.context >= ContextId::FIRST {
            Arc::make_mut(&mut self.samples).add_blocked(blocked);
            self.forget_samples();
        }
    }

    fn forget_samples(&mut self) {
        if self.samples.is_crowded() {
            let Self { devices, samples, .. } = self;
            devices.iter_mut().for_each(Device::merge);
            let is_over =
                |from, to| !devices.is_empty() && devices.iter().all(|device| device.has_no_gap_in(from, to));
            Arc::make_mut(samples).forget(is_over);
        }
    }

    /// Replaces the account in `profile` by the present one.
    pub fn fill(&self, profile: &mut Profile) {
        self.clone().end(profile);
    }

    /// Replaces the account in `profile` by this one. Call when all rows were pushed.
    pub fn end(mut self, profile: &mut Profile) {
        let all = &mut self;
        let (devices, mut known, charges) = all.accounting();
        for device in devices {
            device.account_all(&mut known, &mut charges.of(device.id));
        }
        let times: Vec<_> = all.devices.iter().filter_map(|device| device.time(&all.windows)).collect();
        let is_known = |device| times.iter().any(|time| time.device == device);
        let charges = all.charges.shared().into_iter().filter(|((device, _), _)| is_known(*device));
        let idle = charges.map(|((device, charge), sum)| {
            let mut values = [0; MOST_VALUES];
            values[..2].copy_from_slice(&[sum.nanos, sum.gaps]);
            Sample { device: Some(device), values, ..sample(charge) }
        });
        profile.set_samples(&IDLE, idle.collect());
        let streams = all.devices.iter().flat_map(|device| device.streams.uses(device.id)).collect();
        profile.set_times(times, streams);
    }

    /// Replaces each context by the one that `context` returns for it, and recomputes the charges.
    pub fn rename(&mut self, context: impl Fn(ContextId) -> ContextId) {
        let caller = |caller: Caller| caller.launched().map_or(caller, |id| context(id).into());
        let renamed = |who| match who {
            Blamed::Caller(by) => Blamed::Caller(caller(by)),
            Blamed::Pause { after, thread, before } => {
                Blamed::Pause { after: context(after), thread, before: context(before) }
            }
        };
        let Charges { sums, found } = std::mem::take(&mut self.charges);
        for ((device, charge), old) in sums {
            add(&mut self.charges.sums, (device, charge.by(renamed)), old);
        }
        for ((device, charge, by), nanos) in found {
            self.charges.add_found((device, charge.by(renamed), context(by)), nanos);
        }
        self.devices.iter_mut().for_each(|device| device.rename(caller));
        Arc::make_mut(&mut self.calls).rename(&context);
        Arc::make_mut(&mut self.samples).rename(&context);
        self.insides.rename(context);
    }

    /// Heap bytes of the sums by context.
    pub fn charge_bytes(&self) -> usize {
        map_bytes(&self.charges.sums) + map_bytes(&self.charges.found)
    }

    /// Number of bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.devices.iter().map(Device::heap_bytes).sum::<usize>()
            + self.charge_bytes()
            + self.windows.heap_bytes()
            + self.insides.heap_bytes()
            + self.calls.heap_bytes()
            + self.samples.heap_bytes()
    }

    fn add(&mut self, activity: &Activity, call: Call) {
        let Some(nanos) = activity.duration() else { return };
        if self.devices.get(self.last).is_none_or(|device| device.id != activity.device) {
            self.last = self.place(activity.device);
        }
        let device = &mut self.devices[self.last];
        if call.caller != Caller::OUTSIDE {
            device.streams.add(activity, nanos);
        }
        if !device.add(activity, call) {
            let last = self.last;
            let (devices, known, charges) = self.accounting();
            let device = &mut devices[last];
            device.make_room(known, &mut charges.of(device.id));
            device.add(activity, call);
            self.forget_windows();
        }
    }

    fn place(&mut self, id: DeviceId) -> usize {
        self.devices.iter().position(|device| device.id == id).unwrap_or_else(|| {
            let mut device = Device::new(id);
            // The device was idle in all windows that were forgotten.
            if self.windows.forgotten() > 0 {
                device.closing(self.windows.forgotten(), &mut self.charges.of(id));
            }
            self.devices.push(device);
            self.devices.len() - 1
        })
    }

    /// Accounts for all time before `time`, even if few activities wait. Called because too many windows are pending.
    fn account_before(&mut self, time: u64) {
        let (devices, mut known, charges) = self.accounting();
        for device in devices {
            device.account_to(time, &mut known, &mut charges.of(device.id));
        }
        self.forget_windows();
    }

    /// Splits `self` into the devices, the data that their accounts need, and the charges.
    fn accounting(&mut self) -> (&mut [Device], Known<'_>, &mut Charges) {
        let known = Known {
            windows: &self.windows,
            insides: &self.insides,
            calls: &self.calls,
            samples: &self.samples,
            told_apart: &mut self.told_apart,
            is_only: self.devices.len() == 1,
        };
        (&mut self.devices, known, &mut self.charges)
    }

    fn forget_windows(&mut self) {
        let accounted = self.devices.iter().map(Device::cursor).min().unwrap_or(0);
        self.windows.forget(accounted);
    }
}

/// Converts a charge into a sample: the blamed code, and the kind of idle time.
fn sample(charge: Charge) -> Sample {
    let idle = |cause| Leaf::new(&[Tip::Idle(cause)]);
    match charge {
        Charge::Between(who, cause) => Sample::new(place(who), idle(cause)),
        Charge::Opening(who, cause) => {
            Sample { base: Some(Base::Opening), ..Sample::new(place(who), idle(cause)) }
        }
        Charge::Closing => Sample {
            base: Some(Base::Closing),
            ..Sample::new(Place::Nobody, Leaf::new(&[Tip::IdleToTheEnd]))
        },
    }
}

fn place(who: Blamed) -> Place {
    match who {
        Blamed::Caller(caller) => caller.launched().map_or_else(Place::Missing, Place::Context),
        Blamed::Pause { after, thread, before } => Place::Between { after, thread, before },
    }
}

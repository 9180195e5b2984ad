//! The ledger: how much was seen, what became of it and what was lost. A value, which whoever prints it puts
//! into words of their own; what has to add up in it is a [`Sum`].

use std::collections::BTreeMap;
use std::fmt;

use super::Stacks;
use crate::graphs;
use crate::join::Tally;
use crate::profile::views::{self, GPU, IDLE, MEMORY, UnifiedSums, WAITS};
use crate::profile::{Base, Cause, Dependencies, DeviceTime, DeviceUse, Profile, Sample, Tip};
use crate::record::{ContextId, DeviceId, Loss, NameId, Work};

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// What became of launches and activities; none of them is open.
    pub tally: Tally,
    /// What became of the activities that are nodes of graphs.
    pub nodes: graphs::NodeTally,
    /// What was lost, of each kind that there was any of.
    pub losses: BTreeMap<Loss, u64>,
    /// How many stacks there are, and how good they are.
    pub stacks: Stacks,
    /// Each device that did anything.
    pub devices: Vec<Device>,
    /// What the host did beside launching, where that was asked for.
    pub host: Host,
    /// What is known of what waited for what, where that was asked for.
    pub dependencies: Dependencies,
    /// What happened to unified memory, where that was asked for.
    pub unified: Vec<UnifiedSums>,
    /// What ran under stacks and kernels that there was no memory to keep apart.
    pub others: Others,
}

/// What ran under what was not kept apart: it is in all sums. How many stacks and kernels that were is among the
/// losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Activities and launches under `[other stacks]`, with their nanoseconds.
    pub stacks: (u64, u64),
    /// The same of `[other kernels]`.
    pub kernels: (u64, u64),
}

/// What a device did, and how it spent its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// How much it did.
    pub work: DeviceUse,
    /// How long it was busy and idle; `None` where none of its activities has usable times.
    pub time: Option<DeviceTime>,
    /// Nanoseconds between two pieces of work by cause, in the order of [`Cause::ALL`].
    pub between: [u64; Cause::ALL.len()],
    /// Nanoseconds from the opening of a window to the first work in it.
    pub opening: u64,
    /// Nanoseconds from the last work in a window until it closed.
    pub closing: u64,
}

/// What the host did beside launching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Calls that waited.
    pub waits: u64,
    /// How long they did, in nanoseconds.
    pub waited: u64,
    /// Calls that allocated memory.
    pub allocations: u64,
    /// How much, in bytes.
    pub allocated: u64,
    /// Calls that freed memory.
    pub frees: u64,
    /// How much of what was seen to be allocated, in bytes.
    pub freed: u64,
    /// Bytes that are allocated.
    pub held: u64,
    /// The most there were at once.
    pub held_max: u64,
}

/// A total and what it consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// What is counted.
    pub what: String,
    /// How much of it there is.
    pub total: u64,
    /// Its parts by word: lower case, no blanks.
    pub parts: Vec<(&'static str, u64)>,
}

impl Sum {
    fn new(what: impl Into<String>, total: u64, parts: &[(&'static str, u64)]) -> Self {
        Self { what: what.into(), total, parts: parts.to_vec() }
    }

    /// Whether the parts add up to the total, as they must.
    pub fn holds(&self) -> bool {
        self.parts.iter().map(|(_, part)| u128::from(*part)).sum::<u128>() == u128::from(self.total)
    }
}

/// `launches 5 = matched 3 + …`.
impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} = ", self.what, self.total)?;
        for (at, (word, part)) in self.parts.iter().enumerate() {
            let plus = if at == 0 { "" } else { " + " };
            write!(f, "{plus}{word} {part}")?;
        }
        Ok(())
    }
}

impl Ledger {
    /// The ledger of `profile`, whose sums are filled in, and of what it does not hold.
    pub(super) fn of(
        profile: &Profile,
        tally: Tally,
        nodes: graphs::NodeTally,
        stacks: Stacks,
        held: (u64, u64),
    ) -> Self {
        Self {
            tally,
            nodes,
            losses: profile.losses().collect(),
            stacks,
            devices: profile.devices().iter().map(|work| Device::of(profile, *work)).collect(),
            host: Host::of(profile, held),
            dependencies: profile.dependencies().clone(),
            unified: views::unified(profile).collect(),
            others: Others::of(profile),
        }
    }

    /// How much was lost in this way.
    pub fn lost(&self, loss: Loss) -> u64 {
        self.losses.get(&loss).copied().unwrap_or(0)
    }

    /// All launches that were made, and what became of them.
    pub fn launches(&self) -> Sum {
        let dropped = self.lost(Loss::LaunchesDropped) + self.lost(Loss::StacksNested);
        let mut parts = self.tally.launches.parts().to_vec();
        parts.push(("dropped", dropped));
        Sum::new("launches", self.tally.launches.seen + dropped, &parts)
    }

    /// All that the GPUs did, and whose it was.
    pub fn activities(&self) -> Sum {
        let dropped = self.lost(Loss::ActivitiesDropped);
        let mut parts = self.tally.activities.parts().to_vec();
        parts.push(("dropped", dropped));
        Sum::new("activities", self.tally.activities.seen + dropped, &parts)
    }

    /// The activities that are nodes of graphs, and what is known of those who made them.
    pub fn graph_activities(&self) -> Sum {
        Sum::new("graph activities", self.nodes.seen(), &self.nodes.parts())
    }

    /// Calls about events, and the tracer's records of waits.
    pub fn dependency_sums(&self) -> [Sum; 2] {
        let known = &self.dependencies;
        let calls = [("record", known.record_calls), ("stream_wait", known.wait_calls)];
        let (waits, by_kind) = known.waits();
        [
            Sum::new("event calls", known.record_calls + known.wait_calls, &calls),
            Sum::new("wait records", waits, &by_kind),
        ]
    }

    /// Everything that has to add up.
    pub fn sums(&self) -> Vec<Sum> {
        let mut sums = vec![self.launches(), self.activities(), self.graph_activities()];
        sums.extend(self.devices.iter().flat_map(Device::sums).flatten());
        sums.push(self.host.bytes());
        sums.extend(self.dependency_sums());
        sums
    }
}

impl Others {
    fn of(profile: &Profile) -> Self {
        let samples = |wanted: &dyn Fn(&Sample) -> bool| {
            sums(profile.samples(&GPU).iter().filter(|sample| wanted(sample)))
        };
        let kernel = Tip::Work(Work::Kernel(NameId::OTHERS));
        Self {
            stacks: samples(&|sample| sample.place.launch().is_ok_and(ContextId::is_others)),
            kernels: samples(&|sample| sample.leaf.tips().any(|tip| tip == kernel)),
        }
    }
}

impl Device {
    fn of(profile: &Profile, work: DeviceUse) -> Self {
        let device = work.device;
        let time = profile.times().iter().find(|time| time.device == device).copied();
        let mut found = Self { work, time, between: Default::default(), opening: 0, closing: 0 };
        for sample in profile.samples(&IDLE).iter().filter(|sample| sample.device == Some(device)) {
            *found.part(sample) += sample.amount();
        }
        found
    }

    fn part(&mut self, sample: &Sample) -> &mut u64 {
        let cause = |tip| match tip {
            Tip::Idle(cause) => Cause::ALL.into_iter().position(|known| known == cause),
            _ => None,
        };
        match (sample.base, sample.leaf.tips().find_map(cause)) {
            (Some(Base::Opening), _) => &mut self.opening,
            (None, Some(at)) => &mut self.between[at],
            _ => &mut self.closing,
        }
    }

    /// The device's number.
    pub fn id(&self) -> DeviceId {
        self.work.device
    }

    /// How it spent its window, and its idle time by cause; `None` where its activities have no times.
    pub fn sums(&self) -> Option<[Sum; 2]> {
        let time = self.time?;
        let gpu = format!("GPU {}", self.id().0);
        let mut idle: Vec<_> = Cause::ALL.into_iter().map(Cause::word).zip(self.between).collect();
        idle.extend([("opening", self.opening), ("closing", self.closing)]);
        Some([
            Sum::new(format!("{gpu} window_ns"), time.window, &[("busy", time.busy), ("idle", time.idle)]),
            Sum::new(format!("{gpu} idle_ns"), time.idle, &idle),
        ])
    }
}

impl Host {
    fn of(profile: &Profile, (held, held_max): (u64, u64)) -> Self {
        let mut host = Self { held, held_max, ..Self::default() };
        let allocates = |sample: &Sample| sample.leaf.tips().any(|tip| matches!(tip, Tip::Allocate(_)));
        let (waits, memory) = (profile.samples(&WAITS), profile.samples(&MEMORY));
        (host.waits, host.waited) = sums(waits.iter());
        (host.allocations, host.allocated) = sums(memory.iter().filter(|sample| allocates(sample)));
        (host.frees, host.freed) = sums(memory.iter().filter(|sample| !allocates(sample)));
        host
    }

    /// What became of the memory that was allocated.
    pub fn bytes(&self) -> Sum {
        let not_seen = self.allocated.saturating_sub(self.freed).saturating_sub(self.held);
        let parts = [("freed", self.freed), ("held", self.held), ("free_not_seen", not_seen)];
        Sum::new("allocated_bytes", self.allocated, &parts)
    }
}

/// How often, and how much in all.
fn sums<'a>(samples: impl Iterator<Item = &'a Sample>) -> (u64, u64) {
    samples.fold((0, 0), |(count, sum), sample| (count + sample.count(), sum.saturating_add(sample.amount())))
}

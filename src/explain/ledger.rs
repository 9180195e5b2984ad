//! The ledger: counts of launches, activities and other recorded items by outcome, and counts of lost items. The ledger
//! contains only data. Other modules print the ledger and choose the words. Counts of parts that must add up to a total
//! are available as a [`Sum`].

use std::collections::BTreeMap;
use std::fmt;

use super::Stacks;
use crate::graphs;
use crate::join::Tally;
use gpuflame_model::profile::views::{self, GPU, IDLE, MEMORY, UnifiedSums, WAITS};
use gpuflame_model::profile::{
    Cause, Dependencies, DeviceTime, DeviceUse, LeafFrame, Profile, RootMark, Sample, StepTotals,
};
use gpuflame_model::record::{ContextId, DeviceId, Loss, NameId, Work};
use gpuflame_model::sorting;

/// Counts of all recorded items by outcome, and counts of lost items. See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Number of launches and activities by outcome. In a ledger, every launch and activity has a final outcome, so
    /// none counts as waiting.
    pub tally: Tally,
    /// Number of activities that ran graph nodes, grouped by what is known about the creator of the node.
    pub nodes: graphs::NodeTally,
    /// Number of lost items by kind of loss. Kinds of loss that did not occur are absent.
    pub losses: BTreeMap<Loss, u64>,
    /// Number of stacks, and number of stacks with each kind of defect.
    pub stacks: Stacks,
    /// All devices that ran any GPU work.
    pub devices: Vec<Device>,
    /// Sums of the host's activity other than launches, if they were requested.
    pub host: Host,
    /// Counts of API calls and tracer records that concern CUDA events and synchronization, if they were requested.
    pub dependencies: Dependencies,
    /// Sums of unified memory events, if they were requested.
    pub unified: Vec<UnifiedSums>,
    /// Totals over the program's steps, if the program marks its steps.
    pub steps: StepTotals,
    /// GPU work of stacks and kernels that were merged because memory was short.
    pub others: MergedWork,
}

/// GPU work of merged stacks and kernels. All other sums of the ledger include the merged work as well. The number of
/// merged stacks and kernels is in the ledger's losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergedWork {
    /// Number of activities and launches under `[other stacks]`, and their total duration in nanoseconds.
    pub stacks: (u64, u64),
    /// Number of activities and launches under `[other kernels]`, and their total duration in nanoseconds.
    pub kernels: (u64, u64),
}

/// GPU work of a device, and the device's busy and idle time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Number and total duration of the activities on the device.
    pub work: DeviceUse,
    /// Busy and idle time of the device; `None` if none of the device's activities has usable times.
    pub time: Option<DeviceTime>,
    /// Idle time between two activities in nanoseconds, for each cause in the order of [`Cause::ALL`].
    pub between: [u64; Cause::ALL.len()],
    /// Total idle time in nanoseconds from the opening of each window to the first GPU work in the window.
    pub opening: u64,
    /// Total idle time in nanoseconds from the last GPU work in each window to the closing of the window.
    pub closing: u64,
    /// Idle time in nanoseconds before the steady part of the run. No other field of the ledger includes this time.
    pub start_up: u64,
    /// Idle time in nanoseconds after the steady part of the run. No other field of the ledger includes this time.
    pub shutdown: u64,
}

/// Sums of the host's activity other than launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Number of calls that waited.
    pub waits: u64,
    /// Total time of the waits, in nanoseconds.
    pub waited: u64,
    /// Number of calls that allocated memory.
    pub allocations: u64,
    /// Total size of the allocations, in bytes.
    pub allocated: u64,
    /// Number of calls that freed memory.
    pub frees: u64,
    /// Number of bytes that were freed. A freed allocation counts only if the call that made the allocation was
    /// recorded.
    pub freed: u64,
    /// Number of bytes that were allocated and not freed so far.
    pub held: u64,
    /// Maximum number of bytes that were allocated at the same time.
    pub held_max: u64,
}

/// A total, and the parts that must add up to this total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Name of the counted items, such as `launches`.
    pub what: String,
    /// Value that the parts must add up to.
    pub total: u64,
    /// Parts of the total, each as a word and a count. The words are lower case and contain no blanks.
    pub parts: Vec<(&'static str, u64)>,
}

impl Sum {
    fn new(what: impl Into<String>, total: u64, parts: &[(&'static str, u64)]) -> Self {
        Self { what: what.into(), total, parts: parts.to_vec() }
    }

    /// Whether the parts add up to `total`. If the parts do not add up to `total`, gpuflame has a bug.
    pub fn holds(&self) -> bool {
        self.parts.iter().map(|(_, part)| u128::from(*part)).sum::<u128>() == u128::from(self.total)
    }
}

/// Formats a sum in a form such as `launches 5 = matched 3 + …`.
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
    /// Creates a ledger from the sums in `profile` and from the given counts, which the profile does not contain.
    pub(super) fn new(
        profile: &Profile,
        tally: Tally,
        nodes: graphs::NodeTally,
        stacks: Stacks,
        held: (u64, u64),
    ) -> Self {
        Self {
            tally,
            nodes,
            losses: sorting::into_map(profile.losses()),
            stacks,
            devices: profile.devices().iter().map(|work| Device::new(profile, *work)).collect(),
            host: Host::new(profile, held),
            dependencies: profile.dependencies().clone(),
            unified: views::unified(profile).collect(),
            steps: profile.steps(),
            others: MergedWork::new(profile),
        }
    }

    /// Returns the number of lost items for one kind of loss.
    pub fn lost(&self, loss: Loss) -> u64 {
        self.losses.get(&loss).copied().unwrap_or(0)
    }

    /// Returns all launches as a [`Sum`], with one part for each outcome.
    pub fn launches(&self) -> Sum {
        let dropped = self.lost(Loss::LaunchesDropped) + self.lost(Loss::StacksNested);
        let mut parts = self.tally.launches.parts().to_vec();
        parts.push(("dropped", dropped));
        Sum::new("launches", self.tally.launches.seen + dropped, &parts)
    }

    /// Returns all GPU activities as a [`Sum`]. The parts of the sum are the activities with a launch, and the
    /// activities without a launch for each reason.
    pub fn activities(&self) -> Sum {
        let dropped = self.lost(Loss::ActivitiesDropped);
        let mut parts = self.tally.activities.parts().to_vec();
        parts.push(("dropped", dropped));
        Sum::new("activities", self.tally.activities.seen + dropped, &parts)
    }

    /// Returns all activities that ran graph nodes as a [`Sum`], with one part for each kind of knowledge about the
    /// creator of the node.
    pub fn graph_activities(&self) -> Sum {
        Sum::new("graph activities", self.nodes.seen(), &self.nodes.parts())
    }

    /// Returns two sums: API calls that record a CUDA event or make a stream wait for a CUDA event, and the tracer's
    /// synchronization records by kind.
    pub fn dependency_sums(&self) -> [Sum; 2] {
        let known = &self.dependencies;
        let calls = [("record", known.record_calls), ("stream_wait", known.wait_calls)];
        let (waits, by_kind) = known.waits();
        [
            Sum::new("event calls", known.record_calls + known.wait_calls, &calls),
            Sum::new("wait records", waits, &by_kind),
        ]
    }

    /// Returns all sums whose parts must add up to their totals.
    pub fn sums(&self) -> Vec<Sum> {
        let mut sums = vec![self.launches(), self.activities(), self.graph_activities()];
        sums.extend(self.devices.iter().flat_map(Device::sums).flatten());
        sums.push(self.host.bytes());
        sums.extend(self.dependency_sums());
        sums
    }
}

impl MergedWork {
    fn new(profile: &Profile) -> Self {
        let samples = |wanted: &dyn Fn(&Sample) -> bool| {
            sums(profile.samples(&GPU).iter().filter(|sample| wanted(sample)))
        };
        let kernel = LeafFrame::Work(Work::Kernel(NameId::OTHERS));
        Self {
            stacks: samples(&|sample| sample.site.launch().is_ok_and(ContextId::is_others)),
            kernels: samples(&|sample| sample.leaf.frames().any(|leaf_frame| leaf_frame == kernel)),
        }
    }
}

impl Device {
    fn new(profile: &Profile, work: DeviceUse) -> Self {
        let device = work.device;
        let time = profile.times().iter().find(|time| time.device == device).copied();
        let (between, opening, closing) = Default::default();
        let mut found = Self { work, time, between, opening, closing, start_up: 0, shutdown: 0 };
        for sample in profile.samples(&IDLE).iter().filter(|sample| sample.device == Some(device)) {
            *found.part(sample) += sample.amount();
        }
        found
    }

    fn part(&mut self, sample: &Sample) -> &mut u64 {
        let cause = |leaf_frame| match leaf_frame {
            LeafFrame::Idle(cause) => Cause::ALL.into_iter().position(|known| known == cause),
            _ => None,
        };
        match (sample.root_mark, sample.leaf.frames().find_map(cause)) {
            (Some(RootMark::Opening), _) => &mut self.opening,
            (Some(RootMark::StartUp), _) => &mut self.start_up,
            (Some(RootMark::Shutdown), _) => &mut self.shutdown,
            (None, Some(at)) => &mut self.between[at],
            _ => &mut self.closing,
        }
    }

    /// Returns the id of the device.
    pub fn id(&self) -> DeviceId {
        self.work.device
    }

    /// Returns two sums with their parts: the device's time while windows were open (busy or idle), and the device's
    /// idle time by cause. Returns `None` if no activity of the device has usable times.
    pub fn sums(&self) -> Option<[Sum; 2]> {
        let time = self.time?;
        let gpu = format!("GPU {}", self.id().0);
        let mut idle: Vec<_> = Cause::ALL.into_iter().map(Cause::word).zip(self.between).collect();
        idle.extend([("opening", self.opening), ("closing", self.closing)]);
        idle.extend([("start_up", self.start_up), ("shutdown", self.shutdown)]);
        Some([
            Sum::new(format!("{gpu} window_ns"), time.window, &[("busy", time.busy), ("idle", time.idle)]),
            Sum::new(format!("{gpu} idle_ns"), time.idle, &idle),
        ])
    }
}

impl Host {
    fn new(profile: &Profile, (held, held_max): (u64, u64)) -> Self {
        let mut host = Self { held, held_max, ..Self::default() };
        let allocates = |sample: &Sample| {
            sample.leaf.frames().any(|leaf_frame| matches!(leaf_frame, LeafFrame::Allocate(_)))
        };
        let (waits, memory) = (profile.samples(&WAITS), profile.samples(&MEMORY));
        (host.waits, host.waited) = sums(waits.iter());
        (host.allocations, host.allocated) = sums(memory.iter().filter(|sample| allocates(sample)));
        (host.frees, host.freed) = sums(memory.iter().filter(|sample| !allocates(sample)));
        host
    }

    /// Returns the allocated bytes as a [`Sum`]. The parts of the sum are bytes that were freed, bytes that are still
    /// allocated, and bytes that were freed by a call that was not recorded.
    pub fn bytes(&self) -> Sum {
        let not_seen = self.allocated.saturating_sub(self.freed).saturating_sub(self.held);
        let parts = [("freed", self.freed), ("held", self.held), ("free_not_seen", not_seen)];
        Sum::new("allocated_bytes", self.allocated, &parts)
    }
}

/// Returns the total count and the total amount of `samples`.
fn sums<'a>(samples: impl Iterator<Item = &'a Sample>) -> (u64, u64) {
    samples.fold((0, 0), |(count, sum), sample| (count + sample.count(), sum.saturating_add(sample.amount())))
}

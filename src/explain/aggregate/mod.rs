//! `Aggregate` adds up the activities and launches that the join has matched. `Aggregate` has one sum, called a *cell*,
//! for each combination of launch context, kind of GPU work (for example a kernel name) and device. `Aggregate` also
//! has a *series* (statistics of durations) for each kind of work on each device, and a total per device. Busy time is
//! computed by `timeline`.
//!
//! Memory grows with the number of distinct contexts, kernels and devices, never with the number of launches.
//! `Aggregate` stores only ids, not names or stacks. The names and stacks for these ids are in the [`Profile`] that
//! receives the sums.

mod host;
mod rename;
mod sum_cache;
#[cfg(test)]
mod tests;

pub use host::HostSums;

use crate::join::{Launched, Origin, Sink};
use gpuflame_model::profile::views::GPU;
use gpuflame_model::profile::{
    CopyPath, DeviceUse, DurationSpread, LaunchDelays, Leaf, MAX_SAMPLE_VALUES, Profile, Sample, SampleSite,
    Weight, WorkDelays, WorkStats,
};
use gpuflame_model::record::{
    Activity, Caller, ContextId, CopyDetail, CorrelationId, Created, Detail, DeviceId, GpuContextId, IdMap,
    Missing, StreamId, Work, map_bytes,
};
use gpuflame_model::stats::Histogram;
use sum_cache::{SumCache, SumIndices, SumKey};

/// Sums over all activities and launches so far. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Aggregate {
    /// Whether streams are summed separately.
    by_stream: bool,
    lanes: Vec<Lane>,
    lane_index: IdMap<(u32, StreamKey), u32>,
    series: Vec<Series>,
    series_index: IdMap<(LaunchOutcome, Option<DeviceId>), u32>,
    cells: Vec<(Cell, Weight)>,
    cell_index: IdMap<Cell, u32>,
    /// Whether squared durations are summed. If squared durations are summed, `squares` has one sum of squared
    /// durations per cell. If squared durations are not summed, `squares` is empty.
    has_squares: bool,
    squares: Vec<u128>,
    /// Sums of the memory copies with usable times, by direction and kinds of memory. `copies` is filled only if
    /// squared durations are summed. If squared durations are summed, `Series` also contains launch delays.
    copies: Vec<(CopyPath, Weight)>,
    sum_cache: SumCache,
    /// Pairs of two contexts for graph nodes: the context that launched the graph, and the context that created the
    /// node. `node_index` maps each pair of contexts to the position of the pair in `nodes`.
    nodes: Vec<SampleSite>,
    node_index: IdMap<(Caller, Created), u32>,
    devices: Vec<DeviceUse>,
}

/// Outcome of a launch: the GPU work that it caused, if any. An outcome is looked up for every activity, so it is
/// stored in a more compact form than [`Leaf`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LaunchOutcome {
    /// GPU work with a known duration.
    Work(Work),
    /// GPU work with an unknown duration.
    Untimed(Work),
    /// No work, because the launch has no activity.
    Pending,
}

/// Key of a cell. The key of a cell is kept small, because there may be a hundred thousand cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cell {
    site: SiteCode,
    /// Position in `Aggregate::lanes` if streams are summed separately; otherwise, position in `Aggregate::series`.
    series: u32,
}

/// Identifies a stream of a GPU context.
type StreamKey = (GpuContextId, StreamId);

/// Identifies a series of statistics (by its position in `Aggregate::series`) on one stream. A `Lane` exists only if
/// streams are summed separately.
#[derive(Clone, Copy, Debug)]
struct Lane {
    series: u32,
    stream: Option<StreamKey>,
}

const _: () = assert!(size_of::<(Cell, Weight)>() == 32, "a cell grew: there is one for each stack and name");

/// Sums over all cells with the same outcome and device, even if their contexts differ.
#[derive(Clone, Debug)]
struct Series {
    outcome: LaunchOutcome,
    device: Option<DeviceId>,
    /// Position in `Aggregate::devices` of the device to which these sums belong.
    device_index: Option<usize>,
    weight: Weight,
    min: u64,
    max: u64,
    durations: Histogram,
    delays: Option<Box<LaunchDelays>>,
}

impl Sink for Aggregate {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        let launch = origin.context();
        let site = match activity.created {
            Some(created) => self.node(launch, created),
            None => Caller::from(launch).into(),
        };
        let nanos = activity.duration();
        let outcome = match nanos {
            Some(_) => LaunchOutcome::Work(activity.work()),
            None => LaunchOutcome::Untimed(activity.work()),
        };
        let weight = Weight { count: 1, nanos: nanos.unwrap_or(0), bytes: activity.bytes() };
        let stream = Some((activity.context, activity.stream));
        let series = self.add(site, outcome, (Some(activity.device), stream), weight);
        if self.has_squares {
            self.add_details(activity, origin, series, weight);
        }
        if let (Some(device), Some(nanos)) = (self.series[series].device_index, nanos) {
            let device = &mut self.devices[device];
            device.count += 1;
            device.nanos = device.nanos.saturating_add(nanos);
        }
    }

    fn pending(&mut self, _id: CorrelationId, launched: Launched) {
        let site = Caller::from(launched.context).into();
        self.add(site, LaunchOutcome::Pending, (None, None), Weight { count: 1, nanos: 0, bytes: 0 });
    }
}

impl Aggregate {
    /// Creates an empty `Aggregate` that sums streams separately, for outputs that show streams.
    pub fn by_stream() -> Self {
        Self { by_stream: true, ..Self::default() }
    }

    /// Makes this `Aggregate` also sum the squares of durations.
    #[must_use]
    pub fn with_squares(self) -> Self {
        Self { has_squares: true, ..self }
    }

    /// Replaces the sums in `profile` by the current sums.
    pub fn fill(&self, profile: &mut Profile) {
        profile.set_samples(&GPU, self.samples());
        profile.set_works(self.works(), self.devices.clone());
    }

    /// Returns the number, the total and the sum of squares of the durations, for each stack and kind of work. The
    /// returned list is empty unless squared durations are summed.
    pub fn spreads(&self) -> Vec<DurationSpread> {
        let mut spreads = Vec::with_capacity(self.squares.len());
        for ((cell, weight), &squares) in self.cells.iter().zip(&self.squares) {
            let Lane { series, stream } = self.lane_of(*cell);
            let Series { outcome: LaunchOutcome::Work(work), device, .. } = self.series[series as usize]
            else {
                continue;
            };
            let (site, Weight { count, nanos, .. }) = (self.site_of(cell.site), *weight);
            spreads.push(DurationSpread { site, work, device, stream, count, nanos, squares });
        }
        spreads
    }

    /// Removes and returns the launch delays by kind of work and device, and the copies by direction and kinds of
    /// memory. Both returned lists are empty unless squared durations are summed.
    pub fn take_details(&mut self) -> (Vec<WorkDelays>, Vec<(CopyPath, Weight)>) {
        let mut all = Vec::new();
        for series in &mut self.series {
            if let (LaunchOutcome::Work(work), Some(device)) = (series.outcome, series.device)
                && let Some(delays) = series.delays.take()
            {
                all.push(WorkDelays { work, device, delays: *delays });
            }
        }
        (all, std::mem::take(&mut self.copies))
    }

    /// Returns the number of cells.
    pub fn cells(&self) -> usize {
        self.cells.len()
    }

    /// Returns statistics of durations by kind of work and device, in no particular order.
    pub fn works(&self) -> Vec<WorkStats> {
        let mut works = Vec::with_capacity(self.series.len());
        works.extend(self.series.iter().filter_map(Series::stats));
        works
    }

    /// Returns the size in bytes of the heap memory that the sums use.
    pub fn heap_bytes(&self) -> usize {
        self.sum_cache.heap_bytes()
            + map_bytes(&self.cell_index)
            + self.cells.capacity() * size_of::<(Cell, Weight)>()
            + self.squares.capacity() * size_of::<u128>()
            + map_bytes(&self.series_index)
            + map_bytes(&self.node_index)
            + map_bytes(&self.lane_index)
            + self.lanes.capacity() * size_of::<Lane>()
            + self.nodes.capacity() * size_of::<SampleSite>()
            + self.series.capacity() * size_of::<Series>()
            + self.series.iter().map(Series::heap_bytes).sum::<usize>()
    }

    fn lane_of(&self, cell: Cell) -> Lane {
        match self.by_stream {
            true => self.lanes[cell.series as usize],
            false => Lane { series: cell.series, stream: None },
        }
    }

    fn samples(&self) -> Vec<Sample> {
        let sample = |&(cell, weight): &(Cell, Weight)| {
            let lane = self.lane_of(cell);
            let Series { outcome, device, .. } = self.series[lane.series as usize];
            let mut values = [0; MAX_SAMPLE_VALUES];
            values[..3].copy_from_slice(&[weight.nanos, weight.count, weight.bytes]);
            let sample = Sample::new(self.site_of(cell.site), outcome.leaf());
            Sample { device, stream: lane.stream, values, ..sample }
        };
        self.cells.iter().map(sample).collect()
    }

    fn add(
        &mut self,
        site: SiteCode,
        outcome: LaunchOutcome,
        (device, stream): (Option<DeviceId>, Option<StreamKey>),
        weight: Weight,
    ) -> usize {
        let key = SumKey { site, outcome, device, stream: stream.filter(|_| self.by_stream) };
        let SumIndices { series, cell } = match outcome {
            // The cell of a launch without an activity is usually looked up only once, and there is no kernel that
            // could select a cache slot. So the cache is not used for launches without an activity.
            LaunchOutcome::Pending => self.find(key),
            _ => self.sum_cache.get(&key).unwrap_or_else(|| {
                let sums = self.find(key);
                self.sum_cache.put(key, sums)
            }),
        };
        self.series[series as usize].add(weight);
        add(&mut self.cells[cell as usize].1, weight);
        self.add_squares(cell, u128::from(weight.nanos).pow(2));
        series as usize
    }

    /// Adds the launch delay of an activity. An activity that is a copy is also added to the sum for its direction and
    /// kinds of memory. Activities without usable times are ignored. A run has only a few combinations of direction and
    /// kinds of memory.
    #[inline(never)]
    fn add_details(&mut self, activity: &Activity, origin: Origin, series: usize, weight: Weight) {
        if activity.duration().is_none() {
            return;
        }
        if let Origin::Launch(launched) = origin {
            let delays = self.series[series].delays.get_or_insert_default();
            delays.record(launched.time, activity.start);
        }
        if let Detail::Copy(CopyDetail { kind, from, to, .. }) = activity.detail {
            let path = CopyPath { device: activity.device, kind, from, to };
            match self.copies.iter_mut().find(|(known, _)| *known == path) {
                Some((_, sum)) => add(sum, weight),
                None => self.copies.push((path, weight)),
            }
        }
    }

    fn add_squares(&mut self, cell: u32, squares: u128) {
        if let Some(sum) = self.squares.get_mut(cell as usize) {
            *sum = sum.saturating_add(squares);
        }
    }

    /// Finds or creates the sums (the cell and the series) for `key`, without using the cache.
    fn find(&mut self, key: SumKey) -> SumIndices {
        let series = self.series(key.outcome, key.device);
        let lane = if self.by_stream { self.lane(series, key.stream) } else { series };
        let cell = Cell { site: key.site, series: lane };
        SumIndices { series, cell: self.cell(cell) }
    }

    fn cell(&mut self, cell: Cell) -> u32 {
        let (cells, squares) = (&mut self.cells, &mut self.squares);
        let has_squares = self.has_squares;
        *self.cell_index.entry(cell).or_insert_with(|| {
            cells.push((cell, Weight::default()));
            if has_squares {
                squares.push(0);
            }
            (cells.len() - 1) as u32
        })
    }

    fn lane(&mut self, series: u32, stream: Option<StreamKey>) -> u32 {
        let lanes = &mut self.lanes;
        // Only launches without an activity have no stream.
        let key = stream.unwrap_or((GpuContextId(u32::MAX), StreamId(u32::MAX)));
        *self.lane_index.entry((series, key)).or_insert_with(|| {
            lanes.push(Lane { series, stream });
            (lanes.len() - 1) as u32
        })
    }

    /// Returns the four-byte code for the two contexts of a graph node. A new pair is stored.
    fn node(&mut self, launch: Result<ContextId, Missing>, created: Created) -> SiteCode {
        let nodes = &mut self.nodes;
        let at = *self.node_index.entry((launch.into(), created)).or_insert_with(|| {
            nodes.push(SampleSite::Node { launch, created });
            (nodes.len() - 1) as u32
        });
        SiteCode(NODE | at)
    }

    fn site_of(&self, SiteCode(code): SiteCode) -> SampleSite {
        if code & NODE != 0 {
            return self.nodes[(code & !NODE) as usize];
        }
        Caller::from_bits(code).launched().map_or_else(SampleSite::Missing, SampleSite::Context)
    }

    fn series(&mut self, outcome: LaunchOutcome, device: Option<DeviceId>) -> u32 {
        *self.series_index.entry((outcome, device)).or_insert_with(|| {
            let device_index = device.map(|id| position(&mut self.devices, id));
            self.series.push(Series::new(outcome, device, device_index));
            (self.series.len() - 1) as u32
        })
    }
}

/// Returns the position of `device` in `devices`. A new device is appended. This function is called only when a new
/// series is created.
fn position(devices: &mut Vec<DeviceUse>, device: DeviceId) -> usize {
    devices.iter().position(|known| known.device == device).unwrap_or_else(|| {
        devices.push(DeviceUse { device, count: 0, nanos: 0 });
        devices.len() - 1
    })
}

impl LaunchOutcome {
    fn leaf(self) -> Leaf {
        match self {
            Self::Work(work) => Leaf::work(work),
            Self::Untimed(work) => Leaf::untimed(work),
            Self::Pending => Leaf::PENDING,
        }
    }
}

impl Series {
    fn new(outcome: LaunchOutcome, device: Option<DeviceId>, device_index: Option<usize>) -> Self {
        let weight = Weight::default();
        Self {
            outcome,
            device,
            device_index,
            weight,
            min: u64::MAX,
            max: 0,
            durations: Histogram::default(),
            delays: None,
        }
    }

    fn add(&mut self, weight: Weight) {
        add(&mut self.weight, weight);
        if let LaunchOutcome::Work(_) = self.outcome {
            self.min = self.min.min(weight.nanos);
            self.max = self.max.max(weight.nanos);
            self.durations.record(weight.nanos);
        }
    }

    fn heap_bytes(&self) -> usize {
        let delays = |delays: &LaunchDelays| size_of::<LaunchDelays>() + delays.histogram.heap_bytes();
        self.durations.heap_bytes() + self.delays.as_deref().map_or(0, delays)
    }

    fn stats(&self) -> Option<WorkStats> {
        let (LaunchOutcome::Work(work), Some(device)) = (self.outcome, self.device) else { return None };
        // A percentile is the midpoint of a histogram bucket, so it may be below the minimum or above the maximum of
        // the recorded durations.
        let percentiles = [50, 95, 99].map(|p| self.durations.percentile(p).clamp(self.min, self.max));
        Some(WorkStats { work, device, weight: self.weight, min: self.min, max: self.max, percentiles })
    }
}

/// Adds `weight` to `sum`. The sum saturates instead of wrapping, because a hostile file may contain huge durations.
fn add(sum: &mut Weight, weight: Weight) {
    sum.count += weight.count;
    sum.nanos = sum.nanos.saturating_add(weight.nanos);
    sum.bytes = sum.bytes.saturating_add(weight.bytes);
}

/// A [`SampleSite`] in four bytes: either a caller or, if the bit [`NODE`] is set, a position in `Aggregate::nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SiteCode(u32);

/// Bit that marks the code as a position in `Aggregate::nodes`. The code of a caller (see [`Caller`]) never has this
/// bit.
const NODE: u32 = 1 << 31;

impl From<Caller> for SiteCode {
    fn from(caller: Caller) -> Self {
        Self(caller.bits())
    }
}

//! Reconstructs the state of each stream over time. A state shows whether the stream ran an operation, waited or was
//! idle.
//!
//! ```text
//!   window                                                                                  window
//!   |. idle .|-------- pending or waiting --------|######|. idle .|- pending -|####|. finished .|
//!            call of the next operation     begin  running
//! ```
//!
//! The intervals of a stream have no gaps and do not overlap. So the total time of the stream's states is exactly the
//! duration of the window. The causes of the gaps on a stream are determined by the same rules as the causes of a
//! device's idle time ([`gap_causes`]).

mod collect;
mod columns;
mod culprits;
mod device_busy;
mod host_activity;
mod hta;
mod queue;
mod state;
mod sums;
#[cfg(test)]
mod tests;
mod walk;

pub use collect::{StreamKey, StreamRows};
pub use columns::{Column, StateColumns};
pub use culprits::IdleCulprit;
pub use hta::{HtaIdle, HtaOp, HtaQueue, enters_queue, hta_idle, hta_queues};
pub use state::{Interval, State, StateCause};
pub use sums::{Concurrency, Delays, SeriesRow};

use std::collections::BTreeMap;

use collect::StreamWait;
use culprits::Culprits;
use device_busy::DeviceBusy;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{DeviceId, WindowEdge, Work};
use queue::{Queue, queued_since};
use sums::{DelaySums, SmallSums, SpanSums};
use walk::StreamWalk;

/// Settings for the reconstruction of stream states. The times in the settings are in ns since the start of the window.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateOptions {
    /// Start of the shown time. The default is the start of the window.
    pub from: Option<u64>,
    /// End of the shown time. The default is the end of the window.
    pub to: Option<u64>,
    /// Duration of the parts in [`StateReport::series`]. The default is a tenth of the shown time.
    pub step: Option<u64>,
}

/// Time in ns for each pair of a state and a cause.
pub type StateSums = BTreeMap<(State, StateCause), u64>;

/// States of one stream.
#[derive(Clone, Debug)]
pub struct StreamStates {
    /// Key of the stream: device, CUDA context and stream id.
    pub key: StreamKey,
    /// Number of the stream's operations in the shown time.
    pub ops: u64,
    /// Time in ns for each pair of a state and a cause. The total over all states and causes is the shown time.
    pub sums: StateSums,
    /// Launch delays of the operations that begin in the shown time.
    pub delays: Delays,
    /// Maximum number of the stream's operations that were in flight (launched but not finished).
    pub max_queue: u64,
    /// Places in the code that account for the time with [`StateCause::HostLate`], the most expensive first. The list
    /// of places is empty if the rows were not created by [`StreamRows::with_culprits`].
    pub culprits: Vec<IdleCulprit>,
}

impl StreamStates {
    /// Returns the time that the stream spent in a state, in ns.
    pub fn nanos(&self, state: State) -> u64 {
        self.sums.iter().filter(|((one, _), _)| *one == state).map(|(_, nanos)| nanos).sum()
    }
}

/// States of all streams of a run.
#[derive(Clone, Debug, Default)]
pub struct StateReport {
    /// Start and end of the shown time, in ns since 1970.
    pub window: (u64, u64),
    /// States of the streams, sorted by device, CUDA context and stream.
    pub streams: Vec<StreamStates>,
    /// For each device, the time in which 0, 1, 2 and more of its streams were busy at the same time.
    pub devices: Vec<(DeviceId, Concurrency)>,
    /// For each device, its sums in each of the equal parts of the shown time.
    pub series: Vec<(DeviceId, Vec<SeriesRow>)>,
    /// Number of operations that are not part of any state because their times are not usable.
    pub untimed: u64,
}

/// Default number of parts in a series, used if the user does not choose the duration of a part.
const DEFAULT_PARTS: u64 = 10;
/// Maximum number of parts in a series.
pub const MAX_PARTS: u64 = 10_000;

/// Returns the states of all streams. Also passes all intervals to `each`, sorted by stream and then by time.
/// `is_collective` returns whether an operation moves data between GPUs. Returns `None` if there is no operation with
/// usable times.
pub fn reconstruct_states(
    mut rows: StreamRows,
    profile: &Profile,
    options: StateOptions,
    is_collective: &dyn Fn(Work) -> bool,
    each: &mut dyn FnMut(StreamKey, &Interval),
) -> Option<StateReport> {
    rows.sort();
    let whole = whole_window(&rows, profile)?;
    let shown = shown_part(whole, options);
    let closed = closed_times(profile);
    let waits = rows.stream_waits();
    let mut culprits = rows.host.take().map(|activity| Culprits::new(activity, &rows, profile));
    let mut report = StateReport { window: shown, untimed: rows.untimed, ..StateReport::default() };
    let parts = series_parts(shown, options.step);
    let devices: Vec<DeviceBusy> =
        rows.keys.chunk_by(|a, b| a.0 == b.0).map(|keys| DeviceBusy::new(&rows, keys[0].0, &parts)).collect();
    // For each device, the times in which operations were in flight.
    let mut queued = vec![parts.clone(); devices.len()];
    for (number, &key) in (0..).zip(&rows.keys) {
        let Some(at) = devices.iter().position(|device| device.id == key.0) else { continue };
        let (mut sums, mut queue, mut begins) = (SmallSums::default(), Queue::default(), 0);
        let device = &devices[at];
        let mut walk = StreamWalk {
            keys: &rows.keys,
            waits: waits_of(&waits, number),
            busy: &device.busy,
            blocking: device.blocking(key),
            is_collective,
            closed: &closed,
            whole,
            shown,
            delays: DelaySums::default(),
            open: None,
            each: &mut |interval| {
                sums.add((interval.state, interval.cause), interval.end - interval.start);
                let culprit = culprits.as_mut().and_then(|culprits| culprits.charge(key.0, interval));
                each(key, &Interval { culprit, ..*interval });
            },
        };
        walk.run(rows.ops_of(number).inspect(|op| {
            queued[at].add(queued_since(op), op.end);
            queue.add(op);
            begins += u64::from((shown.0..shown.1).contains(&op.start));
        }));
        let delays = std::mem::take(&mut walk.delays).finished();
        let culprits = culprits.as_mut().map(Culprits::take_sums).unwrap_or_default();
        let (sums, max_queue) = (sums.into_map(), queue.longest(|| rows.ops_of(number)));
        report.streams.push(StreamStates { key, ops: begins, sums, delays, max_queue, culprits });
    }
    for (device, queued) in devices.into_iter().zip(queued) {
        report.series.push((device.id, series(&rows, &device, &queued, parts.clone())));
        report.devices.push((device.id, device.concurrency));
    }
    Some(report)
}

/// Returns the start and end of the time that these settings show, in ns since 1970. Returns `None` if no operation has
/// usable times.
pub fn shown_window(rows: &StreamRows, profile: &Profile, options: StateOptions) -> Option<(u64, u64)> {
    Some(shown_part(whole_window(rows, profile)?, options))
}

fn shown_part(whole: (u64, u64), options: StateOptions) -> (u64, u64) {
    let cut = |offset: u64| whole.0.saturating_add(offset).min(whole.1);
    (options.from.map_or(whole.0, cut), options.to.map_or(whole.1, cut))
}

/// Returns the start and end of the window that contains all operations and all recording windows.
fn whole_window(rows: &StreamRows, profile: &Profile) -> Option<(u64, u64)> {
    Some(extend_to_windows(rows.times?, profile))
}

/// Extends `span`, the time range of all GPU work, so that it includes all recording windows.
pub(super) fn extend_to_windows((first, last): (u64, u64), profile: &Profile) -> (u64, u64) {
    let edges = profile.windows().iter();
    let opened = edges.clone().find(|(edge, _)| *edge == WindowEdge::Open).map(|(_, time)| time.0);
    let closed = edges.rev().find(|(edge, _)| *edge == WindowEdge::Close).map(|(_, time)| time.0);
    let opened = opened.filter(|time| *time != 0);
    (opened.map_or(first, |time| time.min(first)), closed.map_or(last, |time| time.max(last)))
}

/// Returns the time ranges between successive recording windows, in order of time.
fn closed_times(profile: &Profile) -> Vec<(u64, u64)> {
    let (mut closed, mut since) = (Vec::new(), None);
    for &(edge, time) in profile.windows() {
        match edge {
            WindowEdge::Close => since = Some(time.0),
            WindowEdge::Open => {
                closed.extend(since.take().filter(|since| *since < time.0).map(|at| (at, time.0)))
            }
        }
    }
    let mut end = 0;
    closed.retain(|&(from, to)| from >= std::mem::replace(&mut end, to));
    closed
}

fn waits_of(waits: &[StreamWait], stream: u32) -> &[StreamWait] {
    let from = waits.partition_point(|wait| wait.stream < stream);
    let to = waits.partition_point(|wait| wait.stream <= stream);
    &waits[from..to]
}

/// Creates empty sums for the parts of the shown time.
fn series_parts(shown: (u64, u64), step: Option<u64>) -> SpanSums {
    let length = shown.1 - shown.0;
    let step = step.unwrap_or_else(|| length.div_ceil(DEFAULT_PARTS)).max(length.div_ceil(MAX_PARTS)).max(1);
    SpanSums::new(shown, step)
}

/// Returns the sums of a device for each part of the shown time. `parts` are empty sums.
fn series(rows: &StreamRows, device: &DeviceBusy, queued: &SpanSums, parts: SpanSums) -> Vec<SeriesRow> {
    let (shown, step) = (parts.shown(), parts.step());
    let (mut busy, mut bytes) = (parts.clone(), parts);
    device.busy.iter().for_each(|&(start, end)| busy.add(start, end));
    let moved = rows.moved.iter().filter(|moved| moved.device == device.id);
    moved.for_each(|moved| bytes.add_amount(moved.start, moved.end, moved.bytes));
    let [busy, streams, queue, bytes] = [&busy, &device.streams, queued, &bytes].map(SpanSums::sums);
    let row = |at: usize| {
        let start = shown.0 + at as u64 * step;
        SeriesRow {
            start,
            end: start.saturating_add(step).min(shown.1),
            busy_ns: busy[at],
            stream_ns: streams[at],
            queue_ns: queue[at],
            bytes: bytes[at],
        }
    };
    (0..busy.len()).map(row).collect()
}

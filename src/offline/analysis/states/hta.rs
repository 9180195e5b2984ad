//! Computes queue lengths and idle times of streams by the rules of Holistic Trace Analysis (HTA), so that the tables
//! of gpuflame and HTA can be compared. HTA's rules differ from gpuflame's rules for stream states:
//!
//! - Times are in whole microseconds. Start times are rounded up, and end times are rounded down.
//! - Only operations that were launched by certain calls enter the queue, and an operation leaves the queue when it
//!   begins.
//! - The whole gap before an operation belongs to one category. A gap begins at the end of the operation that began
//!   last before it. If operations overlap, the gap between them is negative.

use std::collections::BTreeMap;

use gpuflame_model::record::{DeviceId, StreamId};

/// Names of the launch calls whose operations enter the queue.
const LAUNCH_CALLS: [&str; 10] = [
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipMemcpyAsync",
    "hipMemsetAsync",
    "hipMemcpyWithStream",
];
/// Limit in us. If a gap between two operations is shorter than this limit, the gap is assumed to be only the overhead
/// of starting the second operation.
const KERNEL_WAIT_US: i64 = 30;

/// An operation on a stream, with times in ns.
#[derive(Clone, Copy, Debug)]
pub struct HtaOp {
    /// Id of the GPU that ran the operation.
    pub device: DeviceId,
    /// Id of the stream that ran the operation.
    pub stream: StreamId,
    /// Time at which the operation started.
    pub start: u64,
    /// Time at which the operation ended.
    pub end: u64,
    /// Start of the launch call, or `None` if the call is unknown.
    pub call: Option<u64>,
    /// Whether the operation enters the queue, as [`enters_queue`] decides for its launch call.
    pub is_queued: bool,
}

/// Whether operations launched by this call enter the queue.
pub fn enters_queue(call: &str) -> bool {
    LAUNCH_CALLS.contains(&call)
}

/// Statistics of the queue length of a stream. The statistics are computed from the queue lengths that the stream has
/// after each change.
#[derive(Clone, Debug, PartialEq)]
pub struct HtaQueue {
    /// GPU and stream of the queue.
    pub key: (DeviceId, StreamId),
    /// Number of changes of the queue length.
    pub count: u64,
    /// Mean queue length.
    pub mean: f64,
    /// Sample standard deviation of the queue length, or `None` if there is only one change.
    pub std: Option<f64>,
    /// Minimum, three quartiles and maximum of the queue length. A quartile that falls between two queue lengths is
    /// interpolated.
    pub quartiles: [f64; 5],
}

/// Idle time of a stream in one category.
#[derive(Clone, Debug, PartialEq)]
pub struct HtaIdle {
    /// GPU and stream that were idle.
    pub key: (DeviceId, StreamId),
    /// Category of the idle time, which is `host_wait`, `kernel_wait` or `other`.
    pub category: &'static str,
    /// Idle time in us. Idle time can be negative, because gaps between overlapping operations are negative.
    pub micros: i64,
    /// Share of this category in the stream's idle time, or `None` if the stream's idle time is 0.
    pub ratio: Option<f64>,
}

/// Returns the statistics of the queue lengths for each GPU and stream.
pub fn hta_queues(ops: &[HtaOp]) -> Vec<HtaQueue> {
    let mut changes: BTreeMap<(DeviceId, StreamId), Vec<(i64, i64)>> = BTreeMap::new();
    for op in ops.iter().filter(|op| op.is_queued) {
        let Some(call) = op.call else { continue };
        // At equal times, launches sort before starts of operations.
        changes.entry((op.device, op.stream)).or_default().extend([(up(call), -1), (up(op.start), 1)]);
    }
    let queue = |(key, mut changes): ((DeviceId, StreamId), Vec<(i64, i64)>)| {
        changes.sort_unstable();
        let mut length = 0;
        let lengths: Vec<i64> = changes
            .iter()
            .map(|(_, left)| {
                length -= left;
                length
            })
            .collect();
        describe(key, lengths)
    };
    changes.into_iter().map(queue).collect()
}

fn describe(key: (DeviceId, StreamId), mut lengths: Vec<i64>) -> HtaQueue {
    lengths.sort_unstable();
    let count = lengths.len() as f64;
    let mean = lengths.iter().sum::<i64>() as f64 / count;
    let squares: f64 = lengths.iter().map(|length| (*length as f64 - mean).powi(2)).sum();
    let std = (lengths.len() > 1).then(|| (squares / (count - 1.0)).sqrt());
    let quartiles = [0.0, 0.25, 0.5, 0.75, 1.0].map(|share| {
        let at = share * (count - 1.0);
        let [low, high] = [at.floor(), at.ceil()].map(|at| lengths[at as usize] as f64);
        low + (high - low) * at.fract()
    });
    HtaQueue { key, count: lengths.len() as u64, mean, std, quartiles }
}

/// Returns the idle time for each GPU, stream and category.
pub fn hta_idle(ops: &[HtaOp]) -> Vec<HtaIdle> {
    let mut by_stream: BTreeMap<(DeviceId, StreamId), Vec<&HtaOp>> = BTreeMap::new();
    for op in ops {
        by_stream.entry((op.device, op.stream)).or_default().push(op);
    }
    let mut all = Vec::new();
    for (key, mut ops) in by_stream {
        ops.sort_by_key(|op| up(op.start));
        // The first operation has no gap before it, and HTA lists it in the category `other`.
        let mut sums = BTreeMap::from([("other", 0)]);
        for pair in ops.windows(2) {
            let (before, start) = (down(pair[0].end), up(pair[1].start));
            let category = match pair[1].call {
                Some(call) if up(call) > before => "host_wait",
                _ if start - before < KERNEL_WAIT_US => "kernel_wait",
                _ => "other",
            };
            *sums.entry(category).or_default() += start - before;
        }
        let total: i64 = sums.values().sum();
        let ratio = |micros: i64| (total != 0).then(|| micros as f64 / total as f64);
        all.extend(sums.iter().map(|(category, micros)| HtaIdle {
            key,
            category,
            micros: *micros,
            ratio: ratio(*micros),
        }));
    }
    all
}

fn up(nanos: u64) -> i64 {
    nanos.div_ceil(1_000) as i64
}

fn down(nanos: u64) -> i64 {
    (nanos / 1_000) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(call: u64, start: u64, end: u64) -> HtaOp {
        let (device, stream) = (DeviceId(0), StreamId(7));
        HtaOp { device, stream, start, end, call: Some(call), is_queued: true }
    }

    #[test]
    fn queue_lengths_and_idle_times_follow_by_hand() {
        // The operations are launched at 1, 2 and 100 us, and run from 10 to 20 us, from 25 to 60 us and from 110 to
        // 120 us.
        let ops = [op(1_000, 10_000, 20_000), op(2_000, 25_000, 60_000), op(100_000, 110_000, 120_000)];
        let queues = hta_queues(&ops);
        // The queue lengths are 1, 2, 1, 0, 1, 0.
        assert_eq!((queues[0].count, queues[0].mean), (6, 5.0 / 6.0));
        assert_eq!(queues[0].quartiles, [0.0, 0.25, 1.0, 1.0, 2.0]);
        // The squared differences from the mean are 3 x 1/36, 2 x 25/36 and 49/36.
        assert!((queues[0].std.unwrap() - (102.0_f64 / 36.0 / 5.0).sqrt()).abs() < 1e-12);
        let idle: Vec<_> = hta_idle(&ops).into_iter().map(|idle| (idle.category, idle.micros)).collect();
        assert_eq!(idle, [("host_wait", 50), ("kernel_wait", 5), ("other", 0)]);
    }

    #[test]
    fn times_within_a_microsecond_shorten_operations_and_a_long_gap_without_a_launch_is_other() {
        let mut late = op(0, 50_001, 50_999);
        late.call = None;
        let idle = hta_idle(&[op(1, 1_001, 9_999), late]);
        // The first operation ends at 9 us, and the second operation begins at 51 us.
        assert_eq!((idle[0].category, idle[0].micros, idle[0].ratio), ("other", 42, Some(1.0)));
        assert!(hta_queues(&[late]).is_empty());
    }
}

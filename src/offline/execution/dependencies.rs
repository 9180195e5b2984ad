//! Finds the dependencies between operators and GPU work. The dependencies of operators on their callers are not found
//! here, because the execution trace contains them.
//!
//! | from | to | known from |
//! |---|---|---|
//! | operator | next operator of the thread | time |
//! | last operator of another thread | first operator after a pause of the thread | time |
//! | GPU work | next work on the stream | time |
//! | GPU work | work of a stream that waited for an event | wait records, otherwise the order of calls |
//! | GPU work | operator after a call that waited for the work | wait records, otherwise the call's name and times |

use std::collections::{BTreeMap, HashMap};

use super::GpuNode;
use super::nesting::Nesting;
use super::order::Order;
use super::pairing::Pairs;
use gpuflame_traces::execution::{ExecutionTrace, HostCall, Kineto, Work};

/// Minimum pause of a thread in ns. After a pause of at least this duration, the thread's next operator is assumed to
/// depend on an operator of another thread. Chakra's linker uses the same limit for pauses.
const MIN_PAUSE_NS: i64 = 1_000_000;
/// Tolerance in ns for comparisons of times that are truncated to whole microseconds.
const ROUNDING_NS: i64 = 1000;
/// Maximum number of launches before or after a wait that are examined to find the awaited work.
const MAX_LAUNCHES: usize = 4096;
/// Maximum number of earlier operations on a stream that are examined to find an operation that has ended.
const MAX_OVERLAPS: usize = 256;

/// Dependencies of each node of the graph. A dependency of a node is given as the index of the node on which it
/// depends.
#[derive(Debug, Default)]
pub struct Dependencies {
    /// For each operator, the previous operator of the same thread.
    pub thread: Vec<Option<u32>>,
    /// For each operator that is the first operator after a pause of its thread, the operator of another thread that
    /// began last before it.
    pub inter_thread: Vec<Option<u32>>,
    /// For each operator, the GPU work for which its thread waited before the operator.
    pub host_waits: Vec<Vec<u32>>,
    /// For each GPU operation, the previous operation on the same stream.
    pub stream: Vec<Option<u32>>,
    /// For each GPU operation, the GPU work on other streams for which its stream waited before this operation.
    pub stream_waits: Vec<Vec<u32>>,
    /// Number of dependencies that were omitted because the times contradict them.
    pub contradicted: u64,
}

/// The graph before its dependencies were found.
pub(super) struct Graph<'a> {
    pub(super) trace: &'a ExecutionTrace<'a>,
    pub(super) kineto: &'a Kineto,
    pub(super) pairs: &'a Pairs,
    pub(super) nesting: &'a Nesting,
    pub(super) gpu: &'a [GpuNode],
    pub(super) order: &'a Order,
}

impl Graph<'_> {
    /// Finds all dependencies. `calls` contains for each GPU operation the call that launched it.
    pub(super) fn dependencies(&self, calls: &[Option<usize>]) -> Dependencies {
        let count = self.trace.nodes.len() + self.gpu.len();
        let mut found = Dependencies {
            thread: vec![None; count],
            inter_thread: vec![None; count],
            host_waits: vec![Vec::new(); count],
            stream: vec![None; count],
            stream_waits: vec![Vec::new(); count],
            contradicted: 0,
        };
        self.add_threads(&mut found);
        self.add_streams(&mut found);
        let launches = Launches::of(self, calls);
        match self.kineto.waits.iter().any(|wait| wait.on_stream.is_some()) {
            true => self.add_recorded_stream_waits(&launches, &mut found),
            false => self.add_stream_waits_by_calls(&launches, &mut found),
        }
        self.add_host_waits(&launches, &mut found);
        found
    }

    fn node(&self, op: usize) -> Option<u32> {
        self.pairs.node_of_op[op].map(|node| node as u32)
    }

    fn work(&self, node: u32) -> &Work {
        &self.kineto.work[self.gpu[node as usize - self.trace.nodes.len()].work]
    }

    fn slack(&self) -> i64 {
        if self.kineto.has_whole_micros() { ROUNDING_NS } else { 0 }
    }

    /// Whether GPU operation `first` had ended when GPU operation `second` began.
    fn has_ended(&self, first: u32, second: u32) -> bool {
        self.work(first).end <= self.work(second).start.saturating_add(self.slack())
    }

    /// Returns the calls made by the process that recorded the execution trace.
    fn own_calls(&self) -> impl Iterator<Item = &HostCall> {
        self.kineto.calls.iter().filter(|call| self.pairs.own_threads[call.thread as usize])
    }

    fn check(&self, first: u32, second: u32, found: &mut Dependencies) -> bool {
        let follows = self.order.is_before(first, second);
        found.contradicted += u64::from(!follows);
        follows
    }

    fn add_threads(&self, found: &mut Dependencies) {
        let all: Vec<u32> = self.starts();
        for ops in &self.nesting.threads {
            let mut previous = None;
            let mut end = i64::MIN;
            let mut is_first = false;
            for &op in ops {
                let HostOpTimes { start, end: own_end, thread } = self.times(op);
                // If the first operator after a pause is not in the execution trace, the next operator that is in the
                // execution trace counts as the first operator after the pause.
                is_first |= end == i64::MIN || start.saturating_sub(end) > MIN_PAUSE_NS;
                // Pauses between operators inside a range count, because a range stays open while its thread waits for
                // another thread.
                end = own_end;
                let Some(node) = self.node(op) else { continue };
                if let Some(previous) = previous.filter(|previous| self.check(*previous, node, found)) {
                    found.thread[node as usize] = Some(previous);
                }
                previous = Some(node);
                if std::mem::take(&mut is_first) {
                    found.inter_thread[node as usize] = self
                        .last_of_another_thread(&all, start, thread)
                        .filter(|one| self.order.is_before(*one, node));
                }
            }
        }
    }

    fn times(&self, op: usize) -> HostOpTimes {
        let op = &self.kineto.ops[op];
        HostOpTimes { start: op.start, end: op.end, thread: op.thread }
    }

    /// Returns the paired operators sorted by start, as positions in [`Kineto::ops`].
    fn starts(&self) -> Vec<u32> {
        let mut all: Vec<u32> =
            self.pairs.op_of_node.iter().flatten().map(|op| u32::try_from(*op).unwrap_or(u32::MAX)).collect();
        all.sort_by_key(|op| (self.kineto.ops[*op as usize].start, *op));
        all
    }

    /// Returns the node that began last before `time` on a thread other than `thread`.
    fn last_of_another_thread(&self, starts: &[u32], time: i64, thread: u32) -> Option<u32> {
        let end = starts.partition_point(|op| self.kineto.ops[*op as usize].start < time);
        let is_other = |op: &&u32| self.kineto.ops[**op as usize].thread != thread;
        starts[..end].iter().rev().find(is_other).and_then(|op| self.node(*op as usize))
    }

    /// Makes each GPU operation depend on the last operation on its stream that had ended when the GPU operation began.
    /// The directly preceding operation on the stream may still run when a GPU operation begins, because nodes of a
    /// graph can overlap on one stream. An operation on an unknown stream gets no dependency on a previous operation.
    fn add_streams(&self, found: &mut Dependencies) {
        let mut streams: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
        for at in 0..self.gpu.len() {
            let node = (self.trace.nodes.len() + at) as u32;
            let work = self.work(node);
            let Some(stream) = work.device.zip(work.stream) else { continue };
            streams.entry(stream).or_default().push(node);
        }
        for nodes in streams.values() {
            for (at, &node) in nodes.iter().enumerate() {
                let earlier = nodes[..at].iter().rev().take(MAX_OVERLAPS);
                let previous = earlier.copied().find(|previous| self.has_ended(*previous, node));
                if let Some(previous) = previous.filter(|previous| self.check(*previous, node, found)) {
                    found.stream[node as usize] = Some(previous);
                }
            }
        }
    }

    fn add_wait(&self, first: Option<u32>, second: Option<u32>, found: &mut Dependencies) {
        let Some((first, second)) = first.zip(second).filter(|(first, second)| first != second) else {
            return;
        };
        if !self.has_ended(first, second) || !self.order.is_before(first, second) {
            found.contradicted += 1;
        } else if !found.stream_waits[second as usize].contains(&first) {
            found.stream_waits[second as usize].push(first);
        }
    }

    /// Adds the recorded waits of streams. For each wait, the first operation launched after the waiting call depends
    /// on the last operation launched before the call that recorded the CUDA event.
    fn add_recorded_stream_waits(&self, launches: &Launches, found: &mut Dependencies) {
        let calls: HashMap<u64, &HostCall> =
            self.own_calls().filter_map(|call| Some((call.correlation?, call))).collect();
        for wait in &self.kineto.waits {
            let Some((stream, on_stream)) = wait.stream.zip(wait.on_stream) else { continue };
            let recorded = wait.record_correlation.and_then(|id| calls.get(&id)).map(|call| call.start);
            let waited = wait.correlation.and_then(|id| calls.get(&id));
            let Some((recorded, waited)) = recorded.zip(waited) else { continue };
            let first = launches.last_before(recorded, |launch| launch.stream == Some(on_stream));
            let second = launches.first_after(waited.start, |launch| launch.stream == Some(stream));
            self.add_wait(first, second, found);
        }
    }

    /// Adds waits of streams if there are no wait records. The streams of a wait are derived from the launches before
    /// and after the wait. The thread's next launch is assumed to have waited for the last earlier launch on another
    /// stream. If the recorded times contradict a wait, the wait is omitted.
    fn add_stream_waits_by_calls(&self, launches: &Launches, found: &mut Dependencies) {
        for call in self.own_calls() {
            if !matches!(
                self.kineto.name(call.name),
                "cudaStreamWaitEvent" | "hipStreamWaitEvent" | "cuStreamWaitEvent"
            ) {
                continue;
            }
            let Some(next) = launches.next_after(call.end, |launch| launch.thread == call.thread) else {
                continue;
            };
            let is_other = |launch: &Launch| {
                let is_known = launch.stream.is_some() && next.stream.is_some();
                is_known
                    && launch.thread == call.thread
                    && launch.device == next.device
                    && launch.stream != next.stream
            };
            let first = launches.last_before(call.start, is_other);
            self.add_wait(first, Some(next.node), found);
        }
    }

    /// For each call that waited for GPU work, makes the thread's next operator depend on this work.
    fn add_host_waits(&self, launches: &Launches, found: &mut Dependencies) {
        let streams: HashMap<u64, u32> =
            self.kineto.waits.iter().filter_map(|wait| Some((wait.correlation?, wait.stream?))).collect();
        for call in self.own_calls() {
            let Some(waits_for_all) = waits_for_all(self.kineto.name(call.name)) else { continue };
            let Some(next) = self.next_op(call) else { continue };
            let stream = call.correlation.and_then(|id| streams.get(&id).copied()).filter(|_| !waits_for_all);
            // If the stream is unknown, only work that ended during the call counts as awaited work.
            let is_known = waits_for_all || stream.is_some();
            let ended = launches
                .before(call.start)
                .filter(|launch| stream.is_none_or(|stream| launch.stream == Some(stream)));
            let ended = ended.map(|launch| launch.node).filter(|node| {
                let end = self.work(*node).end;
                end <= call.end.saturating_add(self.slack()) && (is_known || end > call.start)
            });
            let Some(last) = ended.max_by_key(|node| (self.work(*node).end, *node)) else { continue };
            if self.check(last, next, found) && !found.host_waits[next as usize].contains(&last) {
                found.host_waits[next as usize].push(last);
            }
        }
    }

    /// Returns the first operator that the thread of `call` began after the call.
    fn next_op(&self, call: &HostCall) -> Option<u32> {
        let ops = &self.nesting.threads[call.thread as usize];
        let at = ops.partition_point(|op| self.kineto.ops[*op].start < call.end);
        ops[at..].iter().find_map(|op| self.node(*op))
    }
}

struct HostOpTimes {
    start: i64,
    end: i64,
    thread: u32,
}

/// Returns whether a call with this name waits for all GPU work (true) or for one stream or CUDA event (false). Returns
/// `None` if the call does not wait.
fn waits_for_all(name: &str) -> Option<bool> {
    match name {
        "cudaDeviceSynchronize" | "hipDeviceSynchronize" | "cuCtxSynchronize" => Some(true),
        "cudaStreamSynchronize"
        | "hipStreamSynchronize"
        | "cuStreamSynchronize"
        | "cudaEventSynchronize"
        | "hipEventSynchronize"
        | "cuEventSynchronize" => Some(false),
        _ => None,
    }
}

/// Launch of the GPU operation of a GPU node.
#[derive(Clone, Copy, Debug)]
struct Launch {
    time: i64,
    node: u32,
    thread: u32,
    device: Option<u32>,
    stream: Option<u32>,
}

/// All launches, sorted by time.
struct Launches {
    all: Vec<Launch>,
}

impl Launches {
    fn of(graph: &Graph<'_>, calls: &[Option<usize>]) -> Self {
        let launch = |(at, node): (usize, &GpuNode)| {
            let call = &graph.kineto.calls[calls[node.work]?];
            let work = &graph.kineto.work[node.work];
            let node = (graph.trace.nodes.len() + at) as u32;
            Some(Launch {
                time: call.start,
                node,
                thread: call.thread,
                device: work.device,
                stream: work.stream,
            })
        };
        let mut all: Vec<Launch> = graph.gpu.iter().enumerate().filter_map(launch).collect();
        all.sort_by_key(|launch| (launch.time, launch.node));
        Self { all }
    }

    /// Returns up to [`MAX_LAUNCHES`] launches before `time`, the latest launch first.
    fn before(&self, time: i64) -> impl Iterator<Item = &Launch> {
        let end = self.all.partition_point(|launch| launch.time < time);
        self.all[..end].iter().rev().take(MAX_LAUNCHES)
    }

    fn last_before(&self, time: i64, is_wanted: impl Fn(&Launch) -> bool) -> Option<u32> {
        self.before(time).find(|launch| is_wanted(launch)).map(|launch| launch.node)
    }

    fn next_after(&self, time: i64, is_wanted: impl Fn(&Launch) -> bool) -> Option<&Launch> {
        let start = self.all.partition_point(|launch| launch.time < time);
        self.all[start..].iter().take(MAX_LAUNCHES).find(|launch| is_wanted(launch))
    }

    fn first_after(&self, time: i64, is_wanted: impl Fn(&Launch) -> bool) -> Option<u32> {
        self.next_after(time, is_wanted).map(|launch| launch.node)
    }
}

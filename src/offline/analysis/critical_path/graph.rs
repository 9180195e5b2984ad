//! The dependency graph of a run. The nodes of the graph are moments on the host and on the GPUs. An edge between two
//! moments gives the minimum time between them.

use std::collections::BTreeSet;

use super::super::two_threads::{in_parallel, is_large};
use super::kernel_times::LearnedKernels;
use gpuflame_model::record::{ContextId, IdMap, ThreadId};

/// Maximum overhead in ns of the GPU's own scheduling, from the end of one operation to the begin of the next
/// operation. On an H100, the time between two operations is 0.5 to 2 us. The overhead from the end of a launch call to
/// the begin of the launched work has this maximum too. On an H100, GPU work begins 3 to 12 us after the end of the
/// call that launched it.
pub(in super::super) const MAX_LATENCY_NS: u64 = 20_000;

/// Position of a moment in [`Graph::moments`].
pub(in super::super) type MomentId = u32;

/// Kind of a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MomentKind {
    /// A call on the host begins.
    CallBegin,
    /// A stream reaches an event record, an event wait or a graph launch.
    Reached,
    /// GPU work begins.
    Begin,
    /// GPU work ends.
    End,
    /// The last rank enters a collective.
    Arrived,
    /// The last node of a graph launch ends.
    GraphEnd,
    /// A call on the host ends.
    CallEnd,
}

/// A moment at which something begins, ends or is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Time in ns since 1970.
    pub time: u64,
    /// Kind of the moment: what happens at this time.
    pub kind: MomentKind,
    /// Index of the instruction that begins or ends at this moment. For the begin and end of a call, the index of the
    /// first instruction that the call issued.
    pub instruction: u32,
    /// Position of the call in [`CriticalPath::calls`](super::CriticalPath::calls). For moments on a GPU, which belong
    /// to no call, the value is `u32::MAX`.
    pub call: u32,
    /// Sort key for moments that have equal times. The sort key of a moment is the highest index among the instructions
    /// on which the moment depends.
    pub(in super::super) rank: u32,
}

impl Moment {
    /// Creates a moment on a GPU.
    pub(super) fn of_gpu(time: u64, kind: MomentKind, instruction: u32) -> Self {
        Self { time, kind, instruction, call: NO_CALL, rank: instruction }
    }
}

/// Value of [`Moment::call`] that means "no call".
pub(in super::super) const NO_CALL: u32 = u32::MAX;

/// Reason why one moment cannot come before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EdgeKind {
    /// An operation runs on the GPU.
    Work,
    /// A call runs on the host.
    Call,
    /// A thread runs between two calls.
    Host,
    /// A thread's call waits until a call on another thread has ended. The wait for the other thread (hand-off) is
    /// inferred from the times of the calls.
    HandOff,
    /// A call waits for a call of another thread, for example at a barrier.
    ThreadWait,
    /// A call submits work to the GPU.
    Launch,
    /// The previous operation on the stream has to end first.
    Stream,
    /// The previous kernel has begun, and allows a programmatically launched kernel to begin.
    Programmatic,
    /// A wait for a CUDA event ends only after the record of this event.
    Event,
    /// Work of the default stream has to end before work of another stream, or the reverse. If the kinds of the streams
    /// are recorded, the dependency follows from the kinds, and otherwise from the times of the work.
    DefaultStream,
    /// A graph node begins only after the launch of the graph.
    GraphLaunch,
    /// According to the graph's edges, an earlier node of the graph has to end first.
    GraphEdge,
    /// An earlier node of the graph has to end first, as inferred from the times.
    GraphNode,
    /// A graph launch begins only after the previous launch of the same graph has ended.
    SameGraph,
    /// Work of the same stream ended just before a GPU operation began, although that work was launched later than the
    /// operation. The dependency on work that was launched later is inferred from the times.
    InferredOrder,
    /// Work of another stream ended just before a GPU operation began. The dependency is inferred only if the waits of
    /// streams for CUDA events are not recorded.
    InferredEvent,
    /// A call waits for GPU work.
    Wait,
    /// A call waits, but the row does not show for which work. The call is assumed to wait for the last work that ended
    /// during the call.
    InferredWait,
    /// A rank leaves a collective only after the last rank has entered it.
    Collective,
    /// This rank may have entered the collective last, because other ranks entered later by no more than the error of
    /// the clocks.
    CollectiveTie,
}

impl EdgeKind {
    /// Returns the kind as a word for tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Call => "call",
            Self::Host => "host",
            Self::HandOff => "hand_off",
            Self::ThreadWait => "thread_wait",
            Self::Launch => "launch",
            Self::Stream => "stream",
            Self::Programmatic => "programmatic",
            Self::Event => "event",
            Self::DefaultStream => "default_stream",
            Self::GraphLaunch => "graph_launch",
            Self::GraphEdge => "graph_edge",
            Self::GraphNode => "graph_node",
            Self::SameGraph => "same_graph",
            Self::InferredOrder => "inferred_order",
            Self::InferredEvent => "inferred_event",
            Self::Wait => "wait",
            Self::InferredWait => "inferred_wait",
            Self::Collective | Self::CollectiveTie => "collective",
        }
    }

    /// Whether the edge was inferred from times, because no row states it.
    pub fn is_inferred(self) -> bool {
        use EdgeKind::*;
        matches!(self, HandOff | DefaultStream | GraphNode | InferredOrder | InferredEvent | InferredWait)
    }
}

/// An edge of the dependency graph. The moment `to` comes at least `lag` ns after the moment `from`.
///
/// A run has about five edges per kernel, and analyses store several lists of edges, so the fields are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed)]
pub struct Edge {
    /// The earlier moment.
    pub from: u32,
    /// The later moment.
    pub to: u32,
    /// Reason why `to` cannot come before `from`.
    pub kind: EdgeKind,
    /// Minimum time between the moments, in ns.
    pub lag: u64,
}

const _: () = assert!(size_of::<Edge>() == 17, "an edge grew: millions are stored");

/// A call on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCall {
    /// Start of the call in ns since 1970.
    pub begin: u64,
    /// End of the call in ns since 1970, or its start if the end is unknown.
    pub end: u64,
    /// Launch context (stack and API call) of the call.
    pub context: ContextId,
    /// Thread that made the call.
    pub thread: ThreadId,
    /// The two moments at which the call begins and ends.
    pub(in super::super) moments: (MomentId, MomentId),
}

/// Contradiction between two rows: according to their times, an effect precedes its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// Index of the instruction that is the cause.
    pub cause: u32,
    /// Index of the instruction that is the effect.
    pub effect: u32,
    /// Reason why the effect should come after the cause.
    pub kind: EdgeKind,
    /// Time in ns by which the effect comes before its cause.
    pub nanos: u64,
}

/// The dependency graph of a run.
#[derive(Debug, Default)]
pub(in super::super) struct Graph {
    pub(in super::super) moments: Vec<Moment>,
    pub(in super::super) edges: Vec<Edge>,
    pub(in super::super) calls: Vec<HostCall>,
    /// Number of edges that were omitted because the effect precedes the cause.
    pub(in super::super) contradicted: u64,
    /// Omitted edge with the worst contradiction: its effect precedes its cause by the longest time.
    pub(in super::super) worst: Option<Contradiction>,
    /// Positions of the synchronization calls, and of the copy calls that waited for their own copy.
    pub(in super::super) waiting: BTreeSet<u32>,
    /// Number of GPU operations without times, which are not in the graph.
    pub(in super::super) untimed: u64,
    /// For each moment of a graph node, the index of the instruction that launched the graph.
    pub(in super::super) launch_of: IdMap<MomentId, u32>,
    /// For each instruction, the call that issued it, or [`NO_CALL`].
    pub(in super::super) call_of: Vec<u32>,
    /// Whether calls that wait for other threads are recorded.
    pub(in super::super) knows_threads: bool,
    /// Number of calls that waited for a call of another thread, if the call of the other thread is not recorded.
    pub(in super::super) unclear_thread_waits: u64,
    /// Number of calls that take a lock. If at most one thread takes locks, the number is 0.
    pub(in super::super) shared_locks: u64,
    /// Measured times of kernels that allow programmatic launches to begin, or that are launched programmatically.
    pub(in super::super) kernels: LearnedKernels,
    /// End moments of kernels that overlapped the previous kernel but were not slowed down by it.
    pub(in super::super) unhindered: IdMap<MomentId, ()>,
    /// For each listed call, the latest begin that does not change the order of calls across threads.
    pub(in super::super) order_limits: Vec<(MomentId, u64)>,
}

impl Graph {
    pub(super) fn add_moment(&mut self, moment: Moment) -> MomentId {
        self.moments.push(moment);
        self.moments.len() as u32 - 1
    }

    pub(in super::super) fn time(&self, id: MomentId) -> u64 {
        self.moments[id as usize].time
    }

    /// Adds an edge, unless the times contradict it. If the lag exceeds the recorded time between the edge's two
    /// moments, the lag is reduced to the recorded time.
    pub(super) fn add_edge(&mut self, from: MomentId, to: MomentId, kind: EdgeKind, lag: u64) {
        let (cause, effect) = (self.moments[from as usize], self.moments[to as usize]);
        if cause.time > effect.time {
            self.contradict(cause, effect, kind);
            return;
        }
        let lag = lag.min(effect.time - cause.time);
        self.edges.push(Edge { from, to, kind, lag });
    }

    pub(super) fn contradict(&mut self, cause: Moment, effect: Moment, kind: EdgeKind) {
        let nanos = cause.time - effect.time;
        self.contradicted += 1;
        if self.worst.is_none_or(|worst| nanos > worst.nanos) {
            let (cause, effect) = (cause.instruction, effect.instruction);
            self.worst = Some(Contradiction { cause, effect, kind, nanos });
        }
    }

    /// Sorts the moments and the edges.
    pub(in super::super) fn sort(&mut self) {
        self.sort_moments();
        sort_edges(&mut self.edges, self.moments.len());
    }

    /// Sorts the moments so that every edge leads to a later position. Moments of equal time are sorted so that an
    /// instruction comes after the instructions on which it depends. The function `sort_moments` sorts only the moments
    /// and not the edges.
    pub(in super::super) fn sort_moments(&mut self) {
        let mut order: Vec<MomentId> = (0..self.moments.len() as MomentId).collect();
        // The stable sort is fast, because the moments of each thread and of each stream are already in order.
        order.sort_by_key(|id| {
            let Moment { time, rank, kind, .. } = self.moments[*id as usize];
            (time, rank, kind)
        });
        let mut position = vec![0; order.len()];
        for (at, id) in (0_u32..).zip(&order) {
            position[*id as usize] = at;
        }
        let mut edges = std::mem::take(&mut self.edges);
        let is_large = is_large(edges.len());
        in_parallel(is_large, || self.move_moments(order, &position), || move_edges(&mut edges, &position));
        self.edges = edges;
    }

    /// Reorders the moments. `position` contains the new position of each moment.
    fn move_moments(&mut self, order: Vec<MomentId>, position: &[MomentId]) {
        self.launch_of = std::mem::take(&mut self.launch_of)
            .into_iter()
            .map(|(moment, launch)| (position[moment as usize], launch))
            .collect();
        self.moments = order.into_iter().map(|id| self.moments[id as usize]).collect();
        self.unhindered = self.unhindered.keys().map(|moment| (position[*moment as usize], ())).collect();
        for (moment, _) in &mut self.order_limits {
            *moment = position[*moment as usize];
        }
        for call in &mut self.calls {
            call.moments = (position[call.moments.0 as usize], position[call.moments.1 as usize]);
        }
    }
}

/// Updates the moments in each edge to their new positions.
fn move_edges(edges: &mut Vec<Edge>, position: &[MomentId]) {
    edges.retain_mut(|edge| {
        (edge.from, edge.to) = (position[edge.from as usize], position[edge.to as usize]);
        // If an edge leads backwards between moments of equal time, it could close a cycle, so it is dropped. An edge
        // between moments of equal time has no effect on times.
        edge.from < edge.to
    });
}

/// Sorts edges by `to`, `from` and kind. `moments` is the number of moments. Few edges lead to each moment, so the
/// edges are first placed by a counting sort on `to`, which takes linear time. The edges are sorted in place, because a
/// second list of edges would need 75 MB for a million kernels.
pub(in super::super) fn sort_edges(edges: &mut [Edge], moments: usize) {
    if edges.is_sorted_by_key(edge_key) {
        return;
    }
    let mut ends = vec![0_u32; moments];
    edges.iter().for_each(|edge| ends[edge.to as usize] += 1);
    let mut next = vec![0_u32; moments];
    let mut total = 0;
    for (next, end) in next.iter_mut().zip(&mut ends) {
        *next = total;
        total += *end;
        *end = total;
    }
    for to in 0..moments {
        while next[to] < ends[to] {
            let at = next[to] as usize;
            let place = &mut next[edges[at].to as usize];
            edges.swap(at, *place as usize);
            *place += 1;
        }
    }
    sort_each_moment(edges);
}

/// Merges `others` into `edges`, and sorts `edges` by `to`, `from` and kind. Both lists must be sorted by `to`. The
/// merge starts with the last edges of both lists, so that no third list is needed.
pub(super) fn merge_edges(edges: &mut Vec<Edge>, others: Vec<Edge>) {
    let (mut left, mut left_others) = (edges.len(), others.len());
    edges.extend_from_slice(&others);
    for at in (0..edges.len()).rev() {
        let Some(other) = left_others.checked_sub(1).map(|other| others[other]) else { break };
        match left.checked_sub(1).map(|last| edges[last]).filter(|edge| edge.to > other.to) {
            Some(edge) => {
                edges[at] = edge;
                left -= 1;
            }
            None => {
                edges[at] = other;
                left_others -= 1;
            }
        }
    }
    drop(others);
    sort_each_moment(edges);
}

fn sort_each_moment(edges: &mut [Edge]) {
    edges.chunk_by_mut(|a, b| a.to == b.to).for_each(|of_moment| of_moment.sort_unstable_by_key(edge_key));
}

fn edge_key(edge: &Edge) -> impl Ord + use<> {
    (edge.to, edge.from, edge.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(list: &[(u32, u32)]) -> Vec<Edge> {
        list.iter().map(|&(from, to)| Edge { from, to, kind: EdgeKind::Host, lag: 0 }).collect()
    }

    #[test]
    fn edges_are_sorted_by_their_later_and_then_by_their_earlier_moment() {
        let mut all = edges(&[(3, 4), (1, 2), (0, 4), (2, 5), (0, 1), (1, 4), (4, 5), (0, 2)]);
        sort_edges(&mut all, 7);
        assert_eq!(all, edges(&[(0, 1), (0, 2), (1, 2), (0, 4), (1, 4), (3, 4), (2, 5), (4, 5)]));
    }

    #[test]
    fn sorted_edges_are_merged_by_their_later_moment() {
        let merged = |edges_of: &[(u32, u32)], others: &[(u32, u32)]| {
            let mut all = edges(edges_of);
            merge_edges(&mut all, edges(others));
            all
        };
        let expected = edges(&[(0, 1), (1, 2), (0, 4), (3, 4), (2, 5)]);
        assert_eq!(merged(&[(0, 1), (3, 4), (2, 5)], &[(1, 2), (0, 4)]), expected);
        assert_eq!(merged(&[(1, 2), (0, 4)], &[(0, 1), (3, 4), (2, 5)]), expected);
        assert_eq!(merged(&[], &[(0, 1), (1, 2)]), edges(&[(0, 1), (1, 2)]));
        assert_eq!(merged(&[(0, 1), (1, 2)], &[]), edges(&[(0, 1), (1, 2)]));
    }
}

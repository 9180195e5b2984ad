//! Adds edges for the order of host calls on each thread, and for hand-offs, in which a thread waits for another
//! thread.

use super::super::two_threads::{in_parallel, is_large};
use super::functions::Functions;
use super::graph::{Edge, EdgeKind, Graph, MomentId, MomentKind, merge_edges, sort_edges};
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{ContextId, IdMap, ThreadId};

/// Denominator N of a share, used to infer hand-offs (waits for another thread) from times. A pause between two calls
/// of a thread counts as a wait for another thread only if the other thread's calls cover at least 1/N of the pause.
const HAND_OFF_PART: u64 = 2;

/// State of a host thread while its moments are read in order.
#[derive(Default)]
struct Line {
    /// Moment of the thread that was read last.
    last: Option<MomentId>,
    /// Calls of the thread that have begun but not yet ended.
    open: Vec<u32>,
    /// Begin moments of the calls of the thread that were already read.
    begins: Vec<MomentId>,
}

/// Adds the edges between successive moments of each thread. The moments of `graph` must be sorted. If calls that wait
/// for other threads are not recorded, hand-offs between threads are inferred.
pub(super) fn add_host_edges(graph: &mut Graph, waits: &IdMap<u32, u64>, profile: &Profile) {
    let mut edges = std::mem::take(&mut graph.edges);
    let moments = graph.moments.len();
    let sort = || sort_edges(&mut edges, moments);
    let (of_host, ()) = in_parallel(is_large(moments), || host_edges(graph, waits, profile), sort);
    merge_edges(&mut edges, of_host);
    graph.edges = edges;
}

/// Returns the edges between successive moments of each thread, sorted by the later moment.
fn host_edges(graph: &Graph, waits: &IdMap<u32, u64>, profile: &Profile) -> Vec<Edge> {
    let shortest = shortest_calls(graph, waits, profile);
    let line_of = number_threads(graph);
    let mut lines: Vec<Line> = Vec::new();
    lines.resize_with(line_of.iter().max().map_or(0, |last| *last as usize + 1), Line::default);
    let mut latest_ends = LatestEnds::default();
    let mut edges = Vec::new();
    for at in 0..graph.moments.len() as MomentId {
        let moment = graph.moments[at as usize];
        let Some(context) = graph.calls.get(moment.call as usize).map(|call| call.context) else { continue };
        let thread = line_of[moment.call as usize] as usize;
        let other = latest_ends.of_others(thread);
        let hand_off = (!graph.knows_threads && moment.kind == MomentKind::CallBegin)
            .then(|| other.filter(|end| is_hand_off(graph, &lines, thread, *end, at)))
            .flatten();
        let line = &mut lines[thread];
        let waited = moment.kind == MomentKind::CallEnd && waits.contains_key(&moment.call);
        if let Some(last) = line.last {
            let is_in_call = !line.open.is_empty();
            let kind = if is_in_call { EdgeKind::Call } else { EdgeKind::Host };
            let recorded = moment.time - graph.time(last);
            let lag = match (waited, hand_off) {
                (true, _) => shortest.of(context).min(recorded),
                (_, Some(_)) => 0,
                _ => recorded,
            };
            edges.push(Edge { from: last, to: at, kind, lag });
        }
        if let Some((_, end)) = hand_off {
            let lag = moment.time - graph.time(end);
            edges.push(Edge { from: end, to: at, kind: EdgeKind::HandOff, lag });
        }
        line.last = Some(at);
        match moment.kind {
            MomentKind::CallBegin => {
                line.open.push(moment.call);
                line.begins.push(at);
            }
            _ => {
                line.open.retain(|open| *open != moment.call);
                latest_ends.note(thread, at);
            }
        }
    }
    edges
}

/// Whether the call that begins at `begin` probably waited for another thread, whose last call ended at `end`. The
/// first call of a thread is assumed to have waited for another thread. Any later call is assumed to have waited if the
/// other thread was in calls for a large part of the pause before the later call. The constant [`HAND_OFF_PART`]
/// defines how large this part must be.
fn is_hand_off(
    graph: &Graph,
    lines: &[Line],
    thread: usize,
    (other, end): (usize, MomentId),
    begin: MomentId,
) -> bool {
    let line = &lines[thread];
    let Some(last) = line.last else { return true };
    if !line.open.is_empty() || end < last {
        return false;
    }
    let begins = &lines[other].begins;
    let first = begins.partition_point(|at| *at < last);
    let Some(&first) = begins.get(first) else { return false };
    let (pause, burst) =
        (graph.time(begin) - graph.time(last), graph.time(end).saturating_sub(graph.time(first)));
    burst >= pause / HAND_OFF_PART && burst > 0
}

/// Assigns indexes to the threads, beginning with 0, and returns the thread index for each call.
fn number_threads(graph: &Graph) -> Vec<u32> {
    let mut known: IdMap<ThreadId, u32> = IdMap::default();
    let numbers = graph.calls.iter().map(|call| {
        let next = known.len() as u32;
        *known.entry(call.thread).or_insert(next)
    });
    numbers.collect()
}

/// The last ended calls of two different threads, each as (index of the thread, moment of the end).
#[derive(Default)]
struct LatestEnds([Option<(usize, MomentId)>; 2]);

impl LatestEnds {
    fn note(&mut self, thread: usize, at: MomentId) {
        if self.0[0].is_some_and(|(latest, _)| latest != thread) {
            self.0[1] = self.0[0];
        }
        self.0[0] = Some((thread, at));
    }

    fn of_others(&self, thread: usize) -> Option<(usize, MomentId)> {
        self.0.into_iter().flatten().find(|(other, _)| *other != thread)
    }
}

/// Whether a function is not from the C library. C library calls are excluded because their durations say nothing about
/// the durations of CUDA calls.
pub(in super::super) fn is_cuda_call(name: &str) -> bool {
    !name.starts_with("pthread_")
}

/// Shortest durations in ns of calls that did not wait. A waiting call is assumed to need the shortest duration on the
/// host in addition to its wait.
struct ShortestCalls {
    by_context: IdMap<ContextId, u64>,
    /// Shortest duration of a call over all functions, in ns. If all calls to a function waited, the shortest duration
    /// over all functions is used for this function.
    of_all: u64,
}

impl ShortestCalls {
    fn of(&self, context: ContextId) -> u64 {
        self.by_context.get(&context).copied().unwrap_or(self.of_all)
    }
}

fn shortest_calls(graph: &Graph, waits: &IdMap<u32, u64>, profile: &Profile) -> ShortestCalls {
    let functions = Functions::new(&graph.calls, profile);
    let mut shortest = vec![u64::MAX; functions.names.len()];
    for (at, (one, function)) in (0_u32..).zip(graph.calls.iter().zip(&functions.of_call)) {
        if !waits.contains_key(&at) {
            let known = &mut shortest[*function as usize];
            *known = (one.end - one.begin).min(*known);
        }
    }
    let known = functions.names.iter().zip(&shortest).filter(|(_, nanos)| **nanos != u64::MAX);
    let of_all = known.filter(|(name, _)| is_cuda_call(name)).map(|(_, nanos)| *nanos).min();
    let of_all = of_all.unwrap_or(0);
    let waited = waits.keys().map(|at| (graph.calls[*at as usize].context, functions.of_call[*at as usize]));
    let by_context = waited.map(|(context, function)| (context, shortest[function as usize]));
    ShortestCalls { by_context: by_context.filter(|(_, nanos)| *nanos != u64::MAX).collect(), of_all }
}

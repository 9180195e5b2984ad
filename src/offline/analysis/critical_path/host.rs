//! The order of calls on each thread, and hand-offs between threads.

use std::collections::BTreeMap;

use super::graph::{Edge, EdgeKind, Graph, MomentId, MomentKind};
use gpuflame_export::compose::call;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{ContextId, IdMap, ThreadId};

/// Part (1/N) of the time between two calls of a thread that the calls of another thread must cover to be taken for the
/// reason of the pause.
const HAND_OFF_PART: u64 = 2;

/// State of a thread while its moments are read in order.
#[derive(Default)]
struct Line {
    /// Last moment of the thread.
    last: Option<MomentId>,
    /// Calls that have begun and not ended.
    open: Vec<u32>,
    /// Begins of its calls so far.
    begins: Vec<MomentId>,
}

/// Adds the edges between the moments of each thread. The moments of `graph` are sorted. If the calls that wait for other
/// threads are not recorded, hand-offs are inferred.
pub(super) fn add_host_edges(graph: &mut Graph, waits: &IdMap<u32, u64>, profile: &Profile) {
    let shortest = shortest_calls(graph, waits, profile);
    let mut lines: BTreeMap<ThreadId, Line> = BTreeMap::new();
    let mut latest_ends = LatestEnds::default();
    let mut edges = Vec::new();
    for at in 0..graph.moments.len() as MomentId {
        let moment = graph.moments[at as usize];
        let Some(host) = graph.calls.get(moment.call as usize) else { continue };
        let thread = host.thread;
        let other = latest_ends.of_others(thread);
        let hand_off = (!graph.knows_threads && moment.kind == MomentKind::CallBegin)
            .then(|| other.filter(|end| is_hand_off(graph, &lines, thread, *end, at)))
            .flatten();
        let line = lines.entry(thread).or_default();
        let waited = waits.contains_key(&moment.call) && moment.kind == MomentKind::CallEnd;
        if let Some(last) = line.last {
            let is_in_call = !line.open.is_empty();
            let kind = if is_in_call { EdgeKind::Call } else { EdgeKind::Host };
            let recorded = moment.time - graph.time(last);
            let lag = match (waited, hand_off) {
                (true, _) => shortest.of(host.context).min(recorded),
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
    graph.edges.append(&mut edges);
    graph.edges.sort_unstable_by_key(|edge| (edge.to, edge.from, edge.kind));
}

/// Whether the call that begins at `begin` probably waited for a call of another thread that ended last, at `end`: the
/// first call of a thread always; other calls if the other thread was at work for most of the pause before them.
fn is_hand_off(
    graph: &Graph,
    lines: &BTreeMap<ThreadId, Line>,
    thread: ThreadId,
    (other, end): (ThreadId, MomentId),
    begin: MomentId,
) -> bool {
    let line = lines.get(&thread);
    let Some(last) = line.and_then(|line| line.last) else { return true };
    if line.is_some_and(|line| !line.open.is_empty()) || end < last {
        return false;
    }
    let Some(begins) = lines.get(&other).map(|line| &line.begins) else { return false };
    let first = begins.partition_point(|at| *at < last);
    let Some(&first) = begins.get(first) else { return false };
    let (pause, burst) =
        (graph.time(begin) - graph.time(last), graph.time(end).saturating_sub(graph.time(first)));
    burst >= pause / HAND_OFF_PART && burst > 0
}

/// The two threads whose calls ended last, and where.
#[derive(Default)]
struct LatestEnds([Option<(ThreadId, MomentId)>; 2]);

impl LatestEnds {
    fn note(&mut self, thread: ThreadId, at: MomentId) {
        if self.0[0].is_some_and(|(latest, _)| latest != thread) {
            self.0[1] = self.0[0];
        }
        self.0[0] = Some((thread, at));
    }

    fn of_others(&self, thread: ThreadId) -> Option<(ThreadId, MomentId)> {
        self.0.into_iter().flatten().find(|(other, _)| *other != thread)
    }
}

/// Whether a function is not one of the C library, whose calls tell nothing about those of CUDA.
pub(in super::super) fn is_cuda_call(name: &str) -> bool {
    !name.starts_with("pthread_")
}

/// Shortest durations of calls that did not wait. A call that waits takes as long on the host at least.
struct ShortestCalls {
    by_context: IdMap<ContextId, u64>,
    /// Shortest duration over all functions, for functions whose every call waited.
    of_all: u64,
}

impl ShortestCalls {
    fn of(&self, context: ContextId) -> u64 {
        self.by_context.get(&context).copied().unwrap_or(self.of_all)
    }
}

fn shortest_calls(graph: &Graph, waits: &IdMap<u32, u64>, profile: &Profile) -> ShortestCalls {
    let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
    let mut names: IdMap<ContextId, &str> = IdMap::default();
    for (at, one) in (0_u32..).zip(&graph.calls) {
        let name = *names.entry(one.context).or_insert_with(|| call(profile, one.context));
        if !waits.contains_key(&at) {
            let known = by_name.entry(name).or_insert(u64::MAX);
            *known = (one.end - one.begin).min(*known);
        }
    }
    let of_all = by_name.iter().filter(|(name, _)| is_cuda_call(name)).map(|(_, nanos)| *nanos).min();
    let of_all = of_all.unwrap_or(0);
    let waited = waits.keys().map(|at| graph.calls[*at as usize].context);
    let by_context =
        waited.filter_map(|context| Some((context, *by_name.get(names.get(&context)?)?))).collect();
    ShortestCalls { by_context, of_all }
}

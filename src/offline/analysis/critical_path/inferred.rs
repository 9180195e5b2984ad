//! Infers dependencies from times alone. A dependency is inferred only if work began long after all its recorded
//! dependencies had ended.

use super::graph::{EdgeKind, Graph, MAX_LATENCY_NS, MomentId};
use super::streams::{NO_STREAM, Streams};

/// Maximum number of ends of GPU work that are tried as the cause of a later begin of GPU work.
const MAX_CANDIDATES: usize = 64;

/// Moment and time at which a GPU operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct End {
    pub(super) time: u64,
    pub(super) moment: MomentId,
    /// Index of the operation's stream, or [`NO_STREAM`].
    pub(super) stream: u32,
}

/// Adds an edge to each GPU operation that begins late although all its recorded causes had ended. The cause of a late
/// begin is assumed to be work on the same stream that ended just before this begin. If the waits of streams are not
/// recorded, work that ended on another stream of the same GPU can also be the cause. `ends` must be sorted.
/// `stream_of` contains each begin of GPU work together with its stream.
pub(super) fn add_inferred_edges(
    graph: &mut Graph,
    (ends, stream_of): (&[End], &[(MomentId, u32)]),
    streams: &Streams,
    has_waits: bool,
) {
    let mut earliest = vec![0; graph.moments.len()];
    for edge in &graph.edges {
        let time = graph.time(edge.from).saturating_add(edge.lag);
        let known: &mut u64 = &mut earliest[edge.to as usize];
        *known = time.max(*known);
    }
    for &(begin, stream) in stream_of {
        let start = graph.time(begin);
        let explained = earliest[begin as usize].saturating_add(MAX_LATENCY_NS);
        if explained >= start {
            continue;
        }
        let after = ends.partition_point(|end| end.time <= start);
        let close = ends[..after].iter().rev().take(MAX_CANDIDATES);
        let mut close =
            close.take_while(|end| start - end.time <= MAX_LATENCY_NS).filter(|end| end.moment < begin);
        let of_stream = close.clone().find(|end| end.stream == stream);
        let device = streams.device(stream);
        let is_of_gpu =
            |end: &&End| !has_waits && end.stream != NO_STREAM && streams.device(end.stream) == device;
        let found = match of_stream {
            Some(end) => Some((end.moment, EdgeKind::InferredOrder)),
            None => close.find(is_of_gpu).map(|end| (end.moment, EdgeKind::InferredEvent)),
        };
        if let Some((end, kind)) = found {
            graph.add_edge(end, begin, kind, 0);
        }
    }
}

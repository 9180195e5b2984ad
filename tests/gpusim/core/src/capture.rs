//! CUDA stream captures: work that is submitted to a capturing stream becomes nodes of a graph. Each stream in a
//! capture has a frontier: the nodes on which the stream's next node depends.

use crate::error::{CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, CuError, ILLEGAL_STATE};
use crate::graph::{Graph, What};
use crate::graph_edges::Edge;
use crate::stream::Stream;
use crate::sync::lock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A stream capture, which builds one graph from all streams that have joined the capture.
#[derive(Debug)]
pub struct Capture {
    /// Graph to which the capture adds nodes.
    pub graph: &'static Graph,
    /// Id of the capture, which is never reused.
    pub id: u64,
    /// Handle of the node that was captured last. If a program queries the nodes on which the next node will depend,
    /// the query returns this handle.
    pub last: AtomicUsize,
    /// Address of the stream that began the capture.
    origin: usize,
    streams: Mutex<Vec<(&'static Stream, Vec<Edge>)>>,
}

impl Capture {
    /// Begins a capture: from this call on, work on `stream` becomes nodes of `graph`, or of a new graph if none is
    /// given. The first captured node depends on the nodes in `edges`.
    pub fn begin(
        stream: &'static Stream,
        graph: Option<&'static Graph>,
        edges: Vec<Edge>,
    ) -> Result<(), CuError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if stream.is_legacy_default() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        if stream.capture().is_some() {
            return Err(ILLEGAL_STATE);
        }
        let origin = std::ptr::from_ref(stream) as usize;
        let graph = graph.unwrap_or_else(Graph::create);
        let (id, last) = (NEXT.fetch_add(1, Relaxed), AtomicUsize::new(0));
        let capture = Capture { graph, id, last, origin, streams: Mutex::default() };
        Capture::join(&Arc::new(capture), stream, edges);
        Ok(())
    }

    /// Makes `stream` join the capture, because the program makes the stream wait for a CUDA event that was recorded in
    /// the capture. The stream's next node depends on `edges`, the nodes that this event represents.
    pub fn join(capture: &Arc<Capture>, stream: &'static Stream, edges: Vec<Edge>) {
        if stream.capture().is_none() {
            lock(&capture.streams).push((stream, Vec::new()));
            stream.set_capture(Some(Arc::clone(capture)));
        }
        capture.change_frontier(stream, |frontier| {
            for edge in edges {
                if !frontier.iter().any(|known| std::ptr::eq(known.from, edge.from)) {
                    frontier.push(edge);
                }
            }
        });
    }

    /// Returns the nodes on which the stream's next node will depend.
    pub fn frontier(&self, stream: &'static Stream) -> Vec<Edge> {
        let mut found = Vec::new();
        self.change_frontier(stream, |frontier| found.clone_from(frontier));
        found
    }

    /// Changes the list of nodes on which the stream's next node will depend.
    pub fn change_frontier(&self, stream: &'static Stream, change: impl FnOnce(&mut Vec<Edge>)) {
        let mut streams = lock(&self.streams);
        if let Some((_, frontier)) = streams.iter_mut().find(|(joined, _)| std::ptr::eq(*joined, stream)) {
            change(frontier);
        }
    }

    /// Ends the capture that `stream` began. Returns its graph.
    pub fn end(stream: &'static Stream) -> Result<&'static Graph, CuError> {
        let capture = stream.capture().ok_or(ILLEGAL_STATE)?;
        if capture.origin != std::ptr::from_ref(stream) as usize {
            return Err(CAPTURE_UNMATCHED);
        }
        lock(&capture.streams).drain(..).for_each(|(joined, _)| joined.set_capture(None));
        Ok(capture.graph)
    }

    /// Adds a node to the graph. During the capture, the kernel, copy or other action of the node does not run.
    pub fn add(&self, stream: &'static Stream, what: What) -> Result<(), CuError> {
        if let What::Work(order) = what
            && !order.asynchronous
        {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let is_programmatic = matches!(what, What::Work(order) if order.programmatic);
        let mut edges = self.frontier(stream);
        edges.iter_mut().for_each(|edge| edge.is_programmatic = is_programmatic);
        let node = self.graph.add(what, edges);
        self.change_frontier(stream, |frontier| *frontier = vec![Edge::full(node)]);
        self.last.store(node.handle() as usize, Relaxed);
        Ok(())
    }
}

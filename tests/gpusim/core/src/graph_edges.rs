//! The edges of CUDA graphs: for each node, the nodes on which it depends. With the stepped clock, a launch runs a node
//! as soon as the nodes on which it depends are done. Therefore independent branches of a graph run at the same time.

use crate::error::CuError;
use crate::gpu;
use crate::graph::{Node, State, What};
use crate::host_fn;
use crate::memory;
use crate::schedule::{self, Found, Mark, Placed, Shape, Wait, Why};
use crate::stream::Stream;
use crate::thread;
use crate::work::NodeRun;
use std::collections::HashMap;
use std::ffi::c_void;

/// An edge of a graph, which makes a later node wait for an earlier node.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// Earlier node, for which the node with this edge waits.
    pub from: &'static Node,
    /// Whether the waiting kernel may already begin when the kernel `from` reaches its trigger.
    pub is_programmatic: bool,
}

impl Edge {
    /// Creates an edge that waits for the end of a node.
    pub fn full(from: &'static Node) -> Edge {
        Edge { from, is_programmatic: false }
    }

    fn to(self, from: &'static Node) -> Edge {
        Edge { from, ..self }
    }
}

fn address(node: &Node) -> usize {
    std::ptr::from_ref(node) as usize
}

/// Copies the edges between the nodes in `originals` to the nodes at the same positions in `copies`.
pub fn copy(originals: &[&'static Node], copies: &[&'static Node]) {
    if originals.iter().all(|node| node.edges().is_empty()) {
        return;
    }
    let copy_of: HashMap<usize, &'static Node> =
        originals.iter().map(|node| address(node)).zip(copies.iter().copied()).collect();
    for (original, copied) in originals.iter().zip(copies) {
        let edges = original.edges().into_iter();
        copied.set_edges(edges.filter_map(|edge| Some(edge.to(copy_of.get(&address(edge.from))?))).collect());
    }
}

/// Returns the nodes on which no other node in the list depends.
fn sinks(nodes: &[&'static Node]) -> Vec<&'static Node> {
    let waited: Vec<usize> =
        nodes.iter().flat_map(|node| node.edges()).map(|edge| address(edge.from)).collect();
    nodes.iter().copied().filter(|node| !waited.contains(&address(node))).collect()
}

/// Replaces the node `child` by the nodes of its child graph. `inner` are the nodes of the child graph, and `pushed`
/// are their copies in the parent graph. The child graph's first nodes get the edges of `child`, and edges from `child`
/// become edges from the child graph's last nodes.
pub fn inline(
    parent: &[&'static Node],
    child: &'static Node,
    inner: &[&'static Node],
    pushed: &[&'static Node],
) {
    copy(inner, pushed);
    for node in pushed.iter().filter(|node| node.edges().is_empty()) {
        node.set_edges(child.edges());
    }
    let last: Vec<Edge> = sinks(pushed).into_iter().map(Edge::full).collect();
    let last = if pushed.is_empty() { child.edges() } else { last };
    for node in parent {
        let edges = node.edges();
        if edges.iter().any(|edge| std::ptr::eq(edge.from, child)) {
            let others = edges.into_iter().filter(|edge| !std::ptr::eq(edge.from, child));
            node.set_edges(others.chain(last.iter().copied()).collect());
        }
    }
}

/// What the nodes that depend on a finished node must wait for. The nodes that depend on a finished node wait for its
/// end. If the finished node does nothing, its dependents wait for everything that the finished node had to wait for.
#[derive(Clone)]
struct Done {
    waits: Vec<Wait>,
    /// Times at which a kernel triggers and ends.
    kernel: Option<(u64, u64)>,
}

/// State of a graph launch in progress.
pub struct Run {
    stream: &'static Stream,
    graph: u32,
    /// Whether one activity record covers all nodes of the launch.
    as_a_whole: bool,
    enqueue: u64,
    arrive: u64,
    /// Earliest begin and latest end of the nodes that have run so far.
    pub span: Option<(u64, u64)>,
}

/// Returns the wait with the latest mark (time and operation) in a list of waits.
pub fn latest(waits: &[Wait]) -> Mark {
    let marks = waits.iter().map(|wait| Mark { time: wait.until, op: wait.op });
    marks.fold(Mark::default(), Mark::later)
}

impl Run {
    /// Begins a launch on a stream.
    pub fn new(stream: &'static Stream, graph: u32, as_a_whole: bool) -> Run {
        let (enqueue, arrive) = (thread::current().enter.get(), gpu::earliest());
        Run { stream, graph, as_a_whole, enqueue, arrive, span: None }
    }

    /// Runs nodes in the order that their edges require. Nodes without edges wait for `first`. Returns the waits for
    /// the ends of the nodes on which no other node depends.
    pub fn nodes(&mut self, nodes: &[&'static Node], first: &[Wait]) -> Result<Vec<Wait>, CuError> {
        let mut done: HashMap<usize, Done> = HashMap::new();
        let mut left = nodes.to_vec();
        while !left.is_empty() {
            let is_done = |edge: &Edge| done.contains_key(&address(edge.from));
            let is_ready = |node: &&'static Node| node.edges().iter().all(is_done);
            // The real API refuses a graph whose edges lead to another graph. In the simulation, nodes with such edges
            // run in the order of the list.
            let at = left.iter().position(is_ready).unwrap_or(0);
            let node = left.remove(at);
            let found = find(&node.edges(), &done, first);
            let state = node.state();
            let result = self.node(node, &state, found)?;
            done.insert(address(node), result);
        }
        let last = sinks(nodes);
        let ends = last.iter().flat_map(|node| done[&address(node)].waits.clone()).collect::<Vec<_>>();
        Ok(if nodes.is_empty() { first.to_vec() } else { ends })
    }

    fn node(&mut self, node: &'static Node, state: &State, found: Found) -> Result<Done, CuError> {
        let passed = |waits: Vec<Wait>| Ok(Done { waits, kernel: None });
        match state.what {
            What::Empty => passed(found.waits),
            What::Alloc(address) => {
                memory::alloc_of_graph(address);
                passed(found.waits)
            }
            What::Free(address) => {
                memory::free_device(address)?;
                passed(found.waits)
            }
            What::Child(child) => {
                let waits = self.nodes(&child.nodes(), &found.waits)?;
                Ok(Done { waits, kernel: None })
            }
            What::Conditional(bodies, chosen) => {
                let body = bodies.get(chosen).map(|body| body.nodes()).unwrap_or_default();
                let waits = self.nodes(&body, &found.waits)?;
                Ok(Done { waits, kernel: None })
            }
            What::Host(function, argument) => {
                let duration = host_fn::call(function, argument as *mut c_void);
                let placed = self.place(found, Shape { duration, ..Shape::default() });
                let waits = vec![Wait::until(Why::Edge, placed.done())];
                gpu::note_plain(self.stream, placed, "host", self.place_of(node, state));
                Ok(Done { waits, kernel: None })
            }
            What::Work(order) => {
                let run = self.place_of(node, state);
                let placed = self.place(found, Shape { programmatic: order.preamble(), ..order.shape() });
                let waits = vec![Wait::until(Why::Edge, placed.done())];
                let kernel = placed.trigger.map(|trigger| (trigger, placed.end));
                gpu::run_placed(self.stream, order, placed, run, !self.as_a_whole);
                Ok(Done { waits, kernel })
            }
        }
    }

    fn place_of(&self, node: &'static Node, state: &State) -> NodeRun {
        let (source_graph, source_node) = state.source;
        NodeRun { graph: self.graph, node: node.id(), source_graph, source_node, created: state.site }
    }

    fn place(&mut self, found: Found, shape: Shape) -> Placed {
        let placed = schedule::place(self.enqueue, self.arrive, found, shape);
        let (begin, end) = self.span.unwrap_or((placed.begin, placed.end));
        self.span = Some((begin.min(placed.begin), end.max(placed.end)));
        placed
    }
}

/// Collects the waits of a node with these edges.
fn find(edges: &[Edge], done: &HashMap<usize, Done>, first: &[Wait]) -> Found {
    if edges.is_empty() {
        return Found { waits: first.to_vec(), kernel_before: None };
    }
    let mut found = Found::default();
    for edge in edges {
        let Some(before) = done.get(&address(edge.from)) else { continue };
        match before.kernel.filter(|_| edge.is_programmatic) {
            Some((trigger, end)) => {
                let op = before.waits.first().map_or(0, |wait| wait.op);
                found.waits.push(Wait { why: Why::Programmatic, until: trigger, op });
                found.kernel_before = found.kernel_before.max(Some(end));
            }
            None => found.waits.extend(before.waits.iter().copied()),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Order;
    use crate::graph::Graph;
    use crate::kernel::Kernel;

    fn kernel(name: &std::ffi::CStr) -> What {
        What::Work(Order::kernel(Kernel::of_name(name), [1; 3], [1; 3], 0))
    }

    fn edges(nodes: &[&'static Node]) -> Vec<Edge> {
        nodes.iter().copied().map(Edge::full).collect()
    }

    fn ends(waits: &[Wait], enqueue: u64) -> Vec<u64> {
        waits.iter().map(|wait| wait.until - enqueue).collect()
    }

    /// Runs a graph that reaches the GPU 5,000 ns after its launch.
    fn run(graph: &'static Graph) -> (Vec<u64>, u64) {
        let context = crate::context::Context::create(0).unwrap();
        let mut run = Run { enqueue: 1_000, arrive: 6_000, ..Run::new(context.default_stream(), 1, false) };
        let ends = run.nodes(&graph.nodes(), &[]).unwrap();
        (super::tests::ends(&ends, 6_000), run.span.unwrap().1 - 6_000)
    }

    #[test]
    fn the_branches_of_a_diamond_run_at_the_same_time_and_the_last_node_waits_for_both() {
        let graph = Graph::create();
        let top = graph.add(kernel(c"a_d100"), vec![]);
        let (left, right) =
            (graph.add(kernel(c"b_d30"), edges(&[top])), graph.add(kernel(c"c_d70"), edges(&[top])));
        let joined = graph.add(What::Empty, edges(&[left, right]));
        assert_eq!(run(graph), (vec![130, 170], 170), "the empty node passes both waits on");
        graph.add(kernel(c"d_d5"), edges(&[joined]));
        assert_eq!(run(graph), (vec![175], 175));
        assert_eq!(run(graph.copy()), (vec![175], 175));
    }

    #[test]
    fn an_inlined_child_graph_keeps_the_edges_around_it() {
        let (child, parent) = (Graph::create(), Graph::create());
        let inner = child.add(kernel(c"a_d10"), vec![]);
        child.add(kernel(c"b_d20"), edges(&[inner]));
        child.add(kernel(c"c_d5"), vec![]);
        let first = parent.add(kernel(c"d_d100"), vec![]);
        let node = parent.add(What::Child(child), edges(&[first]));
        parent.add(kernel(c"e_d1"), edges(&[node]));
        let exec = crate::graph::Exec::create(parent);
        assert_eq!(run(exec.graph().unwrap()), (vec![131], 131));
        // The child graph can also run as a single node of its parent, as in the graph of a conditional node.
        assert_eq!(run(parent), (vec![131], 131));
    }

    #[test]
    fn a_programmatic_edge_waits_for_the_trigger() {
        let graph = Graph::create();
        let first = graph.add(kernel(c"a_t40_d100"), vec![]);
        let programmatic = vec![Edge { from: first, is_programmatic: true }];
        // In this example, the kernel begins at 40, runs for 10, waits until 100, and then runs for its remaining 20.
        graph.add(kernel(c"b_s10_d30"), programmatic);
        assert_eq!(run(graph), (vec![120], 120));
    }
}

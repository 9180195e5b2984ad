//! CUDA graphs, created explicitly or by capture. Programs clone, instantiate, update and launch graphs. A launch
//! reserves time on the stream for one node after the other, in the order in which the nodes were added. Only the
//! stepped clock uses the edges between nodes (see [`crate::graph_edges`]).
//!
//! The memory of destroyed objects is reused for new objects. Therefore a program can create and destroy any number of
//! graphs without using more memory, and addresses are reused as with the real driver. Ids are never reused.

use crate::context::Context;
use crate::error::{CAPTURE_UNSUPPORTED, CuError, INVALID_HANDLE, INVALID_VALUE, UPDATE_FAILURE};
use crate::gpu::{self, Order};
use crate::graph_edges::{self, Edge};
use crate::host_fn::{self, HostFn};
use crate::memory;
use crate::schedule::{self, Mark, Wait, Why};
use crate::settings;
use crate::site::Site;
use crate::stream::Stream;
use crate::sync::lock;
use crate::table::{SWITCHES, resource, with_hooks};
use crate::thread;
use crate::user_object::UserObject;
use crate::version::kind;
use crate::work::NodeRun;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Object to which a CUgraph handle points.
#[derive(Debug, Default)]
pub struct Graph {
    magic: AtomicU64,
    id: AtomicU32,
    nodes: Mutex<Vec<&'static Node>>,
    /// Number of nodes that have ever been added to the graph, including removed nodes.
    added: AtomicU32,
    /// References that the graph holds to user objects; each call that adds references adds an entry.
    objects: Mutex<Vec<(&'static UserObject, u32)>>,
}

/// Object to which a CUgraphNode handle points.
#[derive(Debug, Default)]
pub struct Node {
    magic: AtomicU64,
    id: AtomicU64,
    state: Mutex<State>,
    graph: Mutex<Option<&'static Graph>>,
    /// Edges from the nodes on which this node depends.
    edges: Mutex<Vec<Edge>>,
}

/// Object to which a CUgraphExec handle points.
#[derive(Debug, Default)]
pub struct Exec {
    magic: AtomicU64,
    graph: Mutex<Option<&'static Graph>>,
    /// Second copy of the graph, which the driver makes for its own use. A CUPTI client sees this copy only in resource
    /// callbacks.
    shadow: Mutex<Option<&'static Graph>>,
    /// Time at which the last launch of this graph ends, set only with the stepped clock.
    last: Mutex<Mark>,
}

/// Action of a node.
#[derive(Clone, Copy, Debug, Default)]
pub enum What {
    /// Does nothing, because the node is empty.
    #[default]
    Empty,
    /// Runs a kernel, copy or memset on the GPU.
    Work(Order),
    /// Runs a host function on the CPU.
    Host(HostFn, usize),
    /// Runs all nodes of a child graph.
    Child(&'static Graph),
    /// Allocates memory at this address, which belongs to the graph.
    Alloc(u64),
    /// Frees the memory at this address.
    Free(u64),
    /// A conditional node: runs all nodes of one of these graphs, or no nodes. Simulated kernels never set a condition.
    /// Therefore the condition's default value selects the graph, and the body of a loop runs once.
    Conditional(&'static [&'static Graph], usize),
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct State {
    pub(crate) what: What,
    /// Call site at which the program created the node. If the node was updated from another node, the call site of
    /// that other node.
    pub(crate) site: Option<&'static Site>,
    /// Ids of the graph and the node from which an instantiated node was created or last updated.
    pub(crate) source: (u32, u64),
}

const GRAPH: u64 = u64::from_le_bytes(*b"graph\0\0\x01");
const NODE: u64 = u64::from_le_bytes(*b"node\0\0\0\x01");
const EXEC: u64 = u64::from_le_bytes(*b"exec\0\0\0\x01");

static GRAPHS: Mutex<Vec<&'static Graph>> = Mutex::new(Vec::new());
static NODES: Mutex<Vec<&'static Node>> = Mutex::new(Vec::new());
static EXECS: Mutex<Vec<&'static Exec>> = Mutex::new(Vec::new());

/// Returns a destroyed object for reuse, or a new object.
fn take<T: Default>(spare: &Mutex<Vec<&'static T>>) -> &'static T {
    let reused = lock(spare).pop();
    reused.unwrap_or_else(|| Box::leak(Box::default()))
}

fn handle<T>(object: &'static T) -> *mut c_void {
    std::ptr::from_ref(object).cast_mut().cast()
}

/// Returns the object to which a handle points. The caller must still check the object's magic number.
fn object<T>(handle: *mut c_void) -> Result<&'static T, CuError> {
    let object = handle.cast::<T>();
    if object.is_null() || !object.is_aligned() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: programs pass handles that API functions returned, and the objects behind these handles are never freed.
    Ok(unsafe { &*object })
}

macro_rules! handles {
    ($($ty:ident, $magic:ident;)*) => {$(
        impl $ty {
            /// Returns the object to which a handle points, if the handle is valid and the object has not been
            /// destroyed.
            pub fn of_handle(handle: *mut c_void) -> Result<&'static Self, CuError> {
                let found = object::<Self>(handle)?;
                if found.magic.load(Relaxed) == $magic { Ok(found) } else { Err(INVALID_VALUE) }
            }

            /// Returns the handle by which a program refers to this object.
            pub fn handle(&'static self) -> *mut c_void {
                handle(self)
            }
        }
    )*};
}

handles! {
    Graph, GRAPH;
    Node, NODE;
    Exec, EXEC;
}

/// CUpti_GraphData
#[repr(C)]
struct GraphData {
    graph: *mut c_void,
    original_graph: *mut c_void,
    node: *mut c_void,
    original_node: *mut c_void,
    node_type: u32,
    dependency: *mut c_void,
    exec: *mut c_void,
}

const _: () = assert!(size_of::<GraphData>() == 56, "unchanged from 11.8 to 13.5");

const NOBODY: GraphData = GraphData {
    graph: null_mut(),
    original_graph: null_mut(),
    node: null_mut(),
    original_node: null_mut(),
    node_type: 0,
    dependency: null_mut(),
    exec: null_mut(),
};

fn tell(what: u32, data: &GraphData) {
    let context = thread::current().context().map_or(null_mut(), Context::handle);
    let data = std::ptr::from_ref(data).cast_mut().cast();
    with_hooks(|h| (h.resource)(what, context, null_mut(), data));
}

impl What {
    /// Returns the graphs that belong to the node and are destroyed together with it.
    fn parts(&self) -> &[&'static Graph] {
        match self {
            What::Child(child) => std::slice::from_ref(child),
            What::Conditional(bodies, _) => bodies,
            _ => &[],
        }
    }

    /// Copies the action for another graph, with copies of the child graphs.
    fn copy(self) -> What {
        match self {
            What::Child(child) => What::Child(child.copy()),
            What::Conditional(bodies, chosen) => {
                What::Conditional(bodies.iter().map(|body| body.copy()).collect::<Vec<_>>().leak(), chosen)
            }
            other => other,
        }
    }

    /// Kind of the node, as a CUgraphNodeType.
    pub fn node_type(&self) -> u32 {
        match self {
            What::Work(order) => order.kind.node_type(),
            What::Host(..) => 3,
            What::Child(_) => 4,
            What::Empty => 5,
            What::Alloc(_) => 10,
            What::Free(_) => 11,
            What::Conditional(..) => 13,
        }
    }
}

impl Graph {
    fn new() -> &'static Graph {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let graph = take(&GRAPHS);
        graph.id.store(NEXT.fetch_add(1, Relaxed), Relaxed);
        graph.added.store(0, Relaxed);
        graph.magic.store(GRAPH, Relaxed);
        graph
    }

    /// Creates an empty graph and notifies the subscriber.
    pub fn create() -> &'static Graph {
        let graph = Graph::new();
        tell(resource::GRAPH_CREATED, &GraphData { graph: graph.handle(), ..NOBODY });
        graph
    }

    /// Returns the id of the graph in activity records.
    pub fn id(&self) -> u32 {
        self.id.load(Relaxed)
    }

    /// Returns the nodes of the graph, in the order in which they were added.
    pub fn nodes(&self) -> Vec<&'static Node> {
        lock(&self.nodes).clone()
    }

    /// Makes the graph and its future copies hold references to a user object.
    pub fn keep(&self, object: &'static UserObject, references: u32) {
        lock(&self.objects).push((object, references));
    }

    /// Adds a node to the graph, and stores the calling thread's call site in the node. A child graph is copied into
    /// the node.
    pub fn add(&'static self, what: What, edges: Vec<Edge>) -> &'static Node {
        let node = self.push(State { what, site: thread::current().site.get(), source: (0, 0) });
        node.set_edges(edges);
        let data =
            || GraphData { graph: self.handle(), node: node.handle(), node_type: what.node_type(), ..NOBODY };
        tell(resource::GRAPHNODE_CREATE_STARTING, &data());
        // The program fills a conditional node's graphs later, so these graphs are not copied.
        if matches!(what, What::Child(_)) {
            lock(&node.state).what = what.copy();
        }
        tell(resource::GRAPHNODE_CREATED, &data());
        self.tell_edges(node);
        node
    }

    /// Notifies the subscriber of the edges to a node from the nodes on which it depends.
    fn tell_edges(&'static self, node: &'static Node) {
        let node_type = node.what().node_type();
        for edge in node.edges() {
            let (node, dependency) = (node.handle(), edge.from.handle());
            tell(
                resource::GRAPHNODE_DEPENDENCY_CREATED,
                &GraphData { graph: self.handle(), node, node_type, dependency, ..NOBODY },
            );
        }
    }

    /// Adds a node without notifying the subscriber. The upper half of a node's id is the id of its graph. The lower
    /// half is the number of nodes added before it, as on an H100 with driver 580.
    fn push(&'static self, state: State) -> &'static Node {
        let node = take(&NODES);
        node.id.store(u64::from(self.id()) << 32 | u64::from(self.added.fetch_add(1, Relaxed)), Relaxed);
        *lock(&node.state) = state;
        *lock(&node.graph) = Some(self);
        lock(&node.edges).clear();
        node.magic.store(NODE, Relaxed);
        lock(&self.nodes).push(node);
        node
    }

    /// Copies the graph and its child graphs, with new ids, and notifies the subscriber. CUPTI's callbacks announce
    /// each copied node first as created and then as cloned. The graph itself is announced as cloned only if the
    /// program requested a clone, and only after the graph's nodes (see [`Graph::clone_of`]).
    pub fn copy(&'static self) -> &'static Graph {
        let copy = Graph::create();
        for (object, references) in &*lock(&self.objects) {
            object.retain(*references);
            copy.keep(object, *references);
        }
        for original in self.nodes() {
            let mut state = *lock(&original.state);
            state.source = (self.id(), original.id());
            let node = copy.push(state);
            let node_type = state.what.node_type();
            let data = || GraphData { graph: copy.handle(), node: node.handle(), node_type, ..NOBODY };
            tell(resource::GRAPHNODE_CREATE_STARTING, &data());
            let what = state.what.copy();
            lock(&node.state).what = what;
            tell(resource::GRAPHNODE_CREATED, &data());
            tell(resource::GRAPHNODE_CLONED, &GraphData { original_node: original.handle(), ..data() });
        }
        graph_edges::copy(&self.nodes(), &copy.nodes());
        copy.nodes().into_iter().for_each(|node| copy.tell_edges(node));
        copy
    }

    /// Clones the graph at the program's request, and announces it as a clone.
    pub fn clone_of(&'static self) -> &'static Graph {
        let copy = self.copy();
        let pair = GraphData { graph: copy.handle(), original_graph: self.handle(), ..NOBODY };
        tell(resource::GRAPH_CLONED, &pair);
        copy
    }

    /// Creates the driver's second copy of an instantiated graph. CUPTI's callbacks announce that the creation of each
    /// node of this copy starts. Only for child-graph nodes do the callbacks also announce that they were created.
    fn shadow(&'static self) -> &'static Graph {
        let shadow = Graph::create();
        for original in self.nodes() {
            let what = lock(&original.state).what;
            let node = shadow.push(State::default());
            let node_type = what.node_type();
            let data = || GraphData { graph: shadow.handle(), node: node.handle(), node_type, ..NOBODY };
            tell(resource::GRAPHNODE_CREATE_STARTING, &data());
            if let What::Child(child) = what {
                lock(&node.state).what = What::Child(child.shadow());
                tell(resource::GRAPHNODE_CREATED, &data());
            }
        }
        shadow
    }

    /// Returns the nodes in the order in which an instantiated graph has them: the nodes of each child graph come after
    /// all other nodes.
    fn flat_nodes(&self) -> Vec<&'static Node> {
        let mut nodes = self.nodes();
        let mut at = 0;
        while let Some(node) = nodes.get(at) {
            match node.what() {
                What::Child(child) => {
                    nodes.remove(at);
                    nodes.extend(child.nodes());
                }
                _ => at += 1,
            }
        }
        nodes
    }

    /// Replaces each child-graph node by the nodes of its child graph, as the driver does in an instantiated graph. The
    /// subscriber is not notified of the added nodes.
    fn inline(&'static self) {
        let mut at = 0;
        while let Some(node) = self.nodes().get(at).copied() {
            let What::Child(child) = node.what() else {
                at += 1;
                continue;
            };
            let (inner, before) = (child.nodes(), self.nodes());
            let pushed: Vec<&'static Node> =
                inner.iter().map(|inner| self.push(std::mem::take(&mut *lock(&inner.state)))).collect();
            graph_edges::inline(&before, node, &inner, &pushed);
            lock(&self.nodes).remove(at);
            lock(&node.state).what = What::Empty;
            self.end(node);
            tell(resource::GRAPH_DESTROY_STARTING, &GraphData { graph: child.handle(), ..NOBODY });
            child.forget();
        }
    }

    /// Removes a node from the graph that contains it, and destroys the node.
    pub fn destroy_node(node: &'static Node) -> Result<(), CuError> {
        let graph = lock(&node.graph).ok_or(INVALID_VALUE)?;
        lock(&graph.nodes).retain(|n| !std::ptr::eq(*n, node));
        graph
            .nodes()
            .iter()
            .for_each(|other| lock(&other.edges).retain(|edge| !std::ptr::eq(edge.from, node)));
        graph.end(node);
        Ok(())
    }

    fn end(&'static self, node: &'static Node) {
        tell(
            resource::GRAPHNODE_DESTROY_STARTING,
            &GraphData { graph: self.handle(), node: node.handle(), ..NOBODY },
        );
        let what = lock(&node.state).what;
        what.parts().iter().for_each(|part| part.destroy());
        node.magic.store(0, Relaxed);
        lock(&NODES).push(node);
    }

    /// Destroys the graph and its nodes, and notifies the subscriber.
    pub fn destroy(&'static self) {
        tell(resource::GRAPH_DESTROY_STARTING, &GraphData { graph: self.handle(), ..NOBODY });
        self.free();
    }

    /// Destroys the nodes of the graph, and then their child graphs.
    fn free(&'static self) {
        let nodes = std::mem::take(&mut *lock(&self.nodes));
        let whats: Vec<What> = nodes.iter().map(|node| std::mem::take(&mut lock(&node.state).what)).collect();
        nodes.into_iter().for_each(|node| self.end(node));
        whats.iter().flat_map(What::parts).for_each(|part| part.destroy());
        lock(&self.objects).drain(..).for_each(|(object, references)| object.release(references));
        self.retire();
    }

    /// Destroys the graph without notifying the subscriber, because its nodes have moved to another graph.
    fn forget(&'static self) {
        let nodes = std::mem::take(&mut *lock(&self.nodes));
        for node in nodes {
            node.magic.store(0, Relaxed);
            lock(&NODES).push(node);
        }
        lock(&self.objects).drain(..).for_each(|(object, references)| object.release(references));
        self.retire();
    }

    fn retire(&'static self) {
        self.magic.store(0, Relaxed);
        lock(&GRAPHS).push(self);
    }

    /// Replaces the actions of this graph's nodes by the actions of the nodes in `from`. If the graphs do not match,
    /// leaves this graph unchanged.
    fn update(&self, from: &Graph) -> Result<(), CuError> {
        if !self.matches(from) {
            return Err(UPDATE_FAILURE);
        }
        for (node, new) in self.nodes().into_iter().zip(from.flat_nodes()) {
            let new_state = *lock(&new.state);
            let mut state = lock(&node.state);
            let parts = state.what.parts().iter().zip(new_state.what.parts());
            parts.clone().try_for_each(|(mine, theirs)| mine.update(theirs))?;
            // Memory that belongs to the graph keeps its address, so nodes that allocate or free it are not updated.
            if parts.len() == 0 && !matches!(state.what, What::Alloc(_) | What::Free(_)) {
                state.what = new_state.what;
            }
            state.site = new_state.site;
            state.source = (from.id(), new.id());
        }
        Ok(())
    }

    /// Whether the nodes of this instantiated graph have the same kinds as the nodes of another graph.
    fn matches(&self, other: &Graph) -> bool {
        let (mine, theirs) = (self.nodes(), other.flat_nodes());
        let alike = |(a, b): (&&Node, &&Node)| {
            let (a, b) = (a.what(), b.what());
            let mut parts = a.parts().iter().zip(b.parts());
            a.node_type() == b.node_type()
                && a.parts().len() == b.parts().len()
                && parts.all(|(a, b)| a.matches(b))
        };
        mine.len() == theirs.len() && mine.iter().zip(&theirs).all(alike)
    }

    fn run(&self, run: &mut Run) -> Result<(), CuError> {
        let nodes = lock(&self.nodes).clone();
        for node in nodes {
            let state = *lock(&node.state);
            match state.what {
                What::Empty => {}
                What::Child(child) => child.run(run)?,
                What::Alloc(address) => memory::alloc_of_graph(address),
                What::Free(address) => memory::free_device(address)?,
                What::Conditional(bodies, chosen) => {
                    bodies.get(chosen).map_or(Ok(()), |body| body.run(run))?
                }
                What::Host(function, argument) => {
                    host_fn::launch(run.stream, function, argument as *mut c_void);
                }
                What::Work(order) => {
                    let place = NodeRun {
                        graph: run.graph,
                        node: node.id(),
                        source_graph: state.source.0,
                        source_node: state.source.1,
                        created: state.site,
                    };
                    let (start, end) = gpu::run_node(run.stream, run.earliest, order, place, run.as_a_whole);
                    let span = run.span.unwrap_or((start, end));
                    run.span = Some((span.0.min(start), span.1.max(end)));
                }
            }
        }
        Ok(())
    }
}

/// State of a graph launch in progress.
struct Run {
    stream: &'static Stream,
    graph: u32,
    /// Earliest time at which the first node may start.
    earliest: u64,
    /// Whether one activity record covers all nodes of the launch.
    as_a_whole: bool,
    span: Option<(u64, u64)>,
}

impl Node {
    /// Returns the id of the node in activity records.
    pub fn id(&self) -> u64 {
        self.id.load(Relaxed)
    }

    pub(crate) fn what(&self) -> What {
        lock(&self.state).what
    }

    pub(crate) fn state(&self) -> State {
        *lock(&self.state)
    }

    /// Edges from the nodes on which this node depends.
    pub fn edges(&self) -> Vec<Edge> {
        lock(&self.edges).clone()
    }

    /// Replaces the list of nodes that this node waits for.
    pub fn set_edges(&self, edges: Vec<Edge>) {
        *lock(&self.edges) = edges;
    }

    /// Kind of the node, as a CUgraphNodeType.
    pub fn node_type(&self) -> u32 {
        self.what().node_type()
    }

    /// Replaces the node's action by another action of the same kind.
    pub fn set(&self, what: What) -> Result<(), CuError> {
        let mut state = lock(&self.state);
        if state.what.node_type() != what.node_type() {
            return Err(INVALID_VALUE);
        }
        state.what = what;
        Ok(())
    }
}

impl Exec {
    /// Instantiates a graph by copying its nodes.
    pub fn create(graph: &'static Graph) -> &'static Exec {
        let exec = take(&EXECS);
        let data = || GraphData { graph: graph.handle(), exec: exec.handle(), ..NOBODY };
        // CUPTI's callbacks do not announce this copy as a clone. The callbacks below are made in the order that was
        // recorded on an H100 with driver 580.
        let copy = graph.copy();
        *lock(&exec.graph) = Some(copy);
        *lock(&exec.shadow) = Some(copy.shadow());
        *lock(&exec.last) = Mark::default();
        tell(resource::GRAPHEXEC_CREATE_STARTING, &data());
        copy.inline();
        exec.magic.store(EXEC, Relaxed);
        tell(resource::GRAPHEXEC_CREATED, &data());
        exec
    }

    pub(crate) fn graph(&self) -> Result<&'static Graph, CuError> {
        lock(&self.graph).ok_or(INVALID_VALUE)
    }

    /// Returns the graph id that activity records of launches contain: the id of the copy that was made at the
    /// instantiation.
    pub fn id(&self) -> u32 {
        self.graph().map_or(0, Graph::id)
    }

    /// Replaces the actions of this instantiated graph's nodes by the actions of the nodes in `from`.
    pub fn update(&self, from: &Graph) -> Result<(), CuError> {
        self.graph()?.update(from)
    }

    /// Returns the node of this instantiated graph that corresponds to a node of the source graph. The two nodes have
    /// the same position in their graphs, counting the nodes of child graphs.
    pub fn node_of(&self, node: &Node) -> Result<&'static Node, CuError> {
        let graph = lock(&node.graph).ok_or(INVALID_VALUE)?;
        let place =
            graph.flat_nodes().iter().position(|other| std::ptr::eq(*other, node)).ok_or(INVALID_VALUE)?;
        self.graph()?.nodes().get(place).copied().ok_or(INVALID_VALUE)
    }

    /// Launches the instantiated graph: runs all nodes on a stream.
    pub fn launch(&self, stream: &'static Stream) -> Result<(), CuError> {
        if stream.capture().is_some() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let graph = self.graph()?;
        let as_a_whole = SWITCHES.kinds.load(Relaxed) & (1 << kind::GRAPH_TRACE) != 0;
        thread::current().tally.count_graph_launch();
        if settings::get().stepped {
            return self.launch_stepped(graph, stream, as_a_whole);
        }
        let mut run = Run { stream, graph: graph.id(), earliest: gpu::earliest(), as_a_whole, span: None };
        graph.run(&mut run)?;
        if as_a_whole && let Some(span) = run.span {
            gpu::note_graph(stream, graph.id(), span);
        }
        Ok(())
    }

    /// Launches the graph on the stepped clock: each node runs after the nodes on which it depends. A launch begins
    /// after the previous launch of the same instantiated graph has ended.
    fn launch_stepped(
        &self,
        graph: &Graph,
        stream: &'static Stream,
        as_a_whole: bool,
    ) -> Result<(), CuError> {
        let mut last = lock(&self.last);
        let mut run = graph_edges::Run::new(stream, graph.id(), as_a_whole);
        let mut waits = schedule::find(stream, false).waits;
        waits.push(Wait::until(Why::Graph, *last));
        let ends = run.nodes(&graph.nodes(), &waits)?;
        if let Some((begin, end)) = run.span {
            *last = graph_edges::latest(&ends);
            schedule::settle(stream, Mark { time: end, ..*last }, None);
            if as_a_whole {
                gpu::note_graph(stream, graph.id(), (begin, end));
            }
        }
        Ok(())
    }

    /// Destroys the instantiated graph. If a launch of the graph is still running, it continues.
    pub fn destroy(&'static self) -> Result<(), CuError> {
        let graph = self.graph()?;
        tell(
            resource::GRAPHEXEC_DESTROY_STARTING,
            &GraphData { graph: graph.handle(), exec: self.handle(), ..NOBODY },
        );
        self.magic.store(0, Relaxed);
        *lock(&self.graph) = None;
        let shadow = lock(&self.shadow).take();
        let both = [Some(graph), shadow];
        for part in both.into_iter().flatten() {
            tell(resource::GRAPH_DESTROY_STARTING, &GraphData { graph: part.handle(), ..NOBODY });
        }
        both.into_iter().rev().flatten().for_each(|part| part.free());
        lock(&EXECS).push(self);
        Ok(())
    }
}

/// Returns the id of the object to which a handle points, for CUPTI. `what` is 0 for a graph, 1 for a node, and 2 for
/// an executable graph.
pub fn id_of(what: u32, handle: *mut c_void) -> Result<u64, CuError> {
    match what {
        0 => Graph::of_handle(handle).map(|g| u64::from(g.id())),
        1 => Node::of_handle(handle).map(Node::id),
        2 => Exec::of_handle(handle).map(|e| u64::from(e.id())),
        _ => Err(INVALID_HANDLE),
    }
}

//! Driver API functions that create, copy, instantiate, update and launch CUDA graphs. The graph's edges have an effect
//! only on the stepped clock.

use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::error::{CuError, INVALID_VALUE, NOT_SUPPORTED, UPDATE_FAILURE};
use gpusim_core::graph::{Exec, Graph, Node, What};
use gpusim_core::graph_edges::Edge;
use gpusim_core::graph_params::{
    self, AllocNode, AnyNode, AnyParams, HostNode, KernelNode, MemsetNode, UpdateResult,
};
use gpusim_core::host_fn::HostFn;
use gpusim_core::memory::{self, Cuboid};
use gpusim_core::missing;
use gpusim_core::stream::Stream;
use gpusim_core::user_object::UserObject;
use std::ptr::{null, null_mut};

/// Reads the nodes on which a new node depends. If the program passes edge data (CUgraphEdgeData), this function reads
/// the edges' kinds too.
pub(crate) fn edges_of(nodes: In<Handle>, data: In<u64>, count: usize) -> Result<Vec<Edge>, CuError> {
    const PROGRAMMATIC: u8 = 1;
    let edge = |at: usize| {
        let from = Node::of_handle(In(nodes.0.wrapping_add(at)).get()?)?;
        let kind = if data.0.is_null() { 0 } else { In(data.0.wrapping_add(at)).get()?.to_le_bytes()[2] };
        Ok(Edge { from, is_programmatic: kind == PROGRAMMATIC })
    };
    (0..count).map(edge).collect()
}

fn add(
    node: Out<Handle>,
    graph: Handle,
    (edges, count): (In<Handle>, usize),
    what: What,
) -> Result<(), CuError> {
    add_with(node, graph, edges_of(edges, In(null()), count)?, what)
}

fn add_with(node: Out<Handle>, graph: Handle, edges: Vec<Edge>, what: What) -> Result<(), CuError> {
    let graph = Graph::of_handle(graph)?;
    node.set(null_mut())?;
    node.set(graph.add(what, edges).handle())
}

/// Converts the parameters of a graph node of any kind to the node's action. For some kinds of nodes, results are
/// written back to the parameters.
fn any(params: Out<AnyNode<KernelNode>>) -> Result<What, CuError> {
    let mut all = params.get()?;
    let AnyNode { kind, what, .. } = all;
    // SAFETY: the node kind determines which member of the union the program has set; all members are plain numbers and
    // pointers.
    let (kernel, memset, host, child, free) =
        unsafe { (what.kernel, what.memset, what.host, what.child, what.free) };
    // SAFETY: the node kind determines which member of the union the program has set.
    let (mut alloc, mut conditional) = unsafe { (what.alloc, what.conditional) };
    let what = match kind {
        0 => kernel.what()?,
        2 => memset.what(),
        3 => host.what()?,
        4 => What::Child(Graph::of_handle(child)?),
        5 => What::Empty,
        10 => alloc.what()?,
        11 => What::Free(free),
        13 => conditional.what()?,
        _ => {
            missing::note("a node of a graph of this kind");
            return Err(NOT_SUPPORTED);
        }
    };
    match kind {
        10 => all.what = AnyParams { alloc },
        13 => all.what = AnyParams { conditional },
        _ => {}
    }
    params.set(all)?;
    Ok(what)
}

/// Changes the action of a node in an instantiated graph.
fn set(exec: Handle, node: Handle, what: What) -> Result<(), CuError> {
    Exec::of_handle(exec)?.node_of(Node::of_handle(node)?)?.set(what)
}

fn update(exec: Handle, graph: Handle, info: Out<UpdateResult>) -> Result<(), CuError> {
    let updated = Exec::of_handle(exec)?.update(Graph::of_handle(graph)?);
    let result = if updated == Err(UPDATE_FAILURE) { 2 } else { 0 };
    info.set_if_wanted(UpdateResult { result, node: null_mut(), from_node: null_mut() });
    updated
}

driver_api! {
    cuGraphCreate @ 501 |_own| (graph: Out<Handle>, _flags: u32) { graph.set(Graph::create().handle()) }

    cuGraphAddKernelNode_v2 @ 689 |_own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, params: In<KernelNode>,
    ) {
        let params = params.get()?;
        crate::launch::check_extents(params.grid, params.block)?;
        add(node, graph, (edges, count), params.what()?)
    }

    cuGraphAddMemcpyNode @ 504 |_own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, what: In<Cuboid>, _context: Handle,
    ) { add(node, graph, (edges, count), what.get()?.what()) }

    cuGraphAddMemsetNode @ 506 |_own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, what: In<MemsetNode>, _context: Handle,
    ) { add(node, graph, (edges, count), what.get()?.what()) }

    cuGraphAddHostNode @ 530 |_own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, params: In<HostNode>,
    ) {
        add(node, graph, (edges, count), params.get()?.what()?)
    }

    cuGraphAddChildGraphNode @ 525 |_own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, child: Handle,
    ) { add(node, graph, (edges, count), What::Child(Graph::of_handle(child)?)) }

    cuGraphAddEmptyNode @ 526 |_own| (node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize) {
        add(node, graph, (edges, count), What::Empty)
    }

    cuGraphAddMemAllocNode @ 638 |_own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, params: Out<AllocNode>,
    ) {
        let mut alloc = params.get()?;
        add(node, graph, (edges, count), alloc.what()?)?;
        params.set(alloc)
    }

    cuGraphAddMemFreeNode @ 639 |_own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, address: u64,
    ) { add(node, graph, (edges, count), What::Free(address)) }

    cuGraphAddNode_v2 @ 723 |_own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, edge_data: In<u64>, count: usize,
        params: Out<AnyNode<KernelNode>>,
    ) { add_with(node, graph, edges_of(edges, edge_data, count)?, any(params)?) }

    cuGraphConditionalHandleCreate @ 722 |_own| (
        condition: Out<u64>, graph: Handle, _context: Handle, default: u32, flags: u32,
    ) {
        Graph::of_handle(graph)?;
        condition.set(graph_params::condition(default, flags))
    }

    cuGraphNodeGetType @ 509 |_own| (node: Handle, kind: Out<u32>) { kind.set(Node::of_handle(node)?.node_type()) }

    cuGraphExecKernelNodeSetParams_v2 @ 692 |_own| (exec: Handle, node: Handle, params: In<KernelNode>) {
        let params = params.get()?;
        crate::launch::check_extents(params.grid, params.block)?;
        set(exec, node, params.what()?)
    }

    cuGraphExecMemcpyNodeSetParams @ 562 |_own| (
        exec: Handle, node: Handle, what: In<Cuboid>, _context: Handle,
    ) { set(exec, node, what.get()?.what()) }

    cuGraphExecMemsetNodeSetParams @ 563 |_own| (
        exec: Handle, node: Handle, what: In<MemsetNode>, _context: Handle,
    ) { set(exec, node, what.get()?.what()) }

    cuGraphExecHostNodeSetParams @ 564 |_own| (exec: Handle, node: Handle, params: In<HostNode>) {
        set(exec, node, params.get()?.what()?)
    }

    cuDeviceGraphMemTrim @ 640 |_own| (_device: u32) { Ok(()) }

    cuDeviceGetGraphMemAttribute @ 641 |_own| (device: u32, _what: u32, bytes: Out<u64>) {
        bytes.set(memory::bytes_of_graphs(device))
    }

    cuDeviceSetGraphMemAttribute @ 642 |_own| (_device: u32, _what: u32, _bytes: In<u64>) { Ok(()) }

    cuGraphClone @ 523 |_own| (copy: Out<Handle>, graph: Handle) {
        copy.set(Graph::of_handle(graph)?.clone_of().handle())
    }

    cuGraphDestroyNode @ 522 |_own| (node: Handle) { Graph::destroy_node(Node::of_handle(node)?) }

    cuGraphGetNodes @ 534 |_own| (graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let found = Graph::of_handle(graph)?.nodes();
        if nodes.0.is_null() {
            return count.set(found.len());
        }
        let room = count.get()?;
        for (at, node) in found.iter().take(room).enumerate() {
            Out(nodes.0.wrapping_add(at)).set(node.handle())?;
        }
        (found.len()..room).try_for_each(|at| Out(nodes.0.wrapping_add(at)).set(null_mut()))?;
        count.set(found.len().min(room))
    }

    cuGraphNodeGetDependencies_v2 @ 725 |_own| (
        node: Handle, _nodes: Out<Handle>, _edge_data: Out<u64>, count: Out<usize>,
    ) {
        Node::of_handle(node)?;
        count.set(0)
    }

    cuUserObjectCreate @ 633 |_own| (
        object: Out<Handle>, argument: Handle, destroy: Option<HostFn>, references: u32, _flags: u32,
    ) {
        object.set(null_mut())?;
        object.set(UserObject::create(destroy.ok_or(INVALID_VALUE)?, argument, references).handle())
    }

    cuUserObjectRetain @ 634 |_own| (object: Handle, references: u32) {
        UserObject::of_handle(object)?.retain(references);
        Ok(())
    }

    cuUserObjectRelease @ 635 |_own| (object: Handle, references: u32) {
        UserObject::of_handle(object)?.release(references);
        Ok(())
    }

    cuGraphRetainUserObject @ 636 |_own| (graph: Handle, object: Handle, references: u32, flags: u32) {
        const MOVE: u32 = 1;
        let (graph, object) = (Graph::of_handle(graph)?, UserObject::of_handle(object)?);
        if flags & MOVE == 0 {
            object.retain(references);
        }
        graph.keep(object, references);
        Ok(())
    }

    cuGraphInstantiateWithFlags @ 643 |_own| (exec: Out<Handle>, graph: Handle, _flags: u64) {
        exec.set(Exec::create(Graph::of_handle(graph)?).handle())
    }

    cuGraphExecUpdate_v2 @ 696 |_own| (exec: Handle, graph: Handle, info: Out<UpdateResult>) {
        update(exec, graph, info)
    }

    cuGraphUpload @ 580 / cuGraphUpload_ptsz @ 581 |own| (exec: Handle, stream: Handle) {
        Exec::of_handle(exec)?;
        Stream::resolve(stream, own).map(drop)
    }

    cuGraphLaunch @ 514 / cuGraphLaunch_ptsz @ 515 |own| (exec: Handle, stream: Handle) {
        Exec::of_handle(exec)?.launch(Stream::resolve(stream, own)?)
    }

    cuGraphExecDestroy @ 516 |_own| (exec: Handle) { Exec::of_handle(exec)?.destroy() }

    cuGraphDestroy @ 517 |_own| (graph: Handle) {
        Graph::of_handle(graph)?.destroy();
        Ok(())
    }
}

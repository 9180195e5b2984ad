//! Graphs: making, copying, instantiating, updating, launching. Edges are taken and not looked at.

use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::error::{CuError, INVALID_VALUE, UPDATE_FAILURE};
use gpusim_core::graph::{Exec, Graph, Node, What};
use gpusim_core::graph_params::{Box3D, HostNode, KernelNode, MemsetNode, UpdateResult};
use gpusim_core::stream::Stream;
use std::ptr::null_mut;

fn add(node: Out<Handle>, graph: Handle, what: What) -> Result<(), CuError> {
    let graph = Graph::of_handle(graph)?;
    node.set(null_mut())?;
    node.set(graph.add(what).handle())
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
        node: Out<Handle>, graph: Handle, _edges: In<Handle>, _count: usize, params: In<KernelNode>,
    ) {
        let params = params.get()?;
        crate::launch::check_extents(params.grid, params.block)?;
        add(node, graph, params.what()?)
    }

    cuGraphAddMemcpyNode @ 504 |_own| (
        node: Out<Handle>, graph: Handle, _edges: In<Handle>, _count: usize, what: In<Box3D>, _context: Handle,
    ) { add(node, graph, what.get()?.what()) }

    cuGraphAddMemsetNode @ 506 |_own| (
        node: Out<Handle>, graph: Handle, _edges: In<Handle>, _count: usize, what: In<MemsetNode>, _context: Handle,
    ) { add(node, graph, what.get()?.what()) }

    cuGraphAddHostNode @ 530 |_own| (
        node: Out<Handle>, graph: Handle, _edges: In<Handle>, _count: usize, params: In<HostNode>,
    ) {
        let HostNode { function, data } = params.get()?;
        add(node, graph, What::Host(function.ok_or(INVALID_VALUE)?, data as usize))
    }

    cuGraphAddChildGraphNode @ 525 |_own| (
        node: Out<Handle>, graph: Handle, _edges: In<Handle>, _count: usize, child: Handle,
    ) { add(node, graph, What::Child(Graph::of_handle(child)?)) }

    cuGraphAddEmptyNode @ 526 |_own| (node: Out<Handle>, graph: Handle, _edges: In<Handle>, _count: usize) {
        add(node, graph, What::Empty)
    }

    cuGraphClone @ 523 |_own| (copy: Out<Handle>, graph: Handle) {
        copy.set(Graph::of_handle(graph)?.copy().handle())
    }

    cuGraphDestroyNode @ 522 |_own| (node: Handle) { Graph::destroy_node(Node::of_handle(node)?) }

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

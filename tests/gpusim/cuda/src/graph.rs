//! Graphs: making, copying, instantiating, updating, launching. Edges are taken and not looked at.

use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::error::{CuError, INVALID_VALUE, UPDATE_FAILURE};
use gpusim_core::graph::{Exec, Graph, Node, What};
use gpusim_core::graph_params::{HostNode, KernelNode, MemsetNode, UpdateResult};
use gpusim_core::host_fn::HostFn;
use gpusim_core::memory::Cuboid;
use gpusim_core::stream::Stream;
use gpusim_core::user_object::UserObject;
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
        node: Out<Handle>, graph: Handle, _edges: In<Handle>, _count: usize, what: In<Cuboid>, _context: Handle,
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

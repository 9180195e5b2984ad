//! Runtime API functions for CUDA graphs: each function takes the runtime's structs and calls the driver's equivalent
//! function.

use crate::launch::Dim3;
use crate::link::Driver;
use crate::memory::Copy3d;
use crate::runtime_api::{check, runtime, stream};
use crate::stubs;
use gpusim_core::arg::{Handle, In, Out};
use gpusim_core::error::{CuError, INVALID_DEVICE_FUNCTION};
use gpusim_core::graph_params::{AllocNode, AnyNode, HostNode, KernelNode, MemsetNode, UpdateResult};
use gpusim_core::host_fn::HostFn;
use gpusim_core::memory::Cuboid;
use gpusim_core::settings;
use gpusim_core::version::CuptiVersion;
use std::ptr::null_mut;

/// cudaKernelNodeParams
#[repr(C)]
#[derive(Clone, Copy)]
struct RuntimeKernelNode {
    function: Handle,
    grid: Dim3,
    block: Dim3,
    shared_bytes: u32,
    params: *mut Handle,
    extra: *mut Handle,
}

impl RuntimeKernelNode {
    fn for_driver(&self) -> Result<KernelNode, CuError> {
        let kernel = stubs::kernel_of(self.function).ok_or(INVALID_DEVICE_FUNCTION)?;
        let (g, b) = (self.grid, self.block);
        Ok(KernelNode {
            function: kernel.handle,
            grid: [g.x, g.y, g.z],
            block: [b.x, b.y, b.z],
            shared_bytes: self.shared_bytes,
            params: self.params,
            extra: self.extra,
            kernel: null_mut(),
            context: null_mut(),
        })
    }
}

/// Adds a graph node whose parameters contain the node's kind. The parameters have the same layout as in the driver
/// API, except the parameters of a kernel node.
fn add_any(
    driver: &Driver,
    node: Out<Handle>,
    graph: Handle,
    (edges, edge_data, count): (In<Handle>, In<u64>, usize),
    params: Out<AnyNode<RuntimeKernelNode>>,
) -> Result<(), CuError> {
    let AnyNode { kind, what, .. } = params.get()?;
    if kind != 0 {
        return check((driver.cuGraphAddNode_v2)(node, graph, edges, edge_data, count, Out(params.0.cast())));
    }
    // SAFETY: the kind field identifies the node as a kernel.
    let kernel = unsafe { what.kernel }.for_driver()?;
    check((driver.cuGraphAddKernelNode_v2)(node, graph, edges, count, In(&kernel)))
}

fn instantiate(driver: &Driver, exec: Out<Handle>, graph: Handle, flags: u64) -> Result<(), CuError> {
    driver.context()?;
    check((driver.cuGraphInstantiateWithFlags)(exec, graph, flags))
}

/// In CUDA 12.0, the arguments and the callback id of cudaGraphInstantiate changed.
#[unsafe(no_mangle)]
extern "C" fn cudaGraphInstantiate(exec: Out<Handle>, graph: Handle, flags: u64) -> u32 {
    #[repr(C)]
    #[allow(dead_code)] // subscribers read the fields through a pointer
    struct Params(Out<Handle>, Handle, u64);
    let id = if settings::get().cupti >= CuptiVersion::V12_0 { 443 } else { 310 };
    let params = Params(exec, graph, flags);
    runtime(id, c"cudaGraphInstantiate", &params, std::ptr::null(), |driver| {
        instantiate(driver, exec, graph, flags)
    })
}

runtime_api! {
    cudaGraphCreate @ 286 |driver, _own| (graph: Out<Handle>, flags: u32) {
        driver.context()?;
        check((driver.cuGraphCreate)(graph, flags))
    }

    cudaGraphAddKernelNode @ 289 |driver, _own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, params: In<RuntimeKernelNode>,
    ) {
        driver.context()?;
        let params = params.get()?.for_driver()?;
        check((driver.cuGraphAddKernelNode_v2)(node, graph, edges, count, In(&params)))
    }

    cudaGraphAddMemcpyNode1D @ 352 |driver, _own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, target: u64, source: u64, bytes: usize,
        _kind: u32,
    ) {
        driver.context()?;
        let what = Cuboid::line(target, source, bytes);
        check((driver.cuGraphAddMemcpyNode)(node, graph, edges, count, In(&what), null_mut()))
    }

    cudaGraphAddMemcpyNode @ 290 |driver, _own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, what: In<Copy3d>,
    ) {
        driver.context()?;
        let what = what.get()?.cuboid();
        check((driver.cuGraphAddMemcpyNode)(node, graph, edges, count, In(&what), null_mut()))
    }

    cudaGraphAddMemsetNode @ 293 |driver, _own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, params: In<MemsetNode>,
    ) {
        driver.context()?;
        check((driver.cuGraphAddMemsetNode)(node, graph, edges, count, params, null_mut()))
    }

    cudaGraphAddHostNode @ 296 |driver, _own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, params: In<HostNode>,
    ) {
        driver.context()?;
        check((driver.cuGraphAddHostNode)(node, graph, edges, count, params))
    }

    cudaGraphAddChildGraphNode @ 298 |driver, _own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, child: Handle,
    ) {
        driver.context()?;
        check((driver.cuGraphAddChildGraphNode)(node, graph, edges, count, child))
    }

    cudaGraphAddEmptyNode @ 300 |driver, _own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize,
    ) {
        driver.context()?;
        check((driver.cuGraphAddEmptyNode)(node, graph, edges, count))
    }

    cudaGraphClone @ 301 |driver, _own| (copy: Out<Handle>, graph: Handle) {
        driver.context()?;
        check((driver.cuGraphClone)(copy, graph))
    }

    cudaGraphDestroyNode @ 309 |driver, _own| (node: Handle) {
        driver.context()?;
        check((driver.cuGraphDestroyNode)(node))
    }

    cudaGraphGetNodes @ 322 |driver, _own| (graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        driver.context()?;
        check((driver.cuGraphGetNodes)(graph, nodes, count))
    }

    cudaGraphNodeGetDependencies @ 456 |driver, _own| (
        node: Handle, nodes: Out<Handle>, edge_data: Out<u64>, count: Out<usize>,
    ) {
        driver.context()?;
        check((driver.cuGraphNodeGetDependencies_v2)(node, nodes, edge_data, count))
    }

    cudaGraphAddNode @ 460 |driver, _own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, edge_data: In<u64>, count: usize,
        params: Out<AnyNode<RuntimeKernelNode>>,
    ) {
        driver.context()?;
        add_any(driver, node, graph, (edges, edge_data, count), params)
    }

    cudaGraphAddMemAllocNode @ 419 |driver, _own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, params: Out<AllocNode>,
    ) {
        driver.context()?;
        check((driver.cuGraphAddMemAllocNode)(node, graph, edges, count, params))
    }

    cudaGraphAddMemFreeNode @ 421 |driver, _own| (
        node: Out<Handle>, graph: Handle, edges: In<Handle>, count: usize, address: u64,
    ) {
        driver.context()?;
        check((driver.cuGraphAddMemFreeNode)(node, graph, edges, count, address))
    }

    cudaGraphConditionalHandleCreate @ 454 |driver, _own| (
        condition: Out<u64>, graph: Handle, default: u32, flags: u32,
    ) {
        driver.context()?;
        check((driver.cuGraphConditionalHandleCreate)(condition, graph, null_mut(), default, flags))
    }

    cudaGraphNodeGetType @ 303 |driver, _own| (node: Handle, kind: Out<u32>) {
        driver.context()?;
        check((driver.cuGraphNodeGetType)(node, kind))
    }

    cudaGraphExecKernelNodeSetParams @ 326 |driver, _own| (
        exec: Handle, node: Handle, params: In<RuntimeKernelNode>,
    ) {
        driver.context()?;
        check((driver.cuGraphExecKernelNodeSetParams_v2)(exec, node, In(&params.get()?.for_driver()?)))
    }

    cudaGraphExecMemcpyNodeSetParams @ 332 |driver, _own| (exec: Handle, node: Handle, what: In<Copy3d>) {
        driver.context()?;
        check((driver.cuGraphExecMemcpyNodeSetParams)(exec, node, In(&what.get()?.cuboid()), null_mut()))
    }

    cudaGraphExecMemcpyNodeSetParams1D @ 358 |driver, _own| (
        exec: Handle, node: Handle, target: u64, source: u64, bytes: usize, _kind: u32,
    ) {
        driver.context()?;
        let what = Cuboid::line(target, source, bytes);
        check((driver.cuGraphExecMemcpyNodeSetParams)(exec, node, In(&what), null_mut()))
    }

    cudaGraphExecMemsetNodeSetParams @ 333 |driver, _own| (
        exec: Handle, node: Handle, params: In<MemsetNode>,
    ) {
        driver.context()?;
        check((driver.cuGraphExecMemsetNodeSetParams)(exec, node, params, null_mut()))
    }

    cudaGraphExecHostNodeSetParams @ 334 |driver, _own| (exec: Handle, node: Handle, params: In<HostNode>) {
        driver.context()?;
        check((driver.cuGraphExecHostNodeSetParams)(exec, node, params))
    }

    cudaUserObjectCreate @ 413 |driver, _own| (
        object: Out<Handle>, argument: Handle, destroy: Option<HostFn>, references: u32, flags: u32,
    ) {
        driver.context()?;
        check((driver.cuUserObjectCreate)(object, argument, destroy, references, flags))
    }

    cudaUserObjectRetain @ 414 |driver, _own| (object: Handle, references: u32) {
        check((driver.cuUserObjectRetain)(object, references))
    }

    cudaUserObjectRelease @ 415 |driver, _own| (object: Handle, references: u32) {
        check((driver.cuUserObjectRelease)(object, references))
    }

    cudaGraphRetainUserObject @ 416 |driver, _own| (
        graph: Handle, object: Handle, references: u32, flags: u32,
    ) {
        check((driver.cuGraphRetainUserObject)(graph, object, references, flags))
    }

    cudaGraphInstantiateWithFlags @ 418 |driver, _own| (exec: Out<Handle>, graph: Handle, flags: u64) {
        instantiate(driver, exec, graph, flags)
    }

    cudaGraphExecUpdate @ 335 |driver, _own| (exec: Handle, graph: Handle, info: Out<UpdateResult>) {
        driver.context()?;
        check((driver.cuGraphExecUpdate_v2)(exec, graph, info))
    }

    cudaGraphUpload @ 348 / cudaGraphUpload_ptsz @ 349 |driver, own| (exec: Handle, handle: Handle) {
        driver.context()?;
        check((driver.cuGraphUpload)(exec, stream(handle, own)))
    }

    cudaGraphLaunch @ 311 / cudaGraphLaunch_ptsz @ 312 |driver, own| (exec: Handle, handle: Handle) {
        driver.context()?;
        check((driver.cuGraphLaunch)(exec, stream(handle, own)))
    }

    cudaGraphExecDestroy @ 313 |driver, _own| (exec: Handle) {
        driver.context()?;
        check((driver.cuGraphExecDestroy)(exec))
    }

    cudaGraphDestroy @ 314 |driver, _own| (graph: Handle) {
        driver.context()?;
        check((driver.cuGraphDestroy)(graph))
    }
}

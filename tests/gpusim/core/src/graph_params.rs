//! Parameters of graph nodes: the structs of the driver API, and their conversion to the nodes' actions.

use crate::arg::Handle;
use crate::error::{CuError, INVALID_VALUE};
use crate::gpu::Order;
use crate::graph::{Graph, What};
use crate::host_fn::HostFn;
use crate::kernel::Kernel;
use crate::memory::{self, Corner, Cuboid, Location};
use crate::work::{Copy, Place};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// CUDA_KERNEL_NODE_PARAMS_v2
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct KernelNode {
    pub function: Handle,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub params: *mut Handle,
    pub extra: *mut Handle,
    pub kernel: Handle,
    pub context: Handle,
}

const _: () = assert!(size_of::<KernelNode>() == 72, "the driver API's size");

/// CUDA_MEMSET_NODE_PARAMS
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct MemsetNode {
    pub target: u64,
    pub pitch: usize,
    pub value: u32,
    pub element_bytes: u32,
    pub width: usize,
    pub height: usize,
}

/// CUDA_HOST_NODE_PARAMS
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct HostNode {
    pub function: Option<HostFn>,
    pub data: Handle,
}

/// CUDA_MEM_ALLOC_NODE_PARAMS, and the runtime's equivalent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct AllocNode {
    pub kind: u32,
    pub handle_types: u32,
    pub location: Location,
    /// Further parameters of the memory pool.
    pub of_pool: [u64; 9],
    pub access: Handle,
    pub access_count: usize,
    pub bytes: usize,
    /// Output: address of the allocated memory.
    pub address: u64,
}

const _: () = assert!(size_of::<AllocNode>() == 120, "the driver API's size");

/// CUDA_CONDITIONAL_NODE_PARAMS
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct ConditionalNode {
    pub condition: u64,
    /// Kind of condition: 0 if, 1 while, 2 switch.
    pub kind: u32,
    /// Number of body graphs from which the node selects.
    pub size: u32,
    /// Output: the body graphs from which the node selects.
    pub bodies: *const Handle,
    pub context: Handle,
}

/// CUgraphNodeParams: a node's kind, and its parameters.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, missing_debug_implementations)] // the driver API documents these fields
pub struct AnyNode<Kernel: Clone + std::marker::Copy> {
    /// CUgraphNodeType
    pub kind: u32,
    pub reserved: [u32; 3],
    pub what: AnyParams<Kernel>,
}

/// Parameters for each kind of node. The type of the kernel parameters in the runtime API differs from the type in the
/// driver API.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, missing_debug_implementations)] // the driver API documents these fields
pub union AnyParams<Kernel: Clone + std::marker::Copy> {
    pub kernel: Kernel,
    pub memset: MemsetNode,
    pub host: HostNode,
    pub child: Handle,
    pub alloc: AllocNode,
    pub free: u64,
    pub conditional: ConditionalNode,
}

/// CUgraphExecUpdateResultInfo
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the driver API documents these fields
pub struct UpdateResult {
    /// Result of the update: 0 for success, 2 if the graphs do not match.
    pub result: u32,
    pub node: Handle,
    pub from_node: Handle,
}

impl HostNode {
    /// Returns the work that these parameters describe.
    pub fn what(&self) -> Result<What, CuError> {
        Ok(What::Host(self.function.ok_or(INVALID_VALUE)?, self.data as usize))
    }
}

impl AllocNode {
    /// Returns the allocation that these parameters describe, and stores the address of the allocated memory in the
    /// parameters.
    pub fn what(&mut self) -> Result<What, CuError> {
        self.address = memory::reserve_for_graph(self.location.id as u32, self.bytes as u64)?;
        Ok(What::Alloc(self.address))
    }
}

impl ConditionalNode {
    /// Returns a conditional node's action with empty graphs, and stores these graphs in the parameters for the program
    /// to fill.
    pub fn what(&mut self) -> Result<What, CuError> {
        const IF: u32 = 0;
        const WHILE: u32 = 1;
        const SWITCH: u32 = 2;
        if self.size == 0 {
            return Err(INVALID_VALUE);
        }
        let bodies: Vec<_> = (0..self.size).map(|_| Graph::create()).collect();
        let handles: Vec<Handle> = bodies.iter().map(|body| body.handle()).collect();
        self.bodies = handles.leak().as_ptr();
        let value = default_of(self.condition);
        let chosen = match self.kind {
            // The first graph of an `if` node runs if the condition is true, and the second graph runs if it is false.
            IF => usize::from(value == 0),
            WHILE if value != 0 => 0,
            WHILE => usize::MAX,
            SWITCH => value as usize,
            _ => return Err(INVALID_VALUE),
        };
        Ok(What::Conditional(bodies.leak(), chosen))
    }
}

/// Creates a CUgraphConditionalHandle: a condition, with the value that it has at the start of each launch.
pub fn condition(default: u32, flags: u32) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    const ASSIGNS_DEFAULT: u32 = 1;
    let default = if flags & ASSIGNS_DEFAULT == 0 { 0 } else { default };
    NEXT.fetch_add(1, Relaxed) << 32 | u64::from(default)
}

fn default_of(condition: u64) -> u32 {
    condition as u32
}

impl KernelNode {
    /// Returns the work that these parameters describe.
    pub fn what(&self) -> Result<What, CuError> {
        let handle = if self.function.is_null() { self.kernel } else { self.function };
        let kernel = Kernel::of_handle(handle).ok_or(INVALID_VALUE)?;
        Ok(What::Work(Order::kernel(kernel, self.grid, self.block, self.shared_bytes)))
    }
}

impl Cuboid {
    /// Describes a copy of `bytes` from one address to another.
    pub fn line(target: u64, source: u64, bytes: usize) -> Cuboid {
        let (source, target) = (Corner::unified(source, bytes, 1), Corner::unified(target, bytes, 1));
        Cuboid { source, target, width: bytes, height: 1, depth: 1 }
    }

    /// Returns the work that these parameters describe.
    pub fn what(&self) -> What {
        let (target, source) = (self.target.address(), self.source.address());
        let bytes = (self.width * self.height.max(1) * self.depth.max(1)) as u64;
        let place = |address| Place { device: memory::device_of(address).unwrap_or(0), context: 0 };
        let direction = memory::direction(target, source);
        What::Work(match direction {
            Copy::PtoP => Order::peer(place(source), place(target), bytes, true),
            Copy::HtoD | Copy::HtoA => Order::memcpy(direction, memory::kind_of(source), bytes, true),
            _ => Order::memcpy(direction, memory::kind_of(target), bytes, true),
        })
    }
}

impl MemsetNode {
    /// Returns the work that these parameters describe.
    pub fn what(&self) -> What {
        let bytes = self.width * self.element_bytes as usize * self.height.max(1);
        What::Work(Order::memset(bytes as u64, self.value, memory::kind_of(self.target), true))
    }
}
